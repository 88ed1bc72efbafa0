"""The settings of a new run: those that are given, and what the data decide of the others."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from pyro_dvae.codes import MAX_CODES, num_codes
from pyro_dvae.data import (
    DataError,
    Scan,
    Source,
    Splits,
    choose,
    class_labels,
    column_of_names,
    complaint,
    given_kinds,
    mixed_spec,
    partial_labels,
    scan,
)
from pyro_dvae.data.read.copies import equal_by_chance, groups_of_copies
from pyro_dvae.data.read.errors import shorten
from pyro_dvae.data.read.extent import in_blocks
from pyro_dvae.data.read.rows import levels_in
from pyro_dvae.data.read.table_rows import TableRows
from pyro_dvae.data.serve.allocate import amount_kept, rows_in, validation_kept
from pyro_dvae.data.serve.divide import split_is_last
from pyro_dvae.defaults import LABELLED_SHARE, TEST_SHARE
from pyro_dvae.likelihoods import LIKELIHOODS, Likelihood
from pyro_dvae.likelihoods.names import is_masked, masked, unmasked
from pyro_dvae.priors import PRIORS, BoltzmannPrior
from pyro_dvae.recipe import (
    SCORED_BY_PRODUCT,
    estimator_recipe,
    guide_recipe,
    model_recipe,
    training_recipe,
)
from pyro_dvae.runs.config import Config, build_likelihood, preparation_of
from pyro_dvae.runs.estimators import ESTIMATORS, estimator_of
from pyro_dvae.runs.parts import is_conditional
from pyro_dvae.specs import is_own


def check_source(source: Source) -> Scan:
    """Look at every value of data that a model is to be trained on.

    Args:
        source: the data.

    Returns:
        What was found.

    Raises:
        ValueError: the data cannot be read, a value is infinite, all values of a column are
            missing, or two columns of a table have one name.
    """
    repeated = source.train.repeated if isinstance(source.train, TableRows) else ()
    if repeated:
        raise DataError(
            f"Expected columns with names of their own in {source.name}; got {repeated[0]!r} more "
            "than once. Rename one, for other files are searched for a column of this name, or "
            "take other columns with columns=..."
        )
    found = scan(source.train)
    wrong = complaint(found)
    if wrong is not None:
        raise DataError(wrong)
    return found


def resolve_settings(source: Source, found: Scan | None = None, **settings: Any) -> Config:
    """The settings of a run on these data.

    Where they are left out, or None, the data decide these settings:

    - The number of rows and columns decides the code, the networks, the estimator and how long to
      train, by the rule of `pyro_dvae.recipe`. A setting that is given wins.
    - `binarize` is "none" for data that are zeros and ones, and "dynamic" for others;
    - `validation` is the share that is the default of `Config`, but at least 200 rows or a fifth,
      and at most 10,000 rows or 64 MiB;
    - `test` is the data's own test part, or else a tenth of the data, with the same limits;
    - `split` is "last" where the data have times;
    - `group_copies` is true where the split is random, unless rows of such values are equal by
      chance.

    Where values are missing (NaN), the likelihood is `masked`: it leaves them out. A likelihood of
    the user's own has to take them itself.

    The data also decide the kinds of columns of the "mixed" likelihood, the number of levels of the
    "categorical" one, and the number of classes of the "conditional" prior.

    Args:
        source: the data, as `open_source` gives them.
        found: the result of `check_source`, if it has been called already.
        **settings: settings of `Config`, by name.

    Raises:
        ValueError: a setting is out of its range, or the data do not fit the likelihood.
    """
    found = check_source(source) if found is None else found
    given = {name: settings.pop(name, None) for name in ("binarize", "validation", "test")}
    known = {name: value for name, value in given.items() if value is not None}
    config = Config(**settings, **known)
    if settings.get("patience") is not None and config.patience is None:
        raise ValueError(
            f"Expected validation data for patience={settings['patience']}; got validation=0. "
            "Leave one out."
        )
    if source.test is None:
        known.setdefault("test", amount_kept(TEST_SHARE, found.num_data, found.event_shape))
    known.setdefault("validation", validation_kept(found.num_data, found.event_shape))
    kept = [rows_in(part, found.num_data) for part in known.values() if not isinstance(part, str)]
    size = (max(1, found.num_data - sum(kept)), math.prod(found.event_shape))
    named = {name for name, value in settings.items() if value is not None or name == "patience"}
    named -= set() if config.compile else {"compile"}
    config = _with_recipe(config, size, named, has_gaps=found.num_missing > 0)
    if config.alpha is not None:
        _check_classes(config, source)
        if "labelled_share" not in named:
            config = replace(config, labelled_share=LABELLED_SHARE)
    likelihood = config.likelihood
    own, kinds = is_own(likelihood, LIKELIHOODS), given_kinds(likelihood)
    gaps = not own and (found.num_missing > 0 or is_masked(likelihood))
    if kinds is not None:
        likelihood = mixed_spec(source.train, kinds)
    elif not own and unmasked(likelihood) == "mixed":
        likelihood = mixed_spec(source.train)
    if gaps:
        likelihood = masked(likelihood)
    wanted = build_likelihood(config, source.train.event_shape) if own else likelihood
    _refuse_names(source, wanted)
    preparation = choose(found.extent, given["binarize"], config.range, wanted)
    return replace(
        config,
        binarize=preparation.binarize,
        range=preparation.range,
        likelihood=likelihood if own else preparation.name,
        num_classes=count_classes(config.prior, source),
        validation=known["validation"],
        test=known.get("test"),
        **_resolve_split(config, source, found),
    )


def _resolve_split(config: Config, source: Source, found: Scan) -> dict[str, Any]:
    """How rows are kept apart."""
    together, is_last = config.group_copies, split_is_last(source, config.split)
    if is_last and together:
        raise DataError(
            "Expected group_copies=None for a split by time, which may part copies; got "
            "group_copies=True. Leave it out, or split at random."
        )
    if not is_last and together is None:
        together = not (
            found.num_duplicates and equal_by_chance(source.train, groups_of_copies(source.train))
        )
    return {"split": "last" if is_last else "random", "group_copies": bool(together)}


def _with_recipe(
    config: Config, size: tuple[int, int], named: set[str], *, has_gaps: bool
) -> Config:
    """The settings, with those that nobody named by the size (N, P) of the data."""
    config = replace(config, **model_recipe(*size, named))
    codes = num_codes(config.num_latents, config.num_categories)
    by_product = _is_plain(config, SCORED_BY_PRODUCT)
    complete = not (has_gaps or is_masked(config.likelihood))
    by_snapshot = complete and _is_plain(config, ["bernoulli"])
    is_grid = config.network.partition(":")[0] == "conv-grid" and config.encoder is None
    by_grid = is_grid and _is_plain(config)
    chosen = estimator_recipe(
        *size, codes, named, by_product=by_product, by_snapshot=by_snapshot, by_grid=by_grid
    )
    if chosen.get("estimator") == "reinmax" and not _has_known_kl(config):
        chosen = {}
    if "estimator" in chosen:
        own = {name: None for name in {"num_particles", "annealing"} - named}  # of the estimator
        chosen = own | chosen
    config = replace(config, **chosen)
    estimator = estimator_of(config.estimator)
    given: dict[str, Any] = {
        name: vars(config)[name] for name in ("epochs", "patience", "cooldown") if name in named
    }
    given |= {
        "anneals": estimator.has_beta,
        "by_snapshot": config.estimator == "snapshot",
        "by_reinmax": config.estimator == "reinmax",
        "by_grid": by_grid and config.estimator == "rloo" and codes > MAX_CODES,
    }
    recipe = training_recipe(*size, config.batch_size, **given)
    if is_own(config.estimator, ESTIMATORS):  # whose ELBO says whether it has a beta
        del recipe["annealing"]
    config = replace(config, **{name: recipe[name] for name in recipe.keys() - named})
    if "guide_epochs" in named or config.alpha is not None:
        return config
    by_marginal = config.estimator == "marginal"
    further = guide_recipe(*size, codes, config.epochs, by_marginal=by_marginal)
    return replace(config, guide_epochs=further)


def _has_known_kl(config: Config) -> bool:
    """Whether KL(q || p) is known in closed form, or per draw, as ReinMax needs it.

    It is not known for a Boltzmann prior, and may not be for a prior of the user's own. A model
    with classes of partly labelled data keeps the estimator that it was measured with.
    """
    known = not is_own(config.prior, PRIORS)
    name = config.prior.partition(":")[0]
    return known and PRIORS[name].cls is not BoltzmannPrior and config.alpha is None


def _is_plain(config: Config, likelihoods: Collection[str] | None = None) -> bool:
    """Whether no part of a model runs Pyro's programs in steps, and its likelihood is of some."""
    is_plain = config.guide == "mean-field" and config.prior in ("uniform", "learned")
    fits = likelihoods is None or unmasked(config.likelihood) in likelihoods
    return is_plain and config.alpha is None and fits


