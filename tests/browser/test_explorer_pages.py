"""The page of the explorer in a real browser: what a user chooses, draws, writes and walks."""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from browser.browsing import Browser, faults, overflow
from reports.made import runs, train

from pyro_dvae.runs import load_run

# Gradio and what it brings warn of one another.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

TABS = ("Choose", "Encode", "Walk", "Sample")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of a page of images, of one of a table, and of one of many latents given y."""
    pytest.importorskip("gradio", reason="gradio is not here: pip install '.[explore]'")
    from pyro_dvae.explorer import serve

    torch.set_default_dtype(torch.float32)
    folders = runs(tmp_path_factory)
    images = folders["images"].parent
    wide = {"prior": "conditional", "num_latents": 64, "num_categories": 5}
    many = train(images / "many", images / "x.npz", test=30, validation=20, **wide)
    pages = {
        name: serve(load_run(folder), port=None)
        for name, folder in {**folders, "many": many}.items()
    }
    yield {name: page.local_url for name, page in pages.items()}
    for page in pages.values():
        page.close(verbose=False)


class Pages:
    """Pages that stay open from test to test, because a page of Gradio takes seconds to load.

    A test finds a page as the one before has left it, so it enters all that it looks at.
    """

    def __init__(self, browser: Browser, addresses: dict[str, str]) -> None:
        self.browser, self.addresses = browser, addresses
        self.asked: list[str] = []
        self._pages: dict[Any, Any] = {}

    def visit(self, name: str, tab: str, *, person: int = 1, **how: Any) -> Any:
        """A page at one of its tabs; each person has one of their own."""
        key = (name, person, *sorted(how.items()))
        if key not in self._pages:
            page = self.browser.open("about:blank", **how)
            page.on("request", lambda request: self.asked.append(request.url))
            page.set_default_timeout(10_000)
            page.goto(self.addresses[name])
            self._pages[key] = page
        self._pages[key].get_by_role("tab", name=tab).click()
        return self._pages[key]


@pytest.fixture(scope="module")
def pages(chromium: Any, served: dict[str, str]) -> Iterator[Pages]:
    """The pages of all tests."""
    browser = Browser(chromium)
    yield Pages(browser, served)
    browser.close()


@pytest.fixture
def visit(pages: Pages) -> Any:
    """`Pages.visit`; no page may ask another server, or write an error to the console."""
    yield pages.visit
    own = (*pages.addresses.values(), "data:", "blob:", "about:")
    assert [url for url in pages.asked if not url.startswith(own)] == []
    assert pages.asked
    errors, pages.browser.errors = pages.browser.errors, []
    assert errors == []


def answered(page: Any, act: Any) -> None:
    """Do something, and wait until its answers are there."""
    with page.expect_response("**/gradio_api/run/**", timeout=10_000) as found:
        act()
    found.value.finished()
    page.wait_for_timeout(200)


@pytest.mark.parametrize(
    ("name", "screen", "scheme"),
    [
        ("images", "phone", "light"),
        ("table", "phone", "dark"),
        ("table", "desk", "light"),
        ("many", "phone", "dark"),
    ],
)
def test_everybody_can_use_all_tabs(visit: Any, name: str, screen: str, scheme: str) -> None:
    page = visit(name, TABS[0], screen=screen, scheme=scheme)
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightest = max(map(int, re.findall(r"\d+", colour)[:3]))
    assert brightest < 50 if scheme == "dark" else brightest > 200
    for tab in TABS:
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(200)
        assert overflow(page) <= 0, tab
        assert faults(page) == [], tab


def category(page: Any, latent: str, k: int) -> Any:
    """The button of a category of a latent."""
    return page.get_by_role("group", name=latent, exact=True).get_by_role("radio").nth(k)


def source(page: Any, alt: str) -> str:
    return page.get_by_role("img", name=alt).locator("visible=true").first.get_attribute("src")


def test_categories_are_chosen(visit: Any) -> None:
    page = visit("images", "Choose", screen="phone", scheme="light")
    seen = set()
    for k in range(3):
        box = category(page, "z1", k)
        if box.is_checked():
            continue
        before = source(page, "mean of p(x|z)")
        answered(page, box.click)
        seen |= {before, source(page, "mean of p(x|z)")}
    assert len(seen) == 3


def test_values_of_a_table_are_chosen(visit: Any) -> None:
    page = visit("table", "Choose", screen="desk", scheme="light")
    seen = set()
    for k in (0, 1, 2, 0):
        box = category(page, "z2", k)
        if not box.is_checked():
            answered(page, box.click)
        seen.add(page.locator(".told:visible").inner_text())
    assert len(seen) == 3
    assert "<script>alert('x')</script>" in seen.pop()


def figures(page: Any) -> dict[str, float]:
    """The ELBO and its parts."""
    rows = page.get_by_role("table", name="The ELBO and its parts").locator("tbody tr").all()
    return {
        row.locator("th").inner_text(): float(row.locator("td").first.inner_text()) for row in rows
    }


def draw(page: Any) -> None:
    """A line from the left to the right of the pad, with the pointer."""
    box = page.locator("canvas.pad").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 10, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 10, y, steps=4)
    answered(page, page.mouse.up)


def test_an_image_is_drawn(visit: Any) -> None:
    page = visit("images", "Encode", screen="phone", scheme="light")
    answered(page, page.get_by_role("button", name="Clear").click)
    blank = figures(page)
    draw(page)
    drawn = figures(page)
    assert drawn != blank
    assert drawn["ELBO"] <= drawn["log p(x)"]
    parts = ("E_q[log p(x|z)]", "E_q[log p(z)]", "entropy of q(z|x)")
    assert sum(drawn[name] for name in parts) == pytest.approx(drawn["ELBO"], abs=0.02)
    exact = page.get_by_role("table", name="q(z_d = k|x)").locator("tr", has_text="exact")
    for row in exact.all():
        q = [float(cell.inner_text()) for cell in row.locator("td").all()]
        assert sum(q) == pytest.approx(1, abs=0.02)


def test_an_image_is_uploaded(visit: Any, tmp_path: Path) -> None:
    from PIL import Image

    page = visit("images", "Encode", screen="desk", scheme="light")
    answered(page, page.get_by_role("button", name="Clear").click)
    before = figures(page)
    Image.new("RGB", (500, 400), "white").save(tmp_path / "white.png")
    chooser = page.locator("#pad input[type=file]")
    answered(page, lambda: chooser.set_input_files(tmp_path / "white.png"))
    assert figures(page) != before
    (tmp_path / "no.png").write_bytes(b"no image")
    chooser.set_input_files(tmp_path / "no.png")
    page.get_by_text("Expected an image that the browser can open").wait_for()


def test_a_class_is_chosen(visit: Any) -> None:
    page = visit("many", "Encode")
    title = page.locator("caption:visible", has_text="given the class")
    known = title.inner_text()
    before = figures(page)
    chosen = "0" if known.endswith("1") else "1"
    for choice, expected in (
        (chosen, f"The ELBO and its parts, given the class {chosen}"),
        ("of the datum", known),
    ):
        page.get_by_label("Class y of p(z|y)").locator("visible=true").click()
        option = page.get_by_role("option", name=choice, exact=True)
        answered(page, option.click)
        title.filter(has_text=expected).wait_for()
        assert (figures(page) == before) == (choice == "of the datum")
    draw(page)  # a drawing has no class
    title.filter(has_text="given the class 0").wait_for()


def test_pictures_stay_in_sight_beside_many_latents(visit: Any) -> None:
    page = visit("many", "Choose", screen="phone", scheme="dark")
    last = page.get_by_role("spinbutton", name=re.compile("z64"))
    last.scroll_into_view_if_needed()
    before = source(page, "mean of p(x|z)")
    box = page.get_by_role("img", name="mean of p(x|z)").bounding_box()
    assert 0 <= box["y"] < 200
    value = int(last.input_value())
    last.fill(str((value + 1) % 5))
    answered(page, lambda: last.press("Tab"))
    assert source(page, "mean of p(x|z)") != before


def test_a_row_is_written(visit: Any) -> None:
    page = visit("table", "Encode", screen="desk", scheme="light")
    width = page.get_by_label("width")
    assert float(width.input_value()) != 0  # that of the first datum
    before = figures(page)
    width.fill("-9")
    answered(page, lambda: width.press("Enter"))
    assert figures(page)["ELBO"] < before["ELBO"]
    width.fill("wide")
    answered(page, lambda: width.press("Enter"))
    alert = page.get_by_role("alert").locator("visible=true")
    assert "Expected a number in the column width; got 'wide'" in alert.inner_text()
    answered(page, page.get_by_role("button", name="Take the datum").click)
    assert figures(page) == before
    assert page.get_by_role("alert").locator("visible=true").count() == 0
    assert width.input_value() not in ("wide", "")


def test_a_phone_shows_what_is_wrong_beside_the_cell(visit: Any) -> None:
    page = visit("table", "Encode", screen="phone", scheme="dark")
    width = page.get_by_label("width")
    width.scroll_into_view_if_needed()
    width.fill("wide")
    answered(page, lambda: width.press("Enter"))
    page.mouse.wheel(0, -5000)
    box = page.get_by_role("alert").locator("visible=true").bounding_box()
    assert 400 < box["y"] < box["y"] + box["height"] <= 844
    place = page.locator(".block.alert").locator("visible=true")
    assert place.evaluate("each => getComputedStyle(each).position") == "fixed"
    assert faults(page) == []


@pytest.mark.parametrize("name", ["images", "table"])
def test_a_walk_goes_code_by_code(visit: Any, name: str) -> None:
    page = visit(name, "Walk", screen="desk", scheme="light")
    start, end = page.get_by_label("Start: a code"), page.get_by_label("End: a code")
    start.fill("0 0")  # as a paste does, without a key
    answered(page, start.blur)
    end.fill("2 ")
    answered(page, lambda: end.press("1"))
    shown = page.locator("figcaption:visible, .told:visible thead th:not(:first-child)")
    texts = " / ".join(" ".join(text.split()) for text in shown.all_inner_texts())
    for step in ("start", "z1 changed", "z2 changed", "0 0", "2 0", "2 1"):
        assert step in texts
    end.fill("2 ")
    answered(page, lambda: end.press("9"))
    assert "got 9" in page.get_by_role("alert").locator("visible=true").inner_text()


def test_what_is_encoded_is_walked_and_varied(visit: Any) -> None:
    page = visit("images", "Encode", screen="desk", scheme="light")
    page.get_by_label("Number of a datum").fill("3")
    answered(page, page.get_by_role("button", name="Take the datum").click)
    code = page.get_by_label("The most probable code").input_value()
    answered(page, page.get_by_role("button", name="End a walk here").click)
    answered(page, page.get_by_role("button", name="Vary this code").click)
    page.get_by_role("tab", name="Walk").click()
    assert page.get_by_label("End: a code").input_value() == code
    page.get_by_role("tab", name="Choose").click()
    chosen = page.locator("input[type=radio]:checked:visible").all()
    assert " ".join(each.input_value() for each in chosen) == code


def test_samples_depend_on_their_seed(visit: Any) -> None:
    page = visit("images", "Sample", screen="desk", scheme="light")
    pictures = page.locator(".views:visible img")
    assert pictures.count() == 16

    def shown(seed: int) -> list[str]:
        page.get_by_label("Seed", exact=True).fill(str(seed))
        answered(page, page.get_by_role("button", name="Sample", exact=True).click)
        return [each.get_attribute("src") for each in pictures.all()]

    first = shown(1)
    assert shown(2) != first
    assert shown(1) == first


def test_two_people_use_a_page_at_once(visit: Any) -> None:
    how = {"screen": "desk", "scheme": "light"}
    one, other = (visit("images", "Choose", person=i, **how) for i in (1, 2))
    for k in (0, 2):
        for page, chosen in ((one, k), (other, (k + 1) % 3)):
            box = category(page, "z1", chosen)
            if not box.is_checked():
                answered(page, box.click)
        assert source(one, "mean of p(x|z)") != source(other, "mean of p(x|z)")
    before = source(other, "mean of p(x|z)")
    answered(one, category(one, "z1", 0).click)
    assert source(other, "mean of p(x|z)") == before


# --- What a page could send ---


def ask(url: str, path: str, body: bytes, **headers: str) -> tuple[int, str]:
    """The status and the text of an answer to a POST."""
    own = {"content-type": "application/json", **headers}
    request = urllib.request.Request(url + path, data=body, headers=own)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_bad_payloads_do_no_harm(served: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    url = served["images"]
    file = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
    web = {"path": "x", "url": "http://127.0.0.1:1/x", "meta": {"_type": "gradio.FileData"}}
    values: list[Any] = [None, True, -1, 1e308, 10**18, "", "x" * 10_000, "/etc/passwd", [], [0, 1]]
    deep = b'{"data": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    for name in ("decode", "encode", "encode_datum", "walk", "sample", "predict", "nothing"):
        path = f"gradio_api/run/{name}"
        for value in values:
            for number in (1, 2, 3, 4):
                status, text = ask(url, path, json.dumps({"data": [value] * number}).encode())
                assert status in (200, 400), (name, value)
                assert "root:" not in text
                assert "Traceback" not in text
        for bad in (file, web, [file], [[0]], [web]):
            assert ask(url, path, json.dumps({"data": [bad, 0, 0]}).encode())[0] == 400
        for body in (b"", b"{", b"[]", b"\xff", b'{"data": 1}', b'{"data": [NaN]}', deep):
            assert ask(url, path, body)[0] == 400
    for number in (None, -1, 10**6, 1.0, True, "decode", [0]):
        body = json.dumps({"data": [0, 2, 1], "fn_index": number}).encode()
        assert ask(url, "gradio_api/run/predict", body)[0] == 400
    for length in (0, 1, 2, 4, 1000):  # it takes 3 values
        assert (
            ask(url, "gradio_api/run/decode", json.dumps({"data": [0] * length}).encode())[0] == 400
        )
    assert ask(url, "gradio_api/run/decode", b"{}", **{"content-length": "1000000"})[0] == 413
    status, text = ask(url, "gradio_api/run/decode", json.dumps({"data": [0, 2, 1]}).encode())
    assert status == 200
    assert "data:image/png" in text
    assert "Traceback" not in capfd.readouterr().err


def test_clients_that_send_nothing_keep_nobody_waiting(served: dict[str, str]) -> None:
    url = served["images"]
    address = urllib.parse.urlsplit(url)
    lines = ("POST /gradio_api/run/decode HTTP/1.1", f"Host: {address.netloc}", "Content-Length: 9")
    head = "\r\n".join([*lines, "", ""])
    with ExitStack() as clients:
        for _ in range(40):
            slow = socket.create_connection((address.hostname, address.port))
            clients.callback(slow.close)
            slow.sendall(head.encode())
        assert ask(url, "gradio_api/run/decode", b'{"data": [0, 2, 1]}')[0] == 200


def test_nothing_but_questions_gets_through(served: dict[str, str]) -> None:
    url = served["images"]
    for path in (
        "upload",
        "queue/join",
        "component_server",
        "reset",
        "process_recording",
        "call/x",
    ):
        assert ask(url, f"gradio_api/{path}", b'{"data": []}')[0] == 404
    for path in (
        "gradio_api/file=/etc/passwd",
        "gradio_api/heartbeat/../file=/etc/passwd",
        "gradio_api/proxy=http://127.0.0.1/",
        "gradio_api/queue/data?session_hash=x",
        "monitoring",
        "static/../../../etc/passwd",
        "assets/%2e%2e/%2e%2e/etc/passwd",
        "svelte/%2fetc%2fpasswd",
    ):
        with pytest.raises(urllib.error.HTTPError, match=r"40[34]"):
            urllib.request.urlopen(url + path, timeout=30)
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    body = b'{"data": [0, 0, 0]}'
    assert ask(url, "gradio_api/run/decode", body, host="evil.example")[0] == 403


def test_memory_does_not_grow(served: dict[str, str]) -> None:
    url = served["images"]
    digits = base64.b16encode(bytes(range(20))).decode()

    def question(i: int) -> None:
        name, data = [
            ("decode", [i, i % 3, 1]),
            ("encode", [digits, None, i]),
            ("walk", ["0 0", "2 2"]),
            ("sample", [100, i, "", "all"]),
        ][i % 4]
        session = {"session_hash": f"s{i}", "data": data}
        status, _ = ask(url, f"gradio_api/run/{name}", json.dumps(session).encode())
        assert status in (200, 503)

    def size() -> int:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
        return pages * resource.getpagesize()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(question, range(100)))
        before = size()
        list(pool.map(question, range(150)))
    assert size() - before < 10e6
