"""Pages of reports in a real browser: what a user sees and clicks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser.browsing import SCHEMES, SCREENS, Browser, faults, overflow
from reports.made import NAMES, texts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> dict[str, Path]:
    """One file of each kind. Without a browser none is made."""
    folder = tmp_path_factory.mktemp("pages")
    for name, text in texts(tmp_path_factory).items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in NAMES}


def opened(page: Any) -> Any:
    """The page with all that a click opens."""
    for summary in page.locator("summary").all():
        summary.click()
    return page


@pytest.mark.parametrize(("name", "screen"), [("table", "phone"), ("both", "desk")])
def test_a_page_is_as_wide_as_the_screen(
    browse: Browser, files: dict[str, Path], name: str, screen: str
) -> None:
    page = browse.open(files[name], screen=screen)
    assert overflow(page) == 0
    assert overflow(opened(page)) == 0


@pytest.mark.parametrize(
    ("name", "screen", "scheme"),
    [
        ("images", "desk", "light"),
        ("images", "phone", "dark"),
        ("table", "desk", "dark"),
        ("both", "phone", "light"),
    ],
)
def test_everybody_can_use_a_page(
    browse: Browser, files: dict[str, Path], name: str, screen: str, scheme: str
) -> None:
    page = browse.open(files[name], screen=screen, scheme=scheme)
    assert overflow(page) == 0
    assert faults(opened(page)) == []
    assert overflow(page) == 0


def test_dark_and_light_pages_differ(browse: Browser, files: dict[str, Path]) -> None:
    colours = {}
    for scheme in SCHEMES:
        page = browse.open(files["images"], scheme=scheme)
        colours[scheme] = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('svg text')).fill]"
        )
    assert colours["light"] == ["rgb(255, 255, 255)", "rgb(27, 30, 35)"]
    assert colours["dark"] == ["rgb(20, 23, 27)", "rgb(232, 234, 237)"]


def pixels(page: Any) -> list[int]:
    """What the canvas of the page shows."""
    return page.evaluate(
        "(() => { const c = document.querySelector('canvas');"
        " return Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data); })()"
    )


@pytest.mark.parametrize("screen", SCREENS)
def test_codes_of_images_are_clicked_through(
    browse: Browser, files: dict[str, Path], screen: str
) -> None:
    page = browse.open(files["images"], screen=screen)
    box = page.locator(".explorer")
    seen = set()
    for first in range(3):
        box.get_by_role("group", name="z1").get_by_role("radio", name=str(first)).click()
        for second in range(3):
            box.get_by_role("group", name="z2").get_by_role("radio", name=str(second)).click()
            assert f"z = {first} {second};" in box.get_by_role("status").inner_text()
            assert box.get_by_role("img").first.get_attribute("aria-label") == (
                f"The decoded image of the code {first} {second}"
            )
            seen.add(tuple(pixels(page)))
    assert len(seen) == 9


def test_the_keyboard_chooses_a_code(browse: Browser, files: dict[str, Path]) -> None:
    page = browse.open(files["images"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    box = page.locator(".explorer")
    first = box.get_by_role("group", name="z1").get_by_role("radio", name="0")
    first.focus()
    first.press("Space")
    page.keyboard.press("ArrowRight")
    assert "z = 1 " in box.get_by_role("status").inner_text()


def test_the_code_of_a_datum_is_taken(browse: Browser, files: dict[str, Path]) -> None:
    page = browse.open(files["images"])
    box = page.locator(".explorer")
    for button in box.locator("button").all():
        code = button.get_attribute("data-code")
        button.click()
        chosen = [radio.input_value() for radio in box.locator("input:checked").all()]
        assert " ".join(chosen) == code
        assert f"z = {code};" in box.get_by_role("status").inner_text()


def test_codes_of_a_table_are_clicked_through(browse: Browser, files: dict[str, Path]) -> None:
    page = browse.open(files["table"])
    box = page.locator(".explorer")
    rows = set()
    for k in range(3):
        box.get_by_role("group", name="z1").get_by_role("radio", name=str(k)).click()
        rows.add(tuple(box.locator("td.decoded").all_inner_texts()))
    assert len(rows) == 3
    assert all("–" not in row for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_sections(browse: Browser, files: dict[str, Path], name: str) -> None:
    page = browse.open(files[name])
    for summary in page.locator("nav summary").all():
        summary.click()
    links = page.locator("nav a").all()
    assert len(links) > 8
    for link in links:
        link.click()
        target = page.locator(link.get_attribute("href"))
        assert target.inner_text() == link.inner_text()
        box = target.bounding_box()
        assert box is not None
        assert -1 <= box["y"] < 900


def test_without_scripts_the_codes_are_there(browse: Browser, files: dict[str, Path]) -> None:
    page = browse.open(files["images"], script=False)
    assert not page.locator(".explorer form").is_visible()
    page.locator(".explorer summary").click()
    assert page.locator("img.sprite").is_visible()
    assert page.get_by_role("table", name="Each latent varied alone").locator("img").count() == 6
