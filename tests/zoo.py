"""Tables of everything the laws run over: a new class is a new row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import ELBO, Trace_ELBO
from pyro.nn import PyroModule, pyro_method
from torch import Tensor, nn

from pyro_dvae import (
    ArsmELBO,
    AutoregressiveGuide,
    AutoregressivePrior,
    Bernoulli,
    Beta,
    BoltzmannPrior,
    CarmsELBO,
    Categorical,
    ConditionalPrior,
    ContinuousBernoulli,
    ConvDecoder,
    ConvEncoder,
    CorrelatedNormal,
    DisarmELBO,
    DiscreteVAE,
    EnumeratedELBO,
    GappedStraightThroughELBO,
    GumbelSoftmaxELBO,
    HierarchicalPrior,
    JsaELBO,
    Laplace,
    LearnedPrior,
    LocalExpectationELBO,
    LogisticMixture,
    Masked,
    MeanFieldGuide,
    Mixed,
    MixturePrior,
    MLPDecoder,
    MLPEncoder,
    Multinomial,
    NegativeBinomial,
    Normal,
    Ordinal,
    Poisson,
    RaoGumbelELBO,
    ReinforceELBO,
    ReinMaxELBO,
    ReinMaxRaoELBO,
    RelaxELBO,
    RlooELBO,
    SnapshotELBO,
    StraightThroughELBO,
    SumFirstELBO,
    UniformPrior,
    VampPrior,
    VimcoELBO,
    WakeSleepELBO,
)
from pyro_dvae.elbos.pathwise import PathwiseELBO

D, K, P = 2, 3, 4


def tiny_vae(num_latents: int = D, num_categories: int = K, event: tuple[int, ...] = (P,)) -> Any:
    code = (num_latents, num_categories)
    return DiscreteVAE(
        MLPEncoder(event, *code, hidden=(5,)),
        MLPDecoder(event, *code, hidden=(5,)),
        UniformPrior(*code),
        Bernoulli(),
    )


PLAIN: dict[str, Any] = {"averaging": 0.0, "annealing": 0}
"""Settings under which a training step is one of the ELBO's own, and its weights are kept."""


def tiny_data(num_data: int = 1, event: tuple[int, ...] = (P,)) -> Tensor:
    return torch.bernoulli(torch.full((num_data, *event), 0.5))


class LikelihoodRow(NamedTuple):
    """How to build a likelihood for data of a shape, and to make up N such data."""

    build: Callable[[tuple[int, ...]], Any]
    data: Callable[[tuple[int, ...]], Tensor]


def _binary(shape: tuple[int, ...]) -> Tensor:
    return torch.bernoulli(torch.full(shape, 0.5))


def _levels(levels: int) -> Callable[[tuple[int, ...]], Tensor]:
    return lambda shape: torch.randint(levels, shape).to(torch.get_default_dtype())


def _real(shape: tuple[int, ...]) -> Tensor:
    return 3 + 2 * torch.randn(shape)


def _mixed(shape: tuple[int, ...]) -> Tensor:
    rows = shape[:-1]
    columns = [_binary((*rows, 1)), _levels(3)((*rows, 1)), _real((*rows, 2))]
    return torch.cat(columns, -1)


def gappy(x: Tensor, share: float = 0.3) -> Tensor:
    """Data of which a share is missing at random."""
    return x.masked_fill(torch.rand(x.shape) < share, torch.nan)


def _columns() -> Any:
    return Mixed([(Bernoulli(), 1), (Categorical(3), 1), (Normal((2,)), 2)])


# Name -> (event shape -> likelihood, shape of data (N, *event) -> data); mixed takes rows of 4.
LIKELIHOODS: dict[str, LikelihoodRow] = {
    "bernoulli": LikelihoodRow(lambda event: Bernoulli(), _binary),
    "continuous-bernoulli": LikelihoodRow(lambda event: ContinuousBernoulli(), torch.rand),
    "categorical": LikelihoodRow(lambda event: Categorical(5), _levels(5)),
    "ordinal": LikelihoodRow(lambda event: Ordinal(5, event), _levels(5)),
    "logistic-mixture": LikelihoodRow(lambda event: LogisticMixture(5, 2), _levels(5)),
    "normal": LikelihoodRow(Normal, _real),
    "normal, fixed scale": LikelihoodRow(lambda event: Normal(event, 0.3), _real),
    "correlated-normal": LikelihoodRow(lambda event: _drawn(CorrelatedNormal(event)), _real),
    "laplace": LikelihoodRow(Laplace, _real),
    "laplace, fixed scale": LikelihoodRow(lambda event: Laplace(event, 0.3), _real),
    "beta": LikelihoodRow(lambda event: Beta(), lambda shape: 0.05 + 0.9 * torch.rand(shape)),
    "poisson": LikelihoodRow(Poisson, _levels(6)),
    "negative-binomial": LikelihoodRow(NegativeBinomial, _levels(6)),
    "multinomial": LikelihoodRow(lambda event: Multinomial(), _levels(4)),
    "mixed": LikelihoodRow(lambda event: _columns(), _mixed),
    "masked": LikelihoodRow(lambda event: Masked(_columns()), lambda shape: gappy(_mixed(shape))),
}


