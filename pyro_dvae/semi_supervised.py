"""A discrete VAE whose first latent is the class of a datum, known for some of the data."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.nn import pyro_method
from torch import Tensor

from pyro_dvae.codes import ROWS, code_logits, one_hot
from pyro_dvae.networks.assembly import in_eval_mode
from pyro_dvae.sequences import SequentialCodes, conditional_logits
from pyro_dvae.tensors import as_arguments
from pyro_dvae.vae import DiscreteVAE


class SemiSupervisedVAE(DiscreteVAE):
    """p(y) p(z|y) p(x|y, z), guided by q(y|x) q(z|x, y): the first latent y is the class.

    It is the model M2 of Kingma et al. (2014, "Semi-supervised learning with deep generative
    models", Eqs. 6 to 9), with a discrete z. Where the label of a datum is known, y is observed,
    and the objective is

        log p(x|y, z) + log p(y) + log p(z|y) - log q(z|x, y) + alpha log q(y|x).

    The last term teaches the classifier q(y|x), which the bound on log p(x, y) lacks. Where no
    label is known, the objective is the ELBO of log p(x). There `SumFirstELBO` sums over the
    classes exactly, as the paper does; most other ELBOs draw y from q(y|x).

    Labels are whole numbers. Those of classes are 0 to K - 1, and any negative one means that the
    class is not known. Without labels, model and guide are those of `DiscreteVAE`. With a
    mean-field guide, q(z|x, y) = q(z|x). An `AutoregressiveGuide` lets z depend on y.

    The programs have the sites "y", which is observed, or "y_observed" and "y_unobserved", and "z";
    or "z_2" ... "z_D" if the latents of the prior or of the guide depend on those before them.

    Args:
        *parts: encoder, decoder, prior, likelihood and guide, as of `DiscreteVAE`. K, the number of
            categories of each latent, must be at least the number of classes.
        alpha: the weight of log q(y|x) per labelled datum. Kingma et al. use 0.1 N / L, where L of
            N data have a label. The setting `alpha` of a run has another unit: it is this
            weight times L / N.
        **named_parts: the same by their names.

    Raises:
        ValueError: alpha is negative or not finite; the prior is conditional on labels; or the
            latents of the prior are neither independent nor each given those before it.
    """

    def __init__(self, *parts: Any, alpha: float = 1.0, **named_parts: Any) -> None:
        super().__init__(*parts, **named_parts)
        if not 0 <= alpha < math.inf:
            raise ValueError(f"Expected a finite alpha >= 0; got {alpha}. Use 0.1 * N / L.")
        if self.prior.takes == "labels":
            raise ValueError(
                "Expected a prior that takes no labels, since the first latent is the class; got "
                f"{type(self.prior).__name__}. Use AutoregressivePrior for a p(z|y)."
            )
        self.alpha = alpha

    observes_labels = True

    @pyro_method
    def model(
        self, x: Tensor | None = None, labels: Tensor | None = None, *, num_data: int = 1
    ) -> Tensor:
        """p(x, y, z) as a Pyro program; with alpha log q(y|x) as a factor where y is known.

        Args:
            x: (B, *event) data; None to draw data.
            labels: (B,) int64, the classes 0 to K - 1, negative where the class is not known.
            num_data: B, if x and labels are None.
        """
        known = x if x is not None else labels
        with pyro.plate("data", num_data if known is None else len(known)):
            z = self._draw_classes(self.prior_codes(), labels, in_guide=False)
            if x is not None and labels is not None and self.alpha:
                log_q = _first(self.posterior(x)).log_softmax(-1)  # (B, K)
                told = log_q.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
                factor = self.alpha * torch.where(labels >= 0, told, 0)
                # Like the codes, it has a dimension for each of several codes that run at once.
                pyro.factor("class", factor.expand(z.shape[:-2]))
            return pyro.sample("x", self.decode(z), obs=x)

    @pyro_method
    def guide(
        self, x: Tensor | None = None, labels: Tensor | None = None, *, num_data: int = 1
    ) -> Tensor:
        """q(y|x) q(z|x, y) as a Pyro program; it draws no class where the class is known.

        Args:
            x: (B, *event) data.
            labels: (B,) int64, as of `model`.
            num_data: not used.

        Returns:
            (B, D, K) one-hot codes.
        """
        if x is None:
            raise ValueError("Expected data x for q(z|x); got None. Pass x, or run the model.")
        with pyro.plate("data", x.shape[0]):
            return self.draw_guide(self.posterior(x), labels)

    def draw_guide(self, q: TorchDistribution, labels: Tensor | None = None) -> Tensor:
        """Draw (B, D, K) codes at the sites of `guide`, with the class where it is known."""
        return self._draw_classes(q, labels, in_guide=True)

    def _draw_classes(
        self, codes: TorchDistribution, labels: Tensor | None, *, in_guide: bool
    ) -> Tensor:
        num_latents, num_categories = codes.event_shape
        q = dist.OneHotCategorical(logits=_first(codes))
        if labels is None:
            y = pyro.sample("y", q)
        else:
            known: Any = labels >= 0
            given = one_hot(labels.clamp(min=0), num_categories, dtype=q.logits.dtype)
            if in_guide:
                with poutine.mask(mask=~known):
                    drawn = pyro.sample("y_unobserved", q)
                y = torch.where(known.unsqueeze(-1), given, drawn)
            else:
                y = pyro.sample("y", q, obs=given, obs_mask=known)
        code = y.unsqueeze(-2)
        if not self.is_sequential:
            if num_latents == 1:
                return code
            logits: Any = code_logits(codes)  # (..., D, K), since the latents are independent
            others = dist.OneHotCategorical(logits=logits[..., 1:, :]).to_event(1)
            return _side_by_side(code, pyro.sample("z", others))
        for latent in range(2, num_latents + 1):
            site = dist.OneHotCategorical(logits=conditional_logits(codes, code))
            code = _side_by_side(code, pyro.sample(f"z_{latent}", site).unsqueeze(-2))
        return code

    def prior_codes(self, labels: Tensor | None = None) -> TorchDistribution:
        """p(y) p(z|y), of batch shape ().

        Args:
            labels: not used, since the labels are values of the first latent.
        """
        return super().prior_codes()

    def prior_labels(self, labels: Tensor | None) -> None:
        """None, since the labels are values of the first latent."""

    def check_labels(self, labels: Tensor) -> None:
        """Raise a ValueError unless the labels are whole numbers below K.

        Args:
            labels: (B,), negative where the class is not known.
        """
        num_classes = self.prior_codes().event_shape[1]
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(
                f"Expected labels as integers, -1 for none; got {labels.dtype}. Pass labels.long()."
            )
        if labels.numel() and int(labels.max()) >= num_classes:
            raise ValueError(
                f"Expected labels from 0 to {num_classes - 1}, and -1 for none; got "
                f"{int(labels.max())}. Use as many categories as there are classes."
            )

    @torch.no_grad()
    def class_probabilities(self, x: Any) -> Tensor:
        """q(y|x), (N, K), the probability of each class.

        Args:
            x: (N, *event): a tensor, an array or a table.
        """
        x, _ = as_arguments(self, x)
        self.likelihood.check(x)
        with in_eval_mode(self):
            rows = [_first(self.posterior(part)).softmax(-1) for part in x.split(ROWS)]
        return torch.cat(rows)


def _first(codes: TorchDistribution) -> Tensor:
    """The logits of the first latent, (*batch, K)."""
    logits = code_logits(codes)
    if logits is None:
        like = codes.like if isinstance(codes, SequentialCodes) else torch.empty(0)
        return conditional_logits(codes, like.new_empty(0, codes.event_shape[-1]))
    return logits[..., 0, :]


def _side_by_side(*codes: Tensor) -> Tensor:
    """Codes (..., d, K) as one code; enumerated latents have a dimension each."""
    lead = torch.broadcast_shapes(*(code.shape[:-2] for code in codes))
    return torch.cat([code.expand(*lead, *code.shape[-2:]) for code in codes], -2)
