"""What a notebook shows of objects: tables of their figures, with units, and pictures."""

from __future__ import annotations

import base64
import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from cells import Cells
from PIL import Image
from zoo import D, K, P, make_vae, tiny_data, tiny_vae

import pyro_dvae
from pyro_dvae import (
    Config,
    EpochRecord,
    Images,
    Run,
    evaluate,
    gradient_statistics,
    load_images,
    predict,
    profile,
    reference_gradient,
    refine,
)
from pyro_dvae.data import TensorRows, scan
from pyro_dvae.elbos.score_function import RlooELBO
from pyro_dvae.evaluation import simple_models
from pyro_dvae.runs import ExplainedRow, Filled, PreparedRows, Scores
from pyro_dvae.runs.plots import elbo_figure
from pyro_dvae.runs.record import DataRecord

MARKED = "<b>&</b>"
RECORD = EpochRecord(3, -1.25, -2.5, None, (0.1, 0.25), True, 1.5)


def _run() -> Run:
    data = DataRecord(Config(num_latents=D), MARKED, num_train=3)
    return Run(Path(f"runs/{MARKED}"), (P,), data, "0.1", 7, 120, tiny_vae())


def _gradients() -> Any:
    vae, x = tiny_vae(), tiny_data(3)
    exact, _ = reference_gradient(vae, x)
    elbos = {MARKED: RlooELBO(2)}
    return next(gradient_statistics(vae, x, elbos, exact, num_draws=20))


def _profile() -> Any:
    vae = make_vae()
    with torch.no_grad():  # so that the codes tell something about the rows
        for weight in vae.encoder.parameters():
            weight.mul_(30)
    labels = torch.arange(40) % 2
    return profile(vae, tiny_data(40), labels, columns=[MARKED, *"bcd"], num_typical=1)


def _scan() -> Any:
    frame = pandas.DataFrame({MARKED: [0.5, 1.5, -2.25], "n": [1, 2, 3]})
    return scan(pyro_dvae.data.as_rows(frame))


def _explained() -> ExplainedRow:
    return ExplainedRow(2, tiny_data(1)[0], tiny_data(1)[0], torch.zeros(P))


# Every kind of object that a notebook shows as a table -> (how to build it, some of its rows).
TABLES: dict[str, tuple[Callable[[], Any], list[list[str]]]] = {
    "EpochRecord": (
        lambda: RECORD,
        [
            ["train elbo", "-1.250", "nats"],
            ["validation information", "0.1, 0.25", "nats"],
            ["is best", "yes", ""],
            ["seconds", "1.500", "s"],
        ],
    ),
    "Config": (
        lambda: Config(num_latents=20, prior="mixture:3"),
        [["num_latents", "20", "4"], ["prior", "'mixture:3'", "'uniform'"], ["seed", "0", ""]],
    ),
    "DiscreteVAE": (
        lambda: tiny_vae(event=(2, 2)),
        [["prior", f"UniformPrior(num_latents={D}, num_categories={K})", ""]],
    ),
    "Run": (
        _run,
        [
            ["parameters", "120"],
            ["num_latents", str(D)],
            ["data", f"DataRecord of {MARKED!r}: 3 train"],
        ],
    ),
    "Evaluation": (lambda: evaluate(tiny_vae(), tiny_data(3)), []),
    "SimpleModels": (lambda: simple_models(tiny_vae(), tiny_data(9), tiny_data(3)), []),
    "Refined": (lambda: refine(tiny_vae(), tiny_data(3)), []),
    "Prediction": (lambda: predict(make_vae(), tiny_data(3), 1), []),
    "Profile": (_profile, []),
    "GradientStatistics": (_gradients, []),
    "Scores": (
        lambda: Scores(torch.zeros(3), None, 0.5),
        [["values", "(3,) float64"], ["prior error", "0.5"]],
    ),
    "PreparedRows": (
        lambda: PreparedRows(tiny_data(3), TensorRows(tiny_data(3)), None, MARKED),
        [["name", MARKED]],
    ),
    "Filled": (lambda: Filled(tiny_data(3), tiny_data(3) > 2), [["values", "(3, 4) float64"]]),
    "ExplainedRow": (_explained, [["place", "2"], ["x", "(4,) float64"]]),
    "Scan": (_scan, [[MARKED, "-2.250", "1.500", "0", "normal"]]),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_notebook_shows_a_table(name: str) -> None:
    build, rows = TABLES[name]
    thing = build()
    assert type(thing).__name__ == name
    html = thing._repr_html_()
    assert MARKED not in html
    assert "tensor(" not in html
    cells = Cells(html)
    assert len(cells.rows) > 1
    for row in rows:
        assert row in cells.rows


def test_every_public_record_of_figures_has_a_table() -> None:
    classes = [getattr(pyro_dvae, name) for name in pyro_dvae.__all__]
    records = {
        each.__name__
        for each in classes
        if isinstance(each, type)
        and (dataclasses.is_dataclass(each) or hasattr(each, "_fields"))
        and not hasattr(each, "_repr_html_")
    }
    assert records == {"Terms", "TrainingState"}  # they hold tensors, and their texts are short


def test_tables_hold_the_figures() -> None:
    vae, x = make_vae(), tiny_data(6)
    refined = refine(vae, x)
    rows = {row[0]: row[1:3] for row in Cells(refined._repr_html_()).rows}
    assert rows["ELBO, refined"] == [f"{refined.elbo.mean():.3f}", "nats"]
    prediction = predict(vae, x, 1)
    rows = {row[0]: row[1:3] for row in Cells(prediction._repr_html_()).rows}
    assert rows["log score"] == [f"{prediction.log_score:.4g}", "nats per row"]
    found = _gradients()
    rows = {row[0]: row[1:3] for row in Cells(found._repr_html_()).rows}
    assert rows["cosine"] == [f"{found.cosine.value:.4g}", f"± {found.cosine.error:.2g}"]


def test_table_of_a_profile_has_the_categories_of_each_latent() -> None:
    found = _profile()
    cells = Cells(found._repr_html_())
    told = [d for d in range(D) if found.information[d] >= 0.01]
    assert told
    assert [caption.split()[0] for caption in cells.captions] == [f"z{d + 1}" for d in told]
    used = [[k, d] for d in told for k in range(K) if found.used[d, k]]
    body = [row for row in cells.rows if row[0] != "category"]
    assert [row[0] for row in body] == [str(k) for k, _ in used]
    for row, (k, d) in zip(body, used, strict=True):
        assert row[1] == f"{found.sizes[d, k]:,.0f}"
        assert row[4] == ", ".join(found.typical_rows(d, k))
        assert row[5:] == [f"{count:,.1f}" for count in found.class_counts[d, k]]


def test_images_are_shown() -> None:
    images = load_images("mnist-sample")
    html = images._repr_html_()
    Cells(html)
    source = re.search(r'src="data:image/png;base64,([^"]+)"', html)
    assert source is not None
    pixels = torch.tensor(np.asarray(Image.open(io.BytesIO(base64.b64decode(source[1])))))
    first = torch.cat(list(images.train[:12]), -1)
    assert torch.equal(pixels, first)
    assert isinstance(images, Images)


def test_a_figure_shows_itself() -> None:
    png = elbo_figure([RECORD], "")._repr_png_()  # type: ignore[attr-defined]
    picture = Image.open(io.BytesIO(png))
    assert picture.width > picture.height > 200
