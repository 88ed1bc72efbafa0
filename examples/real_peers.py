"""Simple models of tables and images, for `real_data.py`: mixtures by EM, and k-means.

They get the rows that the VAE has for training and for validation, and keep a fifth of them apart
to choose their size by, at most 500. All densities are those of the data in their own units, in
nats per row.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

Array = NDArray[np.float64]
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The numbers of components that are tried, as far as there are rows for them."""
FLOOR = 1e-6
"""The least variance of a component, in units of the column's variance; scikit-learn's default."""


@dataclass
class Peer:
    """A fitted model, and what it says of the test rows."""

    name: str
    size: int
    log_prob: Array
    """(N,) log p(x) of the test rows, nats."""
    seconds: float
    """Of processor time."""


class Features:
    """Rows as numbers that a mixture takes: real columns standardised, levels one-hot.

    Args:
        train: (N, P) rows, which decide units and levels.
        kinds: "real", "level" or "bit" of each column; or "words" for rows of counts.
    """

    def __init__(self, train: Array, kinds: Sequence[str] | str) -> None:
        self.is_words = kinds == "words"
        kinds = ["words"] * train.shape[1] if isinstance(kinds, str) else kinds
        of = {kind: [j for j, own in enumerate(kinds) if own == kind] for kind in {*kinds, "real"}}
        self.real, self.bits = of["real"], of.get("bit", [])
        self.levels = {j: np.unique(train[:, j]) for j in of.get("level", [])}
        self.mean, self.scale = train[:, self.real].mean(0), train[:, self.real].std(0)

    def __call__(self, rows: Array) -> tuple[Array, Array]:
        """Real columns (N, R), and shares of discrete ones (N, F)."""
        if self.is_words:
            return rows[:, :0], rows
        real = (rows[:, self.real] - self.mean) / self.scale
        bits = rows[:, self.bits]
        parts = [rows[:, [j]] == levels for j, levels in self.levels.items()]
        return real, np.concatenate([bits, 1 - bits, *parts], 1).astype(float)


class Mixture:
    """p(x) = sum_k w_k prod_j p_jk(x_j), by EM: a latent class model, or a diagonal Gaussian one.

    Args:
        features: of the columns.
        size: K, the number of components; 1 makes the columns independent.
        strength: the number of rows that the overall frequencies count as in each component.
        seed: of the k-means that EM starts from.
    """

    def __init__(self, features: Features, size: int, strength: float, seed: int) -> None:
        self.features, self.size, self.strength, self.seed = features, size, strength, seed

    def fit(self, rows: Array) -> Mixture:
        """Run EM until log p(x) gains less than 1e-4 nats per row."""
        real, shares = self.features(rows)
        whole = np.concatenate([real, np.log1p(shares)], 1)
        found = KMeans(self.size, n_init=3, random_state=self.seed).fit(whole).labels_
        weight = np.eye(self.size)[found]
        last = -np.inf
        for _ in range(300):
            self._maximise(real, shares, weight)
            joint = self._log_joint(real, shares)
            total = logsumexp(joint, 1, keepdims=True)
            weight = np.exp(joint - total)
            if total.mean() - last < 1e-4:
                break
            last = total.mean()
        return self

    def _maximise(self, real: Array, shares: Array, weight: Array) -> None:
        number = weight.sum(0)[:, None]
        self.log_weight = np.log((number[:, 0] + 1e-6) / (number.sum() + 1e-6 * self.size))
        count = number + self.strength + 1e-9
        self.mean = (weight.T @ real) / (number + 1e-9)
        square = (weight.T @ real**2) - number * self.mean**2
        self.variance = (square.clip(0) + self.strength) / count + FLOOR
        seen = weight.T @ shares
        overall = shares.mean(0)
        if self.features.is_words:
            per_row = overall.sum()
            prior = self.strength * overall + 1e-3 * per_row / len(overall)
            topic = seen + prior
            self.log_share = np.log(topic / topic.sum(1, keepdims=True))
        else:
            self.log_share = np.log((seen + self.strength * overall + 1e-6) / (count + 1e-6))

    def _log_joint(self, real: Array, shares: Array) -> Array:
        inverse = 1 / self.variance
        square = real**2 @ inverse.T - 2 * real @ (self.mean * inverse).T
        square += (self.mean**2 * inverse + np.log(2 * np.pi * self.variance)).sum(1)
        return self.log_weight + shares @ self.log_share.T - 0.5 * square

    def log_prob(self, rows: Array) -> Array:
        """(N,) log p(x) in units of the data, nats."""
        found: Array = logsumexp(self._log_joint(*self.features(rows)), 1)
        if self.features.is_words:
            found = found + gammaln(rows.sum(1) + 1) - gammaln(rows + 1).sum(1)
        return found - np.log(self.features.scale).sum()


