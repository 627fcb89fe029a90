"""MNIST in the user's cache, downloaded and checked."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import stamina
from rich.progress import Progress, TaskID
from stamina.instrumentation import RetryDetails, get_on_retry_hooks, set_on_retry_hooks

from terrine_protocol.files import write_atomically

TIMEOUT = (10.0, 20.0)
"""Seconds to connect, and seconds without a byte."""
ATTEMPTS = 2
MOST = 16 * 2**20
"""Bytes of a packed file, of which the largest has ten million."""
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


class FetchError(Exception):
    """MNIST cannot be downloaded; the message says from where and why."""


def cache_directory() -> Path:
    """Return MNIST's directory: `terrine/mnist` in the user's cache directory (XDG)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return cache / "terrine" / "mnist"


def cached_mnist(directory: Path) -> bool:
    """Whether all four files exist with the right digests."""
    return all(_is_there(directory / name) for name in FILES)


def fetch_mnist(url: str, directory: Path, bar: Progress) -> None:
    """Download those of MNIST's four `.gz` files that are missing, from `url`, and unpack them.

    A file gets its name only if its digest is right. Raises FetchError.
    """
    for name, (size, digest) in FILES.items():
        path, source = directory / name, f"{url.rstrip('/')}/{name}.gz"
        if _is_there(path):
            continue
        try:
            task = bar.add_task(name, total=None, visible=False)
            with _retries_in_words(bar):
                data = _unpacked(_downloaded(source, bar, task), size)
        except httpx.HTTPStatusError as error:
            status = f"{error.response.status_code} {error.response.reason_phrase}"
            raise FetchError(f"{source} responded with HTTP {status}") from None
        except (httpx.HTTPError, httpx.InvalidURL, ImportError, ValueError, OSError) as error:
            # The last three are of a proxy or certificates that the environment names.
            raise FetchError(f"{source} cannot be read: {error}") from None
        except zlib.error as error:
            raise FetchError(f"{source} is not MNIST: it cannot be unpacked: {error}") from None
        if len(data) > size:
            raise FetchError(f"{source} is not MNIST: it holds more than {size:,} bytes")
        if hashlib.sha256(data).hexdigest() != digest:
            raise FetchError(f"{source} is not MNIST: its digest is another")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        except OSError as error:
            reason = error.strerror or error
            raise FetchError(f"{directory} cannot be written: {reason}") from None


def _is_there(path: Path) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == FILES[path.name][1]
    except OSError:
        return False


@contextmanager
def _retries_in_words(bar: Progress) -> Iterator[None]:
    """Say above the bar that a download is tried again, instead of in a line of stamina's own."""

    def say(details: RetryDetails) -> None:
        bar.console.print(f"{details.caused_by}. Trying again.", highlight=False, markup=False)

    before = get_on_retry_hooks()
    set_on_retry_hooks([say])
    try:
        yield
    finally:
        set_on_retry_hooks(before)


@stamina.retry(on=httpx.TransportError, attempts=ATTEMPTS)
def _downloaded(source: str, bar: Progress, task: TaskID) -> bytes:
    """Return what a mirror sends, as it is packed. Raises httpx.HTTPError."""
    connect, read = TIMEOUT
    timeout, sent = httpx.Timeout(read, connect=connect), bytearray()
    with httpx.stream("GET", source, timeout=timeout, follow_redirects=True) as reply:
        reply.raise_for_status()
        total = int(reply.headers.get("content-length", 0)) or None
        bar.reset(task, total=total, visible=True)
        for part in reply.iter_raw():
            sent += part
            bar.update(task, completed=len(sent))
            if len(sent) > MOST:
                break
    return bytes(sent)


def _unpacked(data: bytes, size: int) -> bytes:
    """Unpack at most one byte more than the size. Raises zlib.error."""
    return zlib.decompressobj(wbits=31).decompress(data, size + 1)
