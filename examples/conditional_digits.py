"""Digits drawn given their label, by a prior p(z|y). The decoder never sees the label.

Example: python examples/conditional_digits.py --epochs 30 --num-data 60000
"""

import argparse
from pathlib import Path

import torch

from pyro_dvae import (
    Bernoulli,
    BinaryImages,
    ConditionalPrior,
    DiscreteVAE,
    MLPDecoder,
    MLPEncoder,
    RlooELBO,
    evaluate,
    fit,
    load_images,
)
from pyro_dvae.runs.plots import image_grid, save_figure

CODE, EVENT, HIDDEN = (4, 8), (28, 28), (256, 128)
EACH = 10  # images per class


def main() -> None:
    """Train on digits and their labels, and draw one row of images per digit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--num-data", type=int, default=500)
    parser.add_argument("-o", "--output", type=Path, default=Path("conditional_digits.png"))
    args = parser.parse_args()

    torch.manual_seed(0)
    images = load_images()
    labels, test_labels = images.train_labels[: args.num_data], images.test_labels[:200]
    train = BinaryImages(images.train[: args.num_data], labels=labels)
    test = BinaryImages(images.test[:200]).fixed(seed=0)

    vae = DiscreteVAE(
        MLPEncoder(EVENT, *CODE, HIDDEN),
        MLPDecoder(EVENT, *CODE, HIDDEN[::-1]),
        ConditionalPrior(*CODE, num_classes=10),
        Bernoulli(),
    )
    elbo = RlooELBO(num_particles=4)
    for record in fit(vae, elbo, train, epochs=args.epochs, annealing=10, initial_beta=4.0):
        print(f"epoch {record.epoch}: {record.train_elbo:.2f} nats per image")
    scores = evaluate(vae, test, test_labels)
    print(f"test ELBO {scores.elbo:.2f}, a bound on log p(x|y) = {scores.log_marginal:.2f}")

    means = vae.sample(10 * EACH, means=True, labels=torch.arange(10).repeat_interleave(EACH))
    title = "means of p(x|z), z from p(z|y)"
    save_figure(image_grid(means, EACH, title, [str(y) for y in range(10)]), args.output)
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
