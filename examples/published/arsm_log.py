"""The setting of ARSM's public log: 20 latents of 10 categories on MNIST, cut at one half.

The anchor is the log `vae/ARSM.out` of github.com/ARM-gradient/ARSM (Yin, Yue & Zhou 2019): layers
784-512-256 with LeakyReLU(0.2), 20 one-hot latents of 10 categories, a uniform prior, batches of
200, pixels that are 1 above 0.5. Its validation figure, the negative ELBO by one draw of z per
image, is 104.2 after 50 epochs, 99.7 after 100 and 94.6 after 200.

Ours has the same networks, data and batches, and anneals nothing unless `--annealing` says so. The
figure is the ELBO of the 10,000 test images, by 16 draws of z per image, in nats.

    python examples/published/arsm_log.py --data mnist --data-dir DIR --epochs 50 --seeds 3
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pyro_dvae import (
    Bernoulli,
    CarmsELBO,
    DiscreteELBO,
    DiscreteVAE,
    RlooELBO,
    UniformPrior,
    evaluate,
    fit,
    load_images,
)

LATENTS, CATEGORIES = 20, 10
ESTIMATORS = {"rloo": RlooELBO, "carms": CarmsELBO}


def networks() -> tuple[nn.Module, nn.Module]:
    """The encoder and the decoder of the anchor."""
    code = LATENTS * CATEGORIES
    encoder = nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 512),
        nn.LeakyReLU(0.2),
        nn.Linear(512, 256),
        nn.LeakyReLU(0.2),
        nn.Linear(256, code),
        nn.Unflatten(-1, (LATENTS, CATEGORIES)),
    )
    decoder = nn.Sequential(
        nn.Flatten(-2),
        nn.Linear(code, 256),
        nn.LeakyReLU(0.2),
        nn.Linear(256, 512),
        nn.LeakyReLU(0.2),
        nn.Linear(512, 784),
        nn.Unflatten(-1, (28, 28)),
    )
    return encoder, decoder


def cut(images: Tensor) -> Tensor:
    """Grey values 0 to 255 as bits, 1 above one half."""
    return (images > 127).float()


def train(seed: int, args: argparse.Namespace) -> list[tuple[int, float, float]]:
    """Train once.

    Returns:
        For every tenth epoch and the last: epoch, test ELBO, seconds of processor time.
    """
    images = load_images(args.data, args.data_dir)
    data, test = cut(images.train[: args.num_data]), cut(images.test[: args.num_test])
    torch.manual_seed(seed)
    vae = DiscreteVAE(*networks(), UniformPrior(LATENTS, CATEGORIES), Bernoulli())
    elbo: DiscreteELBO = ESTIMATORS[args.estimator](args.particles)
    rows, start, spent = [], time.process_time(), 0.0
    for record in fit(
        vae,
        elbo,
        data,
        None,  # all images are trained on; no epoch is chosen by its figure
        epochs=args.epochs,
        batch_size=200,
        learning_rate=args.lr,
        annealing=args.annealing,
        initial_beta=args.initial_beta,
        seed=seed,
    ):
        spent += time.process_time() - start
        if record.epoch % args.every == 0 or record.epoch == args.epochs:
            rows.append((record.epoch, evaluate(vae, test).elbo, spent))
            epoch, value, seconds = rows[-1]
            print(f"seed {seed}: epoch {epoch}, test ELBO {value:.2f}, {seconds:.0f} s", flush=True)
        start = time.process_time()
    return rows


def main() -> None:
    """Train with each seed, and print the mean and its standard error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="mnist-sample")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--num-data", type=int, help="training images to use; all if left out")
    parser.add_argument("--num-test", type=int, help="test images to use; all if left out")
    parser.add_argument("--estimator", choices=ESTIMATORS, default="rloo")
    parser.add_argument("--particles", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--annealing", type=int, default=0, help="epochs")
    parser.add_argument("--initial-beta", type=float, default=4.0)
    parser.add_argument("--every", type=int, default=10, help="epochs between two figures")
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    runs = [train(seed, args) for seed in range(args.seeds)]
    print("| epoch | test ELBO | seconds |\n|---|---|---|")
    for rows in zip(*runs, strict=True):
        values = [value for _, value, _ in rows]
        seconds = np.mean([spent for _, _, spent in rows])
        spread = ""
        if len(values) > 1:
            spread = f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.2f}"
        print(f"| {rows[0][0]} | {np.mean(values):.2f}{spread} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
