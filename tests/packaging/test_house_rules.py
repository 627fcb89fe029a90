"""Rules for the repository, checked on every tracked file."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = {
    ".csv",
    ".gz",
    ".idx",
    ".ipynb",
    ".json",
    ".npy",
    ".npz",
    ".onnx",
    ".png",
    ".safetensors",
    ".svg",
}
MAX_DATA_BYTES = 2_000_000


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listing.returncode != 0:
        pytest.skip(f"NOT A GIT CHECKOUT, so its files cannot be listed: {listing.stderr.strip()}")
    paths = [REPOSITORY / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def findings(paths: list[Path], *patterns: str) -> list[str]:
    """`file:line: text` of every line that matches. Files that are not text have no lines."""
    wanted = re.compile("|".join(patterns))
    found = []
    for path in paths:
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        name = path.relative_to(REPOSITORY)
        found += [f"{name}:{i}: {line}" for i, line in enumerate(lines, 1) if wanted.search(line)]
    return found


# Patterns are written so that they do not match themselves: this file is tracked, too.


def test_no_file_names_a_path_on_a_developers_machine(tracked: list[Path]) -> None:
    places = (r"(?<![\w.}])/[w]ork/", r"/[h]ome/\w+/", r"/[U]sers/\w+/", r"/[t]mp/bash_")
    assert findings(tracked, *places) == []


def test_the_product_does_not_reach_outside_its_repository(tracked: list[Path]) -> None:
    product = [
        p for p in tracked if p.relative_to(REPOSITORY).parts[0] not in ("tests", "benchmarks")
    ]
    assert findings(product, r"\.\./[s]hared") == []


def test_no_file_names_a_package_registry(tracked: list[Path]) -> None:
    assert findings(tracked, r"[p]ypi\.org", r"[p]ythonhosted", r"[d]ownload\.pytorch") == []


def test_no_file_has_a_todo(tracked: list[Path]) -> None:
    assert findings(tracked, r"\b[T]ODO\b", r"\b[F]IXME\b", r"\b[X]XX\b") == []


def test_tests_hold_errors_to_names_and_not_to_sentences(tracked: list[Path]) -> None:
    """`refuses` (tests/support/refusals.py) does; sentences stand in tests/wording.txt."""
    assert findings(tracked, r"[m]atch=\w?[\"'][^\"' ]+ [^\"' ]+ [^\"']") == []


def test_no_secret_is_shipped(tracked: list[Path]) -> None:
    secrets = (
        r"-----BEGIN [A-Z ]*PRIVATE KEY",
        r"\bA[K]IA[0-9A-Z]{16}\b",
        r"\bg[h][pousr]_[0-9A-Za-z]{36}\b",
        r"\bterrine_[0-9A-Za-z]+_[0-9A-Za-z_-]{43,}",
    )
    assert findings(tracked, *secrets) == []
    private = re.compile(r"(^|/)secrets/|\.(key|pem|sqlite\d?|env)$")
    assert [p for p in tracked if private.search(p.relative_to(REPOSITORY).as_posix())] == []


def test_shipped_data_is_small(tracked: list[Path]) -> None:
    sizes = {p.relative_to(REPOSITORY): p.stat().st_size for p in tracked if p.suffix in DATA}
    assert sum(sizes.values()) < MAX_DATA_BYTES, sizes


def test_the_licence_exists() -> None:
    licence = (REPOSITORY / "LICENSE").read_text()
    assert "Apache License" in licence
    assert "Version 2.0" in licence
    assert 'license = "Apache-2.0"' in (REPOSITORY / "pyproject.toml").read_text()
