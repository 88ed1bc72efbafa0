"""`pdvae export`: a run as files that run without this library."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from .errors import CommandError, user_errors
from .options import Device, RunArgument, TrustOption
from .rows import failed_writes, open_run, weights_of


class Format(str, Enum):
    """The format of the files."""

    onnx = "onnx"
    torch = "torch"


def export(
    run: RunArgument = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The new folder that gets the files.")
    ] = Path("exported"),
    format: Annotated[
        Format,
        typer.Option(
            help="onnx, which many programs and browsers run and which needs "
            "pip install 'pyro-dvae[onnx]'; or torch, which PyTorch alone runs."
        ),
    ] = Format.onnx,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the folder if it holds an export already.")
    ] = False,
    trust_code: TrustOption = False,
) -> None:
    """Write the encoder and the decoder as files that run without this library.

    The encoder takes data and gives the logits of q(z|x). The decoder takes one-hot codes and gives
    the parameters of p(x|z). metadata.json, and the files themselves, say how stored values become
    data, what the parameters mean, and what the prior is. The files are compared with the run
    before the folder is there.

    Example: pdvae export runs/mnist-d4k8-snapshot-1 -o exported
    """
    with user_errors():
        from pyro_dvae.exporting import SIZES, TOLERANCE, MissingOnnx, export_run

        loaded, _ = open_run(run, Device.cpu, trust_code)
        try:
            with failed_writes():
                found = export_run(loaded, output, format=format.value, replace=force)
        except MissingOnnx as error:
            raise CommandError(str(error)) from error
    largest = ", ".join(f"{value:.1e} ({name})" for name, value in found.differences.items())
    sizes = f"{', '.join(map(str, SIZES[:-1]))} and {SIZES[-1]}"
    print(f"largest difference from the run: {largest}; at most {TOLERANCE:g}, batches of {sizes}")
    print(f"{output}: {', '.join(found.files)}; {weights_of(loaded)}")
