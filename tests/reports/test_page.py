"""A page of a report: what it tells, and that it is one well-formed file that loads nothing."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from reports.made import HOSTILE, NAMES, image_run, runs, texts
from reports.pages import Element, Page

from pyro_dvae import datum_scores, evaluate, load_run
from pyro_dvae.reports import html_report, page, write_report
from pyro_dvae.reports.sections.overview import overview
from pyro_dvae.runs import decoded_rows


@pytest.fixture(autouse=True)
def _single_precision(clean_state: None) -> None:
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs(tmp_path_factory)["images"]


@pytest.fixture
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs(tmp_path_factory)["table"]


@pytest.fixture
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return texts(tmp_path_factory)


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
    assert HOSTILE in page.table("Profiles of the categories k of z")


@pytest.mark.parametrize("name", ["images", "table"])
def test_figures_are_those_of_evaluate(
    pages: dict[str, str], request: pytest.FixtureRequest, name: str
) -> None:
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
    run = load_run(images)
    x = run.data.splits().test
    each = datum_scores(run.vae, x, bound="exact")
    error = float(each.std()) / len(each) ** 0.5
    assert Page(pages["images"]).table("Bounds and gaps")["log p(x)"][1] == f"{error:.2g}"


def picture(element: Element) -> np.ndarray:
    """The pixels of an image of the page."""
    data = element.attributes["src"].removeprefix("data:image/png;base64,")
    return np.array(Image.open(io.BytesIO(base64.b64decode(data))).convert("L"))


def test_categories_are_the_means_of_the_training_data(images: Path, pages: dict[str, str]) -> None:
    run = load_run(images)
    part = run.data.splits().part("train")
    q = run.encode("train", probabilities=True).double()  # (N, D, K)
    labels = part.labels
    assert labels is not None
    table = Page(pages["images"]).element("Categories of latent z1")
    lines = [line for line in table.all("tr") if line.all("td")]
    assert len(lines) == int((q[:, 0].sum(0) >= 0.5).sum())
    for line in lines:
        k = int(line.all("th")[0].text)
        share, mean, typical, classes = line.all("td")
        weight = q[:, 0, k]
        assert share.text == f"{100 * float(weight.mean()):.1f} %"
        expected = torch.einsum("n,nhw->hw", weight, part.values.double()) / weight.sum()
        assert np.abs(picture(mean.all("img")[0]) - expected.numpy()).max() <= 1
        for image in typical.all("img"):
            seen = torch.from_numpy(picture(image))
            n = int((part.values == seen).flatten(1).all(1).nonzero()[0])
            assert weight[n] > weight.mean()
        bright = 100 * float(weight[labels == 1].sum() / weight.sum())
        assert (f"1 ({bright:.0f} %)" in classes.text) == (bright >= 0.5)


def test_the_most_surprising_data_come_first(images: Path, pages: dict[str, str]) -> None:
    run = load_run(images)
    x = run.data.splits().test
    scores = datum_scores(run.vae, x, bound="exact")
    rows = Page(pages["images"]).table("The most surprising images")
    shown = [cells[0] for cells in list(rows.values())[1:]]
    assert shown == [f"{value:.1f}" for value in scores.sort().values[: len(shown)].tolist()]
    stored = run.data.splits().stored["test"].index[scores.argmin()]  # type: ignore[attr-defined]
    assert list(rows)[1] == str(int(stored))


def test_all_codes_are_in_the_page(images: Path, pages: dict[str, str]) -> None:
    run = load_run(images)
    page = Page(pages["images"])
    (sprite,) = [e for e in page.root.all("img") if "sprite" in e.attributes["class"]]
    whole = picture(sprite) / 255
    for first in range(3):
        for second in range(3):
            z = torch.eye(3)[[first, second]][None]
            with torch.no_grad():
                mean = run.vae.decode(z).mean[0].numpy()
            tile = whole[4 * first : 4 * first + 4, 5 * second : 5 * second + 5]
            assert np.abs(tile - mean).max() < 1 / 16  # 32 shades are kept
    (box,) = page.root.all("form")
    assert box.attributes["aria-label"] == "Choose a code"
    data = json.loads(page.root.all("script")[0].text)
    codes = run.encode("test")
    assert sum(data["counts"]) == data["total"] == len(codes)
    assert data["counts"][5] == int((codes == torch.tensor([1, 2])).all(1).sum())


def test_rows_of_all_codes_are_in_the_page(table: Path, pages: dict[str, str]) -> None:
    run = load_run(table)
    data = json.loads(Page(pages["table"]).root.all("script")[0].text)
    codes = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    made = list(decoded_rows(run, codes).cells)
    for row, cells in zip(data["rows"], made, strict=True):
        assert row == [cell if isinstance(cell, str) else f"{cell:.4g}" for cell in cells]


def test_profiles_of_a_table_are_those_of_profile(table: Path, pages: dict[str, str]) -> None:
    found = load_run(table).profile("train").with_classes()
    rows = Page(pages["table"]).table("Profiles of the categories k of z1")
    used = found.largest(0)
    assert rows["column"] == ["all rows", *map(str, used)]
    assert rows["share of rows"][1:] == [f"{100 * found.shares[0, k]:.1f} %" for k in used]
    for i, feature in enumerate(found.features):
        if str(feature) in rows:
            means = [found.means[0, k, i].item() for k in used]
            level = feature.level is not None
            texts = [f"{100 * mean:.0f} %" if level else f"{mean:.3g}" for mean in means]
            assert rows[str(feature)][1:] == texts
    assert {"width", "level=plain", "kind=two"} <= rows.keys()


def test_runs_are_compared_datum_by_datum(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "SECTIONS", ())
    other = image_run(tmp_path / "other", seed=1, num_categories=4)
    folders = [images, other]
    each = []
    for folder in folders:
        run = load_run(folder)
        each.append(datum_scores(run.vae, run.data.splits().test))
    best = int(each[1].mean() > each[0].mean())
    told = Page(html_report(folders))
    rows = told.table("The runs, the best ELBO first")
    assert list(rows)[1] == str(folders[best])
    difference = each[1 - best] - each[best]
    error = float(difference.std()) / len(difference) ** 0.5
    cells = rows[str(folders[1 - best])]
    assert cells[0] == f"{float(each[1 - best].mean()):.2f}"
    assert cells[2:4] == [f"{float(difference.mean()):.2f}", f"{error:.2g}"]
    settings = told.table("Settings that differ")
    assert settings.keys() == {"setting", "seed", "num_categories"}


def test_runs_of_other_data_are_not_compared(pages: dict[str, str], table: Path) -> None:
    text = Page(pages["both"]).root.whole_text
    assert text.count("has other data than the first: the two cannot be compared.") == 1


def test_a_folder_without_its_data(images: Path, tmp_path: Path) -> None:
    text = html_report(images, data_dir=tmp_path)
    assert "The data of the run were not found." in text
    page = Page(text)
    titles = [e.whole_text for e in page.root.all("h2")]
    assert "Samples" in titles
    assert "Codes to click through" in titles
    assert "Reconstructions" not in titles
    assert page.table("Settings of the run")["num_latents"][0] == "2"


def test_a_section_that_fails_is_named(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def samples(reported: Any) -> None:
        raise ValueError("Expected <x>; got y.")

    monkeypatch.setattr(page, "SECTIONS", (overview, samples))
    text = html_report(images)
    assert "This section was left out: Expected &lt;x&gt;; got y." in text
    assert [e.text for e in Page(text).root.all("h2")] == ["What was trained", "Samples"]


def test_the_file_is_written_whole(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "SECTIONS", (overview,))
    write_report(images, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert text.rstrip().endswith("</html>")
    with pytest.raises(ValueError, match="at least one run"):
        html_report([])


pytestmark = pytest.mark.slow

Run = Callable[..., tuple[int, str, str]]


def test_the_command(
    pdvae: Run, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "SECTIONS", (overview,))
    status, out, _ = pdvae("report", images, "-o", "page.html")
    assert status == 0
    assert out.startswith("page.html: ")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.search(r"pdvae fit(?: \\\n)?\s+--data", text)  # a long path begins a line
    status, _, err = pdvae("report", images, "-o", "page.html")
    assert (status, "Use --force" in err) == (2, True)
    assert pdvae("report", images, "-o", "page.png")[0] == 2
