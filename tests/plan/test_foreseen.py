"""What a first project should buy, foreseen on labelled public records alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from terrine_models.data.arrays import Dataset, InputSpec
from terrine_server.owner.foreseen import foresee
from terrine_server.planning.first_project import FirstProject

FIRST = FirstProject.of(units=4_000, rows=1_000, classes=2, epsilon=1)


def public(rows: int) -> Dataset:
    """Points [2] of two classes, three in ten of the second, an accuracy of some 95 % apart."""
    random = np.random.default_rng(0)
    labels = (random.random(rows) < 0.3).astype(np.int64)
    points = 0.35 + 0.3 * labels[:, None] + random.normal(0, 0.12, (rows, 2))
    spec = InputSpec(shape=(2,), dtype="float32", low=0, high=1)
    return Dataset(np.clip(points, 0, 1).astype(np.float32), labels, ("no", "yes"), spec)


def test_clear_classes_are_learned_and_the_range_says_so() -> None:
    found = foresee(public(1_000), 4, FIRST)
    assert found is not None
    assert found.accuracy[0] > found.majority
    assert 0.75 < found.balanced_accuracy[0] <= found.balanced_accuracy[1] <= 1
    assert not found.useless


def test_noise_that_drowns_the_votes_is_foreseen() -> None:
    found = foresee(public(1_000), 4, replace(FIRST, sigma=50 * FIRST.sigma))
    assert found is not None
    assert found.useless or found.balanced_accuracy[0] < 0.5, "nothing but luck"


def test_of_few_public_records_nothing_is_foreseen() -> None:
    assert foresee(public(1_000), 500, FIRST) is None, "too few for stand-ins"
    assert foresee(public(100), 4, FIRST) is None, "too few to test a student"
