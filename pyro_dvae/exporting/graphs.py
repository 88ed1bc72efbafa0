"""The graphs of a model: encoder and decoder, and the prior where it is no table of logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor, nn

from pyro_dvae.codes import code_logits
from pyro_dvae.sequences import SequentialCodes, conditional_logits
from pyro_dvae.streams import RandomStream
from pyro_dvae.vae import DiscreteVAE

SIZES = (1, 2, 7)
"""The batch sizes that a graph is checked with. It is traced with the last one."""


class Graph(NamedTuple):
    """A function of tensors, to be exported, and what it must give."""

    name: str
    """ "encoder", "decoder" or "prior"."""
    module: nn.Module
    inputs: dict[str, Tensor]
    """Name -> an example, whose first dimension is the batch."""
    output: str
    expected: Callable[..., Tensor]
    """What the run itself computes of the inputs, without the exported module."""


def graphs_of(vae: DiscreteVAE) -> list[Graph]:
    """The graphs of a model on the CPU, in eval mode.

    Args:
        vae: the model.

    Raises:
        ValueError: the guide has no logits that one graph could give.
    """
    x, codes, labels = _examples(vae)
    with torch.no_grad():
        q = vae.posterior(x)
    if code_logits(q) is None and not isinstance(q, SequentialCodes):
        raise ValueError(
            "Expected a guide whose latents are independent, or each given those before it; got "
            f"{type(vae.posterior_family).__name__}, which gives {type(q).__name__}. Train a "
            'guide with guide="mean-field" to export it.'
        )
    seen = {"x": x} if code_logits(q) is not None else {"x": x, "code": codes}
    graphs = [
        Graph(
            "encoder", _Encoder(vae), seen, "logits", lambda x, *z: _logits(vae.posterior(x), *z)
        ),
        Graph("decoder", _Decoder(vae), {"code": codes}, "params", lambda z: vae.decoder(z)),
    ]
    if has_prior_graph(vae):
        given = {"code": codes} if labels is None else {"code": codes, "labels": labels}
        graphs.append(
            Graph(
                "prior",
                _Prior(vae),
                given,
                "logits",
                lambda z, *y: _logits(vae.prior_codes(*y), z),
            )
        )
    return graphs


def has_prior_graph(vae: DiscreteVAE) -> bool:
    """Whether the latents of p(z) depend on those before them: then a graph gives their logits."""
    labels = torch.zeros(1, dtype=torch.int64, device="cpu") if vae.takes_labels else None
    with torch.no_grad():
        return isinstance(vae.prior_codes(labels), SequentialCodes)


@torch.no_grad()
def _examples(vae: DiscreteVAE) -> tuple[Tensor, Tensor, Tensor | None]:
    """Data, codes and labels, drawn from the model itself: the data of the run are not needed."""
    number = max(SIZES)
    labels = None
    if vae.takes_labels:
        labels = torch.arange(number, device="cpu") % vae.prior.num_classes
    with RandomStream(0):
        codes = vae.sample_codes(number, labels)
        x = vae.decode(codes).sample()
        if vae.likelihood.takes_missing:
            x = x.masked_fill(torch.rand(x.shape, device="cpu") < 0.2, torch.nan)
    return x, codes, labels


def _logits(codes: TorchDistribution, prefix: Tensor | None = None) -> Tensor:
    """Log q(z_d = k), (N, D, K); for sequential codes each latent given those before it.

    Args:
        codes: factorised codes, or sequential ones.
        prefix: (N, D, K) one-hot codes z, for sequential ones. Latent d sees z_1 ... z_{d-1}.
    """
    if prefix is None:
        logits = code_logits(codes)
        assert logits is not None
        return logits.log_softmax(-1)
    num_latents, num_categories = codes.event_shape
    shape = (prefix.shape[0], num_categories)
    rows = (conditional_logits(codes, prefix[:, :d]) for d in range(num_latents))
    return torch.stack([row.expand(shape) for row in rows], 1).log_softmax(-1)


class _Encoder(nn.Module):
    """x (and a code) -> log q(z|x), (N, D, K)."""

    def __init__(self, vae: DiscreteVAE) -> None:
        super().__init__()
        self.encoder, self.likelihood = vae.encoder, vae.likelihood
        self.posterior_family = vae.posterior_family

    def forward(self, x: Tensor, code: Tensor | None = None) -> Tensor:
        return _logits(self.posterior_family(self.encoder(self.likelihood.features(x))), code)


class _Decoder(nn.Module):
    """code -> parameters of the likelihood."""

    def __init__(self, vae: DiscreteVAE) -> None:
        super().__init__()
        self.decoder = vae.decoder

    def forward(self, code: Tensor) -> Any:
        return self.decoder(code)


class _Prior(nn.Module):
    """code (and labels) -> log p(z_d | z_1 ... z_{d-1}), (N, D, K)."""

    def __init__(self, vae: DiscreteVAE) -> None:
        super().__init__()
        self.prior = vae.prior
        if vae.prior.takes == "posterior":
            self.encoder, self.posterior_family = vae.encoder, vae.posterior_family

    def forward(self, code: Tensor, labels: Tensor | None = None) -> Tensor:
        if self.prior.takes == "posterior":
            return _logits(self.prior(lambda u: self.posterior_family(self.encoder(u))), code)
        return _logits(self.prior() if labels is None else self.prior(labels), code)
