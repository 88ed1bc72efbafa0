"""Make the bundled sample of MNIST: python examples/make_mnist_sample.py DATA_DIR OUT.npz."""

import argparse

import numpy as np
from numpy.typing import NDArray

from pyro_dvae.data import load_images

NUM_CLASSES = 10
TRAIN_PER_CLASS = 500
TEST_PER_CLASS = 100
SEED = 0


def balanced_indices(labels: NDArray[np.int64], per_class: int) -> NDArray[np.int64]:
    """Choose the same number of data from each class at random.

    Args:
        labels: (N,) classes.
        per_class: The number of data to choose from each class.

    Returns:
        (NUM_CLASSES * per_class,) sorted row numbers.
    """
    # RandomState draws the same numbers in every version of NumPy; default_rng does not.
    rng = np.random.RandomState(SEED)
    chosen = [
        rng.choice(np.flatnonzero(labels == label), per_class, replace=False)
        for label in range(NUM_CLASSES)
    ]
    return np.sort(np.concatenate(chosen))


def main() -> None:
    """Read MNIST from a folder and write its class-balanced sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir", help="folder that holds the four MNIST IDX files")
    parser.add_argument("out", help="file to write, ending in .npz")
    args = parser.parse_args()

    mnist = load_images("mnist", args.data_dir)
    train = balanced_indices(mnist.train_labels.numpy(), TRAIN_PER_CLASS)
    test = balanced_indices(mnist.test_labels.numpy(), TEST_PER_CLASS)
    np.savez_compressed(
        args.out,
        train_images=mnist.train.numpy()[train],
        train_labels=mnist.train_labels.numpy()[train].astype(np.uint8),
        test_images=mnist.test.numpy()[test],
        test_labels=mnist.test_labels.numpy()[test].astype(np.uint8),
    )


if __name__ == "__main__":
    main()
