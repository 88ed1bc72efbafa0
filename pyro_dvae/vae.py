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
from pyro_dvae.displays import num_parameters, one_line
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
    """p(x, z) = p(z) p(x|z) with z a code of D one-hot variables, guided by q(z|x).

    `model` and `guide` are plain Pyro programs with an observed site "x" in the plate "data". They
    run under any Pyro inference; how q is differentiated is the ELBO's affair. Where both prior and
    guide draw all latents at once, z is one site "z" of event (D, K). Where the latents of either
    follow one another they are sites "z_1" ... "z_D" of event (K,), each a categorical given those
    before it: then any estimator differentiates them, and the KL of each is in closed form.

    Args:
        encoder: (B, *event) -> context (B, D, C) of the guide; logits, C = K, for mean-field.
        decoder: (..., D, K) -> parameters (..., *event) of the likelihood.
        prior: `forward()` -> a distribution with event (D, K); or of labels (see `priors`).
        likelihood: `forward(params, event_dim)` -> a distribution over x.
        guide: `forward(context)` -> a distribution with event (D, K); mean-field if left out.

    Raises:
        ValueError: a part lacks what its contract requires: see `Prior`, `Guide` and `Likelihood`.
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
        # Whoever exchanges a part of a model that is there may take a plain module too.
        contract = _CONTRACTS.get(name)
        super().__setattr__(name, value if contract is None else completed(value, contract))

    @property
    def is_sequential(self) -> bool:
        """Whether the latents of the prior or of the guide follow one another."""
        return self.prior.sequential or self.posterior_family.sequential

    @property
    def takes_labels(self) -> bool:
        """Whether the prior is p(z|y), conditional on labels y."""
        return self.prior.takes == "labels"

    def __repr__(self) -> str:
        parts = [f"\n  ({name}): {one_line(part)}" for name, part in self.named_children()]
        return f"{type(self).__name__}, {num_parameters(self)}{''.join(parts)}"

    @pyro_method
    def model(
        self, x: Tensor | None = None, labels: Tensor | None = None, *, num_data: int = 1
    ) -> Tensor:
        """The generative program (Eqs. 46 and 48 of [JL25]); with x None it draws `num_data` data.

        Args:
            x: (B, *event), or None.
            labels: (B,) int64, where the prior is conditional on them.
            num_data: B where x and labels are None.

        Returns:
            (B, *event), the value of site "x".
        """
        known = x if x is not None else labels
        with pyro.plate("data", num_data if known is None else len(known)):
            z = self._draw(self.prior_codes(labels))
            return pyro.sample("x", self.decode(z), obs=x)

    @pyro_method
    def guide(
        self, x: Tensor | None = None, labels: Tensor | None = None, *, num_data: int = 1
    ) -> Tensor:
        """The honest categoricals of q(z|x) (Eqs. 14, 15 and 47 of [JL25]); signature of `model`.

        For mean-field log q(z|x) = sum_d log f(x)_d,k(d), k(d) the category drawn for latent d
        (Eq. 80). Labels are not used: x tells more.

        Raises:
            ValueError: x is None, for q needs data.
        """
        if x is None:
            raise ValueError("Expected data x for q(z|x); got None. Pass x, or run the model.")
        with pyro.plate("data", x.shape[0]):
            return self._draw(self.posterior(x))

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
        """p(z), or p(z|y) of batch shape (B,) where the prior is conditional on labels (B,).

        Raises:
            ValueError: labels are missing, or are given to a prior that knows none.
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
        """q(z|x) of data (B, *event): batch shape (B,), event (D, K)."""
        return self.posterior_family(self.encode(x))

    def _seen(self, features: Tensor) -> TorchDistribution:
        """q(z|x) of what the encoder sees of x, (B, *event): see `Likelihood.features`."""
        return self.posterior_family(self.encoder(features))

    def encode(self, x: Tensor) -> Tensor:
        """The context (B, D, C) of q(z|x) for data (B, *event): its logits where mean-field."""
        return self.encoder(self.likelihood.features(x))

    def decode(self, z: Tensor) -> TorchDistribution:
        """p(x|z): a distribution with batch shape (...) and event shape *event.

        Args:
            z: (..., D, K) one-hot codes.

        Raises:
            ValueError: the decoder does not keep the leading dimensions.
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

        Of more than `MAX_CODES` codes of a sequential guide it is found latent by latent.

        Raises:
            ValueError: the likelihood does not take the data, of which an encoder could tell
                nothing.
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
        """E[x'|z], (B, *event), at the most probable code z of q(z|x)."""
        return self.decode(self.mode(x)).mean

    @torch.no_grad()
    def sample(
        self, num_samples: int, *, means: bool = False, labels: Tensor | None = None
    ) -> Tensor:
        """Draw z from the prior, then x, or with `means` E[x|z], (num_samples, *event).

        Args:
            num_samples: of z.
            means: E[x|z] in place of draws.
            labels: (num_samples,) int64, where the prior is conditional on them.
        """
        with PROCESS_STATE:  # a model that trains in another thread draws from a stream of its own
            codes = self.prior_codes(labels)
            x = self.decode((codes if labels is not None else codes.expand([num_samples])).sample())
            return x.mean if means else x.sample()
