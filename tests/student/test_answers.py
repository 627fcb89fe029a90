"""Whatever was bought, however little, a student comes of it: the answers were paid for."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from terrine_models.data.arrays import DIGITS, InputSpec
from terrine_models.students.answers import student_from_answers
from terrine_models.students.networks import Training

SMALL = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
TABLE = InputSpec(shape=(4,), dtype="float32", low=0, high=1)


@pytest.mark.parametrize("rows", [1, 2, 3, 25])
@pytest.mark.parametrize("method", ["auto", "kernel", "fixmatch", "vat", "supervised"])
def test_fewer_inputs_than_a_method_is_made_for_are_enough(method: str, rows: int) -> None:
    bundle = load_digits()
    x, truth = bundle.images.astype(np.uint8), bundle.target.astype(np.int64)[:rows]
    counts = np.eye(10, dtype=np.int64)[truth] * 100
    one_label = np.where(np.arange(rows) == 0, truth, -1)
    for labels, noisy in ((truth, None), (one_label, None), (truth, counts)):
        made = student_from_answers(
            x[:rows],
            labels,
            teachers=100,
            noisy_counts=noisy,
            noise_sigma=None if noisy is None else 4.0,
            inputs=SMALL,
            classes=DIGITS,
            training=Training(method, steps=2),
        )
        assert np.isfinite(made.student.probabilities(x[:30])).all()


@pytest.mark.parametrize("kind", ["all constant", "one varies"])
@pytest.mark.parametrize("classes_seen", [1, 2])
def test_constant_columns_and_a_class_that_was_never_answered_are_enough(
    kind: str, classes_seen: int
) -> None:
    x = np.tile(np.array([[0.1, 0.9, 0, 1]], dtype=np.float32), (60, 1))
    if kind == "one varies":
        x[:, 0] = np.linspace(0, 1, 60)
    labels = (np.arange(60) % 3 == 0).astype(np.int64) * (classes_seen - 1)
    for balance, noisy in ((True, None), (False, np.eye(2, dtype=np.int64)[labels] * 100)):
        made = student_from_answers(
            x,
            labels,
            teachers=100,
            noisy_counts=noisy,
            noise_sigma=None if noisy is None else 5.0,
            matches_prior=True,
            inputs=TABLE,
            classes=("a", "b"),
            training=Training("auto", steps=3, balance=balance, students=2),
        )
        assert np.isfinite(made.student.probabilities(x)).all()
