"""`Inputs`: the data that a person asks about, taken from the run, drawn or written."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pyro_dvae.data import extent
from pyro_dvae.explorer.answers import Datum
from pyro_dvae.explorer.payloads import MOST_SEED, cells_of, hex_of, pixels_of, whole
from pyro_dvae.explorer.views import View, views_of, x_of_image
from pyro_dvae.runs import PreparedRows, Run, brightness, column_names, is_image


class Inputs:
    """The data of a run, and what a person can enter in their place. All input is checked.

    Args:
        run: the run.
        data_dir: the folder that its data lie in now, if that is another one.
    """

    def __init__(self, run: Run, data_dir: str | Path | None = None) -> None:
        self.run, self.data_dir = run, data_dir
        self.is_image = is_image(run.event_shape)
        self.image_shape = (1,) * (3 - len(run.event_shape)) + tuple(run.event_shape)
        """(C, H, W) of an image."""
        self.columns = [] if self.is_image else column_names(run.data, run.event_shape)
        """The names of the columns of a row."""
        self.levels = {
            name: its for name, its in run.data.levels.items() if name in set(self.columns)
        }
        """Name of a column -> the names of its levels, for columns of names."""
        self.part = "test" if run.data.num_test else "train"
        """The part of the run's data that `datum` takes them from."""
        self.missing = ""
        """Why the data of the run could not be opened; empty if they were."""

    @cached_property
    def rows(self) -> PreparedRows | None:
        """The test part of the run's data, or the training part; None if they are not there."""
        try:
            return self.run.rows(self.part, data_dir=self.data_dir)
        except (ValueError, OSError) as error:
            self.missing = str(error)
            return None

    @cached_property
    def num_data(self) -> int:
        """The number of data that `datum` knows."""
        return 0 if self.rows is None else len(self.rows.x)

    @cached_property
    def _high(self) -> float:
        """The greatest stored value of the data."""
        assert self.rows is not None
        return float(extent(self.rows.stored).high)

    def datum(self, number: Any) -> Datum:
        """A datum of the run's test part, or of its training part where it has no other.

        Args:
            number: from 0 to `num_data` - 1.

        Raises:
            ValueError: there is no such datum, or the data of the run are not there.
        """
        if self.rows is None or not self.num_data:
            raise ValueError(f"Expected the data of the run; got none. {self.missing}")
        n = whole("the number of the datum", number, 0, self.num_data - 1)
        x = self.rows.x[n : n + 1].cpu()
        labels = self.rows.labels
        label = None if labels is None or labels[n] < 0 else int(labels[n])
        if not self.is_image:
            return Datum(x, views_of(self.run, x)[0], label)
        stored = self.rows.stored.read(torch.tensor([n]))
        return Datum(x, View(brightness(self.run, x, stored, self._high)[0], []), label)

    def drawn(self, digits: Any, seed: Any = 0) -> Datum:
        """An image that a person drew.

        Args:
            digits: two hexadecimal digits per value, planes before rows before columns.
            seed: of the zeros and ones, where the run draws them from the brightness.

        Raises:
            ValueError: it is no image of the run's size, or the run is not of images.
        """
        if not self.is_image:
            raise ValueError("Expected a row for this run; got an image. Fill in a row.")
        image = pixels_of(digits, self.image_shape)
        x = x_of_image(self.run, image, whole("the seed", seed, 0, MOST_SEED))
        return Datum(x, View(image, []), None)

    def digits(self, datum: Datum) -> str:
        """The text that `drawn` reads, of a datum that is an image."""
        assert datum.view.image is not None
        return hex_of(datum.view.image)

    def row(self, cells: Any) -> Datum:
        """A row that a person wrote.

        Args:
            cells: one text or number per column, in the units of the data. An empty one is
                missing, which only a run of data with missing values takes.

        Raises:
            ValueError: it is no row that the model takes, or the run is of images.
        """
        if self.is_image:
            raise ValueError("Expected an image for this run; got a row. Draw one.")
        its = cells_of(cells, self.columns, self.levels)
        rows = self.run.rows(self._table(its))
        x = rows.x[:1].cpu()
        return Datum(x, views_of(self.run, x)[0], None)

    def _table(self, cells: list[float | str]) -> Any:
        """A row as `Run.rows` takes it."""
        if self.run.data.columns is None:
            return torch.tensor(cells, dtype=torch.float64).reshape(1, *self.run.event_shape)
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]

        return pd.DataFrame(
            {
                name: pd.Series([cell or None], dtype=object) if name in self.levels else [cell]
                for name, cell in zip(self.columns, cells, strict=True)
            }
        )
