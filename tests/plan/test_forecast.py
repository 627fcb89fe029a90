"""The forecast: what a first project would buy, and by which option, on public records alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.wording import refuses
from terrine_models.data.arrays import Dataset, InputSpec, number_distinct_rows
from terrine_models.features.public import PublicData
from terrine_models.tables.designed import NATURAL_ROWS, Margins, digest_schema, margin_questions
from terrine_models.tables.loading import load_table, read_schema
from terrine_models.tables.proposal import propose_schema
from terrine_server.planning import forecast
from terrine_server.planning.first_project import DesignedProject, NeighbourProject, Setting
from terrine_server.planning.forecast import Forecast, Option, compare_options
from terrine_server.planning.opening import choose
from terrine_server.planning.own_labels import OwnLabels
from terrine_server.planning.students import (
    DRAWS,
    Draw,
    MeasuredStudent,
    PublicStandIns,
    Students,
    ask_designed,
    ask_teachers,
    auc_lead,
    split_records,
)
from terrine_server.privacy import Account, ParameterError
from terrine_server.privacy.quoting import cap

SETTING = Setting.of(units=4_000, rows=1_000, classes=2, epsilon=1)
FIRST = SETTING.of_teachers(1_000)


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
    sample: Dataset,
    setting: Setting = SETTING,
    *,
    labelled: bool = True,
    people: bool = False,
) -> Forecast:
    pool = PublicData.declare("pool", sample.inputs)
    return compare_options(setting, sample, pool, labelled=labelled, people=people)


def by_name(found: Forecast) -> dict[str, Option]:
    return {each.first.option: each for each in found.options}


SAMPLE = public(600)


@pytest.fixture(scope="module")
def simulated() -> Callable[..., Any]:
    """The simulation of `SAMPLE`, made once: it takes longest."""
    simulate, kept = forecast._simulate, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "_simulate", lambda *given: kept.append(simulate(*given)))
        chosen(SAMPLE)
    return lambda *_: kept[0]


@pytest.fixture
def found(simulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Forecast:
    """The forecast of some hundred rows."""
    monkeypatch.setattr(forecast, "_simulate", simulated)
    return chosen(SAMPLE)


def test_clear_classes_are_learned_by_every_option_and_the_ranges_say_so(found: Forecast) -> None:
    ways = {"sums", "trained teachers", "neighbours", "confident answers"}
    assert set(by_name(found)) == ways
    for each in found.options:
        assert each.students is not None
        assert each.students.accuracy[0] > 0.7
        assert 0.75 < each.students.balanced_accuracy[0] <= each.students.balanced_accuracy[1] <= 1
        assert not each.students.useless
        assert each.students.above_chance
        assert each.students.auc is not None
        assert 0.8 < each.students.auc[0] <= each.students.auc[1] <= 1
    assert found.students is found.options[0].students
    assert found.truth is not None
    assert found.truth.balanced_accuracy[1] > 0.85


def table(path: Path, columns: np.ndarray, labels: np.ndarray) -> Dataset:
    """Public rows of a table, read by the schema that is proposed for them."""
    names = [*(f"c{at}" for at in range(columns.shape[1])), "label"]
    rows = np.column_stack([columns, np.where(labels, "yes", "no")])
    path.write_text("\n".join(",".join(map(str, row)) for row in [names, *rows]) + "\n")
    schema = path.with_suffix(".json")
    schema.write_text(propose_schema(path, label="label", note=lambda _: None).to_json())
    return load_table(path, read_schema(schema), lambda _: None, public=True)


def uneven(path: Path, rows: int) -> Dataset:
    """A rare class, which rare categories of any column make likelier."""
    random = np.random.default_rng(0)
    values = random.choice(5, (rows, 10), p=[0.8, 0.05, 0.05, 0.05, 0.05])
    effects = np.random.default_rng(1).normal(0, 1.5, (10, 5)) * (np.arange(5) > 0)
    score = effects[np.arange(10), values].sum(axis=1)
    columns = np.char.add("v", values.astype(str))
    return table(path, columns, random.random(rows) < 1 / (1 + np.exp(3.5 - score)))


def correlated(path: Path, rows: int) -> Dataset:
    """Numbers that are nearly the same in a row, in two halves whose difference is the class."""
    random = np.random.default_rng(0)
    labels = random.random(rows) < 0.5
    apart = 0.03 * labels[:, None] * (np.arange(6) < 3)
    numbers = random.random((rows, 1)) + random.normal(0, 0.02, (rows, 6)) + apart
    return table(path, numbers.round(4), labels)


def of_table(sample: Dataset, epsilon: float = 1, **given: Any) -> Forecast:
    rows = int(number_distinct_rows(sample.inputs).max()) + 1
    setting = Setting.of(units=20_000, rows=rows, classes=2, epsilon=epsilon)
    return chosen(sample, setting, **given)


def test_designed_rows_are_chosen_where_few_natural_ones_divide_teachers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "_find_sum_project", lambda *_: None)
    sample = uneven(tmp_path / "uneven.csv", 1_600)
    found = of_table(sample, epsilon=0.5)
    assert found.first.option == "designed rows"
    assert by_name(found)["trained teachers"].worse
    first = found.first
    assert isinstance(first, DesignedProject)
    assert first.epsilon == first.terms.epsilon == 0.5, "histograms and votes together"
    assert first.share == pytest.approx(first.terms.cap_budget / first.cap.budget)
    untried = of_table(sample, labelled=False)
    tried = [isinstance(each.first, DesignedProject) for each in untried.options]
    assert not any(tried), "nothing tells how good"


def test_designed_rows_are_not_chosen_where_numbers_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "_find_sum_project", lambda *_: None)
    found = of_table(correlated(tmp_path / "correlated.csv", 1_600))
    assert found.first.option == "neighbours"
    assert by_name(found)["designed rows"].worse


def test_designed_rows_show_stand_ins_as_the_release_would_show_private_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, of_counts = [], Margins.of_counts

    def keep(questions: Any, counts: list[np.ndarray], **given: Any) -> Margins:
        released.append(counts)
        return of_counts(questions, counts, **given)

    monkeypatch.setattr(Margins, "of_counts", keep)
    sample = uneven(tmp_path / "uneven.csv", 800)
    assert sample.encoding is not None
    cells = [each.cells for each in margin_questions(sample.encoding)]
    first = SETTING.of_designed(cells=cells, schema_sha256=digest_schema(sample.encoding))
    draw = Draw.of(sample, 0)
    asked = ask_designed(draw, first)
    assert asked is not None
    of_rows, poll = asked
    pool = of_rows.task.designed
    assert pool is not None
    assert poll.votes.sum(axis=1).tolist() == [poll.stand_ins] * len(of_rows.task.x)
    known = {row.tobytes() for row in sample.inputs[draw.own]}
    assert all(row.tobytes() in known for row in pool.natural), "public rows, and none that tests"
    assert len(pool.natural) == min(NATURAL_ROWS, len(draw.own))
    spread = 5 * first.release.sigma
    [counts] = released
    share = sample.labels[draw.own].mean()
    assert counts[-1] == pytest.approx(first.units * np.array([1 - share, share]), abs=spread)
    every = np.concatenate(counts)
    assert np.count_nonzero(every) > 0.9 * every.size, "with noise in every cell"
    assert ask_designed(draw, replace(first, teachers=first.units // 400)) is None, "too few"


def test_the_chosen_option_comes_first_and_then_the_better_students(found: Forecast) -> None:
    _, *others = found.options
    known = [each.students.balanced_accuracy for each in others if each.students is not None]
    assert all(sum(one) + 0.1 > sum(other) for one, other in pairwise(known))


def test_confident_answers_are_of_the_price_and_the_budget_of_the_project(found: Forecast) -> None:
    first = by_name(found)["confident answers"].first
    assert first.spec["name"] == "confident_gnmax"
    assert first.cap.rule.name == "rdp", "where a test and its maximum have one price"
    assert first.terms.cap_budget <= first.cap.budget
    budget, rule = (first.epsilon, first.delta), first.cap.rule
    opened = choose(first.mechanism, *budget, cap_rule=rule, pass_rate=first.pass_rate)
    assert first.terms == opened.terms
    assert 0 < first.share <= 1
    for rows, rate in ((10, None), (10**6, 0.7)):
        given = replace(first, rows=rows).of_confident(first.spec, 0.7)
        assert given.pass_rate == rate, "prices are divided by it where they do not cover each row"
        covers = given.terms.affordable(Account()) >= rows
        assert covers == (rate is None)
    poor = replace(FIRST, epsilon=0.001, delta=1e-9, cap=cap(0.003, 1e-9))
    with refuses(ParameterError, "epsilon"):
        poor.of_confident(first.spec, 0.7)


def test_noise_that_drowns_the_votes_of_teachers_is_forecast_and_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noisy = replace(FIRST, sigma=1000 * FIRST.sigma)
    monkeypatch.setattr(forecast, "_list_teacher_projects", lambda _: [noisy])
    found = chosen(public(600))
    trained = by_name(found)["trained teachers"]
    assert trained.students is not None
    assert not trained.students.above_chance, "only luck"
    assert trained.worse
    assert found.first.option != "trained teachers"


@pytest.mark.parametrize(
    ("leads", "way"),
    [
        ((False, False, False), "sums"),
        ((True, False, False), "neighbours"),
        ((False, True, False), "trained teachers"),
        ((True, False, True), "confident answers"),
    ],
)
def test_sums_are_chosen_unless_another_way_is_clearly_better(
    leads: tuple[bool, ...],
    way: str,
    simulated: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = list(leads)
    monkeypatch.setattr(forecast, "_simulate", simulated)
    monkeypatch.setattr(
        Students, "is_clearly_better", lambda *_, **__: left.pop(0) if left else False
    )
    assert chosen(SAMPLE).first.option == way


def test_of_several_numbers_of_teachers_the_better_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = replace(FIRST, sigma=1000 * FIRST.sigma)
    monkeypatch.setattr(
        forecast, "_list_teacher_projects", lambda _: [replace(FIRST, teachers=400), noisy]
    )
    assert by_name(chosen(SAMPLE))["trained teachers"].first.teachers == 400


def test_an_option_that_is_better_than_a_guess_goes_before_one_that_is_not(
    simulated: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, *others), truth = simulated()
    guessing = [
        replace(each, said=np.zeros_like(each.said), scores=np.zeros(len(each.said)))
        for each in first.students.tested
    ]
    worse = [first._replace(students=Students(guessing)), *others]
    monkeypatch.setattr(forecast, "_simulate", lambda *_: (worse, truth))
    monkeypatch.setattr(Students, "is_clearly_better", lambda *_, **__: False)
    assert chosen(SAMPLE).first.option == others[0].first.option


def test_where_a_class_is_rare_the_ranking_tells_what_a_threshold_does_not() -> None:
    random = np.random.default_rng(0)
    labels = (np.arange(400) % 20 == 0).astype(np.int64)
    rows = random.random((3, 400))

    def of(lead: float) -> Students:
        scores = 0.7 * rows + 0.3 * random.random(rows.shape) + lead * labels
        said = [(each > 0.5).astype(np.int64) for each in scores]
        return Students(
            [MeasuredStudent(s, labels, 5, x) for s, x in zip(said, scores, strict=True)]
        )

    good, poor = of(0.6), of(0.4)
    assert good.is_clearly_better(poor)
    assert not poor.is_clearly_better(good)
    one, other = (
        Students([replace(each, scores=None) for each in way.tested]) for way in (good, poor)
    )
    assert not one.is_clearly_better(other), "of twenty, few lie between two thresholds"


def test_the_lead_of_an_auc_is_as_uncertain_as_draws_show() -> None:
    random = np.random.default_rng(0)
    labels = (np.arange(400) % 10 == 0).astype(np.int64)

    def drawn() -> tuple[float, float]:
        one, other = (random.normal(0, 1, 400) + lead * labels for lead in (1.2, 0.8))
        found = [MeasuredStudent(labels, labels, 5, each) for each in (one, other)]
        lead, variance = auc_lead(*found)
        assert lead == pytest.approx(found[0].auc[0] - found[1].auc[0])
        return lead, variance

    leads, variances = np.transpose([drawn() for _ in range(400)])
    assert np.std(leads) == pytest.approx(np.sqrt(np.mean(variances)), rel=0.15)


def test_better_by_less_than_two_standard_errors_is_not_clearly_better() -> None:
    labels = np.arange(1_000) % 2

    def of(right: int) -> Students:
        said = np.where(np.arange(1_000) < right, labels, 1 - labels)
        return Students([MeasuredStudent(said, labels, 5)])

    assert of(600).is_clearly_better(of(500))
    assert not of(500).is_clearly_better(of(600))
    assert not of(502).is_clearly_better(of(500)), "two rows of a thousand"


def test_what_draws_of_noise_differ_by_is_not_a_lead_and_widens_the_range() -> None:
    labels = (np.arange(10_000) % 10 == 0).astype(np.int64)

    def of(*right: int) -> Students:
        said = [np.where(np.arange(10_000) < each, labels, 1 - labels) for each in right]
        return Students([MeasuredStudent(each, labels, 5) for each in said])

    usual, steady, lucky = of(6_000, 6_000, 6_000), of(7_000, 7_000, 7_000), of(9_000, 6_000, 6_000)
    assert steady.is_clearly_better(usual)
    assert not lucky.is_clearly_better(usual), "as good on average, by one draw of three"
    narrow, wide = steady.accuracy, lucky.accuracy
    assert narrow == pytest.approx((0.69, 0.71), abs=0.005)
    assert wide == pytest.approx((0.5, 1.0)), "and none is below that of a guess"


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
    found = Students([MeasuredStudent(said, labels, 5)])
    assert found.above_chance is above
    assert found.chance == 0.5
    assert found.balanced_accuracy[0] >= 0.5, "no range falls below chance"


def test_who_ranks_well_is_above_chance_though_all_are_called_the_larger_class() -> None:
    labels = (np.arange(1_000) % 10 == 0).astype(np.int64)
    constant = np.zeros(1_000, np.int64)
    random = np.random.default_rng(0).random(1_000)
    ranked, mixed = (
        Students([MeasuredStudent(constant, labels, 5, random + lead * labels)])
        for lead in (0.5, 0.0)
    )
    assert ranked.above_chance
    assert not mixed.above_chance
    assert mixed.balanced_accuracy[0] == 0.5
    auc = ranked.auc
    assert auc is not None
    pairs = random[labels == 0] < (random + 0.5)[labels == 1][:, None]
    assert auc[0] < pairs.mean() < auc[1]


def test_what_labelled_rows_are_alone_is_measured_beside_the_students(found: Forecast) -> None:
    own = found.own
    assert own is not None
    assert own.rows == len(SAMPLE)
    assert own.students.auc is not None
    assert 0.9 < own.students.auc[0] < own.students.auc[1] <= 1
    assert found.students is not None
    for one, other in zip(own.students.tested, found.students.tested, strict=True):
        assert np.array_equal(one.labels, other.labels), "of the same rows"
        assert one.stand_ins == 450
    assert own.students.growth == pytest.approx((1 - 0.75**0.5) / (2**0.5 - 1)), "all would teach"
    assert found.beaten, "classes that are so clear need no private rows"
    assert chosen(public(100), replace(SETTING, rows=100)).own is None, "too few to say"


def test_labels_of_a_pool_are_measured_though_its_people_are_not_named() -> None:
    found = chosen(public(400), replace(SETTING, rows=400), people=True)
    assert found.own is not None
    assert found.students is None
    assert not found.beaten, "nothing is known to be worse"


@pytest.mark.parametrize(
    ("private", "half", "own", "beaten"),
    [
        (0.80, 0.80, 0.80, True),
        (0.80, 0.80, 0.70, False),
        pytest.param(0.8005, 0.8005, 0.80, True, id="not clearly"),
        pytest.param(0.80, 0.75, 0.80, False, id="more private units would be ahead"),
        pytest.param(0.80, 0.85, 0.70, False, id="chance takes nothing away"),
        pytest.param(0.80, 0.75, 0.90, True, id="not even they would"),
    ],
)
def test_students_that_are_not_clearly_better_than_own_labels_are_beaten_by_them(
    private: float, half: float, own: float, beaten: bool
) -> None:
    labels = np.arange(2_000) % 2

    def of(right: float) -> list[MeasuredStudent]:
        said = np.where(np.arange(2_000) < 2_000 * right, labels, 1 - labels)
        return [MeasuredStudent(said, labels, 1_000)]

    students = Students(of(private), of(half), units=100_000)
    alone = OwnLabels("forest", 1_333, Students(of(own)))
    assert Forecast((Option(FIRST, students),), None, alone).beaten is beaten
    assert not Forecast((Option(FIRST, students),), None).beaten


@pytest.mark.parametrize(
    ("lead", "useless"), [(0.0, True), (0.05, True), (0.4, False)], ids=["none", "little", "much"]
)
def test_what_ranks_next_to_nothing_is_useless_though_it_is_above_chance(
    lead: float, useless: bool
) -> None:
    random = np.random.default_rng(0)
    labels = (np.arange(20_000) % 10 == 0).astype(np.int64)
    scores = random.random(20_000) + lead * labels
    found = Students([MeasuredStudent(np.zeros_like(labels), labels, 5, scores)])
    assert found.useless is useless
    assert found.above_chance is (lead > 0)


def test_neighbours_may_be_better_by_what_more_of_them_would_add() -> None:
    labels = np.arange(1_000) % 2

    def of(right: int) -> list[MeasuredStudent]:
        said = np.where(np.arange(1_000) < right, labels, 1 - labels)
        return [MeasuredStudent(said, labels, 1_000)]

    few = Students(of(700))
    for half, gain in ((650, 0.05), (700, 0), (720, 0)):
        found = Students(of(700), of(half), units=4_000)
        for measure in ("accuracy", "balanced_accuracy"):
            (low, high), (least, most) = getattr(found, measure), getattr(few, measure)
            assert low == least
            # A quarter of the units is known: 1 - 1/2 remains, where 1/√2 - 1/2 was gained.
            assert high - most == pytest.approx(gain * 0.5 / (2**0.5 - 1))


def test_a_range_is_wide_where_few_rows_of_a_class_test_it() -> None:
    def width(every: int) -> float:
        labels = (np.arange(1_000) % every == 0).astype(np.int64)
        said = np.where(np.arange(1_000) % 3 == 0, 1 - labels, labels)
        low, high = Students([MeasuredStudent(said, labels, 5)]).balanced_accuracy
        return high - low

    assert width(50) > 3 * width(2)


def test_rows_that_stand_in_for_private_ones_do_not_vote_on_themselves() -> None:
    pool = PublicData.declare("pool", SAMPLE.inputs)
    placed = PublicStandIns.place_records(SAMPLE, pool, near=400, units=4_000)
    rows, own = SAMPLE.inputs[:50], np.arange(50)
    everyone, others = placed.cast_votes(rows)[0], placed.cast_votes(rows, excluded=own)[0]
    assert np.array_equal(everyone - others, np.eye(2)[SAMPLE.labels[:50]])
    half = placed.cast_votes(rows, one_in=2)
    assert half[0].sum() < 0.7 * everyone.sum()
    assert not half[1][1::2].any()


@pytest.mark.parametrize("rare", [2, 4, 8])
def test_rows_of_a_rare_class_are_on_both_sides(rare: int) -> None:
    sample = replace(SAMPLE, labels=(np.arange(600) < rare).astype(np.int64))
    for seed in range(DRAWS):
        draw = Draw.of(sample, seed)
        assert sorted([*draw.tested, *draw.own]) == list(range(600))
        assert 0 < sample.labels[draw.tested].sum() < rare
    assert np.array_equal(Draw.of(SAMPLE, 1).tested, split_records(SAMPLE, 1, 4)[0]), "the first"


def test_every_row_is_asked_about_by_as_many_stand_ins_for_teachers() -> None:
    draw = Draw.of(SAMPLE, 0)
    poll = ask_teachers(draw, FIRST)
    assert poll is not None
    assert poll.votes.sum(axis=1).tolist() == [poll.stand_ins] * len(draw.learned)
    assert not set(draw.tested.tolist()) & set(draw.own.tolist())
    assert (poll.votes.argmax(axis=1) == SAMPLE.labels[draw.learned]).mean() > 0.8, "in their order"


def test_of_few_or_unlabelled_public_records_the_noise_of_the_votes_decides() -> None:
    few = replace(SETTING, rows=100)
    for found in (
        chosen(public(100), few),
        chosen(public(1_000), labelled=False),
        chosen(public(1_000), people=True),
    ):
        assert found.truth is found.students is None
        assert [(each.first.option, each.worse) for each in found.options] == [
            ("sums", False),
            ("trained teachers", False),
            ("neighbours", False),
        ], "√(4,000 · 133) votes against 1,000 teachers"
    many = Setting.of(units=1_000_000, rows=20_000, classes=2, epsilon=1)
    found = chosen(public(1_000), many, labelled=False)
    ways = [each.first.option for each in found.options]
    assert ways == ["sums", "neighbours", "trained teachers"]
    small = replace(few, units=500)
    noisy, *others = chosen(public(1_000), small, labelled=False).options[::-1]
    assert (noisy.first.option, noisy.first.too_noisy) == ("sums", True)
    assert not any(each.first.too_noisy for each in others[-1:])


def test_of_few_kinds_of_public_rows_sums_alone_are_worth_asking() -> None:
    sample, few = public(600), replace(SETTING, rows=15)
    kinds = replace(sample, inputs=(sample.inputs.astype(np.float32) * 3).round() / 3)
    found = by_name(chosen(kinds, few))
    assert list(found) == ["sums"]
    assert found["sums"].students is not None
    assert found["sums"].students.accuracy[0] > 0.7
    assert list(by_name(chosen(kinds, few, labelled=False))) == ["sums"]
    with refuses(ParameterError, "small", "15", "20"):  # too few for sums as well
        chosen(public(99), few)


def public_pictures(rows: int) -> Dataset:
    """Of the second of two classes their left half is brighter."""
    sample = public(rows)
    pixels = np.random.default_rng(0).integers(0, 100, (rows, 6, 6))
    pixels[sample.labels == 1, :, :3] += 150
    spec = InputSpec(shape=(6, 6), dtype="uint8", low=0, high=255)
    return replace(sample, inputs=pixels.astype(np.uint8), spec=spec)


def test_of_unlabelled_pictures_those_vote_who_are_near() -> None:
    found = chosen(public_pictures(400), replace(SETTING, rows=400), labelled=False)
    assert [each.first.option for each in found.options][-1] == "sums"


@pytest.mark.parametrize(("ahead", "way"), [(False, "neighbours"), (True, "sums")])
def test_of_labelled_pictures_neighbours_vote_unless_sums_are_beyond_them(
    ahead: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "_list_teacher_projects", lambda setting: [])
    if ahead:
        monkeypatch.setattr(Students, "is_beyond", lambda *_: True)
    found = chosen(public_pictures(400), replace(SETTING, rows=400))
    assert found.first.option == way
    assert {each.first.option for each in found.options} == {"neighbours", "sums"}


def test_fewer_private_units_than_public_rows_stand_in_as_they_are() -> None:
    few = Setting.of(units=200, rows=600, classes=2, epsilon=8)
    option = by_name(chosen(SAMPLE, few))["sums"]
    assert option.students is not None
    assert option.students.stand_ins == 200
    assert option.students.growth == 0


def test_without_labels_what_noise_drowns_by_every_option_is_refused_and_told_what_would_do() -> (
    None
):
    few = Setting.of(units=341, rows=1_000, classes=2, epsilon=1)
    with refuses(ParameterError, "small") as refused:
        chosen(public(1_000), few, labelled=False)
    told = re.search(
        r"about ([\d,]+) units at this ε, or an ε of about ([\d.]*\d)", str(refused.value)
    )
    assert told is not None, str(refused.value)
    enough, epsilon = int(told[1].replace(",", "")), float(told[2])
    assert 341 < enough < 700
    assert 1 < epsilon < 2
    for more in (
        replace(few, units=enough),
        Setting.of(units=341, rows=1_000, classes=2, epsilon=epsilon),
    ):
        assert chosen(public(1_000), more, labelled=False).students is None


def test_with_labels_nothing_is_refused_that_students_learn_from() -> None:
    small = Setting.of(units=341, rows=600, classes=2, epsilon=0.5)
    assert small.of_teachers(small.numbers_of_teachers[-1]).too_noisy
    assert chosen(SAMPLE, small).students is not None


def test_where_the_noise_of_teachers_cannot_be_drawn_neighbours_vote() -> None:
    many = Setting.of(units=1_000_000, rows=50_000, classes=2, epsilon=0.1)
    with refuses(ParameterError, "rows"):
        many.of_teachers(8_000)
    ways = [each.first.option for each in chosen(SAMPLE, many).options]
    assert ways == ["sums", "neighbours"]


def test_what_is_not_labelled_does_not_matter() -> None:
    sample = public(400)
    flipped = replace(sample, labels=1 - sample.labels)
    both = [chosen(each, labelled=False).options for each in (sample, flipped)]
    assert both[0] == both[1]


def test_people_stand_in_with_all_their_records() -> None:
    alone = by_name(chosen(public(800), labelled=False))["neighbours"].first
    found = by_name(chosen(public(800, people=200), people=True))["neighbours"]
    assert found.students is not None
    of_people = found.first
    assert isinstance(alone, NeighbourProject)
    assert isinstance(of_people, NeighbourProject)
    assert of_people.neighbours.allowance > 2 * alone.neighbours.allowance, (
        "whoever has four records is near more often"
    )