def _refuse_names(source: Source, likelihood: str | Likelihood) -> None:
    """Refuse a table with columns of names where the likelihood would take them for numbers."""
    levels = levels_in(source.train)
    column = column_of_names(likelihood, levels)
    if column is not None:
        raise DataError(
            f"Expected numbers in all columns of {source.name} for the {likelihood} likelihood; "
            f"got names in column {column!r}: {shorten(list(levels[column]))}. Use "
            f'likelihood="mixed", or leave such columns out with drop={list(levels)}.'
        )


def _check_classes(config: Config, source: Source) -> None:
    """Refuse data without labels, or with more classes than the first latent has categories."""
    labels = source.train.labels
    if labels is None or not (labels >= 0).any():
        raise DataError(
            f"Expected labels for some of the rows of {source.name}, since alpha={config.alpha} is "
            'set; got none. Name them with labels="COLUMN", or leave alpha out.'
        )
    partial_labels(labels, config.num_categories, "the training data")


def count_classes(prior: str, source: Source) -> int:
    """The number of classes, for a prior that is conditional on labels; else 0.

    Args:
        prior: its name, as `Config` takes it.
        source: the data.

    Raises:
        ValueError: the prior is conditional, and the data have no labels, or negative ones.
    """
    if not is_conditional(prior):
        return 0
    return int(class_labels(source.train.labels, 0, "the training data").max()) + 1


def check_values(config: Config, splits: Splits) -> None:
    """Have the likelihood look at every value of every part, before anything is trained.

    Args:
        config: the run's settings.
        splits: its data.

    Raises:
        ValueError: it does not take a value.
    """
    if config.likelihood == "bernoulli":
        return  # whose values were checked as they were stored
    likelihood = build_likelihood(config, splits.train.event_shape)
    preparation = preparation_of(config, splits.train.event_shape)
    generator = torch.Generator()
    for rows in splits.stored.values():
        for index in in_blocks(rows):
            likelihood.check(preparation.serve(preparation.convert(rows.read(index)), generator))
