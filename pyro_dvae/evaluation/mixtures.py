"""Mixtures of a likelihood without a network, fitted by EM: what a model is compared with."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_dvae.checks import at_least
from pyro_dvae.codes import wide
from pyro_dvae.likelihoods.base import Likelihood
from pyro_dvae.likelihoods.elements import element_log_probs
from pyro_dvae.likelihoods.masked import Masked
from pyro_dvae.likelihoods.maximum import has_maximum, maximum
from pyro_dvae.process import PROCESS_STATE, without_checks
from pyro_dvae.streams import RandomStream

_CHUNK_NUMBERS = 2**22
"""Most numbers in memory at once, (components, data, P)."""
_LLOYD_STEPS = 5
"""Steps of the k-means that EM starts from."""
_ADAM_STEPS, _ADAM_NUMBERS = 250, 2**19
"""Steps of Adam where there is no closed form, and the numbers that one step scores."""


class Mixture(NamedTuple):
    """p(x) = sum_c w_c p(x; params_c), of C components. With C = 1 the elements are independent."""

    likelihood: Likelihood
    """p(x; params), masked or not."""
    log_weights: Tensor
    """(C,) log w_c."""
    params: Tensor
    """(C, *event), or (C, *event, num_params) if the likelihood has more than one."""
    num_steps: int = 0
    """The number of steps of EM."""

    def __repr__(self) -> str:
        size, kind = len(self.log_weights), type(self.likelihood).__name__
        return f"Mixture of {size} x {kind}, after {self.num_steps} steps of EM"

    @torch.no_grad()
    def log_prob(self, x: Tensor) -> Tensor:
        """Log p(x) of data (N, *event) in nats, (N,), exactly."""
        return self.log_joint(x).logsumexp(-1)

    @torch.no_grad()
    def log_joint(self, x: Tensor) -> Tensor:
        """Log w_c p(x; params_c) of data (N, *event), (N, C)."""
        numbers = max(1, x[0].numel() * max(1, self.likelihood.cost) * len(self.params))
        size = len(x) if self.likelihood.cost == 0 else max(1, _CHUNK_NUMBERS // numbers)
        with without_checks():
            p_x = self._components(x)
            parts = [p_x.log_prob(some.to(self.params)).T for some in x.split(size)]
        return self.log_weights + wide(torch.cat(parts))

    @torch.no_grad()
    def element_log_probs(self, x: Tensor) -> Tensor:
        """Log p(x_p) of each element by itself, (N, *event); of independent elements only.

        Raises:
            ValueError: the likelihood cannot score single elements.
        """
        with without_checks():
            return element_log_probs(self._components(x), x.to(self.params))[0]

    def mean(self) -> Tensor:
        """E[x], *event."""
        event_dim = self.params.dim() - 1 - (self.likelihood.num_params > 1)
        means = self.likelihood(self.params, event_dim).mean
        return torch.tensordot(self.log_weights.exp().to(means), means, 1)

    def _components(self, x: Tensor) -> Any:
        return self.likelihood(self.params[:, None], x.dim() - 1)


def fit_mixture(
    likelihood: Likelihood,
    x: Tensor,
    size: int,
    *,
    start: Tensor | None = None,
    strength: float = 1.0,
    max_steps: int = 100,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Mixture:
    """The maximum of sum_n log sum_c w_c p(x_n; params_c), by expectation maximisation (EM).

    Each component is fitted to all training data too, as if `strength` more of them were in it.
    So no step makes this greater objective less:
    sum_n log p(x_n) + strength / N sum_c sum_n log p(x_n; params_c).

    Args:
        likelihood: a `Likelihood` with a maximum in closed form, calibrated; masked or not.
        x: (N, *event), N >= 1, with NaN for missing elements where the likelihood takes them.
        size: C, the number of components.
        start: (N, C) responsibilities of the components for the data, whose rows sum to 1; None
            for those of k-means on what an encoder would see.
        strength: see above, in data.
        max_steps: of EM, at least 1.
        tolerance: EM stops once a step gains less, in nats per datum.
        seed: of k-means.

    Raises:
        ValueError: the likelihood has no maximum in closed form, or `size` < 1.

    Example:
        >>> from pyro_dvae import Bernoulli
        >>> from pyro_dvae.evaluation import fit_mixture
        >>> fit_mixture(Bernoulli(), x, 2).log_prob(x).shape
        torch.Size([10])
    """
    at_least("components", size, 1)
    at_least("data", len(x), 1)
    if not has_maximum(likelihood):
        raise ValueError(
            "Expected a likelihood with a maximum in closed form for EM; got "
            f"{type(likelihood).__name__}. Use Normal, Laplace, Bernoulli, Categorical, Poisson, "
            "NegativeBinomial or Multinomial."
        )
    likelihood = deepcopy(likelihood).to(x.device, x.dtype)
    with torch.no_grad(), PROCESS_STATE:
        if size == 1:
            ones = x.new_ones(len(x), 1)
            return Mixture(likelihood, x.new_zeros(1), maximum(likelihood, x, ones, 0.5), 1)
        share = k_means(likelihood, x, size, seed) if start is None else start.to(x)
        best, last = _maximised(likelihood, x, share, strength), -math.inf
        for step in range(1, max_steps + 1):
            joint = best.log_joint(x)
            total = joint.logsumexp(-1, keepdim=True)
            value = total.mean().item()
            best = best._replace(num_steps=step)
            if value - last < tolerance or step == max_steps:
                break
            last = value
            best = _maximised(likelihood, x, (joint - total).exp().to(x), strength)
    return best


def _maximised(likelihood: Likelihood, x: Tensor, share: Tensor, strength: float) -> Mixture:
    log_weights = (wide(share).sum(0) / len(x)).clamp(min=1e-30).log()
    weights = share + strength / len(x)
    extra = 0.5 * strength / len(x)
    return Mixture(likelihood, log_weights, maximum(likelihood, x, weights, extra))


def k_means(likelihood: Likelihood, x: Tensor, size: int, seed: int) -> Tensor:
    """Clusters of what an encoder would see of data, (N, C) zeros and ones.

    The first centres are data that are far from those before (k-means++, Arthur & Vassilvitskii
    2007).

    Args:
        likelihood: whose `features` are compared.
        x: (N, *event).
        size: C.
        seed: of the centres.
    """
    seen = likelihood.features(x).reshape(len(x), -1)
    if isinstance(likelihood, Masked):  # without the mask, a gap has the value that stands for 0
        seen = likelihood.likelihood.features(likelihood.borrowed(x)).reshape(len(x), -1)
    seen = seen - seen.mean(0)
    square = seen.square().sum(-1)
    with RandomStream(seed, x.device):
        chosen = int(torch.randint(len(x), ()))
        centres, nearest = [seen[chosen]], torch.full_like(square, torch.inf)
        for _ in range(size - 1):
            distance = square - 2 * seen @ centres[-1] + centres[-1].square().sum()
            nearest = torch.minimum(nearest, distance.clamp(min=0))
            weights = nearest if nearest.sum() > 0 else torch.ones_like(nearest)
            chosen = int(weights.multinomial(1))
            centres.append(seen[chosen])
    centre = torch.stack(centres)
    for _ in range(_LLOYD_STEPS):
        own = (centre.square().sum(-1) - 2 * seen @ centre.T).argmin(-1)
        share = torch.nn.functional.one_hot(own, size).to(seen)
        number = share.sum(0)[:, None]
        centre = torch.where(number > 0, share.T @ seen / number.clamp(min=1), centre)
    return share


def fit_elements(likelihood: Likelihood, x: Tensor, *, seed: int = 0) -> Mixture:
    """The distribution of each element by itself: prod_p p(x_p; params_p) of greatest likelihood.

    Levels and bits count half a datum more than they have, so that none has a probability of 0
    (Krichevsky & Trofimov 1981). Where there is no closed form, Adam climbs from params of 0.

    Args:
        likelihood: one whose elements are independent, calibrated; masked or not.
        x: (N, *event), with NaN for missing elements where the likelihood takes them.
        seed: of the batches of Adam.
    """
    if has_maximum(likelihood):
        return fit_mixture(likelihood, x, 1)
    likelihood = deepcopy(likelihood).to(x.device, x.dtype).requires_grad_(False)
    count = likelihood.num_params
    shape = (1, *x.shape[1:], *([count] if count > 1 else []))
    params = torch.zeros(shape, dtype=x.dtype, device=x.device, requires_grad=True)
    adam = torch.optim.Adam([params], lr=0.1)
    num = max(32, _ADAM_NUMBERS // max(1, x[0].numel() * max(1, likelihood.cost)))
    with without_checks(), torch.enable_grad(), RandomStream(seed, x.device):
        for step in range(_ADAM_STEPS):
            some = x if num >= len(x) else x[torch.randint(len(x), (num,), device=x.device)]
            adam.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * step / _ADAM_STEPS))
            loss = -likelihood(params, x.dim() - 1).log_prob(some).mean()
            (params.grad,) = torch.autograd.grad(loss, [params])
            adam.step()
    return Mixture(likelihood, x.new_zeros(1), params.detach())
