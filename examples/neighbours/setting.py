"""What all neighbours share: data, budget, the second stage for discrete codes, and the table.

Every model has the tutorial's layer sizes (784-512-256 to the code, and back). Every model is
trained for the same epochs of Adam, at one learning rate, on the same images, which are binarised
anew at every visit. None has annealing or averaged weights. All are scored on one fixed draw of the
test images.
"""

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from pyro_dvae import BinaryImages, DiscreteVAE, evaluate, load_images

EVENT = (28, 28)
BATCH_SIZE = 100
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Setting:
    """The data and the budget of a training."""

    train: BinaryImages
    test: Tensor
    """(N, 28, 28) zeros and ones."""
    epochs: int
    num_samples: int
    """k of the importance-weighted bound."""
    seed: int

    @property
    def steps(self) -> int:
        """The number of training steps."""
        return self.epochs * math.ceil(len(self.train) / BATCH_SIZE)


@dataclass(frozen=True)
class Scores:
    """Means over the test images in nats per image; None if the model has no such figure."""

    name: str
    code: str
    bce: float
    """E_q[-log p(x|z)], with z from the model's own encoder."""
    bits: float
    """The bits of a code, KL(q(z|x) || p(z)) / log 2; sparse_autoencoder.py has its own count."""
    elbo: float | None = None
    bound: float | None = None
    """E[log 1/k sum_i p(x, z_i) / q(z_i|x)], a lower bound on log p(x) (Burda et al. 2016)."""
    log_marginal: float | None = None
    """log p(x), exact."""
    elbo_error: float = 0.0
    """The standard error over the draws of z; 0 if the figure is a sum over codes."""
    bound_error: float = 0.0
    """The standard error over the draws of z."""


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every model has."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-data", type=int, default=1000, help="training images to use")
    parser.add_argument("--num-test", type=int, default=200, help="test images to use")
    parser.add_argument("--num-samples", type=int, default=100, help="k of the bound")
    parser.add_argument("--data", default="mnist-sample")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def load(args: argparse.Namespace) -> Setting:
    """Load the data and the budget that the options name."""
    images = load_images(args.data, args.data_dir)
    train = BinaryImages(images.train[: args.num_data])
    test = BinaryImages(images.test).fixed(seed=0)[: args.num_test]
    return Setting(train, test, args.epochs, args.num_samples, args.seed)


def train(weights: Iterable[nn.Parameter], loss: Callable[..., Tensor], setting: Setting) -> None:
    """Minimise a loss by Adam.

    Args:
        weights: the weights to train.
        loss: a function from data (B, 28, 28) to a scalar, nats per image.
        setting: the data and the budget.
    """
    generator = torch.Generator().manual_seed(setting.seed)
    optimizer = torch.optim.Adam(weights, LEARNING_RATE)
    for _ in range(setting.epochs):
        order = torch.randperm(len(setting.train), generator=generator)
        for index in order.split(BATCH_SIZE):
            optimizer.zero_grad()
            loss(setting.train.batch(index, generator)).backward()
            optimizer.step()


def train_prior(vae: DiscreteVAE, setting: Setting) -> None:
    """Second stage: maximise the mean of log p(z), z ~ q(z|x), in the prior, for as many epochs."""

    def loss(x: Tensor) -> Tensor:
        with torch.no_grad():
            z = vae.posterior(x).sample()
        return -vae.prior_codes().log_prob(z).mean()

    train(vae.prior.parameters(), loss, setting)


def score_discrete(name: str, vae: DiscreteVAE, setting: Setting) -> Scores:
    """Score a model with one-hot codes by the library's `evaluate`."""
    e = evaluate(vae, setting.test, importance_samples=setting.num_samples, seed=setting.seed)
    num_latents, num_categories = vae.prior_codes().event_shape
    return Scores(
        name,
        f"{num_latents} of {num_categories} categories",
        bce=-e.log_likelihood,
        bits=e.kl / math.log(2),
        elbo=e.elbo,
        bound=e.importance_bound,
        log_marginal=e.log_marginal,
        elbo_error=e.standard_errors.get("elbo", 0.0),
        bound_error=e.standard_errors["importance_bound"],
    )


def table(scores: Iterable[Scores], setting: Setting) -> str:
    """A table with one row per model, and what its columns mean."""
    k = setting.num_samples
    lines = [
        f"| model | code | E_q[-log p(x|z)] | bits of code | ELBO | bound({k}) | log p(x) |",
        "|---|---|---|---|---|---|---|",
    ]
    for s in scores:
        figures = (
            f"{s.bce:.2f}",
            f"{s.bits:.1f}",
            _figure(s.elbo, s.elbo_error),
            _figure(s.bound, s.bound_error),
            _figure(s.log_marginal, 0.0),
        )
        lines.append(f"| {s.name} | {s.code} | {' | '.join(figures)} |")
    return "\n".join(
        [
            *lines,
            f"Nats per image, means over {len(setting.test)} test images; +- is the standard error "
            "over the draws of z.",
            f"bound({k}) is a lower bound on log p(x), which is a sum over all codes. A dash means "
            "that the model has no such figure.",
        ]
    )


def _figure(value: float | None, error: float) -> str:
    if value is None:
        return "-"
    exact = error < 1e-9  # equal draws differ by rounding alone
    return f"{value:.2f}" if exact else f"{value:.2f} +- {error:.2f}"
