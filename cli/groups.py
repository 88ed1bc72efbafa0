"""The table of `pdvae compare --by`: groups of runs over their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyro_dvae.defaults import RunSettings

from .errors import fail
from .figures import setting
from .naming import OPTIONS
from .tables import aligned

if TYPE_CHECKING:
    from pyro_dvae.runs import RunGroup, RunInfo

_NAMES = {option: name for name, option in OPTIONS.items() if name in vars(RunSettings())}
"""Option without its dashes -> setting."""


def setting_names(text: str) -> list[str]:
    """The settings that a text such as "lr,estimator" names, by options or as Python names them."""
    names = []
    for word in text.split(","):
        option = word.strip()
        name = setting_name(option)
        if name is None or name == "seed":
            known = ", ".join(sorted(_NAMES.keys() - {"seed"}))
            fail(f"Expected --by as options with commas between; got {option!r}. Known: {known}.")
        names.append(name)
    return list(dict.fromkeys(names))


def setting_name(option: str) -> str | None:
    """The setting that an option names, or Python's own name of it; None for any other word."""
    word = option.strip().removeprefix("--")
    name = _NAMES.get(word, word)
    return name if name in vars(RunSettings()) else None


def group_lines(groups: Sequence[RunGroup], runs: Sequence[RunInfo], part: str) -> list[str]:
    """The table, a line per group, and remarks.

    Args:
        groups: of `group_runs`, at least one.
        runs: all runs, of which some may be in no group.
        part: the part of the data.
    """
    from pyro_dvae.evaluation import LEVEL

    names = [*groups[0].settings]
    headings = [OPTIONS.get(name, name) for name in names]
    columns = ["runs", "seeds", "mean", "sd", "difference", "se", "pairs", "verdict"]
    rows = [[*headings, *columns]]
    rows += [[*map(_shown, group.settings.values()), *_cells(group)] for group in groups]
    lines = [aligned(rows, "<" * len(names) + ">" * 7 + "<")]
    lines.append("sd: standard deviation over seeds; difference: to the best mean, with its se")
    if len(groups) > 1:
        lines.append("pairs: seeds that both groups have; 0: two independent samples (Welch)")
        number = len(groups) * (len(groups) - 1) // 2
        lines.append(f"within the noise: p is {LEVEL:g} or more (t test, two sides)")
        if number > 1:
            lines.append(
                f"perhaps: p is below {LEVEL:g}, but not p times the {number} pairs of groups"
            )
    lines += _warnings(groups)
    inside = {run.folder for group in groups for run in group.runs}
    outside = [str(run.folder) for run in runs if run.folder not in inside]
    if outside:
        lines.append(f"left out, without {part} figures of their weights: {', '.join(outside)}")
    return lines


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else setting(value)


def _cells(group: RunGroup) -> list[str]:
    found = group.figures
    known = [found.deviation, found.difference, found.standard_error]
    deviation, difference, error = ("-" if x is None else f"{x + 0.0:.3f}" for x in known)
    pairs = "-" if found.difference is None else str(found.num_pairs)
    counts = [str(found.num_runs), str(found.num_seeds)]
    return [*counts, f"{found.mean:.3f}", deviation, difference, error, pairs, found.verdict]


def _warnings(groups: Sequence[RunGroup]) -> list[str]:
    """What else differs within groups, so that the spread is not that of seeds alone."""
    other = sorted({OPTIONS.get(name, name) for group in groups for name in group.other})
    if not other:
        return []
    return [f"the runs of a group differ in {', '.join(other)} too: name these with --by as well"]


def group_content(groups: Sequence[RunGroup]) -> list[dict[str, Any]]:
    """The groups for programs."""
    return [
        {
            "settings": group.settings,
            "runs": [str(run.folder) for run in group.runs],
            "other": group.other,
            **asdict(group.figures),
        }
        for group in groups
    ]
