"""The discrete variational autoencoder as a pair of Pyro programs."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.nn import PyroModule, pyro_method
from torch import Tensor, nn

from pyro_dvae.codes import MAX_CODES, ROWS, num_codes, one_hot
from pyro_dvae.contracts import Contract, completed
from pyro_dvae.displays import html_modules, num_parameters, one_line
from pyro_dvae.guides import Guide, MeanFieldGuide
from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.posteriors import posterior_of
from pyro_dvae.priors.base import Prior
from pyro_dvae.process import PROCESS_STATE
from pyro_dvae.sequences import conditional_logits

_CONTRACTS: dict[str, type[Contract]] = {
    "prior": Prior,
    "posterior_family": Guide,
    "likelihood": Likelihood,
}


class DiscreteVAE(PyroModule):
    """p(x, z) = p(z) p(x|z), where z is a code of D one-hot variables, with the guide q(z|x).

    `model` and `guide` are plain Pyro programs: they have an observed site "x" in the plate "data",
    and run under any inference of Pyro. The ELBO decides how q is differentiated.

    If both the prior and the guide draw all latents at once, z is one site "z" of event shape
    (D, K). If the latents of one of them depend on those before them, z is D sites "z_1" ... "z_D"
    of event shape (K,), each a categorical given the sites before it. Then every estimator can
    differentiate them, and the KL of each site is known in closed form.

    Args:
        encoder: data (B, *event) -> context (B, D, C) for the guide. For the mean-field guide these
            are logits, and C = K.
        decoder: codes (..., D, K) -> parameters of the likelihood, (..., *event), or
            (..., *event, num_params) where the likelihood has more than one per element.
        prior: p(z), a `Prior`; or any module whose `forward()` returns a distribution over codes.
        likelihood: p(x|z), a `Likelihood`; or any module with `num_params` and
            `forward(params, event_dim)`, which returns a distribution over x.
        guide: q(z|x), a `Guide`; or any module whose `forward(context)` returns a distribution over
            codes. None is a `MeanFieldGuide`.

    Raises:
        ValueError: the likelihood has no `num_params`.

    Example:
        >>> from pyro_dvae import Bernoulli, DiscreteVAE, MLPDecoder, MLPEncoder, UniformPrior
        >>> vae = DiscreteVAE(
        ...     MLPEncoder((28, 28), num_latents=4, num_categories=8),
        ...     MLPDecoder((28, 28), num_latents=4, num_categories=8),
        ...     UniformPrior(num_latents=4, num_categories=8),
        ...     Bernoulli(),
        ... )
        >>> vae.sample(3).shape
        torch.Size([3, 28, 28])
    """

    encoder: nn.Module
    decoder: nn.Module
    prior: Prior
    likelihood: Likelihood
    posterior_family: Guide

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        prior: nn.Module,
        likelihood: nn.Module,
        guide: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.prior = completed(prior, Prior)
        self.likelihood = completed(likelihood, Likelihood)
        self.posterior_family = completed(MeanFieldGuide() if guide is None else guide, Guide)

    def __setattr__(self, name: str, value: Any) -> None:
        # A part that is put in the place of another one may be a plain module too.
        contract = _CONTRACTS.get(name)
        super().__setattr__(name, value if contract is None else completed(value, contract))

    @property
    def is_sequential(self) -> bool:
        """Whether a latent of the prior or of the guide depends on the latents before it."""
        return self.prior.sequential or self.posterior_family.sequential

    @property
    def takes_labels(self) -> bool:
        """Whether the prior is p(z|y), conditional on labels y."""
        return self.prior.takes == "labels"

    observes_labels = False
    """Whether labels are values of the first latent, as in `SemiSupervisedVAE`."""

    def prior_labels(self, labels: Tensor | None) -> Tensor | None:
        """The labels that p(z) is conditional on, of those that came with the data.

        Args:
            labels: (B,) int64, or None.
        """
        return labels

    def check_labels(self, labels: Tensor) -> None:
        """Raise a ValueError for labels (B,) that the model cannot take."""
        self.prior.check_labels(labels)

    def __repr__(self) -> str:
        parts = [f"\n  ({name}): {one_line(part)}" for name, part in self.named_children()]
        return f"{type(self).__name__}, {num_parameters(self)}{''.join(parts)}"

    def _repr_html_(self) -> str:
        """The parts as a table, for a notebook."""
        return html_modules(self)

    @pyro_method
    def model(
        self, x: Tensor | None = None, labels: Tensor | None = None, *, num_data: int = 1
    ) -> Tensor:
        """p(x, z) as a Pyro program (Eqs. 46 and 48 of [JL25]).

        Args:
            x: (B, *event) data; None to draw data.
            labels: (B,) int64 labels y, if the prior is p(z|y).
            num_data: B, if x and labels are None.

        Returns:
            (B, *event), the value of the site "x".
        """
        known = x if x is not None else labels
        with pyro.plate("data", num_data if known is None else len(known)):
            z = self._draw(self.prior_codes(labels))
            return pyro.sample("x", self.decode(z), obs=x)

    @pyro_method
    def guide(
        self, x: Tensor | None = None, labels: Tensor | None = None, *, num_data: int = 1
    ) -> Tensor:
        """q(z|x) as a Pyro program of plain categoricals (Eqs. 14, 15 and 47 of [JL25]).

        For the mean-field guide log q(z|x) = sum_d log f(x)_d,k(d), where k(d) is the category
        drawn for latent d (Eq. 80).

        Args:
            x: (B, *event) data.
            labels: not used, since x tells more. Pyro passes all arguments of `model`.
            num_data: not used.

        Returns:
            (B, D, K) one-hot codes.

        Raises:
            ValueError: x is None.
        """
        if x is None:
            raise ValueError("Expected data x for q(z|x); got None. Pass x, or run the model.")
        with pyro.plate("data", x.shape[0]):
            return self.draw_guide(self.posterior(x), labels)

    def draw_guide(self, q: TorchDistribution, labels: Tensor | None = None) -> Tensor:
        """Draw z ~ q(z|x), (B, D, K), at the sites of `guide`; call it in the plate "data".

        Args:
            q: q(z|x), batch shape (B,), event shape (D, K).
            labels: those that `guide` was called with.
        """
        return self._draw(q)

    def _draw(self, codes: TorchDistribution) -> Tensor:
        if not self.is_sequential:
            return pyro.sample("z", codes)
        num_latents, num_categories = codes.event_shape
        code = next(self.parameters()).new_empty(0, num_categories)
        latents: list[Tensor] = []
        for latent in range(1, num_latents + 1):
            site = dist.OneHotCategorical(logits=conditional_logits(codes, code))
            latents.append(pyro.sample(f"z_{latent}", site))
            # Enumerated latents have a dimension each.
            code = torch.stack(torch.broadcast_tensors(*latents), -2)
        return code

    def prior_codes(self, labels: Tensor | None = None) -> TorchDistribution:
        """p(z), of batch shape (); or p(z|y), of batch shape (B,), if the prior takes labels.

        Args:
            labels: (B,) int64 labels y, if the prior takes labels.

        Raises:
            ValueError: the prior takes labels and there are none, or the other way around.
        """
        takes = self.prior.takes
        if (takes == "labels") != (labels is not None):
            expected, came = ("labels (B,)", "none") if labels is None else ("no labels", "some")
            raise ValueError(
                f"Expected {expected} for {type(self.prior).__name__}; got {came}. "
                f"{'Pass labels' if labels is None else 'Leave them out'}, or use another prior."
            )
        if takes == "labels":
            return self.prior(labels)
        return self.prior(self._seen) if takes == "posterior" else self.prior()

    def posterior(self, x: Tensor) -> TorchDistribution:
        """q(z|x) of data (B, *event): batch shape (B,), event shape (D, K)."""
        return self.posterior_family(self.encode(x))

    def _seen(self, features: Tensor) -> TorchDistribution:
        """q(z|x) of features (B, *event), which are what `Likelihood.features` returns."""
        return self.posterior_family(self.encoder(features))

    def encode(self, x: Tensor) -> Tensor:
        """The context (B, D, C) of q(z|x) for data (B, *event): logits for a mean-field guide."""
        return self.encoder(self.likelihood.features(x))

    def decode(self, z: Tensor) -> TorchDistribution:
        """p(x|z), a distribution of batch shape (...) and event shape *event.

        Args:
            z: (..., D, K) one-hot codes.

        Raises:
            ValueError: the decoder does not keep the leading dimensions of the codes.
        """
        params, lead = self.decoder(z), z.shape[:-2]
        if params.shape[: len(lead)] != lead:
            raise ValueError(
                f"Expected the decoder {type(self.decoder).__name__} to keep the leading dimensions"
                f" of codes {tuple(z.shape)}; got {tuple(params.shape)}. Flatten a code alone, "
                "nn.Flatten(-2) in place of nn.Flatten()."
            )
        event_dim = params.dim() - (z.dim() - 2) - (self.likelihood.num_params > 1)
        return self.likelihood(params, event_dim)

    @torch.no_grad()
    def mode(self, x: Tensor) -> Tensor:
        """The most probable code of q(z|x), (B, D, K) one-hot.

        If there are more than `MAX_CODES` codes, and the latents of the guide depend on those
        before them, the search takes the most probable category of one latent after the other.

        Args:
            x: (B, *event) data.

        Raises:
            ValueError: the data are outside the support of the likelihood.
        """
        codes = []
        for rows in x.split(ROWS):
            self.likelihood.check(rows)
            q = self.posterior(rows)
            num_latents, num_categories = q.event_shape
            few = num_codes(num_latents, num_categories) <= MAX_CODES
            index = posterior_of(q, tabulate=few).mode()
            codes.append(one_hot(index, num_categories, dtype=next(self.parameters()).dtype))
        return torch.cat(codes)

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """E[x'|z], (B, *event), at the most probable code z of q(z|x) for data x (B, *event)."""
        return self.decode(self.mode(x)).mean

    @torch.no_grad()
    def sample(
        self, num_samples: int, *, means: bool = False, labels: Tensor | None = None
    ) -> Tensor:
        """Draw codes z from the prior, then data x from p(x|z).

        Args:
            num_samples: the number of draws.
            means: return E[x|z] in place of draws of x.
            labels: (num_samples,) int64 labels y, if the prior is p(z|y).

        Returns:
            (num_samples, *event).
        """
        with PROCESS_STATE:  # a training in another thread may hold the random state
            x = self.decode(self.sample_codes(num_samples, labels))
            return x.mean if means else x.sample()

    @torch.no_grad()
    def sample_codes(self, num_samples: int, labels: Tensor | None = None) -> Tensor:
        """Draw codes z from the prior, (num_samples, D, K) one-hot.

        Args:
            num_samples: the number of draws.
            labels: (num_samples,) int64 labels y, if the prior is p(z|y).
        """
        with PROCESS_STATE:
            codes = self.prior_codes(labels)
            return (codes if labels is not None else codes.expand([num_samples])).sample()
