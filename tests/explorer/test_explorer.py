"""What a person asks of a model, compared with the model's own methods."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from reports.made import HOSTILE, image_run, runs

from pyro_dvae.codes import enumerate_codes, one_hot
from pyro_dvae.evaluation import evaluate, exact_terms
from pyro_dvae.explorer import Explorer
from pyro_dvae.runs import load_run


@pytest.fixture(params=["images", "table"])
def explorer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Explorer:
    return opened(tmp_path_factory, request.param)


@pytest.fixture
def images(tmp_path_factory: pytest.TempPathFactory) -> Explorer:
    return opened(tmp_path_factory, "images")


@pytest.fixture
def table(tmp_path_factory: pytest.TempPathFactory) -> Explorer:
    return opened(tmp_path_factory, "table")


def opened(factory: pytest.TempPathFactory, name: str) -> Explorer:
    folder = runs(factory)[name]
    torch.set_default_dtype(torch.float32)
    return Explorer(load_run(folder))


@torch.no_grad()
def test_a_decoded_image_is_the_mean(images: Explorer) -> None:
    mean, draw = images.decode([2, 1], seed=3)
    z = one_hot(torch.tensor([2, 1]), 3, dtype=torch.float32)
    assert mean.image is not None
    assert torch.equal(mean.image, images.run.vae.decode(z).mean)
    assert draw.image is not None
    assert set(draw.image.unique().tolist()) <= {0.0, 1.0}
    again, other = images.decode("2 1", seed=3)[1], images.decode("2, 1", seed=4)[1]
    assert again.image is not None
    assert other.image is not None
    assert torch.equal(draw.image, again.image)
    assert not torch.equal(draw.image, other.image)


def test_what_is_inferred_is_what_the_model_says(explorer: Explorer) -> None:
    datum = explorer.datum(4)
    found = explorer.infer(datum)
    vae = explorer.run.vae
    with torch.no_grad():
        q = vae.posterior(datum.x).base_dist.probs[0].double()
        torch.testing.assert_close(found.q, q, rtol=1e-5, atol=1e-6)
        codes = enumerate_codes(2, 3, dtype=torch.float32)
        log_p = vae.prior_codes().log_prob(codes) + vae.decode(codes).log_prob(datum.x)
        posterior = log_p.double().softmax(0)
    exact = torch.einsum("c,cdk->dk", posterior, codes.double())
    assert found.exact is not None
    torch.testing.assert_close(found.exact, exact, rtol=1e-4, atol=1e-6)
    assert found.code == vae.mode(datum.x)[0].argmax(-1).tolist()
    terms = exact_terms(vae, datum.x)
    figures = {figure.name: figure.nats for figure in found.figures}
    assert figures["ELBO"] == pytest.approx(float(terms.elbo), abs=1e-6)
    assert figures["log p(x)"] == pytest.approx(float(log_p.logsumexp(0)), abs=1e-3)
    parts = ("E_q[log p(x|z)]", "E_q[log p(z)]", "entropy of q(z|x)")
    assert sum(figures[name] for name in parts) == pytest.approx(figures["ELBO"], abs=1e-6)


def test_figures_of_all_data_have_the_means_of_the_evaluation(explorer: Explorer) -> None:
    assert explorer.rows is not None
    found = [explorer.infer(explorer.datum(n)) for n in range(explorer.num_data)]
    expected = evaluate(explorer.run.vae, explorer.rows.x)
    for i, nats in ((0, expected.elbo), (-1, expected.log_marginal)):
        assert found[0].figures[i].name == ("ELBO" if i == 0 else "log p(x)")
        mean = sum(each.figures[i].nats for each in found) / len(found)
        assert mean == pytest.approx(nats, abs=1e-4)


def test_z1_is_named_after_the_classes_it_learns(tmp_path: Path) -> None:
    from reports.made import train

    image_run(tmp_path)
    torch.set_default_dtype(torch.float32)
    partly = train(tmp_path / "partly", tmp_path / "x.npz", labels="labels", alpha=1.0)
    explorer = Explorer(load_run(partly))
    assert explorer.class_categories[:2] == ["0", "1"]
    assert explorer.classes == []
    assert explorer.infer(explorer.datum(0)).given is None


def test_too_many_codes_are_drawn_from(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    explorer = Explorer(load_run(image_run(tmp_path / "wide", num_latents=64)))
    found = explorer.infer(explorer.datum(0), seed=1)
    assert found.exact is None
    figures = {figure.name: figure for figure in found.figures}
    bound = figures["importance-weighted bound"]
    assert bound.error > 0
    assert bound.nats > figures["ELBO"].nats - 4 * (bound.error + figures["ELBO"].error)
    assert found.figures == explorer.infer(explorer.datum(0), seed=1).figures
    assert len(explorer.walk([0] * 64, [1] * 64)) == 65


def test_a_walk_changes_one_latent_at_a_time(explorer: Explorer) -> None:
    steps = explorer.walk([0, 2], "1 1")
    assert [step.code for step in steps] == [[0, 2], [1, 2], [1, 1]]
    assert [step.latent for step in steps] == [None, 0, 1]
    for step in steps:
        mean, _ = explorer.decode(step.code)
        assert step.mean.cells == mean.cells
    assert len(explorer.walk([1, 1], [1, 1])) == 1


def test_a_drawn_image_is_what_was_drawn(images: Explorer) -> None:
    datum = images.datum(0)
    digits = images.digits(datum)
    assert len(digits) == 2 * 4 * 5
    drawn = images.drawn(digits, seed=1)
    assert drawn.view.image is not None
    assert datum.view.image is not None
    torch.testing.assert_close(drawn.view.image[0], datum.view.image)
    assert drawn.x.shape == (1, 4, 5)
    # The run draws its zeros and ones, so a drawing's are drawn too.
    means = torch.stack([images.drawn(digits, seed=s).x for s in range(400)]).mean(0)[0]
    error = (datum.view.image * (1 - datum.view.image) / 400).sqrt()
    assert ((means - datum.view.image).abs() <= 4.5 * error + 1e-9).all()
    white = images.drawn("ff" * 20)
    assert white.x.min() == 1


def test_a_written_row_is_the_row(table: Explorer) -> None:
    datum = table.datum(3)
    assert table.columns == [HOSTILE, "level", "width"]
    written = table.row([str(cell) for cell in datum.view.cells])
    assert written.view.cells == datum.view.cells
    torch.testing.assert_close(written.x, datum.x)
    assert table.infer(written).code == table.infer(datum).code


def test_samples_have_their_labels(tmp_path: Path) -> None:
    from reports.made import train

    image_run(tmp_path)
    torch.set_default_dtype(torch.float32)
    explorer = Explorer(load_run(_conditional(tmp_path, train)))
    assert explorer.classes == ["0", "1"]
    assert [name for _, name in explorer.sample(6)] == ["0", "0", "0", "1", "1", "1"]
    assert [name for _, name in explorer.sample(5)] == ["0", "0", "0", "1", "1"]
    assert [name for _, name in explorer.sample(3, label="1")] == ["1"] * 3
    datum = explorer.datum(0)
    elbos = [explorer.infer(datum, label).figures[0].nats for label in (None, "0", "1")]
    assert elbos[0] == elbos[1 + (datum.label or 0)]
    assert elbos[1] != elbos[2]
    assert explorer.infer(datum).given == str(datum.label)
    assert explorer.infer(datum, "1").given == "1"
    assert explorer.infer(explorer.drawn(explorer.digits(datum))).given == "0"
    with pytest.raises(ValueError, match="class"):
        explorer.infer(datum, "2")


def _conditional(folder: Path, train: Any) -> Path:
    return train(folder / "labelled", folder / "x.npz", test=30, validation=20, prior="conditional")


@pytest.mark.parametrize(
    "ask",
    [
        lambda e: e.decode([0]),
        lambda e: e.decode([0, 3]),
        lambda e: e.decode([0, -1]),
        lambda e: e.decode([0, 0.5]),
        lambda e: e.decode([0, math.nan]),
        lambda e: e.decode([0, True]),
        lambda e: e.decode([[0], 0]),
        lambda e: e.decode("0 ²"),
        lambda e: e.decode("9" * 10_000),
        lambda e: e.decode({"path": "/etc/passwd"}),
        lambda e: e.decode(None),
        lambda e: e.decode([0, 10**5000]),
        lambda e: e.decode([0, 0], seed=-1),
        lambda e: e.decode([0, 0], seed="1"),
        lambda e: e.datum(10**9),
        lambda e: e.datum("/etc/passwd"),
        lambda e: e.walk([0, 0], "0 0 0"),
        lambda e: e.sample(101),
        lambda e: e.sample(0),
        lambda e: e.sample(1, label="x"),
        lambda e: e.drawn("zz" * 20),
        lambda e: e.drawn("00" * 21),
        lambda e: e.drawn("0 " * 20),
        lambda e: e.drawn(["00"] * 20),
        lambda e: e.row(["1", "plain"]),
        lambda e: e.row(["1", "no such level", "2"]),
        lambda e: e.row(["inf", "plain", "2"]),
        lambda e: e.row(["1e999", "plain", "2"]),
        lambda e: e.row(["", "plain", "2"]),
        lambda e: e.row([["1"], "plain", "2"]),
        lambda e: e.row("/etc/passwd"),
    ],
)
def test_bad_questions_are_refused_in_one_line(explorer: Explorer, ask: Any) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]{1,1000}$"):
        ask(explorer)


def test_several_ask_at_once(explorer: Explorer) -> None:
    before = {name: weight.clone() for name, weight in explorer.run.vae.state_dict().items()}
    state = torch.get_rng_state()
    alone = [_answers(explorer, seed) for seed in range(4)]
    found: dict[int, Any] = {}

    def ask(seed: int) -> None:
        found[seed] = _answers(explorer, seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(4)] == alone
    assert torch.equal(torch.get_rng_state(), state)
    for name, weight in explorer.run.vae.state_dict().items():
        assert torch.equal(weight, before[name])


def _answers(explorer: Explorer, seed: int) -> list[Any]:
    views = [*explorer.decode([seed % 3, 1], seed), *(v for v, _ in explorer.sample(3, seed=seed))]
    found = explorer.infer(explorer.datum(seed), seed=seed)
    seen = [view.cells if view.image is None else view.image.tolist() for view in views]
    return [seen, found.code, found.figures, found.q.tolist()]
