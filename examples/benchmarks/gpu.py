"""Everything to be measured on a GPU, in one run of under 4 minutes.

It measures the times of training steps and of exact evaluation, and the ELBO after a short
training, in float32 and in bfloat16. The model has the tutorial's networks and a code of 4 x 8. The
data are on the GPU, and batches of 100 are binarised anew at each step. The contenders of a table
take turns, one epoch each. If one fails, a line shows its error and it is left out. The JSON file
is written after each part, so that a run that breaks off leaves what it has measured. Steps that
are captured as a CUDA graph have a table of their own at the end, since a capture that fails can
leave CUDA unusable. **Nothing here has run on a GPU yet**; --device cpu --quick runs the same code
without one.

README.md in this folder says how to run it on a machine without a package index.

Example: python examples/benchmarks/gpu.py --device cpu --quick --json gpu.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam  # type: ignore[attr-defined]
from torch import Tensor

from pyro_dvae import (
    BinaryImages,
    Config,
    ReinforceELBO,
    RlooELBO,
    Trainer,
    __version__,
    build_vae,
    load_images,
    log_marginal,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
from_scratch: Any = import_module("from_scratch")

BATCH_SIZE, LEARNING_RATE = 100, 5e-4
PLAIN = "plain SVI"
PLAIN_STEPS: dict[str, Any] = {"averaging": 0.0, "annealing": 0}
"""The settings of a step that does no more than the other contenders do."""
SHARES = {"steps": 0.5, "evaluation": 0.6, "captured": 0.9}
"""Part -> the share of the time after which no further round of the part begins."""
Call = Callable[[], object]
Rows = dict[str, dict[str, Any]]


class Bench:
    """The measurements on a device. With `quick` they only show that everything runs."""

    def __init__(self, device: torch.device, images: Tensor, rounds: int, quick: bool) -> None:
        self.device, self.rounds, self.quick = device, rounds, quick
        self.hidden = (8, 6) if quick else (512, 256)
        self.num_steps = 5 if quick else 600  # the first three of a captured step are warm-up
        num_data = self.num_steps * BATCH_SIZE
        copies = -(-num_data // len(images))
        self.images = images.repeat(copies, 1, 1)[:num_data].to(device)

    def vae(self, num_latents: int = 4) -> Any:
        """Build the tutorial's model."""
        config = Config(num_latents=num_latents, num_categories=8, hidden=self.hidden)
        return build_vae(config, self.images.shape[1:]).to(self.device)

    def ours(self, elbo: Any, **options: Any) -> Call:
        """An epoch of `Trainer`, with its work between epochs."""
        options |= {"batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE, **PLAIN_STEPS}
        records = Trainer(self.vae(), elbo, BinaryImages(self.images), **options).run(sys.maxsize)
        return lambda: next(records)

    def plain_svi(self) -> Call:
        """An epoch of Pyro alone: `SVI` with `Trace_ELBO` and Pyro's Adam."""
        vae = self.vae()
        svi = SVI(vae.model, vae.guide, Adam({"lr": LEARNING_RATE}), Trace_ELBO())

        def epoch() -> None:
            pyro.clear_param_store()  # which holds the weights of other contenders
            for x in self.batches():
                svi.step(x.reshape(-1, *self.images.shape[1:]))

        return epoch

    def by_hand(self) -> Call:
        """An epoch of examples/from_scratch.py with the fused Adam."""
        sizes = (self.images[0].numel(), 4, 8, self.hidden)
        encoder = from_scratch.make_encoder(*sizes).to(self.device)
        decoder = from_scratch.make_decoder(*sizes).to(self.device)
        weights = [*encoder.parameters(), *decoder.parameters()]
        optimizer = torch.optim.Adam(weights, LEARNING_RATE, fused=True)

        def epoch() -> None:
            for x in self.batches():
                _, loss = from_scratch.recipe(encoder, decoder, x)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        return epoch

    def batches(self) -> Any:
        """The batches (B, P) of an epoch, binarised anew."""
        order = torch.randperm(len(self.images), device=self.device)
        return (from_scratch.binarize(self.images[index]) for index in order.split(BATCH_SIZE))

    def measure(self, build: dict[str, Callable[[], Call]], until: float, each: int) -> Rows:
        """Time contenders in as many rounds as there is time for, at least one.

        Args:
            build: name -> a function that makes a contender. The contender is called once before
                it is timed.
            until: the time, of `time.perf_counter`, after which no further round begins.
            each: the number by which the time of a call is divided.

        Returns:
            Name -> the times, or the error of a contender that failed.
        """
        # An error, since a step that could not be compiled must not be timed as compiled.
        warnings.filterwarnings("error", "The training step could not be compiled")
        ready: dict[str, Call] = {}
        errors: dict[str, str] = {}
        times: dict[str, list[float]] = {}
        for name, make in build.items():
            torch.manual_seed(0)
            try:
                ready[name] = make()
                self.seconds(ready[name])
                times[name] = []
            except Exception as error:
                errors[name] = _line(error)
        for turn in range(self.rounds):
            if turn and time.perf_counter() > until:
                break
            for name in [name for name in ready if name not in errors]:
                try:
                    times[name].append(self.seconds(ready[name]) / each)
                except Exception as error:
                    errors[name] = _line(error)
        rows: Rows = {name: {"error": error} for name, error in errors.items()}
        return rows | {n: _summary(took) for n, took in times.items() if n not in errors}

    def seconds(self, call: Call) -> float:
        """Return the seconds of one call, until the device has finished."""
        self.wait()
        start = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def steps(self, until: float, capture: bool) -> Rows:
        """Time a step, whose operations Python sends one by one or which is a CUDA graph."""
        mean = partial(ReinforceELBO, baseline="running_mean")
        ours, name = partial(self.ours, capture=capture), "captured" if capture else "ours"
        build: dict[str, Callable[[], Call]] = {
            PLAIN: self.plain_svi,
            name: lambda: ours(mean()),
            f"{name}, RLOO 4": lambda: ours(RlooELBO(4)),
            f"{name}, bfloat16": lambda: ours(mean(), bfloat16=True),
        }
        if not capture:
            build["by hand"] = self.by_hand
        if not self.quick:  # compiling needs a compiler, and most of a minute
            build[f"{name}, compiled"] = lambda: ours(mean(), compiled=True)
        return _against(PLAIN, self.measure(build, until, self.num_steps))

    def evaluation(self, until: float) -> Rows:
        """Time exact log p(x), beside the bare matrix product that it contains."""
        num_data, num_latents = (100, 2) if self.quick else (10_000, 4)
        x = (self.images[:num_data] > 127).float()
        vae, flat = self.vae(num_latents), x.flatten(1)
        logits = torch.randn(flat.shape[1], 8**num_latents, device=self.device)
        build: dict[str, Callable[[], Call]] = {
            "bare product": lambda: lambda: flat @ logits,
            "log_marginal": lambda: torch.no_grad()(lambda: log_marginal(vae, x)),
        }
        return _against("bare product", self.measure(build, until, 1))

    def elbos(self, train: Tensor, test: Tensor, epochs: int, capture: bool) -> Rows:
        """Compute the exact validation ELBO after a short training, in nats per image."""
        rows: Rows = {}
        held_out = BinaryImages(test.to(self.device)).fixed(0)
        estimators: dict[str, Callable[[], Any]] = {
            "REINFORCE": lambda: ReinforceELBO(baseline="running_mean"),
            "RLOO 4": lambda: RlooELBO(4),
        }
        for estimator, make in estimators.items():
            for flag in (False, True):
                torch.manual_seed(0)
                options: dict[str, Any] = {"batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE}
                options |= {"averaging": 0.99, "annealing": 0, "capture": capture, "bfloat16": flag}
                name = f"{estimator}, {'bfloat16' if flag else 'float32'}"
                try:
                    data = BinaryImages(train.to(self.device))
                    trainer = Trainer(self.vae(), make(), data, held_out, **options)
                    rows[name] = {"elbo": [r.validation_elbo for r in trainer.run(epochs)][-1]}
                except Exception as error:
                    rows[name] = {"error": _line(error)}
        return rows


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _summary(seconds: list[float]) -> dict[str, Any]:
    low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else 3 * seconds
    quartiles = [1e3 * low, 1e3 * high]
    return {"median_ms": 1e3 * statistics.median(seconds), "quartiles_ms": quartiles}


def _against(name: str, rows: Rows) -> Rows:
    """With the ratio of each median to one of them."""
    base = rows.get(name, {}).get("median_ms")
    for row in rows.values():
        if "median_ms" in row:
            row["ratio"] = None if base is None else row["median_ms"] / base
    return rows


def show(title: str, rows: Rows) -> None:
    """Print a part of the table."""
    print(f"\n{title:24} {'median':>9}     {'quartiles':>19}  {'ratio':>8}")
    for name, row in rows.items():
        if "error" in row:
            print(f"{name:24} left out: {row['error']}")
        elif "elbo" in row:
            print(f"{name:24} {row['elbo']:9.2f} nats per image")
        else:
            low, high = row["quartiles_ms"]
            ratio = "" if row["ratio"] is None else f"{row['ratio']:8.3f}"
            print(f"{name:24} {row['median_ms']:9.4f} ms  {low:9.4f} {high:9.4f}  {ratio}")


def main() -> None:
    """Measure part by part. After each part, print it and write the results so far."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", type=torch.device)
    parser.add_argument("--data", default="mnist-sample", help="or mnist, for the ELBOs")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=20, help="epochs of the short training")
    parser.add_argument("--seconds", type=float, default=180.0, help="when the last round begins")
    parser.add_argument("--quick", action="store_true", help="seconds, to see that all runs")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    args = parser.parse_args()

    start, images = time.perf_counter(), load_images(args.data)
    bench = Bench(args.device, images.train, args.rounds, args.quick)
    on_card = args.device.type == "cuda"
    setting: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "device": torch.cuda.get_device_name(args.device) if on_card else "cpu",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pyro": pyro.__version__,
        "pyro_dvae": __version__,
        "rounds": args.rounds,
        "steps": bench.num_steps,
    }
    print(", ".join(f"{key} {value}" for key, value in setting.items()))
    size = 200 if args.quick else len(images.train)
    elbos = partial(bench.elbos, images.train[:size], images.test[:size], args.epochs)
    begin = {name: start + share * args.seconds for name, share in SHARES.items()}
    parts: dict[str, tuple[str, Callable[[], Rows]]] = {
        "steps": (f"a step, to {PLAIN}", lambda: bench.steps(begin["steps"], False)),
        "evaluation": ("evaluation", lambda: bench.evaluation(begin["evaluation"])),
        "elbos": (f"validation, epoch {args.epochs}", lambda: elbos(False)),
        "captured": (f"captured, to {PLAIN}", lambda: bench.steps(begin["captured"], True)),
        "captured_elbos": ("validation, captured", lambda: elbos(True)),
    }
    report: dict[str, Any] = {"setting": setting}
    for key, (title, part) in parts.items():
        report[key] = part()
        show(title, report[key])
        setting["seconds"] = round(time.perf_counter() - start, 1)
        if args.json is not None:
            args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
