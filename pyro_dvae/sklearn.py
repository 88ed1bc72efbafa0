"""A discrete VAE as a scikit-learn estimator, `CategoricalVAE`.

It needs scikit-learn, `pip install 'pyro-dvae[sklearn]'`. Nothing else of the library imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if

from pyro_dvae.defaults import RunSettings
from pyro_dvae.sklearn_methods import TableEstimator


def _has_one_latent(estimator: CategoricalVAE) -> bool:
    if estimator.num_latents != 1:
        raise AttributeError(
            f"Expected num_latents=1 for clusters; got {estimator.num_latents}. Use transform, "
            "which gives a code of all latents."
        )
    return True


class CategoricalVAE(TableEstimator):
    """A discrete VAE as a scikit-learn estimator: p(x) = sum_z p(z) p(x|z), with codes z of x.

    `fit` trains it, `transform` gives the codes of data, and `score_samples` their log p(x). It
    works in a `Pipeline` and in `GridSearchCV`. With one latent it is a mixture model of K
    clusters, which `predict` and `predict_proba` give.

    X is a table, (N, columns), of numbers, or a data frame of pandas, whose columns may also hold
    names. A value may be missing (NaN): then the likelihood leaves it out. The likelihood says of
    what kind the values are: "normal" for real numbers in any unit, "bernoulli" for zeros and ones
    (or for grey values, with `range`), "poisson" or "negative-binomial" for counts, "categorical"
    for the levels 0 to L - 1, "mixed" for columns of several kinds, which are found from the
    values, and for columns of names.

    A setting that is None is chosen by the rule of `pyro_dvae.recipe` from the number of rows and
    columns, as the command line does where an option is left out. For at most two million values,
    that is a code of 2 x 16 with a learned prior, hidden layers of 128 units with dropout, and the
    estimator "marginal", if none of these is named.

    Args:
        num_latents: D, the number of latents of a code; None by the rule, or 4 if num_categories
            is named.
        num_categories: K, the number of categories of each of them; None by the rule, or 8 if
            num_latents is named.
        likelihood: p(x|z), by its name; see above. Any likelihood of the library will do.
        prior: p(z), by its name: "uniform", "learned", "mixture:20", ...; None by the rule, or
            "uniform".
        guide: q(z|x), by its name; None for "mean-field".
        network: the encoder and the decoder, by their name; None for "mlp". "conv" needs an
            `event_shape`.
        hidden: the widths of the MLP encoder's hidden layers; None by the rule, or (512, 256). The
            decoder has the same in reverse.
        dropout: the share of the hidden units that a training step leaves out; None by the rule.
        event_shape: the shape of a datum, such as (28, 28), where a row of X is an image that was
            flattened; None for rows of columns.
        estimator: how the gradient is estimated, by its name; None by the rule, or "rloo".
        num_particles: S, the number of draws of z per data point and step; None for the default
            of the estimator.
        beta: the weight of the KL term in the gradient; None for 1.
        free_bits: the gradient leaves out the KL of a latent below this number of nats; None for 0.
        epochs: the most epochs to train; None for 50, or as many as make 5,000 steps.
        guide_epochs: the most further epochs in which the guide alone is trained by the ELBO, with
            all else fixed; None for a fifth of `epochs` for the estimator "marginal", else 0.
        patience: training stops after this many epochs without a better validation ELBO; 0 trains
            all epochs. None for 0 where the learning rate falls in the last epochs, else for 10, or
            as many as make 1,500 steps.
        batch_size: B, the number of data points per step.
        learning_rate: the learning rate of Adam; None for 0.001, or 0.003 for few values, or 0.002
            for more of them and the estimator "snapshot", or "rloo" where `reinmax_steps` is not 0
            by default.
        averaging: the decay of the average of the weights, which is what is kept; 0 for no average;
            None averages over about two epochs.
        annealing: the number of epochs over which beta falls from `initial_beta`; None for 10, or
            as many as make 400 steps, but at most a fifth of `epochs`, and 0 for an estimator
            without beta, and where `reinmax_steps` is not 0 by default.
        initial_beta: the weight of the KL term before the first step, where it is annealed; None
            for 4.
        warmup: the number of epochs over which the learning rate grows linearly from 0; None for
            0. With many values and the estimator "snapshot" or "reinmax": for as many as make 500
            steps, at most a fiftieth or a fifth of `epochs`. Where `reinmax_steps` is not 0 by
            default: as long as these last.
        cooldown: the number of last epochs over which it falls linearly to 0; None for 0, or
            for half of `epochs` for many values, the estimator "snapshot", 20,000 steps or more,
            and a `patience` that is no number above 0.
        reinmax_steps: the number of first steps by the estimator "reinmax"; None for 0, or for at
            most 300 with many values, the network "conv-grid", more than 65,536 codes and the
            estimator "rloo".
        start: where the weights come from: "random"; or "mixture", for one latent, from a mixture
            that EM fits. None for a mixture where num_latents is 1 and there are fewer than 5
            training rows per category.
        validation: the share of X, or the number of its rows, that is kept apart for the validation
            ELBO; 0 for none; None for 5 %, but at least 200 rows or a fifth. Rows that are equal
            to one another are kept in one part, unless they are equal by chance; see
            `pyro_dvae.data.make_splits`.
        binarize: how grey values become zeros and ones; None lets the data decide.
        range: the two values of X that stand for 0 and 1; None for values that are zeros and ones.
        encoding: what `transform` gives: "codes", the categories (N, D); "one-hot", (N, D K); or
            "probabilities", q(z|x), (N, D K).
        posterior: the q(z|x) of `transform` and `predict`: that of the guide, "encoder"; "refined"
            by coordinate ascent on the ELBO of each row; or p(z|x), "exact". None for "refined" if
            `refine` is given, else "encoder".
        refine: the number of sweeps of coordinate ascent; None for 5.
        importance_samples: k, the codes drawn per row for `score_samples`, where K^D is too large
            for a sum.
        random_state: the seed of everything that is random, the choice of the validation rows too,
            as scikit-learn takes it.
        device: where to train and evaluate.
        verbose: whether `fit` shows its progress.

    Attributes:
        vae_: the trained `DiscreteVAE`.
        config_: the settings of the training, a `Config`.
        history_: an `EpochRecord` per epoch.
        n_iter_: the number of epochs that were trained.
        bound_: what `score_samples` gives, "exact" for log p(x), or "importance" for the
            importance-weighted bound.
        n_features_in_: the number of columns of X.
        feature_names_in_: the names of the columns, where X had names.

    Example:
        >>> from sklearn.datasets import load_wine
        >>> from pyro_dvae.sklearn import CategoricalVAE
        >>> X = load_wine().data
        >>> model = CategoricalVAE(num_latents=2, num_categories=4, epochs=5, random_state=0)
        >>> codes = model.fit_transform(X)
        >>> codes.shape, model.score_samples(X).shape
        ((178, 2), (178,))
    """

    def __init__(
        self,
        num_latents: int | None = None,
        num_categories: int | None = None,
        *,
        likelihood: str = "normal",
        prior: str | None = None,
        guide: str | None = None,
        network: str | None = None,
        hidden: Sequence[int] | None = None,
        dropout: float | None = None,
        event_shape: Sequence[int] | None = None,
        estimator: str | None = None,
        num_particles: int | None = None,
        beta: float | None = None,
        free_bits: float | None = None,
        epochs: int | None = None,
        guide_epochs: int | None = None,
        patience: int | None = None,
        batch_size: int = RunSettings.batch_size,
        learning_rate: float | None = None,
        averaging: float | None = None,
        annealing: int | None = None,
        initial_beta: float | None = None,
        warmup: int | None = None,
        cooldown: int | None = None,
        reinmax_steps: int | None = None,
        start: str | None = None,
        validation: float | None = None,
        binarize: str | None = None,
        range: tuple[float, float] | None = None,
        encoding: Literal["codes", "one-hot", "probabilities"] = "codes",
        posterior: Literal["encoder", "refined", "exact"] | None = None,
        refine: int | None = None,
        importance_samples: int = 100,
        random_state: int | np.random.RandomState | None = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.num_latents = num_latents
        self.num_categories = num_categories
        self.likelihood = likelihood
        self.prior = prior
        self.guide = guide
        self.network = network
        self.hidden = hidden
        self.dropout = dropout
        self.event_shape = event_shape
        self.estimator = estimator
        self.num_particles = num_particles
        self.beta = beta
        self.free_bits = free_bits
        self.epochs = epochs
        self.guide_epochs = guide_epochs
        self.patience = patience
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.averaging = averaging
        self.annealing = annealing
        self.initial_beta = initial_beta
        self.warmup = warmup
        self.cooldown = cooldown
        self.reinmax_steps = reinmax_steps
        self.start = start
        self.validation = validation
        self.binarize = binarize
        self.range = range
        self.encoding = encoding
        self.posterior = posterior
        self.refine = refine
        self.importance_samples = importance_samples
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    @available_if(_has_one_latent)  # type: ignore[untyped-decorator, unused-ignore]
    def predict(self, X: Any) -> NDArray[np.int64]:
        """The cluster of each row, its most probable category, where there is one latent.

        Args:
            X: (N, columns).

        Returns:
            (N,) whole numbers 0 to K - 1.
        """
        return self._encoded(self._taken(X), "codes")[:, 0]

    @available_if(_has_one_latent)  # type: ignore[untyped-decorator, unused-ignore]
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """q(z|x), the probability of each cluster, where there is one latent.

        Args:
            X: (N, columns).

        Returns:
            (N, K).
        """
        return self._encoded(self._taken(X), "probabilities")

    @available_if(_has_one_latent)  # type: ignore[untyped-decorator, unused-ignore]
    def fit_predict(self, X: Any, y: Any = None) -> NDArray[np.int64]:
        """Train the model, and give the cluster of each row, where there is one latent.

        Args:
            X: (N, columns).
            y: not used.

        Returns:
            (N,) whole numbers 0 to K - 1.
        """
        return self.fit(X).predict(X)
