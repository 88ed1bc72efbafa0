"""A run and what a report computes of it, each figure once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_dvae.codes import MAX_CODES, num_codes
from pyro_dvae.data import Splits, SubsetRows, extent
from pyro_dvae.evaluation import (
    SWEEPS,
    DatumTerms,
    Evaluation,
    PosteriorName,
    Profile,
    datum_terms,
    evaluate_with_terms,
    found_posteriors,
    sums_cheaply,
)
from pyro_dvae.reports.repeat import python_command
from pyro_dvae.runs import (
    PreparedRows,
    Run,
    brightness,
    encode_blocks,
    is_image,
    model_labels,
    profile_posterior,
    profile_rows,
)
from pyro_dvae.runs.log import StoredEvaluation, stored_evaluation

MOST_DATA = 1_000
"""The largest number of data that the figures of a report are computed on."""
MOST_MEMBERS = 2_000
"""The largest number of training data that say what the categories mean."""
IMPORTANCE_SAMPLES = 100
"""Codes drawn per datum for the importance-weighted bound."""
_COMPARED = 2**14
"""The largest K^D for which the posteriors are compared: more codes take too long."""


class Words(NamedTuple):
    """How a report names settings and commands; by default as Python does."""

    text: Callable[[str], str] = str
    """A message of the library, such as "learning_rate=0.001", in the words of the reader."""
    command: Callable[[Run], str | None] = python_command
    """What repeats a run; None where nothing can."""


class Some(NamedTuple):
    """Some of the data of one part."""

    part: str
    """The name of the part."""
    total: int
    """The number of data of the part."""
    rows: PreparedRows
    """N of them."""
    x: Tensor
    """(N, *event_shape), what the likelihood takes, on the model's device."""
    labels: Tensor | None
    """(N,) the labels that the model takes, if it takes any."""


