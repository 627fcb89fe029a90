"""Which code runs here: its version, digests of its files, and whether they are as installed."""

from __future__ import annotations

import base64
import hashlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("terrine_server", "terrine_protocol", "terrine_models", "terrine_client")
LIBRARIES = (
    "numpy",
    "scipy",
    "mpmath",
    "torch",
    "sqlalchemy",
    "psycopg",
    "cryptography",
    "fastapi",
)
"""Other code on which noise, prices, votes or the ledger rest."""


@dataclass(frozen=True)
class InstalledCode:
    """The code of this process's installation.

    `digests`: by package, the SHA-256 of lines `<SHA-256 of a file>  <path>`, by path, as
    `sha256sum` prints them. `altered`: files that are not those of the wheel; None if this is no
    installed wheel, which nothing can be held against.
    """

    version: str
    python: str
    digests: Mapping[str, str]
    libraries: Mapping[str, str]
    altered: tuple[str, ...] | None


@cache
def running() -> InstalledCode:
    """Return what runs here: read once in a process, as its modules were."""
    installed = distribution("terrine")
    return InstalledCode(
        version=installed.version,
        python=platform.python_version(),
        digests={name: _digest(name) for name in PACKAGES if find_spec(name) is not None},
        libraries=dict(_versions()),
        altered=_altered(installed),
    )


def _versions() -> Iterator[tuple[str, str]]:
    for name in LIBRARIES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def _digest(package: str) -> str:
    spec = find_spec(package)
    assert spec is not None  # noqa: S101 - looked for before
    assert spec.submodule_search_locations is not None  # noqa: S101 - a package
    directory = Path(spec.submodule_search_locations[0])
    lines = hashlib.sha256()
    files = (path for path in directory.rglob("*") if path.is_file())
    for path in sorted(files, key=lambda path: path.relative_to(directory).as_posix()):
        if "__pycache__" not in path.parts:
            name = path.relative_to(directory.parent).as_posix()
            lines.update(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n".encode())
    return lines.hexdigest()


def _altered(installed: Distribution) -> tuple[str, ...] | None:
    """Return the files that differ from the wheel's RECORD; None if it names none of ours."""
    recorded = [file for file in installed.files or () if file.hash and file.parts[0] in PACKAGES]
    if not recorded:
        return None
    found = []
    for file in recorded:
        assert file.hash is not None  # noqa: S101 - chosen above
        path = Path(str(file.locate()))
        digest = hashlib.new(file.hash.mode, path.read_bytes()).digest() if path.is_file() else b""
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            found.append(str(file))
    return tuple(found)
