"""The command of a page repeats its run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pdvae_cli.naming import OPTIONS
from pdvae_cli.report import command_of
from reports.made import runs

from pyro_dvae import load_run
from pyro_dvae.defaults import RunSettings
from pyro_dvae.reports.repeat import python_command
from pyro_dvae.runs.reading import Reading

Run = Callable[..., tuple[int, str, str]]

NAMES = ("images", "table")


def words_of(command: str) -> list[str]:
    """The words of a command, as a shell reads them."""
    return shlex.split(command.replace("\\\n", ""))


def same(one: Path, other: Path) -> bool:
    """Whether two runs have the same settings and weights."""
    first, second = load_run(one), load_run(other)
    weights = zip(first.vae.state_dict().values(), second.vae.state_dict().values(), strict=True)
    return first.config == second.config and all(torch.equal(x, y) for x, y in weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_command_trains_the_same_model(
    pdvae: Run, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, name: str
) -> None:
    folder = runs(tmp_path_factory)[name]
    torch.set_default_dtype(torch.float32)
    command = command_of(load_run(folder))
    assert command is not None
    assert max(map(len, command.splitlines())) <= 120
    words = words_of(command)
    assert words[:2] == ["pdvae", "fit"]
    status, _, err = pdvae("fit", tmp_path / "again", *words[2:])
    assert status == 0, err
    assert same(folder, tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_lines_of_python_train_the_same_model(
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    folder = runs(tmp_path_factory)[name]
    torch.set_default_dtype(torch.float32)
    lines = python_command(load_run(folder))
    assert lines is not None
    monkeypatch.chdir(tmp_path)
    its: dict[str, Any] = {}
    exec(lines, its)
    assert same(folder, its["training"].folder)


def test_every_setting_has_an_option() -> None:
    settings = {setting.name for setting in fields(RunSettings)} - {"num_classes"}  # of the labels
    assert settings | set(Reading._fields) <= OPTIONS.keys()


def test_a_run_without_known_data_has_no_command() -> None:
    torch.set_default_dtype(torch.float32)
    run = load_run(Path(__file__).parents[1] / "fixtures" / "run-format-3")
    assert command_of(run) is None
    assert python_command(run) is None


def test_values_are_quoted() -> None:
    torch.set_default_dtype(torch.float32)
    run = load_run(Path(__file__).parents[1] / "fixtures" / "run-format-3")
    path = "/some where/it's $HOME.csv"
    reading = run.data.reading._replace(drop=("a,b", "c"), size=(2, 3), header=False)
    data = replace(run.data, path=path, fingerprint="0" * 16, reading=reading)
    command = command_of(replace(run, data=data))
    assert command is not None
    words = words_of(command)
    assert words[words.index("--data") + 1] == path
    assert words[words.index("--drop") + 1] == '"a,b",c'
    assert words[words.index("--size") + 1] == "2x3"
    assert "--no-header" in words
