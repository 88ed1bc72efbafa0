"""The base of the pathwise estimators: a draw forward, the Jacobian of a relaxation backward."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pyro.distributions.util import is_identically_zero
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyro_dvae.codes import code_logits, code_value, conditional_gumbels, log_exponentials, one_hot
from pyro_dvae.elbos.base import DiscreteELBO, Terms
from pyro_dvae.elbos.distributions import describe
from pyro_dvae.elbos.pair import Pair, Program

RELAXED = "pyro_dvae.relaxed"
"""Key of a site's `infer`, which Pyro's replay hands from guide to model."""


class PathwiseELBO(DiscreteELBO):
    """dz/dtheta df/dz, by a stand-in for the dz/dtheta that a discrete draw z does not have.

    f is the objective, theta the logits of q, D the one-hot draw. The traces hold D, so that every
    log-probability is that of an honest draw; the programs go on with `value`, whose gradient
    `pull` takes back to the logits. There is no score term.

    Args:
        num_particles: S, draws of z a datum.
        temperature: tau > 0 of the relaxation; it enters neither draws nor `loss`.
        **options: `beta`, `free_bits`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: temperature <= 0 or not finite; when run, a site of the guide that is index
            valued, or has neither a reparametrised draw nor a KL in closed form.
    """

    is_unbiased: ClassVar[bool] = False

    def __init__(self, num_particles: int = 1, *, temperature: float = 1.0, **options: Any) -> None:
        super().__init__(num_particles, **options)
        if not 0 < temperature < math.inf:
            raise ValueError(f"Expected a finite temperature > 0; got {temperature}. Use 1.0, say.")
        self.temperature = temperature

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return f"{super().extra_repr()}, temperature={self.temperature}"

    @abstractmethod
    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """The gradient in theta, from g = df/dz at `value`; all (*plates, D, K), without a graph.

        Args:
            gradient: g.
            logits: theta, normalised: log pi.
            code: D.
            perturbed: theta + G, G the Gumbel noise whose maximum is at D.
        """

    def value(self, code: Tensor, perturbed: Tensor) -> Tensor:
        """What the programs go on with, (*plates, D, K)."""
        return code

    def draw(self, theta: Tensor, code: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """A draw D, and its stand-in: `value`, whose gradient in theta is `pull`'s.

        Any network may sample one of K branches by it; no program is needed.

        Args:
            theta: (..., K) normalised logits.
            code: (..., K) D, one-hot; None to draw it.

        Returns:
            D and the stand-in, (..., K) both.
        """
        logits = theta.detach()
        if code is None:
            perturbed = logits - log_exponentials(logits)
            code = one_hot(perturbed.argmax(-1), logits.shape[-1], dtype=logits.dtype)
        else:
            perturbed = conditional_gumbels(logits, code)
        value = self.value(code, perturbed)
        return code, _Relaxed.apply(theta, value, self.pull, logits, code, perturbed)

    def surrogate(self, terms: Terms) -> Tensor:
        """(*batch), the objective itself: its gradient goes through the draws."""
        return self.objective(terms)

    def terms(self, model: Program, guide: Program, args: Any, kwargs: Any) -> Terms:
        """Run guide and model once, both going on with the relaxed draws."""
        return super().terms(_GoOn()(model), guide, args, kwargs)

    def wrap(self, guide: Program) -> Program:
        """The guide, its code sites drawn here."""
        return _Draw(self)(guide)

    def split(self, pair: Pair) -> Terms:
        """Terms, refused where a gradient would be missing."""
        closed = self.closed_form_sites(pair)
        for name, site in pair.guide_sites.items():
            has_score = not is_identically_zero(site["score_parts"].score_function)
            if has_score and name not in closed:
                raise ValueError(
                    f"Expected a reparametrised draw or a closed-form KL at site '{name}'; got "
                    f"{describe(site['fn'])} with neither. Use an unbiased estimator such as "
                    "RlooELBO, or analytic_kl=True and a categorical prior given no more than what "
                    "the guide drew before."
                )
        return super().split(pair)


def jacobian_product(p: Tensor, gradient: Tensor) -> Tensor:
    """J(p) g = p (g - p.g), without the K x K matrix J(p) = diag(p) - p p^T; (..., K) each."""
    return p * (gradient - (p * gradient).sum(-1, keepdim=True))


def softmax_pull(logits: Tensor, gradient: Tensor, temperature: float) -> Tensor:
    """1/tau J(softmax(logits/tau)) g, the gradient taken back through a tempered softmax."""
    return jacobian_product((logits / temperature).softmax(-1), gradient) / temperature


class _GoOn(Messenger):
    """A program goes on with the relaxed value of a draw; the trace outside keeps the draw."""

    def _pyro_post_sample(self, msg: Any) -> None:
        drawn, relaxed = (msg["infer"] or {}).get(RELAXED, (None, None))
        # A run at other codes (`Pair.at`) has put them in the place of the draw.
        if drawn is not None and msg["value"] is drawn:
            msg["value"] = relaxed


class _Draw(_GoOn):
    """Draw a guide's code sites, outside its plates, where `fn` has all its dimensions."""

    def __init__(self, elbo: PathwiseELBO) -> None:
        super().__init__()
        self.elbo = elbo

    def _pyro_sample(self, msg: Any) -> None:
        fn = msg["fn"]
        theta = code_logits(fn)
        if msg["is_observed"] or theta is None:
            return
        if not code_value(fn, theta).is_floating_point():
            raise ValueError(
                f"Expected one-hot codes at site '{msg['name']}', for indices have no gradient; "
                "got a Categorical. Use OneHotCategorical, or an unbiased estimator (RlooELBO)."
            )
        code = None
        if msg["value"] is not None:  # a draw fixed inside
            code = msg["value"].to(theta).expand(fn.shape()).reshape(theta.shape)
        code, relaxed = self.elbo.draw(theta, code)
        msg["value"] = code.reshape(fn.shape())
        msg["infer"] = {
            **(msg["infer"] or {}),
            RELAXED: (msg["value"], relaxed.reshape(fn.shape())),
        }


class _Relaxed(torch.autograd.Function):
    """`value` forward, exactly; `pull` backward, into `theta`."""

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, value: Tensor, pull: Callable[..., Tensor], *parts: Tensor
    ) -> Tensor:
        ctx.pull = pull
        ctx.save_for_backward(*parts)
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.pull(gradient, *ctx.saved_tensors), *[None] * (2 + len(ctx.saved_tensors))
