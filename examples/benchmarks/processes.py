"""Images per second of several processes of one thread against one, at 100 images per process.

The model has the tutorial's networks and a code of 4 x 8; the gradient is that of RLOO with 4
particles. The contenders take turns, with the same images and new processes each time, so that
other work of the machine slows all of them alike. One contender has a process that sleeps in each
step, as a slow machine would. The exchange is also timed by itself. Read the ratios, on a machine
that has a free core per process.

Example: python examples/benchmarks/processes.py --rounds 9 --json processes.json
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pyro_dvae import (
    BinaryImages,
    Config,
    RlooELBO,
    Trainer,
    build_vae,
    load_images,
)
from pyro_dvae.training.summing import SumOfAll

BATCH_SIZE = 100


@dataclass(frozen=True)
class Contender:
    """Some processes, the last of which takes `delay` seconds more per step."""

    name: str
    size: int
    delay: float = 0.0


class SlowImages:
    """Images of which the last process takes some time more per batch.

    Args:
        images: the images.
        seconds: the time per batch.
    """

    def __init__(self, images: BinaryImages, seconds: float) -> None:
        self.images, self.seconds = images, seconds

    def __len__(self) -> int:
        """The number of images."""
        return len(self.images)

    def batch(self, index: Tensor, generator: torch.Generator) -> Any:
        """Some images."""
        if self.seconds and dist.is_initialized() and dist.get_rank() == dist.get_world_size() - 1:
            time.sleep(self.seconds)
        return self.images.batch(index, generator)


def epochs(images: Tensor, hidden: tuple[int, ...], size: int, delay: float) -> Trainer:
    """A training with a batch of 100 images per process."""
    torch.manual_seed(0)
    vae = build_vae(Config(hidden=hidden), (28, 28))
    data = SlowImages(BinaryImages(images), delay)
    return Trainer(vae, RlooELBO(4), data, batch_size=size * BATCH_SIZE)


@dataclass(frozen=True)
class Timed:
    """What process 0 tells of one training."""

    seconds: float
    processor_seconds: float
    exchanges: list[tuple[float, float]]
    num_weights: int


def work(rank: int, contender: Contender, path: str, args: argparse.Namespace, told: Any) -> None:
    """One process of a training: an epoch as a rehearsal, and then those that are timed.

    Args:
        rank: the number of the process.
        contender: how many processes there are.
        path: a file by which the processes find one another.
        args: the options.
        told: a queue for what process 0 tells.
    """
    torch.set_num_threads(1)
    if contender.size > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{path}", rank=rank, world_size=contender.size
        )
    sample = load_images("mnist-sample").train
    images = sample.repeat(math.ceil(args.images / len(sample)), 1, 1)[: args.images]
    trainer = epochs(images, args.hidden, contender.size, contender.delay)
    run = trainer.run(1 + args.epochs)
    next(run)
    start, before = time.perf_counter(), time.process_time()
    for _ in run:
        pass
    seconds, used = time.perf_counter() - start, time.process_time() - before
    sums = exchange(trainer) if contender.size > 1 and not contender.delay else []
    if rank == 0:
        num = sum(weight.numel() for weight in trainer.optimizer.weights)
        told.put(Timed(seconds, used, sums, num))
    if contender.size > 1:
        dist.destroy_process_group()


def exchange(trainer: Trainer) -> list[tuple[float, float]]:
    """The seconds of some sums of as many numbers as the model has weights.

    Args:
        trainer: the training.

    Returns:
        Pairs: as a step sums them, and by gloo alone.
    """
    num = sum(weight.numel() for weight in trainer.optimizer.weights)
    total = SumOfAll(num, torch.float32, torch.device("cpu"))
    values = torch.zeros(num)
    found = []
    for _ in range(20):
        dist.barrier()
        start = time.perf_counter()
        total()
        middle = time.perf_counter()
        dist.all_reduce(values)
        found.append((middle - start, time.perf_counter() - middle))
    return found


def timed(contender: Contender, args: argparse.Namespace) -> Timed:
    """Start the processes of one training, and wait for what they tell."""
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        given = (contender, f"{folder}/group", args, told)
        members = [
            context.Process(target=work, args=(rank, *given)) for rank in range(contender.size)
        ]
        for member in members:
            member.start()
        found: Timed = told.get()
        for member in members:
            member.join()
    return found


def main() -> None:
    """Measure, print a table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs per round")
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 256])
    parser.add_argument("--delay", type=float, default=0.01, help="seconds per slow step")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.hidden = tuple(args.hidden)
    size = args.processes
    alone, together = Contender("1 process", 1), Contender(f"{size} processes", size)
    contenders = [
        alone,
        together,
        Contender(f"{together.name}, one of them slow", size, args.delay),
    ]
    found: dict[str, list[Timed]] = {contender.name: [] for contender in contenders}
    for _ in range(args.rounds):
        for contender in contenders:
            found[contender.name].append(timed(contender, args))
    num = args.epochs * args.images
    print(f"{args.rounds} x {args.epochs} epochs of {args.images} images, {os.cpu_count()} cores")
    speeds, ratios = {}, {}
    for name, runs in found.items():
        pairs = zip(found[alone.name], runs, strict=True)
        each = sorted(one.seconds / run.seconds for one, run in pairs)
        speeds[name] = num / statistics.median(run.seconds for run in runs)
        ratios[name] = statistics.median(each)
        print(
            f"{name:32} {speeds[name]:8.0f} images/s, {ratios[name]:.2f} "
            f"({each[0]:.2f} to {each[-1]:.2f}) times one process"
        )
    used = [statistics.median(r.processor_seconds for r in found[c.name]) for c in contenders]
    free = used[0] / used[1]
    print(
        f"by the seconds that process 0 computes, not waiting for a core or for another process, "
        f"{size} processes do {free:.2f} times as much"
    )
    sums = [pair for run in found[together.name] for pair in run.exchanges]
    own, by_gloo = map(statistics.median, zip(*sums, strict=True))
    step = BATCH_SIZE * size / speeds[together.name]
    num_weights = found[alone.name][0].num_weights
    print(
        f"one step of {size} processes: {1e3 * step:.2f} ms; to sum {num_weights:,} "
        f"gradients, {4 * num_weights / 1e6:.1f} MB, by itself: {1e3 * own:.2f} ms; by gloo: "
        f"{1e3 * by_gloo:.2f} ms"
    )
    if args.json is not None:
        report = {
            "images_per_second": speeds,
            "times_one_process": ratios,
            "times_one_process_by_cpu": free,
            "weights": num_weights,
            "step_seconds": step,
            "exchange_seconds": own,
            "gloo_exchange_seconds": by_gloo,
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
