"""`pdvae score`: how much each datum surprises the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyro_dvae.defaults import ANOMALY_SCORE

from .errors import fail, user_errors
from .explain import explained
from .figures import datum_name
from .figures import values as described
from .options import (
    Device,
    DeviceOption,
    ForceOption,
    JsonOption,
    KeyOption,
    PosteriorOf,
    PosteriorOption,
    RefineOption,
    RunArgument,
    RunDataDirOption,
    RunDataOption,
    RunSeedOption,
    TrustOption,
)
from .processes import is_first
from .ranking import Bound, By, RankedScores, ScoreRow, ranked_scores
from .rows import (
    asked_posterior,
    failed_writes,
    file_for,
    open_run,
    refuse_too_many_codes,
    weights_of,
)

if TYPE_CHECKING:
    from pyro_dvae import Run
    from pyro_dvae.evaluation import Inference
    from pyro_dvae.runs import PreparedRows

_EXPLAINED = 10
"""The number of columns or pixels that are shown, where the user names no number."""
_SHOWN = 20
"""The number of data that are shown, where the user names no number and no file."""


ByOption = Annotated[
    By | None,
    typer.Option(
        "--by",
        help="The score: log-prob is log p(x), ratio its difference to independent columns or "
        "pixels, conditional the sum of log p(element | all others), excess log p(x|z) beside that "
        "of the model's own draws, typicality the distance from the log p(x) of validation data. "
        f"If left out: {ANOMALY_SCORE}, which did best in examples/anomaly.py; but ratio was much "
        "better on digits.",
        show_default=False,
    ),
]
BoundOption = Annotated[
    Bound | None,
    typer.Option(
        help="Score by log p(x), computed so: the ELBO, the tighter importance-weighted bound, or "
        "the exact sum over all codes.",
        show_default=False,
    ),
]
ExplainOption = Annotated[
    int | None,
    typer.Option(
        metavar="ROW",
        help="Say which columns or pixels of one datum surprise most, given all its others. ROW is "
        "its number in the column row of the scores, or its index if there is no such column.",
        min=0,
        show_default=False,
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
    typer.Option(
        "--output",
        "-o",
        help="A .csv file to write, with the score of each datum. With --explain: with the "
        "surprise of each column or pixel; or a .png file with a map of an image.",
    ),
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
    by: ByOption = None,
    bound: BoundOption = None,
    explain: ExplainOption = None,
    iw_samples: IwSamplesOption = 100,
    posterior: PosteriorOption = None,
    refine: RefineOption = None,
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
    data that are scored, and its row those of the file of the run, both from 0. With --refine or
    --posterior, the score is the ELBO, or the bound, of a better q(z|x) than the encoder's.

    Example: pdvae score runs/mnist-d4k8-snapshot-1 --by ratio -o scores.csv
    """
    _check(by, bound, explain, output, force)
    with user_errors():
        loaded, _ = open_run(run, device, trust_code)
        if bound is Bound.exact:
            refuse_too_many_codes(loaded.config, "--bound exact", "Use --bound importance.")
        rows = loaded.rows(data, data_dir=data_dir, key=key, labelled=True)
        draws = loaded.config.seed if seed is None else seed
        bound, inference = _inference(loaded, by, bound, explain, posterior, refine, draws)
        if explain is not None:
            if not is_first():  # one datum needs one process
                return
            explained(loaded, rows, explain, output, top or _EXPLAINED, draws, as_json)
            return
        scores = ranked_scores(loaded, rows, by, bound, iw_samples, draws, data_dir, inference)
    if not is_first():  # which prints and writes them
        return
    if output is not None:
        with failed_writes():
            from pyro_dvae.runs.tables import write_csv

            write_csv(output, scores.header, scores.ranked(len(scores.values)))
    shown = list(scores.ranked(top or (_SHOWN if output is None else 0)))
    if as_json:
        print(json.dumps(_content(loaded, rows, scores, bound, iw_samples, shown)))
        return
    print(f"{'' if output is None else f'{output}: '}{_line(loaded, rows, scores, draws)}")
    _print(scores.header, shown)


def _check(
    by: By | None, bound: Bound | None, explain: int | None, output: Path | None, force: bool
) -> None:
    if by is not None and bound is not None:
        fail(
            f"Expected --by or --bound; got --by {by.value} --bound {bound.value}. Leave one of "
            "them out."
        )
    if explain is not None and (by or bound):
        fail("Expected --explain alone, which needs no score; got --by or --bound. Leave it out.")
    if output is not None:
        file_for(output, (".csv",) if explain is None else (".csv", ".png"), force)


def _inference(
    run: Run,
    by: By | None,
    bound: Bound | None,
    explain: int | None,
    posterior: PosteriorOf | None,
    refine: int | None,
    seed: int,
) -> tuple[Bound | None, Inference | None]:
    """The bound to score by, and how its q(z|x) is found; None for the guide's."""
    if posterior is None and refine is None:
        return bound, None
    if explain is not None:
        fail("Expected --explain without --posterior and --refine; got one. Leave it out.")
    if by is not None or bound is Bound.exact:
        given = f"--by {by.value}" if by is not None else "--bound exact"
        fail(
            "Expected --bound elbo or --bound importance with --posterior or --refine; got "
            f"{given}, which does not take them. Leave it out."
        )
    return bound or Bound.elbo, asked_posterior(run.config, posterior, refine, seed)


def _line(run: Run, rows: PreparedRows, scores: RankedScores, seed: int) -> str:
    mean, error = scores.mean()
    datum = datum_name(run.event_shape)
    how = f"seed {seed}"
    if scores.bound:
        how = "exact" if error is None else f"± {error:.2g}, {how}"
    return (
        f"{scores.bound or f'{scores.by} score'} of {len(scores.values)} {datum}s of {rows.name}, "
        f"mean {mean:.2f} nats/{datum} ({how}; {described(run.config)}); {weights_of(run)}"
    )


def _content(
    run: Run,
    rows: PreparedRows,
    scores: RankedScores,
    bound: Bound | None,
    iw_samples: int,
    shown: list[ScoreRow],
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
        "by": scores.by,
        "bound": None if bound is None else bound.value,
        "importance_samples": iw_samples if bound is Bound.importance else None,
        "mean": mean,
        "standard_error": error,
        "scores": [dict(zip(scores.header, row, strict=True)) for row in shown],
    }


def _print(header: list[str], shown: list[ScoreRow]) -> None:
    if shown:
        print(" ".join(f"{column:>14}" for column in header))
    for row in shown:
        print(" ".join(f"{x:14.3f}" if isinstance(x, float) else f"{x:>14}" for x in row))
