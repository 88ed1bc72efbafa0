"""Every ELBO with every kind of latent, alone and beside codes: right by the oracle, or refused.

Each datum has its own copy of every parameter, so that one run gives as many independent values
and gradients as there are data. The oracle sums over a grid of the latent's values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.distributions.testing.fakes import NonreparameterizedNormal
from pyro.distributions.torch_distribution import ExpandedDistribution
from torch import Tensor
from zoo import ELBOS, is_pathwise

from pyro_dvae import JsaELBO, MarginalELBO, VimcoELBO, WakeSleepELBO

N = 1000
EXACT = {"atol": 1e-9, "rtol": 0}
SLOPE = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
OTHER = torch.tensor([0.7, -0.4, 0.1], dtype=torch.float64)
"""What each code adds to the mean of x."""


class Kind(NamedTuple):
    """A latent b with one parameter in the guide and one in the model."""

    q: Callable[[Tensor], Any]
    p: Callable[[Tensor], Any]
    values: Tensor | tuple[float, float]
    """All of them, enough of them, or the interval that holds them."""
    trait: str
    """finite, code, index: summed; scored: no reparametrised draw; pathwise: one."""
    read: Callable[[Tensor], Tensor] = lambda value: value.to(torch.float64)
    """A number per value."""
    counts: bool = True
    """Whether log p and log q of the site count: they do not where it is masked."""
    around: Callable[[], Any] = nullcontext


def both(make: Callable[[Tensor], Any]) -> tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]:
    return make, make


def sloped(parameter: Tensor) -> Tensor:
    return parameter[..., None] * SLOPE


NO = torch.tensor(False)
ONE_HOT = both(lambda a: dist.OneHotCategorical(logits=sloped(a)))
INDEX = both(lambda a: dist.Categorical(logits=sloped(a)))
NORMAL = both(lambda a: dist.Normal(a, 1.0))
BITS = torch.arange(2.0, dtype=torch.float64)
EYE = torch.eye(3, dtype=torch.float64)


def index_of(value: Tensor) -> Tensor:
    return value @ torch.arange(3.0, dtype=torch.float64)


def masked(make: Callable[[Tensor], Any], mask: Any) -> Any:
    return both(lambda a: make(a).mask(mask))


KINDS: dict[str, Kind] = {
    "one-hot": Kind(*ONE_HOT, EYE, "code", index_of),
    "index": Kind(*INDEX, torch.arange(3), "index"),
    "bernoulli": Kind(*both(lambda a: dist.Bernoulli(logits=a)), BITS, "finite"),
    "binomial": Kind(
        *both(lambda a: dist.Binomial(2, logits=a)), torch.arange(3.0).double(), "finite"
    ),
    "beta-binomial": Kind(
        *both(lambda a: dist.BetaBinomial(a.exp(), 1.5, 2)), torch.arange(3.0).double(), "finite"
    ),
    "bits of an event": Kind(
        *both(lambda a: dist.Bernoulli(logits=torch.stack([a, -a], -1)).to_event(1)),
        torch.cartesian_prod(BITS, BITS),
        "finite",
        lambda value: value @ torch.tensor([1.0, 2.0], dtype=torch.float64),
    ),
    "expanded": Kind(
        *both(lambda a: ExpandedDistribution(dist.Bernoulli(logits=a), a.shape)), BITS, "finite"
    ),
    "masked on": Kind(*masked(ONE_HOT[0], ~NO), EYE, "finite", index_of),
    "masked off": Kind(*masked(ONE_HOT[0], NO), EYE, "finite", index_of, False),
    "poutine.mask": Kind(*ONE_HOT, EYE, "code", index_of, False, lambda: poutine.mask(mask=NO)),
    "poisson": Kind(*both(lambda a: dist.Poisson(a.exp())), torch.arange(40.0).double(), "scored"),
    "geometric": Kind(
        *both(lambda a: dist.Geometric(logits=a + 1)), torch.arange(60.0).double(), "scored"
    ),
    "normal without rsample": Kind(
        *both(lambda a: NonreparameterizedNormal(a, 1.0)), (-7.0, 7.0), "scored"
    ),
    "von Mises": Kind(
        *both(lambda a: dist.VonMises(a, torch.ones_like(a))), (-math.pi, math.pi), "scored"
    ),
    "mixture": Kind(
        *both(
            lambda a: dist.MixtureSameFamily(
                dist.Categorical(logits=sloped(a)), dist.Normal(sloped(a), 1.0)
            )
        ),
        (-8.0, 8.0),
        "scored",
    ),
    "normal": Kind(*NORMAL, (-7.0, 7.0), "pathwise"),
    "masked normal": Kind(*masked(NORMAL[0], NO), (-7.0, 7.0), "pathwise", counts=False),
    "half-normal": Kind(*both(lambda a: dist.HalfNormal(a.exp())), (0.0, 10.0), "pathwise"),
    "gamma": Kind(*both(lambda a: dist.Gamma(3 + a, 2.0)), (0.0, 14.0), "pathwise"),
    "log-normal": Kind(
        *both(
            lambda a: dist.TransformedDistribution(
                dist.Normal(a, 0.4), [dist.transforms.ExpTransform()]
            )
        ),
        (0.0, 9.0),
        "pathwise",
    ),
    "relaxed bernoulli": Kind(
        *both(lambda a: dist.RelaxedBernoulli(torch.tensor(3.0).double(), logits=a)),
        (0.0, 1.0),
        "pathwise",
    ),
    "delta": Kind(lambda a: dist.Delta(a), NORMAL[1], (math.nan, math.nan), "pathwise"),
}

PARAMETERS = {
    "q_b": torch.tensor(0.3),
    "p_b": torch.tensor(-0.2),
    "weight": torch.tensor(0.8),
    "q_z": torch.tensor([0.5, -0.3, 0.2]),
    "p_z": torch.tensor([0.1, 0.4, -0.2]),
}
X = 1.5


def mean(code: Tensor | float, value: Tensor, parameters: dict[str, Tensor]) -> Tensor:
    return code + parameters["weight"] * value


class Program:
    """b, and a code z where asked for, in the plate of the data; x is normal around a mean."""

    def __init__(self, kind: Kind, with_code: bool) -> None:
        self.kind, self.with_code = kind, with_code
        self.rows = {
            name: value.double().expand(N, *value.shape).clone().requires_grad_()
            for name, value in PARAMETERS.items()
        }

    def draw(self, side: str) -> Tensor:
        make = self.kind.q if side == "q" else self.kind.p
        with self.kind.around():
            value = self.kind.read(pyro.sample("b", make(self.rows[f"{side}_b"])))
        if not self.with_code:
            return mean(0.0, value, self.rows)
        z = pyro.sample("z", dist.OneHotCategorical(logits=self.rows[f"{side}_z"]))
        return mean(z @ OTHER, value, self.rows)

    def model(self) -> None:
        with pyro.plate("data", N):
            loc = self.draw("p")
            pyro.sample("x", dist.Normal(loc, 1.0), obs=torch.full((N,), X))

    def guide(self) -> None:
        with pyro.plate("data", N):
            self.draw("q")


class Table(NamedTuple):
    """(C, M) of all codes and values: what one datum's ELBO is made of."""

    log_joint: Tensor
    log_q: Tensor
    """As it counts in the ELBO."""
    weight: Tensor
    """Probability of each in the guide."""


