"""Small real data for teachers: scikit-learn's digits, and points in a plane."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from digits import known_digits

from terrine_models.data.arrays import Dataset, InputSpec


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
