"""Train the same model by every gradient estimator, and compare the ELBOs that they reach.

Every estimator gets the same number of epochs, or the same seconds of training. Each run writes one
JSON file per estimator and seed into the folder --out. Then it makes one table and one figure of
all results in that folder: the test ELBO against the epoch, and against the time.

    python examples/compare_estimators.py --estimators rloo,reinmax --epochs 10 --out compared
    python examples/compare_estimators.py --seconds 300 --data mnist --data-dir DIR --out compared
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from pyro_dvae import BinaryImages, Config, build_elbo, build_vae, evaluate, fit, load_images
from pyro_dvae.runs.config import ESTIMATORS


def train(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train by one estimator.

    Returns:
        The settings, the curve of the ELBO on some test images, and the scores on all of them.
    """
    images = load_images(args.data, args.data_dir)
    data = BinaryImages(images.train)
    test = BinaryImages(images.test).fixed(seed=0)
    has_beta = ESTIMATORS[name].has_beta
    config = Config(
        estimator=name,
        num_particles=ESTIMATORS[name].particles,
        annealing=args.annealing if has_beta else 0,
        seed=args.seed,
    )
    torch.manual_seed(args.seed)
    vae = build_vae(config, (28, 28))
    curve = []
    for record in fit(
        vae,
        build_elbo(config, (28, 28)),
        data,
        None,  # all images are trained on, and the last weights are scored
        epochs=args.epochs or 1_000_000,
        max_seconds=args.seconds or args.cpu_seconds or float("inf"),
        clock=time.process_time if args.cpu_seconds else time.perf_counter,
        batch_size=args.batch_size,
        learning_rate=args.lr,
        averaging=args.averaging,
        annealing=config.annealing or 0,
        initial_beta=config.initial_beta,
        warmup=args.warmup,
        cooldown=0,
        seed=args.seed,
        compiled=False,
    ):
        elbo = evaluate(vae, test[: args.curve_images]).elbo
        curve.append([record.epoch, record.seconds, elbo])
        print(f"{name}: epoch {record.epoch}, {record.seconds:.0f} s, test ELBO {elbo:.2f}")
    scores = evaluate(vae, test)
    return {
        "estimator": name,
        "particles": config.num_particles,
        "seed": args.seed,
        "data": images.name,
        "batch_size": args.batch_size,
        "learning_rate": args.lr,
        "averaging": args.averaging,
        "annealing": config.annealing,
        "threads": torch.get_num_threads(),
        "epochs": curve[-1][0],
        "seconds": curve[-1][1],
        "clock": "processor" if args.cpu_seconds else "wall",
        "elbo": scores.elbo,
        "log_marginal": scores.log_marginal,
        "curve": curve,
    }


def report(folder: Path) -> None:
    """Write `table.md` and `compared.png` from all results in a folder."""
    results = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    results.sort(key=lambda result: -result["elbo"])
    lines = [
        "| estimator | S | seed | epochs | seconds | test ELBO | log p(x) |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['estimator']} | {r['particles']} | {r['seed']} | {r['epochs']} | "
        f"{r['seconds']:.0f} | {r['elbo']:.2f} | {r['log_marginal']:.2f} |"
        for r in results
    ]
    table = "\n".join(lines)
    print(table)
    (folder / "table.md").write_text(table + "\n")

    figure = Figure(figsize=(13, 5), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for i, result in enumerate(results):
        epochs, seconds, elbo = zip(*result["curve"], strict=True)
        style = {"label": f"{result['estimator']}, seed {result['seed']}", "color": f"C{i % 10}"}
        style["linestyle"] = ("-", "--", ":")[i // 10 % 3]
        axes[0].plot(epochs, elbo, **style)
        axes[1].plot(seconds, elbo, **style)
    best = max(result["elbo"] for result in results)
    axes[0].set(xlabel="epoch", ylabel="test ELBO, nats per image", ylim=(best - 30, best + 2))
    axes[1].set(xlabel="seconds of training")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="outside right center")
    for ax in axes:
        ax.grid(alpha=0.3)
    figure.savefig(folder / "compared.png", dpi=150)


def main() -> None:
    """Train by the estimators that are asked for, then report on all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--estimators", default="all", help="names with commas between, or all")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--epochs", type=int, help="epochs per estimator; 2 if no budget is given")
    budget.add_argument("--seconds", type=float, help="seconds of training per estimator")
    budget.add_argument(
        "--cpu-seconds", type=float, help="the same by processor time; set OMP_NUM_THREADS=1"
    )
    parser.add_argument("--data", default="mnist-sample")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=Config.batch_size)
    parser.add_argument("--lr", type=float, default=Config.learning_rate)
    parser.add_argument("--warmup", type=int, default=Config.warmup, help="epochs")
    parser.add_argument("--averaging", type=float, default=Config.averaging)
    parser.add_argument("--annealing", type=int, help="epochs; as in `pdvae fit` if left out")
    parser.add_argument(
        "--curve-images", type=int, default=1000, help="test images scored per epoch"
    )
    parser.add_argument("--out", type=Path, default=Path("compared"))
    args = parser.parse_args()
    if args.epochs is args.seconds is args.cpu_seconds is None:
        args.epochs = 2
    names = list(ESTIMATORS) if args.estimators == "all" else args.estimators.split(",")
    unknown = set(names) - set(ESTIMATORS)
    if unknown:
        parser.error(f"expected estimators among {', '.join(ESTIMATORS)}; got {unknown}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        result = train(name, args)
        (args.out / f"{name}-seed{args.seed}.json").write_text(json.dumps(result))
    report(args.out)


if __name__ == "__main__":
    main()
