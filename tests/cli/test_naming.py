"""Messages of the library, which name settings, as the command line shows them."""

from __future__ import annotations

import warnings
from dataclasses import fields

import pytest
import typer
from pdvae_cli.console import complain, warnings_in_lines
from pdvae_cli.errors import CommandError, user_errors
from pdvae_cli.main import app
from pdvae_cli.naming import OPTIONS, with_options

from pyro_dvae import Config


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("Widen range=(0, 255), or clip.", "Widen --range 0,255, or clip."),
        ("Use range=(LOW, HIGH).", "Use --range LOW,HIGH."),
        ('Use likelihood="categorical:16".', "Use --likelihood categorical:16."),
        ("Use likelihood='mixed:normal*3,poisson'.", "Use --likelihood mixed:normal*3,poisson."),
        ("or validation=0.05.", "or --val 0.05."),
        ("pass num_latents=49, say", "pass --latents 49, say"),
        ("Lower learning_rate=1e-3.", "Lower --lr 1e-3."),
        ("Pass size=(28, 28).", "Pass --size 28x28."),
        ("Pass hidden=(512,).", "Pass --hidden 512."),
        ('Pass columns=["a", "b c"].', "Pass --columns 'a,b c'."),
        ("Pass data_dir=..., or", "Pass --data-dir, or"),
        ("Pass trust_code=True.", "Pass --trust-code."),
        ("pass header=False", "pass --no-header"),
        ("Use binarize=None.", "Use no --binarize."),
        ("(compiled=False)", "(--no-compile)"),
        ("D=4 latents, num_samples=16, K^D = 5", "D=4 latents, num_samples=16, K^D = 5"),
    ],
)
def test_settings_become_options(message: str, shown: str) -> None:
    assert with_options(message) == shown


def test_every_setting_has_an_option() -> None:
    commands = typer.main.get_group(app).commands.values()
    options = {name for command in commands for p in command.params for name in p.opts}
    options |= {name for command in commands for p in command.params for name in p.secondary_opts}
    assert {f"--{option}" for option in OPTIONS.values()} <= options
    assert {field.name for field in fields(Config)} - OPTIONS.keys() == {"num_classes"}


def test_errors_and_warnings_show_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError) as refusal, user_errors():
        raise ValueError("Use prior='learned'.")
    complain(str(refusal.value))
    with warnings_in_lines():
        warnings.simplefilter("always")
        warnings.warn("It needs trust_code=True.", stacklevel=1)
    assert capsys.readouterr().err == "pdvae: Use --prior learned.\npdvae: It needs --trust-code.\n"
