"""A real browser, Chromium, without a window; it has no business outside of the test's server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Return the path of a browser of this machine, or None."""
    given = os.environ.get("TERRINE_TEST_BROWSER")
    return given or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """Start the browser at `path`."""
    from playwright.sync_api import sync_playwright

    # Without a sandbox: it has none to offer in a container, and visits our own pages alone.
    options = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=options)
        yield started
        started.close()


def no_browser() -> str | None:
    """Return why no browser can be driven here, or None."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "NO PLAYWRIGHT: the pages are not looked at with a browser. pip install playwright"
    if chromium() is None:
        return (
            f"NO BROWSER ({', '.join(NAMES)}): the pages are not looked at with one here. "
            "apt-get install chromium, or name one in TERRINE_TEST_BROWSER."
        )
    return None
