"""The settings that build a model anew, found from the model itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from pyro_dvae.codes import one_hot
from pyro_dvae.guides import GUIDES, AutoregressiveGuide
from pyro_dvae.likelihoods import LIKELIHOODS, Masked, Mixed
from pyro_dvae.networks import (
    DECODERS,
    ENCODERS,
    ConvDecoder,
    ConvEncoder,
    MLPDecoder,
    MLPEncoder,
)
from pyro_dvae.priors import (
    PRIORS,
    AutoregressivePrior,
    ConditionalPrior,
    HierarchicalPrior,
    MixturePrior,
    VampPrior,
)
from pyro_dvae.runs.config import Config, build_vae
from pyro_dvae.semi_supervised import SemiSupervisedVAE
from pyro_dvae.specs import Named
from pyro_dvae.streams import RandomStream
from pyro_dvae.vae import DiscreteVAE

_ARGUMENTS: dict[type[nn.Module], Callable[[Any], object]] = {
    AutoregressivePrior: lambda prior: prior.network.bias.shape[1],
    ConditionalPrior: lambda prior: prior.network.bias.shape[1],
    AutoregressiveGuide: lambda guide: guide.network.bias.shape[1],
    MixturePrior: lambda prior: len(prior.logits),
    VampPrior: lambda prior: len(prior.free),
    HierarchicalPrior: lambda prior: "x".join(map(str, prior.upper)),
    ConvEncoder: lambda encoder: encoder.layers[0].out_channels,
    ConvDecoder: lambda decoder: decoder.channels[-1],
}
"""Class -> what the text after the colon says of an instance. Any other class has an attribute of
the name of its keyword."""


def config_of(
    vae: DiscreteVAE, event_shape: Sequence[int], given: Mapping[str, Any]
) -> tuple[Config, dict[str, Tensor]]:
    """The settings that build this model, and its weights as the built model takes them.

    Args:
        vae: the model.
        event_shape: shape of a datum.
        given: settings that the user names, such as `encoder="module:factory"`; the others are
            found from the model.

    Raises:
        ValueError: a part of the model is none of the library's, and no setting names it; or the
            settings build another model.
    """
    shape = tuple(event_shape)
    classes = vae.prior.num_classes if vae.takes_labels else 0
    labels = torch.zeros(1, dtype=torch.int64, device=next(vae.parameters()).device)
    with torch.no_grad():
        code = vae.prior_codes(labels if vae.takes_labels else None).event_shape
    found: dict[str, Any] = {
        "num_latents": code[0],
        "num_categories": code[1],
        "num_classes": classes,
    }
    if isinstance(vae, SemiSupervisedVAE):
        found["alpha"] = vae.alpha
    found |= _network(vae, given)
    choices = {
        "prior": _specs("prior", vae.prior, PRIORS, given),
        "likelihood": _specs("likelihood", vae.likelihood, LIKELIHOODS, given),
        "guide": _specs("guide", vae.posterior_family, GUIDES, given),
        "network": found.pop("network", [given.get("network", Config.network)]),
    }
    wrong = ""
    for specs in product(*choices.values()):
        settings = {**found, **given, **dict(zip(choices, specs, strict=True))}
        config = Config(**settings)
        weights, wrong = _weights_in(vae, config, shape)
        if not wrong:
            return config, weights
    raise ValueError(wrong)


def _network(vae: DiscreteVAE, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the networks: which names they may have, and the widths of their layers."""
    network: MLPEncoder | MLPDecoder | Any
    if given.get("encoder") is None:
        part, network, table = "encoder", vae.encoder, ENCODERS
    elif given.get("decoder") is None:
        part, network, table = "decoder", vae.decoder, DECODERS
    else:
        return {}
    found: dict[str, Any] = {}
    if "network" not in given:
        found["network"] = _specs(part, network, table, {})
    if isinstance(network, (MLPEncoder, MLPDecoder)):
        sizes = [layer.out_features for layer in network.layers if isinstance(layer, nn.Linear)]
        found["hidden"] = tuple(sizes[:-1] if part == "encoder" else sizes[-2::-1])
        shares = [layer.p for layer in network.layers if isinstance(layer, nn.Dropout)]
        found["dropout"] = float(shares[0]) if shares else 0.0
    return found


