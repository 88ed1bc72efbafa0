"""Growth of the cost with the size of the problem: no worse than linear, and memory flat.

Evaluates exactly, against the bare matrix product that it contains, for more data and more codes;
trains with larger batches and longer codes; then holds the memory after some steps against that
after many. The cells of an axis take turns, so what else the machine does falls on all alike:
read the growth, time per item against that of the smallest size, not the times.

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


class Sizes:
    """What is measured; `quick` takes seconds and shows only that everything runs."""

    def __init__(self, quick: bool) -> None:
        self.event = (4, 4) if quick else (28, 28)
        self.hidden = (16,) if quick else (512, 256)
        self.rounds = 2 if quick else 9
        self.num_data = (100, 200) if quick else (1_000, 3_000, 10_000)
        self.codes = ((2, 8), (3, 8)) if quick else ((2, 8), (3, 8), (4, 8), (4, 16))
        self.batch_sizes = (16, 64) if quick else (16, 64, 256, 1024, 4096)
        self.num_latents = (4, 16) if quick else (4, 16, 64, 256)
        self.steps = (20, 40) if quick else (100, 2_000)

    def model(self, num_latents: int, num_categories: int = 8) -> Any:
        """The tutorial's networks."""
        config = Config(num_latents=num_latents, num_categories=num_categories, hidden=self.hidden)
        return build_vae(config, self.event)

    def zeros_and_ones(self, num: int) -> torch.Tensor:
        """Data of a likely density, (N, *event)."""
        return (torch.rand(num, *self.event) < 0.2).float()

    def epoch(self, vae: Any, num: int, batch_size: int) -> Call:
        """An epoch of `Trainer`, binarisation included."""
        images = torch.randint(256, (num, *self.event), dtype=torch.uint8)
        trainer = Trainer(vae, ReinforceELBO(), BinaryImages(images), batch_size=batch_size)
        records = trainer.run(sys.maxsize)
        return lambda: next(records)


def product(x: torch.Tensor, num_codes: int) -> Call:
    """The (N, P) x (P, K^D) product of exact evaluation, in blocks that memory bears."""
    logits = torch.randn(num_codes, x[0].numel())

    def run() -> None:
        for rows in x.flatten(1).split(max(1, 2**25 // num_codes)):
            rows @ logits.T

    return run


def exact(vae: Any, x: torch.Tensor) -> dict[str, Call]:
    """The two exact evaluations of the data."""
    return {
        "evaluate": lambda: evaluate(vae, x, exact=True),
        "log_marginal": torch.no_grad()(lambda: log_marginal(vae, x)),
    }


def measure(calls: dict[tuple[str, int], Call], rounds: int) -> dict[tuple[str, int], list[float]]:
    """Seconds of each call in every round, the calls taking turns."""
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
    for turn in range(rounds + 1):  # the first warms up
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            if turn:
                seconds[key].append(time.perf_counter() - start)
    return seconds


def rows(axis: str, items: dict[int, int], seconds: dict[Any, list[float]]) -> list[dict[str, Any]]:
    """A row for each cell: its size, seconds, and growth beside the linear law's.

    Args:
        axis: what the size is.
        items: size -> what the linear law counts: data, or codes.
        seconds: (what, size) -> seconds of every round.
    """
    medians = {key: statistics.median(took) for key, took in seconds.items()}
    table = []
    for (what, size), took in seconds.items():
        least = min(items)
        alone = medians[what, least] / items[least]
        bare = medians.get(("product", size))
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


def evaluation(sizes: Sizes) -> list[dict[str, Any]]:
    """Against N, at the largest but one K^D; and against K^D, at the smallest N."""
    middle = sizes.codes[-2]
    vae, calls = sizes.model(*middle), {}
    for num in sizes.num_data:
        x, total = sizes.zeros_and_ones(num), middle[1] ** middle[0]
        for what, call in {**exact(vae, x), "product": product(x, total)}.items():
            calls[what, num] = call
    table = rows("N", {num: num for num in sizes.num_data}, measure(calls, sizes.rounds))
    calls, x = {}, sizes.zeros_and_ones(sizes.num_data[0])
    totals = [num_categories**num_latents for num_latents, num_categories in sizes.codes]
    for code, total in zip(sizes.codes, totals, strict=True):
        for what, call in {**exact(sizes.model(*code), x), "product": product(x, total)}.items():
            calls[what, total] = call
    return table + rows("K^D", {total: total for total in totals}, measure(calls, sizes.rounds))


def training(sizes: Sizes) -> list[dict[str, Any]]:
    """An epoch of the same data in batches of every size, and of codes of every length."""
    num = max(sizes.batch_sizes)
    calls = {("epoch", size): sizes.epoch(sizes.model(4), num, size) for size in sizes.batch_sizes}
    table = rows("batch", dict.fromkeys(sizes.batch_sizes, num), measure(calls, sizes.rounds))
    calls = {
        ("epoch", 8 * latents): sizes.epoch(sizes.model(latents), num, 100)
        for latents in sizes.num_latents
    }
    items = {8 * latents: 8 * latents for latents in sizes.num_latents}
    return table + rows("D K", items, measure(calls, sizes.rounds))


def resident() -> float:
    """Megabytes held now; where the system does not tell, the most so far."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 1e6
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1e6 if sys.platform == "darwin" else 1e3)


def memory(sizes: Sizes) -> dict[str, float]:
    """Megabytes held after few and after many training steps, an epoch having ten."""
    epoch = sizes.epoch(sizes.model(2), 160, 16)
    held, done = {}, 0
    for steps in sizes.steps:
        while done < steps:
            epoch()
            done += 10
        held[f"after {steps} steps"] = resident()
    return held


def draw(table: list[dict[str, Any]], path: Path) -> None:
    """Seconds against size, both logarithmic, a panel for each axis."""
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
    """Measure, print the table, write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, seconds")
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
    held = memory(sizes)  # first, before larger things have been held
    table = evaluation(sizes) + training(sizes)
    print("growth: time per item against the smallest size's, at most 1 where cost is linear")
    print(f"{'axis':<7}{'what':<14}{'size':>7}{'seconds':>10}{'spread':>18}{'growth':>8}  /product")
    for row in table:
        spread = f"{row['least']:.4f}-{row['most']:.4f}"
        bare = "" if row["against_product"] is None else f"{row['against_product']:10.2f}"
        print(
            f"{row['axis']:<7}{row['what']:<14}{row['size']:>7}{row['seconds']:>10.4f}"
            f"{spread:>18}{row['growth']:>8.2f}{bare}"
        )
    for when, megabytes in held.items():
        print(f"resident {when}: {megabytes:.1f} MB")
    if arguments.json is not None:
        report = {"machine": machine, "rows": table, "resident_megabytes": held}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.plot is not None:
        draw(table, arguments.plot)


if __name__ == "__main__":
    main()