def table(kind: Kind, with_code: bool, parameters: dict[str, Tensor]) -> Table:
    q, p = kind.q(parameters["q_b"]), kind.p(parameters["p_b"])
    log_weight = torch.zeros(())
    if isinstance(kind.values, Tensor):
        values = kind.values
    elif math.isnan(kind.values[0]):
        values = parameters["q_b"][None]
    else:
        nodes, weights = np.polynomial.legendre.leggauss(60)
        low, high = kind.values
        values = torch.as_tensor(low + (high - low) * (nodes + 1) / 2)
        log_weight = torch.as_tensor(weights * (high - low) / 2).log()
    unmasked = KINDS["one-hot"].q(parameters["q_b"]) if kind.read is index_of else q
    if kind.trait == "pathwise" and not kind.counts:
        unmasked = q.base_dist
    log_q, log_p = unmasked.log_prob(values), p.log_prob(values)
    weight = (log_q + log_weight).exp()
    if not kind.counts:
        log_q, log_p = torch.zeros_like(log_q), torch.zeros_like(log_p)
    shift: Tensor = torch.zeros(1)
    if with_code:
        log_qz, log_pz = (parameters[f"{side}_z"].log_softmax(-1)[:, None] for side in "qp")
        log_q, log_p, weight = log_qz + log_q, log_pz + log_p, log_qz.exp() * weight
        shift = OTHER
    loc = mean(shift[:, None], kind.read(values), parameters)
    return Table(dist.Normal(loc, 1.0).log_prob(torch.tensor(X)) + log_p, log_q, weight)


