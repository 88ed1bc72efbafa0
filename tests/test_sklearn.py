"""The scikit-learn estimator."""

from __future__ import annotations

import itertools
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_dvae import datum_scores, load_run, save_run
from pyro_dvae.data import Source, as_rows, open_source
from pyro_dvae.runs import resolve_settings, start_run
from pyro_dvae.sklearn import CategoricalVAE


def small(num_latents: int = 2, num_categories: int = 3, **settings: Any) -> CategoricalVAE:
    given = {"hidden": (8,), "epochs": 2, "batch_size": 16, "random_state": 0, **settings}
    return CategoricalVAE(num_latents, num_categories, **given)


_DRAWN = "the bound is drawn: the draws of a row depend on the rows before it"


def _exceptions(estimator: CategoricalVAE) -> dict[str, str]:
    """Check -> why it does not apply."""
    if (estimator.num_latents or 0) < 12:
        return {}
    names = ("check_methods_sample_order_invariance", "check_methods_subset_invariance")
    return dict.fromkeys(names, _DRAWN)


@parametrize_with_checks([small(1, hidden=(4,), epochs=1)], expected_failed_checks=_exceptions)
def test_conventions(estimator: CategoricalVAE, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        small(2, hidden=(4,)),
        small(12, hidden=(4,)),
        small(2, encoding="one-hot", prior="learned"),
        CategoricalVAE(epochs=1),
    ],
    expected_failed_checks=_exceptions,
)
def test_conventions_of_more_latents(estimator: CategoricalVAE, check: Any) -> None:
    check(estimator)


def _bits(num: int = 60) -> np.ndarray:
    source = np.random.default_rng(0)
    return (source.random((num, 4)) < [[0.9, 0.8, 0.1, 0.2]]).astype(int)


@pytest.mark.parametrize("settings", [{}, {"prior": "learned"}, {"guide": "autoregressive:4"}])
def test_score_samples_is_log_p_of_x(settings: dict[str, Any]) -> None:
    model = small(likelihood="bernoulli", **settings).fit(_bits())
    rows = np.array(list(itertools.product([0, 1], repeat=4)))
    scores = model.score_samples(rows)
    assert model.bound_ == "exact"
    assert np.exp(scores).sum() == pytest.approx(1, abs=1e-5)
    exact = datum_scores(model.vae_, rows.astype(np.float32), bound="exact")
    assert scores == pytest.approx(exact.numpy())
    assert model.score(rows) == pytest.approx(scores.mean())


def test_many_codes_have_a_bound() -> None:
    X = _bits()
    model = small(20, likelihood="bernoulli", importance_samples=7).fit(X)
    assert model.bound_ == "importance"
    x = torch.tensor(X, dtype=torch.float32)
    seed = model.config_.seed
    bound = datum_scores(model.vae_, x, bound="importance", importance_samples=7, seed=seed)
    assert model.score_samples(X) == pytest.approx(bound.numpy())


def test_a_density_is_in_the_units_of_the_data() -> None:
    X = load_iris().data
    model, other = small().fit(X), small().fit(100 * X + 7)
    shift = X.shape[1] * math.log(100)
    assert model.score_samples(X) == pytest.approx(
        other.score_samples(100 * X + 7) + shift, abs=1e-2
    )
    codes = model.transform(X)
    assert np.array_equal(codes, other.transform(100 * X + 7))
    means = model.inverse_transform(codes)
    assert other.inverse_transform(codes) == pytest.approx(100 * means + 7, rel=1e-3)


def test_codes_in_three_forms_and_back() -> None:
    X = load_iris().data
    model = small().fit(X)
    codes = model.transform(X)
    assert (codes.shape, codes.dtype) == ((150, 2), np.int64)
    assert list(model.get_feature_names_out()) == ["z1", "z2"]
    vectors = model.set_params(encoding="one-hot").transform(X)
    assert list(model.get_feature_names_out()) == [f"z{d}_{k}" for d in (1, 2) for k in range(3)]
    assert np.array_equal(vectors.reshape(150, 2, 3).argmax(-1), codes)
    assert np.array_equal(vectors.sum(1), np.full(150, 2))
    means = model.inverse_transform(vectors)
    q = model.set_params(encoding="probabilities").transform(X)
    assert q.reshape(150, 2, 3).sum(-1) == pytest.approx(np.ones((150, 2)), abs=1e-5)
    assert np.array_equal(model.inverse_transform(q), means)
    x = torch.tensor(X, dtype=torch.float32)
    assert means == pytest.approx(model.vae_.reconstruct(x).numpy())


