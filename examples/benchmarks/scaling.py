"""How time and memory grow with the size of the problem. They should grow at most linearly.

The axes are:

- exact evaluation of more data and with more codes, beside the bare matrix product that it
contains;
- training with larger batches and with longer codes;
- training on and evaluation of up to a million data with a small model, so that the cost of the
data
  shows;
- memory after 100,000 training steps beside that after 10,000.

The sizes of an axis take turns, so that other work of the machine slows all of them alike. Read the
growth, which is the time per item relative to the smallest size, not the times. Everything takes
some 9 minutes and, for the million, 6 GB.

Example: OMP_NUM_THREADS=1 python examples/benchmarks/scaling.py --plot scaling.png
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pyro_dvae import (
    BinaryImages,
    Config,
    ReinforceELBO,
    Trainer,
    __version__,
    build_vae,
    evaluate,
    log_marginal,
)

Call = Callable[[], object]
Table = list[dict[str, Any]]
SMALL = (16,)
"""The hidden layer of the small model, which costs little beside its data."""


class Sizes:
    """The sizes that are measured. With `quick` they take seconds and only show that all runs."""

    def __init__(self, quick: bool) -> None:
        self.event = (4, 4) if quick else (28, 28)
        self.hidden = (16,) if quick else (512, 256)
        self.rounds = 3 if quick else 9
        self.num_data = (100, 200) if quick else (1_000, 3_000, 10_000)
        self.codes = ((2, 8), (3, 8)) if quick else ((2, 8), (3, 8), (4, 8), (4, 16))
        self.batch_sizes = (16, 64) if quick else (16, 64, 256, 1024, 4096)
        self.num_latents = (4, 16) if quick else (4, 16, 64, 256)
        self.millions = (1_000, 2_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
        self.steps = (20, 40) if quick else (10_000, 100_000)

    def model(self, num_latents: int, num_categories: int = 8, *, small: bool = False) -> Any:
        """Build the tutorial's model, or a small one."""
        hidden = SMALL if small else self.hidden
        config = Config(num_latents=num_latents, num_categories=num_categories, hidden=hidden)
        return build_vae(config, self.event)

    def images(self, num: int) -> torch.Tensor:
        """Draw grey values, uint8 (N, *event)."""
        return torch.randint(256, (num, *self.event), dtype=torch.uint8)


def zeros_and_ones(images: torch.Tensor) -> torch.Tensor:
    """Bits of which a fifth are 1, as in images of digits."""
    return (images < 51).float()


def epoch(vae: Any, images: torch.Tensor, batch_size: int) -> Call:
    """An epoch of `Trainer`, with shuffling, binarisation and its work between epochs."""
    options: dict[str, Any] = {"batch_size": batch_size, "averaging": 0.0, "annealing": 0}
    trainer = Trainer(vae, ReinforceELBO(), BinaryImages(images), **options)
    records = trainer.run(sys.maxsize)
    return lambda: next(records)


