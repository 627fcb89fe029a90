"""MNIST in the user's cache, downloaded and checked by pooch."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from contextlib import nullcontext
from pathlib import Path

import pooch
from requests import HTTPError, RequestException
from rich.progress import Progress

TIMEOUT = (10.0, 20.0)
"""Seconds to connect, and seconds without a byte."""
RETRIES = 1
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
"""Size and SHA-256 of each file, unpacked, because mirrors compress them differently."""

pooch.get_logger().setLevel("WARNING")  # the progress bar shows the downloads


class FetchError(Exception):
    """MNIST cannot be downloaded; the message says from where and why."""


def cache_directory() -> Path:
    """Return MNIST's directory: `terrine/mnist` in the user's cache directory (XDG)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return cache / "terrine" / "mnist"


def cached_mnist(directory: Path) -> bool:
    """Whether all four files exist with the right digests."""
    try:
        return all(pooch.file_hash(directory / name) == FILES[name][1] for name in FILES)
    except OSError:
        return False


def fetch_mnist(url: str, directory: Path, bar: Progress) -> None:
    """Download those of MNIST's four `.gz` files that are missing, from `url`, and unpack them.

    A file gets its name only if its digest is right. Raises FetchError.
    """
    base = url.rstrip("/") + "/"
    store = pooch.create(
        path=directory,
        base_url=base,
        registry={name: digest for name, (_, digest) in FILES.items()},
        urls={name: f"{base}{name}.gz" for name in FILES},
        retry_if_failed=RETRIES,
    )
    for name, (size, _) in FILES.items():
        source = store.get_url(name)
        try:
            store.fetch(name, downloader=_Unpacked(size, _Meter(bar, name)))
        except HTTPError as error:
            status = str(error).partition(" for url")[0]
            raise FetchError(f"{source} responded with HTTP {status}") from None
        except RequestException as error:
            raise FetchError(f"{source} cannot be read: {_reason(error)}") from None
        except ValueError as error:
            raise FetchError(f"{source} is not MNIST: {error}") from None
        except OSError as error:
            reason = error.strerror or error
            raise FetchError(f"{directory} cannot be written: {reason}") from None


class _Unpacked:
    """Downloads a file for pooch and writes its unpacked content, at most `size` bytes.

    If the server declares gzip as a Content-Encoding, requests has already unpacked the file.
    """

    def __init__(self, size: int, meter: _Meter) -> None:
        self.size = size
        self.download = pooch.HTTPDownloader(meter, chunk_size=2**16, timeout=TIMEOUT)

    def __call__(self, url: str, output: str, _: pooch.Pooch) -> None:
        with tempfile.TemporaryFile() as sent:
            self.download(url, sent, None)
            sent.seek(0)
            packed = sent.read(2) == b"\x1f\x8b"
            sent.seek(0)
            try:
                with gzip.open(sent) if packed else nullcontext(sent) as file:
                    data = file.read(self.size + 1)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise ValueError(f"it cannot be unpacked: {error}") from None
        if len(data) > self.size:
            raise ValueError(f"it holds more than {self.size:,} bytes")
        Path(output).write_bytes(data)


class _Meter:
    """The progress of one file, as pooch reports it."""

    def __init__(self, bar: Progress, name: str) -> None:
        self.bar, self.name, self.total = bar, name, 0
        self.task = bar.add_task(name, total=None, visible=False)

    def update(self, step: int) -> None:
        self.bar.update(self.task, advance=step, total=self.total or None, visible=True)

    def reset(self) -> None:
        self.bar.reset(self.task)

    def close(self) -> None:
        pass


def _reason(error: RequestException) -> str:
    """Return the innermost reason in the errors that requests and urllib3 wrap."""
    cause = error.args[0] if error.args else error
    cause = getattr(cause, "reason", cause)
    text = cause.args[0] if isinstance(cause, Exception) and cause.args else cause
    return str(text).rpartition(": ")[2] or type(error).__name__
