"""The time of one training step for codes of several sizes, beside the same step written by hand.

Both train by RLOO with four particles, or by ReinMax with one, with the networks 784-512-256-code,
on batches of 100 images that are binarised anew at each step. The step by hand is plain PyTorch:
categorical draws, the decoder, the gradient of the estimator, the KL term in closed form, and
torch's fused Adam. The two take turns, a few steps of each size at a time. Read the ratios, not the
times.

Example: OMP_NUM_THREADS=1 python examples/benchmarks/code_sizes.py --rounds 7 --json sizes.json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from pyro_dvae import (
    Bernoulli,
    BinaryImages,
    DiscreteVAE,
    MLPDecoder,
    MLPEncoder,
    ReinMaxELBO,
    RlooELBO,
    Trainer,
    UniformPrior,
    load_images,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
from_scratch: Any = import_module("from_scratch")

CODES = ["4x8", "20x10", "49x64", "8x256", "200x2"]
BATCH_SIZE, PARTICLES, LEARNING_RATE, TEMPERATURE = 100, 4, 1e-3, 1.3
Epoch = Callable[[], object]


def ours(images: Tensor, code: tuple[int, int], hidden: tuple[int, int], estimator: str) -> Epoch:
    """An epoch of `Trainer`."""
    event = images.shape[1:]
    vae = DiscreteVAE(
        MLPEncoder(event, *code, hidden),
        MLPDecoder(event, *code, hidden[::-1]),
        UniformPrior(*code),
        Bernoulli(),
    )
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE}
    options |= {"averaging": 0.0, "annealing": 0}  # no more than the step by hand does
    elbo = RlooELBO(PARTICLES) if estimator == "rloo" else ReinMaxELBO(temperature=TEMPERATURE)
    trainer = Trainer(vae, elbo, BinaryImages(images), **options)
    records = trainer.run(sys.maxsize)
    return lambda: next(records)


def rloo_loss(encoder: Any, decoder: Any, x: Tensor) -> Tensor:
    """Minus the ELBO per batch, with the gradient of RLOO (Kool et al. 2019).

    Args:
        encoder: of x (B, P), to logits (B, D, K).
        decoder: of codes (S, B, D K), to logits (S, B, P).
        x: (B, P) bits.
    """
    q = Categorical(logits=encoder(x))
    index = q.sample((PARTICLES,))  # (S, B, D)
    num_categories = q.logits.shape[-1]
    logits = decoder(one_hot(index, num_categories).to(x.dtype).flatten(-2))
    bits = x.expand_as(logits)
    log_p = -binary_cross_entropy_with_logits(logits, bits, reduction="none").sum(-1)
    signal = log_p.detach()  # (S, B)
    others = (signal.sum(0) - signal) / (PARTICLES - 1)
    score = ((signal - others) * q.log_prob(index).sum(-1)).sum(0) / PARTICLES
    kl = index.shape[-1] * math.log(num_categories) - q.entropy().sum(-1)
    return (kl - log_p.mean(0) - score).sum()


class ReinMax(torch.autograd.Function):
    """Forward, a one-hot draw. Backward, the gradient of ReinMax (Liu et al. 2023)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        """A draw z, (B, D, K), from normalised logits of that shape."""
        z = one_hot(Categorical(logits=logits).sample(), logits.shape[-1]).to(logits)
        ctx.save_for_backward(logits, z)
        return z

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """2 J((softmax(logits/tau) + z)/2) g - J(softmax(logits)) g / 2, J(p) = diag(p) - p p^T."""
        logits, z = ctx.saved_tensors
        middle, q = ((logits / TEMPERATURE).softmax(-1) + z) / 2, logits.exp()
        first = middle * (gradient - (middle * gradient).sum(-1, keepdim=True))
        second = q * (gradient - (q * gradient).sum(-1, keepdim=True))
        return 2 * first - second / 2


def reinmax_loss(encoder: Any, decoder: Any, x: Tensor) -> Tensor:
    """Minus the ELBO per batch, with the gradient of ReinMax. The arguments are as above."""
    log_q = encoder(x).log_softmax(-1)  # (B, D, K)
    logits = decoder(ReinMax.apply(log_q).flatten(-2))
    minus_log_p = binary_cross_entropy_with_logits(logits, x, reduction="none").sum()
    return minus_log_p + (log_q.exp() * log_q).sum()  # the KL without its constant


def by_hand(
    images: Tensor, code: tuple[int, int], hidden: tuple[int, int], estimator: str
) -> Epoch:
    """An epoch of the same steps in plain PyTorch."""
    loss_of = rloo_loss if estimator == "rloo" else reinmax_loss
    sizes = (images[0].numel(), *code, hidden)
    encoder, decoder = from_scratch.make_encoder(*sizes), from_scratch.make_decoder(*sizes)
    weights = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(weights, LEARNING_RATE, fused=True)

    def epoch() -> None:
        for index in torch.randperm(len(images)).split(BATCH_SIZE):
            loss = loss_of(encoder, decoder, from_scratch.binarize(images[index]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


def measure(code: tuple[int, int], args: argparse.Namespace) -> dict[str, float]:
    """Medians over the rounds: milliseconds per step of both, and the ratio within a round."""
    images = load_images("mnist-sample").train[: args.steps * BATCH_SIZE]
    steps = len(images) // BATCH_SIZE
    epochs = [make(images, code, tuple(args.hidden), args.estimator) for make in (ours, by_hand)]
    for epoch in epochs:
        epoch()
    times: list[list[float]] = [[], []]
    for _ in range(args.rounds):
        for epoch, seconds in zip(epochs, times, strict=True):
            start = time.perf_counter()
            epoch()
            seconds.append((time.perf_counter() - start) / steps)
    return {
        "ours_ms": 1e3 * statistics.median(times[0]),
        "by_hand_ms": 1e3 * statistics.median(times[1]),
        "ratio": statistics.median(a / b for a, b in zip(*times, strict=True)),
    }


def main() -> None:
    """Print a table with a line per code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codes", default=",".join(CODES), help="D x K, as 4x8,20x10")
    parser.add_argument("--estimator", choices=("rloo", "reinmax"), default="rloo")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="steps of an epoch, at most 50")
    parser.add_argument("--hidden", type=int, nargs=2, default=(512, 256))
    parser.add_argument("--json", type=Path, help="file for the numbers")
    args = parser.parse_args()
    torch.manual_seed(0)
    results = {}
    print("| code | D K | ours, ms | by hand, ms | ratio |\n|---|---|---|---|---|")
    for name in args.codes.split(","):
        num_latents, num_categories = map(int, name.split("x"))
        row = results[name] = measure((num_latents, num_categories), args)
        print(
            f"| {name} | {num_latents * num_categories:,} | {row['ours_ms']:.1f} | "
            f"{row['by_hand_ms']:.1f} | {row['ratio']:.2f} |",
            flush=True,
        )
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
