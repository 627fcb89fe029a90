"""The synchronous client is made of the asynchronous one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from releasing import REPOSITORY

PACKAGE = REPOSITORY / "client" / "terrine_client"


def test_the_synchronous_client_is_made_of_the_other(tmp_path: Path) -> None:
    """If this fails: edit `async_client.py`, then run `make client`."""
    shutil.copy(PACKAGE / "async_client.py", tmp_path)
    script = REPOSITORY / "tests" / "release" / "sync_client.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    ruff = ["ruff", "format", "--quiet", "--config", str(REPOSITORY / "pyproject.toml")]
    subprocess.run([sys.executable, "-m", *ruff, str(tmp_path / "client.py")], check=True)
    assert (tmp_path / "client.py").read_text() == (PACKAGE / "client.py").read_text()
