"""A real browser for tests: Debian's chromium, driven by playwright, and the checks of axe-core.

A test takes the fixture `browse` and opens a page with it, as a desk or a phone would, by day or by
night. When the test ends, no page may have written an error to the console.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("PDVAE_CHROMIUM") or shutil.which("chromium")
AXE = os.environ.get("PDVAE_AXE", "")
"""The file `axe.min.js` of the npm package axe-core."""
SCREENS = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
SCHEMES = ("light", "dark")


class Browser:
    """A browser, and what its pages wrote to the console.

    Args:
        chromium: as playwright launched it.
    """

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium
        self._contexts: list[Any] = []
        self.errors: list[str] = []

    def open(
        self,
        address: str | Path,
        *,
        screen: str = "desk",
        scheme: str = "light",
        script: bool = True,
    ) -> Any:
        """Open a page.

        Args:
            address: a file, or an address such as http://127.0.0.1:7860.
            screen: a name in `SCREENS`.
            scheme: "light" or "dark".
            script: whether the page may run scripts.

        Returns:
            The page of playwright.
        """
        context = self._chromium.new_context(
            viewport=SCREENS[screen],
            color_scheme=scheme,
            java_script_enabled=script,
            has_touch=screen == "phone",
        )
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", self._told)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(address.as_uri() if isinstance(address, Path) else address)
        return page

    def _told(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def close(self) -> None:
        """Close all pages."""
        for context in self._contexts:
            context.close()
        self._contexts = []


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Chromium as playwright drives it; tests are skipped where one of the two is missing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not here: pip install '.[browser]'"
    )
    if CHROMIUM is None:
        pytest.skip("chromium is not here: apt-get install chromium, or set PDVAE_CHROMIUM")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def browse(chromium: Any) -> Iterator[Browser]:
    """A browser whose pages must not write an error to the console."""
    browser = Browser(chromium)
    yield browser
    browser.close()
    assert browser.errors == []


def overflow(page: Any) -> int:
    """How many pixels of a page lie right of the screen, so that it scrolls to the side."""
    return page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


def faults(page: Any) -> list[str]:
    """What axe-core calls serious or critical in a page, one line per element.

    The test is skipped where axe-core is missing.
    """
    if not os.path.isfile(AXE):
        pytest.skip("axe-core is not here: npm install axe-core, and set PDVAE_AXE to axe.min.js")
    page.evaluate(Path(AXE).read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']}: {json.dumps(node['target'])} {node['failureSummary']}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
