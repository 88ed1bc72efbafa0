"""A run folder for a model that was trained in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyro_dvae.data import Source, as_rows, check_shape, open_source
from pyro_dvae.runs.checkpoints import create_run, write_weights
from pyro_dvae.runs.config import Config
from pyro_dvae.runs.describe import config_of
from pyro_dvae.runs.log import append_metrics
from pyro_dvae.runs.record import DataRecord
from pyro_dvae.runs.resolve import check_source, check_values, resolve_settings
from pyro_dvae.runs.run import Run, load_run
from pyro_dvae.runs.settings import write_config
from pyro_dvae.runs.storage import only_writer, write_atomically
from pyro_dvae.training.records import EpochRecord
from pyro_dvae.vae import DiscreteVAE

_DATA = "data.npz"
_MODEL = ["num_latents", "num_categories", "prior", "likelihood", "guide", "network", "hidden"]
_MODEL += ["dropout", "encoder", "decoder"]
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

    The settings that build the model are found from its parts. A part that is none of the library's
    has to be named, as on the command line: `encoder="module:factory"`. The model is built anew
    from the settings and compared with yours before anything is written.

    Args:
        folder: a new folder for the run; None for `runs/model-<n>`.
        vae: the trained model.
        data: what it was trained on, for the commands that look at its data: the path of a file or
            a folder, the name of a data set, what `open_source` returns; or values as they were
            stored before training (N, ...), which are copied into the folder. None for no data.
        labels: the labels of the data, as `open_source` takes them, or (N,) of values.
        records: what `fit` yielded, for the learning curve.
        **settings: settings of `Config`, by name, that the model does not tell: `binarize` and
            `range`; the `validation` and the `seed` of `fit`, which decide the rows that are kept
            apart; a `test` part; the `estimator`; parts of your own. Where `test` is left out, no
            data are kept apart for testing unless the data set has a test part.

    Returns:
        The run, as `load_run` gives it.

    Raises:
        ValueError: no settings build this model, or the data do not fit it. No folder is made then.
    """
    source = None if data is None else _source(data, labels)
    shape = _event_shape(vae)
    if source is not None:
        check_shape((len(source.train), *source.train.event_shape), shape)
    given = {"epochs": records[-1].epoch if records else 0, **settings}
    config = config_of(vae, shape, given)
    if source is not None:
        config, span = _fitting(config, source, given)
    path = create_run(folder, "model")
    with only_writer(path):
        record = DataRecord(config)
        if source is not None:
            source = source if source.arguments else _copied(source, path / _DATA)
            record = DataRecord.of(source, config, span)
            record = record.counting(source, record.splits(source))
        best = [epoch.epoch for epoch in records if epoch.is_best]
        write_weights(path, vae.state_dict(), best[-1] if best else 0)
        for epoch in records:
            append_metrics(path, vars(epoch))
        write_config(path, record, shape)
    return load_run(path)


def _source(data: Any, labels: Any) -> Source:
    if isinstance(data, Source):
        return data
    if isinstance(data, (str, Path)):
        return open_source(data, labels=labels)
    return Source(_DATA, "memory", as_rows(data, labels), None, None)


def _event_shape(vae: DiscreteVAE) -> tuple[int, ...]:
    device = next(vae.parameters()).device
    labels = torch.zeros(1, dtype=torch.int64, device=device) if vae.takes_labels else None
    return tuple(vae.sample(1, labels=labels).shape[1:])


def _fitting(
    config: Config, source: Source, given: dict[str, Any]
) -> tuple[Config, tuple[float, float]]:
    """The settings with what the data decide; and the least and the greatest stored value.

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
    return resolved, span


def _copied(source: Source, path: Path) -> Source:
    """Values that lie in memory, written to a file beside the weights, and opened there."""
    rows = source.train
    arrays = {"x": rows.read(torch.arange(len(rows), device="cpu")).numpy()}
    if rows.labels is not None:
        arrays["y"] = rows.labels.numpy()
        if rows.label_names is not None:
            arrays["y"] = np.asarray(rows.label_names)[arrays["y"]]
    write_atomically(path, lambda beside: _write(beside, arrays))
    return open_source(path, key="x", labels="y" if "y" in arrays else None)


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with path.open("wb") as file:  # to a name, NumPy would add its suffix
        np.savez(file, allow_pickle=False, **arrays)
