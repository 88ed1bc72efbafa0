"""`refine`: q(z|x) after coordinate ascent on the ELBO of each datum, from the encoder's on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pyro_dvae.codes import ROWS
from pyro_dvae.displays import html_table, number
from pyro_dvae.evaluation.blocks import posterior_blocks
from pyro_dvae.evaluation.inference import (
    PARTICLES,
    SWEEPS,
    Inference,
    elbo_of,
)
from pyro_dvae.evaluation.joint import TabulatedBlock, evaluating
from pyro_dvae.evaluation.marginal import log_sum
from pyro_dvae.tensors import as_arguments

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE


class Refined(NamedTuple):
    """The factorised q(z|x) of N data after coordinate ascent, and its figures in nats."""

    log_q: Tensor
    """log q(z_d = k|x), (N, D, K), normalised, in double precision."""
    elbo: Tensor
    """(N,) the ELBO of q. It is estimated from draws if there are too many codes for a table."""
    encoder_elbo: Tensor
    """(N,) the ELBO of the guide's q(z|x); an estimate as above."""
    log_marginal: Tensor | None
    """(N,) log p(x); None if there are too many codes for a table."""

    @property
    def distribution(self) -> TorchDistribution:
        """q(z|x), batch shape (N,), event shape (D, K)."""
        return dist.OneHotCategorical(logits=self.log_q).to_event(1)

    @property
    def mode(self) -> Tensor:
        """The most probable code of q(z|x) as categories 0 to K - 1, (N, D) int64."""
        return self.log_q.argmax(-1)

    def __repr__(self) -> str:
        log_p = "" if self.log_marginal is None else f", log p(x) {self.log_marginal.mean():.3f}"
        return (
            f"Refined q(z|x) of {len(self.elbo)} data, in nats per datum: ELBO "
            f"{self.elbo.mean():.3f} (encoder {self.encoder_elbo.mean():.3f}){log_p}"
        )

    def _repr_html_(self) -> str:
        """The means over the data as a table, for a notebook."""
        figures = {
            "ELBO, encoder": (self.encoder_elbo, "of the guide's q(z|x)"),
            "ELBO, refined": (self.elbo, "after coordinate ascent"),
            "log p(x)": (self.log_marginal, "sum over all codes"),
        }
        rows = [
            [label, number(values.mean().item()), "nats", meaning]
            for label, (values, meaning) in figures.items()
            if values is not None
        ]
        caption = f"Refined q(z|x) of {len(self.elbo)} data, means per datum"
        return html_table(
            ["figure", "mean", "unit", "meaning"], rows, numbers=(1,), caption=caption
        )


def refine(
    vae: DiscreteVAE,
    x: Any,
    sweeps: int = SWEEPS,
    labels: Any = None,
    *,
    starts: int = 1,
    particles: int = PARTICLES,
    exact: bool | None = None,
    batch_size: int = ROWS,
    seed: int = 0,
) -> Refined:
    """q_d(k) proportional to exp E_{q_-d}[log p(x, z_d = k, z_-d)], one latent at a time.

    This is coordinate ascent on the ELBO of each datum over factorised q(z|x), from the guide's
    q(z|x) on. From a table of log p(x, z) of all codes, which is computed once for all sweeps, no
    update lowers the ELBO; it tends to a local maximum, and never exceeds log p(x). Where there are
    too many codes for a table, the expectations are means over draws (`DrawnAscent`): the ascent
    is then stochastic, and single updates can lower the ELBO.

    Of an `AutoregressiveGuide`, the first start is the product of its marginals. The result is
    factorised, so that its ELBO can be below that of the guide itself.

    Args:
        vae: the model. It is in eval mode meanwhile, and gets no gradients.
        x: (N, *event), N >= 1, in the support of the likelihood: a tensor, an array or a table.
        sweeps: how often each latent is updated.
        labels: (N,) integers if the prior is conditional on labels; then p(z) is p(z|y). The
            labels of a `SemiSupervisedVAE` are not used: its class is refined as any latent is.
        starts: number of q(z|x) to start from. Beside the guide's these are, with a table, the
            marginals of p(z|x) and its most probable codes, else codes drawn from the guide. The
            result with the largest ELBO is kept for each datum.
        particles: draws per datum and update, if there is no table.
        exact: True for a table of all K^D codes, which needs K^D <= 65,536 (`MAX_CODES`); False for
            draws; None for a table where it is cheap (see `evaluate`).
        batch_size: data that are encoded at once. The result does not depend on it.
        seed: seed of the draws.

    Raises:
        TypeError: the model is no `DiscreteVAE`, or its guide has no known marginals.
        ValueError: an argument is out of range, x is outside the support, or K^D is too large.

    Example:
        >>> from pyro_dvae import refine
        >>> refined = refine(vae, x, sweeps=5)
        >>> bool((refined.elbo >= refined.encoder_elbo - 1e-10).all())
        True
    """
    _check_model(vae)
    x, labels = as_arguments(vae, x, labels)
    inference = Inference("refined", sweeps, starts, particles, seed)
    draws = [torch.Generator().manual_seed(seed) for _ in range(2)]  # the same uniform numbers
    parts = []
    blocks = posterior_blocks(
        vae, x, vae.prior_labels(labels), inference, exact=exact, batch_size=batch_size
    )
    for block, encoded, found in blocks:
        log_p = None
        if isinstance(block, TabulatedBlock):
            log_p = log_sum(block.log_prior, block.log_likelihood)
        with evaluating(vae):
            figures = [elbo_of(block, found, draws[0]), elbo_of(block, encoded, draws[1])]
        parts.append((found.marginals(), *figures, log_p))
    log_q, elbo, encoder_elbo, log_marginal = zip(*parts, strict=True)
    known = None if log_marginal[0] is None else torch.cat(log_marginal)
    return Refined(torch.cat(log_q), torch.cat(elbo), torch.cat(encoder_elbo), known)


