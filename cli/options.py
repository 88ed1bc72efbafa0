"""Options that commands share; nothing here imports torch."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer


class Device(str, Enum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class PartName(str, Enum):
    """The name of a part of a run's data."""

    train = "train"
    validation = "validation"
    test = "test"


DeviceOption = Annotated[
    Device, typer.Option(help="auto: CUDA where there is one, else the CPU. One device is used.")
]
SeedOption = Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**62)]
RunSeedOption = Annotated[
    int | None, typer.Option(help="Of the draws; the run's if left out.", min=0, max=2**62)
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]

TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Import the modules that the run names, though it was not made here."
    ),
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
