"""The parts of a model, built from the names in a `Config`: `name`, or `name:argument`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from pyro_dvae.checks import one_of
from pyro_dvae.guides import GUIDES, Guide
from pyro_dvae.likelihoods import LIKELIHOODS, Likelihood
from pyro_dvae.likelihoods.names import named_likelihood
from pyro_dvae.networks import DECODERS, ENCODERS
from pyro_dvae.networks.plugins import own_decoder, own_encoder, own_likelihood, own_takes
from pyro_dvae.priors import PRIORS, Prior
from pyro_dvae.runs.own import own_guide, own_prior
from pyro_dvae.specs import build_named, is_own, name_and_argument

if TYPE_CHECKING:
    from pyro_dvae.runs.config import Config


def check_name(what: str, spec: str, table: Mapping[str, Any], *, own: bool = False) -> None:
    """Raise a ValueError unless the name of `name` or `name:argument` is in the table.

    Args:
        what: the kind of part.
        spec: the text.
        table: the names.
        own: whether it may be a part of the user's own, `module:factory`.
    """
    if not (own and is_own(spec, table)):
        one_of(what, name_and_argument(spec)[0], table)


def is_conditional(prior: str) -> bool:
    """Whether a prior is conditional on labels.

    Code of a user's own is imported to find out: its factory has an argument `num_classes`.

    Args:
        prior: the name, as `Config` takes it.
    """
    if is_own(prior, PRIORS):
        return own_takes(prior, "prior", "num_classes")
    return name_and_argument(prior)[0] == "conditional"


def build_prior(config: Config, event_shape: Sequence[int]) -> Prior:
    """The untrained prior alone."""
    given: dict[str, Any] = {
        "num_latents": config.num_latents,
        "num_categories": config.num_categories,
        "num_classes": config.num_classes,
        "event_shape": tuple(event_shape),
    }
    if is_own(config.prior, PRIORS):
        return own_prior(config.prior, **given)
    if name_and_argument(config.prior)[0] == "vamp":  # other priors do not look at the data
        likelihood = build_likelihood(config, event_shape)
        given["event_shape"] = likelihood.feature_shape(event_shape)
        bounded = ("bits", "unit", "open", "levels")  # as the encoder sees them
        given["bounded"] = likelihood.kind in bounded
    return build_named("prior", config.prior, PRIORS, given)


def build_guide(config: Config) -> Guide:
    """The untrained guide alone."""
    given = {"num_latents": config.num_latents, "num_categories": config.num_categories}
    if is_own(config.guide, GUIDES):
        return own_guide(config.guide, **given)
    return build_named("guide", config.guide, GUIDES, given)


def build_likelihood(config: Config, event_shape: Sequence[int]) -> Likelihood:
    """The likelihood alone, before it has seen data.

    Raises:
        ValueError: an unknown name or argument; or the user's own likelihood cannot be built.
    """
    spec, shape = config.likelihood, tuple(event_shape)
    own = is_own(spec, LIKELIHOODS)
    return own_likelihood(spec, shape) if own else named_likelihood(spec, shape)


def build_networks(
    config: Config, event_shape: Sequence[int], num_outputs: int, likelihood: Likelihood
) -> tuple[nn.Module, nn.Module]:
    """Encoder and decoder: the user's own where the config names one, else the network's.

    Args:
        config: the settings.
        event_shape: shape of one datum.
        num_outputs: C, the numbers that the guide needs for each latent.
        likelihood: the likelihood, which says what the encoder sees of a datum, and how many
            parameters it needs for each element.

    Raises:
        ValueError: a network of the user's own cannot be built, or does not fit; or the network
            that the config names does not fit the data.
    """
    shape, num_latents = tuple(event_shape), config.num_latents
    given: dict[str, Any] = {"event_shape": shape, "num_latents": num_latents}
    given["dropout"] = config.dropout
    seen, num_params = likelihood.feature_shape(shape), likelihood.num_params
    if config.encoder is not None:
        encoder = own_encoder(config.encoder, seen, num_latents, num_outputs)
    else:  # `MLPEncoder` calls its outputs categories, which they are for a mean-field guide
        sizes: dict[str, Any] = {"num_outputs": num_outputs, "num_categories": num_outputs}
        sizes |= {"hidden": config.hidden, "event_shape": seen}
        encoder = build_named("network", config.network, ENCODERS, given | sizes)
    if config.decoder is not None:
        return encoder, own_decoder(
            config.decoder, shape, num_latents, config.num_categories, num_params
        )
    sizes = {"num_categories": config.num_categories, "num_params": num_params}
    given |= sizes | {"hidden": config.hidden[::-1]}
    return encoder, build_named("network", config.network, DECODERS, given)
