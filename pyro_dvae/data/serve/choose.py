"""How data are prepared where the user does not say it, and whether other data fit that."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from pyro_dvae.checks import one_of
from pyro_dvae.data.read.errors import DataError
from pyro_dvae.data.read.extent import Extent, extent
from pyro_dvae.data.read.rows import Rows
from pyro_dvae.data.serve.kinds import MOST_LEVELS, kind_of
from pyro_dvae.data.serve.prepare import POLICIES, Preparation, refuse_binarisation
from pyro_dvae.data.serve.ranges import RangeError, is_dark, usual_range
from pyro_dvae.likelihoods.names import is_masked, masked, unmasked
from pyro_dvae.specs import name_and_argument


def choose(
    found: Extent,
    binarize: str | None = None,
    range: tuple[float, float] | None = None,
    likelihood: str | nn.Module = "bernoulli",
) -> Preparation:
    """Decide how training data are prepared, where the user does not.

    Args:
        found: What the training data are.
        binarize: The policy asked for. None: ``"none"`` for data that are all 0 or 1 and have
            no range, and for any likelihood that takes no bits; else ``"dynamic"``.
        range: The range asked for.
        likelihood: That of the model; or its name, or ``name:argument``. For ``"categorical"``
            alone, also after ``masked:``, the number of levels L is 256 for uint8 values, else one
            more than the greatest value. For ``"categorical:L"``, uint8 values of L and above are
            cut into L levels by the range (0, 256): v becomes L v // 256.

    Raises:
        DataError: If the data do not fit that, or need no policy and one was asked for.
        ValueError: If there is no such policy, range or likelihood.
    """
    if kind_of(likelihood) != "bits":
        preparation = Preparation(binarize or "none", range, likelihood)
        if binarize == "dynamic":
            refuse_binarisation(preparation.name, binarize)
        preparation = _with_levels(preparation, found)
        preparation.check(found)
        _refuse_dark(preparation, found)
        return preparation
    bits = found.is_binary and range is None
    if bits and binarize not in (None, "none"):
        one_of("binarisation", str(binarize), POLICIES)
        raise DataError(
            f"Expected no binarisation of zeros and ones; got {found} and {binarize}. Leave "
            "binarize=... out, or use range=(0, 255) if they are very dark grey."
        )
    preparation = Preparation(binarize or ("none" if bits else "dynamic"), range, likelihood)
    preparation.check(found)
    _refuse_dark(preparation, found)
    return preparation


def _refuse_dark(preparation: Preparation, found: Extent) -> None:
    is_grey = preparation.makes_bits or preparation.values.grey is not None
    if is_grey and preparation.range is None and is_dark(found):
        low, high = usual_range(found)
        usual: tuple[float, float] = 0, 255
        if not (preparation.makes_bits or preparation.values.is_closed):
            low, high, usual = low - 0.5, high + 0.5, (-0.5, 255.5)  # 0 and 1 are no such values
        raise RangeError(
            f"Expected uint8 values of up to 255, which are read as brightness; got {found}, which "
            f"would all be dark. Use range=({low}, {high}), the values that stand for 0 and 1; "
            f"or range={usual} if the data are so dark.",
            (low, high),
        )


def _with_levels(asked: Preparation, found: Extent) -> Preparation:
    if not isinstance(asked.likelihood, str):
        return asked
    is_uint8 = found.dtype == torch.uint8
    name, argument = name_and_argument(unmasked(asked.likelihood))
    if name not in ("categorical", "ordinal"):
        return asked
    if not argument:
        is_counted = 0 < found.high < MOST_LEVELS and (not is_uint8 or name == "ordinal")
        levels = max(2, int(found.high) + 1) if is_counted else 256
        spec = f"{name}:{levels}"
        return replace(asked, likelihood=masked(spec) if is_masked(asked.likelihood) else spec)
    if is_uint8 and asked.range is None and found.high > asked.values.high:
        return replace(asked, range=(0.0, 256.0))
    return asked


def refuse_unlike(what: str, rows: Rows, like: Rows, preparation: Preparation) -> None:
    """Refuse data that are not of one kind with the training data.

    Args:
        what: The data, for messages.
        rows: The data.
        like: The training data.
        preparation: What is done to both.

    Raises:
        DataError: If the shape is another one, if only one of both is uint8 or bool, or if the
            values are outside the range.
    """
    kinds = [f"{other.dtype} of shape {(len(other), *other.event_shape)}" for other in (rows, like)]
    grey_or_bits = {rows.dtype, like.dtype} & {torch.uint8, torch.bool}
    if rows.event_shape != like.event_shape or (rows.dtype != like.dtype and grey_or_bits):
        raise DataError(
            f"Expected {what} like the training data, {kinds[1]}; got {kinds[0]}. Make them agree."
        )
    found = extent(rows)
    preparation.check(found)
    if (
        preparation.makes_bits
        and found.is_binary
        and preparation.binarize != "none"
        and preparation.range is None
    ):
        raise DataError(
            f"Expected {what} like the training data, uint8 values 0 to 255; got {found}. Make "
            "them agree, or use range=(0, 255) if they are very dark grey."
        )
