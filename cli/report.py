"""`pdvae report`: one HTML file that tells what runs are."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import user_errors
from .naming import OPTIONS, with_options
from .options import Device, DeviceOption, ForceOption, RunDataDirOption, TrustOption
from .pictures import own_settings
from .rows import failed_writes, file_for, open_run

if TYPE_CHECKING:
    from pyro_dvae import Run


_WIDEST = 74
"""The most characters of a line of a command, if no option is longer."""

RunsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        help="The folders of the runs. If left out: the newest run below runs/.",
        show_default=False,
    ),
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="The .html file to write.")]


def report(
    runs: RunsArgument = None,
    output: OutputOption = Path("report.html"),
    data_dir: RunDataDirOption = None,
    force: ForceOption = False,
    device: DeviceOption = Device.auto,
    trust_code: TrustOption = False,
) -> None:
    """Write one HTML file that tells what a run is, or several runs side by side.

    It opens offline in every browser. It shows what was trained and how to repeat it, the ELBO and
    the gaps to log p(x), what each latent and each category tells, codes to click through,
    reconstructions, samples, the most surprising data, and warnings with what to do.

    Example: pdvae report runs/mnist-d4k8-snapshot-1 -o report.html
    """
    file_for(output, (".html", ".htm"), force)
    with user_errors():
        from pyro_dvae.reports import Words, html_report, write_page

        folders: list[Path | None] = [*runs] if runs else [None]
        loaded = [open_run(folder, device, trust_code)[0] for folder in folders]
        with own_settings():
            text = html_report(loaded, data_dir=data_dir, words=Words(_worded, command_of))
    with failed_writes():
        write_page(text, output)
    names = ", ".join(str(run.folder) for run in loaded)
    print(f"{output}: {len(text.encode()) / 1e6:.1f} MB, of {names}")


def _worded(message: str) -> str:
    return with_options(message).replace("fit_guide", "pdvae fit-guide")


def command_of(run: Run) -> str | None:
    """The command that repeats a run; None if nothing can.

    Args:
        run: the run.
    """
    from pyro_dvae.reports import arguments_of

    found = arguments_of(run)
    if found is None:
        return _second_stage(run)
    given: dict[str, Any] = {"data": found.data, "data_dir": found.data_dir}
    given |= {**found.reading, **found.settings}
    words = [_option(name, value) for name, value in given.items() if value is not None]
    if "patience" in found.settings and found.settings["patience"] is None:
        words.append("--patience 0")
    return _lines("pdvae fit", words)


def _lines(command: str, words: list[str]) -> str:
    """A command in lines that a shell joins, of at most 76 characters where no option is longer."""
    lines = [command]
    for word in words:
        if len(lines[-1]) + len(word) > _WIDEST:
            lines.append(" ")
        lines[-1] += f" {word}"
    return " \\\n".join(lines)


def _option(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{OPTIONS[name]}" if value else f"--no-{OPTIONS[name]}"
    text = str(value)
    if isinstance(value, (tuple, list)):
        by = "x" if name == "size" else ","
        text = by.join(f'"{x}"' if "," in str(x) else str(x) for x in value)
    return f"--{OPTIONS[name]} {shlex.quote(text)}"


def _second_stage(run: Run) -> str | None:
    """The command of a run whose prior or guide was trained alone."""
    stage, config = run.data.second_stage, run.config
    if stage is None:
        return None
    given: dict[str, Any] = {"prior": config.prior} if stage.part == "prior" else {}
    for name in ("epochs", "batch_size", "learning_rate"):
        given[name] = vars(config)[name]
    given |= {"patience": config.patience or 0, "seed": stage.seed}
    words = [shlex.quote(stage.run), *(_option(name, value) for name, value in given.items())]
    return _lines(f"pdvae fit-{stage.part}", words)
