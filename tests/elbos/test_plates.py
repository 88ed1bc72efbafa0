"""Programs that are not a sum over data: each ELBO is right by brute force, or refuses by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
import zoo
from oracle import FixedDraws, assignments, exact_elbo, expected, gradient, unscaled
from pyro.nn import PyroModule, pyro_method
from torch import Tensor, nn

from pyro_dvae import (
    EnumeratedELBO,
    LocalExpectationELBO,
    MarginalELBO,
    ReinforceELBO,
    RlooELBO,
    VimcoELBO,
)

EXACT = {"atol": 1e-10, "rtol": 0}
X = torch.tensor([0.3, -1.2], dtype=torch.float64)


class Coupled(PyroModule):
    """A code of two values per datum, and what a row of the table puts around or beside it."""

    def __init__(
        self,
        after: Callable[[Any, Tensor], None] | None = None,
        *,
        latent: float = 1.0,
        whole: float = 1.0,
        full: int = 2,
        loop: bool = False,
        index: bool = False,
    ) -> None:
        super().__init__()
        self.prior, self.mean = (nn.Parameter(torch.randn(2)) for _ in range(2))
        self.posterior, self.above = nn.Parameter(torch.randn(2, 2)), nn.Parameter(torch.randn(2))
        self.after, self.latent, self.whole = after, latent, whole
        self.full, self.loop, self.index = full, loop, index

    def data(self) -> Any:
        return pyro.plate("data", self.full, subsample=torch.tensor([0, 1]))

    def code(self, logits: Tensor, suffix: str = "") -> Tensor:
        family = dist.Categorical if self.index else dist.OneHotCategorical
        with poutine.scale(scale=self.latent):
            z: Tensor = pyro.sample("z" + suffix, family(logits=logits))
        return z

    def at(self, z: Tensor) -> Tensor:
        return self.mean[z] if self.index else z @ self.mean

    @pyro_method
    def model(self, x: Tensor) -> None:
        with poutine.scale(scale=self.whole):
            if self.loop:
                for i in self.data():
                    z = self.code(self.prior, f"_{i}")
                    pyro.sample(f"x_{i}", dist.Normal(self.at(z), 1.0), obs=x[i])
                return
            with self.data():
                z = self.code(self.prior)
                pyro.sample("x", dist.Normal(self.at(z), 1.0), obs=x)
            if self.after is not None:
                self.after(self, z)

    @pyro_method
    def guide(self, x: Tensor) -> None:
        with poutine.scale(scale=self.whole):
            if self.loop:
                for i in self.data():
                    self.code(self.posterior[i], f"_{i}")
                return
            with self.data():
                self.code(self.posterior)
            if self.after is _global_code:
                pyro.sample("top", dist.OneHotCategorical(logits=self.above))


def _factor(total: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], None]:
    return lambda program, z: pyro.factor("f", -((total(program.at(z)) - 0.7) ** 2))


def _observed(program: Any, z: Tensor) -> None:
    mean = program.at(z).sum(-1, keepdim=True)
    pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.tensor(0.3))


def _global_code(program: Any, z: Tensor) -> None:
    total = program.at(z).sum(-1, keepdim=True)
    pyro.sample("top", dist.OneHotCategorical(logits=torch.stack([total, 0 * total], -1)))


def _apart(program: Any, z: Tensor) -> None:
    pyro.sample("y", dist.Normal(program.mean.sum(), 1.0), obs=torch.tensor(0.3))


KEPT = _factor(lambda value: value.sum(-1, keepdim=True))
MIXED = _factor(lambda value: value.sum())
MISPLACED = _factor(lambda value: value.sum(-1))

PROGRAMS: dict[str, Callable[[], Coupled]] = {
    "sum over data": Coupled,
    "factor": lambda: Coupled(KEPT),
    "factor, indices": lambda: Coupled(KEPT, index=True),
    "mixing factor": lambda: Coupled(MIXED),
    "mixing factor, indices": lambda: Coupled(MIXED, index=True),
    "misplaced factor": lambda: Coupled(MISPLACED),
    "observed": lambda: Coupled(_observed),
    "observed, of no code": lambda: Coupled(_apart),
    "global code": lambda: Coupled(_global_code),
    "scaled": lambda: Coupled(whole=2.0),
    "scaled latent": lambda: Coupled(latent=0.5),
    "subsample": lambda: Coupled(full=6),
    "subsample, observed": lambda: Coupled(_observed, full=6),
    "loop": lambda: Coupled(loop=True),
    "subsampled loop": lambda: Coupled(loop=True, full=6),
}

ELBOS: dict[str, tuple[Callable[..., Any], int]] = {
    "reinforce": (ReinforceELBO, 1),
    "reinforce, constant": (lambda **options: ReinforceELBO(baseline=-3.0, **options), 1),
    "reinforce, drawn KL": (lambda **options: ReinforceELBO(analytic_kl=False, **options), 1),
    "rloo": (lambda **options: RlooELBO(2, **options), 2),
    "local expectation": (LocalExpectationELBO, 1),
    "vimco": (lambda **options: VimcoELBO(2, **options), 2),
    "enumerated": (EnumeratedELBO, 0),
    "enumerated, chunks": (lambda **options: EnumeratedELBO(chunk_size=1, **options), 0),
    "marginal": (MarginalELBO, 0),
    "marginal, chunks": (lambda **options: MarginalELBO(chunk_size=2, **options), 0),
}

_COUPLED = {"factor", "mixing factor, indices", "misplaced factor", "observed"}
_SCALED = PROGRAMS.keys() - _COUPLED - {"global code", "observed, of no code"}
PAIRS_OF = {  # all pairs of draws take time: each program with the ELBO that it is about
    name: {*(["rloo"] * (name in _COUPLED)), *(["vimco"] * (name in _SCALED))} for name in PROGRAMS
}

AT_ONE_CODE = {"reinforce", "reinforce, constant", "reinforce, drawn KL"}
"""ELBOs that run the programs at one code, so that they need not keep any dimension."""


def _refusal(program: str, elbo: str) -> str | None:
    if "mixing" in program and elbo not in AT_ONE_CODE and elbo != "enumerated, chunks":
        return "Expected site 'f' to keep the dimensions left of the plates of code 'z'"
    if program == "misplaced factor" and elbo not in {*AT_ONE_CODE, "enumerated, chunks"}:
        return r"site .f.(, invalid log_prob shape| to (keep|have) the dimensions)"
    if "marginal" in elbo and program == "scaled latent":
        return "Expected one scale of all sites.*got 0.5 at z, 1 at x"
    if "marginal" in elbo and program == "subsample, observed":
        return "Expected one scale of all sites.*got 3 at (x and z|z and x), 1 at y"
    if elbo == "vimco" and program == "subsample, observed":
        return "Expected one scale of all sites.*got 3 at x, 1 at y"
    return None


def _right(program: Any, kind: str) -> tuple[Tensor, Tensor]:
    """The value, and something with the gradient, to be maximised."""
    rows = [unscaled(program, X, values) for values in assignments(program, X)]
    log_p, log_q = (torch.stack(part) for part in zip(*rows, strict=True))
    scale = program.whole * program.full / 2
    if kind == "marginal":
        value = scale * log_p.logsumexp(0)
        posterior = log_p.softmax(0).detach()
        return value, value + scale * (posterior * log_q).sum()
    if kind == "vimco":
        return _sampled_bound(program, log_p, log_q)
    value = exact_elbo(program, X)
    return value, value


def _sampled_bound(program: Any, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """E[log 1/2 (w_1 + w_2)], of each datum where the data are apart, and what is climbed."""
    joints = [(log_q, log_p - log_q, log_p - log_q)]  # q, log w, tempered log w
    if program.after is None and not program.loop:
        log_prior = program.prior.log_softmax(-1)
        log_lik = dist.Normal(program.mean, 1.0).log_prob(X[:, None])
        joints = []
        for q, likelihood in zip(program.posterior.log_softmax(-1), log_lik, strict=True):
            ratio = log_prior - q
            joints.append((q, likelihood + ratio, likelihood + program.latent * ratio))
    value, climbed = torch.zeros(()), torch.zeros(())
    for q, log_w, tempered in joints:
        weight = (q[:, None] + q).exp()
        for_each = [
            torch.logaddexp(w[:, None], w) - torch.tensor(2.0).log() for w in (log_w, tempered)
        ]
        value = value + (weight * for_each[0]).sum()
        climbed = climbed + (weight * for_each[1]).sum()
    scale = program.whole * program.full / 2
    return scale * value, scale * climbed


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_or_refused(name: str) -> None:
    program = PROGRAMS[name]()
    nesting = 0 if program.loop else 1
    right: dict[str, tuple[Tensor, Tensor]] = {}
    for elbo, (make, particles) in ELBOS.items():

        def run(make: Any = make, particles: int = particles) -> tuple[Tensor, Tensor]:
            if not particles:
                loss = make().differentiable_loss(program.model, program.guide, X)
                return loss.detach(), gradient(loss, program)
            build = lambda: make(max_plate_nesting=nesting)  # noqa: E731
            return expected(build, program, X, particles, nesting)

        if particles == 2 and elbo not in PAIRS_OF[name]:
            continue
        refusal = _refusal(name, elbo)
        if refusal is not None:
            with pytest.raises(ValueError, match=refusal):
                run()
            continue
        kind = next((kind for kind in ("marginal", "vimco") if kind in elbo), "elbo")
        if kind not in right:
            value, objective = _right(program, kind)
            right[kind] = value.detach(), gradient(-objective, program)
        loss, grad = run()
        assert torch.allclose(loss, -right[kind][0], **EXACT), elbo
        assert torch.allclose(grad, right[kind][1], **EXACT), elbo


OTHERS = {
    name: make
    for name, make in zoo.ELBOS.items()
    if name not in ELBOS and make().num_particles == 1
}


@pytest.mark.parametrize("name", ["factor", "mixing factor", "misplaced factor"])
def test_the_others_are_right_in_value_or_refuse(name: str) -> None:
    """Of one particle. All but RELAX run it at one code; other tests hold the gradients."""
    program = PROGRAMS[name]()
    exact = exact_elbo(program, X).item()
    for elbo, make in OTHERS.items():
        value = 0.0
        for values in assignments(program, X):
            weight = unscaled(program, X, values)[1].exp().item()
            guide = FixedDraws(values)(program.guide)
            value -= weight * make().loss(program.model, guide, X)
        assert value == pytest.approx(exact, abs=1e-10), elbo
        if elbo == "rebar" and name != "factor":
            with pytest.raises(ValueError, match=r"site .f.(, invalid log_prob shape| to keep)"):
                make().differentiable_loss(program.model, program.guide, X)
        else:
            make().differentiable_loss(program.model, program.guide, X)


W = torch.tensor([[0.5, -1.0], [-0.3, 2.0]], dtype=torch.float64)
Q = torch.tensor([[0.2, 1.0], [0.7, -0.4]], dtype=torch.float64)


def _plated(x: Tensor, logits: Tensor = Q, event: int = 0) -> None:
    with pyro.plate("data", 2):
        pyro.sample("z", dist.OneHotCategorical(logits=logits).to_event(event))


def _model(x: Tensor) -> None:
    with pyro.plate("data", 2):
        z = pyro.sample("z", dist.OneHotCategorical(logits=torch.zeros(2)))
        pyro.sample("x", dist.Normal(z @ W[0], 1.0), obs=x)


def _three(x: Tensor) -> None:
    with pyro.plate("data", 3):
        pyro.sample("z", dist.OneHotCategorical(logits=torch.zeros(3, 2)))


def _grid(order: tuple[str, str], sized: dict[str, int]) -> Callable[[Tensor], None]:
    def program(x: Tensor) -> None:
        inner, outer = (pyro.plate(name, sized[name]) for name in order)
        with inner, outer:
            z = pyro.sample("z", dist.OneHotCategorical(logits=torch.zeros(2)))
            if order == ("a", "b"):
                pyro.sample("x", dist.Normal(z @ W[0], 1.0), obs=torch.zeros(2, 2))

    return program


SHAPES: dict[str, tuple[Any, Any, Tensor, str]] = {
    "observation (N, 1)": (
        _model,
        _plated,
        X[:, None],
        "site .x.(, invalid log_prob shape| to have the dimensions of its plates)",
    ),
    "guide without its plate": (
        _model,
        lambda x: pyro.sample("z", dist.OneHotCategorical(logits=Q[0])),
        X,
        r"site 'z'(: torch| in model and guide)",
    ),
    "code in to_event": (
        _model,
        lambda x: pyro.sample("z", dist.OneHotCategorical(logits=Q).to_event(1)),
        X,
        r"site 'z'(: 1 vs 2| in model and guide)",
    ),
    "plates inside out": (
        _grid(("a", "b"), {"a": 2, "b": 2}),
        _grid(("b", "a"), {"a": 2, "b": 2}),
        X,
        "Expected plate 'a' with one dimension and size.*dim=-1 and 2 .*dim=-2 and 2 .*'z'",
    ),
    "plates inside out, of other sizes": (
        _grid(("a", "b"), {"a": 2, "b": 1}),
        _grid(("b", "a"), {"a": 2, "b": 1}),
        X,
        r"inside plate\('b'\) at site x",
    ),
    "plate of another size": (
        _model,
        _three,
        X,
        "Expected plate 'data' with one dimension and size.*dim=-1 and 2.*dim=-1 and 3.*site 'z'",
    ),
}


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_checked(name: str, checks: bool) -> None:
    """By Pyro where it checks; of several codes at once in any case; whatever the nesting."""
    model, guide, x, message = SHAPES[name]
    several = [EnumeratedELBO(), MarginalELBO(), RlooELBO(2)]
    given = ReinforceELBO(max_plate_nesting=0), RlooELBO(2, max_plate_nesting=2)
    for elbo in [*several, *given] if checks else several:
        with pyro.validation_enabled(checks), pytest.raises(ValueError, match=message):
            elbo.loss(model, guide, x)


def test_too_small_a_nesting_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_plate_nesting = 0 plates.*got 1"):
        RlooELBO(2, max_plate_nesting=0).loss(_model, _plated, X)


def test_too_many_joint_codes_are_explained() -> None:
    program = Coupled(KEPT)
    with pytest.raises(ValueError, match=r"2\^2 = 4 at site 'z'.*plate 'data'.*site 'f' lies outs"):
        EnumeratedELBO(max_codes=3).loss(program.model, program.guide, X)


def test_chunks_share_one_minibatch_which_changes_from_call_to_call() -> None:
    """In a loop and in a vectorised plate, and in the recomputation for the gradient."""
    top = nn.Parameter(torch.randn(4, 2))
    x = torch.tensor([-3.0, 0.0, 3.0, 6.0])

    def model(loop: bool) -> None:
        data = pyro.plate("data", 4, subsample_size=2)
        for i in data if loop else [data]:
            with data if not loop else nullcontext() as index:
                suffix = f"_{i}" if loop else ""
                z = pyro.sample("z" + suffix, dist.OneHotCategorical(torch.ones(2)))
                mean = z @ torch.arange(2.0)
                pyro.sample("x" + suffix, dist.Normal(mean, 1.0), obs=x[i if loop else index])

    def guide(loop: bool) -> None:
        data = pyro.plate("data", 4, subsample_size=2)
        for i in data if loop else [data]:
            with data if not loop else nullcontext() as index:
                logits = top[i if loop else index]
                pyro.sample(f"z_{i}" if loop else "z", dist.OneHotCategorical(logits=logits))

    log_p = -torch.tensor(2.0).log() + dist.Normal(torch.arange(2.0), 1.0).log_prob(x[:, None])
    q = top.softmax(-1)
    per_datum = {
        EnumeratedELBO: (q * (log_p - q.log())).sum(-1),
        MarginalELBO: log_p.logsumexp(-1),
    }
    for make, terms in per_datum.items():
        pairs = {2 * (terms[i] + terms[j]).item() for i in range(4) for j in range(i)}
        for loop in (False, True):
            elbo, seen = make(chunk_size=1), set()
            for _ in range(5):
                loss = elbo.differentiable_loss(model, guide, loop)
                (found,) = (pair for pair in pairs if abs(pair + loss.item()) < 1e-9)
                seen.add(found)
                (slope,) = torch.autograd.grad(loss, top)
                assert (slope.abs().sum(-1) > 0).sum() == 2
            assert len(seen) > 1


def test_chunks_share_the_draws_of_other_sites() -> None:
    """With w ~ N(0, 1) drawn before the code, all chunks see one w."""

    def program(observe: bool) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        z = pyro.sample("z", dist.OneHotCategorical(logits=w * Q[0]))
        if observe:
            pyro.sample("x", dist.Normal(z @ W[0] + w, 1.0), obs=torch.tensor(0.3))

    def losses(chunk_size: int) -> list[float]:
        pyro.set_rng_seed(3)
        elbo = EnumeratedELBO(chunk_size=chunk_size)
        return [elbo.loss(lambda: program(True), lambda: program(False)) for _ in range(3)]

    assert losses(1) == pytest.approx(losses(2), abs=1e-10)
