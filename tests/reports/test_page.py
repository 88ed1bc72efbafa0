"""A page of a report: what it tells, and that it is one well-formed file that loads nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from reports.pages import Page

from pyro_dvae import evaluate, load_run
from pyro_dvae.data import open_source
from pyro_dvae.reports import html_report, write_report
from pyro_dvae.runs import start_run

SMALL = {
    "hidden": (8,),
    "num_latents": 2,
    "num_categories": 3,
    "estimator": "rloo",
    "prior": "uniform",
}
HOSTILE = "<script>alert('x')</script> & $y_1$"


def train(folder: Path, path: Path, **settings: object) -> Path:
    reading = {name: settings.pop(name) for name in ("labels", "ids") if name in settings}
    source = open_source(path, **reading)
    torch.set_default_dtype(torch.float32)
    with start_run(source, folder, **{**SMALL, "epochs": 3, **settings}) as training:
        for _ in training.epochs():
            pass
        training.finish()
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of images with two classes: dark and bright ones."""
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    labels = np.arange(120) % 2
    x = generator.integers(0, 100, (120, 4, 5), np.uint8) + (100 * labels[:, None, None]).astype(
        np.uint8
    )
    np.savez(folder / "x.npz", x=x, labels=labels)
    return train(folder / "run", folder / "x.npz", test=30, validation=20)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a table whose names are hostile to a page."""
    folder = tmp_path_factory.mktemp("table")
    generator = np.random.default_rng(0)
    kind = generator.integers(0, 2, 90)
    frame = pd.DataFrame(
        {
            HOSTILE: generator.normal(size=90) + 3 * kind,
            "level": np.where(kind == 1, '"><img src=x onerror=alert(1)>', "plain"),
            "width": generator.normal(size=90),
            "kind": np.where(kind == 1, "<b>one</b>", "two"),
        }
    )
    frame.to_csv(folder / "x.csv", index=False)
    return train(
        folder / "run", folder / "x.csv", labels="kind", likelihood="mixed", test=20, validation=10
    )


@pytest.fixture(scope="module")
def pages(images: Path, table: Path) -> dict[str, str]:
    torch.set_default_dtype(torch.float32)
    return {
        "images": html_report(images),
        "table": html_report(table),
        "both": html_report([images, table]),
    }


NAMES = ["images", "table", "both"]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_well_formed(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    elements = page.elements()
    ids = [e.attributes["id"] for e in elements if "id" in e.attributes]
    assert len(ids) == len(set(ids)) > 5
    links = [e.attributes["href"] for e in elements if e.attributes.get("href", "").startswith("#")]
    assert {link[1:] for link in links} <= set(ids)
    assert all(e.attributes["alt"] for e in elements if e.name == "img")
    drawings = [e for e in elements if e.name == "svg"]
    assert drawings
    assert all(e.attributes["role"] == "img" and e.attributes["aria-label"] for e in drawings)
    for each in page.root.all("table"):
        assert each.all("caption")[0].text
        assert all("scope" in e.attributes for e in each.all("th"))


@pytest.mark.parametrize("name", NAMES)
def test_headings_are_in_order(pages: dict[str, str], name: str) -> None:
    levels = [
        int(e.name[1]) for e in Page(pages[name]).elements() if re.fullmatch("h[1-6]", e.name)
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_loaded_from_elsewhere(pages: dict[str, str], name: str) -> None:
    for element in Page(pages[name]).elements():
        for attribute, value in element.attributes.items():
            if attribute in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
                assert value.startswith(("data:image/png;base64,", "#")), (element.name, value[:60])
        assert element.name not in ("link", "iframe", "object", "embed", "base")
    assert not re.search(r"https?:|@import|url\((?!#)|fetch\(|XMLHttp", pages[name])


@pytest.mark.parametrize("name", ["table", "both"])
def test_names_of_the_data_are_escaped(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    assert len(page.root.all("script")) == pages[name].count("<script")
    assert not any(any(a.startswith("on") for a in e.attributes) for e in page.elements())
    assert not page.root.all("b")
    assert HOSTILE in page.table("Profiles of the categories of z")


@pytest.mark.parametrize("name", ["images", "table"])
def test_figures_are_those_of_evaluate(
    pages: dict[str, str], request: pytest.FixtureRequest, name: str
) -> None:
    torch.set_default_dtype(torch.float32)
    run = load_run(request.getfixturevalue(name))
    x = run.data.splits().test
    assert x is not None
    scores = evaluate(run.vae, x, importance_samples=100, refine=5, seed=run.config.seed)
    rows = Page(pages[name]).table("Bounds and gaps")
    datum = "image" if name == "images" else "row"
    assert scores.log_marginal is not None
    for label, value in {
        "ELBO": scores.elbo,
        "ELBO, refined q(z|x)": scores.refined_elbo,
        "bound(100)": scores.importance_bound,
        "log p(x)": scores.log_marginal,
        "posterior gap": scores.posterior_gap,
        "family gap": scores.family_gap,
        "encoder gap": scores.encoder_gap,
    }.items():
        assert rows[label][0] == f"{value:.2f}", label
    parts = Page(pages[name]).table(f"The parts of the ELBO, in nats per {datum}")
    assert parts["= ELBO"][0] == f"{scores.elbo:.2f}"
    assert parts["KL(q(z|x) || p(z))"][0] == f"{scores.kl:.2f}"
    latents = Page(pages[name]).table("The latents")
    for d, information in enumerate(scores.information_per_latent):
        assert latents[f"z{d + 1}"][1] == f"{information:.3f}"


def test_standard_errors_are_those_over_the_data(images: Path, pages: dict[str, str]) -> None:
    torch.set_default_dtype(torch.float32)
    from pyro_dvae import datum_scores

    run = load_run(images)
    x = run.data.splits().test
    each = datum_scores(run.vae, x, bound="exact")
    error = float(each.std()) / len(each) ** 0.5
    assert Page(pages["images"]).table("Bounds and gaps")["log p(x)"][1] == f"{error:.2g}"


def test_a_folder_without_its_data(images: Path, tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    text = html_report(images, data_dir=tmp_path)
    assert "The data of the run were not found." in text
    page = Page(text)
    titles = [e.whole_text for e in page.root.all("h2")]
    assert "Samples" in titles
    assert "Codes to click through" in titles
    assert "Reconstructions" not in titles
    assert page.table("Settings of the run")["num_latents"][0] == "2"


def test_the_file_is_written_whole(images: Path, tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    write_report(images, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert text.rstrip().endswith("</html>")
    with pytest.raises(ValueError, match="at least one run"):
        html_report([])


pytestmark = pytest.mark.slow

Run = Callable[..., tuple[int, str, str]]


def test_the_command(pdvae: Run, images: Path, tmp_path: Path) -> None:
    status, out, _ = pdvae("report", images, "-o", "page.html")
    assert status == 0
    assert out.startswith("page.html: ")
    assert "pdvae fit --data" in (tmp_path / "page.html").read_text(encoding="utf-8")
    status, _, err = pdvae("report", images, "-o", "page.html")
    assert (status, "Use --force" in err) == (2, True)
    assert pdvae("report", images, "-o", "page.png")[0] == 2
