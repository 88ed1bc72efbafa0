"""`pdvae info`: what a run folder holds, and what can be done with it."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import fail, user_errors
from .figures import datum_name, progress_of, setting, stored_figures
from .naming import with_options
from .options import JsonOption, RunArgument
from .tables import aligned, figure

if TYPE_CHECKING:
    from pyro_dvae import EpochRecord
    from pyro_dvae.runs import RunInfo

T = TypeVar("T")


def info(
    run: RunArgument = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what a run folder holds, and how to continue the run.

    All files of the run are read. If one is damaged, its name is printed and the exit status is 1.

    Example: pdvae info runs/mnist-d4k8-snapshot-1
    """
    with user_errors():
        from pyro_dvae.runs import CONFIG, newest_run, read_config

        folder = run or newest_run()
        if not (folder / CONFIG).exists():
            read_config(folder)  # which complains
        content = _content(folder)
    print(json.dumps(content) if as_json else aligned(_lines(content), "<<"))
    if content["damaged"]:
        fail("; ".join(content["damaged"]), 1)


def _content(folder: Path) -> dict[str, Any]:
    """Everything that can be read; and under "damaged", why the rest cannot be read."""
    from pyro_dvae.runs import (
        STATE,
        data_to_json,
        describe_split,
        inspect_run,
        own_code,
        read_config,
        read_evaluation,
    )

    damaged: list[str] = []

    def attempt(read: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return read(*arguments)
        except (ValueError, OSError) as error:
            damaged.append(str(error))
            return None

    content: dict[str, Any] = {"run": str(folder)}
    file = attempt(read_config, folder)
    if file is not None:
        content |= {**file._asdict(), "config": asdict(file.config)}
        content |= {"data": data_to_json(file.data), "code": own_code(file.config)}
        content |= {"split": describe_split(file.data)}
    run = None if file is None else attempt(inspect_run, folder)
    if run is not None:
        content |= {"weights_epoch": run.epoch, "num_parameters": run.num_parameters}
    stopped = attempt(_stopped, folder) if (folder / STATE).exists() else None
    content["stopped"] = stopped
    epochs = attempt(_epochs, folder, 0 if stopped is None else stopped["epoch"])
    if epochs is not None:
        content |= _history(epochs)
    content["status"] = content["continue"] = None
    if file is not None and epochs is not None:
        content["status"] = status = progress_of(file.config, epochs)
        if stopped is not None:
            content["continue"] = _continue(folder, status, file.config.epochs)
    content["evaluation"] = attempt(read_evaluation, folder) or {}
    content["figures"] = {
        part: attempt(_figures, run, part) for part in content["evaluation"] if run is not None
    }
    content["files"] = {
        path.name: path.stat().st_size
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".")
    }
    return {**content, "damaged": damaged}


def _stopped(folder: Path) -> dict[str, int]:
    """The epoch and the step that a training would continue after."""
    from pyro_dvae.runs import GUIDE_STATE, STATE, read_state

    name, progress = STATE, read_state(folder).progress
    if (folder / GUIDE_STATE).exists():
        name, progress = GUIDE_STATE, read_state(folder, GUIDE_STATE).progress
    try:
        return {"epoch": progress["epoch"], "step": progress["step"]}
    except KeyError as error:
        raise ValueError(
            f"Expected the state of a training in {folder / name}; got {error!r}. Restore the file."
        ) from error


def _epochs(folder: Path, trained: int) -> list[EpochRecord]:
    from pyro_dvae.runs import METRICS, read_epochs

    epochs = read_epochs(folder)
    done = epochs[-1].epoch if epochs else 0
    if done < trained:  # each is written there before it is in the state
        raise ValueError(
            f"Expected the {trained} epochs of the training in {folder / METRICS}; got "
            f"{done}. Restore the file."
        )
    return epochs