def _specs(
    part: str, module: nn.Module, table: Mapping[str, Named], given: Mapping[str, Any]
) -> list[str]:
    """The names, with their arguments, that a part of the library's may have."""
    if given.get(part) is not None:
        return [given[part]]
    specs = []
    for name, row in table.items():
        if type(module) is row.cls:
            argument = _argument(module, row)
            specs.append(name if argument is None else f"{name}:{argument}")
    if not specs:
        raise ValueError(
            f"Expected parts of the library, or settings that name others; got the {part} "
            f"{type(module).__name__}. Pass {part}='module:factory', which names the code that "
            "builds it."
        )
    return specs


def _argument(module: nn.Module, row: Named) -> object:
    """What stands after the colon; None for nothing."""
    if isinstance(module, Masked):
        return _specs("likelihood", module.likelihood, LIKELIHOODS, {})[0]
    if isinstance(module, Mixed):
        kinds = (_specs("kind of column", block, LIKELIHOODS, {})[0] for block in module.blocks)
        return ",".join(
            kind if size == 1 else f"{kind}*{size}"
            for kind, size in zip(kinds, module.sizes, strict=True)
        )
    if row.argument is None:
        return None
    found = _ARGUMENTS.get(type(module))
    return getattr(module, row.argument) if found is None else found(module)


def _weights_in(
    vae: DiscreteVAE, config: Config, event_shape: tuple[int, ...]
) -> tuple[dict[str, Tensor], str]:
    """The weights as the model that the settings build takes them, and what differs in it.

    The second is empty where the two models are the same.
    """
    with RandomStream(config.seed):
        again = build_vae(config, event_shape)
    weight = next(vae.parameters())
    again.to(weight)
    again.eval()
    weights, sizes = dict(vae.state_dict()), again.state_dict()
    for name in [name for name in weights.keys() & sizes if name.startswith("likelihood.")]:
        its_own, other = weights[name], sizes[name]
        # Units that all elements share are those of each element.
        if its_own.shape == other.shape[other.dim() - its_own.dim() :]:
            weights[name] = its_own.expand_as(other).contiguous()
    for name, its_own in vae.named_children():
        other = dict(again.named_children())[name]
        part = "guide" if name == "posterior_family" else name
        shapes, others = (
            {key: value.shape for key, value in state.items() if key.startswith(f"{name}.")}
            for state in (weights, sizes)
        )
        if shapes != others:
            return weights, _message(part, its_own, other, "whose weights are of other sizes")
    again.load_state_dict(weights)
    with torch.no_grad():
        parts = {"prior": vae.prior, "encoder": vae.encoder, "decoder": vae.decoder}
        outputs = zip(_outputs(vae, config), _outputs(again, config), strict=True)
        for (part, its_own), (ours, theirs) in zip(parts.items(), outputs, strict=True):
            if not torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6, equal_nan=True):
                wrong = _message(part, its_own, its_own, "which computes something else")
                return weights, wrong
    return weights, ""


def _message(part: str, its_own: nn.Module, other: nn.Module, what: str) -> str:
    built = ""
    if type(other) is not type(its_own):
        built = f", in place of which they build {type(other).__name__}"
    return (
        f"Expected settings that build the model anew; got the {part} {type(its_own).__name__}"
        f"{built}, {what}. Pass the settings that built it, or {part}="
        "'module:factory', which names the code that does."
    )


def _outputs(vae: DiscreteVAE, config: Config) -> tuple[Tensor, Tensor, Tensor]:
    """What the prior, the encoder with its guide, and the decoder with its likelihood compute."""
    weight = next(vae.parameters())
    labels = None
    if vae.takes_labels:
        labels = torch.zeros(3, dtype=torch.int64, device=weight.device)
    index = torch.arange(3 * config.num_latents, device=weight.device).reshape(3, -1)
    z = one_hot(index % config.num_categories, config.num_categories, dtype=weight.dtype)
    modes = {module: module.training for module in vae.modules()}
    vae.eval()
    try:
        with RandomStream(0, weight.device):
            prior = vae.prior_codes(labels).log_prob(z)
            p = vae.decode(z)
            x = p.sample()
            posterior = vae.posterior(x).log_prob(z)
        return prior, posterior, torch.cat([p.log_prob(x), x.flatten()])
    finally:
        for module, mode in modes.items():
            module.training = mode