def _warm(elbo: ReinforceELBO) -> ReinforceELBO:
    elbo.mean, elbo.weight = torch.tensor(-0.4), torch.tensor(0.2)
    return elbo


def _trace(**options: Any) -> ELBO:
    return Trace_ELBO(vectorize_particles=True, max_plate_nesting=1, **options)


def _drawn(module: Any) -> Any:
    """Weights at random, of a module that begins with zeros."""
    for weight in module.parameters():
        nn.init.normal_(weight)
    return module


# Every prior of the library, tiny; two labels, data of shape (P,).
PRIORS: dict[str, Callable[[], Any]] = {
    "uniform": lambda: UniformPrior(D, K),
    "learned": lambda: _drawn(LearnedPrior(D, K)),
    "autoregressive": lambda: _drawn(AutoregressivePrior(D, K, 5)),
    "mixture": lambda: MixturePrior(D, K, 3),
    "vamp": lambda: VampPrior(3, (P,)),
    "hierarchical": lambda: HierarchicalPrior(D, K, (2, 2), hidden=(5,)),
    "conditional": lambda: _drawn(ConditionalPrior(D, K, 2, 5)),
    "boltzmann": lambda: _drawn(BoltzmannPrior(D, K)),
    "rbm": lambda: _drawn(BoltzmannPrior(D, K, "bipartite")),
}

# Every guide of the library -> C, what the encoder says of a datum for each latent.
GUIDES: dict[str, tuple[Callable[[], Any], int]] = {
    "mean-field": (MeanFieldGuide, K),
    "autoregressive": (lambda: _drawn(AutoregressiveGuide(D, K, 5)), K + 5),
}


def make_vae(
    prior: str = "uniform", likelihood: str = "bernoulli", guide: str = "mean-field"
) -> Any:
    """The tiny model of three parts."""
    family, num_outputs = GUIDES[guide]
    params = LIKELIHOODS[likelihood].build((P,))
    seen = params.feature_shape((P,))
    return DiscreteVAE(
        MLPEncoder(seen, D, num_outputs, hidden=(5,)),
        MLPDecoder((P,), D, K, (5,), params.num_params),
        VampPrior(3, seen) if prior == "vamp" else PRIORS[prior](),
        params,
        family(),
    )


def make_batch(vae: Any, likelihood: str = "bernoulli", num_data: int = 3) -> tuple[Tensor, ...]:
    """Data of the model, with labels if it takes them."""
    x = LIKELIHOODS[likelihood].data((num_data, P))
    return (x, torch.arange(num_data) % 2) if vae.takes_labels else (x,)


# Name -> (factory, particles); max_plate_nesting is given since fixed draws defy the trial run.
UNBIASED: dict[str, tuple[Callable[[], ELBO], int]] = {
    "trace": (_trace, 1),
    "trace, 2 particles": (lambda: _trace(num_particles=2), 2),
    "reinforce": (lambda: ReinforceELBO(max_plate_nesting=1), 1),
    "reinforce, 2 particles": (lambda: ReinforceELBO(2, max_plate_nesting=1), 2),
    "reinforce, constant": (lambda: ReinforceELBO(baseline=-3.0, max_plate_nesting=1), 1),
    "reinforce, running mean": (
        lambda: _warm(ReinforceELBO(baseline="running_mean", max_plate_nesting=1)),
        1,
    ),
    "reinforce, drawn KL": (lambda: ReinforceELBO(analytic_kl=False, max_plate_nesting=1), 1),
    "rloo": (lambda: RlooELBO(2, max_plate_nesting=1), 2),
    "rloo, 1 decoder particle": (
        lambda: RlooELBO(2, decoder_particles=1, max_plate_nesting=1),
        2,
    ),
    "snapshot": (lambda: SnapshotELBO(2, max_plate_nesting=1), 2),
    "local expectation": (lambda: LocalExpectationELBO(max_plate_nesting=1), 1),
    "local expectation, 2 particles": (lambda: LocalExpectationELBO(2, max_plate_nesting=1), 2),
    "rloo, drawn KL": (lambda: RlooELBO(2, analytic_kl=False, max_plate_nesting=1), 2),
}

