"""An `Evaluation` as text, as a table in a notebook, as JSON and as a row of a frame."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pandas
import pytest
from cells import Cells
from zoo import D, make_batch, make_vae, tiny_data, tiny_vae

from pyro_dvae import Evaluation, evaluate


@pytest.fixture(scope="module")
def scores() -> Evaluation:
    return evaluate(tiny_vae(), tiny_data(5), importance_samples=20)


def test_text_has_figures_units_and_errors(scores: Evaluation) -> None:
    head, *lines = repr(scores).splitlines()
    assert head == "Evaluation of 5 data, in nats per datum:"
    elbo = next(line for line in lines if "ELBO " in line)
    assert elbo.split()[:2] == ["ELBO", f"{scores.elbo:.3f}"]
    assert "±" not in elbo
    bound = next(line for line in lines if line.startswith("  bound(20)"))
    assert f"± {scores.standard_errors['importance_bound']:.2g}" in bound
    assert max(map(len, lines)) < 100
    without = repr(evaluate(make_vae(likelihood="normal"), make_batch(make_vae(), "normal")[0]))
    assert "bound(" not in without
    assert "bits" not in without


def test_table_of_a_notebook(scores: Evaluation) -> None:
    rows = Cells(scores._repr_html_()).rows
    assert rows[0] == ["figure", "mean", "standard error", "unit", "meaning"]
    figures = {row[0]: row[1:] for row in rows}
    assert figures["ELBO"] == [f"{scores.elbo:.3f}", "exact", "nats", "E_q[log p(x|z)] - KL"]
    assert figures["bits per dimension"][2] == "bits"
    assert [f"z{d + 1}" for d in range(D)] == [row[0] for row in rows[-D:]]
    of_each = {"information_per_latent": (0.1,) * 25, "perplexity_per_latent": (1.0,) * 25}
    many = dataclasses.replace(scores, kl_per_latent=None, **of_each)
    assert "and 5 more latents" in many._repr_html_()
    assert Cells(many._repr_html_()).rows[-1] == ["z20", "0.100", "1.000"]


def test_texts_in_a_table_are_escaped(scores: Evaluation) -> None:
    marked: Any = dataclasses.replace(scores, importance_samples="<b>&</b>")  # type: ignore[arg-type]
    assert "<b>&</b>" not in marked._repr_html_()
    assert "bound(<b>&</b>)" in {row[0] for row in Cells(marked._repr_html_()).rows}


def test_dictionary_is_what_json_gives_back(scores: Evaluation) -> None:
    content = scores.to_dict()
    assert json.loads(json.dumps(content)) == content
    assert content.keys() == {field.name for field in dataclasses.fields(Evaluation)}
    assert content["information_per_latent"] == list(scores.information_per_latent)


def test_evaluations_make_a_frame(scores: Evaluation) -> None:
    frame = pandas.DataFrame([scores.to_dict(), scores.to_dict()])
    assert list(frame.columns) == [field.name for field in dataclasses.fields(Evaluation)]
    assert frame["elbo"].tolist() == [scores.elbo] * 2
    flat = pandas.json_normalize([scores.to_dict()])
    assert flat["standard_errors.importance_bound"][0] > 0
