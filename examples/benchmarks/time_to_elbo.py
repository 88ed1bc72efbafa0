"""Seconds of training until the exact validation ELBO reaches -140, -130 and -124.5 nats per image.

The recipe of `pdvae fit` with some estimators is compared with the recipe from scratch
(examples/from_scratch.py, with the fused Adam and the data in memory). Only training steps are on
the clock. After each epoch the images that `pdvae fit` holds out are scored, by a sum over all
codes. The contenders take turns, one epoch each, so that other work of the machine slows all of
them alike. Read the ratios, not the times.

`--annealing`, `--decoder-particles` and `--bfloat16` are the options of `pdvae fit`. They hold for
all contenders but the recipe from scratch, and `--decoder-particles` for rloo and snapshot alone.

Example: python examples/benchmarks/time_to_elbo.py --data mnist --data-dir DIR --epochs 60
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import nn

from pyro_dvae import (
    Bernoulli,
    Config,
    DiscreteVAE,
    Trainer,
    UniformPrior,
    __version__,
    build_elbo,
    build_vae,
    evaluate,
    load_images,
)
from pyro_dvae.data import Splits, make_splits
from pyro_dvae.runs.config import ESTIMATORS
from pyro_dvae.streams import RandomStream

sys.path.insert(0, str(Path(__file__).parents[1]))
from_scratch: Any = import_module("from_scratch")

FROM_SCRATCH = "from scratch"
Curve = list[tuple[float, float]]
"""After each epoch: seconds of training so far, and the validation ELBO in nats per image."""


def ours(config: Config, splits: Splits) -> Iterator[tuple[float, float]]:
    """Train as `pdvae fit` does, but with the learning rates of the options."""
    shape = tuple(splits.train.event_shape)
    with RandomStream(config.seed):
        vae, elbo = build_vae(config, shape), build_elbo(config, shape)
    trainer = Trainer(vae, elbo, splits.train, splits.validation, **config.training)
    for record in trainer.run(sys.maxsize):
        assert record.validation_elbo is not None
        yield record.seconds, record.validation_elbo


def by_hand(config: Config, splits: Splits) -> Iterator[tuple[float, float]]:
    """Train as examples/from_scratch.py does; the config gives only the sizes and the seed."""
    stream = RandomStream(config.seed)  # so that taking turns changes no draw
    rows = splits.stored["train"]
    grey = rows.read(torch.arange(len(rows)))
    code = config.num_latents, config.num_categories
    sizes = (grey[0].numel(), *code, config.hidden)
    with stream:
        encoder, decoder = from_scratch.make_encoder(*sizes), from_scratch.make_decoder(*sizes)
    weights = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(weights, from_scratch.LEARNING_RATE, fused=True)
    # The same networks as a model of the library, so that they are scored in the same way.
    vae = DiscreteVAE(
        encoder, nn.Sequential(nn.Flatten(-2), decoder), UniformPrior(*code), Bernoulli()
    )
    assert splits.validation is not None
    held_out = splits.validation.flatten(1)
    seconds = 0.0
    while True:
        start = time.perf_counter()
        with stream:
            for index in torch.randperm(len(grey)).split(from_scratch.BATCH_SIZE):
                x = from_scratch.binarize(grey[index])
                _, loss = from_scratch.recipe(encoder, decoder, x)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        seconds += time.perf_counter() - start
        yield seconds, evaluate(vae, held_out, exact=True).elbo


def reached(curve: Curve, target: float) -> dict[str, Any] | None:
    """The first epoch after which the ELBO is at least the target, and the seconds until then."""
    for epoch, (seconds, elbo) in enumerate(curve, 1):
        if elbo >= target:
            return {"epoch": epoch, "seconds": seconds}
    return None


def summary(curve: Curve, plain: Curve, targets: list[float]) -> dict[str, Any]:
    """What a contender has reached, and its seconds relative to the recipe from scratch.

    If that recipe has not reached a target, the ratio to all of its seconds is an upper bound.
    """
    result: dict[str, Any] = {"best": max(elbo for _, elbo in curve), "targets": {}}
    for target in targets:
        found, theirs = reached(curve, target), reached(plain, target)
        if found is not None:
            against = plain[-1][0] if theirs is None else theirs["seconds"]
            found |= {"ratio": found["seconds"] / against, "is_upper_bound": theirs is None}
        result["targets"][f"{target:g}"] = found
    return result | {"epochs": len(curve), "curve": curve}


def main() -> None:
    """Train in turns until all have reached all targets, or for all epochs; print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--estimators", default="rloo,reinforce,disarm", help="with commas")
    parser.add_argument("--targets", type=float, nargs="+", default=[-140, -130, -124.5])
    parser.add_argument("--epochs", type=int, default=60, help="the most epochs per contender")
    parser.add_argument("--data", default="mnist-sample", help="mnist, or mnist-sample")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--hidden", type=int, nargs=2, default=Config.hidden)
    parser.add_argument("--threads", type=int, help="threads of torch; its own choice if left out")
    parser.add_argument(
        "--compile", action="store_true", help="reinforce, rloo and snapshot, as pdvae fit does"
    )
    parser.add_argument("--annealing", type=int, help="epochs; those of pdvae fit if left out")
    parser.add_argument("--lr", type=float, default=Config.learning_rate)
    parser.add_argument("--warmup", type=int, default=Config.warmup, help="epochs")
    parser.add_argument("--decoder-particles", type=int)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--seed", type=int, default=Config.seed)
    parser.add_argument("--json", type=Path, help="file for the numbers and the curves")
    args = parser.parse_args()
    names = args.estimators.split(",")
    if unknown := set(names) - set(ESTIMATORS):
        parser.error(f"expected estimators among {', '.join(ESTIMATORS)}; got {unknown}")
    if args.threads is not None:
        torch.set_num_threads(args.threads)

    images = load_images(args.data, args.data_dir)
    plain = Config(seed=args.seed, hidden=args.hidden)
    splits = make_splits(
        images, binarize=plain.binarize, validation=float(plain.validation), seed=plain.seed
    )
    running = {FROM_SCRATCH: by_hand(plain, splits)}
    for name in names:
        particles = ESTIMATORS[name].particles
        config = Config(
            estimator=name,
            num_particles=particles,
            seed=args.seed,
            hidden=args.hidden,
            compile=args.compile and name in ("reinforce", "rloo", "snapshot"),
            annealing=args.annealing,
            learning_rate=args.lr,
            warmup=args.warmup,
            decoder_particles=args.decoder_particles if name in ("rloo", "snapshot") else None,
            bfloat16=args.bfloat16,
        )
        running[f"{name} {particles}"] = ours(config, splits)
    setting = {
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pyro": pyro.__version__,
        "pyro_dvae": __version__,
        "data": images.name,
        "training images": len(splits.train),
        "validation images": len(splits.validation_rows),
        "seed": args.seed,
    }
    print(", ".join(f"{key} {value}" for key, value in setting.items()), flush=True)

    curves: dict[str, Curve] = {name: [] for name in running}
    for epoch in range(1, args.epochs + 1):
        for name, curve in curves.items():
            if curve and reached(curve, max(args.targets)):
                continue
            curve.append(next(running[name]))
            line = f"{name}, epoch {epoch}: {curve[-1][0]:.1f} s, ELBO {curve[-1][1]:.2f}"
            print(line, file=sys.stderr, flush=True)

    results = {
        name: summary(curve, curves[FROM_SCRATCH], args.targets) for name, curve in curves.items()
    }
    print(f"{'':16}{'target':>8}{'epoch':>7}{'seconds':>9}   to {FROM_SCRATCH}")
    for name, result in results.items():
        for target, found in result["targets"].items():
            if found is None:
                epochs, best = result["epochs"], result["best"]
                print(f"{name:16}{target:>8}   not reached in {epochs} epochs (best {best:.2f})")
                continue
            ratio = f"{'<' if found['is_upper_bound'] else ''}{found['ratio']:.2f}"
            print(f"{name:16}{target:>8}{found['epoch']:>7}{found['seconds']:>9.1f}   {ratio:>6}")
    if args.json is not None:
        args.json.write_text(json.dumps({"setting": setting, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