# Every ELBO of ours as a user builds it.
ELBOS: dict[str, Callable[..., Any]] = {
    "enumerated": EnumeratedELBO,
    "reinforce": ReinforceELBO,
    "reinforce, constant": lambda **options: ReinforceELBO(baseline=-3.0, **options),
    "reinforce, running mean": lambda **options: ReinforceELBO(baseline="running_mean", **options),
    "rloo": lambda **options: RlooELBO(3, **options),
    "snapshot": lambda **options: SnapshotELBO(every=3, **options),
    "disarm": DisarmELBO,
    "carms": lambda **options: CarmsELBO(3, **options),
    "arsm": ArsmELBO,
    "local expectation": LocalExpectationELBO,
    "rebar": RelaxELBO,
    "sum-first": SumFirstELBO,
    "vimco": lambda **options: VimcoELBO(3, **options),
    "rws": lambda **options: WakeSleepELBO(3, **options),
    "jsa": lambda **options: JsaELBO(3, **options),
    "straight-through": StraightThroughELBO,
    "gumbel-softmax": GumbelSoftmaxELBO,
    "st-gumbel": lambda **options: GumbelSoftmaxELBO(hard=True, **options),
    "rao-gumbel": lambda **options: RaoGumbelELBO(num_conditional=5, **options),
    "gapped-st": GappedStraightThroughELBO,
    "reinmax": ReinMaxELBO,
    "reinmax-rao": lambda **options: ReinMaxRaoELBO(num_conditional=5, **options),
}

# Their rows of the tables are slow tests: their own files hold the laws in little time.
SLOW_ROWS = {"arsm", "carms", "rws", "jsa"}

# Their value, or what they climb, is the S-sample bound.
OTHER_BOUND = {"vimco", "rws", "jsa"}
# Under `poutine.scale` they are another objective, or learn another control variate.
SCALE_DEPENDENT = {"reinforce, constant", "rebar", "vimco", "rws", "jsa"}


def is_pathwise(elbo: ELBO) -> bool:
    """Whether the gradient goes through the draw, which needs a one-hot site."""
    return isinstance(elbo, PathwiseELBO)


def refuses(name: str, program: str) -> bool:
    """Pathwise estimators need one-hot sites whose KL is in closed form, and say so."""
    return is_pathwise(ELBOS[name]()) and program in ("inverse hierarchy", "index-valued")


def cat(*parts: Tensor) -> Tensor:
    """Concatenate along the last dimension, the others broadcast."""
    shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*shape, part.shape[-1]) for part in parts], -1)


