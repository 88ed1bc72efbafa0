"""Anomaly scores on real data: a class is held out of the training, and has to be found again.

The area under the ROC curve (AUROC) is the probability that a row of the held-out class is more
unusual than a test row of the other classes; 0.5 is chance. The scores of a discrete VAE are those
of `pyro_dvae.evaluation.anomaly_scores`. Beside them: an isolation forest, a Gaussian mixture (its
size chosen by BIC; of images, digits and shares of words, on 32 principal components), and the
error of a reconstruction from the principal components that hold 90 % of the variance.

A class is that of the data; of the cars and the patients of "diabetes", which have none, it is a
column that no model sees then; of the docstrings, the file that they are from. The areas are drawn
into anomaly.png.

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
from matplotlib.figure import Figure
from numpy.typing import NDArray
from real_data import FASHION, with_kinds_named, write
from real_peers import Features
from real_sets import DATA, RealData, words_of_files
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.mixture import GaussianMixture

from pyro_dvae.data import open_source
from pyro_dvae.evaluation import AnomalyScore, anomaly_scores
from pyro_dvae.runs import start_run

Array = NDArray[np.float64]
HELD_OUT: dict[str, Any] = {
    "wine": 2,
    "breast-cancer": 0,
    "diabetes": 1,
    "penguins": 2,
    "cars": "Japan",
    "weather": "snow",
    "voters": 1,
    "affairs": 1,
    "words": "_pydecimal.py",
    "digits": 8,
    "mnist": 8,
    "fashion": 8,
}
"""Data set -> the class that is held out. 8 is "bag"."""
COLUMNS = {"diabetes": "sex", "cars": "Origin"}
"""Data set without classes -> the column whose level is the class."""
IMAGE_SETTINGS = {"epochs": 30}
"""Of 28 x 28 images, beside the defaults."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c8c01")
NUM_TESTED = 400
"""The most rows that are tested of each side."""


def auroc(usual: Array, unusual: Array) -> float:
    """P(score of an unusual row < score of a usual one), where half of the ties count."""
    below = (unusual[:, None] < usual).mean()
    return float(below + (unusual[:, None] == usual).mean() / 2)


def peers(train: Array, test: Array, is_wide: bool, seed: int) -> dict[str, Array]:
    """The scores of scikit-learn's methods; the lowest are most unusual."""
    mean, scale = train.mean(0), train.std(0) + 1e-9
    if is_wide:
        scale = np.ones_like(scale)
    train, test = (train - mean) / scale, (test - mean) / scale
    forest = IsolationForest(random_state=seed).fit(train)
    pca = PCA(0.9).fit(train)
    error = ((test - pca.inverse_transform(pca.transform(test))) ** 2).sum(1)
    seen, tested = train, test
    if is_wide:
        few = PCA(32, random_state=seed).fit(train)
        seen, tested = few.transform(train), few.transform(test)
    fitted = [
        GaussianMixture(size, covariance_type=kind, reg_covar=1e-3, random_state=seed).fit(seen)
        for kind in ("diag", "full")
        for size in ((4, 16) if is_wide else (1, 2, 4, 8, 16))
    ]
    best = min(fitted, key=lambda model: model.bic(seen))
    return {
        "isolation forest": forest.score_samples(test),
        "Gaussian mixture": best.score_samples(tested),
        "PCA error": -error,
    }


def with_classes(name: str, args: argparse.Namespace) -> RealData:
    """A data set and its classes, whose column is left out where they are one."""
    if name == "words":
        return words_of_files(args)
    load: Callable[[argparse.Namespace], RealData] = DATA[name]
    data = load(args)
    if name == "weather":
        names = ["drizzle", "fog", "rain", "snow", "sun"]
        return replace(data, labels=np.array(names)[data.labels])
    if name not in COLUMNS:
        return data
    assert data.names is not None
    place = data.names.index(COLUMNS[name])
    names, kinds = ([*its[:place], *its[place + 1 :]] for its in (data.names, data.kinds))
    labels = data.x[:, place].astype(int)
    words = data.words.get(COLUMNS[name])
    labels = labels if words is None else np.array(words)[labels]
    return replace(data, x=np.delete(data.x, place, 1), names=names, kinds=kinds, labels=labels)