class RefinedGuide:
    """q(z|x) by `refine`, as a guide program for the model of a `DiscreteVAE`.

    `SVI(vae.model, RefinedGuide(vae), ...)` then trains decoder and prior alone, since no gradient
    flows into a refined q(z|x). Its draws are those of Pyro's random stream.

    Args:
        vae: the model. Its present weights are used at each call.
        sweeps: how often each latent is updated.
        **options: `starts`, `particles`, `exact`, `batch_size` and `seed` of `refine`.

    Example:
        >>> from pyro.infer import Trace_ELBO
        >>> from pyro_dvae import RefinedGuide
        >>> loss = Trace_ELBO().loss(vae.model, RefinedGuide(vae, sweeps=1), x)
    """

    def __init__(self, vae: DiscreteVAE, sweeps: int = SWEEPS, **options: Any) -> None:
        _check_model(vae)
        self.vae, self.sweeps, self.options = vae, sweeps, options

    def posterior(self, x: Any, labels: Any = None) -> TorchDistribution:
        """q(z|x) of data (B, *event): batch shape (B,), event shape (D, K).

        Args:
            x: (B, *event).
            labels: (B,) if the prior is conditional on labels, else None.
        """
        log_q = refine(self.vae, x, self.sweeps, labels, **self.options).log_q
        weight = next(self.vae.parameters(), log_q)
        return dist.OneHotCategorical(logits=log_q.to(weight.dtype)).to_event(1)

    def __call__(
        self, x: Tensor | None = None, labels: Tensor | None = None, *, num_data: int = 1
    ) -> Tensor:
        """Draw z ~ q(z|x) at the sites of `vae.guide`, (B, D, K) one-hot.

        Args:
            x: (B, *event) data.
            labels: (B,) labels, as of `vae.guide`.
            num_data: not used.

        Raises:
            ValueError: x is None.
        """
        if x is None:
            raise ValueError("Expected data x for q(z|x); got None. Pass x, or run the model.")
        q = self.posterior(x, labels)
        with pyro.plate("data", len(x)):
            return self.vae.draw_guide(q, labels)

    def __repr__(self) -> str:
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        return f"RefinedGuide({type(self.vae).__name__}, sweeps={self.sweeps}{options})"


def _check_model(vae: Any) -> None:
    """Raise a TypeError for a program that has no p(z), p(x|z) and q(z|x) of its own."""
    if not all(hasattr(vae, name) for name in ("posterior", "prior_codes", "decode", "likelihood")):
        raise TypeError(
            f"Expected a DiscreteVAE, whose log p(x, z) of each code is known; got "
            f"{type(vae).__name__}. Build the model as a DiscreteVAE."
        )
