"""Missing values filled in, and a column predicted, beside the usual methods of scikit-learn.

Cells of complete tables are removed at random, in the training and in the test rows. A model is
trained on what is left. Then the missing cells of the test rows are filled in, and compared with
what was there: real columns by the root mean square error in units of the column's standard
deviation, columns of categories by the share of right ones. The same is done with the means (or the
most frequent categories) of the columns, with k-nearest neighbours and with iterative imputation.

Last, one column of categories is predicted from the others, by the model and by logistic
regression, for which the gaps are filled in by iterative imputation. The errors of real columns
are drawn into missing_values.png.

    python examples/missing_values.py --only wine penguins --shares 0.1 0.3 0.5 --seeds 3

The data of the penguins come from the package `palmerpenguins`, which the extra `bench` has.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression

from pyro_dvae import Config, DiscreteVAE, build_elbo, build_vae, fit, impute, predict

Array = NDArray[np.float64]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


class Table(NamedTuple):
    """A complete table."""

    x: Array
    """(N, P) numbers; categories as 0, 1, ..."""
    levels: list[int]
    """The number of categories of each column; 0 of a column of real numbers."""
    names: list[str]
    column: int
    """The column of categories that is predicted."""


def of_sklearn(name: str) -> Table:
    """A table of scikit-learn, with the classes as its last column."""
    import sklearn.datasets

    data = getattr(sklearn.datasets, f"load_{name}")()
    x = np.column_stack([data.data, data.target])
    classes = int(data.target.max()) + 1
    names = [*map(str, data.feature_names), "class"]
    return Table(x, [0] * data.data.shape[1] + [classes], names, x.shape[1] - 1)


def penguins() -> Table:
    """333 penguins: species, island and sex, and four sizes."""
    from palmerpenguins import load_penguins

    rows = load_penguins().drop(columns="year").dropna()
    columns, levels = [], []
    for name in rows:
        is_name = rows[name].dtype.kind not in "if"
        levels.append(rows[name].nunique() if is_name else 0)
        cells = rows[name].astype("category").cat.codes if is_name else rows[name]
        columns.append(cells.to_numpy(float))
    return Table(np.column_stack(columns), levels, list(rows), 0)


TABLES: dict[str, Callable[[], Table]] = {
    "wine": lambda: of_sklearn("wine"),
    "penguins": penguins,
}


def with_gaps(x: Array, share: float, source: np.random.Generator) -> Array:
    """A copy with a share of the cells missing at random; no row and no column is empty."""
    gaps = source.random(x.shape) < share
    gaps[np.arange(len(x)), source.integers(x.shape[1], size=len(x))] = False
    gaps[source.integers(len(x), size=x.shape[1]), np.arange(x.shape[1])] = False
    return np.where(gaps, np.nan, x)


def kinds(levels: list[int]) -> str:
    """The likelihood of the columns, of which some values are missing."""
    names = {0: "normal", 2: "bernoulli"}
    return "masked:mixed:" + ",".join(
        names.get(number, f"categorical:{number}") for number in levels
    )


def trained(x: Array, levels: list[int], args: argparse.Namespace, seed: int) -> DiscreteVAE:
    """The model of training rows with gaps: one latent with a learned prior, for rows so few."""
    config = Config(
        likelihood=kinds(levels),
        num_latents=args.latents,
        num_categories=args.categories,
        prior="learned",
        estimator="marginal",
        hidden=(32,),
        seed=seed,
    )
    torch.manual_seed(seed)
    vae = build_vae(config, x.shape[1:])
    elbo = build_elbo(config, x.shape[1:])
    options: dict[str, Any] = {"epochs": args.epochs, "patience": args.patience, "averaging": 0.95}
    options |= {"batch_size": 32, "learning_rate": 1e-2, "seed": seed}
    for _ in fit(vae, elbo, torch.from_numpy(x), 0.15, **options):
        pass
    return vae.eval()


class Coded:
    """A table as numbers for linear methods: standardised, and a bit per category but the first."""

    def __init__(self, x: Array, levels: list[int]) -> None:
        self.levels = levels
        self.mean, self.spread = np.nanmean(x, 0), np.nanstd(x, 0)
        self.spread[self.spread == 0] = 1

    def code(self, x: Array) -> Array:
        """(N, P) -> (N, Q)."""
        columns = []
        for i, number in enumerate(self.levels):
            cells = x[:, i : i + 1]
            if number:
                bits = (cells == np.arange(1, number)).astype(float)
                columns.append(np.where(np.isnan(cells), np.nan, bits))
            else:
                columns.append((cells - self.mean[i]) / self.spread[i])
        return np.hstack(columns)

    def decode(self, coded: Array) -> Array:
        """(N, Q) -> (N, P), with the category whose bit is the largest; all bits sum to 1."""
        columns, start = [], 0
        for i, number in enumerate(self.levels):
            part = coded[:, start : start + max(1, number - 1)]
            start += max(1, number - 1)
            if number:
                part = np.hstack([1 - part.sum(1, keepdims=True), part])
            columns.append(part.argmax(1) if number else part[:, 0] * self.spread[i] + self.mean[i])
        return np.column_stack(columns).astype(float)


def imputed(train: Array, test: Array, levels: list[int]) -> dict[str, Array]:
    """The test rows without gaps, by each method of scikit-learn, fitted to the training rows."""
    coded = Coded(train, levels)
    methods = {
        "column means": SimpleImputer(),
        "nearest neighbours": KNNImputer(n_neighbors=5),
        "iterative": IterativeImputer(max_iter=20, random_state=0),
    }
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name, method in methods.items():
            method.fit(coded.code(train))
            found[name] = coded.decode(method.transform(coded.code(test)))
    return found


def errors(whole: Array, true: Array, gaps: Array, levels: list[int], spread: Array) -> list[float]:
    """Root mean square error of real cells in standard deviations, share of wrong categories."""
    is_real = np.array(levels) == 0
    real, named = gaps & is_real, gaps & ~is_real
    off = ((whole - true) / spread)[real]
    wrong = (whole != true)[named]
    return [
        float(np.sqrt((off**2).mean())) if off.size else np.nan,
        float(wrong.mean()) if wrong.size else np.nan,
    ]


def predicted(
    vae: DiscreteVAE, train: Array, test: Array, true: Array, table: Table
) -> dict[str, list[float]]:
    """Accuracy and log score of the predicted column, by the model and by logistic regression."""
    column, levels = table.column, table.levels
    rows = test.copy()
    rows[:, column] = true[:, column]
    ours = predict(vae, rows, column)
    assert ours.accuracy is not None
    others = [i for i in range(len(levels)) if i != column]
    left = [levels[i] for i in others]
    coded = Coded(train[:, others], left)
    known = ~np.isnan(train[:, column])
    filling = IterativeImputer(max_iter=20, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        x = filling.fit_transform(coded.code(train[:, others]))[known]
        regression = LogisticRegression(max_iter=5000).fit(x, train[known, column])
        p = regression.predict_log_proba(filling.transform(coded.code(test[:, others])))
    value = true[:, column].astype(int)
    place = np.searchsorted(regression.classes_, value)
    accuracy = float((regression.classes_[p.argmax(1)] == value).mean())
    log_score = float(p[np.arange(len(value)), place].mean())
    return {
        "discrete VAE": [ours.accuracy, ours.log_score],
        "logistic regression": [accuracy, log_score],
    }


def one_run(
    table: Table, share: float, seed: int, args: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Name of a method -> its errors on missing cells; and those of its prediction."""
    source = np.random.default_rng(1000 * seed + round(100 * share))
    order = source.permutation(len(table.x))
    cut = len(order) // 5
    true, complete = table.x[order[:cut]], table.x[order[cut:]]
    train, test = with_gaps(complete, share, source), with_gaps(true, share, source)
    gaps, spread = np.isnan(test), complete.std(0)
    vae = trained(train, table.levels, args, seed)
    filled = {"discrete VAE": impute(vae, test).double().numpy()}
    filled |= imputed(train, test, table.levels)
    scores = {
        name: errors(whole, true, gaps, table.levels, spread) for name, whole in filled.items()
    }
    return scores, predicted(vae, train, test, true, table)


