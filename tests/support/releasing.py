"""What makes a release: one version, its section in the changelog, files that can be rebuilt."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
HEADING = re.compile(r"^## (?:\[?(\d+\.\d+\.\d+)\]? [-–] (\d{4}-\d\d-\d\d)|(Unreleased))$")


class ReleaseError(Exception):
    """What is wrong, what was expected, and what to do."""


def declared_version() -> str:
    """The version that pyproject.toml declares: the only place that says it."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def check_changelog(text: str, version: str, tag: str | None) -> None:
    """Raise `ReleaseError` unless the changelog `text` covers `version`.

    Before its tag, a version may stand under "Unreleased". With the `tag`, which must be "v" and
    the version, it needs a dated section of its own, and nothing may be left under "Unreleased".
    """
    named: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("## "):
            heading = HEADING.match(line)
            if not heading:
                raise ReleaseError(
                    f"CHANGELOG.md has the heading {line!r}; write '## 1.2.3 - 2027-01-31' or "
                    "'## Unreleased'"
                )
            lines = named.setdefault(heading[1] or heading[3], [])
        else:
            lines.append(line)
    numbers = [tuple(map(int, name.split("."))) for name in named if name != "Unreleased"]
    if numbers != sorted(numbers, reverse=True):
        raise ReleaseError("CHANGELOG.md has its versions out of order: write the newest first")
    if tag is None:
        if not {version, "Unreleased"} & named.keys():
            raise ReleaseError(f"CHANGELOG.md has neither 'Unreleased' nor {version}: add one")
        return
    if tag != f"v{version}":
        raise ReleaseError(
            f"the tag is {tag}, and pyproject.toml says {version}: the tag must be v{version}"
        )
    if version not in named:
        raise ReleaseError(
            f"CHANGELOG.md has no section for {version}: name 'Unreleased' '## {version} - DATE'"
        )
    if any(line.strip() for line in named.get("Unreleased", [])):
        raise ReleaseError(
            f"CHANGELOG.md still has lines under 'Unreleased': move them to {version}"
        )


def build(tree: Path, out: Path, **variables: str) -> dict[str, bytes]:
    """Build the sdist, and the wheel from it, with the installed hatchling; return them by name."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree)
    done = subprocess.run(
        [str(part) for part in command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"{tree} cannot be built:\n{done.stdout}\n{done.stderr}")
    return {file.name: file.read_bytes() for file in out.glob("terrine-*")}


def unpack_elsewhere(sdist: Path, directory: Path) -> Path:
    """Unpack `sdist` under `directory`, as of another day and closed to others; return the tree."""
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    (tree,) = directory.iterdir()
    for path in tree.rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (1_234_567_890, 1_234_567_890))
    return tree
