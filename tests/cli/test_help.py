"""The help of all commands: whole sentences, the library's names, and the defaults of settings."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from pdvae_cli.main import app
from pdvae_cli.options import DEFAULTS
from typer.main import get_command

from pyro_dvae import Config
from pyro_dvae.guides import GUIDES
from pyro_dvae.likelihoods import LIKELIHOODS
from pyro_dvae.networks import ENCODERS
from pyro_dvae.priors import PRIORS
from pyro_dvae.runs import ESTIMATORS

Run = Callable[..., tuple[int, str, str]]
COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
FIT = {parameter.name: parameter for parameter in COMMANDS["fit"].params}
SETTINGS = [field.name for field in fields(Config) if field.name in FIT]


@pytest.fixture
def show(pdvae: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def show(*arguments: str, width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        status, out, err = pdvae(*arguments)
        assert (status, err) == (0, "")
        assert all(len(line) <= width for line in out.splitlines())
        return out

    return show


# --- The list of commands ---


@pytest.mark.parametrize("width", [80, 100])
def test_the_sentence_of_each_command_is_whole(show: Callable[..., str], width: int) -> None:
    listed = " ".join(show("--help", width=width).partition("Commands:")[2].split())
    sentences = [f"{name} {command.help.splitlines()[0]}" for name, command in COMMANDS.items()]
    assert listed == " ".join(sentences)
    assert all(sentence.endswith(".") for sentence in sentences)


def test_without_a_command_the_help_is_printed(show: Callable[..., str]) -> None:
    assert show(width=80) == show("--help", width=80)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["fitt"], "No such command 'fitt'. Did you mean 'fit'? See pdvae --help."),
        (["zzzz"], "No such command 'zzzz'. See pdvae --help."),
        (["info", "--zzzz"], "No such option: --zzzz. See pdvae --help."),
    ],
)
def test_a_word_that_is_unknown(pdvae: Run, arguments: list[str], line: str) -> None:
    assert pdvae(*arguments) == (2, "", f"pdvae: {line}\n")


# --- The help of each command ---


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_is_made_of_sentences(show: Callable[..., str], name: str) -> None:
    for parameter in COMMANDS[name].params:
        assert parameter.help.endswith("."), parameter.name
        assert not re.search(r"see the README|\.\.\.", parameter.help), parameter.name
    shown = " ".join(show(name, "--help", width=80).split())
    for parameter in COMMANDS[name].params:  # whole, and with no name broken at its hyphens
        assert " ".join(parameter.help.split()) in shown, parameter.name


def test_options_of_one_name_have_the_same_words() -> None:
    words: dict[str, set[str]] = defaultdict(set)
    for command in COMMANDS.values():
        for parameter in command.params:
            if parameter.param_type_name == "option":
                words[parameter.opts[0]].add(parameter.help.partition(" If left out:")[0])
    differ = {option for option, texts in words.items() if len(texts) > 1}
    # These mean different things: what is written, of which model, how many of what, and how rows
    # are kept apart or which of them are looked at; sweeps that are used, or compared; and what
    # data are scored by, or runs put into groups.
    own = {"--batch-size", "--data", "--data-dir", "--force", "--input", "--iw-samples", "--num"}
    own |= {"--by"}
    own |= {"--means", "--draws", "--output", "--probabilities", "--refine", "--split"}
    assert differ <= own


def test_options_of_fit_are_in_groups(show: Callable[..., str]) -> None:
    out = show("fit", "--help", width=120)
    headings = re.findall(r"^(\w[\w ]*):$", out, re.MULTILINE)
    assert headings == ["Arguments", "Model", "Training", "Your data", "Run"]
    assert re.search(r"\n  --help [^\n]*\n\Z", out)


def test_examples_can_be_pasted(show: Callable[..., str]) -> None:
    for name in COMMANDS:
        example = re.search(r"Example: (.*)$", COMMANDS[name].help, re.MULTILINE)
        assert example is not None
        assert example[1].startswith(f"pdvae {name} ")
        assert f"  Example: {example[1]}\n" in show(name, "--help", width=80)


def test_arguments_stand_before_options(show: Callable[..., str]) -> None:
    for name in ("fit", "encode", "score", "gradients"):
        out = show(name, "--help", width=80)
        groups = re.findall(r"^(\w[\w ]*):$", out, re.MULTILINE)
        order = ["Arguments", "Options", "Model", "Training", "Your data", "Run"]
        assert groups == [group for group in order if group in groups]


# --- Settings ---


def test_every_setting_is_an_option_of_fit() -> None:
    assert {field.name for field in fields(Config)} - set(SETTINGS) == {"num_classes"}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_default_of_an_option_is_that_of_the_setting(name: str) -> None:
    default = FIT[name].default
    if name in ("binarize", "validation", "test"):  # the data decide
        assert default is None
        assert "If left out: " in FIT[name].help
        return
    if name == "hidden":
        default = tuple(map(int, default.split(",")))
    assert default == getattr(DEFAULTS, name)
    assert type(default) is type(getattr(DEFAULTS, name))


@pytest.mark.parametrize("command", ["fit-prior", "fit-guide", "gradients"])
def test_other_commands_have_the_defaults_of_the_settings(command: str) -> None:
    shared = {p.name: p.default for p in COMMANDS[command].params if p.name in SETTINGS}
    changed = {name for name, value in shared.items() if value != getattr(DEFAULTS, name)}
    # fit-prior fits another prior. Both stages have the run's seed, and a guide needs few epochs.
    assert changed <= {"prior", "seed", "epochs"}
    assert len(shared) > 3


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("prior", PRIORS),
        ("likelihood", LIKELIHOODS),
        ("guide", GUIDES),
        ("network", ENCODERS),
        ("estimator", ESTIMATORS),
    ],
)
def test_the_help_names_all_parts(name: str, known: dict[str, Any]) -> None:
    assert set(known) <= set(re.findall(r"[\w-]+", FIT[name].help))


def test_the_help_tells_what_estimators_can_do() -> None:
    drawn: dict[int, list[str]] = {}
    for name, row in ESTIMATORS.items():
        drawn.setdefault(row.particles, []).append(name)
    del drawn[1]
    listed = {n: ", ".join(names[:-1]) for n, names in drawn.items()}
    told = [f"{n} for {listed[n]}{' and ' * bool(listed[n])}{drawn[n][-1]}" for n in sorted(drawn)]
    assert f"If left out: {', '.join(told[::-1])}, and 1 for" in FIT["num_particles"].help
    without = [name for name, row in ESTIMATORS.items() if not row.has_beta]
    assert f"0 for the estimators {' and '.join(without)}," in FIT["annealing"].help
