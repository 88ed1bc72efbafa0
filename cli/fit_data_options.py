"""The options about data that `pdvae fit` alone has. Nothing here imports torch."""

from __future__ import annotations

from typing import Annotated

from pyro_dvae.defaults import MOST_KEPT_BYTES, MOST_KEPT_ROWS, TEST_SHARE, VALIDATION_SHARE

from .options import your_data

_AT_MOST = f"at most {MOST_KEPT_ROWS:,} rows or {MOST_KEPT_BYTES // 2**20} MiB"

DataOption = Annotated[
    str | None,
    your_data(
        help="A .npy, .npz, .csv, .tsv, .parquet or IDX file, a folder of images, or the name of a "
        "data set, such as mnist or fashion-mnist. The README of pyro_dvae/data lists the names. "
        "If left out: mnist, or the bundled mnist-sample where mnist cannot be had."
    ),
]
RangeOption = Annotated[
    str | None,
    your_data(
        metavar="LOW,HIGH",
        help="The two stored values that stand for 0 and 1. If left out: 0,255 for data of type "
        "uint8.",
    ),
]
BinarizeOption = Annotated[
    str | None,
    your_data(
        help="How grey values become zeros and ones, for the likelihood bernoulli: dynamic (drawn "
        "anew for each batch), static (drawn once), threshold (cut at the middle), or none. If "
        "left out: none for data that are zeros and ones, and else dynamic."
    ),
]
ValidationOption = Annotated[
    str | None,
    your_data(
        "--val",
        "--validation",
        help="The training data that are kept apart for validation: a fraction of them, a number "
        "of rows, 0 for none, or a file of other data. If left out: the fraction "
        f"{VALIDATION_SHARE:g}, but {_AT_MOST}.",
    ),
]
TestOption = Annotated[
    str | None,
    your_data(
        help="The data that are kept apart for testing: a fraction of them, a number of rows, 0 "
        "for none, or a file of other data. If left out: the test part that the data set has, "
        f"or else the fraction {TEST_SHARE:g}, but {_AT_MOST}."
    ),
]
SplitOption = Annotated[
    str,
    your_data(
        metavar="random|last",
        help="How rows are kept apart: random; or last, which takes the last rows of the file for "
        "testing, and those before them for validation.",
    ),
]
SplitSeedOption = Annotated[
    int,
    your_data(
        help="The seed by which rows are kept apart, and are drawn as zeros and ones. Runs with "
        "other values of --seed have the same rows.",
        min=0,
        max=2**62,
    ),
]
GroupCopiesOption = Annotated[
    bool | None,
    your_data(
        "--group-copies/--no-group-copies",
        help="Whether rows, or images, that are equal to one another are kept in one part. If left "
        "out: yes, unless rows of such values are equal by chance, as in a table of few columns of "
        "names.",
    ),
]
DropCopiesOption = Annotated[
    bool,
    your_data(
        "--drop-copies",
        help="Leave out of the training the rows that are also in the test part that the data "
        "have, or in a file of --test or --val.",
    ),
]
