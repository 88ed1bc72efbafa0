"""The options that several commands share, with their words. Nothing here imports torch."""

from __future__ import annotations

from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pyro_dvae.defaults import RunSettings

DEFAULTS = RunSettings()
"""The settings of a run whose user names none. Every option that is a setting has its default."""

model = partial(typer.Option, rich_help_panel="Model")
training = partial(typer.Option, rich_help_panel="Training")
your_data = partial(typer.Option, rich_help_panel="Your data")
run_option = partial(typer.Option, rich_help_panel="Run")
"""Options of one group each, under whose name the help lists them."""


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


class PosteriorOf(str, Enum):
    """Which q(z|x) is used."""

    encoder = "encoder"
    refined = "refined"
    exact = "exact"


RunArgument = Annotated[
    Path | None,
    typer.Argument(help="The folder of the run. If left out: the newest run below runs/."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, which other programs can read.")
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace the file to write if it exists.")
]
PartOption = Annotated[
    PartName, typer.Option("--split", help="The part of the data that the figures are of.")
]
MeansOption = Annotated[
    bool,
    typer.Option("--means/--draws", help="Write the means of p(x|z), or draws from p(x|z)."),
]

PosteriorOption = Annotated[
    PosteriorOf | None,
    typer.Option(
        "--posterior",
        help="Which q(z|x) is used: the one that the encoder computes; the same, refined for each "
        "datum by coordinate ascent on the ELBO; or the exact p(z|x), where all K^D codes can be "
        "summed over.",
        show_default=False,
    ),
]
RefineOption = Annotated[
    int | None,
    typer.Option(
        "--refine",
        metavar="N",
        help="Refine q(z|x) by N sweeps of coordinate ascent. It stands for --posterior refined, "
        "which alone takes 5 sweeps.",
        min=1,
        show_default=False,
    ),
]

# --- Model ---

LatentsOption = Annotated[
    int, model("--latents", help="D, the number of categorical variables in a code.")
]
CategoriesOption = Annotated[
    int, model("--categories", help="K, the number of categories of each of these variables.")
]
PriorOption = Annotated[
    str,
    model(
        metavar="NAME",
        help="p(z), the probability of a code before any data are seen: uniform, learned, "
        "autoregressive, mixture, vamp, hierarchical, boltzmann, rbm or conditional. Some take "
        "an argument, as in mixture:20. MODULE:FACTORY stands for your own. The README of "
        "pyro_dvae/priors explains them.",
    ),
]

# --- Training ---

EpochsOption = Annotated[int, training(help="The largest number of epochs to train.")]
StartOption = Annotated[
    str | None,
    training(
        metavar="NAME",
        help="Where the first weights come from: random, or mixture for those with which a model "
        "of one latent is a mixture fitted by EM. If left out: a mixture where --latents is 1 and "
        "there are fewer than 5 training rows per category, else random.",
    ),
]
PatienceOption = Annotated[
    int,
    training(
        help="The training stops after this many epochs without a better validation ELBO. With 0 "
        "it never stops early."
    ),
]
BatchSizeOption = Annotated[int, training(help="B, the number of data per training step.")]
LearningRateOption = Annotated[
    float, training("--lr", help="The learning rate of the optimiser, which is Adam.")
]

# --- Your data ---

DataDirOption = Annotated[
    Path | None,
    your_data(
        help="The folder with the files of a named data set. If left out: they are looked for in "
        "$PDVAE_DATA_DIR and in the cache, and are downloaded if they are not there."
    ),
]
RunDataDirOption = Annotated[
    Path | None,
    your_data(
        "--data-dir",
        help="The folder that the data are in now. If left out: the one that they were in when "
        "the run was trained.",
    ),
]


def run_data(left_out: str | None = None) -> Any:
    """The option for the data that a command works on: a part of the run's own, or others.

    Args:
        left_out: what is taken where the option is left out, if the default does not say it.
    """
    default = "" if left_out is None else f" If left out: {left_out}."
    return your_data(
        "--data",
        "--input",
        help="train, validation or test, which are the parts of the run's data; or a file, which "
        f"is read in the same way as the run's data were.{default}",
    )


RunDataOption = Annotated[str, run_data()]
LevelProbabilitiesOption = Annotated[
    bool,
    typer.Option(
        "--probabilities",
        help="Write the probability of each category of a column of categories, in columns such as "
        "island=Biscoe, in place of the most probable category. It needs a .csv file.",
    ),
]
CodeDrawsOption = Annotated[
    int,
    typer.Option(
        "--iw-samples",
        help="The number of codes drawn per datum, where there are too many codes to sum over.",
        min=2,
    ),
]
KeyOption = Annotated[
    str | None, your_data(help="The name of the array to read from a .npz file of several arrays.")
]
ColumnsOption = Annotated[
    str | None,
    your_data(
        help="The columns of a table to read, by name or by number from 0, such as a,b,7-9. If "
        "left out: all columns."
    ),
]
DropOption = Annotated[
    str | None,
    your_data(help="The columns of a table to leave out, written like those of --columns."),
]
LabelsOption = Annotated[
    str | None,
    your_data(help="The column of a table, or the array of a .npz file, that holds the labels."),
]
IdsOption = Annotated[
    str | None,
    your_data(help="The column of a table that names the rows. The model does not see it."),
]
GroupOption = Annotated[
    str | None,
    your_data(
        metavar="COLUMN|FILE|folder",
        help="What says which rows belong together, such as a patient or a writer: a column of a "
        "table; an array of a .npz file; a file with one value per row, or per name of an image "
        "(FILE.csv:COLUMN if it has several columns); or, for images, folder. Rows of one group "
        "are kept in one part. The model does not see it.",
    ),
]
TimeOption = Annotated[
    str | None,
    your_data(
        metavar="COLUMN|FILE",
        help="What says when each row was measured, as a number or a date; it is given like that "
        "of --group. The latest rows are kept apart for testing, and those before them for "
        "validation. The model does not see it, unless --columns names it.",
    ),
]
NominalOption = Annotated[
    str | None,
    your_data(
        help="The columns of a table whose numbers are names of categories, such as 4, 6 and 8 "
        "cylinders."
    ),
]
DatesOption = Annotated[
    bool | None,
    your_data("--dates", help="Read dates in a table as numbers: days since 1970-01-01."),
]
OtherOption = Annotated[
    bool | None,
    your_data(
        "--other",
        help="Give each column of names one more category, for names that are not in the training "
        "data.",
    ),
]
HeaderOption = Annotated[
    bool | None,
    your_data(
        "--header/--no-header",
        help="Whether the first line of a .csv or .tsv file names the columns. If left out: the "
        "command finds out from the cells of the file.",
    ),
]
SizeOption = Annotated[
    str | None,
    your_data(metavar="HxW", help="Resize all images to this height and width, in pixels."),
]
ChannelsOption = Annotated[
    int | None,
    your_data(help="Convert all images to grey (1 channel) or to RGB colours (3 channels)."),
]

# --- Run ---

SeedOption = Annotated[
    int,
    run_option(
        help="The seed of everything that is random, but for the split of the data.",
        min=0,
        max=2**62,
    ),
]
RunSeedOption = Annotated[
    int | None,
    run_option(
        "--seed",
        help="The seed of everything that is random, but for the split of the data. If left out: "
        "the seed of the run.",
        min=0,
        max=2**62,
    ),
]
DeviceOption = Annotated[
    Device,
    run_option(
        help="Where to compute. auto means CUDA where there is one, and else the CPU. Only one "
        "device is used."
    ),
]
TrustOption = Annotated[
    bool,
    run_option(
        "--trust-code",
        help="Import the modules that the run names for its networks and its likelihood, which "
        "runs their code. Without this option, they are imported only if the run was made on "
        "this machine and they have not changed since.",
    ),
]