def parts(data: RealData, held_out: Any, seed: int, images: int) -> tuple[Array, Array, Array]:
    """The rows to train on, the usual test rows, and the unusual ones, by number."""
    labels = np.asarray(data.labels)
    order = np.random.default_rng(seed).permutation(len(labels))
    usual, unusual = order[labels[order] != held_out], order[labels[order] == held_out]
    num = min(len(usual) // 5, NUM_TESTED)
    most = images if data.num_test is not None else len(usual)
    return usual[num : num + most], usual[:num], unusual[:NUM_TESTED]


def one_run(
    data: RealData, held_out: Any, seed: int, settings: Any, images: int
) -> dict[str, float]:
    """The AUROC of each score of a model that is trained with one seed, and of the peers.

    It is NaN for a score that the likelihood does not have.
    """
    rows = parts(data, held_out, seed, images)
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
        try:
            found[by] = anomaly_scores(vae, x["test"], by, **known, seed=seed).numpy()
        except ValueError:
            found[by] = np.full(len(x["test"]), np.nan)
    is_words, is_image = data.kinds == "words", data.x.ndim == 3
    flat = data.x.reshape(len(data.x), -1).astype(float)
    if is_words:
        flat /= flat.sum(1, keepdims=True)
    elif not is_image:
        flat = np.concatenate(Features(flat[rows[0]], data.kinds)(flat), 1)
    is_wide = is_image or is_words
    found |= peers(flat[rows[0]], flat[np.concatenate(rows[1:])], is_wide, seed)
    num = len(rows[1])
    return {
        name: np.nan if np.isnan(score).all() else auroc(score[:num], score[num:])
        for name, score in found.items()
    }


def cells(values: list[list[float]]) -> list[str]:
    """Means over seeds with their standard errors, of each column."""
    table = np.array(values)
    if len(table) == 1:
        return ["" if np.isnan(value) else f"{value:.3f}" for value in table[0]]
    errors = table.std(0, ddof=1) / len(table) ** 0.5
    shown = zip(table.mean(0), errors, strict=True)
    return ["" if np.isnan(mean) else f"{mean:.3f} ± {error:.3f}" for mean, error in shown]


def draw(table: dict[str, dict[str, float]], path: Path) -> None:
    """Plot the area of each score, a row per data set.

    Args:
        table: data set -> score -> mean area; NaN for a score that the data set does not have.
        path: where to write the figure.
    """
    figure = Figure(figsize=(7.5, 1.4 + 0.35 * len(table)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0.5, color="0.5", linestyle=":", label="chance")
    for number, score in enumerate(next(iter(table.values()))):
        of_peer = number >= len(get_args(AnomalyScore))
        of_all = [of[score] for of in table.values()]
        (line,) = axes.plot(of_all, list(table), "osD^vPX*"[number], label=score)
        line.set(color=COLOURS[number], fillstyle="none" if of_peer else "full")
    axes.set(xlabel="area under the ROC curve", title="a class held out, and found again")
    axes.margins(y=0.3 / len(table))
    axes.invert_yaxis()
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Train, score, print one row per data set, and plot them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(HELD_OUT), default=list(HELD_OUT))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="in place of those of the defaults")
    parser.add_argument("--images", type=int, default=2_500, help="to train on, of 28 x 28")
    parser.add_argument("--fashion", type=Path, default=FASHION)
    parser.add_argument("--mnist", type=Path, default=Path("../shared/data/mnist"))
    parser.add_argument("-o", "--output", type=Path, default=Path("anomaly.png"))
    args = parser.parse_args()
    means: list[list[float]] = []
    heads: list[str] = []
    for name in args.only:
        data, held_out = with_classes(name, args), HELD_OUT[name]
        settings = IMAGE_SETTINGS if data.num_test is not None else {}
        if args.epochs is not None:
            settings = {"epochs": args.epochs}
        start = time.process_time()
        runs = [one_run(data, held_out, seed, settings, args.images) for seed in range(args.seeds)]
        if not heads:
            heads = list(runs[0])
            print(f"| data, class held out | {' | '.join(heads)} | CPU seconds |")
            print("|---" * (len(heads) + 2) + "|")
        means.append(np.mean([list(run.values()) for run in runs], 0).tolist())
        row = cells([list(run.values()) for run in runs])
        seconds = time.process_time() - start
        print(f"| {name}, {held_out} | {' | '.join(row)} | {seconds:.0f} |", flush=True)
    draw(
        {
            name: dict(zip(heads, row, strict=True))
            for name, row in zip(args.only, means, strict=True)
        },
        args.output,
    )
    table = np.array([row for row in means if not np.isnan(row).any()])
    if not len(table):  # no data set has all scores
        return
    ranks = (table[:, None] > table[:, :, None]).sum(2) + (
        (table[:, None] == table[:, :, None]).sum(2) + 1
    ) / 2
    for what, values in {"mean AUROC": table, "mean rank": ranks}.items():
        print(f"| {what} | {' | '.join(f'{value:.3f}' for value in values.mean(0))} | |")


if __name__ == "__main__":
    main()
