"""What compressed data take, beside what the model promises and what others need."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyro_dvae.codes import MAX_CODES, num_codes
from pyro_dvae.coding.baselines import baseline_sizes
from pyro_dvae.coding.container import WAYS, Way
from pyro_dvae.coding.encoder import Compressed
from pyro_dvae.evaluation import Inference, evaluate, found_posteriors
from pyro_dvae.evaluation.joint import Joint, evaluating

if TYPE_CHECKING:
    from pyro_dvae.vae import DiscreteVAE

_SAMPLES = 16
"""Draws per datum for the ELBO, where there are too many codes to sum over."""
_ROWS = 256


@dataclass(frozen=True)
class CodecReport:
    """Sizes of N data of P elements each, in bytes."""

    way: Way
    """How the codes were coded."""
    num_data: int
    """N."""
    num_elements: int
    """P."""
    size: int
    """All of the file."""
    header: int
    """The header and the checksums; the rest is of the entropy coder."""
    promised: dict[str, float | None]
    """Way -> -log2 p(x, z) of the most probable codes, -ELBO / log 2, or -log2 p(x), of all data;
    None where it is a sum over too many codes."""
    others: dict[str, int | None] = field(default_factory=dict)
    """Name of another compressor -> what it makes of the same values; None if it is not there."""

    @property
    def excess(self) -> float | None:
        """By which share the file is larger than its way promises."""
        promised = self.promised[self.way]
        return None if promised is None else self.size / promised - 1

    def bits_per_dimension(self, size: float) -> float:
        """8 size / (N P).

        Args:
            size: in bytes.
        """
        return 8 * size / (self.num_data * self.num_elements)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {**asdict(self), "excess": self.excess}


def codec_report(
    vae: DiscreteVAE,
    found: Compressed,
    x: Any,
    *,
    is_image: bool = False,
    refine: int | None = None,
) -> CodecReport:
    """Compare compressed data with what the model promises, and with other compressors.

    The promises are computed anew, by the functions that evaluate a model.

    Args:
        vae: the model.
        found: the compressed data.
        x: (N, *event_shape), the same data as the likelihood takes them: a tensor, or what serves
            rows by slices. All of them must fit into memory.
        is_image: whether a datum is an image.
        refine: sweeps of coordinate ascent for the most probable codes, as of `compress`.
    """
    shape = found.header.shape
    x = torch.cat([x[i : i + _ROWS].cpu() for i in range(0, len(x), _ROWS)])
    return CodecReport(
        found.header.way,
        shape[0],
        int(np.prod(shape[1:])),
        len(found.content),
        len(found.content) - -(-found.bits // 8),
        promised_sizes(vae, x, refine=refine),
        baseline_sizes(x.long().numpy(), is_image=is_image),
    )


def promised_sizes(
    vae: DiscreteVAE, x: Tensor, *, refine: int | None = None
) -> dict[str, float | None]:
    """Way of coding -> the bytes that a model promises for data.

    Args:
        vae: the model.
        x: (N, *event_shape), what the likelihood takes.
        refine: sweeps of coordinate ascent for the most probable codes, as of `compress`.
    """
    x = x.to(next(vae.parameters()))
    figures = evaluate(vae, x, num_samples=_SAMPLES)
    per_way = {
        "code": _log_joint(vae, x, refine) / len(x),
        "bits-back": figures.elbo,
        "exact": figures.log_marginal,
    }
    in_bytes = len(x) / (8 * math.log(2))
    return {way: None if (f := per_way[way]) is None else -f * in_bytes for way in WAYS}


def _log_joint(vae: DiscreteVAE, x: Tensor, refine: int | None) -> float:
    """sum_n log p(x_n, z_n) in nats, of the most probable codes."""
    code = vae.prior_codes().event_shape
    few = num_codes(*code) <= MAX_CODES
    inference = (
        Inference("exact") if few else None if refine is None else Inference("refined", refine)
    )
    codes = torch.cat([each.mode() for each in found_posteriors(vae, x, None, inference)])
    total = 0.0
    with evaluating(vae):
        joint = Joint(vae, x)
        for start in range(0, len(x), _ROWS):
            some = slice(start, start + _ROWS)
            prior, likelihood = joint.drawn(x[some], None, codes[some, None])
            total += float((prior + likelihood).sum())
    return total
