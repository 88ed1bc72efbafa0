"""One browser for all tests of pages: playwright cannot be started twice in a process."""

from browser.browsing import browse as browse
from browser.browsing import chromium as chromium
