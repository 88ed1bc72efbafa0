"""What the scikit-learn estimator does: `sklearn.CategoricalVAE` has the settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, DensityMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_array, check_is_fitted

from pyro_dvae._version import __version__
from pyro_dvae.checks import one_of
from pyro_dvae.codes import one_hot
from pyro_dvae.data import Source, as_rows, given_kinds, make_splits, with_categories
from pyro_dvae.evaluation import MAX_CODES, num_codes
from pyro_dvae.runs import (
    DataRecord,
    Run,
    check_source,
    decode_blocks,
    is_nominal,
    new_model,
    resolve_settings,
    sample_blocks,
)
from pyro_dvae.sklearn_tables import checked_table, named_table
from pyro_dvae.training import fit

_ENCODINGS = ("codes", "one-hot", "probabilities")
_NO_SETTINGS = (
    "event_shape",
    "encoding",
    "posterior",
    "refine",
    "importance_samples",
    "random_state",
    "device",
    "verbose",
)
"""Arguments that are no settings of a run."""
_MOST_SEED = 2**31 - 1
_FEW = 5
"""Of fewer rows none is kept apart for validation, if nobody names a number."""


class TableEstimator(TransformerMixin, DensityMixin, BaseEstimator):  # type: ignore[misc]
    """The methods of `CategoricalVAE`, which has the settings as attributes of the same names."""

    hidden: Sequence[int] | None
    event_shape: Sequence[int] | None
    patience: int | None
    validation: float | None
    encoding: Literal["codes", "one-hot", "probabilities"]
    posterior: Literal["encoder", "refined", "exact"] | None
    refine: int | None
    importance_samples: int
    random_state: int | np.random.RandomState | None
    device: str
    verbose: bool

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # codes are whole numbers
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any = None) -> TableEstimator:
        """Train the model.

        Args:
            X: (N, columns), N >= 2: finite numbers, or NaN where one is missing; or a data frame.
            y: not used.

        Returns:
            The estimator itself.

        Raises:
            ValueError: a setting is out of its range, or X does not fit the likelihood.
        """
        one_of("encoding", self.encoding, _ENCODINGS)
        table = checked_table(self, X, self.event_shape, reset=True)
        source = Source("X", "memory", as_rows(table), None, None)
        kinds = given_kinds(vars(self)["likelihood"])
        source = source if kinds is None else with_categories(source, kinds)
        settings = self._settings(len(table))
        found = check_source(source)
        config = resolve_settings(source, found, **settings)
        validation = config.validation
        assert not isinstance(validation, str)  # which names a file
        splits = make_splits(
            source,
            binarize=config.binarize,
            range=config.range,
            likelihood=config.likelihood,
            validation=validation,
            test=0,
            seed=config.split_seed,
            found=found.extent,
            group_copies=config.group_copies,
        )
        shape = tuple(source.train.event_shape)
        vae, elbo = new_model(config, shape)
        vae.to(self.device)
        records = fit(
            vae,
            elbo,
            splits.train.to(self.device),
            None if splits.validation is None else splits.validation.to(self.device),
            epochs=config.epochs,
            guide_epochs=config.guide_epochs,
            patience=config.patience,
            progress=self.verbose,
            start=config.start,
            **config.training,
        )
        self.history_ = list(records)
        vae.eval()
        self.vae_, self.config_ = vae, config
        self.n_iter_ = len(self.history_)
        few = num_codes(config.num_latents, config.num_categories) <= MAX_CODES
        self.bound_ = "exact" if few else "importance"
        record = DataRecord(config).naming(source)
        self._run = Run(Path(), shape, record, __version__, self.n_iter_, None, vae)
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        """The codes of data, in the form that `encoding` names.

        Args:
            X: (N, columns).

        Returns:
            The most probable categories, (N, D) int64; or one-hot codes or probabilities,
            (N, D K), with the K columns of a latent side by side.
        """
        return self._encoded(self._taken(X), self.encoding)

    def inverse_transform(self, X: Any) -> Any:
        """The means E[x|z] of p(x|z) at codes, in the units of the data.

        A column of categories has no mean; its most probable category is given.

        Args:
            X: codes in the form that `transform` gives. Probabilities stand for the most probable
                category of each latent.

        Returns:
            (N, columns), an array; or a data frame, where X of `fit` was one with columns of names.
        """
        check_is_fitted(self)
        X = check_array(X, dtype=np.float64)
        code = (self.config_.num_latents, self.config_.num_categories)
        wanted = code[0] if self.encoding == "codes" else code[0] * code[1]
        if X.shape[1] != wanted:
            raise ValueError(
                f"Expected codes of {wanted} columns, as transform gives them; got {X.shape[1]}. "
                "Pass what transform returned."
            )
        codes = torch.as_tensor(X)
        if self.encoding != "codes":
            codes = codes.unflatten(1, code).argmax(-1)
        index = codes.long()
        if not (index == codes).all() or index.min() < 0 or index.max() >= code[1]:
            raise ValueError(
                f"Expected categories 0 to {code[1] - 1}; got {X.min():g} to {X.max():g}. Pass "
                "what transform returned."
            )
        blocks = decode_blocks(self.vae_, index, code[1], typical=is_nominal(self._run))
        return self._in_units(torch.cat(list(blocks)))

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Log p(x) of each row in nats: exact up to 65,536 codes, else a lower bound.

        It is the importance-weighted bound of `importance_samples` draws where K^D is larger, which
        `bound_` tells. Of columns of real numbers it is a density in the units of X.

        Args:
            X: (N, columns).

        Returns:
            (N,) nats per row.
        """
        scores = self._run.score(
            self._taken(X),
            "exact" if self.bound_ == "exact" else "importance",
            importance_samples=self.importance_samples,
        )
        return scores.double().numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of `score_samples`, in nats per row; the larger, the better.

        Args:
            X: (N, columns).
            y: not used.
        """
        return float(self.score_samples(X).mean())

    def sample(
        self, n_samples: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> Any:
        """Draw data: codes from the prior, then x from p(x|z), in the units of the data.

        Args:
            n_samples: the number of rows.
            random_state: the seed, as scikit-learn takes it; None for the one of the estimator.

        Returns:
            (n_samples, columns), as `inverse_transform` gives them.
        """
        check_is_fitted(self)
        given = self.random_state if random_state is None else random_state
        seed = check_random_state(given).randint(_MOST_SEED)
        blocks = sample_blocks(self._run, n_samples, means=False, seed=seed)
        return self._in_units(torch.cat([block.x for block in blocks]))

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """The names of the columns of `transform`: z1, z2, ..., or z1_0, z1_1, ...

        Args:
            input_features: not used, but must be the columns of X, if it is given.
        """
        check_is_fitted(self)
        if input_features is not None and len(input_features) != self.n_features_in_:
            raise ValueError(
                f"input_features should have length equal to number of features "
                f"({self.n_features_in_}), got {len(input_features)}"
            )
        names = [f"z{latent + 1}" for latent in range(self.config_.num_latents)]
        if self.encoding != "codes":
            categories = range(self.config_.num_categories)
            names = [f"{name}_{category}" for name in names for category in categories]
        return np.asarray(names, dtype=object)

    def _settings(self, num_data: int) -> dict[str, Any]:
        """The settings of a run."""
        settings = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name not in _NO_SETTINGS and value is not None
        }
        if self.hidden is not None:
            settings["hidden"] = tuple(self.hidden)
        if self.patience == 0:
            settings["patience"] = None
        seed = int(check_random_state(self.random_state).randint(_MOST_SEED))
        settings |= {"seed": seed, "split_seed": seed, "test": 0}
        kept = self.validation
        if num_data < _FEW if kept is None else 0 < kept < 1 and round(kept * num_data) == 0:
            settings["validation"] = 0  # of a few rows none can be kept apart
        if settings.get("validation") == 0:
            settings["patience"] = None
        return settings

    def _taken(self, X: Any) -> Any:
        """X as the run of a trained estimator takes it."""
        check_is_fitted(self)
        return checked_table(self, X, self.event_shape)

    def _encoded(self, X: Any, encoding: str) -> NDArray[Any]:
        one_of("encoding", encoding, _ENCODINGS)
        probabilities = encoding == "probabilities"
        codes = self._run.encode(
            X, probabilities=probabilities, posterior=self.posterior, refine=self.refine
        )
        if probabilities:
            return codes.flatten(1).double().numpy()
        if encoding == "codes":
            return codes.numpy()
        return one_hot(codes, self.config_.num_categories, dtype=torch.float64).flatten(1).numpy()

    def _in_units(self, x: torch.Tensor) -> Any:
        """What the likelihood gives, (N, *event), as rows in the units of X."""
        data = self._run.data
        if data.levels:
            return named_table(data, x)
        x = x.flatten(1).double()
        if self.config_.range is not None:
            low, high = self.config_.range
            if self.vae_.likelihood.kind == "levels":
                x = (x + 0.5) / self.vae_.likelihood.levels
            x = low + x * (high - low)
        return x.numpy()
