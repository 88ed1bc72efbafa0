"""The defaults that depend on the size of the data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyro_dvae import (
    Config,
    MarginalELBO,
    RlooELBO,
    SnapshotELBO,
    Trainer,
    build_vae,
    fit,
    recipe,
)
from pyro_dvae.codes import MAX_CODES
from pyro_dvae.data import open_source
from pyro_dvae.defaults import RunSettings
from pyro_dvae.recipe import (
    FEW_VALUES,
    LEAST_PATIENCE,
    LEAST_STEPS,
    MOST_NUMBERS,
    estimator_recipe,
    guide_recipe,
    model_recipe,
    training_recipe,
)
from pyro_dvae.runs import resolve_settings, start_run
from pyro_dvae.training import fitting

PLAIN = {"by_product": True, "by_snapshot": True}


def test_mnist_has_the_constants() -> None:
    """57,000 images of 28 x 28, with and without validation data."""
    for num_data in (57_000, 60_000):
        assert training_recipe(num_data, 784, 100, anneals=True) == {
            "epochs": 50,
            "patience": 10,
            "averaging": 0.999,
            "annealing": 10,
            "learning_rate": 1e-3,
            "warmup": 0,
            "cooldown": 0,
            "reinmax_steps": 0,
        }
        assert model_recipe(num_data, 784, ()) == {}
        assert estimator_recipe(num_data, 784, 8**4, (), **PLAIN) == {"estimator": "snapshot"}
        assert guide_recipe(num_data, 784, 8**4, 50, by_marginal=True) == 0


@pytest.mark.parametrize(
    ("num_data", "figures"),
    [
        (178, (2_500, 750, 0.99, 200)),
        (5_000, (100, 30, 0.99, 10)),
        (28_000, (50, 10, 0.998214, 10)),
    ],
)
def test_the_rule_in_figures(num_data: int, figures: tuple[float, ...]) -> None:
    found = training_recipe(num_data, 10, 100, anneals=True)
    names = ("epochs", "patience", "averaging", "annealing")
    assert tuple(found[name] for name in names) == figures


@pytest.mark.parametrize(
    ("num_data", "named", "figures"),
    [
        (57_000, {}, (2e-3, 1, 25, None)),
        (57_000, {"epochs": 160}, (2e-3, 1, 80, None)),
        (57_000, {"epochs": 35}, (2e-3, 1, 0, 10)),  # 19,950 steps
        (57_000, {"epochs": 1}, (2e-3, 1, 0, 10)),
        (5_000, {}, (2e-3, 2, 0, 30)),
        (5_000, {"epochs": 50}, (2e-3, 1, 0, 30)),
        (5_000, {"epochs": 10**6}, (2e-3, 10, 500_000, None)),
        (57_000, {"patience": 7}, (2e-3, 1, 0, 7)),
        (57_000, {"patience": None}, (2e-3, 1, 25, None)),
        (57_000, {"cooldown": 0}, (2e-3, 1, 0, 10)),
        (57_000, {"cooldown": 3}, (2e-3, 1, 3, None)),
        (57_000, {"cooldown": 3, "patience": 7}, (2e-3, 1, 3, 7)),
        (57_000, {"by_snapshot": False}, (1e-3, 0, 0, 10)),
        (57_000, {"by_snapshot": False, "cooldown": 3}, (1e-3, 0, 3, None)),
        (57_000, {"by_snapshot": False, "by_reinmax": True}, (1e-3, 1, 0, 10)),
        (5_000, {"by_snapshot": False, "by_reinmax": True}, (1e-3, 10, 0, 30)),
        (5_000, {"by_snapshot": False, "by_reinmax": True, "epochs": 20}, (1e-3, 4, 0, 30)),
        (178, {"by_snapshot": False, "by_reinmax": True}, (3e-3, 0, 0, 750)),
        (57_000, {"by_snapshot": False, "by_grid": True}, (2e-3, 1, 0, 10)),
        (178, {"by_snapshot": False, "by_grid": True}, (3e-3, 0, 0, 750)),
        (178, {}, (3e-3, 0, 0, 750)),
        (178, {"cooldown": 3}, (3e-3, 0, 3, None)),
    ],
)
def test_the_learning_rate_of_a_snapshot_grows_and_falls(
    num_data: int, named: dict[str, Any], figures: tuple[float | None, ...]
) -> None:
    """What falls at the end is not stopped early, unless the user asks for both."""
    found = training_recipe(num_data, 784, 100, anneals=True, **{"by_snapshot": True, **named})
    names = ("learning_rate", "warmup", "cooldown", "patience")
    assert tuple(found[name] for name in names) == figures


@pytest.mark.parametrize("num_data", [1, 99, 178, 1_000, 5_000, 100_000])
@pytest.mark.parametrize("batch_size", [1, 100, 1_000])
def test_few_rows_still_mean_many_steps(num_data: int, batch_size: int) -> None:
    found = training_recipe(num_data, 10, batch_size, anneals=True)
    steps = math.ceil(num_data / batch_size)
    assert found["epochs"] * steps >= LEAST_STEPS
    assert found["patience"] * steps >= LEAST_PATIENCE
    assert found["epochs"] >= RunSettings.epochs
    assert 0.99 <= found["averaging"] <= 0.999
    assert training_recipe(num_data, 10, batch_size, anneals=False)["annealing"] == 0


@pytest.mark.parametrize(
    ("num_data", "epochs", "annealing"),
    [
        (57_000, None, 10),
        (57_000, 50, 10),
        (57_000, 160, 10),
        (57_000, 25, 5),
        (57_000, 5, 1),
        (57_000, 4, 0),
        (178, None, 200),
        (178, 100, 20),
    ],
)
def test_annealing_takes_a_fifth_of_the_epochs(
    num_data: int, epochs: int | None, annealing: int
) -> None:
    found = training_recipe(num_data, 784, 100, anneals=True, epochs=epochs)
    assert found["annealing"] == annealing
    assert epochs in (None, found["epochs"])


@pytest.mark.parametrize(("epochs", "annealing"), [(10, 2), (3, 0)])
def test_a_run_and_fit_anneal_alike(
    epochs: int, annealing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.bernoulli(torch.full((260, 4), 0.5), generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"num_latents": 20, "num_categories": 10, "hidden": (4,)}
    config = resolve_settings(open_source(x.numpy()), epochs=epochs, estimator="rloo", **options)
    assert config.annealing == annealing
    made = []

    class Noted(Trainer):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            made.append(self.annealing)

    monkeypatch.setattr(fitting, "Trainer", Noted)
    next(fit(build_vae(config, (4,)), RlooELBO(2), x, epochs=epochs, max_seconds=0), None)
    assert made == [annealing]


@pytest.mark.parametrize(
    ("named", "rates"),
    [({}, (2e-3, 1, 10)), ({"cooldown": 4}, (2e-3, 1, 4)), ({"patience": 3}, (2e-3, 1, 0))],
    ids=str,
)
def test_a_run_and_fit_have_the_same_learning_rates(
    named: dict[str, Any], rates: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "FEW_VALUES", 10)
    monkeypatch.setattr(recipe, "COOLED_STEPS", 10)
    x = torch.bernoulli(torch.full((260, 4), 0.5), generator=torch.Generator().manual_seed(0))
    config = resolve_settings(open_source(x.numpy()), epochs=20, **named)
    assert (config.learning_rate, config.warmup, config.cooldown) == rates
    made = []

    class Noted(Trainer):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            made.append(tuple(settings[name] for name in ("learning_rate", "warmup", "cooldown")))

    monkeypatch.setattr(fitting, "Trainer", Noted)
    vae = build_vae(Config(num_latents=2, num_categories=3, hidden=(4,)), (4,))
    next(fit(vae, SnapshotELBO(), x, epochs=20, max_seconds=0, **named), None)
    assert made == [rates]


def test_only_few_values_get_a_small_model() -> None:
    rows = FEW_VALUES // 10
    assert model_recipe(rows, 10, ()) == {
        "num_latents": 2,
        "num_categories": 16,
        "hidden": (128,),
        "dropout": 0.3,
    }
    assert model_recipe(rows + 1, 10, ()) == {}


@pytest.mark.parametrize("by_product", [True, False])
def test_few_values_with_few_codes_are_summed_over(by_product: bool) -> None:
    """Up to 2^18 numbers of all codes, and 2^22 where a matrix product scores them."""
    most = 2**14 if by_product else 2**10
    for elements in (10, most):
        found = estimator_recipe(100, elements, 256, (), by_product=by_product, by_snapshot=False)
        assert found == {"estimator": "marginal", "prior": "learned"}
    assert estimator_recipe(100, most + 1, 256, (), by_product=by_product, by_snapshot=False) == {}


@pytest.mark.parametrize(
    ("settings", "estimators"),
    [
        ({"likelihood": "poisson"}, ("marginal", "rloo")),
        ({"likelihood": "multinomial"}, ("marginal", "rloo")),
        ({"likelihood": "bernoulli"}, ("marginal", "snapshot")),
        ({"likelihood": "masked:bernoulli"}, ("marginal", "rloo")),
        ({"likelihood": "bernoulli", "guide": "autoregressive"}, ("rloo", "rloo")),
        ({"likelihood": "negative-binomial"}, ("rloo", "rloo")),
        ({"likelihood": "categorical:2"}, ("rloo", "rloo")),
        ({"likelihood": "normal"}, ("rloo", "rloo")),
    ],
    ids=str,
)
def test_wide_data_are_summed_over_where_a_product_scores_them(
    settings: dict[str, str], estimators: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P is too large for any other sum: of few data, and of many."""
    x = torch.zeros(60, MOST_NUMBERS // 256 + 1)
    x[:, ::2] = torch.randint(2, x[:, ::2].shape).float()
    found = [resolve_settings(open_source(x.numpy()), **settings).estimator]
    monkeypatch.setattr(recipe, "FEW_VALUES", 10)
    sizes = {"num_latents": 2, "num_categories": 16}
    found += [resolve_settings(open_source(x.numpy()), **settings, **sizes).estimator]
    assert tuple(found) == estimators


def test_many_data_with_few_codes_are_trained_with_a_snapshot() -> None:
    for codes, elements in ((8**4, 784), (8**4, 2**10), (2, 2**21)):
        found = estimator_recipe(57_000, elements, codes, (), **PLAIN)
        assert found == {"estimator": "snapshot"}
    for codes, elements in ((8**4 + 1, 784), (8**4, 2**10 + 1), (2, 2**21 + 1)):
        assert estimator_recipe(57_000, elements, codes, (), **PLAIN) == {}
    for name in ("estimator", "baseline", "decoder_particles"):
        assert estimator_recipe(57_000, 784, 8**4, {name}, **PLAIN) == {}
    assert estimator_recipe(57_000, 784, 8**4, {"num_particles", "beta"}, **PLAIN) != {}
    assert estimator_recipe(57_000, 784, 8**4, (), by_product=True, by_snapshot=False) == {}


@pytest.mark.parametrize("fits", [True, False])
def test_many_data_with_a_large_code_are_trained_by_reinmax(fits: bool) -> None:
    def chosen(num_data: int, codes: int, *named: str) -> dict[str, Any]:
        return estimator_recipe(num_data, 784, codes, named, by_product=fits, by_snapshot=fits)

    assert chosen(57_000, MAX_CODES) == {}
    assert chosen(57_000, MAX_CODES + 1) == {"estimator": "reinmax"}
    assert chosen(57_000, 10**20, "num_particles") == {"estimator": "reinmax"}
    for name in ("estimator", "baseline"):  # which is one of a score function
        assert chosen(57_000, 10**20, name) == {}
    assert chosen(200, 10**20) == {}


def test_a_grid_with_many_data_and_a_large_code_is_trained_by_rloo() -> None:
    """With two draws, unless a number of draws is named: ReinMax takes any."""

    def chosen(num_data: int, codes: int, *named: str) -> dict[str, Any]:
        return estimator_recipe(num_data, 784, codes, named, **PLAIN, by_grid=True)

    found = {"estimator": "rloo", "num_particles": 2, "decoder_particles": 1}
    assert chosen(57_000, MAX_CODES + 1) == found
    assert chosen(57_000, 10**20, "decoder_particles") == {"estimator": "rloo", "num_particles": 2}
    assert chosen(57_000, 10**20, "num_particles") == {"estimator": "reinmax"}
    for name in ("estimator", "baseline"):
        assert chosen(57_000, 10**20, name) == {}
    assert chosen(57_000, MAX_CODES) == chosen(200, 10**20) == {}


@pytest.mark.parametrize(
    ("num_data", "epochs", "by_grid", "figures"),
    [
        (57_000, 6, True, (300, 1, 0)),
        (57_000, 6, False, (0, 0, 1)),
        (10_200, 14, True, (300, 3, 0)),
        (5_000, 50, True, (300, 6, 0)),
        (5_000, 10, True, (125, 3, 0)),
        (5_000, 1, True, (12, 1, 0)),
        (178, 50, True, (0, 0, 10)),
    ],
)
def test_a_grid_begins_with_steps_of_reinmax(
    num_data: int, epochs: int, by_grid: bool, figures: tuple[int, ...]
) -> None:
    """The learning rate grows during them."""
    found = training_recipe(num_data, 784, 100, anneals=True, by_grid=by_grid, epochs=epochs)
    names = ("reinmax_steps", "warmup", "annealing")
    assert tuple(found[name] for name in names) == figures


@pytest.mark.parametrize(
    ("size", "epochs", "by_marginal", "guide_epochs"),
    [
        ((200, 10, 256), 2_500, True, 500),
        ((200, 10, 256), 2_500, False, 0),
        ((200, 10, 256), 3, True, 1),
        ((200, 10, 256), 0, True, 0),
        ((100, 2**14, 256), 2_500, True, 500),
        ((100, 2**14 + 1, 256), 2_500, True, 0),  # too many codes to sum in a step
        ((FEW_VALUES // 10 + 1, 10, 256), 50, True, 0),
    ],
)
def test_the_guide_is_trained_alone_after_the_marginal_objective_alone(
    size: tuple[int, int, int], epochs: int, by_marginal: bool, guide_epochs: int
) -> None:
    assert guide_recipe(*size, epochs, by_marginal=by_marginal) == guide_epochs


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = np.random.default_rng(0).normal(size=(60, 3))
    path = tmp_path / "t.csv"
    np.savetxt(path, rows, delimiter=",", header="a,b,c", comments="")
    return path


NAMED: list[dict[str, Any]] = [
    {"num_latents": 3},
    {"num_categories": 5},
    {"hidden": (7,)},
    {"dropout": 0.0},
    {"prior": "uniform"},
    {"estimator": "rloo", "annealing": 2},
    {"beta": 2.0},
    {"num_particles": 3},
    {"epochs": 3},
    {"guide_epochs": 0},
    {"guide_epochs": 7},
    {"patience": None},
    {"learning_rate": 0.1},
    {"averaging": 0.5},
    {"validation": 7},
]


@pytest.mark.parametrize("named", NAMED, ids=str)
def test_what_is_named_wins(table: Path, named: dict[str, Any]) -> None:
    config = resolve_settings(open_source(table), likelihood="normal", **named)
    assert {name: getattr(config, name) for name in named} == named


LARGE = {"num_latents": 20, "num_categories": 10}


@pytest.mark.parametrize(
    ("named", "estimator", "particles"),
    [
        # The code of the defaults: as it was measured, for bits and networks without programs.
        ({}, "snapshot", 2),
        ({"prior": "learned", "num_particles": 3}, "snapshot", 3),
        ({"network": "mlp", "free_bits": 0.1}, "snapshot", 2),
        ({"prior": "autoregressive"}, "rloo", 4),
        ({"guide": "autoregressive"}, "rloo", 4),
        ({"likelihood": "categorical:2"}, "rloo", 4),
        ({"num_latents": 5}, "rloo", 4),
        ({"decoder_particles": 1}, "rloo", 4),
        ({"estimator": "vimco"}, "vimco", 4),
        (LARGE, "reinmax", 1),
        ({**LARGE, "num_particles": 3, "annealing": 2}, "reinmax", 3),
        ({**LARGE, "prior": "autoregressive"}, "reinmax", 1),
        ({**LARGE, "prior": "rbm"}, "rloo", 4),
        ({**LARGE, "prior": "boltzmann"}, "rloo", 4),
        ({**LARGE, "num_latents": 4}, "rloo", 4),
        ({**LARGE, "estimator": "vimco"}, "vimco", 4),
        ({**LARGE, "baseline": "none", "estimator": "reinforce"}, "reinforce", 1),
    ],
    ids=str,
)
def test_code_and_parts_decide_the_estimator_of_many_data(
    named: dict[str, Any], estimator: str, particles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "FEW_VALUES", 10)
    source = open_source(torch.bernoulli(torch.full((60, 4), 0.5)).numpy())
    config = resolve_settings(source, **named)
    assert (config.estimator, config.num_particles) == (estimator, particles)
    # Of 5,000 epochs of one step each:
    assert config.annealing == named.get("annealing", 400)
    assert config.learning_rate == (2e-3 if estimator == "snapshot" else 1e-3)
    assert config.warmup == {"snapshot": 100, "reinmax": 500}.get(estimator, 0)


@pytest.mark.parametrize(
    ("named", "estimator", "particles", "reinmax_steps"),
    [
        ({}, "rloo", (2, 1), 300),
        ({"prior": "learned"}, "rloo", (2, 1), 300),
        ({"decoder_particles": 2}, "rloo", (2, 2), 300),
        ({"reinmax_steps": 7}, "rloo", (2, 1), 7),
        ({"estimator": "rloo"}, "rloo", (4, None), 300),
        ({"num_particles": 3}, "reinmax", (3, None), 0),
        ({"prior": "autoregressive"}, "reinmax", (1, None), 0),
        ({"num_categories": 2}, "rloo", (4, None), 0),  # K^D can be summed
        ({"network": "conv"}, "reinmax", (1, None), 0),
        ({"network": "conv-grid:4"}, "rloo", (2, 1), 300),
        ({"encoder": "own:encoder"}, "reinmax", (1, None), 0),  # which may share nothing
    ],
    ids=str,
)
def test_a_grid_decides_the_estimator_of_many_data(
    named: dict[str, Any],
    estimator: str,
    particles: tuple[int, int | None],
    reinmax_steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recipe, "FEW_VALUES", 10)
    source = open_source(torch.bernoulli(torch.full((60, 4, 4), 0.5)).numpy())
    grid = {"num_latents": 16, "num_categories": 10, "network": "conv-grid"}
    config = resolve_settings(source, **{**grid, **named})
    assert (config.estimator, config.reinmax_steps) == (estimator, reinmax_steps)
    assert (config.num_particles, config.decoder_particles) == particles
    # Of 5,000 epochs of one step each:
    assert config.annealing == (0 if reinmax_steps else 400)
    assert config.learning_rate == (2e-3 if reinmax_steps else 1e-3)
    assert config.warmup == (300 if reinmax_steps else 500 if estimator == "reinmax" else 0)


def test_bits_with_gaps_are_not_trained_with_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "FEW_VALUES", 10)
    bits = torch.bernoulli(torch.full((60, 4), 0.5)).numpy()
    bits[3, 2] = np.nan
    assert resolve_settings(open_source(bits)).estimator == "rloo"


def test_two_of_the_code_go_together(table: Path) -> None:
    """Where K alone is named, D is that of `Config`, and the sum may be too large for a step."""
    source = open_source(table)
    config = resolve_settings(source, likelihood="normal", num_categories=50)
    assert (config.num_latents, config.num_categories) == (Config.num_latents, 50)
    assert (config.estimator, config.prior) == ("rloo", "uniform")
    assert config.annealing == config.num_particles * 100  # 400 steps, and one per epoch


def test_a_conditional_prior_is_summed_too(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [f"{row % 2},{row % 3 == 0:d},{row % 2}" for row in range(60)]
    path.write_text("a,b,y\n" + "\n".join(lines))
    source = open_source(path, labels="y")
    with start_run(source, tmp_path / "run", prior="conditional", epochs=2) as training:
        assert training.config.estimator == "marginal"
        assert [record.of_guide for record in training.epochs()] == [False, False, True]


def test_fit_is_start_run_for_few_rows_too(table: Path, tmp_path: Path) -> None:
    """The same weights, bit for bit, by the recipe of 3 columns of 60 rows."""
    options: dict[str, Any] = {"likelihood": "normal", "test": 0, "epochs": 3, "seed": 1}
    with start_run(open_source(table), tmp_path / "run", **options) as training:
        records = list(training.epochs())
        training.trainer.keep_best()
    torch.manual_seed(1)
    vae = build_vae(training.config, (3,))
    elbo = MarginalELBO(noisy=True)
    x = torch.tensor(np.loadtxt(table, delimiter=",", skiprows=1), dtype=torch.float32)
    again = list(fit(vae, elbo, x, epochs=3, seed=1))
    assert [r.validation_elbo for r in again] == [r.validation_elbo for r in records]
    for name, weight in training.trainer.vae.state_dict().items():
        assert torch.equal(weight, vae.state_dict()[name]), name


def test_the_best_epoch_is_that_of_log_p_for_the_marginal() -> None:
    """What an objective maximises decides: log p(x) for `MarginalELBO`, the ELBO for others."""
    x = torch.bernoulli(torch.full((60, 4), 0.5), generator=torch.Generator().manual_seed(0))
    for elbo in (MarginalELBO(noisy=True), RlooELBO(2)):
        torch.manual_seed(0)
        vae = build_vae(Config(num_latents=2, num_categories=3, hidden=(8,), dropout=0.5), (4,))
        options = {"guide_epochs": 0, "learning_rate": 0.05, "averaging": 0.0}
        records = list(fit(vae, elbo, x, 20, epochs=40, **options))
        name = "log_marginal" if isinstance(elbo, MarginalELBO) else "elbo"
        values = [getattr(record, f"validation_{name}") for record in records]
        best = max(record.epoch for record in records if record.is_best)
        assert values[best - 1] == max(values)


@pytest.mark.slow
def test_fit_stops_after_the_patience_of_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a learning rate that changes no weight, no epoch after the first is better."""
    monkeypatch.setattr(recipe, "LEAST_PATIENCE", 150)  # to save time
    x = torch.bernoulli(torch.full((60, 4), 0.5), generator=torch.Generator().manual_seed(0))
    vae = build_vae(Config(num_latents=2, num_categories=3, hidden=(8,)), (4,))
    still: dict[str, Any] = {"batch_size": 4, "learning_rate": 1e-30, "averaging": 0}
    still["guide_epochs"] = 0
    records = list(fit(vae, MarginalELBO(), x, 12, **still))
    assert len(records) == 14  # 12 steps each, so the patience is 13 epochs
    for validation, epochs in ((12, 16), (None, 15)):
        patience = None if validation else "auto"
        still |= {"epochs": epochs, "patience": patience}
        ran = fit(vae, MarginalELBO(), x, validation, **still)
        assert len(list(ran)) == epochs
