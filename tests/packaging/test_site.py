"""The documentation makes a site without a warning: pages are listed, links lead somewhere."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.documents import REPOSITORY
from support.processes import run_program

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        find_spec("sphinx") is None, reason="NO SPHINX: install the extra `docs` to check the site."
    ),
]


def test_every_page_is_listed_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    done = run_program(
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-b",
        "dummy",
        "-c",
        "docs/site",
        ".",
        tmp_path,
        cwd=REPOSITORY,
    )
    assert (done.returncode, done.stderr) == (0, ""), "a new page is listed in docs/index.md"