class Reported:
    """A run of a report.

    Args:
        run: the run.
        key: a word for the links of its sections.
        words: how settings are named.
        data_dir: the folder that its data lie in now, if that is another one.
    """

    def __init__(
        self, run: Run, key: str, words: Words, data_dir: str | Path | None = None
    ) -> None:
        self.run, self.key, self.words, self.data_dir = run, key, words, data_dir
        self.config, self.vae = run.config, run.vae
        self.is_image, self.is_table = is_image(run.event_shape), len(run.event_shape) == 1
        self.datum = "image" if self.is_image else "row"
        self.missing = ""
        """Why the data could not be opened; empty if they were."""

    @property
    def name(self) -> str:
        """What the run is called: its folder."""
        return str(self.run.folder)

    @cached_property
    def splits(self) -> Splits | None:
        """The data of the run; None if they are not there, or are others now."""
        try:
            return self.run.data.moved_to(data_dir=self.data_dir).splits()
        except (ValueError, OSError) as error:
            self.missing = str(error)
            return None

    @property
    def part(self) -> str:
        """The part of the data that the figures are of."""
        stored = {} if self.splits is None else self.splits.stored
        return next((name for name in ("test", "validation") if name in stored), "train")

    @cached_property
    def sample(self) -> Some | None:
        """At most `MOST_DATA` of the data that the figures are of; None if there are no data."""
        return self._some(self.part, MOST_DATA)

    @cached_property
    def members(self) -> Some | None:
        """At most `MOST_MEMBERS` training data, which say what the categories mean."""
        return self._some("train", MOST_MEMBERS)

    def _some(self, part: str, most: int) -> Some | None:
        if self.splits is None:
            return None
        stored, config = self.splits.stored[part], self.config
        index = torch.arange(len(stored))
        if len(stored) > most:
            # Runs that can be compared have this seed in common, and so the same data here.
            generator = torch.Generator().manual_seed(config.split_seed)
            index = torch.randperm(len(stored), generator=generator)[:most].sort().values
        kept = {"validation": self.splits.validation, "test": self.splits.test}.get(part)
        if kept is None:
            batch = self.splits.train.batch(index, torch.Generator().manual_seed(config.split_seed))
            x = batch[0] if isinstance(batch, tuple) else batch
        else:
            x = kept[index]
        rows = SubsetRows(stored, index)
        if isinstance(stored, SubsetRows):
            rows = SubsetRows(stored.rows, stored.index[index])
        prepared = PreparedRows(x, rows, rows.labels, f"the {part} part of {self.run.data.name}")
        weight = next(self.vae.parameters())
        labels = model_labels(config, rows.labels, prepared.name)
        labels = None if labels is None else labels.to(weight.device)
        x = x.to(weight)
        return Some(part, len(stored), prepared._replace(x=x), x, labels)

    @cached_property
    def computed(self) -> tuple[Evaluation, DatumTerms] | None:
        """The figures of the sample, and those of each datum; None if there are no data."""
        some = self.sample
        if some is None:
            return None
        code = (self.config.num_latents, self.config.num_categories)
        is_sum = sums_cheaply(self.vae, code, self.run.event_shape)
        return evaluate_with_terms(
            self.vae,
            some.x,
            some.labels,
            importance_samples=IMPORTANCE_SAMPLES,
            seed=self.config.seed,
            refine=SWEEPS if is_sum and num_codes(*code) <= _COMPARED else None,
        )

    @property
    def scores(self) -> Evaluation | None:
        """The figures of the sample."""
        return None if self.computed is None else self.computed[0]

    @property
    def terms(self) -> DatumTerms | None:
        """The figures of each datum of the sample."""
        return None if self.computed is None else self.computed[1]

    @cached_property
    def stored(self) -> StoredEvaluation | None:
        """The figures of the whole part that the run folder keeps, if they are of its weights."""
        try:
            found = stored_evaluation(self.run.folder, self.part)
        except (ValueError, OSError):
            return None
        return None if found is None or found.epoch != self.run.epoch else found

    @cached_property
    def train_terms(self) -> DatumTerms | None:
        """The figures of at most `MOST_DATA` training data; None if there are no data."""
        some = self._some("train", MOST_DATA)
        if some is None or self.part == "train":
            return None
        known = None if some.labels is None else self.vae.prior_labels(some.labels)
        return datum_terms(self.vae, some.x, known, seed=self.config.seed)

    def log_posterior(self, some: Some) -> Tensor:
        """(N, D, K) log q(z_d=k|x) of data, by the encoder."""
        blocks = (found.marginals().cpu() for found in found_posteriors(self.vae, some.x))
        return torch.cat(list(blocks)).double().log_softmax(-1)

    @cached_property
    def profile(self) -> Profile | None:
        """What the categories mean in the members, rows of a table; None if there are no data."""
        if self.members is None:
            return None
        return profile_rows(
            self.vae, self.run.data, self.members.rows, posterior=self.profile_posterior
        )

    @property
    def profile_posterior(self) -> PosteriorName:
        """The q(z|x) that counts the rows of a table for categories: exact where it is cheap."""
        return profile_posterior(self.vae, self.config, self.run.event_shape)

    @cached_property
    def codes(self) -> Tensor | None:
        """(N, D) the most probable code of each datum of the sample, by the encoder."""
        if self.sample is None:
            return None
        return torch.cat(list(encode_blocks(self.vae, self.sample.x)))

    def shown(self, some: Some, index: Sequence[int]) -> Tensor:
        """Images of the data in [0, 1].

        Args:
            some: the data.
            index: which of them.
        """
        at = torch.as_tensor(list(index), dtype=torch.int64)
        values = some.rows.stored.read(at)
        high = extent(some.rows.stored).high
        return brightness(self.run, some.x[at].cpu(), values, high)

    def place(self, some: Some, index: int) -> str:
        """What a datum is called: its name, or its number in the run's data."""
        stored = some.rows.stored
        ids = stored.ids if isinstance(stored, SubsetRows) else None
        if ids is not None:
            return ids[index]
        return str(stored.index[index].item() if isinstance(stored, SubsetRows) else index)

    def class_of(self, some: Some, index: int) -> str | None:
        """The name of the class of a datum; None if it has none."""
        labels = some.rows.labels
        if labels is None or labels[index] < 0:
            return None
        names = some.rows.stored.label_names or self.run.data.label_names
        number = int(labels[index])
        return names[number] if names and number < len(names) else str(number)

    @property
    def num_codes(self) -> int:
        """K^D, which may be a number of many digits."""
        return self.config.num_categories**self.config.num_latents

    @property
    def is_enumerable(self) -> bool:
        """Whether all codes can be listed."""
        return num_codes(self.config.num_latents, self.config.num_categories) <= MAX_CODES


def best_known(terms: DatumTerms) -> tuple[str, Tensor]:
    """The tightest figure of each datum that is known: its name, and (N,) nats on the CPU."""
    if terms.log_marginal is not None:
        return "log p(x)", terms.log_marginal.cpu()
    if terms.importance_bound is not None:
        return "importance-weighted bound", terms.importance_bound.cpu()
    return "ELBO", terms.elbo.cpu()


def standard_error(values: Tensor) -> float:
    """The standard error of a mean over data: their standard deviation / sqrt(N)."""
    if len(values) < 2:
        return math.nan
    error = float(values.double().std() / math.sqrt(len(values)))
    return error if error > 1e-9 * float(values.abs().max()) else 0.0  # by rounding alone
