"""`share_run`: the folder of a run that a hub of models takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from pyro_dvae._version import __version__
from pyro_dvae.reports import Words
from pyro_dvae.runs import METRICS, Run, load_run
from pyro_dvae.runs.log import EVALUATION
from pyro_dvae.runs.settings import CONFIG, config_to_json
from pyro_dvae.runs.storage import write_atomically, write_json, write_tensors
from pyro_dvae.sharing.card import LICENSE, model_card
from pyro_dvae.sharing.private import without_paths

CARD, MODEL = "README.md", "model.safetensors"
FILES = (CARD, CONFIG, MODEL, METRICS, EVALUATION)
"""The files of a shared folder. The last two are there where the run has them."""


def share_run(
    run: Run | str | Path,
    folder: str | Path,
    *,
    license: str = LICENSE,
    name: str | None = None,
    data_dir: str | Path | None = None,
    words: Words | None = None,
    usage: str = "",
) -> list[Path]:
    """Write a run as the folder that a hub of models takes.

    The folder gets `README.md`, a card that tells what the model is; `config.json`, the settings;
    `model.safetensors`, the weights; `metrics.jsonl`, the learning curve; and `evaluation.json`,
    the stored figures. No data are written, and no path of this machine. What is written of the
    data are the names of the columns, of the levels of columns of names, and of the classes, the
    least and the greatest value, and the names of the files. `pull_run` makes a run of the folder.

    Args:
        run: the run, or its folder.
        folder: a new folder; or one that holds nothing but such files, which are replaced.
        license: what others may do with the model, as the hub calls it: "apache-2.0", "mit",
            "cc-by-4.0", "other"; "unknown" if you have not chosen.
        name: what the model is called; None for the name of the run's folder.
        data_dir: the folder that the run's data lie in now, if that is another one. The figures of
            the card are computed on them; without them, the card has no figures but the stored
            ones.
        words: how the card names settings and commands; None for the names of Python.
        usage: commands that use the model, which the card shows.

    Returns:
        The files.

    Raises:
        ValueError: there is no run, or the folder holds other files.
        OSError: a file cannot be written.
    """
    run = run if isinstance(run, Run) else load_run(run)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    others = sorted(path.name for path in folder.iterdir() if path.name not in FILES)
    if others:
        raise ValueError(
            f"Expected a new folder, or one of {', '.join(FILES)} alone; got {folder}, which holds "
            f"{others[0]}. Name another."
        )
    name = name or run.folder.resolve().name
    # All is computed before the first file is replaced.
    card = model_card(run, name, license=license, data_dir=data_dir, words=words, usage=usage)
    figures = {part: {**asdict(its), "epoch": run.epoch} for part, its in run.evaluation.items()}
    curve = "".join(json.dumps(vars(record)) + "\n" for record in run.metrics)
    for path in folder.iterdir():
        path.unlink()
    data = without_paths(run.data)
    write_json(folder / CONFIG, config_to_json(data, run.event_shape, run.version))
    metadata = {"epoch": run.epoch, "version": __version__}
    write_tensors(folder / MODEL, run.vae.state_dict(), metadata)
    texts = {CARD: card, METRICS: curve}
    for file, text in texts.items():
        if text:
            write_text(folder / file, text)
    if figures:
        write_json(folder / EVALUATION, figures)
    return [folder / file for file in FILES if (folder / file).exists()]


def write_text(path: Path, text: str) -> None:
    """Write a text, in place of what was there."""
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def describe_shared(run: Run) -> str:
    """What leaves the machine if a run is shared, in one line for people.

    Args:
        run: the run.
    """
    return f"{'; '.join(_leaving(replace(run, data=without_paths(run.data))))}."


def _leaving(run: Run) -> Iterator[str]:
    data = run.data
    names = []
    if data.columns is not None:
        names.append(f"the names of {len(data.columns)} columns")
    if data.levels:
        names.append(f"the names of the levels of {', '.join(data.levels)}")
    if data.label_names:
        names.append(f"the names of {len(data.label_names)} classes")
    if data.path is not None:
        names.append(f"the name {data.path}")
    if data.span is not None:
        names.append("the least and the greatest value")
    of_data = f", and of the data {', '.join(names)}" if names else ""
    yield f"Shared are the weights, the settings and the figures{of_data}"
    yield "no rows of the data and no paths of this machine"
