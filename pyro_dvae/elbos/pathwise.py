"""The base class of the pathwise estimators. All of them are biased."""

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
from pyro_dvae.elbos.base import DiscreteELBO
from pyro_dvae.elbos.distributions import describe
from pyro_dvae.elbos.pair import Pair, Program
from pyro_dvae.elbos.terms import Terms

RELAXED = "pyro_dvae.relaxed"
"""Key of the relaxed code in a site's `infer`. Pyro's replay copies `infer` to the model."""


class PathwiseELBO(DiscreteELBO):
    """g dz/dtheta, g = df/dz, with the Jacobian of a relaxation in place of dz/dtheta.

    f is the objective, theta are the logits of q, and z is the one-hot draw, which has no
    derivative in theta. Forward, the traces hold z, so that every log-probability is that of an
    exact draw. The programs go on with `value`. Backward, `pull` turns the gradient in `value` into
    one in the logits. There is no score-function term. For most models, `Trainer` computes the
    gradient of the library's own subclasses without traces (`training/direct.py`), but for those
    that draw in `pull`.

    Args:
        num_particles: S, draws of z per datum.
        temperature: tau > 0 of the relaxation. Neither the draws nor `loss` depend on it.
        **options: `beta`, `free_bits`, `max_plate_nesting` of `DiscreteELBO`.

    Raises:
        ValueError: the temperature is not positive or not finite. When it is run: a site of the
            guide has indices as values, or has neither a reparametrised draw nor a KL in closed
            form.
    """

    is_unbiased: ClassVar[bool] = False

    def __init__(self, num_particles: int = 1, *, temperature: float = 1.0, **options: Any) -> None:
        super().__init__(num_particles, **options)
        if not 0 < temperature < math.inf:
            raise ValueError(f"Expected a finite temperature > 0; got {temperature}. Use 1.0.")
        self.temperature = temperature

    def extra_repr(self) -> str:
        """The settings, for `repr`."""
        return f"{super().extra_repr()}, temperature={self.temperature}"

    @abstractmethod
    def pull(self, gradient: Tensor, logits: Tensor, code: Tensor, perturbed: Tensor) -> Tensor:
        """The gradient in theta, (*plates, D, K). It is computed without a graph.

        Args:
            gradient: (*plates, D, K), g = df/dz at `value`.
            logits: (*plates, D, K), theta, normalised.
            code: (*plates, D, K), the one-hot draw z.
            perturbed: (*plates, D, K), theta + G, with Gumbel noise G such that the argmax is z.
        """

    def value(self, code: Tensor, perturbed: Tensor) -> Tensor:
        """The code that the programs go on with, (*plates, D, K).

        Args:
            code: (*plates, D, K), the one-hot draw z.
            perturbed: (*plates, D, K), theta + G, with Gumbel noise G such that the argmax is z.
        """
        return code

    def draw(self, theta: Tensor, code: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Draw a one-hot z, and give `value` the gradient `pull` in theta.

        It needs no Pyro program. Any network can use it to sample one of K branches.

        Args:
            theta: (..., K) normalised logits.
            code: (..., K), the one-hot z; None to draw it.

        Returns:
            The draw z, and `value` with its gradient, (..., K) both.
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
        """(*batch) the objective itself, in nats per datum. Its gradient goes through the draws."""
        return self.objective(terms)

    def terms(self, model: Program, guide: Program, args: Any, kwargs: Any) -> Terms:
        """The terms of one run of guide and model, which both go on with `value`."""
        return super().terms(_GoOn()(model), guide, args, kwargs)

    def wrap(self, guide: Program) -> Program:
        """The guide, with code sites that are drawn by `draw`."""
        return _Draw(self)(guide)

    def split(self, pair: Pair) -> Terms:
        """The terms of the ELBO. A site whose gradient would be missing is refused."""
        closed = self.closed_form_sites(pair)
        for name, site in pair.guide_sites.items():
            has_score = not is_identically_zero(site["score_parts"].score_function)
            if has_score and name not in closed:
                raise ValueError(
                    f"Expected a reparametrised draw or a closed-form KL at site '{name}'; got "
                    f"{describe(site['fn'])} with neither. Use an unbiased estimator such as "
                    "RlooELBO, or analytic_kl=True and a categorical prior that depends on nothing "
                    "that the guide draws later."
                )
        return super().split(pair)


def jacobian_product(p: Tensor, gradient: Tensor) -> Tensor:
    """J(p) g = p (g - p.g), where J(p) = diag(p) - p p^T, without a K x K matrix.

    Args:
        p: (..., K) probabilities.
        gradient: (..., K), g.
    """
    return p * (gradient - (p * gradient).sum(-1, keepdim=True))


def softmax_pull(logits: Tensor, gradient: Tensor, temperature: float) -> Tensor:
    """1/tau J(softmax(logits/tau)) g: the gradient in the logits of softmax(logits/tau).

    Args:
        logits: (..., K).
        gradient: (..., K), g.
        temperature: tau.
    """
    return jacobian_product((logits / temperature).softmax(-1), gradient) / temperature


class _GoOn(Messenger):
    """A program goes on with the relaxed code. The trace, outside of this, keeps the draw."""

    def _pyro_post_sample(self, msg: Any) -> None:
        drawn, relaxed = (msg["infer"] or {}).get(RELAXED, (None, None))
        # If the programs run at another code (`Pair.at`), the value is no draw.
        if drawn is not None and msg["value"] is drawn:
            msg["value"] = relaxed


class _Draw(_GoOn):
    """Draw a guide's code sites with `elbo.draw`.

    It is a handler outside of the guide's plates, where distributions have all dimensions.
    """

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
                f"Expected one-hot codes at site '{msg['name']}', since indices have no gradient; "
                "got a Categorical. Use OneHotCategorical, or an unbiased estimator (RlooELBO)."
            )
        code = None
        if msg["value"] is not None:  # another handler has set the draw
            code = msg["value"].to(theta).expand(fn.shape()).reshape(theta.shape)
        code, relaxed = self.elbo.draw(theta, code)
        msg["value"] = code.reshape(fn.shape())
        msg["infer"] = {
            **(msg["infer"] or {}),
            RELAXED: (msg["value"], relaxed.reshape(fn.shape())),
        }


class _Relaxed(torch.autograd.Function):
    """Forward, it returns `value`. Backward, the gradient in theta is `pull`."""

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
