"""Images per second of several processes of one thread against one, at 100 images per process.

The model has the tutorial's networks and a code of 4 x 8; the gradient is that of RLOO with 4
particles. The contenders take turns, one epoch of the same
images each, so that other work of the machine slows all of them alike. One contender has a process
that sleeps in each step, as a slow machine would. The exchange is also timed by itself. Read the
ratios, on a machine that has a free core per process.

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pyro_dvae import (
    BinaryImages,
    Config,
    EpochRecord,
    RlooELBO,
    Trainer,
    build_vae,
    load_images,
)
from pyro_dvae.training.summing import SumOfAll

BATCH_SIZE = 100
ALONE, TOGETHER, SLOW = "1 process", "{} processes", "{} processes, one of them slow"


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


def work(rank: int, path: str, args: argparse.Namespace, results: Any) -> None:
    """What each process does; process 0 also trains alone, and reports.

    Args:
        rank: the number of the process.
        path: a folder in which the processes find one another.
        args: the options.
        results: a queue for seconds per epoch by contender, and of an exchange.
    """
    torch.set_num_threads(1)
    images, size = load_images("mnist-sample").train[: args.images], args.processes
    runs: dict[str, Iterator[EpochRecord]] = {}
    seconds: dict[str, list[float]] = {}
    busy: dict[str, list[float]] = {}
    names = {ALONE: 0.0, TOGETHER.format(size): 0.0, SLOW.format(size): args.delay}
    trainers: dict[str, Trainer] = {}
    exchanges: list[tuple[float, float]] = []
    for number in range(-1, args.rounds):  # the first round is a rehearsal
        for name, delay in names.items():
            alone = name == ALONE
            group = f"file://{path}/{number} {name}"
            dist.init_process_group("gloo", init_method=group, rank=rank, world_size=size)
            if alone:  # the others have come here, and wait
                dist.barrier()
                dist.destroy_process_group()
                if rank:
                    continue
            if name not in runs:
                trainers[name] = epochs(images, args.hidden, 1 if alone else size, delay)
                runs[name] = trainers[name].run(10**6)
            start, before = time.perf_counter(), time.process_time()
            next(runs[name])
            busy.setdefault(name, []).append(time.process_time() - before)
            seconds.setdefault(name, []).append(time.perf_counter() - start)
            if not alone:
                exchanges += exchange(trainers[name]) if not delay else []
                dist.barrier()
                dist.destroy_process_group()
    if rank == 0:
        num = sum(weight.numel() for weight in trainers[ALONE].optimizer.weights)
        timed, used = (
            {name: values[1:] for name, values in clock.items()} for clock in (seconds, busy)
        )
        results.put((timed, used, exchanges, num))


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


def main() -> None:
    """Measure, print a table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 256])
    parser.add_argument("--delay", type=float, default=0.01, help="seconds per slow step")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.hidden = tuple(args.hidden)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        members = [
            context.Process(target=work, args=(rank, folder, args, results))
            for rank in range(args.processes)
        ]
        for member in members:
            member.start()
        timed, used, exchanges, num_weights = results.get()
        for member in members:
            member.join()
    medians = {name: statistics.median(values) for name, values in timed.items()}
    steps = math.ceil(args.images / (BATCH_SIZE * args.processes))
    print(f"{args.rounds} epochs of {args.images} images, {os.cpu_count()} cores")
    for name, median in medians.items():
        ratios = sorted(a / b for a, b in zip(timed[ALONE], timed[name], strict=True))
        print(
            f"{name:32} {args.images / median:8.0f} images/s, {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}) times one process"
        )
    free = statistics.median(used[ALONE]) / statistics.median(used[TOGETHER.format(args.processes)])
    print(
        f"by the seconds that process 0 computes, not waiting for a core or for another process, "
        f"{args.processes} processes do {free:.2f} times as much"
    )
    own, by_gloo = map(statistics.median, zip(*exchanges, strict=True))
    step = medians[TOGETHER.format(args.processes)] / steps
    print(
        f"one step of {args.processes} processes: {1e3 * step:.2f} ms; to sum {num_weights:,} "
        f"gradients, {4 * num_weights / 1e6:.1f} MB, by itself: {1e3 * own:.2f} ms; by gloo: "
        f"{1e3 * by_gloo:.2f} ms"
    )
    if args.json is not None:
        report = {
            "images_per_second": {name: args.images / t for name, t in medians.items()},
            "times_one_process": {name: medians[ALONE] / t for name, t in medians.items()},
            "times_one_process_by_cpu": free,
            "weights": num_weights,
            "step_seconds": step,
            "exchange_seconds": own,
            "gloo_exchange_seconds": by_gloo,
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