def _history(epochs: list[EpochRecord]) -> dict[str, Any]:
    best = next((record for record in reversed(epochs) if record.is_best), None)
    information = [record.validation_information for record in epochs]
    return {
        "epochs": epochs[-1].epoch if epochs else 0,
        "best": 0 if best is None else best.epoch,
        "best_elbo": None if best is None else best.validation_elbo,
        "seconds": epochs[-1].seconds if epochs else 0.0,
        "information": [] if None in information else information,
    }


def _continue(folder: Path, status: str, epochs: int) -> str | None:
    command = f"pdvae fit --resume {shlex.quote(str(folder))}"
    if status.startswith("complete"):
        return f"{command} --epochs {max(1, 2 * epochs)}"
    return command if status.startswith("unfinished") else None


def _figures(run: RunInfo, part: str) -> str:
    scores, todo = stored_figures(run, part)
    if scores is None:
        return todo
    names = {
        "ELBO": "elbo",
        f"bound({scores.importance_samples})": "importance_bound",
        "log p(x)": "log_marginal",
    }
    known = {label: name for label, name in names.items() if getattr(scores, name) is not None}
    texts = [f"{label} {figure(scores, name)}" for label, name in known.items()]
    return f"{', '.join(texts)} nats/{datum_name(run.event_shape)}"


def _lines(content: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [("run", content["run"])]
    if "config" in content:
        lines += _setting_lines(content)
    if content["status"] is not None:
        lines.append(("training", f"{content['status']}, {content['seconds']:.0f} s"))
        if content["best_elbo"] is not None:
            elbo = (
                f"{content['best_elbo']:.2f} nats/{datum_name(content.get('event_shape', (0, 0)))}"
            )
            best = f"epoch {content['best']}, validation ELBO {elbo}"
            lines.append(("best", best))
    lines += [(part, text) for part, text in content["figures"].items() if text is not None]
    files = [f"{size:>11,}  {name}" for name, size in content["files"].items()]
    lines += _under("files", files)
    stopped = content["stopped"]
    if stopped is not None:
        where = f"epoch {stopped['epoch']}"
        where += f", step {stopped['step']} of the next" if stopped["step"] else ""
        lines.append(("state", f"after {where}"))
    else:
        lines.append(("state", "none that a training could continue from"))
    if content["continue"] is not None:
        lines.append(("continue", content["continue"]))
    if "weights_epoch" in content:
        lines.append(("sample", f"pdvae sample {shlex.quote(content['run'])}"))
    return lines


def _setting_lines(content: dict[str, Any]) -> list[tuple[str, str]]:
    from pyro_dvae.evaluation import describe_codes

    config, data = content["config"], content["data"]
    fingerprint = data.get("fingerprint", "unknown")
    counts = ", ".join(
        f"{data.get(f'num_{part}', 'unknown')} {part}" for part in ("train", "validation", "test")
    )
    shape = " x ".join(map(str, content["event_shape"]))
    codes = describe_codes(config["num_latents"], config["num_categories"])
    settings = ", ".join(f"{name}={setting(value)}" for name, value in config.items())
    number = content.get("num_parameters")
    parameters = "" if number is None else f", {number:,} parameters"
    own = f"{' and '.join(content['code'])}, not imported here" if content["code"] else None
    return [
        ("version", f"pyro_dvae {content['version']}"),
        ("data", f"{data.get('name')} from {data.get('source')}, fingerprint {fingerprint}"),
        (f"{datum_name(content['event_shape'])}s", f"{counts}; {shape}"),
        *_under("split", [with_options(line) for line in content["split"]]),
        ("model", f"K^D = {codes} codes{parameters}"),
        *([] if own is None else [("code", own)]),
        *_under("settings", textwrap.wrap(settings, 80, break_on_hyphens=False)),
    ]


def _under(label: str, texts: list[str]) -> list[tuple[str, str]]:
    """Lines for several texts, with the label before the first of them alone."""
    return [(label if i == 0 else "", text) for i, text in enumerate(texts)]
