"""What each piece of code that was written for speed saves of a training step.

Each piece is measured alone: a `Trainer` takes a few steps with it, then a few steps with the plain
code in its place, in turns. The times are those of the processor, so that other work of the machine
counts little. Read the ratios, not the times: they come within 2 % of one another from run to run.

Example: OMP_NUM_THREADS=1 python examples/benchmarks/step_pieces.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from pyro_dvae import (
    Bernoulli,
    BinaryImages,
    DiscreteVAE,
    MLPDecoder,
    MLPEncoder,
    ReinforceELBO,
    RlooELBO,
    Trainer,
    UniformPrior,
    load_images,
)
from pyro_dvae.codes import draw_codes, latent_kl_divergence
from pyro_dvae.likelihoods import bernoulli
from pyro_dvae.training import backward, direct

CODE = (4, 8)  # D, K
BATCH_SIZE = 100
ELBOS: dict[str, Callable[[], Any]] = {
    "REINFORCE": lambda: ReinforceELBO(baseline="running_mean"),
    "RLOO 4": lambda: RlooELBO(4),
}


class Piece(NamedTuple):
    """A piece of code, and how a trainer goes without it."""

    name: str
    without: Callable[[Trainer], AbstractContextManager[Any]]
    """Inside the context that it returns, the trainer has the plain code."""


def plain_adam(trainer: Trainer) -> AbstractContextManager[None]:
    """Torch's own fused Adam, with its `step`."""
    return _patched(trainer.optimizer, "_is_plain", False)


def one_logarithm_each(logits: Tensor, x: Tensor) -> Tensor:
    """`bernoulli._log_prob`, with one logarithm for each element."""
    rest = logits.relu()
    w = torch.sub(logits, rest, alpha=2).sigmoid_()
    rest = torch.addcmul(rest, logits, x, value=-1)
    u = 1 - w
    return u.log().sub_(w.add_(u.sub_(1))).sum(-1) - rest.sum(-1)


def torch_bce(logits: Tensor, x: Tensor) -> Tensor:
    """The same by torch's own function."""
    x = x.expand_as(logits)
    return -binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)


def with_log_prob(log_prob: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Trainer], Any]:
    """Another log p(x|z)."""
    return lambda _: _patched(bernoulli, "_log_prob", log_prob)


def autograd_of_all(_: Trainer) -> AbstractContextManager[None]:
    """The whole surrogate without traces, differentiated by autograd."""

    def gradient(vae: Any, elbo: Any, args: Any, *, known: None) -> direct.OutputGradients:
        x, num = args[0], elbo.num_particles
        logits, log_p = vae.encode(x), vae.prior.logits.log_softmax(-1)
        log_q = logits.log_softmax(-1)
        code = draw_codes(log_q.expand(num, *log_q.shape))
        params = vae.decoder(code).reshape(num, len(x), -1)
        signal = vae.likelihood.log_prob(params, x.reshape(len(x), -1))
        kl_latent = latent_kl_divergence(log_q, log_p)
        weight = elbo.kl_weight(kl_latent.detach())
        advantage = elbo.advantage(signal.detach())
        score = (advantage * (code * log_q).sum((-2, -1))).mean(0)
        surrogate = signal.mean(0) + score - (weight * kl_latent).sum(-1)
        loss = (kl_latent.sum() - signal.sum() / num).detach()
        seed = torch.full_like(surrogate, -1 / len(x))
        return direct.OutputGradients(loss, (surrogate,), (seed,))

    return _patched(backward, "gradient_without_traces", gradient)


def with_traces(trainer: Trainer) -> AbstractContextManager[None]:
    """The step by Pyro's traces."""
    return _patched(trainer._backward, "_is_plain", False)


@contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    with patch.object(owner, name, value):
        yield


PIECES = [
    Piece("no traces", with_traces),
    Piece("gradient written out", autograd_of_all),
    Piece("four logarithms in one", with_log_prob(one_logarithm_each)),
    Piece("Bernoulli's _log_prob, to torch's BCE", with_log_prob(torch_bce)),
    Piece("FusedAdam.take_step", plain_adam),
]


def measure(piece: Piece, elbo: str, images: Tensor, rounds: int) -> tuple[float, float]:
    """Seconds of a step with the piece, and without it: the lower quartiles of the rounds.

    What else the machine does makes some rounds slower, and none faster.
    """
    torch.manual_seed(0)
    event = images.shape[1:]
    vae = DiscreteVAE(
        MLPEncoder(event, *CODE), MLPDecoder(event, *CODE), UniformPrior(*CODE), Bernoulli()
    )
    settings: dict[str, Any] = {"averaging": 0.0, "annealing": 0, "batch_size": BATCH_SIZE}
    trainer = Trainer(vae, ELBOS[elbo](), BinaryImages(images), **settings)
    records = trainer.run(sys.maxsize)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds + 1):
        for is_plain in (number % 2 == 0, number % 2 == 1):
            with piece.without(trainer) if is_plain else nullcontext():
                start = time.process_time()
                next(records)
                seconds[is_plain].append(time.process_time() - start)
    steps = len(images) / BATCH_SIZE
    # The first round warms up.
    on, off = (statistics.quantiles(seconds[key][1:], n=4)[0] / steps for key in (False, True))
    return on, off


def main() -> None:
    """Print what each piece saves of a step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="at least 2")
    parser.add_argument("--steps", type=int, default=5, help="steps of an epoch, at most 50")
    parser.add_argument("--pieces", default="", help="only those with this in their names")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    args = parser.parse_args()

    images = load_images("mnist-sample").train[: args.steps * BATCH_SIZE]
    print(f"threads {torch.get_num_threads()}, torch {torch.__version__}, rounds {args.rounds}")
    print(f"{'piece':40} {'estimator':10} {'saves':>7}  {'ms without':>10}")
    results: dict[str, dict[str, float]] = {}
    for piece in [piece for piece in PIECES if args.pieces in piece.name]:
        for elbo in ELBOS:
            on, off = measure(piece, elbo, images, args.rounds)
            saved = 1 - on / off
            print(f"{piece.name:40} {elbo:10} {100 * saved:5.1f} %  {1e3 * off:10.2f}", flush=True)
            results.setdefault(piece.name, {})[elbo] = saved
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
