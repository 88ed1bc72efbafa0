"""`config.json`, a run's settings and the record of its data: written, read and checked."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from pyro_dvae._version import __version__
from pyro_dvae.checks import shortened
from pyro_dvae.networks.trust import is_mark, is_there, make_mark, module_of
from pyro_dvae.priors import PRIORS
from pyro_dvae.runs.config import Config, model_code, own_code
from pyro_dvae.runs.fields import check_fields
from pyro_dvae.runs.reading import Reading
from pyro_dvae.runs.record import DataRecord, SecondStage
from pyro_dvae.runs.splitting import SplitRecord
from pyro_dvae.runs.storage import read_json, write_json
from pyro_dvae.specs import name_and_argument

FORMAT = 3
"""The version of the folder's format. It is raised when older versions would misread it."""

CONFIG = "config.json"

_MOST_DIMENSIONS = 64
"""The most dimensions of a datum, for PyTorch has no more."""
_TOP = {"format": int, "pyro_dvae": str, "event_shape": list[int], "data": dict[str, Any]}
_TOP |= {"config": dict[str, Any], "mark": str}
_DATA: dict[str, Any] = {
    **dict.fromkeys(("name", "source", "path", "data_dir", "fingerprint", "binarize"), str),
    **dict.fromkeys(("num_train", "num_validation", "num_test"), int),
    **dict.fromkeys(("columns", "label_names"), list[str] | None),
    "levels": dict[str, list[str]],
    "options": dict[str, Any],
    "held_out": dict[str, str],
    "span": list[float | None],
    "split": dict[str, Any] | None,
    "data_per_label": float,
    "second_stage": dict[str, Any],
}
_SPLIT: dict[str, Any] = {
    "rows": str,
    **dict.fromkeys(("num_copies", "num_groups"), int | None),
    "num_dropped": int,
    "num_shared": dict[str, int],
}
_OPTIONS: dict[str, Any] = {
    "key": str | None,
    **dict.fromkeys(("columns", "drop", "nominal"), list[str | int] | None),
    **dict.fromkeys(("labels", "ids", "group", "time"), str | int | None),
    **dict.fromkeys(("dates", "other"), bool | None),
    "size": tuple[int, int] | None,
    "channels": int | None,
}
"""The types of the values beside the settings. A value of another name may be anything."""


class ConfigFile(NamedTuple):
    """What `config.json` holds."""

    event_shape: tuple[int, ...]
    """Shape of a datum."""
    data: DataRecord
    version: str
    """The version of the library that made the run."""

    @property
    def config(self) -> Config:
        """The run's settings."""
        return self.data.config


def write_config(folder: str | Path, data: DataRecord, event_shape: Sequence[int]) -> None:
    """Write `config.json`.

    Where the settings name code of the user's own, the file also holds a mark by which
    `trusted_config` knows that this user made the run; see `networks/trust.py`.

    Args:
        folder: the run's.
        data: its settings, and what it remembers of its data.
        event_shape: shape of a datum.

    Warns:
        UserWarning: the mark cannot be made.
    """
    content = config_to_json(data, event_shape)
    own = _marked(data)
    if own:
        mark = make_mark(own)
        if mark is None:
            warnings.warn(
                f"To load {folder} will need trust_code=True: no secret can be kept in "
                "$XDG_STATE_HOME or ~/.local/state by which your own run would be known again.",
                stacklevel=2,
            )
        else:
            content["mark"] = mark
    write_json(Path(folder) / CONFIG, content)


def config_to_json(
    data: DataRecord, event_shape: Sequence[int], version: str = __version__
) -> dict[str, Any]:
    """What `config.json` holds, without the mark of who made the run.

    Args:
        data: the settings of a run, and what it remembers of its data.
        event_shape: shape of a datum.
        version: of the library that made the run.
    """
    return {
        "format": FORMAT,
        "pyro_dvae": version,
        "config": asdict(data.config),
        "event_shape": list(event_shape),
        "data": data_to_json(data),
    }


def data_to_json(data: DataRecord) -> dict[str, Any]:
    """What `config.json` holds under "data"."""
    where = {"name": data.name, "path": data.path, "data_dir": data.data_dir}
    found = {
        "span": None if data.span is None else list(data.span),
        "source": data.source,
        "fingerprint": data.fingerprint,
        "binarize": data.config.binarize,
        "num_train": data.num_train,
        "num_validation": data.num_validation,
        "num_test": data.num_test,
        "held_out": dict(data.held_out),
        "split": None if data.split is None else data.split._asdict(),
        "data_per_label": data.data_per_label,
        "second_stage": None if data.second_stage is None else data.second_stage._asdict(),
    }
    return {
        "options": _known(data.reading._asdict()),
        **_known(where),
        "columns": None if data.columns is None else list(data.columns),
        "label_names": None if data.label_names is None else list(data.label_names),
        **({"levels": {k: list(v) for k, v in data.levels.items()}} if data.levels else {}),
        **_known(found),
    }


