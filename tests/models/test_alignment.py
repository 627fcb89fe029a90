"""Rare classes of many get their rows, and where all is clear nothing changes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from terrine_models.students.calibration import class_biases

CLASSES, ROWS = 40, 4000


def votes(lead: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """True classes [N], five times as many of the last as of the first, and shares [N, m].

    Classes in pairs look alike, and teachers prefer the more frequent one of a pair.
    """
    weights = np.geomspace(1, 5, CLASSES)
    truth = np.random.default_rng(0).choice(CLASSES, ROWS, p=weights / weights.sum())
    shares = np.full((ROWS, CLASSES), 0.1 / CLASSES)
    height = lead * weights / weights.max()
    twin = (truth + CLASSES // 2) % CLASSES
    rows = np.arange(ROWS)
    shares[rows, truth] += height[truth] + 0.05
    shares[rows, twin] += height[twin] * 0.4
    return truth, shares


def test_rare_classes_get_their_rows() -> None:
    truth, shares = votes(0.3)
    noisy = shares + np.random.default_rng(1).normal(scale=0.04, size=shares.shape)
    biases = class_biases(noisy, noisy.mean(axis=0), 0.04)
    rare = truth < CLASSES // 4
    before, after = (each.argmax(axis=1) == truth for each in (noisy, noisy + biases))
    assert after[rare].mean() > before[rare].mean() + 0.05
    assert after.mean() > before.mean()
    assert abs(biases.sum()) < 1e-9


def test_clear_rows_stay_what_they_are() -> None:
    truth, shares = votes(0.9)
    shares[np.arange(ROWS), truth] += 1.0
    biases = class_biases(shares, shares.mean(axis=0), 0.01)
    assert ((shares + biases).argmax(axis=1) == truth).all()
