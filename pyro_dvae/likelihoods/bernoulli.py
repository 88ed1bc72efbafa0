"""Zeros and ones."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, cast

import torch
from pyro.distributions import constraints
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from pyro_dvae.likelihoods.base import FlatDistribution
from pyro_dvae.likelihoods.linear import ExponentialFamily, is_paired
from pyro_dvae.likelihoods.numerics import softplus
from pyro_dvae.likelihoods.refusals import refuse_unless


class Bernoulli(ExponentialFamily):
    """p(x|z) = prod_p g_p^x_p (1 - g_p)^(1 - x_p), g = sigmoid(params) (Eqs. 12 and 48 of [JL25]).

    Data in {0, 1}; params are logits, (..., *event).
    """

    kind = "bits"
    param_meanings = ("l, the logit of x = 1",)
    support = constraints.boolean

    def forward(self, params: Tensor, event_dim: int) -> IndependentBernoulli:
        """p(x|z), a distribution of batch shape (...) and event shape *event.

        Args:
            params: (..., *event) logits.
            event_dim: the number of dimensions of one datum.
        """
        return IndependentBernoulli(params, event_dim)

    def check(self, x: Tensor) -> None:
        """Refuse data that are not all 0 or 1.

        Raises:
            ValueError: an element of x is neither 0 nor 1; the message names the range found.
        """
        refuse_unless(
            (x == 0) | (x == 1),
            x,
            "data in {0, 1} for the Bernoulli likelihood",
            "Binarise it (BinaryImages for grey uint8 pixels, or (x > t).float()), or use a "
            "likelihood of such values (continuous-bernoulli or logistic-mixture for grey ones, "
            "poisson for counts, normal for real ones).",
        )

    def log_prob(self, params: Tensor, x: Tensor) -> Tensor:
        """-BCE(g, x) summed over the datum, in nats (Eqs. 8 and 10 of [JL25])."""
        if is_paired(x, params):
            if type(params) is Tensor and type(x) is Tensor:
                return cast(Tensor, _LogProb.apply(params, x))
            # Pyro's TraceGraph_ELBO uses a subclass of Tensor, which `_LogProb` would lose.
            bce = binary_cross_entropy_with_logits(params, x.expand_as(params), reduction="none")
            return -bce.sum(-1)
        return super().log_prob(params, x)

    def natural(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """The logits, and softplus(l)."""
        return params.unsqueeze(-1), softplus(params)

    def statistics(self, x: Tensor) -> tuple[Tensor, None]:
        """The bits; h is 0."""
        return x.unsqueeze(-1), None

    def element_log_probs(self, params: Tensor, x: Tensor) -> Tensor:
        """-BCE(g, x) of each element, in nats."""
        return logsigmoid((2 * x - 1) * params)

    def cancelled(self, params: Tensor) -> Tensor:
        """sum_p max(l_p, 0), (...): the most that x l and the softplus can have in common."""
        return params.relu().sum(-1)

    def mean(self, params: Tensor) -> Tensor:
        """E[x] = sigmoid(params)."""
        return params.sigmoid()

    def draw(self, params: Tensor) -> Tensor:
        """Binary draws."""
        return torch.bernoulli(params.sigmoid())


def _log_prob(logits: Tensor, x: Tensor) -> Tensor:
    """sum_p (x_p l_p - max(l_p, 0) - log(1 + e^-|l_p|)), of logits l (..., P), x broadcast to l.

    Each element is summed by itself, which is exact up to rounding even if x l and the softplus
    cancel.
    """
    rest = logits.relu()
    w = torch.sub(logits, rest, alpha=2).sigmoid_()  # sigmoid(-|l|); -log(1 + e^-|l|) = log(1-w)
    rest = torch.addcmul(rest, logits, x, value=-1)  # 0 if x is 1 and l > 0, or x is 0 and l < 0
    # A logarithm costs more than many products. So four elements share one logarithm:
    # (1 - v)(1 - w) = 1 - (v + w - v w), which loses no digits. Against torch's own function all
    # this saves 4 % of a REINFORCE step and 9 % of an RLOO step with 4 particles; the shared
    # logarithm alone saves 0.4 % and 2 % (examples/benchmarks/step_pieces.py).
    for _ in range(2):
        if w.shape[-1] % 2 == 0:
            v, w = w.chunk(2, -1)
            w = torch.addcmul(v, v, w, value=-1).add_(w)
    # With u = 1 - w rounded, log(1 - w) = log(u) - (w - (1 - u)). log1p takes as long as ten logs.
    u = 1 - w
    return u.log().sub_(w.add_(u.sub_(1))).sum(-1) - rest.sum(-1)


class _LogProb(torch.autograd.Function):
    """`_log_prob` with the gradient x - sigmoid(l), without a copy of x for each particle."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, x: Tensor) -> Tensor:
        return _log_prob(logits, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        logits, x = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        grad_x = (logits * grad).sum_to_size(x.shape) if ctx.needs_input_grad[1] else None
        return (x - logits.sigmoid()).mul_(grad), grad_x


class IndependentBernoulli(FlatDistribution):
    """Independent Bernoulli elements of one datum, fast for sums over all codes.

    It equals Pyro's `Bernoulli(logits=logits).to_event(event_dim)`. But `expand` copies nothing,
    and `log_prob` of B data under C codes, x (B, *event) and logits (C, 1, *event), is one matrix
    product of (C, P) and (P, B) in place of a (C, B, P) array.

    Args:
        logits: (*batch, *event).
        event_dim: the number of dimensions of one datum.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {"logits": constraints.real}

    def __init__(
        self, logits: Tensor, event_dim: int, *, validate_args: bool | None = None
    ) -> None:
        self.logits = logits
        self._of_zeros: Tensor | None = None
        super().__init__(Bernoulli(), logits, event_dim, validate_args=validate_args)

    def double(self) -> IndependentBernoulli:
        """The same distribution, with logits and sums in double precision."""
        return IndependentBernoulli(self.logits.double(), self.event_dim)

    def log_prob(self, value: Tensor) -> Tensor:
        """-BCE(g, x) summed over the datum, in nats (Eqs. 8 and 10 of [JL25])."""
        return super().log_prob(value)

    def _flat_log_prob(self, x: Tensor) -> Tensor:
        params = self.flat_params
        if is_paired(x, params) or torch.is_grad_enabled():
            return super()._flat_log_prob(x)
        # Evaluation scores many blocks of data under the same codes. This takes as long as the
        # product with a block of 100 images, and a third of the time of torch's softplus.
        if self._of_zeros is None:
            self._of_zeros = _log_prob(params, params.new_zeros(()))
        return torch.einsum("...p,...p->...", params, x) + self._of_zeros


# Without this, `apply` finds out the signature at every call, which takes as long as the sum.
_LogProb.forward.__signature__ = inspect.signature(_LogProb.forward)  # type: ignore[attr-defined]