def data_from_json(content: Mapping[str, Any], config: Config) -> DataRecord:
    """The record that `data_to_json` of this version, or of an older one, made a dict of.

    Args:
        content: what `config.json` holds under "data"; names that are unknown here do not count.
        config: the run's settings.

    Raises:
        ValueError: a value is of another type than it must have.
    """
    check_fields(content, _DATA)
    options, stage = content.get("options", {}), content.get("second_stage")
    check_fields(options, _OPTIONS)
    check_fields(content.get("split") or {}, _SPLIT)
    if not options.keys() <= set(Reading._fields):
        raise ValueError(f"Expected how the data are read; got {shortened(options)}. Mend it.")
    span, split = _tuple(content.get("span")), content.get("split")
    plain = ["name", "source", "path", "data_dir", "fingerprint", "held_out"]
    plain += ["num_train", "num_validation", "num_test", "data_per_label"]
    if not 0 < content.get("data_per_label", 1) < math.inf:
        raise ValueError(f"Expected data per label; got {content['data_per_label']}. Mend them.")
    return DataRecord(
        config,
        reading=Reading(**{name: _tuple(value) for name, value in options.items()}),
        columns=_tuple(content.get("columns")),
        label_names=_tuple(content.get("label_names")),
        levels={name: tuple(names) for name, names in content.get("levels", {}).items()},
        span=None if span is None or None in span else span,
        split=None if split is None else SplitRecord(**split),
        second_stage=None if stage is None else SecondStage(**stage),
        **{name: content[name] for name in plain if name in content},
    )


def _marked(data: DataRecord) -> list[str]:
    """The code that a mark is made for; a second stage never builds the estimator of the first."""
    return own_code(data.config) if data.second_stage is None else model_code(data.config)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value  # JSON has lists


def read_config(folder: str | Path) -> ConfigFile:
    """Read `config.json`. Code that it names is not imported.

    Raises:
        ValueError: there is no run, one of a newer format, or a damaged file.
    """
    return _read_config(Path(folder))[0]


def _read_config(folder: Path) -> tuple[ConfigFile, object]:
    """The settings, and the mark."""
    path = folder / CONFIG
    if not path.exists():
        raise ValueError(
            f"Expected a run folder with a {CONFIG}; got {folder}. Name the folder of a training."
        )
    try:
        content = read_json(path)
        check_fields(content, _TOP)
        if content["format"] > FORMAT:
            version = shortened(content["pyro_dvae"])
            newer = f"{FORMAT} or older; got format {content['format']} in {path}"
            raise _NewerFormatError(
                f"Expected a run of format {newer}. Update pyro_dvae (the run was made by "
                f"{version})."
            )
        event_shape = tuple(content["event_shape"])
        if len(event_shape) > _MOST_DIMENSIONS or not all(0 < n < 2**63 for n in event_shape):
            raise ValueError(f"Expected sizes of a datum; got {shortened(event_shape)}. Mend them.")
        config = Config(**{**_before(content["config"]), **content["config"]})
        prior = name_and_argument(config.prior)[0]
        if config.num_classes and prior in PRIORS and prior != "conditional":
            raise ValueError(
                f"Expected no classes beside the {config.prior} prior, which knows none; got "
                f"{config.num_classes}. Mend them."
            )
        data = data_from_json(content["data"], config)
        return ConfigFile(event_shape, data, content["pyro_dvae"]), content.get("mark")
    except _NewerFormatError:
        raise
    except (KeyError, TypeError, ValueError, OSError) as error:
        what = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise ValueError(
            f"Expected a run's settings in {path}; got: {what}{str(error).rstrip('.')}. Restore "
            "the file."
        ) from error


def _before(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of runs that are older than the settings, where the default is another."""
    # The first runs were neither annealed nor compiled. Later ones split rows by the one seed.
    split = {"split_seed": settings.get("seed", 0), "group_copies": False}
    return {"annealing": 0, "compile": False, **split}


class _NewerFormatError(ValueError):
    """The run is whole, but this version cannot read it."""


def trusted_config(
    folder: str | Path, *, trust_code: bool = False, trains: bool = False
) -> ConfigFile:
    """Read `config.json` where the model is to be built, which imports code that it names.

    Args:
        folder: the run's.
        trust_code: whether the user trusts that code, whoever made the run.
        trains: whether the estimator is to be built too.

    Raises:
        ValueError: there is no run, one of a newer format, or a damaged file; or the run names
            code, this user did not make it here, and `trust_code` is False.
    """
    settings, mark = _read_config(Path(folder))
    own = _marked(settings.data)
    needed = own if trains else model_code(settings.config)
    would_run = any(map(is_there, needed))  # else the import says what is missing
    if would_run and not trust_code and not is_mark(mark, own):
        modules = " and ".join(dict.fromkeys(map(module_of, needed)))
        raise ValueError(
            f"Expected a run that you made here with the code that it names; got {folder}, which "
            f"names {' and '.join(needed)}: to load it would run {modules}. Look at this code, "
            "then pass trust_code=True."
        )
    return settings
