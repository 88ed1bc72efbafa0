"""What the scripts of this folder share: their options, a training that is timed, and the table."""

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from pyro_dvae import Config, DiscreteVAE, build_elbo, fit
from pyro_dvae.runs.config import ESTIMATORS


@dataclass(frozen=True)
class Row:
    """The figures after an epoch: of the training data (running), of the test data; seconds."""

    epoch: int
    train: float
    test: float
    seconds: float


def options(description: str, **defaults: Any) -> argparse.ArgumentParser:
    """The options of every script, with the defaults that its setting asks for."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
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
    parser.add_argument("--warmup", type=int, default=0, help="epochs")
    parser.add_argument("--cooldown", type=int, default=0, help="epochs")
    parser.add_argument("--averaging", type=float, default=0.999)
    parser.add_argument("--bfloat16", action="store_true", help="networks compute in bfloat16")
    parser.add_argument("--every", type=int, default=10, help="epochs between two figures")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.set_defaults(**defaults)
    return parser


def mlp(*widths: int, slope: float = 0.0) -> nn.Sequential:
    """Linear layers of these widths, with LeakyReLU(slope) between them; slope 0 is ReLU."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        layers += [nn.LeakyReLU(slope)] if index else []
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


def networks(
    hidden: Sequence[int], num_latents: int, num_categories: int, slope: float = 0.0
) -> tuple[nn.Module, nn.Module]:
    """An encoder and a decoder of 28 x 28 images, each the other's mirror image."""
    code = num_latents * num_categories
    encoder = nn.Sequential(
        nn.Flatten(),
        mlp(784, *hidden, code, slope=slope),
        nn.Unflatten(-1, (num_latents, num_categories)),
    )
    decoder = nn.Sequential(
        nn.Flatten(-2),
        mlp(code, *reversed(hidden), 784, slope=slope),
        nn.Unflatten(-1, (28, 28)),
    )
    return encoder, decoder


class Centred(nn.Module):
    """A network of x minus the mean image: it can learn the same functions, in fewer steps."""

    mean: Tensor

    def __init__(self, network: nn.Module, mean: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", mean)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for x, whose values are from 0 to 1."""
        return self.network(x - self.mean)


def train(
    vae: DiscreteVAE,
    data: Any,
    figure: Callable[[], float],
    args: argparse.Namespace,
    *,
    seed: int,
    batch_size: int,
) -> list[Row]:
    """Train once, on all of the data: no epoch is chosen by its figure.

    Args:
        vae: the model and its guide.
        data: the training data.
        figure: computes the test figure of the weights as they are, in nats per image.
        args: the options.
        seed: of the order of the data and the draws.
        batch_size: images per training step.

    Returns:
        The figures after every `args.every` epochs and after the last. The seconds are those of
        the processor in training alone.
    """
    config = Config(estimator=args.estimator, num_particles=args.particles)
    elbo = build_elbo(config, (28, 28))
    rows, start, spent = [], time.process_time(), 0.0
    for record in fit(
        vae,
        elbo,
        data,
        None,
        epochs=args.epochs,
        batch_size=batch_size,
        learning_rate=args.lr,
        annealing=args.annealing,
        initial_beta=args.initial_beta,
        warmup=args.warmup,
        cooldown=args.cooldown,
        averaging=args.averaging,
        bfloat16=args.bfloat16,
        seed=seed,
    ):
        spent += time.process_time() - start
        if record.epoch % args.every == 0 or record.epoch == args.epochs:
            row = Row(record.epoch, record.train_elbo, figure(), spent)
            print(
                f"seed {seed}: epoch {row.epoch}, train {row.train:.2f} (running), "
                f"test {row.test:.2f}, {row.seconds:.0f} s",
                flush=True,
            )
            rows.append(row)
        start = time.process_time()
    return rows


def with_error(values: Sequence[float]) -> str:
    """The mean, and its standard error where there are several values."""
    error = f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{error}"


def table(runs: Sequence[Sequence[Row]]) -> str:
    """The mean over the seeds of each epoch's figures, as a table in Markdown."""
    lines = ["| epoch | train, running | test | seconds |", "|---|---|---|---|"]
    for rows in zip(*runs, strict=True):
        train, test = with_error([r.train for r in rows]), with_error([r.test for r in rows])
        seconds = np.mean([r.seconds for r in rows])
        lines.append(f"| {rows[0].epoch} | {train} | {test} | {seconds:.0f} |")
    return "\n".join(lines)


def as_bits(images: Tensor) -> Tensor:
    """Grey values 0 to 255 as bits, 1 above one half."""
    return (images > 127).float()
