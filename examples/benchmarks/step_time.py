"""The time of one training step on this machine, beside the same step written in other ways.

The model has the tutorial's networks and a code of 4 x 8. The data are in memory, and batches of
100 are binarised anew at each step. The contenders take turns, one epoch of the same images each,
so that other work of the machine slows all of them alike. Read the ratios, not the times; they are
also the ratios of whole epochs. If torch.compile or NumPyro (`pip install '.[bench]'`) fail, a line
says so and they are left out.

Example: OMP_NUM_THREADS=1 python examples/benchmarks/step_time.py --rounds 9 --json step_time.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam  # type: ignore[attr-defined]
from torch import Tensor, nn
from torch.distributions import Categorical, OneHotCategorical
from torch.nn.functional import binary_cross_entropy
from torch.utils.data import DataLoader
from torchvision.datasets import MNIST  # type: ignore[import-untyped, unused-ignore]
from torchvision.transforms import ToTensor  # type: ignore[import-untyped, unused-ignore]

from pyro_dvae import (
    Bernoulli,
    BinaryImages,
    DiscreteVAE,
    MLPDecoder,
    MLPEncoder,
    ReinforceELBO,
    RlooELBO,
    SnapshotELBO,
    Trainer,
    UniformPrior,
    load_images,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
from_scratch: Any = import_module("from_scratch")

CODE = (4, 8)  # D, K
BATCH_SIZE = 100
LEARNING_RATE = 5e-4
BY_HAND = "by hand"
OURS = "ours, REINFORCE"
Epoch = Callable[[], object]


def make_vae(images: Tensor, hidden: tuple[int, int]) -> DiscreteVAE:
    """Build the tutorial's model."""
    event = images.shape[1:]
    return DiscreteVAE(
        MLPEncoder(event, *CODE, hidden),
        MLPDecoder(event, *CODE, hidden[::-1]),
        UniformPrior(*CODE),
        Bernoulli(),
    )


