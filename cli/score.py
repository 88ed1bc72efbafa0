"""`pdvae score`: how much each datum surprises the model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .errors import user_errors
from .options import (
    Device,
    DeviceOption,
    ForceOption,
    JsonOption,
    KeyOption,
    RunArgument,
    RunDataDirOption,
    RunDataOption,
    RunSeedOption,
    TrustOption,
)
from .report import datum_name
from .report import values as described
from .rows import failed_writes, file_for, open_run, refuse_too_many_codes, weights_of

if TYPE_CHECKING:
    from torch import Tensor

    from pyro_dvae import Run
    from pyro_dvae.runs import PreparedRows

_BLOCK = 256
"""The number of data that are scored at once."""
_SHOWN = 20
"""The number of data that are shown, where the user names no number and no file."""
_LISTED = 2**14
"""The number of figures that are Python numbers at a time. They take five times the memory of a
tensor."""


class Bound(str, Enum):
    """What to score by."""

    elbo = "elbo"
    importance = "importance"
    exact = "exact"


BoundOption = Annotated[
    Bound,
    typer.Option(
        help="What to score by: the ELBO, the tighter importance-weighted bound, or the exact "
        "log p(x)."
    ),
]
IwSamplesOption = Annotated[
    int,
    typer.Option(
        help="k, the number of codes drawn per datum for the importance-weighted bound.", min=2
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="A .csv file to write, with the score of each datum."),
]
TopOption = Annotated[
    int | None,
    typer.Option(
        help=f"The number of data to show. If left out: {_SHOWN}, or none if -o is given.",
        min=1,
        show_default=False,
    ),
]


def score(
    run: RunArgument = None,
    data: RunDataOption = "test",
    bound: BoundOption = Bound.elbo,
    iw_samples: IwSamplesOption = 100,
    output: OutputOption = None,
    top: TopOption = None,
    data_dir: RunDataDirOption = None,
    key: KeyOption = None,
    seed: RunSeedOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Score data in nats, for anomaly detection.

    The datum with the lowest score comes first. It surprises the model most. Its index counts the
    data that are scored, and its row those of the file of the run, both from 0.

    Example: pdvae score runs/mnist-d4k8-rloo-1 --bound importance -o scores.csv
    """
    if output is not None:
        file_for(output, (".csv",), force)
    with user_errors():
        loaded, _ = open_run(run, device, trust_code)
        if bound is Bound.exact:
            refuse_too_many_codes(loaded.config, "--bound exact", "Use --bound importance.")
        rows = loaded.rows(data, data_dir=data_dir, key=key, labelled=True)
        draws = loaded.config.seed if seed is None else seed
        scores = _scored(loaded, rows, bound, iw_samples, draws)
    if output is not None:
        with failed_writes():
            from pyro_dvae.runs.tables import write_csv

            write_csv(output, scores.header, scores.ranked(len(scores.values)))
    shown = list(scores.ranked(top or (_SHOWN if output is None else 0)))
    if as_json:
        print(json.dumps(_content(loaded, rows, scores, bound, iw_samples, shown)))
        return
    mean, error = scores.mean()
    name = {"elbo": "ELBO", "importance": f"bound({iw_samples})", "exact": "log p(x)"}[bound.value]
    datum = datum_name(loaded.event_shape)
    how = "exact" if error is None else f"± {error:.2g}, seed {draws}"
    print(
        f"{'' if output is None else f'{output}: '}{name} of {len(scores.values)} {datum}s of "
        f"{rows.name}, mean {mean:.2f} nats/{datum} ({how}; {described(loaded.config)}"
        f"); {weights_of(loaded)}"
    )
    _print(scores.header, shown)


_Row = list[int | float | str]


def _content(
    run: Run, rows: PreparedRows, scores: _Scores, bound: Bound, iw_samples: int, shown: list[_Row]
) -> dict[str, Any]:
    mean, error = scores.mean()
    return {
        "run": str(run.folder),
        "epoch": run.epoch,
        "version": run.version,
        "data": rows.name,
        "binarize": run.config.binarize,
        "likelihood": run.config.likelihood,
        "num_data": len(scores.values),
        "bound": bound.value,
        "importance_samples": iw_samples if bound is Bound.importance else None,
        "mean": mean,
        "standard_error": error,
        "scores": [dict(zip(scores.header, row, strict=True)) for row in shown],
    }


def _print(header: list[str], shown: list[_Row]) -> None:
    if shown:
        print(" ".join(f"{column:>14}" for column in header))
    for row in shown:
        print(" ".join(f"{x:14.3f}" if isinstance(x, float) else f"{x:>14}" for x in row))


class _Scores(NamedTuple):
    """A score per datum."""

    beside: Mapping[str, Tensor | Sequence[str]]
    """Columns that say which datum each is: name -> (N,)."""
    values: Tensor
    """(N,) nats."""
    variances: Tensor | None
    """(N,) over the draws; None where nothing is drawn."""
    prior_error: float
    """Standard error of log Z, which moves all scores alike; 0 where log Z is known."""

    @property
    def header(self) -> list[str]:
        error = [] if self.variances is None else ["standard_error"]
        return ["rank", "index", *self.beside, "score", *error]

    def ranked(self, num: int) -> Iterator[_Row]:
        """The rows of the `num` lowest scores, the lowest first."""
        order = self.values.argsort(stable=True)[:num]
        errors = [] if self.variances is None else [self.variances.sqrt()]
        known = [*self.beside.values(), self.values, *errors]
        rank = 0
        for some in order.split(_LISTED):
            columns = [some.tolist(), *(_at(some, column) for column in known)]
            for row in zip(*columns, strict=True):
                rank += 1
                yield [rank, *row]

    def mean(self) -> tuple[float, float | None]:
        """The mean, and its standard error over the draws and of log Z; None where it is exact."""
        mean = self.values.mean().item()
        if self.variances is None:
            return mean, self.prior_error or None
        error = self.variances.sum().sqrt().item() / len(self.values)
        return mean, math.hypot(error, self.prior_error)


def _scored(run: Run, rows: PreparedRows, bound: Bound, iw_samples: int, seed: int) -> _Scores:
    from pyro_dvae.runs import beside, score_rows

    scores = score_rows(
        run.vae, run.config, rows, bound.value, importance_samples=iw_samples, seed=seed
    )
    return _Scores(beside(run.data, rows), *scores)


def _at(index: Tensor, column: Tensor | Sequence[str]) -> list[Any]:
    import torch

    if isinstance(column, torch.Tensor):
        return column[index].tolist()
    return [column[i] for i in index.tolist()]