def objective(name: str, kind: Kind, with_code: bool) -> tuple[Tensor, list[Tensor]]:
    """The value that the ELBO should report of one datum, and its gradient."""
    parameters = {k: v.double().clone().requires_grad_() for k, v in PARAMETERS.items()}
    log_joint, log_q, weight = table(kind, with_code, parameters)
    assert abs(weight.sum().item() - 1) < 1e-3
    if name == "marginal":
        if not kind.counts:  # a masked draw is a draw all the same: it sums to 1
            log_joint = log_joint + KINDS["one-hot"].p(parameters["p_b"]).log_prob(EYE)
        value = log_joint.flatten().logsumexp(0)
        posterior = (log_joint - value).exp().detach()
        total = value + (posterior * log_q).sum()
    elif name in ("vimco", "rws", "jsa"):
        log_w, flat = (log_joint - log_q).flatten(), weight.flatten()
        pair = torch.stack(torch.broadcast_tensors(log_w[:, None], log_w))
        both = flat[:, None] * flat
        value = total = (both * (pair.logsumexp(0) - math.log(2))).sum()
        if name == "rws":  # the mean of the first draw's term, of two alike
            follow = (log_joint + log_q).flatten()[:, None]
            total = 2 * (both.detach() * pair.detach().softmax(0)[0] * follow).sum()
        if name == "jsa":  # from a draw of q, after one proposal and after two
            accept = (log_w - log_w[:, None]).clamp(max=0).exp().detach()  # [from, to]
            moves = flat.detach() * accept
            moves = moves + torch.diag(1 - moves.sum(1))
            once = flat.detach() @ moves
            total = ((once + once @ moves) / 2 * (log_joint + log_q).flatten()).sum()
    else:
        value = total = (weight * (log_joint - log_q)).sum()
    slopes = torch.autograd.grad(
        total, list(parameters.values()), materialize_grads=True, allow_unused=True
    )
    return value.detach(), list(slopes)


ALL: dict[str, Callable[[], Any]] = {
    **ELBOS,
    "vimco": lambda: VimcoELBO(2),
    "rws": lambda: WakeSleepELBO(2),
    "jsa": lambda: JsaELBO(3),
    "marginal": MarginalELBO,
}


def refused(name: str, kind: Kind) -> bool:
    is_summed = kind.trait in ("finite", "code", "index")
    if name == "marginal":
        return not is_summed
    if name == "enumerated":
        return kind.trait == "scored"
    if name in ("snapshot", "disarm", "arsm", "local expectation", "sum-first"):
        return kind.trait in ("finite", "scored")
    if name == "jsa":
        return kind.trait in ("finite", "scored", "pathwise")
    if name == "rws":
        return kind.trait == "pathwise"
    if is_pathwise(ALL[name]()):
        return kind.trait not in ("pathwise", "code")
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_right_or_refused(kind: str) -> None:
    for name, make in ALL.items():
        for with_code in (False, True):
            check(name, make(), KINDS[kind], with_code)


def check(name: str, elbo: Any, kind: Kind, with_code: bool) -> None:
    program = Program(kind, with_code)
    rows = list(program.rows.values())
    label = f"{name}{' beside codes' if with_code else ''}"
    if refused(name, kind):
        with pytest.raises((ValueError, TypeError), match=r"^Expected.*\bb\b.*\. Use"):
            elbo.differentiable_loss(program.model, program.guide)
        return
    value, slopes = objective(name, kind, with_code)
    terms = elbo.terms(program.model, program.guide, (), {})
    surrogate = elbo.surrogate(terms).sum()
    found = torch.autograd.grad(surrogate, rows, materialize_grads=True, allow_unused=True)
    values = elbo.bound(terms).detach()
    is_exact = name in ("enumerated", "marginal") and kind.trait != "pathwise"
    if elbo.value_is_bound:
        compare(f"{label}: value", values.expand(N), value, is_exact)
    for key, slope, gradient in zip(PARAMETERS, slopes, found, strict=True):
        through_draws = kind.trait == "code" or name == "gumbel-softmax" or key == "q_z"
        in_guide = key.startswith("q_")
        is_right = elbo.is_unbiased or name in ("rws", "jsa")  # in the mean of its estimate
        biased = not is_right and (through_draws if is_pathwise(elbo) else in_guide)
        if not biased:
            compare(f"{label}: {key}", gradient, slope, is_exact)


def compare(label: str, found: Tensor, expected: Tensor, is_exact: bool) -> None:
    if is_exact:
        torch.testing.assert_close(found, expected.expand_as(found), **EXACT, msg=label)
        return
    error = (found.mean(0) - expected).abs()
    spread = found.std(0) / math.sqrt(N)
    assert (error <= 5 * spread + 1e-6).all(), (label, found.mean(0), expected, spread)