def draw(real: dict[str, dict[str, dict[float, list[float]]]], path: Path) -> None:
    """Plot the error of real cells against the share that is missing, one panel per data set.

    Args:
        real: data set -> method -> share -> the error of each seed.
        path: where to write the figure.
    """
    figure = Figure(figsize=(3.6 * len(real) + 1.8, 3), layout="constrained")
    panels = figure.subplots(1, len(real), squeeze=False)[0]
    for axes, (name, methods) in zip(panels, real.items(), strict=True):
        for (method, shares), color, mark in zip(methods.items(), COLOURS, "oDs^", strict=True):
            table = np.array(list(shares.values()))  # (shares, seeds)
            seeds = table.shape[1]
            error = table.std(1, ddof=1) / seeds**0.5 if seeds > 1 else np.zeros(len(table))
            x = [100 * share for share in shares]
            axes.errorbar(x, table.mean(1), error, fmt=f"{mark}-", color=color, label=method)
        axes.set(title=name, xlabel="cells missing, %")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("RMS error, standard deviations")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.savefig(path, dpi=100)


def main(argv: list[str] | None = None) -> None:
    """Print two tables, the errors on missing cells and of the predicted column; plot the first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.1, 0.3, 0.5])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--latents", type=int, default=1)
    parser.add_argument("--categories", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=600)
    parser.add_argument("--patience", type=int, default=100)
    parser.add_argument("-o", "--output", type=Path, default=Path("missing_values.png"))
    args = parser.parse_args(argv)
    print(
        f"{'data':14} {'missing':>7} {'method':20} {'error of real':>17} {'wrong categories':>17}"
    )
    predictions = []
    real: dict[str, dict[str, dict[float, list[float]]]] = {}
    for name in args.only:
        table = TABLES[name]()
        for share in args.shares:
            runs = [one_run(table, share, seed, args) for seed in range(args.seeds)]
            for method in runs[0][0]:
                of_shares = real.setdefault(name, {}).setdefault(method, {})
                of_shares[share] = [run[0][method][0] for run in runs]
                cells = [_mean([run[0][method][i] for run in runs]) for i in range(2)]
                print(f"{name:14} {share:7.0%} {method:20} {cells[0]:>17} {cells[1]:>17}")
            for method in runs[0][1]:
                cells = [_mean([run[1][method][i] for run in runs]) for i in range(2)]
                what = table.names[table.column]
                predictions.append(
                    f"{name:14} {share:7.0%} {method:20} {what:10} {cells[0]:>17} {cells[1]:>17}"
                )
    print(
        f"\n{'data':14} {'missing':>7} {'method':20} {'column':10} {'accuracy':>17} "
        f"{'log score, nats':>17}"
    )
    print("\n".join(predictions))
    draw(real, args.output)


def _mean(values: list[float]) -> str:
    """The mean over seeds, and its standard error."""
    some = np.array(values)
    error = some.std(ddof=1) / len(some) ** 0.5 if len(some) > 1 else 0.0
    return f"{some.mean():.3f} ± {error:.3f}"


if __name__ == "__main__":
    main()
