"""The trial of a network on two rows. What fails is told in the user's terms."""

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


class Subject(NamedTuple):
    """What is tried, in words for messages."""

    kind: str
    """ "encoder", "decoder", "likelihood", "prior", "guide" or "estimator"."""
    name: str
    """module:factory, or the name of its class."""
    settings: dict[str, Any]
    """The sizes that it must have: what its factory gets, or what the other parts have."""
    output: str = ""
    """The dimensions of its output, in words."""
    sized_by: str = "Size it by what the factory gets"

    def __str__(self) -> str:
        return f"the {self.kind} {self.name}"


class Trial(NamedTuple):
    """A network, and two rows to run it on."""

    subject: Subject
    network: Callable[[Tensor], Any]
    what: str
    """What the rows are: data, or codes."""
    rows: Tensor
    """(2, ...)."""
    event_dim: int
    """Number of the last dimensions of `rows` that belong to one datum, or to one code."""
    out: tuple[int, ...] | None
    """Shape of the output for one datum or code; None for any."""

    def run(self) -> Tensor:
        """Run the network on both rows, on both again, and on the first alone.

        The network stays in the mode, training or evaluation, that it is in.

        Returns:
            The output for both rows.

        Raises:
            ValueError: the network raises an error, its output has a wrong shape or type, it gives
                two results for the same rows, or one row changes what another one gives.
        """
        result, again = (self._output(self.rows) for _ in range(2))
        if not _close(result, again):
            raise ValueError(
                f"Expected {self.subject} to give one result for the same {self.what} in "
                "evaluation mode; got two. Leave out what is random there: if self.training."
            )
        alone = self._output(self.rows[:1])
        if result[:1].shape != alone.shape or not _close(result[:1], alone):
            raise ValueError(
                f"Expected {self.subject} to treat each row by itself; got another result for the "
                f"first of two rows of {self.what} than for it alone. Do not mix the rows."
            )
        return result

    def asked(self, rows: Tensor) -> str:
        """What the network must do, as it follows "Expected the encoder ..."."""
        out = self.subject.output
        if self.out is not None:
            out = f"{self._lead(rows) + self.out}, {out}"
        dtype = str(rows.dtype).removeprefix("torch.")
        return f"to map {self.what} {tuple(rows.shape)}, {dtype}, to {out}"

    def _lead(self, rows: Tensor) -> tuple[int, ...]:
        return tuple(rows.shape[: rows.dim() - self.event_dim])

    def _output(self, rows: Tensor) -> Tensor:
        subject, lead, asked = self.subject, self._lead(rows), self.asked(rows)
        settings = ", ".join(f"{name}={value}" for name, value in subject.settings.items())
        mend = f"{subject.sized_by}: {settings}."
        if len(lead) > 1:
            mend = (
                "Flatten the leading dimensions, z.flatten(0, -3), and put them back at the end, "
                "x.unflatten(0, z.shape[:-2]); or flatten a code alone, nn.Flatten(-2)."
            )
        try:
            result = self.network(rows)
        except Exception as error:
            refuse(subject, asked, error, mend)
        if not isinstance(result, Tensor):
            raise ValueError(
                f"Expected {subject} {asked}; got {type(result).__name__}. Return one tensor."
            )
        if self.out is not None and tuple(result.shape) != lead + self.out:
            raise ValueError(f"Expected {subject} {asked}; got {tuple(result.shape)}. {mend}")
        if not result.is_floating_point():
            raise ValueError(
                f"Expected {subject} {asked}; got {result.dtype}. Return real numbers."
            )
        return result


def try_network(
    subject: Subject,
    network: nn.Module,
    inputs: dict[str, Tensor],
    event_dim: int,
    out: tuple[int, ...],
) -> None:
    """Try a network of the user's own before it is trained.

    Args:
        subject: what messages call it.
        network: the network.
        inputs: what the rows are, "data" or "codes" -> two such rows.
        event_dim: number of the last dimensions of the rows that belong to one datum or code.
        out: shape of the output for one datum or code.

    Raises:
        ValueError: there is nothing to train, the network gives NaN or infinity, a layer mixes the
            rows of a batch, or a `Trial` fails.
    """
    if not any(weight.requires_grad for weight in network.parameters()):
        raise ValueError(
            f"Expected {subject} to have parameters to train; got none that need gradients. Make "
            "its layers attributes of the module, or unfreeze them."
        )
    network.train()
    for name, layer in network.named_modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            raise ValueError(
                f"Expected {subject} to treat each row by itself; got {type(layer).__name__} at "
                f"{name or 'its top'}, which mixes a batch. Use GroupNorm or LayerNorm."
            )
    network.eval()
    with torch.no_grad(), RandomStream(0):
        for what, rows in inputs.items():
            trial = Trial(subject, network, what, rows, event_dim, out)
            if not trial.run().isfinite().all():
                raise ValueError(
                    f"Expected {subject} {trial.asked(rows)}; got NaN or infinity. Look at its "
                    "first weights, and for divisions by zero."
                )
    network.train()


def _close(first: Tensor, second: Tensor) -> bool:
    """Whether two results are equal up to rounding, which differs between sizes of a batch.

    Numbers that cancel to almost 0 have an error of their own.

    NaN equals NaN, and infinity equals infinity.
    """
    precision = max(1e-4, 8 * torch.finfo(second.dtype).eps)
    size = second.nan_to_num(0, 0, 0).abs().max().item() if second.numel() else 0.0
    least = 64 * torch.finfo(second.dtype).eps
    return torch.allclose(first, second, rtol=0, atol=precision * size + least, equal_nan=True)


def in_one_line(error: BaseException) -> str:
    """Name and message of an error."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")


def refuse(subject: Subject, asked: str, error: BaseException, mend: str = "Mend it.") -> NoReturn:
    """Say in one line what the user's code raised, and where.

    Args:
        subject: what raised it.
        asked: what it was to do, such as "to be imported".
        error: what it raised.
        mend: what to do, as a sentence.

    Raises:
        ValueError: always.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    got = f"{in_one_line(error)}{place}"
    raise ValueError(f"Expected {subject} {asked}; got {got}. {mend}") from error


_NOT_THE_USERS = (
    "<",
    *(str(Path(str(module.__file__)).parent) for module in (importlib, torch)),
    str(Path(__file__).parents[1]),
)
