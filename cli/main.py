"""The Typer application: it only assembles the commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .compare import compare
from .data import data
from .decode import decode
from .encode import encode
from .evaluate import evaluate
from .fit import fit
from .fit_prior import fit_prior
from .gradients import gradients
from .info import info
from .options import CommandError
from .reconstruct import reconstruct
from .sample import sample
from .score import score
from .traverse import traverse

app = typer.Typer(
    name="pdvae",
    help="Discrete variational autoencoders: train, sample, study gradients.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(fit)
app.command()(fit_prior)
app.command()(sample)
app.command()(reconstruct)
app.command()(traverse)
app.command()(encode)
app.command()(decode)
app.command()(score)
app.command()(evaluate)
app.command()(compare)
app.command()(info)
app.command()(gradients)
app.command()(data)


def _version(shown: bool) -> None:
    if shown:
        from importlib.metadata import version

        print(f"pdvae {version('pyro-dvae')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main(args: list[str] | None = None) -> None:
    """Run the command line; exit 0, 1 failed run, 2 bad input, 130 after Ctrl-C."""
    try:
        status = app(args, standalone_mode=False)
    except CommandError as error:
        print(f"pdvae: {error}", file=sys.stderr)
        sys.exit(error.status)
    except (KeyboardInterrupt, typer.Abort):
        print("pdvae: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        # Typer's own complaints about the command line; anything else keeps its traceback.
        show = getattr(error, "format_message", None)
        if show is None:
            raise
        message = " ".join(show().split()).rstrip(".")
        print(f"pdvae: {message}. See pdvae --help.", file=sys.stderr)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
