"""What is proposed to owners who do not want to choose: from public figures alone."""

from __future__ import annotations

import re

import pytest
from refusals import refuses

from terrine_server.planning.first_project import (
    FirstProject,
    delta_for,
    right_at_most,
    teachers_for,
)
from terrine_server.privacy import Account, NoisyVotes, ParameterError, quote


@pytest.mark.parametrize(
    ("units", "classes", "teachers"),
    [(60_000, 10, 2_000), (32_561, 2, 1_085), (3_990, 2, 997), (1_200, 10, 120), (3, 2, 1)],
    ids=["MNIST", "Adult", "aircraft", "digits", "hardly any"],
)
def test_teachers_are_about_as_many_as_measurements_favour(
    units: int, classes: int, teachers: int
) -> None:
    assert teachers_for(units, classes) == teachers


@pytest.mark.parametrize("classes", [2, 10, 40])
def test_more_units_never_make_fewer_teachers_and_each_has_a_unit(classes: int) -> None:
    numbers = [teachers_for(units, classes) for units in range(1, 100_000, 37)]
    assert numbers == sorted(numbers)
    assert all(
        1 <= n <= max(1, units) for n, units in zip(numbers, range(1, 100_000, 37), strict=True)
    )
    assert numbers[-1] <= 2_000


@pytest.mark.parametrize("units", [1, 99, 100, 101, 3_990, 10_000, 99_999_999])
def test_delta_is_the_largest_power_of_ten_below_a_tenth_of_one_over_the_units(units: int) -> None:
    delta = delta_for(units)
    assert delta <= 1 / (10 * units) * (1 + 1e-12) < 10 * delta


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0, 60.0])
def test_the_project_pays_for_every_public_row_and_fits_its_cap(epsilon: float) -> None:
    first = FirstProject.of(units=32_561, rows=5_000, classes=2, epsilon=epsilon)
    terms = quote(
        NoisyVotes(first.teachers, 2, first.sigma), epsilon, first.delta, cap_rule=first.cap.rule
    )
    assert terms.affordable(Account()) >= 5_000
    assert terms.cap_budget <= first.cap.budget
    assert terms.delta_budget <= first.cap.delta_budget
    assert 0 < first.share <= 1


def test_what_is_too_small_is_refused_and_told_what_would_do() -> None:
    with refuses(ParameterError, "small") as refused:
        FirstProject.of(units=341, rows=2_000, classes=2, epsilon=1)
    told = re.search(r"about ([\d,]+) units at this ε, or --epsilon ([\d.]+)\.", str(refused.value))
    assert told is not None, str(refused.value)
    enough, epsilon = int(told[1].replace(",", "")), float(told[2])
    assert 341 < enough < 700
    assert 1 < epsilon < 2
    FirstProject.of(units=enough, rows=2_000, classes=2, epsilon=1)
    FirstProject.of(units=341, rows=2_000, classes=2, epsilon=epsilon)
    with refuses(ParameterError, "rows"):
        FirstProject.of(units=100_000, rows=19, classes=2, epsilon=1)
    with refuses(ParameterError, "epsilon"):
        FirstProject.of(units=100_000, rows=1_000, classes=2, epsilon=0)


def test_odds_are_those_that_committees_are_told() -> None:
    assert [f"{right_at_most(epsilon, 1e-5):.1%}" for epsilon in (0.1, 1, 4)] == [
        "52.5%",
        "73.1%",
        "98.2%",
    ]
