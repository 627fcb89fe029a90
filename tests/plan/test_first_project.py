"""What is proposed to owners who do not want to choose: from public figures alone."""

from __future__ import annotations

import math

import pytest

from support.wording import refuses
from terrine_server.planning.first_project import (
    NeighbourPlan,
    Setting,
    default_delta,
    default_teachers,
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
    assert default_teachers(units, classes) == teachers


@pytest.mark.parametrize(
    ("epsilon", "numbers"),
    [
        (1, (1_085,)),
        (0.3, (1_085, 2_516)),
        (0.1, (1_085, 2_762, 7_031)),
        (0.01, (1_085, 2_972, 8_140)),
    ],
)
def test_the_smaller_epsilon_is_the_more_teachers_are_tried_down_to_four_units_each(
    epsilon: float, numbers: tuple[int, ...]
) -> None:
    adult = Setting.of(units=32_561, rows=2_000, classes=2, epsilon=epsilon)
    assert adult.numbers_of_teachers == numbers


def test_a_teacher_has_a_unit_for_each_class_however_small_epsilon_is() -> None:
    found = Setting.of(units=60_000, rows=2_000, classes=10, epsilon=0.01).numbers_of_teachers
    assert found[-1] == 6_000
    assert Setting.of(units=10**7, rows=2_000, classes=2, epsilon=0.001).numbers_of_teachers[
        -1
    ] <= (16_000), "more would take long to train"


@pytest.mark.parametrize("classes", [2, 10, 40])
@pytest.mark.parametrize("mu", [math.inf, 0.2, 0.02])
def test_more_units_never_make_fewer_teachers_and_each_has_a_unit(classes: int, mu: float) -> None:
    numbers = [default_teachers(units, classes, mu) for units in range(1, 100_000, 37)]
    assert numbers == sorted(numbers)
    assert all(
        1 <= n <= max(1, units) for n, units in zip(numbers, range(1, 100_000, 37), strict=True)
    )
    assert mu < 1 or numbers[-1] <= 2_000


@pytest.mark.parametrize("units", [1, 99, 100, 101, 3_990, 10_000, 99_999_999])
def test_delta_is_the_largest_power_of_ten_below_a_tenth_of_one_over_the_units(units: int) -> None:
    delta = default_delta(units)
    assert delta <= 1 / (10 * units) * (1 + 1e-12) < 10 * delta


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0, 60.0])
def test_the_project_pays_for_every_public_row_and_fits_its_cap(epsilon: float) -> None:
    setting = Setting.of(units=32_561, rows=5_000, classes=2, epsilon=epsilon)
    first = setting.of_teachers(setting.numbers_of_teachers[-1])
    terms = quote(
        NoisyVotes(first.teachers, 2, first.sigma), epsilon, first.delta, cap_rule=first.cap.rule
    )
    assert terms.affordable(Account()) >= 5_000
    assert terms.cap_budget <= first.cap.budget
    assert terms.delta_budget <= first.cap.delta_budget
    assert 0 < first.share <= 1


def test_too_few_public_rows_are_refused_to_who_votes_on_each() -> None:
    few = Setting.of(units=100_000, rows=19, classes=2, epsilon=1)
    near = NeighbourPlan(near=20, sigma=10, queries=19, allowance=100, retired=0, votes=20)
    with refuses(ParameterError, "rows", "20"):
        few.of_teachers(500)
    with refuses(ParameterError, "rows", "20"):
        few.of_neighbours(near)
    assert few.of_sums(norm=100, features=5, map_sha256="0" * 64).release.features == 5
    with refuses(ParameterError, "rows"):
        Setting.of(units=100_000, rows=2, classes=3, epsilon=1)
    with refuses(ParameterError, "epsilon"):
        Setting.of(units=100_000, rows=1_000, classes=2, epsilon=0)


def test_noise_is_too_much_where_few_teachers_have_little_to_spend() -> None:
    few = Setting.of(units=341, rows=2_000, classes=2, epsilon=1)
    assert few.of_teachers(few.numbers_of_teachers[-1]).too_noisy
    adult = Setting.of(units=26_000, rows=8_000, classes=2, epsilon=0.1)
    usual, *_, many = (adult.of_teachers(number) for number in adult.numbers_of_teachers)
    assert usual.too_noisy
    assert not many.too_noisy