def product(x: torch.Tensor, num_codes: int) -> Call:
    """The (N, P) x (P, K^D) matrix product of exact evaluation, in blocks that fit into memory."""
    logits = torch.randn(num_codes, x[0].numel())

    def run() -> None:
        for rows in x.flatten(1).split(max(1, 2**25 // num_codes)):
            rows @ logits.T

    return run


def exact(vae: Any, x: torch.Tensor, num_codes: int) -> dict[str, Call]:
    """The two exact evaluations of the data, and the matrix product that both contain."""
    return {
        "evaluate": lambda: evaluate(vae, x, exact=True),
        "log_marginal": torch.no_grad()(lambda: log_marginal(vae, x)),
        "product": product(x, num_codes),
    }


def measure(calls: dict[tuple[str, int], Call], rounds: int) -> dict[tuple[str, int], list[float]]:
    """The seconds of each call in every round. The calls take turns."""
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
    for turn in range(rounds + 1):  # the first round is a warm-up and is not counted
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            if turn:
                seconds[key].append(time.perf_counter() - start)
    return seconds


def rows(axis: str, items: dict[int, int], seconds: dict[Any, list[float]]) -> Table:
    """The rows of the table for one axis: size, seconds and growth.

    Args:
        axis: what the size is.
        items: size -> the number of items, data or codes, that the time should be linear in.
        seconds: (what, size) -> the seconds of every round.
    """
    medians = {key: statistics.median(took) for key, took in seconds.items()}
    table = []
    for (what, size), took in seconds.items():
        least = min(items)
        alone = medians[what, least] / items[least]
        bare = None if what == "epoch" else medians.get(("product", size))
        table.append(
            {
                "axis": axis,
                "what": what,
                "size": size,
                "seconds": medians[what, size],
                "least": min(took),
                "most": max(took),
                "growth": medians[what, size] / items[size] / alone,
                "against_product": None if bare is None else medians[what, size] / bare,
            }
        )
    return sorted(table, key=lambda row: (row["what"], row["size"]))


def against_data(sizes: Sizes) -> Table:
    """Exact evaluation against N, at the second largest K^D."""
    num_latents, num_categories = sizes.codes[-2]
    vae, calls = sizes.model(num_latents, num_categories), {}
    for num in sizes.num_data:
        x = zeros_and_ones(sizes.images(num))
        for what, call in exact(vae, x, num_categories**num_latents).items():
            calls[what, num] = call
    return rows("N", {num: num for num in sizes.num_data}, measure(calls, sizes.rounds))


def against_codes(sizes: Sizes) -> Table:
    """Exact evaluation against K^D, at the smallest N."""
    x, calls = zeros_and_ones(sizes.images(sizes.num_data[0])), {}
    for num_latents, num_categories in sizes.codes:
        total = num_categories**num_latents
        for what, call in exact(sizes.model(num_latents, num_categories), x, total).items():
            calls[what, total] = call
    return rows("K^D", {total: total for _, total in calls}, measure(calls, sizes.rounds))


def against_batch(sizes: Sizes) -> Table:
    """An epoch of the same data, in batches of every size."""
    num = max(sizes.batch_sizes)
    images = sizes.images(num)
    calls = {("epoch", size): epoch(sizes.model(4), images, size) for size in sizes.batch_sizes}
    return rows("batch", dict.fromkeys(sizes.batch_sizes, num), measure(calls, sizes.rounds))


def against_latents(sizes: Sizes) -> Table:
    """An epoch of the same data in batches of 100, with codes of every length."""
    images = sizes.images(max(sizes.batch_sizes))
    calls = {("epoch", 8 * num): epoch(sizes.model(num), images, 100) for num in sizes.num_latents}
    items = {8 * num: 8 * num for num in sizes.num_latents}
    return rows("DK", items, measure(calls, sizes.rounds))


def against_millions(sizes: Sizes) -> Table:
    """An epoch and exact evaluation of up to a million data with a small model, in fewer rounds."""
    images = sizes.images(max(sizes.millions))
    x, vae, calls = zeros_and_ones(images), sizes.model(2, small=True), {}
    for num in sizes.millions:
        calls["epoch", num] = epoch(vae, images[:num], 100)
        for what, call in exact(vae, x[:num], 8**2).items():
            calls[what, num] = call
    return rows("N small", {num: num for num in sizes.millions}, measure(calls, sizes.rounds // 3))


AXES: dict[str, Callable[[Sizes], Table]] = {
    "N": against_data,
    "codes": against_codes,
    "batch": against_batch,
    "latents": against_latents,
    "millions": against_millions,
}


def resident() -> float:
    """The megabytes held now; if the system does not tell, the most held so far."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 1e6
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1e6 if sys.platform == "darwin" else 1e3)


def memory(sizes: Sizes) -> dict[str, float]:
    """The megabytes held after few and after many training steps. An epoch has ten steps."""
    next_epoch = epoch(sizes.model(2, small=True), sizes.images(160), 16)
    held, done = {}, 0
    for steps in sizes.steps:
        while done < steps:
            next_epoch()
            done += 10
        held[f"after {steps} steps"] = resident()
    return held


def draw(table: Table, path: Path) -> None:
    """Plot seconds against size, both logarithmic, with one panel per axis."""
    from matplotlib.figure import Figure

    axes = list(dict.fromkeys(row["axis"] for row in table))
    figure = Figure(figsize=(3.2 * len(axes), 3), layout="constrained")
    panels = figure.subplots(1, len(axes), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        for what in dict.fromkeys(row["what"] for row in table if row["axis"] == axis):
            some = [row for row in table if (row["axis"], row["what"]) == (axis, what)]
            sizes, seconds = [row["size"] for row in some], [row["seconds"] for row in some]
            panel.loglog(sizes, seconds, marker="o", label=what)
        panel.set(xlabel=axis, ylabel="seconds")
        panel.legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    """Measure, print the table, and write the files that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, which take seconds")
    names = [*AXES, "memory"]
    parser.add_argument("--axes", nargs="+", choices=names, default=names, help="all if left out")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--plot", type=Path, help="draw seconds against size here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    sizes = Sizes(arguments.quick)
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads; "
        f"python {platform.python_version()}, torch {torch.__version__}, pyro_dvae {__version__}"
    )
    print(machine, flush=True)
    # Memory is measured first, before anything large has been held.
    held = memory(sizes) if "memory" in arguments.axes else {}
    table = [row for name, axis in AXES.items() if name in arguments.axes for row in axis(sizes)]
    print("growth: time per item relative to the smallest size, at most 1 if the cost is linear")
    print(f"{'axis':<8}{'what':<14}{'size':>7}{'seconds':>10}{'spread':>18}{'growth':>8}  /product")
    for row in table:
        spread = f"{row['least']:.4f}-{row['most']:.4f}"
        bare = "" if row["against_product"] is None else f"{row['against_product']:10.2f}"
        print(
            f"{row['axis']:<8}{row['what']:<14}{row['size']:>7}{row['seconds']:>10.4f}"
            f"{spread:>18}{row['growth']:>8.2f}{bare}"
        )
    for when, megabytes in held.items():
        print(f"resident {when}: {megabytes:.1f} MB")
    if arguments.json is not None:
        report = {"machine": machine, "rows": table, "resident_megabytes": held}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.plot is not None and table:
        draw(table, arguments.plot)


if __name__ == "__main__":
    main()
