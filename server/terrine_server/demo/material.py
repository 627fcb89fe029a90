"""The demo's data: real images, split into private, public and held-out ones."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from terrine_models.data.arrays import DIGITS, DataError, Dataset, InputSpec, load_idx
from terrine_server.demo.mnist import FetchError, cache_directory, cached_mnist, fetch_mnist

MNIST_TEST_IMAGES = "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161"
"""SHA-256 of the pixels. Other data sets come in the same files, such as Fashion-MNIST."""


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


def choose(data: Path | None, quick: bool, url: str, console: Console) -> DemoData:
    """Return MNIST from `data`, from the user's cache or from `url`; otherwise the small digits.

    Raises DataError if `data` is given but is not MNIST-like.
    """
    if data is not None:
        return mnist(data, f"from {data}, as you asked")
    if quick:
        return digits("because --quick was given")
    cache = cache_directory()
    if cached_mnist(cache):
        return mnist(cache, f"from the cache {cache}")
    try:
        with _download_bar(console) as bar:
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


def _download_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
    )
