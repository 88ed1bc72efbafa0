"""Programs that are not a sum over data: each ELBO is right by brute force, or refuses by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from oracle import assignments, exact_elbo, expected, gradient, unscaled
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

AT_ONE_CODE = {"reinforce", "reinforce, constant", "reinforce, drawn KL"}
"""ELBOs that run the programs at one code, so that they need not keep any dimension."""


def _refusal(program: str, elbo: str) -> str | None:
    if "mixing" in program and elbo not in AT_ONE_CODE and elbo != "enumerated, chunks":
        return "Expected site 'f' to keep the dimensions left of the plates of code 'z'"
    if program == "misplaced factor" and elbo not in {*AT_ONE_CODE, "enumerated, chunks"}:
        return "(?s)\"f\".*invalid log_prob shape|site 'f' to keep the dimensions"
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

        if name == "global code" and elbo == "vimco":  # 64 pairs of joint codes
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
