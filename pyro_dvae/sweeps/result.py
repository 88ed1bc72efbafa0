"""What a sweep leaves: its runs, and how they compare."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyro_dvae.runs.grouped import FigureName, RunGroup, group_runs
from pyro_dvae.runs.info import RunInfo


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep."""

    folder: Path
    """The folder that holds the folders of the runs."""
    by: tuple[str, ...]
    """The settings that vary."""
    runs: tuple[RunInfo, ...]
    """The complete runs; of a search, those of trials that were not pruned."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Run, or trial -> why it has no figures: "pruned", or that it diverged."""
    best: dict[str, Any] | None = None
    """Of a search, the settings with the best mean validation ELBO."""

    def groups(self, part: str = "test", figure: FigureName = "elbo") -> list[RunGroup]:
        """The runs in groups of the same settings; see `group_runs`.

        Args:
            part: the part of the data.
            figure: the figure that is compared.
        """
        return group_runs(self.runs, self.by, part=part, figure=figure)
