"""The parts that a run trains, validates and tests on, the same in every command."""

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_dvae.checks import one_of
from pyro_dvae.data.binary import BinaryImages
from pyro_dvae.data.mnist import Images

PARTS = ("train", "validation", "test")


class Part(NamedTuple):
    """The N data of one part, row by row."""

    x: Tensor
    """(N, *event) zeros and ones, float32, in the one draw that evaluation uses."""
    grey: Tensor
    """(N, *event) the values, uint8, that they were drawn from."""
    labels: Tensor
    """(N,) int64."""


class Splits(NamedTuple):
    """What a run trains, validates and tests on."""

    train: BinaryImages
    """The part to train on, served as the policy says."""
    validation: Tensor
    """(M, *event) zeros and ones, float32, drawn once."""
    test: Tensor
    """(T, *event) zeros and ones, float32, drawn once."""
    train_rows: Tensor
    """Rows of ``images.train`` to train on, int64, ascending."""
    validation_rows: Tensor
    """(M,) the other rows of ``images.train``, int64, ascending."""
    images: Images
    seed: int

    def part(self, name: str) -> Part:
        """Serve one part for evaluation.

        Args:
            name: One of ``PARTS``. The training part, too, comes in one fixed draw.

        Returns:
            Binary data, grey values and labels of the part.

        Raises:
            ValueError: If there is no such part.
        """
        one_of("part", name, PARTS)
        images = self.images
        if name == "test":
            return Part(self.test, images.test, images.test_labels)
        if name == "validation":
            x, rows = self.validation, self.validation_rows
        else:
            x, rows = self.train.fixed(self.seed), self.train_rows
        return Part(x, images.train[rows], images.train_labels[rows])


def make_splits(images: Images, *, binarize: str, validation: float, seed: int) -> Splits:
    """Split and binarize a data set as a run's settings say.

    Args:
        images: The data set. Its training images are split at random into a training and a
            validation part; its test images stay apart.
        binarize: One of ``BINARIZATIONS``.
        validation: Fraction of the training images kept for validation.
        seed: Seed of the shuffle and of every draw made here; no global random stream is touched.

    Returns:
        The parts, on the device of the images.

    Raises:
        ValueError: If the policy is unknown or a part would be empty.
    """
    train_rows, validation_rows = split(len(images.train), validation, seed)
    pixels = BinaryImages(images.train, binarize, seed=seed)
    return Splits(
        train=pixels.subset(train_rows),
        validation=pixels.subset(validation_rows).fixed(seed),
        test=BinaryImages(images.test, binarize, seed=seed).fixed(seed),
        train_rows=train_rows,
        validation_rows=validation_rows,
        images=images,
        seed=seed,
    )


def split(num_data: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split indices at random into a training and a validation part.

    Args:
        num_data: Number of data.
        fraction: Fraction of them that goes to validation.
        seed: Seed of the shuffle.

    Returns:
        Training and validation indices, int64, each sorted.

    Raises:
        ValueError: If a part would be empty or the fraction is not between 0 and 1.
    """
    num_validation = round(num_data * fraction) if 0 < fraction < 1 else 0
    if not 0 < num_validation < num_data:
        parts = f"{fraction} of {num_data} data"
        raise ValueError(f"Expected data in both parts; got {parts}. Change the fraction.")
    order = torch.randperm(num_data, generator=torch.Generator().manual_seed(seed))
    return order[num_validation:].sort().values, order[:num_validation].sort().values
