"""`pdvae data`: a look at data before anything is trained on them."""

from __future__ import annotations

import csv
import io
import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import fail, user_errors
from .naming import with_options
from .options import (
    ChannelsOption,
    ColumnsOption,
    DataDirOption,
    DatesOption,
    DropOption,
    GroupOption,
    HeaderOption,
    IdsOption,
    JsonOption,
    KeyOption,
    LabelsOption,
    NominalOption,
    OtherOption,
    SizeOption,
    TimeOption,
)
from .reading import reading

if TYPE_CHECKING:
    from pyro_dvae.data import Fit, Scan


def data(
    path: Annotated[
        str,
        typer.Argument(
            help="A .npy, .npz, .csv, .tsv, .parquet or IDX file, a folder of images, or the name "
            "of a data set, such as mnist."
        ),
    ],
    data_dir: DataDirOption = None,
    key: KeyOption = None,
    columns: ColumnsOption = None,
    drop: DropOption = None,
    labels: LabelsOption = None,
    ids: IdsOption = None,
    group: GroupOption = None,
    time: TimeOption = None,
    nominal: NominalOption = None,
    dates: DatesOption = None,
    other: OtherOption = None,
    header: HeaderOption = None,
    size: SizeOption = None,
    channels: ChannelsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what data are, which likelihoods can model them, and the command that trains on them.

    All values are read. Their shape, type and range are printed, and what is missing, what occurs
    twice, and the classes.

    Example: pdvae data measurements.csv --labels species
    """
    options = reading(locals())
    with user_errors():
        from pyro_dvae.data import complaint, describe, found_among, open_source, scan, suggest

        source = open_source(path, data_dir=data_dir, **options)
        parts = {"train": source.train, "test": source.test}
        scans = {part: scan(rows) for part, rows in parts.items() if rows is not None}
        command = _command(path, data_dir, options, suggest(scans["train"]))
        shared = 0 if source.test is None else int(found_among(source.test, source.train).sum())
    if as_json:
        facts = {
            "name": source.name,
            "where": source.where,
            "notice": source.notice and with_options(source.notice),
            "command": command,
            "test_rows_in_training": shared,
        }
        print(json.dumps({**facts, **{part: _content(found) for part, found in scans.items()}}))
    else:
        print(path if path == source.where else f"{source.name} from {source.where}")
        if source.notice is not None:
            print(f"note: {with_options(source.notice)}")
        for part, found in scans.items():
            print(with_options("\n".join([f"\n{part}:"] * (len(scans) > 1) + describe(found))))
        if shared:
            print(
                f"{shared:,} of the {len(source.test or ()):,} test rows are in the training data "
                "too: --drop-copies leaves such rows out of training"
            )
        if command is not None:
            print(f"to train: {command}")
    complaints = {part: complaint(found) for part, found in scans.items()}
    for part, text in complaints.items():
        if text is not None:
            fail(text if part == "train" else f"In the test data: {text}")


def _command(
    path: str, data_dir: Path | None, options: dict[str, Any], fit: Fit | None
) -> str | None:
    """The command that trains on these data; None if none does."""
    if fit is None:
        return None
    words = [] if data_dir is None else ["--data-dir", shlex.quote(str(data_dir))]
    for name, value in options.items():
        if isinstance(value, list):
            words += [f"--{name}", shlex.quote(_in_one_line(value))]
        elif value is not None:
            words.append(with_options(f"{name}={value!r}"))
    if fit.settings != {"binarize": "dynamic"} and fit.text:  # which is the default
        words.append(with_options(fit.text).replace(", --", " --"))
    return " ".join(["pdvae fit --data", shlex.quote(path), *words])


def _in_one_line(names: list[str]) -> str:
    """Names with commas between, as `reading` takes them apart."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def _content(found: Scan) -> dict[str, Any]:
    """What was found, as JSON takes it, with options in place of settings."""
    content = asdict(found)
    for fit, judged in zip(content["fits"], found.fits, strict=True):
        del fit["settings"]
        text = with_options(judged.text).replace(", --", " --")
        fit["options"] = text or None
    return content
