"""Simple models of the same data: what the latents of a model bring."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_dvae.codes import enumerate_codes, num_codes, wide
from pyro_dvae.displays import html_table, number
from pyro_dvae.evaluation.joint import evaluating, precise
from pyro_dvae.evaluation.mixtures import Mixture, fit_elements, fit_mixture
from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.likelihoods.masked import unmasked
from pyro_dvae.likelihoods.maximum import has_maximum, of_elements
from pyro_dvae.streams import RandomStream
from pyro_dvae.tensors import as_arguments

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

MAX_COMPONENTS = 64
"""The largest mixture that is fitted beside a model."""
MAX_TRAINING_DATA = 10_000
"""The most training data that simple models are fitted to."""

_SMALL = 2**27
"""Up to so many numbers, components x data x P, EM runs in double precision, and the size of the
mixture is chosen among powers of two."""
_MOST_NUMBERS = 2**28
"""The most numbers, steps x components x data x P x cost, that one run of EM computes: seconds."""
_LEAST_STEPS, _MOST_STEPS = 20, 60
"""A mixture has no more components than EM can fit in so many steps, for many numbers."""
_MOST_LEVELS = 64
"""Elements of more levels get no mixture: it would have a probability for each of them."""
_HELD_OUT = 500
_CODES = 64
"""Codes that are drawn from the prior; fewer, but at least 8, where they take seconds."""


@dataclass(frozen=True)
class SimpleModels:
    """Log p(x) of simple models, means over the data of an evaluation, in nats per datum.

    They are fitted to training data, and are exact. A model whose log p(x) is no better gains
    nothing from its latents.
    """

    independent: float | None
    """Each element has its own distribution, independent of the others; None if the likelihood
    cannot be fitted so."""
    mixture: float | None
    """A mixture of such distributions, fitted by EM; None if there is none for this likelihood."""
    mixture_size: int
    """C, the components of the mixture: at most the number of codes, at most 64, and no more than
    take some seconds. Where that is cheap, the best of 2, 4, 8, ... by held-out training data. 0
    without a mixture."""
    prior_codes: float
    """E_p(z)[log p(x|z)], the ELBO if q(z|x) were the prior: codes that say nothing of x."""
    prior_codes_error: float | None
    """Its standard error, where codes are drawn from the prior; None for a sum over all codes."""
    num_train: int
    """The number of training data that these models are fitted to."""

    @property
    def standard_errors(self) -> dict[str, float]:
        """Name of a figure -> its standard error. A figure without an entry is exact."""
        error = self.prior_codes_error
        return {} if error is None else {"prior_codes": error}

    def rows(self) -> list[tuple[str, str, float | None, str]]:
        """Each figure as (label, name, value, meaning), in the order in which they are shown."""
        mixture = f"mixture of {self.mixture_size}"
        return [
            ("independent elements", "independent", self.independent, "each element by itself"),
            (mixture, "mixture", self.mixture, "of independent elements, by EM"),
            ("codes from the prior", "prior_codes", self.prior_codes, "E_p(z)[log p(x|z)]"),
        ]

    def _repr_html_(self) -> str:
        """The figures as a table, for a notebook."""
        errors = self.standard_errors
        rows = [
            [label, number(value), f"± {errors[name]:.2g}" if name in errors else "exact", meaning]
            for label, name, value, meaning in self.rows()
            if value is not None
        ]
        caption = f"Log p(x) of simple models of {self.num_train} data, in nats per datum"
        heads = ["model", "mean", "standard error", "meaning"]
        return html_table(heads, rows, numbers=(1, 2), caption=caption)

    def bits_saved(self, log_prob: float) -> float | None:
        """(log_prob - independent) / log 2, in bits per datum; None without independent elements.

        Args:
            log_prob: the mean of log p(x) of a model, or of a bound on it, in nats per datum.
        """
        return None if self.independent is None else (log_prob - self.independent) / math.log(2)


def simple_models(
    vae: DiscreteVAE,
    train: Any,
    x: Any,
    labels: Any = None,
    *,
    max_components: int = MAX_COMPONENTS,
    known: SimpleModels | None = None,
    seed: int = 0,
) -> SimpleModels:
    """Fit simple models to training data, and score other data by them.

    Args:
        vae: the model that they are compared with, which says the likelihood and the number of
            codes. Its own log p(x) is that of `evaluate`.
        train: (N, *event) the training data. Of more than 10,000, the first of a random order are
            taken.
        x: (M, *event) the data that the model is evaluated on.
        labels: (M,) integers if the prior is conditional on labels; otherwise None. The simple
            models know nothing of labels.
        max_components: the largest mixture.
        known: what this function said of the same data with another model of the same likelihood
            and the same number of codes. Only `prior_codes` is computed anew.
        seed: of k-means, of the data that are left out, and of the drawn codes.

    Example:
        >>> from pyro_dvae.evaluation import simple_models
        >>> simple_models(vae, x, x).mixture_size
        2
    """
    x, labels = as_arguments(vae, x, labels)
    codes, error = _prior_codes(vae, x, vae.prior_labels(labels), seed)
    if known is not None:
        return SimpleModels(
            known.independent, known.mixture, known.mixture_size, codes, error, known.num_train
        )
    train = first_of(as_arguments(vae, train)[0], seed)
    if max(train.numel(), x.numel()) * max_components <= _SMALL and train.device.type != "mps":
        train, x = train.double(), x.double()
    elements = independent_elements(vae, train, seed=seed)
    size, mixture = 0, None
    if elements is not None and _takes_mixture(elements.likelihood):
        total = num_codes(*_code_shape(vae, labels))
        best = best_mixture(elements.likelihood, train, min(total, max_components), seed=seed)
        size, mixture = len(best.log_weights), best.log_prob(x).mean().item()
    independent = None if elements is None else elements.log_prob(x).mean().item()
    return SimpleModels(independent, mixture, size, codes, error, len(train))


def independent_elements(vae: DiscreteVAE, train: Tensor, *, seed: int = 0) -> Mixture | None:
    """Fit the distribution of each element by itself to training data; see `fit_elements`.

    Args:
        vae: the model, which says the likelihood.
        train: (N, *event).
        seed: of what is drawn.

    Returns:
        The fitted model; None where the elements have no distributions of their own.
    """
    likelihood = of_elements(vae.likelihood, train.shape[1:])
    if likelihood is None:
        return None
    likelihood.calibrate(train)  # k-means compares standardised columns
    return fit_elements(likelihood, train, seed=seed)


def best_mixture(likelihood: Likelihood, train: Tensor, most: int, *, seed: int = 0) -> Mixture:
    """The mixture of at most `most` components; of the size that held-out data prefer, if cheap.

    Args:
        likelihood: with a maximum in closed form.
        train: (N, *event).
        most: components.
        seed: of k-means, and of which data are held out to choose by, a fifth, at most 500.
    """
    affordable = int(_MOST_NUMBERS / (_LEAST_STEPS * train.numel() * _cost(likelihood)))
    most = max(1, min(most, len(train) // 4, max(2, affordable)))
    if train.numel() * most > _SMALL:
        return fit_within_seconds(likelihood, train, most, seed)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    held_out = max(1, min(_HELD_OUT, len(train) // 5))
    val, some = train[order[:held_out]], train[order[held_out:]]
    best, size, worse = -math.inf, 1, 0
    for each in sorted({*(2**i for i in range(1, 20) if 2**i < most), most}):
        if len(some) == 0 or worse == 2:
            break
        value = fit_within_seconds(likelihood, some, each, seed).log_prob(val).mean().item()
        worse = 0 if value > best else worse + 1
        best, size = max((value, each), (best, size))
    return fit_within_seconds(likelihood, train, size, seed)


def fit_within_seconds(likelihood: Likelihood, x: Tensor, size: int, seed: int) -> Mixture:
    """`fit_mixture`, with no more steps of EM than take some seconds.

    Args:
        likelihood: with a maximum in closed form.
        x: (N, *event).
        size: C, the number of components.
        seed: of k-means.
    """
    steps = int(_MOST_NUMBERS / (x.numel() * size * _cost(likelihood)))
    return fit_mixture(likelihood, x, size, max_steps=max(2, min(_MOST_STEPS, steps)), seed=seed)


def _cost(likelihood: Likelihood) -> float:
    return likelihood.cost or 1 / 64  # a matrix product


def first_of(x: Tensor, seed: int) -> Tensor:
    """At most `MAX_TRAINING_DATA` of data (N, *event), in a random order if there are more."""
    if len(x) <= MAX_TRAINING_DATA:
        return x
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return x[order[:MAX_TRAINING_DATA].to(x.device)]


def _takes_mixture(likelihood: Likelihood) -> bool:
    its = unmasked(likelihood)
    return has_maximum(its) and not (its.kind == "levels" and its.levels > _MOST_LEVELS)


def _code_shape(vae: DiscreteVAE, labels: Tensor | None) -> Any:
    labels = vae.prior_labels(labels)
    return vae.prior_codes(None if labels is None else labels[:1]).event_shape


def _prior_codes(
    vae: DiscreteVAE, x: Tensor, labels: Tensor | None, seed: int
) -> tuple[float, float | None]:
    """E_p(z)[log p(x|z)], a mean over the data, and its standard error; None for a sum."""
    with evaluating(vae), RandomStream(seed, x.device):
        vae.prior.refresh()
        prior = vae.prior_codes(labels)
        is_sum = labels is None and num_codes(*prior.event_shape) <= _CODES
        weights: Tensor | None = None
        if is_sum:
            codes = enumerate_codes(*prior.event_shape, device=x.device, dtype=x.dtype)
            weights = wide(prior.log_prob(codes)).exp()
        else:
            numbers = x.numel() * max(1, vae.likelihood.cost)
            codes = prior.sample((min(_CODES, max(8, _MOST_NUMBERS // numbers)),))
        codes = codes.unsqueeze(1) if labels is None else codes
        means = sum(part.sum(-1) for part in _scored(vae, x, codes)) / len(x)  # (S,)
    assert isinstance(means, Tensor)
    if weights is not None:
        return (weights * means).sum().item(), None
    return means.mean().item(), (means.var() / len(means)).sqrt().item()


def _scored(vae: DiscreteVAE, x: Tensor, codes: Tensor) -> Iterator[Tensor]:
    """Log p(x|z) of each block of the data, (S, B)."""
    numbers = len(codes) * x[0].numel() * max(1, vae.likelihood.cost)
    size = max(1, 2**22 // max(1, numbers))
    shared = precise(vae.decode(codes)) if codes.shape[1] == 1 else None
    for start in range(0, len(x), size):
        some = slice(start, start + size)
        p_x = shared or precise(vae.decode(codes[:, some]))
        yield wide(p_x.log_prob(x[some]))
