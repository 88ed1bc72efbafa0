"""What was trained on what, how to repeat it, and where it ran."""

from __future__ import annotations

import platform
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any

import matplotlib
import pyro
import torch

from pyro_dvae._version import __version__
from pyro_dvae.defaults import RunSettings
from pyro_dvae.evaluation import describe_codes
from pyro_dvae.reports.blocks import Block, Code, Group, Section, Table, Text
from pyro_dvae.reports.opened import Reported
from pyro_dvae.runs import describe_split


def overview(reported: Reported) -> Section:
    """The data, the model, the training, and the command that repeats it."""
    run, config, data = reported.run, reported.config, reported.run.data
    epochs = run.metrics
    shape = " x ".join(map(str, run.event_shape)) or "a single number"
    unit = {"image": " pixels", "row": " columns" if reported.is_table else ""}[reported.datum]
    sizes = {"training": data.num_train, "validation": data.num_validation, "test": data.num_test}
    known = [f"{size:,} {name}" for name, size in sizes.items() if size is not None]
    number = "an unknown number of" if run.num_parameters is None else f"{run.num_parameters:,}"
    codes = describe_codes(config.num_latents, config.num_categories)
    seconds = epochs[-1].seconds if epochs else 0.0
    done = max((record.epoch for record in epochs if not record.of_guide), default=0)
    further = len(epochs) and epochs[-1].epoch - done
    guide = f" and {further} of {config.guide_epochs} of the guide alone" if further else ""
    rows = [
        ["Data", f"{data.name or 'unknown'}, from {data.source or 'an unknown place'}"],
        ["Sizes", f"{', '.join(known) or 'unknown'} {reported.datum}s of {shape}{unit}"],
        [
            "Code",
            f"D = {config.num_latents} latents of K = {config.num_categories} categories: "
            f"K^D = {codes} codes",
        ],
        [
            "Model",
            f"prior {config.prior}, likelihood {config.likelihood}, guide {config.guide}, "
            f"networks {_networks(config)}, {number} weights",
        ],
        [
            "Training",
            f"estimator {config.estimator} with {_draws(config.particles)}, "
            f"{done} of {config.epochs} epochs{guide} ({run.status}), {_duration(seconds)}",
        ],
        [
            "Weights",
            f"of epoch {run.epoch}, the best one by the validation data"
            if config.validation
            else f"of epoch {run.epoch}, the last one",
        ],
    ]
    for line in describe_split(data):
        rows.append(["Split", reported.words.text(line)])
    blocks: list[Block] = [
        Table("What was trained on what", ["", ""], rows, left=(1,)),
    ]
    blocks += _how_to_repeat(reported)
    return Section("overview", "What was trained", blocks)


def _how_to_repeat(reported: Reported) -> list[Block]:
    stage = reported.run.data.second_stage
    command = reported.words.command(reported.run)
    settings = Group("All settings", [_settings(reported)], folded=True)
    if command is None:
        why = "This run was made by save_run in Python, from a model that was already trained."
        if stage is not None:
            why = (
                f"This run is a second stage: the {stage.part} of {stage.run}, epoch "
                f"{stage.epoch}, was trained alone."
            )
        return [Text(why, "To repeat it."), settings]
    told = "This trains the same model on the same rows, with the same seed."
    return [Text(told, "To repeat it."), Code(command, "What repeats the run"), settings]


def _settings(reported: Reported) -> Table:
    config = vars(reported.config)
    rows = [
        [setting.name, _setting(config[setting.name]), _setting(setting.default)]
        for setting in fields(RunSettings)
    ]
    return Table("Settings of the run", ["setting", "value", "default"], rows, left=(1, 2))


def _setting(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _networks(config: Any) -> str:
    if config.encoder or config.decoder:
        own = [name for name in (config.encoder, config.decoder) if name]
        return " and ".join(own)
    return f"{config.network} {'-'.join(map(str, config.hidden))}"


def _draws(number: int) -> str:
    return f"{number} draw{'s' * (number != 1)} per datum"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def environment(reported: Reported) -> Section:
    """The versions of everything, the machine, and what says that the data are the same."""
    run = reported.run
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    rows = [
        ["Run folder", str(run.folder)],
        ["pyro_dvae that trained the run", run.version],
        ["pyro_dvae that wrote this page", __version__],
        ["Python", platform.python_version()],
        ["PyTorch, Pyro", f"{torch.__version__}, {pyro.__version__}"],
        ["matplotlib", matplotlib.__version__],
        ["Machine of this page", f"{platform.system()} {platform.machine()}"],
        ["Device of this page", str(next(run.vae.parameters()).device)],
        ["Seeds", f"{run.config.seed} of the training, {run.config.split_seed} of the split"],
        ["Fingerprint of the data", run.data.fingerprint or "unknown"],
        ["Written", now],
    ]
    return Section(
        "environment", "Environment", [Table("Versions, seeds and data", ["", ""], rows, left=(1,))]
    )