def test_a_range_is_undone() -> None:
    grey = 16 * np.random.default_rng(0).random((40, 4)).round(1)
    model = small(likelihood="bernoulli", range=(0, 16)).fit(grey)
    means = model.inverse_transform(model.transform(grey))
    assert 1 < means.min() < means.max() < 15
    assert set(model.sample(50).flat) == {0.0, 16.0}
    levels = small(likelihood="categorical:4", range=(0, 16)).fit(grey)
    assert set(levels.sample(50).flat) == {2.0, 6.0, 10.0, 14.0}  # the middles of four levels


def test_images_have_a_shape() -> None:
    X = np.random.default_rng(0).integers(0, 2, (30, 64))
    model = small(likelihood="bernoulli", network="conv:2", event_shape=(8, 8)).fit(X)
    assert model.transform(X).shape == (30, 2)
    assert model.sample(3).shape == model.inverse_transform(model.transform(X[:3])).shape == (3, 64)
    with pytest.raises(ValueError, match=r"Expected 63 columns for event_shape=\(9, 7\); got 64"):
        small(event_shape=(9, 7)).fit(X)


def test_samples_have_seeds() -> None:
    model = small().fit(load_iris().data)
    assert np.array_equal(model.sample(4), model.sample(4))
    assert np.array_equal(model.sample(4, random_state=3), model.sample(4, random_state=3))
    assert not np.array_equal(model.sample(4), model.sample(4, random_state=3))


def test_one_latent_gives_clusters() -> None:
    source = np.random.default_rng(0)
    X = np.concatenate([source.normal(-5, 1, (60, 2)), source.normal(5, 1, (60, 2))])
    settings = {"estimator": "exact", "epochs": 30, "annealing": 0, "learning_rate": 0.02}
    model = small(1, 2, **settings, averaging=0.9)
    clusters = model.fit_predict(X)
    assert np.array_equal(clusters, model.predict(X))
    assert set(clusters[:60]) != set(clusters[60:])
    assert len(set(clusters[:60])) == len(set(clusters[60:])) == 1
    assert np.array_equal(model.predict_proba(X).argmax(1), clusters)
    with pytest.raises(AttributeError) as error:
        small(2).predict  # noqa: B018
    assert "Expected num_latents=1 for clusters; got 2" in str(error.value.__cause__)


@pytest.mark.slow
def test_it_works_in_a_pipeline_and_a_search() -> None:
    X, y = load_iris(return_X_y=True)
    settings = {"encoding": "one-hot", "epochs": 20, "learning_rate": 0.02, "annealing": 0}
    codes = small(2, 4, estimator="exact", averaging=0.9, **settings)
    pipeline = make_pipeline(StandardScaler(), codes, LogisticRegression())
    assert cross_val_score(pipeline, X, y, cv=2).mean() > 0.6  # 1/3 by chance
    search = GridSearchCV(small(), {"num_categories": [2], "epochs": [0, 2]}, cv=2).fit(X)
    assert search.best_params_["epochs"] == 2
    assert search.best_score_ == pytest.approx(search.cv_results_["mean_test_score"].max())
    assert search.best_estimator_.transform(X).shape == (150, 2)


def test_clones_and_pickles() -> None:
    X = load_iris().data
    model = small(hidden=[5]).fit(X)
    again = clone(model).fit(X)
    assert np.array_equal(model.score_samples(X), again.score_samples(X))
    loaded = pickle.loads(pickle.dumps(model))
    assert np.array_equal(model.transform(X), loaded.transform(X))
    state = np.random.RandomState(3)
    assert small(random_state=state).fit(X).config_.seed != model.config_.seed


