"""A start from a mixture: weights with which a model of one latent is a mixture fitted by EM."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from pyro_dvae.checks import one_of
from pyro_dvae.defaults import STARTS
from pyro_dvae.elbos.exact import MarginalELBO
from pyro_dvae.evaluation.mixtures import Mixture
from pyro_dvae.evaluation.simple import MAX_TRAINING_DATA, fit_within_seconds
from pyro_dvae.likelihoods.maximum import has_maximum
from pyro_dvae.networks.mlp import MLPDecoder
from pyro_dvae.priors.learned import LearnedPrior
from pyro_dvae.recipe import starts_from_mixture
from pyro_dvae.training.batches import TrainingData, arguments
from pyro_dvae.vae import DiscreteVAE

_LEAST_DATA = 0.1
"""The least number of data of a component, below which its category helps the largest one."""
_RIDGE = 1e-7
"""The squared size of a weight counts so much, beside the squared error of a parameter."""


def takes_mixture(vae: DiscreteVAE, elbo: Any) -> str | None:
    """What a start from a mixture lacks, as the words after "Expected ..."; None if it is possible.

    Args:
        vae: the model.
        elbo: its training objective.
    """
    decoder = vae.decoder
    if not isinstance(elbo, MarginalELBO):
        return 'the estimator "marginal", which maximises log p(x)'
    if vae.observes_labels:
        return "a model without classes"
    if not isinstance(vae.prior, LearnedPrior) or vae.prior.logits.shape[0] != 1:
        return "one latent with a learned prior"
    if type(decoder) is not MLPDecoder:
        return "an MLPDecoder"
    widths = [layer.out_features for layer in decoder.layers[:-1] if isinstance(layer, nn.Linear)]
    most = min(widths, default=0) // 2
    if vae.prior.logits.shape[1] > most:
        return f"at most {most} categories, half the width of the decoder's layers"
    if not has_maximum(vae.likelihood):
        return "a likelihood with a maximum in closed form, such as Normal or Bernoulli"
    return None


def resolve_start(
    vae: DiscreteVAE, elbo: Any, size: tuple[int, int], start: str | None
) -> Literal["random", "mixture"]:
    """Where the first weights come from.

    Args:
        vae: the model.
        elbo: its training objective.
        size: (N, P), of the training data.
        start: "mixture" or "random"; None takes what the rule says for such data, and "random"
            where a mixture is not possible.

    Raises:
        ValueError: a mixture is asked for, and is not possible; or the name is unknown.
    """
    one_of("start", start or "random", STARTS)
    lacking = None if start == "random" else takes_mixture(vae, elbo)
    if start == "mixture" and lacking is not None:
        likelihood, decoder = type(vae.likelihood).__name__, type(vae.decoder).__name__
        raise ValueError(
            f'Expected {lacking}, for start="mixture"; got {type(elbo).__name__}, '
            f"{type(vae.prior).__name__}, {decoder}, {likelihood} and a code of "
            f"{' x '.join(map(str, vae.prior_codes().event_shape))}. Leave start out."
        )
    if start is None and lacking is None:
        num_categories = vae.prior_codes().event_shape[1]
        start = "mixture" if starts_from_mixture(*size, num_categories) else "random"
    return "mixture" if start == "mixture" else "random"


@torch.no_grad()
def start_from_mixture(vae: DiscreteVAE, data: TrainingData, seed: int = 0) -> Mixture:
    """Give decoder and prior the weights with which p(x) is that of a mixture, fitted by EM.

    p(x) = sum_k w_k p(x; params_k), with p(z=k) = w_k, and a decoder whose last layer computes
    params_k from the hidden units of category k: by least squares, which have an exact solution
    where the hidden layers are wider than K. But near K the weights are so large that dropout makes
    much noise, so K may be half the width. A component with less than a tenth of a datum takes a
    share of the largest component: it has the same parameters, and a part of its weight, which
    changes no p(x). The encoder stays as it is, for the gradient of log p(x) does not depend on
    it.

    Args:
        vae: a model of one latent, calibrated, for which `takes_mixture` says None.
        data: to train on. Of more than 10,000, some are taken at random.
        seed: of k-means, where EM starts, and of the choice of the data.

    Returns:
        The mixture.
    """
    device = next(vae.parameters()).device
    shuffle, noise = (torch.Generator(where).manual_seed(seed) for where in ("cpu", device))
    index = torch.randperm(len(data), generator=shuffle)[:MAX_TRAINING_DATA].sort().values
    x = arguments(data.batch(index.to(device), noise))[0]
    vae.likelihood.check(x)
    assert isinstance(vae.prior, LearnedPrior)
    logits = vae.prior.logits
    num_categories = logits.shape[1]
    wide = torch.float32 if device.type == "mps" else torch.float64
    found = fit_within_seconds(vae.likelihood, x.to(wide), num_categories, seed)
    weights = found.log_weights.exp()
    is_used = weights >= _LEAST_DATA / len(x)
    component = torch.where(is_used, torch.arange(num_categories, device=device), weights.argmax())
    weights = weights[component] / component.bincount(minlength=num_categories)[component]
    logits.copy_((weights / weights.sum()).log())
    assert isinstance(vae.decoder, MLPDecoder)
    codes = torch.eye(num_categories).to(logits)
    _fit_last_layer(vae.decoder.layers, codes, found.params[component])
    return found


def _fit_last_layer(layers: nn.Sequential, inputs: Tensor, wanted: Tensor) -> None:
    """Give the last layer the weights that are nearest to its own among those of least squares.

    Args:
        layers: of an MLP.
        inputs: (K, size) its inputs, in evaluation mode.
        wanted: (K, ...) its outputs.
    """
    *body, last = layers
    assert isinstance(last, nn.Linear)
    hidden = inputs
    for layer in body:
        hidden = hidden if isinstance(layer, nn.Dropout) else layer(hidden)
    hidden = hidden.double().cpu()
    known = torch.cat([hidden, torch.ones_like(hidden[:, :1])], 1)
    weight = torch.cat([last.weight, last.bias[:, None]], 1).T.double().cpu()
    left = wanted.flatten(1).double().cpu() - known @ weight
    gram = known @ known.T  # the solution of least norm is a sum over the K rows
    ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weight += known.T @ torch.linalg.solve(gram + ridge, left)
    last.weight.copy_(weight[:-1].T)
    last.bias.copy_(weight[-1])
