"""What a run remembers of its data: enough to find them again, check them and split them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_dvae.data import (
    DATA_SETS,
    TORCHVISION_SETS,
    Rows,
    Source,
    Splits,
    all_numbers,
    fingerprint,
    make_splits,
    number_by,
    open_source,
    refuse_unlike,
)
from pyro_dvae.data.read.rows import Levels, levels_in
from pyro_dvae.runs.config import Config, preparation_of
from pyro_dvae.runs.reading import AS_IT_IS, Reading, absolute, beside_in, held_out_in, reading_of
from pyro_dvae.runs.rows import open_file
from pyro_dvae.runs.splitting import SplitRecord, fingerprint_of_rows, split_record


class SecondStage(NamedTuple):
    """The trained run of which one part was trained further."""

    run: str
    """Its folder."""
    epoch: int
    """The epoch that its weights come from."""
    seed: int
    """Of the new part's initial weights and its training."""
    part: str = "prior"
    """The part: "prior", of which the run got a new one; or "guide"."""


@dataclass(frozen=True, repr=False)
class DataRecord:
    """What a run remembers of its data.

    `load_run(folder).data` is one. `open()` finds the data again and checks that they have not
    changed; `splits()` gives the parts that the run trained, validated and tested on:

        run = load_run("runs/mnist-d4k8-snapshot-1")
        scores = evaluate(run.vae, run.data.splits().test)

    A field is None where the run does not know it, for example because an older version made it.
    """

    config: Config = field(compare=False)
    """The run's settings, which decide how the data are split and prepared."""
    name: str | None = None
    """The name of the data set, or of the file or folder."""
    source: str | None = None
    """Where the data came from, for people."""
    path: str | None = None
    """The file or folder; None for a data set that has a name."""
    data_dir: str | None = None
    """The folder of a named data set, where the user gave one."""
    reading: Reading = AS_IT_IS
    """How the files were read."""
    fingerprint: str | None = None
    """`pyro_dvae.data.fingerprint` of the data."""
    columns: tuple[str, ...] | None = None
    """The names of a table's columns."""
    levels: Levels = field(default_factory=dict)
    """Name of a column of a table -> the names of its levels 0, 1, ..., for columns of names."""
    label_names: tuple[str, ...] | None = None
    """The names of the classes 0, 1, ..."""
    span: tuple[float, float] | None = None
    """The least and the greatest stored value of the training data."""
    num_train: int | None = None
    num_validation: int | None = None
    num_test: int | None = None
    held_out: Mapping[str, str] = field(default_factory=dict)
    """Part ("validation" or "test") -> fingerprint, for parts that have files of their own."""
    split: SplitRecord | None = None
    """How the rows were divided; None for runs of before."""
    data_per_label: float | None = None
    """N / L of a run with classes, where L of the N training data of an epoch have a label. The
    setting `alpha` times this is the `alpha` of the model. None for runs of before, whose model
    has the setting itself."""
    second_stage: SecondStage | None = None
    """Where `fit-prior` or `fit-guide` made the run: the run whose prior or guide was trained."""

    def __repr__(self) -> str:
        sizes = {
            "train": self.num_train,
            "validation": self.num_validation,
            "test": self.num_test,
        }
        known = [f"{size} {part}" for part, size in sizes.items() if size is not None]
        where = "" if self.source is None else f"; {self.source}"
        of = "unknown data" if self.name is None else repr(self.name)
        return f"DataRecord of {of}: {', '.join(known) or 'of unknown size'}{where}"

    @classmethod
    def of(cls, source: Source, config: Config, span: tuple[float, float]) -> DataRecord:
        """The record of a new run's data.

        Args:
            source: the data, as `open_source` gave them.
            config: the run's settings.
            span: the least and the greatest stored value.
        """
        given = source.arguments
        reading = Reading(**reading_of(given))
        record = cls(config, source.name, source.where, reading=reading, span=span)
        return record.moved_to(given.get("data"), given.get("data_dir")).naming(source)

    def naming(self, source: Source) -> DataRecord:
        """The same record, with the names of columns, levels and classes of open data."""
        rows = source.train
        levels, classes = levels_in(rows), rows.label_names
        return replace(self, columns=rows.columns, levels=levels, label_names=classes)

    def counting(self, source: Source, splits: Splits) -> DataRecord:
        """The same record, with what the open data and their parts tell of themselves.

        Args:
            source: the data.
            splits: the parts that `splits` made of them.
        """
        sizes = {part: len(rows) for part, rows in splits.stored.items()}
        return replace(
            self.naming(source),
            name=source.name,
            source=source.where,
            fingerprint=self.fingerprint or fingerprint(source),
            held_out=_held_out(splits, self.config),
            split=self.split or split_record(source, splits),
            num_train=sizes["train"],
            num_validation=sizes.get("validation", 0),
            num_test=sizes.get("test", 0),
        )

    def moved_to(
        self, data: str | Path | None = None, data_dir: str | Path | None = None
    ) -> DataRecord:
        """The same record, for data that lie somewhere else now.

        Args:
            data: the path or the name of the data; None if that has not changed.
            data_dir: the folder of the file or of the named data set; None if that has not changed.
        """
        record = self
        if data is not None and data in DATA_SETS + TORCHVISION_SETS:
            record = replace(record, name=str(data), path=None)
        elif data is not None:
            record = replace(record, path=absolute(data))
        elif data_dir is not None and record.path is not None:
            its = replace(record.config, **held_out_in(vars(record.config), data_dir))
            reading = beside_in(record.reading, data_dir)
            path = absolute(Path(data_dir) / Path(record.path).name)
            return replace(record, path=path, reading=reading, config=its)
        return record if data_dir is None else replace(record, data_dir=absolute(data_dir))

    def open(self) -> Source:
        """Open the data, and check that they are those of the run.

        Raises:
            ValueError: they are not there, or they have changed.
        """
        if self.name is None and self.path is None:  # `open_source` would take None for MNIST
            words = "Expected the name or the path of the run's data; got neither."
            raise ValueError(f"{words} Restore the run's config.json.")
        if self.path is None and self.source == "memory":
            raise ValueError(
                "Expected the run's data in a file; got values of a program, which no run copies. "
                "Pass the values themselves, or save them and name the file with data=..."
            )
        data_dir = self.data_dir
        if data_dir is None and self.name == "mnist" and self.path is None:
            # Older versions kept the folder as the source alone.
            data_dir = self.source if os.path.isdir(self.source or "") else None
        source = open_source(
            self.path or self.name,
            data_dir=data_dir,
            levels=self.levels or None,
            **self.reading._asdict(),
        )
        test = None if source.test is None else number_by(source.test, self.label_names)
        source = source._replace(train=number_by(source.train, self.label_names), test=test)
        found = fingerprint(source)
        if found != (self.fingerprint or found):
            raise ValueError(
                f"Expected the run's data, {self.name} from {self.source} (fingerprint "
                f"{self.fingerprint}); got {source.name} from {source.where} ({found}). Name the "
                "run's with data=... and data_dir=..."
            )
        return source

    def splits(self, source: Source | None = None, *, num_copies: int | None = None) -> Splits:
        """The parts that the run trained, validated and tested on.

        Args:
            source: the data, where they are open already; None to `open` them.
            num_copies: the number of rows that are equal to an earlier one, where it is known.

        Raises:
            ValueError: the data are not there, they have changed, or the settings do not fit them.
        """
        source = self.open() if source is None else source
        config = self.config
        preparation = preparation_of(config, source.train.event_shape)
        if source.test is not None:
            refuse_unlike("test data", source.test, source.train, preparation)
            if config.test is not None:
                raise ValueError(
                    f"Expected test=None for data with a test part of their own, "
                    f"{len(source.test)} rows; got {config.test}. Leave it out."
                )
        kept: dict[str, Any] = {"validation": config.validation, "test": config.test}
        for part, amount in kept.items():
            if isinstance(amount, str):
                kept[part] = self.open_file(amount, labelled=config.num_classes > 0)
                refuse_unlike(f"{part} data in {amount}", kept[part], source.train, preparation)
        # To look for copies takes as long as to read the data, and there may be none.
        num_copies = num_copies if self.split is None else self.split.num_copies
        none = num_copies == 0 and bool(config.group_copies)
        splits = make_splits(
            source,
            binarize=config.binarize,
            range=config.range,
            likelihood=preparation.likelihood,
            num_classes=config.num_classes,
            partly_labelled=config.alpha is not None,
            seed=config.split_seed,
            split=config.split,
            group_copies=False if none else config.group_copies,
            drop_copies=config.drop_copies,
            **kept,
        )
        splits = splits._replace(num_copies=0) if none else splits
        its_own = None if self.split is None else self.split.rows
        if its_own not in (None, fingerprint_of_rows(splits)):
            raise ValueError(
                f"Expected the rows of each part that the run had; got others, for groups or times "
                f"of the rows in {self.source} have changed. Restore them."
            )
        for part, found in _held_out(splits, config).items():
            before = self.held_out.get(part, found)
            if found != before:
                raise ValueError(
                    f"Expected the run's {part} data, {kept[part]} (fingerprint {before}); got "
                    f"others there ({found}). Restore the file."
                )
        return splits

    def open_file(
        self, path: str | Path, *, key: str | None = None, labelled: bool = False
    ) -> Rows:
        """Open another file as the run's data were opened: the same columns, sizes and classes.

        Args:
            path: the file, or a folder of images.
            key: the name of an array in a `.npz` file, where it is not the one of the run's data.
            labelled: whether the labels are needed.

        Raises:
            ValueError: it cannot be read so.

        Warns:
            UserWarning: the labels cannot be read, and are left out.
        """
        return open_file(self, path, key, labelled)

    def label_values(self, labels: Tensor | None) -> Tensor | None:
        """Labels as people know them: the numbers that the classes are called, if they are numbers.

        Args:
            labels: (N,) int64, the classes 0, 1, ... of the run; or None.

        Returns:
            (N,) int64; the labels themselves where the names of the classes are no numbers.
        """
        names = self.label_names
        if labels is None or not names or not all_numbers(names) or int(labels.max()) >= len(names):
            return labels
        return torch.where(labels < 0, labels, torch.tensor([int(name) for name in names])[labels])


def _held_out(splits: Splits, config: Config) -> dict[str, str]:
    """The fingerprints of the parts that have files of their own."""
    amounts = {"validation": config.validation, "test": config.test}
    return {
        part: fingerprint(Source(part, "", splits.stored[part], None, None))
        for part, amount in amounts.items()
        if isinstance(amount, str)
    }
