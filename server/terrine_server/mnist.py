"""MNIST from the user's cache, or from a public mirror into it."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import httpx

URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
TIMEOUT = httpx.Timeout(20.0, connect=10.0)  # seconds without a byte
GZIP = 16 + zlib.MAX_WBITS
FILES = {
    "train-images-idx3-ubyte": (
        47_040_016,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte": (
        60_008,
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte": (
        7_840_016,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte": (
        10_008,
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}
"""Size and SHA-256 of each file when unpacked: mirrors compress them differently."""

Progress = Callable[[str, int, int | None], None]
"""Told a file's name, how many bytes have come, and how many will, where that is known."""


class FetchError(Exception):
    """MNIST cannot be had; the message says from where and why."""


def cache_directory() -> Path:
    """Where MNIST is kept: `terrine/mnist` in the user's cache directory (XDG)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return cache / "terrine" / "mnist"


def cached_mnist(directory: Path) -> bool:
    """Whether all four files are there, byte for byte."""
    return all(_intact(directory / name) for name in FILES)


def fetch_mnist(
    url: str, directory: Path, progress: Progress = lambda name, done, total: None
) -> None:
    """Download what is missing of MNIST's four `.gz` files below `url` and unpack it.

    A file appears under its name only when its digest is right. Raises FetchError.
    """
    base = url.rstrip("/") + "/"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with httpx.Client(timeout=TIMEOUT, follow_redirects=True) as http:
            for name in FILES:
                if not _intact(directory / name):
                    _fetch(http, f"{base}{name}.gz", directory / name, progress)
    except OSError as error:
        raise FetchError(f"{directory} cannot be written: {error.strerror or error}") from None


def _fetch(http: httpx.Client, url: str, path: Path, progress: Progress) -> None:
    size, digest = FILES[path.name]
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    unpack = zlib.decompressobj(GZIP)
    found, length, done = hashlib.sha256(), 0, 0
    try:
        with http.stream("GET", url) as reply, scratch.open("wb") as file:
            reply.raise_for_status()
            total = reply.headers.get("Content-Length", "")
            for packed in reply.iter_raw():
                done += len(packed)
                data = unpack.decompress(packed, size + 1 - length)
                length += len(data)
                found.update(data)
                file.write(data)
                progress(path.name, done, int(total) if total.isdigit() else None)
                if length > size:
                    break
        if length != size or found.hexdigest() != digest:
            raise FetchError(
                f"{url} is not MNIST: it unpacks to {'more than ' if length > size else ''}"
                f"{min(length, size):,} bytes with SHA-256 {found.hexdigest()[:16]}…, expected "
                f"{size:,} bytes with {digest[:16]}…. It was discarded"
            )
        scratch.replace(path)
    except httpx.HTTPStatusError as error:
        raise FetchError(f"{url} answers HTTP {error.response.status_code}") from None
    except httpx.TimeoutException:
        raise FetchError(f"{url} sends nothing for {TIMEOUT.read:g} seconds") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise FetchError(f"{url} cannot be read: {error or type(error).__name__}") from None
    except zlib.error:
        raise FetchError(f"{url} is not a gzip file") from None
    finally:
        scratch.unlink(missing_ok=True)


def _intact(path: Path) -> bool:
    size, digest = FILES[path.name]
    try:
        return path.stat().st_size == size and _sha256(path) == digest
    except OSError:
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
