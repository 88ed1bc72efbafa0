"""A run folder for a model that was trained in Python."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from pyro_dvae.data import Rows, Source, as_rows, check_shape, open_source
from pyro_dvae.runs.checkpoints import create_run, write_weights
from pyro_dvae.runs.config import Config
from pyro_dvae.runs.describe import config_of
from pyro_dvae.runs.labelled import relative_alpha
from pyro_dvae.runs.log import append_metrics
from pyro_dvae.runs.record import DataRecord
from pyro_dvae.runs.resolve import check_source, check_values, resolve_settings
from pyro_dvae.runs.run import Run, load_run
from pyro_dvae.runs.settings import write_config
from pyro_dvae.runs.storage import only_writer, write_atomically
from pyro_dvae.training.records import EpochRecord
from pyro_dvae.vae import DiscreteVAE

_MODEL = ["num_latents", "num_categories", "prior", "likelihood", "guide", "network", "hidden"]
_MODEL += ["alpha", "dropout", "encoder", "decoder"]
"""The settings that describe the model."""


def save_run(
    folder: str | Path | None,
    vae: DiscreteVAE,
    data: Any = None,
    *,
    labels: Any = None,
    records: Sequence[EpochRecord] = (),
    **settings: Any,
) -> Run:
    """Write a run folder for a model that was trained in Python, so that every command takes it.

        records = list(fit(vae, RlooELBO(num_particles=4), x))
        save_run("runs/mine", vae, x, records=records)

    The settings that build the model are found from its parts. The setting `alpha` of a
    `SemiSupervisedVAE` becomes `vae.alpha` times L / N, as for `start_run`, where L of the N
    training data have a label; without data it is `vae.alpha`. A part that is none of the library's
    has to be named, as on the command line: `encoder="module:factory"`. The model is built anew
    from the settings and compared with yours before anything is written.

    Args:
        folder: a new folder for the run; None for `runs/model-<n>`.
        vae: the trained model.
        data: what it was trained on, for the commands that look at its data: the path of a file or
            a folder, the name of a data set, what `open_source` returns; or values as they were
            stored before training, in any form that `as_rows` takes, which are copied into the
            folder. None for no data.
        labels: the labels of the data, as `open_source` takes them; (N,) of values, or the name of
            a column of a table.
        records: what `fit` yielded, for the learning curve.
        **settings: settings of `Config`, by name, that the model does not tell: `binarize` and
            `range`; `validation` and `split_seed` of `fit`, which decide the rows that are kept
            apart; a `test` part; the `estimator`; parts of your own. Where `test` is left out, no
            data are kept apart for testing unless the data set has a test part.

    Returns:
        The run, as `load_run` gives it.

    Raises:
        ValueError: no settings build this model, or the data do not fit it. No folder is made then.
    """
    shape = _event_shape(vae)
    trained = max((epoch.epoch for epoch in records if not epoch.of_guide), default=0)
    of_guide = sum(epoch.of_guide for epoch in records)
    given = {"epochs": trained, "guide_epochs": of_guide, **settings}
    config, weights = config_of(vae, shape, given)
    best = [epoch.epoch for epoch in records if epoch.is_best]
    with _opened(data, labels) as (source, values):
        span, per_label = (0.0, 0.0), None
        if source is not None:
            check_shape((len(source.train), *source.train.event_shape), shape)
            config, span, per_label = _fitting(config, source, given)
        path = create_run(folder, "model")
        with only_writer(path):
            record = DataRecord(config)
            if source is not None:
                if values is not None:
                    source = _copied(source, values, path)
                record = DataRecord.of(source, config, span)
                record = record.counting(source, record.splits(source))
                record = replace(record, data_per_label=per_label)
            write_weights(path, weights, best[-1] if best else 0)
            for epoch in records:
                append_metrics(path, vars(epoch))
            write_config(path, record, shape)
    return load_run(path)


@contextmanager
def _opened(data: Any, labels: Any) -> Iterator[tuple[Source | None, Path | None]]:
    """The data; and the temporary file that they were written to, where they lay in memory."""
    if data is None or isinstance(data, Source):
        yield data, None
    elif isinstance(data, (str, Path)):
        yield open_source(data, labels=labels), None
    else:
        rows = as_rows(data, labels)
        with TemporaryDirectory() as folder:
            options: dict[str, Any] = {}
            if rows.columns is None:
                arrays = _arrays(rows)
                path, options["key"] = Path(folder) / "data.npz", "x"
                np.savez(path, allow_pickle=False, **arrays)
                label = "y" if "y" in arrays else None
            else:
                path = Path(folder) / "data.csv"
                label = _write_table(data, labels, path)
            yield open_source(path, labels=label, **options), path


def _arrays(rows: Rows) -> dict[str, Any]:
    arrays: dict[str, Any] = {"x": rows.read(torch.arange(len(rows), device="cpu")).numpy()}
    if rows.labels is not None:
        y = rows.labels.numpy()
        arrays["y"] = y if rows.label_names is None else np.asarray(rows.label_names)[y]
    return arrays


def _write_table(data: Any, labels: Any, path: Path) -> str | None:
    """Write a table of pandas, or a dict of columns, with its labels, whose column is returned."""
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    frame = data if isinstance(data, pd.DataFrame) else pd.DataFrame(data)
    if labels is None or isinstance(labels, str):
        frame.to_csv(path, index=False)
        return labels
    name = "label"
    while name in frame:
        name += "_"
    frame.assign(**{name: np.asarray(labels)}).to_csv(path, index=False)
    return name


def _copied(source: Source, file: Path, folder: Path) -> Source:
    """The same data, of a copy of the file in a folder."""
    path = folder / file.name
    write_atomically(path, lambda beside: shutil.copyfile(file, beside))
    return open_source(**{**source.arguments, "data": path})


def _event_shape(vae: DiscreteVAE) -> tuple[int, ...]:
    device = next(vae.parameters()).device
    labels = torch.zeros(1, dtype=torch.int64, device=device) if vae.takes_labels else None
    return tuple(vae.sample(1, labels=labels).shape[1:])


def _fitting(
    config: Config, source: Source, given: dict[str, Any]
) -> tuple[Config, tuple[float, float], float | None]:
    """The settings with what the data decide; the least and the greatest stored value; and N / L.

    Args:
        config: the settings of the model.
        source: the data.
        given: the settings that the user gave.

    Raises:
        ValueError: the data are not those of the model.
    """
    found = check_source(source)
    model = {name: vars(config)[name] for name in _MODEL}
    kept = {"test": 0} if source.test is None else {}
    resolved = resolve_settings(source, found, **{**kept, **given, **model})
    for name, value in {**model, "num_classes": config.num_classes}.items():
        if vars(resolved)[name] != value:
            raise ValueError(
                f"Expected data of the model, which has {name}={value!r}; got data of "
                f"{name}={vars(resolved)[name]!r}. Pass the data that it was trained on."
            )
    span = (found.low or 0.0, found.high or 0.0)
    splits = DataRecord.of(source, resolved, span).splits(source)
    check_values(resolved, splits)
    alpha, per_label = relative_alpha(resolved, splits)
    return replace(resolved, alpha=alpha), span, per_label
