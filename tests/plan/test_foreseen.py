"""What a first project should buy, and by which way, foreseen on public records alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.maps import PublicData
from terrine_server.owner import foreseen
from terrine_server.owner.foreseen import Chosen, choose_way
from terrine_server.planning.first_project import FirstProject

FIRST = FirstProject.of(units=4_000, rows=1_000, classes=2, epsilon=1)


def public(rows: int, people: int | None = None) -> Dataset:
    """Points [2] of two classes, three in ten of the second, an accuracy of some 95 % apart."""
    random = np.random.default_rng(0)
    labels = (random.random(rows) < 0.3).astype(np.int64)
    points = 0.35 + 0.3 * labels[:, None] + random.normal(0, 0.12, (rows, 2))
    spec = InputSpec(shape=(2,), dtype="float32", low=0, high=1)
    groups = None if people is None else np.arange(rows) % people
    inputs = np.clip(points, 0, 1).astype(np.float32)
    return Dataset(inputs, labels, ("no", "yes"), spec, groups)


def chosen(
    sample: Dataset, first: FirstProject = FIRST, *, labelled: bool = True, people: bool = False
) -> Chosen:
    pool = PublicData.declare("pool", sample.inputs)
    return choose_way(first, sample, pool, labelled=labelled, people=people)


def test_clear_classes_are_learned_by_both_ways_and_the_ranges_say_so() -> None:
    found = chosen(public(1_000))
    assert found.trained is not None
    assert found.neighbours is not None
    for each in (found.trained, found.neighbours):
        assert each.accuracy[0] > 0.7
        assert 0.75 < each.balanced_accuracy[0] <= each.balanced_accuracy[1] <= 1
        assert not each.useless
    assert found.foreseen in (found.trained, found.neighbours)


def test_noise_that_drowns_the_votes_of_teachers_is_foreseen_and_decides() -> None:
    found = chosen(public(1_000), replace(FIRST, sigma=50 * FIRST.sigma))
    assert found.trained is not None
    assert found.trained.useless or found.trained.balanced_accuracy[0] < 0.5, "nothing but luck"
    assert found.clear
    assert found.first.neighbours is not None
    assert found.other.neighbours is None


@pytest.mark.parametrize(
    ("lead", "trains"), [(0.03, False), (0.01, False), (-0.01, False), (-0.03, True)]
)
def test_teachers_are_trained_where_their_students_are_clearly_better(
    lead: float, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreseen, "_lead", lambda one, other: (lead, 0.01))
    found = chosen(public(200))
    assert (found.first.neighbours is None) == trains
    assert found.clear == (abs(lead) > 0.02)


def test_of_few_or_unlabelled_public_records_the_noise_of_the_votes_decides() -> None:
    few = replace(FIRST, rows=100)
    for found in (
        chosen(public(100), few),
        chosen(public(1_000), labelled=False),
        chosen(public(1_000), people=True),
    ):
        assert found.trained is found.neighbours is found.foreseen is None
        assert not found.clear
        assert found.first.neighbours is None, "√(4,000 · 133) votes against 1,000 teachers"
    many = chosen(public(1_000), replace(FIRST, teachers=400), labelled=False)
    assert many.first.neighbours is not None


def test_what_is_not_labelled_does_not_matter() -> None:
    sample = public(400)
    flipped = replace(sample, labels=1 - sample.labels)
    both = [chosen(each, labelled=False).other.neighbours for each in (sample, flipped)]
    assert both[0] == both[1]


def test_people_stand_in_with_all_their_records() -> None:
    alone = chosen(public(1_200), labelled=False).other.neighbours
    found = chosen(public(1_200, people=300), people=True)
    assert found.trained is not None
    of_people = (found.other if found.first.neighbours is None else found.first).neighbours
    assert alone is not None
    assert of_people is not None
    assert of_people.allowance > 2 * alone.allowance, "whoever has four records is near more often"
