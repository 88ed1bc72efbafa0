"""The Typer application: it only assembles the commands."""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

from .compare import compare
from .compress import compress, decompress
from .console import complain, surviving_output, warnings_in_lines
from .data import data
from .decode import decode
from .encode import encode
from .errors import CommandError, is_out_of_memory
from .evaluate import evaluate
from .explore import explore
from .export import export
from .fit import fit
from .gradients import gradients
from .help import Command
from .impute import impute
from .info import info
from .predict import predict
from .processes import one_voice
from .reconstruct import reconstruct
from .report import report
from .sample import sample
from .score import score
from .second_stage import fit_guide, fit_prior
from .share import pull, push
from .sweep import sweep
from .traverse import traverse

app = typer.Typer(
    name="pdvae",
    help="Discrete variational autoencoders: train, sample, study gradients.",
    add_completion=False,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
COMMANDS = (
    fit,
    fit_prior,
    fit_guide,
    sample,
    reconstruct,
    traverse,
    encode,
    decode,
    compress,
    decompress,
    score,
    impute,
    predict,
    evaluate,
    compare,
    sweep,
    report,
    explore,
    push,
    pull,
    export,
    info,
    gradients,
    data,
)
for command in COMMANDS:
    summary = (command.__doc__ or "").split("\n", 1)[0]
    # The options of fit that sweep is given are read by fit itself.
    passes = {"allow_extra_args": True, "ignore_unknown_options": True}
    settings = passes if command is sweep else None
    app.command(cls=Command, short_help=summary, context_settings=settings)(command)


def _version(shown: bool) -> None:
    if shown:
        from pyro_dvae import __version__

        print(f"pdvae {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(args: list[str] | None = None) -> None:
    """Run the command line; exit 0, 1 failed run, 2 bad input, 130 after Ctrl-C."""
    with surviving_output() as output:
        status = _run(args)
        output.flush()
        if output.error is not None:
            reason = output.error.strerror if isinstance(output.error, OSError) else None
            reason = reason or str(output.error)
            complain(f"cannot write to standard output ({reason}); all else was done")
            status = status or 1
    sys.exit(status)


def _run(args: list[str] | None) -> int:
    if sys.flags.optimize > 1:
        complain("Expected Python with its docstrings, which Pyro reads; got -OO. Use -O.")
        return 2
    try:
        given = sys.argv[1:] if args is None else args
        with warnings_in_lines(), one_voice(list(given)):
            status = app(args, prog_name="pdvae", standalone_mode=False, obj=list(given))
    except CommandError as error:
        complain(str(error))
        return error.status
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        return 130
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        got = f"{str(error.filename)[:60]!r}..., which is too long"
        complain(f"Expected the name of a file; got {got}. Shorten it.")
        return 2
    except Exception as error:
        if type(error).__name__ == "ProcessError":  # another process has ended
            complain(str(error))
            return 1
        if is_out_of_memory(error):
            complain(
                f"Expected enough memory; got {str(error).splitlines()[0] or 'none left'}. Lower "
                "the batch size, the number of draws, or the sizes of the model."
            )
            return 1
        # Typer's own complaints about the command line; anything else keeps its traceback.
        show = getattr(error, "format_message", None)
        if show is None:
            raise
        message = " ".join(show().split())
        complain(f"{message}{'' if message.endswith(('.', '?')) else '.'} See pdvae --help.")
        return 2
    if status == 130:  # Typer's answer to Ctrl-C
        complain("interrupted")
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    main()