def ours(images: Tensor, hidden: tuple[int, int], elbo: Any, **options: Any) -> Epoch:
    """An epoch of `Trainer`, as the command line uses it."""
    options |= {"batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE}
    options |= {"averaging": 0.0, "annealing": 0}  # no more than the other contenders do
    trainer = Trainer(make_vae(images, hidden), elbo, BinaryImages(images), **options)
    records = trainer.run(sys.maxsize)
    return lambda: next(records)


def plain_svi(images: Tensor, hidden: tuple[int, int]) -> Epoch:
    """An epoch of Pyro alone: `SVI` with `Trace_ELBO` and Pyro's Adam."""
    vae = make_vae(images, hidden)
    svi = SVI(vae.model, vae.guide, Adam({"lr": LEARNING_RATE}), Trace_ELBO())

    def epoch() -> None:
        pyro.clear_param_store()  # which holds the weights of other contenders
        for index in torch.randperm(len(images)).split(BATCH_SIZE):
            svi.step(from_scratch.binarize(images[index]).reshape(-1, *images.shape[1:]))

    return epoch


def by_hand(
    images: Tensor,
    hidden: tuple[int, int],
    wrap: Callable[[Any], Any] = lambda step: step,
) -> Epoch:
    """An epoch of examples/from_scratch.py with the fused Adam; `wrap` may compile the step."""
    sizes = (images[0].numel(), *CODE, hidden)
    encoder, decoder = from_scratch.make_encoder(*sizes), from_scratch.make_decoder(*sizes)
    weights = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(weights, LEARNING_RATE, fused=True)
    step = wrap(from_scratch.recipe)

    def epoch() -> None:
        for index in torch.randperm(len(images)).split(BATCH_SIZE):
            _, loss = step(encoder, decoder, from_scratch.binarize(images[index]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


class Pictures(MNIST):  # type: ignore[misc, unused-ignore]
    """torchvision's MNIST, with its way of making an item, for images that are in memory."""

    def __init__(self, images: Tensor) -> None:
        self.data, self.targets = images, torch.zeros(len(images), dtype=torch.int64)
        self.transform, self.target_transform = ToTensor(), None


def with_data_loader(images: Tensor, hidden: tuple[int, int]) -> Epoch:
    """An epoch as the tutorial's authors run it (github.com/alanjeffares/discreteVAE).

    They use torch's DataLoader, compute with probabilities instead of logits, take Adam with its
    defaults, and read the ELBO at each step.
    """
    sizes = (images[0].numel(), *CODE, hidden)
    encoder = nn.Sequential(from_scratch.make_encoder(*sizes), nn.Softmax(-1))
    decoder = nn.Sequential(from_scratch.make_decoder(*sizes), nn.Sigmoid())
    weights = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(weights, LEARNING_RATE, maximize=True)
    loader: Iterable[Any] = DataLoader(Pictures(images), batch_size=BATCH_SIZE, shuffle=True)

    def epoch() -> float:
        total = 0.0
        for pictures, _ in loader:
            x = torch.bernoulli(pictures.flatten(1))
            f = encoder(x)
            z = OneHotCategorical(f).sample()
            bce = binary_cross_entropy(decoder(z.flatten(1)), x, reduction="none").sum(-1)
            entropy = Categorical(f).entropy().sum()
            log_q = f.masked_select(z == 1).log().view(len(x), -1).sum(-1)
            signal = (bce - from_scratch.BASELINE).detach()
            optimizer.zero_grad()
            (entropy - (signal * log_q).sum() - bce.sum()).backward()
            optimizer.step()
            total += (entropy - bce.sum()).item()
        return total / len(images) - CODE[0] * math.log(CODE[1])

    return epoch


def numpyro_jitted(images: Tensor, hidden: tuple[int, int]) -> Epoch:
    """An epoch of the same programs in NumPyro, with a jitted step; NumPyro holds data and draws.

    The loss is `TraceGraph_ELBO`, because NumPyro's `Trace_ELBO` warns of discrete latents and
    leaves the score term out.
    """
    names = ("jax", "jax.numpy", "numpyro", "numpyro.distributions", "numpyro.infer")
    jax, jnp, numpyro, dist, infer = [cast(Any, import_module(name)) for name in names]
    grey = jnp.asarray(images.flatten(1).numpy())
    pixels, code = grey.shape[1], CODE[0] * CODE[1]

    def mlp(name: str, value: Any, sizes: tuple[int, ...]) -> Any:
        for layer, (size_in, size_out) in enumerate(pairwise(sizes)):
            key, bound = jax.random.PRNGKey(layer), size_in**-0.5
            start = jax.random.uniform(key, (size_in, size_out), minval=-bound, maxval=bound)
            weight = numpyro.param(f"{name} {layer}", start)
            value = value @ weight + numpyro.param(f"{name} bias {layer}", jnp.zeros(size_out))
            value = jax.nn.relu(value) if layer < len(sizes) - 2 else value
        return value

    def model(x: Any) -> None:
        with numpyro.plate("data", len(x)):
            index = numpyro.sample("z", dist.Categorical(logits=jnp.zeros(CODE)).to_event(1))
            z = jax.nn.one_hot(index, CODE[1]).reshape(len(x), code)
            logits = mlp("decoder", z, (code, *hidden[::-1], pixels))
            numpyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x)

    def guide(x: Any) -> None:
        logits = mlp("encoder", x, (pixels, *hidden, code)).reshape(-1, *CODE)
        with numpyro.plate("data", len(x)):
            numpyro.sample("z", dist.Categorical(logits=logits).to_event(1))

    svi = infer.SVI(model, guide, numpyro.optim.Adam(LEARNING_RATE), infer.TraceGraph_ELBO())

    def take_step(state: Any, key: Any, index: Any) -> Any:
        x = jax.random.bernoulli(key, grey[index] / 255).astype(jnp.float32)
        return svi.update(state, x)[0]

    step = jax.jit(take_step)
    state = svi.init(jax.random.PRNGKey(0), jnp.zeros((BATCH_SIZE, pixels)))

    def epoch() -> None:
        nonlocal state
        for number, index in enumerate(torch.randperm(len(grey)).split(BATCH_SIZE)):
            state = step(state, jax.random.PRNGKey(number), index.numpy())
        jax.block_until_ready(state)

    return epoch


def contenders(images: Tensor, hidden: tuple[int, int], compiled: bool) -> dict[str, Epoch]:
    """Name -> an epoch of a contender, which has been run once, so that everything is compiled."""
    build: dict[str, Callable[[], Epoch]] = {
        BY_HAND: lambda: by_hand(images, hidden),
        OURS: lambda: ours(images, hidden, ReinforceELBO(baseline="running_mean")),
        **{f"ours, RLOO {num}": partial(ours, images, hidden, RlooELBO(num)) for num in (2, 4, 8)},
        "ours, RLOO 4, decoder at 1": partial(
            ours, images, hidden, RlooELBO(4, decoder_particles=1)
        ),
        "ours, snapshot 2": partial(ours, images, hidden, SnapshotELBO(2)),
        "plain SVI": lambda: plain_svi(images, hidden),
        "tutorial's, DataLoader": lambda: with_data_loader(images, hidden),
    }
    if compiled:
        for name, options in ((", compiled", {}), (", compiled, bfloat16", {"bfloat16": True})):
            elbo = ReinforceELBO(baseline="running_mean")
            build[OURS + name] = partial(ours, images, hidden, elbo, compiled=True, **options)
        build["by hand, compiled"] = lambda: by_hand(images, hidden, torch.compile)
        build["NumPyro, jitted"] = lambda: numpyro_jitted(images, hidden)
    warnings.filterwarnings("error", "The training step could not be compiled")
    ready = {}
    for name, make in build.items():
        torch.manual_seed(0)
        try:
            ready[name] = make()
            ready[name]()
        except Exception as error:
            if name in (BY_HAND, OURS):
                raise
            ready.pop(name, None)
            print(f"left out: {name} ({type(error).__name__})", file=sys.stderr)
    return ready


def main() -> None:
    """Print the median time of a step, its quartiles, and its ratio to the step by hand."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=50, help="steps of an epoch, at most 50")
    parser.add_argument("--hidden", type=int, nargs=2, default=(512, 256))
    parser.add_argument("--no-compiled", action="store_true", help="no torch.compile, no NumPyro")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    args = parser.parse_args()

    if sys.platform == "linux":  # XLA ignores OMP_NUM_THREADS, but not the cores it may use
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-torch.get_num_threads() :])
    images = load_images("mnist-sample").train[: args.steps * BATCH_SIZE]
    steps = len(images) // BATCH_SIZE
    ready = contenders(images, tuple(args.hidden), not args.no_compiled)
    times: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(args.rounds):
        for name, epoch in ready.items():
            start = time.perf_counter()
            epoch()
            times[name].append((time.perf_counter() - start) / steps)

    setting = {
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pyro": pyro.__version__,
        "rounds": args.rounds,
        "steps": steps,
    }
    print(", ".join(f"{key} {value}" for key, value in setting.items()))
    print(f"{'':35} {'ms/step':>9}  {'quartiles':>13}  {'to by hand':>10}  {'to ours':>7}")
    results = {name: summary(seconds, times) for name, seconds in times.items()}
    for name, row in results.items():
        low, high = row["quartiles_ms"]
        print(
            f"{name:35} {row['median_ms']:9.2f}  {low:6.2f} {high:6.2f}  "
            f"{row['to_by_hand']:10.2f}  {row['to_ours']:7.2f}"
        )
    if args.json is not None:
        args.json.write_text(json.dumps({"setting": setting, "results": results}, indent=2) + "\n")


def summary(seconds: list[float], times: dict[str, list[float]]) -> dict[str, Any]:
    """The median and quartiles of the times, and the medians of the ratios within a round."""
    low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else 3 * seconds
    ratios = {
        key: statistics.median(a / b for a, b in zip(seconds, times[name], strict=True))
        for key, name in (("to_by_hand", BY_HAND), ("to_ours", OURS))
    }
    quartiles = [1e3 * low, 1e3 * high]
    return {"median_ms": 1e3 * statistics.median(seconds), "quartiles_ms": quartiles, **ratios}


if __name__ == "__main__":
    main()
