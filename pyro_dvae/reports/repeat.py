"""What repeats a run: the arguments of `open_source` and the settings of `start_run`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

from pyro_dvae.defaults import RunSettings
from pyro_dvae.runs import Run
from pyro_dvae.runs.reading import AS_IT_IS

_FOUND = ("compile",)
"""Settings that are found anew, and do not change what is learned."""
_DECIDED = (
    *("num_latents", "num_categories", "prior", "hidden", "dropout", "estimator", "epochs"),
    *("guide_epochs", "patience", "averaging", "annealing", "learning_rate", "warmup", "cooldown"),
    *("reinmax_steps", "validation", "seed"),
)
"""Settings that are always named, since the size of the data may decide another value, and what
identifies a run."""

_WIDEST = 74


class Arguments(NamedTuple):
    """What a user names to train a run again."""

    data: str
    """The name of the data set, or the path of the file or folder."""
    data_dir: str | None
    reading: dict[str, Any]
    """How files are read, the arguments of `open_source`."""
    settings: dict[str, Any]
    """Those settings of `Config` that are not the default."""


def arguments_of(run: Run) -> Arguments | None:
    """What repeats a run; None if the run does not know its data, or is a second stage.

    Args:
        run: the run.
    """
    data, config = run.data, run.config
    where = data.path or data.name
    if where is None or data.second_stage is not None or data.fingerprint is None:
        return None
    reading = {
        name: value
        for name, value in data.reading._asdict().items()
        if value != AS_IT_IS._asdict()[name]
    }
    settings = {
        setting.name: value
        for setting in fields(RunSettings)
        if (value := vars(config)[setting.name]) != setting.default or setting.name in _DECIDED
    }
    for name in (*_FOUND, "num_classes"):
        settings.pop(name, None)
    return Arguments(where, data.data_dir, reading, settings)


def python_command(run: Run) -> str | None:
    """The lines of Python that repeat a run; None if nothing can.

    Args:
        run: the run.
    """
    found = arguments_of(run)
    if found is None:
        return None
    reading = {"data_dir": found.data_dir} if found.data_dir is not None else {}
    where = [repr(found.data), *_given(reading | found.reading)]
    return (
        "from pyro_dvae.data import open_source\n"
        "from pyro_dvae.runs import start_run\n\n"
        f"source = open_source(\n{_lines(where)}\n)\n"
        f"training = start_run(\n{_lines(['source', *_given(found.settings)])}\n)\n"
        "with training:\n"
        "    for record in training.epochs():\n"
        "        print(record)\n"
        "    training.finish()"
    )


def _given(values: dict[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in values.items()]


def _lines(arguments: list[str]) -> str:
    """Arguments of a call, in lines of at most 76 characters where they have no longer one."""
    lines = ["   "]
    for argument in arguments:
        if len(lines[-1]) + len(argument) > _WIDEST and lines[-1].strip():
            lines.append("   ")
        lines[-1] += f" {argument},"
    return "\n".join(lines)
