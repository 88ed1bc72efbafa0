"""Anomaly scores on real data: a class is held out of the training, and has to be found again.

The area under the ROC curve (AUROC) is the probability that a row of the held-out class is more
unusual than a test row of the other classes; 0.5 is chance. The scores of a discrete VAE are those
of `pyro_dvae.evaluation.anomaly_scores`. Beside them: an isolation forest, a Gaussian mixture (its
size chosen by BIC; of images and digits, on 32 principal components), and the error of a
reconstruction from the principal components that hold 90 % of the variance.

    python examples/anomaly.py --only wine penguins --seeds 3
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from real_data import FASHION, with_kinds_named, write
from real_peers import Features
from real_sets import DATA, RealData
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.mixture import GaussianMixture

from pyro_dvae.data import open_source
from pyro_dvae.evaluation import AnomalyScore, anomaly_scores
from pyro_dvae.runs import start_run

Array = NDArray[np.float64]
HELD_OUT: dict[str, tuple[Any, dict[str, Any]]] = {
    "wine": (2, {}),
    "breast-cancer": (0, {}),
    "penguins": (2, {}),
    "weather": ("snow", {}),
    "voters": (1, {}),
    "digits": (8, {}),
    "mnist": (8, {"epochs": 30}),
    "fashion": (8, {"epochs": 30}),
}
"""Data set -> the class that is held out, and settings beside the defaults. 8 is "bag"."""
NUM_IMAGES, NUM_TESTED = 2_500, 400
"""Training images, and images tested of each side."""


def auroc(usual: Array, unusual: Array) -> float:
    """P(score of an unusual row < score of a usual one), where half of the ties count."""
    below = (unusual[:, None] < usual).mean()
    return float(below + (unusual[:, None] == usual).mean() / 2)


def peers(train: Array, test: Array, is_image: bool, seed: int) -> dict[str, Array]:
    """The scores of scikit-learn's methods; the lowest are most unusual."""
    mean, scale = train.mean(0), train.std(0) + 1e-9
    if is_image:
        scale = np.ones_like(scale)
    train, test = (train - mean) / scale, (test - mean) / scale
    forest = IsolationForest(random_state=seed).fit(train)
    pca = PCA(0.9).fit(train)
    error = ((test - pca.inverse_transform(pca.transform(test))) ** 2).sum(1)
    seen, tested = train, test
    if is_image:
        few = PCA(32, random_state=seed).fit(train)
        seen, tested = few.transform(train), few.transform(test)
    fitted = [
        GaussianMixture(size, covariance_type=kind, reg_covar=1e-3, random_state=seed).fit(seen)
        for kind in ("diag", "full")
        for size in ((4, 16) if is_image else (1, 2, 4, 8, 16))
    ]
    best = min(fitted, key=lambda model: model.bic(seen))
    return {
        "isolation forest": forest.score_samples(test),
        "Gaussian mixture": best.score_samples(tested),
        "PCA error": -error,
    }


def parts(data: RealData, held_out: Any, seed: int) -> tuple[Array, Array, Array]:
    """The rows to train on, the usual test rows, and the unusual ones, by number."""
    labels = np.asarray(data.labels)
    order = np.random.default_rng(seed).permutation(len(labels))
    usual, unusual = order[labels[order] != held_out], order[labels[order] == held_out]
    num = min(len(usual) // 5, NUM_TESTED)
    most = NUM_IMAGES if data.num_test is not None else len(usual)
    return usual[num : num + most], usual[:num], unusual[:NUM_TESTED]


def one_run(name: str, data: RealData, held_out: Any, seed: int, settings: Any) -> dict[str, float]:
    """The AUROC of each score of a model that is trained with one seed, and of the peers."""
    rows = parts(data, held_out, seed)
    data = replace(with_kinds_named(data), words={})  # levels by number: some are unusual alone
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        paths = [
            write(folder, "train", data, rows[0]),
            write(folder, "test", data, np.concatenate(rows[1:])),
        ]
        options = {**data.settings, "seed": seed, **settings, "test": str(paths[1])}
        with start_run(open_source(paths[0]), folder / "run", **options) as training:
            list(training.epochs())
            training.trainer.keep_best()
        vae, splits = training.trainer.vae, training.splits
        x = {part: splits.part(part).x for part in ("train", "validation", "test")}
    found: dict[str, Array] = {}
    for by in get_args(AnomalyScore):
        known: dict[str, Any] = {"train": x["train"], "validation": x["validation"]}
        found[by] = anomaly_scores(vae, x["test"], by, **known, seed=seed).numpy()
    is_image = data.x.ndim == 3
    flat = data.x.reshape(len(data.x), -1).astype(float)
    if not is_image:
        flat = np.concatenate(Features(flat[rows[0]], data.kinds)(flat), 1)
    found |= peers(flat[rows[0]], flat[np.concatenate(rows[1:])], is_image, seed)
    num = len(rows[1])
    return {name: auroc(score[:num], score[num:]) for name, score in found.items()}


def cells(values: list[list[float]]) -> list[str]:
    """Means over seeds with their standard errors, of each column."""
    table = np.array(values)
    if len(table) == 1:
        return [f"{value:.3f}" for value in table[0]]
    errors = table.std(0, ddof=1) / len(table) ** 0.5
    return [f"{m:.3f} ± {e:.3f}" for m, e in zip(table.mean(0), errors, strict=True)]


def class_of(data: RealData, name: str, args: argparse.Namespace) -> Any:
    """The number of a class that is named: labels of tables are numbered in sorted order."""
    if not isinstance(name, str):
        return name
    return ["drizzle", "fog", "rain", "snow", "sun"].index(name)


def main() -> None:
    """Train, score, and print one row per data set."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(HELD_OUT), default=list(HELD_OUT))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="in place of those of the defaults")
    parser.add_argument("--fashion", type=Path, default=FASHION)
    parser.add_argument("--mnist", type=Path, default=Path("../shared/data/mnist"))
    args = parser.parse_args()
    means: list[list[float]] = []
    heads: list[str] = []
    for name in args.only:
        load: Callable[[argparse.Namespace], RealData] = DATA[name]
        data, (held_out, settings) = load(args), HELD_OUT[name]
        if args.epochs is not None:
            settings = {**settings, "epochs": args.epochs}
        start = time.process_time()
        label = class_of(data, held_out, args)
        runs = [one_run(name, data, label, seed, settings) for seed in range(args.seeds)]
        if not heads:
            heads = list(runs[0])
            print(f"| data, class held out | {' | '.join(heads)} | CPU seconds |")
            print("|---" * (len(heads) + 2) + "|")
        means.append(np.mean([list(run.values()) for run in runs], 0).tolist())
        row = cells([list(run.values()) for run in runs])
        seconds = time.process_time() - start
        print(f"| {name}, {held_out} | {' | '.join(row)} | {seconds:.0f} |", flush=True)
    table = np.array(means)
    ranks = (table[:, None] > table[:, :, None]).sum(2) + (
        (table[:, None] == table[:, :, None]).sum(2) + 1
    ) / 2
    print(f"| mean AUROC | {' | '.join(f'{value:.3f}' for value in table.mean(0))} | |")
    print(f"| mean rank | {' | '.join(f'{value:.2f}' for value in ranks.mean(0))} | |")


if __name__ == "__main__":
    main()
