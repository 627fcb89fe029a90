"""What a first project should buy, and by which way, foreseen on public records alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.maps import PublicData
from terrine_server.owner import ways
from terrine_server.owner.ways import (
    ForecastChoice,
    ForecastOption,
    _above_chance,
    _clearly_better,
    _forecast,
    _in_full,
    _Tested,
    choose_way,
)
from terrine_server.planning.first_project import FirstProject
from terrine_server.planning.opening import choose
from terrine_server.privacy import ParameterError
from terrine_server.privacy.budget.quoting import cap

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
) -> ForecastChoice:
    pool = PublicData.declare("pool", sample.inputs)
    return choose_way(first, sample, pool, labelled=labelled, people=people)


def by_way(found: ForecastChoice) -> dict[str, ForecastOption]:
    return {each.first.way: each for each in found.ways}


SAMPLE = public(600)


@pytest.fixture(scope="module")
def simulated() -> Callable[..., Any]:
    """The simulation of `SAMPLE`, made once: it takes longest."""
    simulate, kept = ways._simulate, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ways, "_simulate", lambda *given: kept.append(simulate(*given)))
        chosen(SAMPLE)
    return lambda *_: kept[0]


@pytest.fixture
def found(simulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> ForecastChoice:
    """What is foreseen of some hundred rows."""
    monkeypatch.setattr(ways, "_simulate", simulated)
    return chosen(SAMPLE)


def test_clear_classes_are_learned_by_every_way_and_the_ranges_say_so(
    found: ForecastChoice,
) -> None:
    assert set(by_way(found)) == {"trained teachers", "neighbours", "confident answers"}
    for each in found.ways:
        assert each.forecast is not None
        assert each.forecast.accuracy[0] > 0.7
        assert 0.75 < each.forecast.balanced_accuracy[0] <= each.forecast.balanced_accuracy[1] <= 1
        assert not each.forecast.useless
        assert each.forecast.above_chance
        assert each.forecast.auc is not None
        assert 0.8 < each.forecast.auc[0] <= each.forecast.auc[1] <= 1
    assert found.forecast is found.ways[0].forecast
    assert found.truth is not None
    assert found.truth.balanced_accuracy[1] > 0.85


def test_the_chosen_way_comes_first_and_then_the_better_students(found: ForecastChoice) -> None:
    _, *others = found.ways
    known = [each.forecast.balanced_accuracy for each in others if each.forecast is not None]
    assert all(sum(one) + 0.1 > sum(other) for one, other in pairwise(known))


def test_confident_answers_are_of_the_price_and_the_budget_of_the_project(
    found: ForecastChoice,
) -> None:
    first = by_way(found)["confident answers"].first
    assert first.spec["name"] == "confident_gnmax"
    assert first.cap.rule.name == "rdp", "where a test and its maximum have one price"
    assert first.terms.cap_budget <= first.cap.budget
    opened = choose(first.mechanism, first.epsilon, first.delta, cap_rule=first.cap.rule)
    assert first.terms == opened.terms
    assert 0 < first.share <= 1
    poor = replace(FIRST, epsilon=0.001, delta=1e-9, cap=cap(0.003, 1e-9))
    with refuses(ParameterError, "epsilon"):
        poor.of_confident(first.spec)


def test_noise_that_drowns_the_votes_of_teachers_is_foreseen_and_decides() -> None:
    found = chosen(public(600), replace(FIRST, sigma=50 * FIRST.sigma))
    trained = by_way(found)["trained teachers"]
    assert trained.forecast is not None
    assert trained.forecast.useless or trained.forecast.balanced_accuracy[0] < 0.5, "only luck"
    assert trained.worse
    assert found.first.way != "trained teachers"


@pytest.mark.parametrize(
    ("leads", "way"),
    [
        ((False, False), "neighbours"),
        ((True, False), "trained teachers"),
        ((False, True), "confident answers"),
        pytest.param((True, True), "confident answers", marks=pytest.mark.nightly),
    ],
)
def test_noisy_counts_by_neighbours_are_chosen_unless_another_is_clearly_better(
    leads: tuple[bool, bool],
    way: str,
    simulated: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = list(leads)
    monkeypatch.setattr(ways, "_simulate", simulated)
    monkeypatch.setattr(ways, "_clearly_better", lambda *_: left.pop(0) if left else False)
    assert chosen(SAMPLE).first.way == way


def test_better_by_less_than_two_standard_errors_is_not_clearly_better() -> None:
    labels = np.arange(1_000) % 2

    def of(right: int) -> list[_Tested]:
        return [_Tested(np.where(np.arange(1_000) < right, labels, 1 - labels), labels, 5)]

    assert _clearly_better(of(600), of(500))
    assert not _clearly_better(of(500), of(600))
    assert not _clearly_better(of(502), of(500)), "two rows of a thousand"


@pytest.mark.parametrize(
    ("rows", "right", "above"),
    [
        (1_000, 500, False),
        pytest.param(1_000, 400, False, id="worse than guesses"),
        pytest.param(200, 105, False, id="less than two standard errors"),
        pytest.param(100_000, 51_500, False, id="less than two points"),
        pytest.param(100_000, 53_000, True, id="more than both"),
        (1_000, 600, True),
    ],
)
def test_above_chance_is_by_two_standard_errors_and_two_points(
    rows: int, right: int, above: bool
) -> None:
    labels = np.arange(rows) % 2
    said = np.where(np.arange(rows) < right, labels, 1 - labels)
    tested = [_Tested(said, labels, 5)]
    assert _above_chance(tested) is above
    found = _forecast(tested)
    assert found.above_chance is above
    assert found.chance == 0.5
    assert found.balanced_accuracy[0] >= 0.5, "no range falls below chance"


def test_who_ranks_well_is_above_chance_though_all_are_called_the_larger_class() -> None:
    labels = (np.arange(1_000) % 10 == 0).astype(np.int64)
    constant = np.zeros(1_000, np.int64)
    random = np.random.default_rng(0).random(1_000)
    ranked, mixed = ([_Tested(constant, labels, 5, random + lead * labels)] for lead in (0.5, 0.0))
    assert _above_chance(ranked)
    assert not _above_chance(mixed)
    assert _forecast(mixed).balanced_accuracy[0] == 0.5
    auc = _forecast(ranked).auc
    assert auc is not None
    pairs = random[labels == 0] < (random + 0.5)[labels == 1][:, None]
    assert auc[0] < pairs.mean() < auc[1]


def test_votes_of_few_stand_ins_are_those_of_all_teachers() -> None:
    votes = np.array([[3, 2, 2], [7, 0, 0]])
    full = _in_full(votes, 100)
    assert full.sum(axis=1).tolist() == [100, 100]
    assert full.argmax(axis=1).tolist() == [0, 0]
    assert np.abs(full / 100 - votes / 7).max() < 0.03


def test_of_few_or_unlabelled_public_records_the_noise_of_the_votes_decides() -> None:
    few = replace(FIRST, rows=100)
    for found in (
        chosen(public(100), few),
        chosen(public(1_000), labelled=False),
        chosen(public(1_000), people=True),
    ):
        assert found.truth is found.forecast is None
        assert [(each.first.way, each.worse) for each in found.ways] == [
            ("trained teachers", False),
            ("neighbours", False),
        ], "√(4,000 · 133) votes against 1,000 teachers"
    many = chosen(public(1_000), replace(FIRST, teachers=400), labelled=False)
    assert many.first.neighbours is not None


def test_what_is_not_labelled_does_not_matter() -> None:
    sample = public(400)
    flipped = replace(sample, labels=1 - sample.labels)
    both = [chosen(each, labelled=False).ways for each in (sample, flipped)]
    assert both[0] == both[1]


def test_people_stand_in_with_all_their_records() -> None:
    alone = by_way(chosen(public(1_200), labelled=False))["neighbours"].first.neighbours
    found = by_way(chosen(public(1_200, people=300), people=True))["neighbours"]
    assert found.forecast is not None
    of_people = found.first.neighbours
    assert alone is not None
    assert of_people is not None
    assert of_people.allowance > 2 * alone.allowance, "whoever has four records is near more often"
