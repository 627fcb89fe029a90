"""The demo's data: real images, split into private, public and held-out ones."""

from __future__ import annotations

import hashlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from terrine_models.data.arrays import DIGITS, DataError, Dataset, InputSpec, load_idx
from terrine_protocol.errors import TerrineError
from terrine_protocol.files import write_atomically
from terrine_server.cli.console import console

# Seconds to connect, and seconds without a byte.
TIMEOUT_SECONDS = (10.0, 20.0)
# Bytes of a packed file, of which the largest has ten million.
MAX_PACKED_BYTES = 16 * 2**20
# Size and SHA-256 of each file, unpacked, because mirrors compress them differently.
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


class FetchError(TerrineError):
    """MNIST cannot be downloaded; the message says from where and why."""


def cache_directory() -> Path:
    """Return MNIST's directory: `terrine/mnist` in the user's cache directory (XDG)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return cache / "terrine" / "mnist"


def is_mnist_cached(directory: Path) -> bool:
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
            data = _unpack(_download_packed(source, bar, task), size)
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


def _download_packed(source: str, bar: Progress, task: TaskID) -> bytes:
    """Return what a mirror sends, as it is packed. Raises httpx.HTTPError."""
    connect, read = TIMEOUT_SECONDS
    timeout, sent = httpx.Timeout(read, connect=connect), bytearray()
    with httpx.stream("GET", source, timeout=timeout, follow_redirects=True) as reply:
        reply.raise_for_status()
        total = int(reply.headers.get("content-length", 0)) or None
        bar.reset(task, total=total, visible=True)
        for part in reply.iter_raw():
            sent += part
            bar.update(task, completed=len(sent))
            if len(sent) > MAX_PACKED_BYTES:
                break
    return bytes(sent)


def _unpack(data: bytes, size: int) -> bytes:
    """Unpack at most one byte more than the size. Raises zlib.error."""
    return zlib.decompressobj(wbits=31).decompress(data, size + 1)


# SHA-256 of the pixels. Other data sets come in the same files, such as Fashion-MNIST.
MNIST_TEST_IMAGES = "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161"


@dataclass(frozen=True)
class DemoData:
    """A data set: what the owner has, what the student has, and what tests the student."""

    name: str
    why: str
    private: Dataset
    """The data owner's. What votes is made of it."""
    public: NDArray[np.uint8]
    """[P, H, W]. The student's unlabelled images, which it sends as queries."""
    truth: NDArray[np.int64]
    """[P], their true labels, only for the report and for the comparison without privacy. The
    student never sees them."""
    held_out: NDArray[np.uint8]
    """[Q, H, W]. The student's own labelled images, for testing only."""
    held_out_labels: NDArray[np.int64]

    def save(self, out: Path) -> tuple[Path, Path, Path]:
        """Write private, public and held-out images as a user would have them."""
        private, public, held_out = (out / f"{name}.npz" for name in ("private", "pool", "own"))
        own, spec = self.private, self.private.spec
        classes = np.array(own.classes)
        np.savez(private, x=own.inputs, y=own.labels, classes=classes, low=spec.low, high=spec.high)
        np.savez(public, x=self.public)
        np.savez(held_out, x=self.held_out, y=self.held_out_labels)
        return private, public, held_out


def choose(data: Path | None, quick: bool, url: str) -> DemoData:
    """Return MNIST from `data`, from the user's cache or from `url`; otherwise the small digits.

    Raises DataError if `data` is given but is not MNIST-like.
    """
    if data is not None:
        return mnist(data, f"from {data}, as you asked")
    if quick:
        return digits("because --quick was given")
    cache = cache_directory()
    if is_mnist_cached(cache):
        return mnist(cache, f"from the cache {cache}")
    try:
        with _download_bar() as bar:
            fetch_mnist(url, cache, bar)
    except FetchError as error:
        return digits(f"because MNIST is neither given (--data DIR) nor cached, and {error}")
    return mnist(cache, f"downloaded from {url}, digests verified, cached in {cache}")


def mnist(directory: Path, why: str) -> DemoData:
    """Return MNIST: the training set is private; 9/10 of the test set are public, 1/10 held out."""
    if not directory.is_dir():
        raise DataError(f"{directory} is not a directory; expected one with MNIST's four IDX files")
    private = load_idx(directory)
    test = load_idx(_images(directory))
    if test.spec != private.spec:
        raise DataError(f"{directory}: training and test images differ in shape")
    split = len(test) * 9 // 10
    known = hashlib.sha256(test.inputs.tobytes()).hexdigest() == MNIST_TEST_IMAGES
    inputs = test.inputs.astype(np.uint8, copy=False)
    return DemoData(
        name=f"{'MNIST' if known else f'Images of {directory}'} ({len(private):,} private images)",
        why=why,
        private=private,
        public=inputs[:split],
        truth=test.labels[:split],
        held_out=inputs[split:],
        held_out_labels=test.labels[split:],
    )


def digits(why: str) -> DemoData:
    """Return scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, shuffled."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    order = np.random.default_rng(0).permutation(len(bundle.target))
    images = bundle.images.astype(np.uint8)[order]
    labels = bundle.target.astype(np.int64)[order]
    spec = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
    return DemoData(
        name="scikit-learn's digits (1,200 private images)",
        why=why,
        private=Dataset(images[:1200], labels[:1200], DIGITS, spec, name="digits"),
        public=images[1200:1600],
        truth=labels[1200:1600],
        held_out=images[1600:],
        held_out_labels=labels[1600:],
    )


def _images(directory: Path) -> Path:
    found = sorted(directory.glob("t10k-images*"))
    if not found:
        raise DataError(f"{directory} has no file t10k-images*; expected MNIST's four IDX files")
    return found[0]


def _download_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
    )
