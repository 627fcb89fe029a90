"""A small real ensemble, trained in about a second on scikit-learn's handwritten digits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from terrine_models.data.arrays import DIGITS, Dataset, InputSpec
from terrine_models.features.maps import PublicData
from terrine_models.teachers.kinds import Heads
from terrine_models.teachers.manifests import Manifest
from terrine_models.teachers.training import train_ensemble

TEACHERS = 40
PRIVATE, PUBLIC = 1200, 400


@dataclass(frozen=True)
class DigitsEnsemble:
    """Teachers trained on the first 1,200 digits; the next 400 are public, the last 197 unseen."""

    directory: Path
    manifest: Manifest
    public: NDArray[np.uint8]
    """[400, 8, 8]; the student's queries."""
    public_labels: NDArray[np.int64]
    """[400]; their true labels, for the tests only."""
    unseen: NDArray[np.uint8]
    unseen_labels: NDArray[np.int64]


def known_digits(rows: slice = slice(None)) -> Dataset:
    """Some of 1,797 images [8, 8] of digits, values 0 to 16."""
    data = load_digits()
    return Dataset(
        data.images[rows].astype(np.uint8),
        data.target[rows].astype(np.int64),
        DIGITS,
        InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16),
        name="digits",
    )


def build_people(directory: Path, digits: DigitsEnsemble) -> DigitsEnsemble:
    """Let each of the 1,200 private digits vote near it; `directory` must not exist."""
    from terrine_models.teachers.neighbours import NeighbourSettings, build

    private = known_digits(slice(PRIVATE))
    public = PublicData.declare("digits 1200-1599", digits.public)
    manifest = build(
        private, directory, name="people", public=public, settings=NeighbourSettings(near=40)
    )
    return replace(digits, directory=directory, manifest=manifest)


def train_digits(directory: Path) -> DigitsEnsemble:
    """Train the ensemble into `directory`, which must not exist."""
    known = known_digits()
    images, labels = np.asarray(known.inputs), known.labels
    public, unseen = slice(PRIVATE, PRIVATE + PUBLIC), slice(PRIVATE + PUBLIC, None)
    manifest = train_ensemble(
        known_digits(slice(PRIVATE)),
        directory,
        name="digits",
        teachers=TEACHERS,
        config=Heads(width=60, augmentations=4),
        public=PublicData.declare("digits 1200-1599", images[public]),
    )
    return DigitsEnsemble(
        directory, manifest, images[public], labels[public], images[unseen], labels[unseen]
    )


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """1,797 images [8, 8] of digits, values 0 to 16."""
    return known_digits()


@pytest.fixture(scope="session")
def plane() -> Dataset:
    """200 points [2] of three well-separated classes, from 40 people with uneven shares."""
    random = np.random.default_rng(1)
    labels = random.integers(0, 3, 200)
    centres = np.array([[0.2, 0.2], [0.8, 0.2], [0.5, 0.8]])
    points = np.clip(centres[labels] + random.normal(0, 0.08, (200, 2)), 0, 1)
    people = np.concatenate([np.arange(40), np.sort(random.integers(0, 10, 160))])
    return Dataset(
        points.astype(np.float32),
        labels,
        ("a", "b", "c"),
        InputSpec(shape=(2,), dtype="float32", low=0, high=1),
        groups=people,
        group_column="person",
        name="plane",
    )


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "ensemble"
