"""The parts of a model by their names on the command line, `name` or `name:argument`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from pyro_dvae.checks import one_of
from pyro_dvae.guides import AutoregressiveGuide, MeanFieldGuide
from pyro_dvae.likelihoods import Likelihood
from pyro_dvae.likelihoods.names import is_own, named, named_likelihood
from pyro_dvae.networks.convolution import WIDTH, ConvDecoder, ConvEncoder
from pyro_dvae.networks.mlp import MLPDecoder, MLPEncoder
from pyro_dvae.networks.plugins import own_decoder, own_encoder, own_likelihood
from pyro_dvae.priors import (
    AutoregressivePrior,
    BoltzmannPrior,
    ConditionalPrior,
    HierarchicalPrior,
    LearnedPrior,
    MixturePrior,
    UniformPrior,
    VampPrior,
)
from pyro_dvae.specs import name_and_argument, no_argument, whole

if TYPE_CHECKING:
    from pyro_dvae.runs.config import Config

Shape = tuple[int, ...]
Builder = Callable[[str | None, "Config", Shape], Any]
"""(argument, settings, shape of a datum) -> module; a wrong argument is a ValueError."""


class Networks(NamedTuple):
    """How to build an encoder and a decoder."""

    encoder: Callable[[str | None, Config, Shape, int], nn.Module]
    """(argument, settings, event shape, C): a network (B, *event) -> (B, D, C)."""
    decoder: Callable[[str | None, Config, Shape, int], nn.Module]
    """(argument, settings, event shape, parameters an element): a network from (..., D, K)."""


def check_part(what: str, spec: str, table: dict[str, Any]) -> None:
    """Raise a ValueError unless the spec's name is in the table."""
    one_of(what, name_and_argument(spec)[0], table)


def build_part(
    what: str, spec: str, table: dict[str, Builder], config: Config, shape: Shape
) -> Any:
    """The module that a spec names.

    Raises:
        ValueError: an unknown name, or an argument that it does not take.
    """
    name, argument = name_and_argument(spec)
    one_of(what, name, table)
    return table[name](argument, config, shape)


def _plain(name: str, build: Callable[[Config, Shape], nn.Module]) -> Builder:
    def builder(argument: str | None, config: Config, shape: Shape) -> nn.Module:
        no_argument(name, argument)
        return build(config, shape)

    return builder


def _sized(name: str, default: int, build: Callable[[Config, Shape, int], nn.Module]) -> Builder:
    def builder(argument: str | None, config: Config, shape: Shape) -> nn.Module:
        return build(config, shape, whole(name, argument, default))

    return builder


def _code(config: Config) -> tuple[int, int]:
    return config.num_latents, config.num_categories


def _hierarchical(argument: str | None, config: Config, shape: Shape) -> nn.Module:
    size = re.fullmatch(r"(\d{1,4})x(\d{1,4})", "2x8" if argument is None else argument)
    if size is None:
        raise ValueError(
            f"Expected DxK of the upper layer after hierarchical:; got {argument!r}. Use "
            "hierarchical:4x8, say."
        )
    return HierarchicalPrior(*_code(config), (int(size[1]), int(size[2])))


def _conditional(config: Config, shape: Shape, width: int) -> nn.Module:
    if config.num_classes < 2:
        raise ValueError(
            "Expected labels of at least 2 classes for the conditional prior; got "
            f"{config.num_classes}. Use data with labels, or another prior."
        )
    return ConditionalPrior(*_code(config), config.num_classes, width)


def _vamp(config: Config, shape: Shape, num_components: int) -> nn.Module:
    kind = likelihood_by_name(config.likelihood, shape).kind
    bounded = kind in ("bits", "unit", "open", "levels")  # what the encoder sees is in [0, 1]
    return VampPrior(num_components, shape, bounded=bounded)


PRIORS: dict[str, Builder] = {
    "uniform": _plain("uniform", lambda config, _: UniformPrior(*_code(config))),
    "autoregressive": _sized(
        "autoregressive", 64, lambda config, _, width: AutoregressivePrior(*_code(config), width)
    ),
    "learned": _plain("learned", lambda config, _: LearnedPrior(*_code(config))),
    "mixture": _sized("mixture", 20, lambda config, _, num: MixturePrior(*_code(config), num)),
    "vamp": _sized("vamp", 50, _vamp),
    "hierarchical": _hierarchical,
    "conditional": _sized("conditional", 64, _conditional),
    "boltzmann": _plain("boltzmann", lambda config, _: BoltzmannPrior(*_code(config))),
    "rbm": _plain("rbm", lambda config, _: BoltzmannPrior(*_code(config), "bipartite")),
}

GUIDES: dict[str, Builder] = {
    "mean-field": _plain("mean-field", lambda config, _: MeanFieldGuide()),
    "autoregressive": _sized(
        "autoregressive",
        64,
        lambda config, _, width: AutoregressiveGuide(*_code(config), width),
    ),
}


def _mlp_encoder(argument: str | None, config: Config, shape: Shape, num_outputs: int) -> nn.Module:
    no_argument("mlp", argument)
    return MLPEncoder(shape, config.num_latents, num_outputs, config.hidden)


def _mlp_decoder(argument: str | None, config: Config, shape: Shape, num_params: int) -> nn.Module:
    return MLPDecoder(shape, *_code(config), config.hidden[::-1], num_params)


def _conv(name: str, grid: bool) -> Networks:
    def encoder(argument: str | None, config: Config, shape: Shape, outputs: int) -> nn.Module:
        width = whole(name, argument, WIDTH)
        return ConvEncoder(shape, config.num_latents, outputs, width, grid)

    def decoder(argument: str | None, config: Config, shape: Shape, params: int) -> nn.Module:
        return ConvDecoder(shape, *_code(config), whole(name, argument, WIDTH), params, grid)

    return Networks(encoder, decoder)


NETWORKS: dict[str, Networks] = {
    "mlp": Networks(_mlp_encoder, _mlp_decoder),
    "conv": _conv("conv", grid=False),
    "conv-grid": _conv("conv-grid", grid=True),
}


def check_likelihood(spec: str) -> None:
    """Raise a ValueError unless this names a likelihood of ours, or reads `module:factory`."""
    if not is_own(spec):
        named(spec)


def likelihood_by_name(spec: str, shape: Shape) -> Likelihood:
    """The likelihood that a name stands for: the user's own where it is `module:factory`.

    Args:
        spec: `name`, `name:argument` or `module:factory`.
        shape: of a datum.

    Raises:
        ValueError: an unknown name or argument; or see `plugins`.
    """
    return own_likelihood(spec, shape) if is_own(spec) else named_likelihood(spec, shape)


def build_networks(
    config: Config, shape: Shape, num_outputs: int, num_params: int
) -> tuple[nn.Module, nn.Module]:
    """Encoder and decoder: the user's own where the config names one, else the network's.

    Args:
        config: the settings.
        shape: of a datum.
        num_outputs: C, what the guide needs for each latent.
        num_params: what the likelihood needs for each element of a datum.

    Raises:
        ValueError: see `plugins`; or the network does not fit the data.
    """
    name, argument = name_and_argument(config.network)
    ours, code = NETWORKS[name], _code(config)
    if config.encoder is None:
        encoder = ours.encoder(argument, config, shape, num_outputs)
    else:
        encoder = own_encoder(config.encoder, shape, config.num_latents, num_outputs)
    if config.decoder is None:
        return encoder, ours.decoder(argument, config, shape, num_params)
    return encoder, own_decoder(config.decoder, shape, *code, num_params)