def best_of(name: str, models: Sequence[Any], train: Array, val: Array, test: Array) -> Peer:
    """The model that is best on the validation rows; larger ones stop once they are no better."""
    start, best, score, worse = time.process_time(), None, -np.inf, 0
    for model in models:
        if model.size > len(train) // 4:
            break
        value = model.fit(train).log_prob(val).mean()
        if value > score:
            best, score, worse = model, value, 0
        else:
            worse += 1
        if worse == 4:
            break
    assert best is not None
    return Peer(name, best.size, best.log_prob(test), time.process_time() - start)


class FullGaussians:
    """A Gaussian mixture with full covariances, by scikit-learn."""

    def __init__(self, size: int, seed: int, floor: float) -> None:
        self.size = size
        self.model = GaussianMixture(size, reg_covar=floor, n_init=3, random_state=seed)

    def fit(self, rows: Array) -> FullGaussians:
        """Fit the mixture to standardised rows."""
        self.mean, self.scale = rows.mean(0), rows.std(0)
        self.model.fit((rows - self.mean) / self.scale)
        return self

    def log_prob(self, rows: Array) -> Array:
        """(N,) log p(x) in units of the data, nats."""
        scores: Array = self.model.score_samples((rows - self.mean) / self.scale)
        return scores - np.log(self.scale).sum()


class LatentClasses:
    """A latent class analysis of categorical columns, by stepmix."""

    def __init__(self, size: int, seed: int) -> None:
        from stepmix.stepmix import StepMix

        self.size = size
        self.model = StepMix(
            size,
            measurement="categorical",
            n_init=1,
            max_iter=300,
            random_state=seed,
            progress_bar=0,
        )

    def fit(self, rows: Array) -> LatentClasses:
        """Fit the classes."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of EM that has not converged in 300 steps
            self.model.fit(rows.astype(int))
        return self

    def log_prob(self, rows: Array) -> Array:
        """(N,) log p(x), nats."""
        found: Array = self.model._e_step(rows.astype(int))[0]
        return found


def simple_peers(rows: Array, test: Array, kinds: Sequence[str] | str, seed: int) -> list[Peer]:
    """Independent columns, and the mixtures that suit the kinds of the columns."""
    features = Features(rows, kinds)
    order = np.random.default_rng(seed).permutation(len(rows))
    num_val = min(len(rows) // 5, 500)
    val, train = rows[order[:num_val]], rows[order[num_val:]]
    strengths = (10.0, 1.0) if features.is_words else (0.0, 1.0)

    def mixtures(sizes: Sequence[int]) -> list[Mixture]:
        return [Mixture(features, size, s, seed) for size in sizes for s in strengths]

    peers = [
        best_of("independent columns", mixtures(SIZES[:1]), train, val, test),
        best_of("mixture", mixtures(SIZES[1:]), train, val, test),
    ]
    if set(kinds) == {"real"}:
        full = [FullGaussians(size, seed, f) for size in SIZES[:5] for f in (1e-6, 1e-2)]
        peers.append(best_of("full Gaussians", full, train, val, test))
    if "level" in kinds and not isinstance(kinds, str) and "real" not in kinds:
        classes = [LatentClasses(size, seed) for size in (2, 4, 8)]
        peers.append(best_of("LCA (stepmix)", classes, train, val, test))
    return peers


def purity(train: Any, test: Any, y_train: Any, y_test: Any) -> float:
    """The share of test rows whose label is that of most training rows with the same code.

    Args:
        train: (N,) a number per code.
        test: (M,) the same of the test rows.
        y_train: (N,) labels.
        y_test: (M,) labels.
    """

    def most(y: Any) -> int:
        return int(np.bincount(y).argmax())

    guess = {code: most(y_train[train == code]) for code in np.unique(train)}
    default = most(y_train)
    return float(np.mean([guess.get(c, default) == y for c, y in zip(test, y_test, strict=True)]))


def k_means(features: Features, size: int, train: Array, test: Array, seed: int) -> Any:
    """Clusters of the training and the test rows, by k-means of standardised columns."""
    model = KMeans(size, n_init=10, random_state=seed)
    return model.fit_predict(np.concatenate(features(train), 1)), model.predict(
        np.concatenate(features(test), 1)
    )
