"""Data that benchmarks read: recorded votes of real teachers, MNIST, and scikit-learn's digits.

They lie in TERRINE_SHARED_DATA, else in ../shared/data beside the repository.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from terrine_models.data.arrays import DIGITS, Dataset, InputSpec, load_idx
from terrine_models.features.maps import PublicData

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
SHARED = Path(os.environ.get("TERRINE_SHARED_DATA", BESIDE))


@dataclass(frozen=True)
class Material:
    """Private training data, a public pool, and test images with their labels."""

    name: str
    private: Dataset
    public: PublicData
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def recorded(name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Vote counts [N, m] of real teachers, and the true labels [N]."""
    file = SHARED / f"{name}_votes.npz"
    if not file.is_file():
        raise SystemExit(f"{file} is missing. Set TERRINE_SHARED_DATA to where the votes are.")
    with np.load(file) as archive:
        return archive["counts"].astype(np.int64), archive["labels"].astype(np.int64)


def pictures() -> Material:
    """MNIST where it is there, else digits."""
    folder = SHARED / "mnist"
    if not folder.is_dir():
        return digits()
    test = load_idx(folder / "t10k-images-idx3-ubyte.gz")
    images = test.inputs.astype(np.uint8)
    public = PublicData.declare("MNIST test images 0-8999", images[:9000])
    return Material("MNIST", load_idx(folder), public, images, test.labels)


def digits() -> Material:
    data = load_digits()
    images, labels = data.images.astype(np.uint8), data.target.astype(np.int64)
    spec = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
    private = Dataset(images[:1200], labels[:1200], DIGITS, spec, name="digits")
    public = PublicData.declare("digits from 1200 on", images[1200:])
    name = "scikit-learn's digits, because no MNIST was given"
    return Material(name, private, public, images[1200:], labels[1200:])


def first(data: Dataset, rows: int) -> Dataset:
    return Dataset(data.inputs[:rows], data.labels[:rows], data.classes, data.spec)