def test_tables_of_pandas() -> None:
    frame = load_iris(as_frame=True).data
    model = small().set_output(transform="pandas").fit(frame)
    codes = model.transform(frame)
    assert isinstance(codes, pd.DataFrame)
    assert list(codes.columns) == ["z1", "z2"]
    assert list(model.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(frame[frame.columns[::-1]])


@pytest.mark.parametrize(
    ("settings", "X", "message"),
    [
        ({}, [[0, np.inf], [1, 2]], "Input X contains infinity"),
        ({}, [[0, np.nan], [1, np.nan]], "got none in column '1'"),
        ({}, pd.DataFrame({"a": ["x", "y"] * 9}), "Expected numbers in all columns of X for the"),
        ({}, pd.DataFrame({"a": ["x"]}), "Expected at least 2 rows of columns; got 1"),
        ({"event_shape": (1,)}, pd.DataFrame({"a": ["x", "y"]}), r"with event_shape=\(1,\)"),
        ({"likelihood": "bernoulli"}, [[0, 0.5], [1, 2]], "zeros and ones"),
        ({"likelihood": "poisson"}, [[0, -1], [1, 2]], "whole numbers from 0"),
        ({"encoding": "other"}, [[0, 1], [1, 2]], "Expected encoding to be one of codes, one-hot"),
        ({"num_categories": 1}, [[0, 1], [1, 2]], "categories of at least 2; got 1"),
        ({"prior": "conditional"}, [[0, 1], [1, 2]], "labels"),
        ({}, [["a", "b"], ["c", "d"]], "could not convert string"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], X: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**settings).fit(X)


def test_codes_that_cannot_be_are_refused() -> None:
    model = small().fit(load_iris().data)
    with pytest.raises(ValueError, match="Expected codes of 2 columns, as transform gives them"):
        model.inverse_transform([[0, 1, 2]])
    with pytest.raises(ValueError, match="Expected categories 0 to 2; got 0 to 3"):
        model.inverse_transform([[0, 3]])


def test_it_trains_as_the_command_line_does(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    X = load_iris().data
    model = small(epochs=3).fit(X)
    np.save(tmp_path / "x.npy", X)
    settings = {"likelihood": "normal", "hidden": (8,), "epochs": 3, "batch_size": 16, "test": 0}
    settings |= {"num_latents": 2, "num_categories": 3, "seed": model.config_.seed}
    settings["split_seed"] = model.config_.split_seed
    named = ("estimator", "prior", "learning_rate", "averaging", "annealing", "validation")
    settings |= {name: getattr(model.config_, name) for name in named}
    source = open_source(tmp_path / "x.npy")
    with start_run(source, tmp_path / "run", **settings) as training:
        records = list(training.epochs())
        training.finish()
    run = load_run(tmp_path / "run")
    assert [record.of_guide for record in records] == [False, False, False, True]
    assert [record.validation_elbo for record in records] == [
        record.validation_elbo for record in model.history_
    ]
    for name, value in run.vae.state_dict().items():
        assert torch.equal(model.vae_.state_dict()[name], value), name
    assert model.score_samples(X) == pytest.approx(run.score(X, "exact").numpy())


def test_settings_that_are_not_named_follow_the_rule() -> None:
    X = load_wine().data
    config = CategoricalVAE(epochs=0, random_state=0).fit(X).config_
    source = Source("X", "memory", as_rows(pd.DataFrame(X)), None, None)
    seeds = {"seed": config.seed, "split_seed": config.seed}
    expected = resolve_settings(source, likelihood="normal", epochs=0, test=0, **seeds)
    assert config == expected
    assert (config.num_latents, config.num_categories, config.dropout) == (2, 16, 0.3)
    assert (config.prior, config.estimator, config.hidden) == ("learned", "marginal", (128,))
    config = CategoricalVAE(3, epochs=0, patience=0, prior="uniform").fit(X).config_
    assert (config.num_latents, config.num_categories, config.prior) == (3, 8, "uniform")
    assert config.patience is None


@pytest.mark.parametrize("validation", [None, 0, 0.1, 30])
def test_rows_for_validation(validation: float | None) -> None:
    kept = {None: 35, 0: 0, 0.1: 0.1, 30: 30}[validation]
    model = small(epochs=1, validation=validation).fit(load_wine().data)
    assert model.config_.validation == kept
    assert (model.history_[0].validation_elbo is None) == (validation == 0)


@pytest.mark.parametrize("num", [2, 3, 4, 5, 6])
def test_few_rows_are_enough(num: int) -> None:
    assert small().fit(load_wine().data[:num]).transform(load_wine().data[:num]).shape == (num, 2)


def test_missing_values_are_left_out() -> None:
    X = load_iris().data.copy()
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    model = small().fit(X)
    assert model.config_.likelihood == "masked:normal"
    x = torch.tensor(X, dtype=torch.float32)
    exact = datum_scores(model.vae_, x, bound="exact")
    assert model.score_samples(X) == pytest.approx(exact.numpy(), rel=1e-5)
    empty = np.full((1, 4), np.nan)
    assert model.score_samples(empty) == pytest.approx([0], abs=1e-5)
    assert np.isfinite(model.inverse_transform(model.transform(X))).all()
    assert np.isfinite(model.sample(5)).all()
    complete = small().fit(load_iris().data)
    with pytest.raises(ValueError, match='likelihood="masked:normal", which leaves missing'):
        complete.transform(X)


def _penguins(num: int = 90) -> pd.DataFrame:
    source = np.random.default_rng(0)
    species = source.integers(0, 3, num)
    return pd.DataFrame(
        {
            "species": pd.Series(np.array(["Adelie", "Gentoo", "Chinstrap"])[species]),
            "mass": source.normal(3 + species, 0.2).round(2),
            "wild": species > 0,
            "year": source.choice([2007, 2008, 2009], num),
        }
    )


def test_names_in_a_table_of_pandas() -> None:
    torch.set_default_dtype(torch.float32)
    frame = _penguins()
    frame.loc[3, "mass"] = np.nan
    model = small(likelihood="mixed").fit(frame)
    assert list(model.feature_names_in_) == list(frame.columns)
    kinds = "masked:mixed:categorical:3,normal,bernoulli,categorical:3"
    assert model.config_.likelihood == kinds
    codes = model.transform(frame)
    assert codes.shape == (90, 2)
    # Rows of their own have the levels of the training, in whatever order they come.
    assert np.array_equal(model.transform(frame[50:]), codes[50:])
    scores = model.score_samples(frame)
    assert np.isfinite(scores).all()
    for table in (model.inverse_transform(codes), model.sample(40)):
        assert list(table.columns) == list(frame.columns)
        assert set(table["species"]) <= {"Adelie", "Gentoo", "Chinstrap"}
        assert table["wild"].dtype == bool
        assert set(table["year"]) <= {2007.0, 2008.0, 2009.0}
    assert np.isfinite(model.score_samples(model.sample(5))).all()
    again = clone(model).fit(frame)
    assert again.score_samples(frame) == pytest.approx(scores)
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(frame[["mass", "species", "wild", "year"]])
    with pytest.raises(ValueError, match="Expected Adelie, Chinstrap, Gentoo in column 'species'"):
        model.transform(frame.assign(species="Emperor"))


def test_numbers_that_are_names_of_categories() -> None:
    X = _penguins()[["mass", "year"]].to_numpy(dtype=float)
    model = small(likelihood="mixed").fit(X)
    assert model.config_.likelihood == "mixed:normal,categorical:3"
    means = model.inverse_transform(model.transform(X))
    assert set(means[:, 1]) <= {2007.0, 2008.0, 2009.0}
    assert set(model.sample(50)[:, 1]) <= {2007.0, 2008.0, 2009.0}


def test_copies_are_validated_on_one_side() -> None:
    X = np.tile(load_iris().data[::3], (2, 1))
    config = small().fit(X).config_
    assert config.group_copies


def test_it_can_be_saved_as_a_run(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    X = load_iris().data
    model = small().fit(X)
    run = save_run(tmp_path / "run", model.vae_, X, records=model.history_)
    assert np.array_equal(run.encode(X).numpy(), model.transform(X))


def test_progress_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    small().fit(load_iris().data)
    assert capsys.readouterr().out == ""
    small(verbose=True).fit(load_iris().data)
    assert capsys.readouterr().out.count("epoch ") == 3


def test_codes_of_other_posteriors() -> None:
    x = load_iris().data
    model = small(1, 4, encoding="probabilities", epochs=1).fit(x)
    plain = model.transform(x)
    exact = model.set_params(posterior="exact").transform(x)
    refined = model.set_params(posterior=None, refine=1).transform(x)
    np.testing.assert_allclose(refined, exact, atol=1e-6)  # one sweep finds p(z|x) of one latent
    assert np.abs(plain - exact).max() > 1e-3
    assert (model.predict(x) == exact.argmax(1)).all()
    with pytest.raises(ValueError, match="Expected refine=1 with posterior='refined'"):
        model.set_params(posterior="exact").transform(x)