class Hierarchy(PyroModule):
    """p(z1) p(z2|z1) p(x|z2), guided by q(z1|x) q(z2|z1, x)."""

    def __init__(self) -> None:
        super().__init__()
        self.prior1 = nn.Parameter(torch.randn(1, K))
        self.prior2 = nn.Linear(K, 2)
        self.decoder = nn.Linear(2, P)
        self.guide1 = nn.Linear(P, K)
        self.guide2 = nn.Linear(P + K, 2)

    @pyro_method
    def model(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z1 = pyro.sample("z1", dist.OneHotCategorical(logits=self.prior1).to_event(1))
            z2 = pyro.sample("z2", dist.OneHotCategorical(logits=self.prior2(z1)).to_event(1))
            logits = self.decoder(z2.squeeze(-2))
            pyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x)

    @pyro_method
    def guide(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            logits1 = self.guide1(x).unsqueeze(-2)
            z1 = pyro.sample("z1", dist.OneHotCategorical(logits=logits1).to_event(1))
            logits2 = self.guide2(cat(x.unsqueeze(-2), z1))
            pyro.sample("z2", dist.OneHotCategorical(logits=logits2).to_event(1))


class InverseHierarchy(PyroModule):
    """p(z1) p(z2|z1) p(x|z1, z2), guided from below: q(z2|x) q(z1|z2, x)."""

    def __init__(self) -> None:
        super().__init__()
        self.prior1 = nn.Parameter(torch.randn(1, K))
        self.prior2 = nn.Linear(K, 2)
        self.decoder = nn.Linear(K + 2, P)
        self.guide1 = nn.Linear(P + 2, K)
        self.guide2 = nn.Linear(P, 2)

    @pyro_method
    def model(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z1 = pyro.sample("z1", dist.OneHotCategorical(logits=self.prior1).to_event(1))
            z2 = pyro.sample("z2", dist.OneHotCategorical(logits=self.prior2(z1)).to_event(1))
            logits = self.decoder(cat(z1, z2).squeeze(-2))
            pyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x)

    @pyro_method
    def guide(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            logits2 = self.guide2(x).unsqueeze(-2)
            z2 = pyro.sample("z2", dist.OneHotCategorical(logits=logits2).to_event(1))
            logits1 = self.guide1(cat(x.unsqueeze(-2), z2))
            pyro.sample("z1", dist.OneHotCategorical(logits=logits1).to_event(1))


class PlatedLatents(PyroModule):
    """The D latents in a plate of their own; q and p learned."""

    def __init__(self) -> None:
        super().__init__()
        self.prior = nn.Parameter(torch.randn(D, 1, K))
        self.encoder = nn.Linear(P, D * K)
        self.decoder = nn.Linear(D * K, P)

    @pyro_method
    def model(self, x: Tensor) -> None:
        data = pyro.plate("data", len(x), dim=-1)
        with pyro.plate("latents", D, dim=-2), data:
            z = pyro.sample("z", dist.OneHotCategorical(logits=self.prior))
        with data:
            flat = z.movedim(-3, -2).flatten(-2).unsqueeze(-3)  # (..., 1, B, D K)
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(flat)).to_event(1), obs=x)

    @pyro_method
    def guide(self, x: Tensor) -> None:
        logits = self.encoder(x).unflatten(-1, (D, K)).movedim(-2, -3)  # (D, B, K)
        with pyro.plate("latents", D, dim=-2), pyro.plate("data", len(x), dim=-1):
            pyro.sample("z", dist.OneHotCategorical(logits=logits))


class IndexValued(PyroModule):
    """A site of category indices beside a one-hot one, with a learned prior."""

    def __init__(self) -> None:
        super().__init__()
        self.prior = nn.Parameter(torch.randn(K))
        self.mean = nn.Parameter(torch.randn(K, P))
        self.encoder = nn.Linear(P, K)

    @pyro_method
    def model(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Categorical(logits=self.prior))
            pyro.sample("x", dist.Bernoulli(logits=self.mean[z]).to_event(1), obs=x)

    @pyro_method
    def guide(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Categorical(logits=self.encoder(x)))


class IndependentSites(PyroModule):
    """Two sites of codes, neither given the other; not among `PROGRAMS`, which nest deeper."""

    def __init__(self) -> None:
        super().__init__()
        self.prior = nn.Parameter(torch.randn(2, K))
        self.encoder, self.decoder = nn.Linear(P, 2 * K), nn.Linear(2 * K, P)

    @pyro_method
    def model(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z1, z2 = (
                pyro.sample(f"z{i + 1}", dist.OneHotCategorical(logits=self.prior[i, None]))
                for i in range(2)
            )
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(cat(z1, z2))).to_event(1), obs=x)

    @pyro_method
    def guide(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            for i, logits in enumerate(self.encoder(x).chunk(2, -1)):
                pyro.sample(f"z{i + 1}", dist.OneHotCategorical(logits=logits))


# Name -> (program, depth of its plates).
PROGRAMS: dict[str, tuple[Callable[[], Any], int]] = {
    "vae": (tiny_vae, 1),
    "hierarchy": (Hierarchy, 1),
    "inverse hierarchy": (InverseHierarchy, 1),
    "plated latents": (PlatedLatents, 2),
    "index-valued": (IndexValued, 1),
}


# Name -> (encoder of (event, D, C), decoder of (event, D, K, parameters an element)); a grid has
# as many latents as `grid_size` says.
NETWORKS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mlp": (
        lambda event, *code: MLPEncoder(event, *code, hidden=(5,)),
        lambda event, d, k, params=1: MLPDecoder(event, d, k, (5,), params),
    ),
    "conv": (
        lambda event, *code: ConvEncoder(event, *code, width=3),
        lambda event, d, k, params=1: ConvDecoder(event, d, k, 3, params),
    ),
    "conv-grid": (
        lambda event, *code: ConvEncoder(event, *code, width=3, grid=True),
        lambda event, d, k, params=1: ConvDecoder(event, d, k, 3, params, grid=True),
    ),
}
