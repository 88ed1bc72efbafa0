"""The trial of a network on two rows, whose failures are told in the user's terms."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pyro_dvae.streams import RandomStream

Shape = tuple[int, ...]


class Part(NamedTuple):
    """A network, in words."""

    kind: str
    """encoder or decoder."""
    name: str
    """module:factory, or the name of its class."""
    settings: dict[str, Any]
    """What it is sized by: what the factory gets, or what the other parts say."""
    output: str = ""
    """The dimensions that its output should have."""
    sized_by: str = "Size it by what the factory gets"

    def __str__(self) -> str:
        return f"the {self.kind} {self.name}"


def try_network(
    part: Part, network: nn.Module, inputs: dict[str, Tensor], event_dim: int, out: Shape
) -> None:
    """Try a network of the user's own before it is trained: `try_rows`, and what training needs.

    Args:
        part: what messages call it.
        network: to be tried.
        inputs: what they are -> two rows of them.
        event_dim: dimensions of an input that belong to one row.
        out: shape of the output for one row.

    Raises:
        ValueError: nothing to train, NaN, infinity, a layer that mixes a batch, or what `try_rows`
            refuses.
    """
    if not any(weight.requires_grad for weight in network.parameters()):
        raise ValueError(
            f"Expected {part} to have parameters to train; got none that need gradients. Make its "
            "layers attributes of the module, or unfreeze them."
        )
    network.train()
    for name, layer in network.named_modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            raise ValueError(
                f"Expected {part} to treat each row by itself; got {type(layer).__name__} at "
                f"{name or 'its top'}, which mixes a batch. Use GroupNorm or LayerNorm."
            )
    network.eval()
    with torch.no_grad(), RandomStream(0):
        for what, rows in inputs.items():
            result = try_rows(part, network, what, rows, event_dim, out)
            if not result.isfinite().all():
                raise ValueError(
                    f"Expected {part} {_asked(part, what, rows, event_dim, out)}; got NaN or "
                    "infinity. Look at its first weights, and for divisions by zero."
                )
    network.train()


def try_rows(
    part: Part,
    network: Callable[[Tensor], Any],
    what: str,
    rows: Tensor,
    event_dim: int,
    out: Shape | None,
) -> Tensor:
    """Run a network on two rows, again, and on the first alone; in the mode that it is in.

    Args:
        part: what messages call it.
        network: to be tried.
        what: the rows are.
        rows: two rows, (2, ...).
        event_dim: dimensions of `rows` that belong to one row, or to one code.
        out: shape of the output for one row, or None for any.

    Returns:
        the output for both rows.

    Raises:
        ValueError: a wrong shape or type, an error, random results, or rows that are not treated
            each by itself.
    """
    result, again = (_run(part, network, what, rows, event_dim, out) for _ in range(2))
    if not _close(result, again):
        raise ValueError(
            f"Expected {part} to give one result for the same {what} in evaluation mode; "
            "got two. Leave out what is random there: if self.training."
        )
    alone = _run(part, network, what, rows[:1], event_dim, out)
    if result[:1].shape != alone.shape or not _close(result[:1], alone):
        raise ValueError(
            f"Expected {part} to treat each row by itself; got another result for the "
            f"first of two rows of {what} than for it alone. Do not mix the rows."
        )
    return result


def _asked(part: Part, what: str, rows: Tensor, event_dim: int, out: Shape | None) -> str:
    lead = tuple(rows.shape[: rows.dim() - event_dim])
    to = f"{lead + out}, {part.output}" if out is not None else part.output
    return f"to map {what} {tuple(rows.shape)}, {str(rows.dtype).removeprefix('torch.')}, to {to}"


def _run(
    part: Part,
    network: Callable[[Tensor], Any],
    what: str,
    rows: Tensor,
    event_dim: int,
    out: Shape | None,
) -> Tensor:
    lead = tuple(rows.shape[: rows.dim() - event_dim])
    asked = _asked(part, what, rows, event_dim, out)
    settings = ", ".join(f"{name}={value}" for name, value in part.settings.items())
    mend = f"{part.sized_by}: {settings}."
    if len(lead) > 1:
        mend = (
            "Flatten the leading dimensions, z.flatten(0, -3), and put them back at the end, "
            "x.unflatten(0, z.shape[:-2]); or flatten a code alone, nn.Flatten(-2)."
        )
    try:
        result = network(rows)
    except Exception as error:
        refuse(part, asked, error, mend)
    if not isinstance(result, Tensor):
        raise ValueError(
            f"Expected {part} {asked}; got {type(result).__name__}. Return one tensor."
        )
    if out is not None and tuple(result.shape) != lead + out:
        raise ValueError(f"Expected {part} {asked}; got {tuple(result.shape)}. {mend}")
    if not result.is_floating_point():
        raise ValueError(f"Expected {part} {asked}; got {result.dtype}. Return real numbers.")
    return result


def _close(first: Tensor, second: Tensor) -> bool:
    """Equal up to rounding, which differs between sizes of a batch; NaN and infinities alike."""
    precision = max(1e-4, 8 * torch.finfo(second.dtype).eps)
    size = second.nan_to_num(0, 0, 0).abs().max().item() if second.numel() else 0.0
    return torch.allclose(first, second, rtol=0, atol=precision * size, equal_nan=True)


def in_one_line(error: BaseException) -> str:
    """Name and message of an error."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")


def refuse(part: Part, asked: str, error: BaseException, mend: str = "Mend it.") -> NoReturn:
    """Say in one line what the user's code raised, and where.

    Raises:
        ValueError: always.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    raise ValueError(f"Expected {part} {asked}; got {in_one_line(error)}{place}. {mend}") from error


_NOT_THE_USERS = (
    "<",
    *(str(Path(str(module.__file__)).parent) for module in (importlib, torch)),
    str(Path(__file__).parents[1]),
)
