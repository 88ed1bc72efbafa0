"""The page of `examples/browser` encodes as the run does, in chromium, with onnxruntime-web."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser.browsing import Browser, faults, overflow
from PIL import Image

from pyro_dvae import (
    Bernoulli,
    DiscreteVAE,
    LearnedPrior,
    MLPDecoder,
    MLPEncoder,
    Run,
    export_run,
    load_run,
    save_run,
)

pytestmark = pytest.mark.slow

ORT = os.environ.get("PDVAE_ORT", "")
"""The folder of the npm package onnxruntime-web."""
PAGE = Path(__file__).parents[2] / "examples/browser/index.html"


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, and prints nothing."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[tuple[str, Run]]:
    """The address of the page, and the run that it shows."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="the onnx extra is not installed")
    if not os.path.isdir(ORT):
        pytest.skip("onnxruntime-web is not here: npm install it, and set PDVAE_ORT to its folder")
    folder = tmp_path_factory.mktemp("page")
    (folder / "node_modules").mkdir()
    (folder / "node_modules/onnxruntime-web").symlink_to(Path(ORT).resolve())
    (folder / "index.html").write_bytes(PAGE.read_bytes())
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    event = (14, 14)
    vae = DiscreteVAE(
        MLPEncoder(event, 3, 4, (16,)),
        MLPDecoder(event, 3, 4, (16,)),
        LearnedPrior(3, 4),
        Bernoulli(),
    )
    save_run(folder / "run", vae.eval(), binarize="threshold")
    run = load_run(folder / "run")
    export_run(run, folder / "exported")
    pixels = np.zeros((14, 14), np.uint8)
    pixels[3:11, 6:9] = 255
    Image.fromarray(pixels).save(folder / "one.png")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html", run
        server.shutdown()


def code_of(run: Run, pixels: Any) -> str:
    x = torch.as_tensor(pixels >= 128, dtype=torch.float32)[None]
    with torch.no_grad():
        return " ".join(map(str, run.vae.mode(x).argmax(-1)[0].tolist()))


def pixels_of(page: Any, canvas: str, size: int) -> Any:
    """The red of each pixel of a canvas, (size, size)."""
    context = f"document.getElementById('{canvas}').getContext('2d')"
    data = page.evaluate(f"Array.from({context}.getImageData(0, 0, {size}, {size}).data)")
    return np.array(data).reshape(size, size, 4)[..., 0]


def test_the_page_encodes_decodes_and_samples(browse: Browser, served: tuple[str, Run]) -> None:
    address, run = served
    page = browse.open(address)
    status = page.get_by_role("status")
    empty, one = np.zeros((14, 14)), np.zeros((14, 14))
    one[3:11, 6:9] = 255
    status.filter(has_text=f"is {code_of(run, empty)}.").wait_for()
    page.locator("#file").set_input_files(run.folder.parent / "one.png")
    status.filter(has_text=f"is {code_of(run, one)}.").wait_for()
    assert code_of(run, one) != code_of(run, empty)
    with torch.no_grad():
        expected = 255 * run.vae.reconstruct(torch.as_tensor(one >= 128).float()[None])[0]
    page.wait_for_function("document.getElementById('mean').width === 14")
    shown = pixels_of(page, "mean", 14)
    assert np.abs(shown - expected.numpy()).max() <= 0.5 + 1e-2  # rounded to whole numbers
    page.get_by_role("button", name="Clear").click()
    status.filter(has_text=f"is {code_of(run, empty)}.").wait_for()
    box = page.locator("#draw").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 40, steps=8)
    page.mouse.up()
    drawn = pixels_of(page, "draw", 280)
    assert drawn[60:220, 135:145].min() == 255  # a stroke of 22 pixels
    assert drawn[:, :120].max() == 0
    page.get_by_role("button", name="Draw a code").click()
    status.filter(has_text="A code drawn from the prior.").wait_for()
    page.locator("#code select").first.select_option("3")
    status.filter(has_text="A code of your own.").wait_for()


@pytest.mark.parametrize(("screen", "scheme"), [("desk", "light"), ("phone", "dark")])
def test_everybody_can_use_the_page(
    browse: Browser, served: tuple[str, Run], screen: str, scheme: str
) -> None:
    page = browse.open(served[0], screen=screen, scheme=scheme)
    page.get_by_role("status").filter(has_text="The code of").wait_for()
    assert overflow(page) == 0
    assert faults(page) == []
