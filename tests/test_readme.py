"""What the README says of the code is so."""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path

import pytest

import pyro_dvae
import pyro_dvae.codes
import pyro_dvae.elbos.base
import pyro_dvae.likelihoods

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([\d, –]+|Alg\. 1) \| .* \| `([\w.]+)` \| `(test_\w+)` \|$", re.MULTILINE)
ROWS = ROW.findall(README)

# Equations that define notation or are steps of a derivation shown as a whole elsewhere.
UNMAPPED = {1, 2, 4, 5, 7, 11, 13, 30}


def numbers(text: str) -> set[int]:
    """The equation numbers in "31–38", "Eqs. 6 and 9" or "Eqs. 40 to 45"."""
    found = {int(number) for number in re.findall(r"\d+", text)}
    for low, high in re.findall(r"(\d+)(?:–| to )(\d+)", text):
        found |= set(range(int(low), int(high) + 1))
    return found


def cited(docstring: str) -> set[int]:
    text = " ".join(docstring.split())
    return set().union(*map(numbers, re.findall(r"Eqs?\. ((?:\d+|, | and | to )+)", text)))


@pytest.mark.parametrize(("equations", "symbol", "test"), ROWS)
def test_equation_map(equations: str, symbol: str, test: str) -> None:
    found = reduce(getattr, symbol.split("."), pyro_dvae)
    if equations == "Alg. 1":
        assert "Algorithm 1" in (found.__doc__ or "") + (pyro_dvae.training.trainer.__doc__ or "")
    else:
        assert numbers(equations) <= cited(found.__doc__ or "")
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    assert any(f"def {test}(" in source for source in sources)


def test_equation_map_is_complete() -> None:
    mapped = set().union(*(numbers(row[0]) for row in ROWS if row[0] != "Alg. 1"))
    assert mapped == set(range(1, 87)) - UNMAPPED
    assert "Alg. 1" in [row[0] for row in ROWS]


def test_every_command_and_option_is_in_the_readme() -> None:
    from pdvae_cli.main import app
    from typer.main import get_command

    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        assert f"pdvae {name}" in README
        for parameter in command.params:
            options = [option for option in parameter.opts if option.startswith("--")]
            assert all(f"`{option}`" in README for option in options if option != "--help"), options


def test_every_option_of_the_readme_exists() -> None:
    from pdvae_cli.main import app
    from typer.main import get_command

    commands = get_command(app)
    known = {
        option
        for command in [commands, *commands.commands.values()]  # type: ignore[attr-defined]
        for parameter in command.params
        for option in [*parameter.opts, *parameter.secondary_opts]
    }
    for script in (ROOT / "examples").rglob("*.py"):
        known |= set(re.findall(r"--[a-z][\w-]+", script.read_text(encoding="utf-8")))
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]+", README)) <= known | {"--help"}


def test_options_of_data_are_those_that_the_readme_gives_each_command() -> None:
    from pdvae_cli.main import app
    from typer.main import get_command

    takes = {"encode": "--data", "score": "--data", "reconstruct": "--input", "traverse": "--input"}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        options = {option for parameter in command.params for option in parameter.opts}
        if name in takes:
            assert options & {"--data", "--input"} == {takes[name]}
    assert "`encode` and `score` take the run's own data or a file: `--data`" in README
    assert "take the run's test data, or a file: `--input` FILE" in README


def test_every_public_name_is_in_the_readme() -> None:
    for name in pyro_dvae.__all__:
        assert name == "__version__" or f"`{name}" in README, name
