"""The profile of the categories of a run's latents, with the names of its columns and rows."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from pyro_dvae.codes import num_codes
from pyro_dvae.evaluation import PosteriorName, Profile, profile, sums_cheaply
from pyro_dvae.runs.config import Config
from pyro_dvae.runs.named import beside, column_names, label_column
from pyro_dvae.runs.record import DataRecord
from pyro_dvae.runs.rows import PreparedRows
from pyro_dvae.vae import DiscreteVAE

_CHEAP = 2**22
"""Largest K^D P for which p(z|x) is the default. So many numbers per datum take some 0.2 ms."""


def profile_posterior(vae: DiscreteVAE, config: Config, shape: tuple[int, ...]) -> PosteriorName:
    """The q(z|x) that `profile_rows` takes if none is named: p(z|x) where it is cheap.

    On small tables the encoder of a model that is trained by the exact log p(x) is far from p(z|x),
    and its profiles are vague (`examples/README.md`, "Posteriors").

    Args:
        vae: the model.
        config: the run's settings.
        shape: the shape of a datum.
    """
    code = (config.num_latents, config.num_categories)
    is_cheap = sums_cheaply(vae, code, shape) and num_codes(*code) * math.prod(shape) <= _CHEAP
    return "exact" if is_cheap and not vae.takes_labels else "encoder"


def profile_rows(
    vae: DiscreteVAE,
    data: DataRecord,
    rows: PreparedRows,
    num_typical: int = 3,
    *,
    posterior: PosteriorName | None = None,
    refine: int | None = None,
) -> Profile:
    """What `Run.profile` returns.

    Args:
        vae: the model.
        data: the record of the run's data.
        rows: the rows that tell what the categories mean.
        num_typical: rows to name per category.
        posterior: which q(z|x) counts a row for a category, as of `pyro_dvae.profile`; None for
            "refined" if `refine` is given, else for `profile_posterior`.
        refine: sweeps of coordinate ascent; as of `pyro_dvae.profile`.

    Raises:
        ValueError: the data are no table.
    """
    num_data, shape = len(rows.stored), rows.stored.event_shape
    if len(shape) != 1:
        raise ValueError(
            f"Expected rows of a table to profile; got data of shape {tuple(shape)}. Use a run of "
            "a table."
        )
    if posterior is None and refine is None:
        posterior = profile_posterior(vae, data.config, shape)
    about = beside(data, rows)
    names = about.get("id", about.get("row"))
    numbers = names.tolist() if isinstance(names, Tensor) else names
    labels = rows.labels
    classes = None if labels is None else rows.stored.label_names or data.label_names
    if labels is not None and classes is not None and int(labels.max()) >= len(classes):
        classes = None  # numbers of a file, of classes that the run does not know
    found = profile(
        vae,
        rows.x[:num_data],
        labels,
        values=rows.stored.read(torch.arange(num_data, device="cpu")),
        columns=column_names(data, shape),
        levels=data.levels,
        class_names=classes,
        row_names=None if numbers is None else [str(name) for name in numbers],
        num_typical=num_typical,
        posterior=posterior,
        refine=refine,
    )
    return replace(found, class_column=label_column(data))
