"""Plans are found by search and hold for the real mechanism and the real budget."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.reference.sensitivity import Charged, secret_spend
from support.wording import refuses
from terrine_server.planning.expected import Consensus, Votes
from terrine_server.planning.opening import choose, expected_answers
from terrine_server.planning.plan import ACCURACY_TOLERANCE, Plan, plan, specifications
from terrine_server.planning.publishing import DataDependent, PublishingPlan, choose_schedule
from terrine_server.privacy import (
    Account,
    ParameterError,
    Rule,
    VoteOutcome,
    build_mechanism,
    cap_order,
    quote,
    rdp,
)
from terrine_server.privacy.curves import rdp_budget
from terrine_server.privacy.events import GaussianNoisyMax
from terrine_server.privacy.mechanisms import MECHANISMS
from terrine_server.privacy.mechanisms.confident_gnmax import ConfidentGNMax
from terrine_server.privacy.numbers import COST_UNITS
from terrine_server.privacy.quoting import PUBLICATION_SHARE as SHARE

MIXED = (Consensus(0.95, 6), Consensus(0.8, 3), Consensus(0.5, 1))
DELTA = 1e-5


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search over less noise and more, of which any parameters will do."""
    monkeypatch.setattr(
        "terrine_server.privacy.mechanisms.registration.NOISE_SHARES", (0.02, 0.06, 0.2)
    )


def synthetic(teachers: int, *levels: Consensus, classes: int = 10) -> Votes:
    return Votes.synthetic(levels or MIXED, teachers=teachers, classes=classes)


# ------------------------------------------------------------------------- plan and simulation


@pytest.mark.parametrize(
    "name", ["gnmax", "lnmax", "confident_gnmax", "interactive_gnmax", "stable", "immutable"]
)
@pytest.mark.usefixtures("coarse")
def test_a_planned_project_answers_as_planned(name: str) -> None:
    votes = synthetic(200)
    if name == "interactive_gnmax":
        votes = votes.with_student(0.8)
    found = worst_case(name, [votes])
    mechanism, terms = found.quotes[0].mechanism, found.quotes[0].terms

    # Students query in random order until the real price list refuses the next query.
    queries = int(found.quotes[0].answers / found.pass_rate)
    enough = 2 * queries + 100
    source = np.random.default_rng(7)
    paid, labels, right = [], 0, 0
    for _ in range(max(30, math.ceil(6000 / queries))):  # enough to know the shares to 0.6 %
        kinds = source.choice(len(votes.weights), size=enough, p=votes.weights)
        student = None if votes.probabilities is None else votes.probabilities[kinds]
        released = mechanism.release(votes.counts[kinds], student, source.bytes)
        costs = np.cumsum([terms.prices[outcome].cost for outcome in released.outcomes])
        worst = terms.worst
        admitted = np.concatenate([[0], costs[:-1]]) + worst.cost <= terms.budget
        admitted &= (np.arange(enough) + 1) * worst.delta <= terms.delta_budget
        assert not admitted.all(), "the simulated student ran out of queries"
        count = int(np.argmin(admitted))
        paid.append(count)
        labels += int((released.labels[:count] >= 0).sum())
        right += int((released.labels[:count] == votes.labels[kinds[:count]]).sum())

    spread = np.std(paid) / math.sqrt(len(paid))
    assert abs(np.mean(paid) - queries) <= 4 * spread + 1 + 0.01 * queries
    assert labels / sum(paid) == pytest.approx(found.chosen.answered, abs=0.03)
    assert right / labels == pytest.approx(found.chosen.accuracy, abs=0.01)


@pytest.mark.usefixtures("coarse")
def test_noisy_counts_are_planned_like_the_noisy_maximum() -> None:
    """But for the rule that charges for the label alone, and costs at its votes: not for them."""
    votes = synthetic(1000, *MIXED)
    labels, counts = (plan(name, [votes], delta=DELTA, epsilon=2.0) for name in NOISY_MAXIMA)
    assert {**counts.chosen.spec, "name": "gnmax"} == labels.chosen.spec
    assert counts.chosen.accuracy == labels.chosen.accuracy
    assert labels.publishing is not None
    assert counts.publishing is None
    of_labels, of_counts = (
        {quoted.terms.rule.name: quoted.considered.queries for quoted in found.quotes}
        for found in (labels, counts)
    )
    assert of_labels["gdp"] == of_counts["gdp"]
    assert 1.5 < of_labels["rdp"] / of_counts["rdp"] < 1.6


NOISY_MAXIMA = ("gnmax", "noisy_votes")


# ----------------------------------------------------------------------------- the choice


@pytest.mark.usefixtures("coarse")
def test_more_teachers_who_agree_as_much_buy_more_answers() -> None:
    few, many = synthetic(250), synthetic(1000)
    answers = [worst_case("gnmax", [votes]).chosen.answers for votes in (few, many)]
    assert answers[1] > 10 * answers[0]
    both = worst_case("gnmax", [few, many])
    assert both.chosen.teachers == 1000
    assert [each.teachers for each in both.by_teachers] == [250, 1000]


def test_more_epsilon_buys_more_answers_and_more_consensus_more_accuracy() -> None:
    votes = synthetic(400)
    more = [
        worst_case(
            "gnmax", [votes], epsilon=e, grid=lambda _: {"sigma": [40.0, 60.0]}
        ).chosen.answers
        for e in (0.5, 2, 4)
    ]
    assert more == sorted(set(more))
    right = [
        worst_case(
            "gnmax", [synthetic(400, Consensus(c))], epsilon=1, grid=lambda _: {"sigma": [60.0]}
        )
        for c in (0.3, 0.5, 0.7)
    ]
    accuracy = [found.chosen.accuracy for found in right]
    assert accuracy == sorted(set(accuracy))


@pytest.mark.usefixtures("coarse")
def test_the_chosen_candidate_is_the_best_that_is_accurate_enough() -> None:
    found = worst_case("confident_gnmax", [synthetic(300)])
    answering = [each for each in found.candidates if each.answered >= 0.1]
    least = max(each.accuracy for each in answering) - ACCURACY_TOLERANCE
    assert found.chosen.accuracy >= least
    assert found.chosen.answers == max(c.answers for c in answering if c.accuracy >= least)


@pytest.mark.parametrize(
    ("teachers", "levels", "threshold", "rate"),
    [
        (1000, ((0.95, 9), (0.45, 1)), 600, 0.9),
        (1000, ((0.9, 7), (0.5, 3)), 700, 0.7),
        (2000, ((0.9, 1), (0.5, 1)), 1400, 0.5),
        (1000, ((0.9, 3), (0.5, 17)), 700, 0.15),
        (1000, ((0.9, 1), (0.5, 19)), 700, 0.07),
        (1000, ((0.95, 1),), 500, 1.0),
    ],
)
def test_votes_that_were_cast_divide_prices_of_which_half_is_left_ten_points_below(
    teachers: int, levels: tuple[tuple[float, int], ...], threshold: int, rate: float
) -> None:
    assumed = synthetic(teachers, *(Consensus(agreement, share) for agreement, share in levels))
    counts = np.repeat(assumed.counts, [share for _, share in levels], axis=0)
    cast = Votes.observed(counts, teachers=teachers)
    noise = {"sigma1": [0.1 * teachers], "sigma2": [0.15 * teachers]}
    grid = {"threshold": [float(threshold)], **noise}
    shown, guess = (
        worst_case("confident_gnmax", [votes], epsilon=1.0, grid=lambda _: grid)
        for votes in (cast, assumed)
    )
    assert shown.pass_rate == guess.pass_rate == pytest.approx(rate, abs=0.02)
    assert (shown.rate_is_shown, guess.rate_is_shown) == (True, False)
    best, lower = shown.quotes[0], max(0.0, shown.pass_rate - 0.1)
    assert best.fewer == expected_answers(best.terms, lower)
    assert best.answers == min(expected_answers(best.terms, shown.pass_rate), 2 * best.fewer)
    assert best.answers >= guess.quotes[0].cautious(shown.pass_rate).answers
    cap_rule = Rule("rdp", cap_order(1.0, DELTA))
    opened = choose(best.mechanism, 1.0, DELTA, cap_rule=cap_rule, pass_rate=shown.pass_rate)
    assert opened.considered.queries == best.considered.queries


@pytest.mark.slow
@pytest.mark.parametrize(
    ("teachers", "given", "by_guess", "counted_on"),
    [
        (1000, {"threshold": [500], "sigma1": [248], "sigma2": [173.5]}, 1_720, 4_100),
        (2000, {"threshold": [1250], "sigma1": [496], "sigma2": [317]}, 7_490, 9_770),
    ],
)
def test_recorded_votes_sell_more_than_a_guess_of_how_they_agree(
    shared_data: Path, teachers: int, given: dict[str, list[float]], by_guess: int, counted_on: int
) -> None:
    with np.load(shared_data / f"mnist_{teachers}_votes.npz") as recorded:
        votes = Votes.observed(recorded["counts"], recorded["labels"], teachers=teachers)
    found = worst_case("confident_gnmax", [votes], epsilon=1.0, grid=lambda _: given)
    mechanism, cap_rule = found.quotes[0].mechanism, Rule("rdp", cap_order(1.0, DELTA))
    assert isinstance(mechanism, ConfidentGNMax)
    before = choose(replace(mechanism, answer_share=None), 1.0, DELTA, cap_rule=cap_rule)
    assert expected_answers(before.terms, found.pass_rate) == pytest.approx(by_guess, rel=0.01)
    assert found.quotes[0].answers == pytest.approx(counted_on, rel=0.01)


def worst_case(name: str, ensembles: list[Votes], **options: Any) -> Plan:
    """A plan without publications, which take longest."""
    given: dict[str, Any] = {"delta": DELTA, "epsilon": 2.0, "data_dependent": False} | options
    return plan(name, ensembles, **given)


# --------------------------------------------------------------------------- data-dependent mode


def published(
    teachers: int, sigma: float, agreement: float, epsilon: float
) -> PublishingPlan | None:
    mechanism = build_mechanism({"name": "gnmax", "sigma": sigma}, teachers=teachers, classes=10)
    votes = synthetic(teachers, Consensus(agreement))
    return DataDependent(mechanism, votes, delta=DELTA).plan(epsilon)


@pytest.mark.slow
def test_publishing_pays_for_many_teachers_and_not_for_few() -> None:
    def gain(teachers: int, sigma: float, agreement: float) -> float:
        found = published(teachers, sigma, agreement, 4.0)
        mechanism = build_mechanism(
            {"name": "gnmax", "sigma": sigma}, teachers=teachers, classes=10
        )
        worst = quote(mechanism, 4.0, DELTA).affordable(Account())
        return 0.0 if found is None else found.queries / worst

    assert gain(1000, 40.0, 0.7) > 1.5
    assert gain(5000, 100.0, 0.8) > 1.6
    assert gain(250, 40.0, 0.9) == 0


@pytest.mark.parametrize(
    ("teachers", "sigma", "worst", "published_sigma", "published"),
    [
        (250, 50.0, 1_454, None, None),
        (1000, 200.0, 23_296, 120.0, 38_068),
        (4000, 800.0, 372_782, 480.0, 866_638),
    ],
)
def test_noise_is_searched_for_each_way_to_account(
    teachers: int, sigma: float, worst: float, published_sigma: float | None, published: int | None
) -> None:
    """In the worst case much noise is best; accounted as cast, less, where votes are clear."""
    votes = synthetic(teachers, Consensus(0.95))
    found = plan("gnmax", [votes], epsilon=4.0, delta=DELTA)
    assert found.chosen.spec["sigma"] == sigma
    assert found.chosen.answers == pytest.approx(worst, rel=1e-3)
    if published is None:
        assert found.publishing is None or found.publishing.queries < worst
        return
    assert found.published.spec["sigma"] == published_sigma
    assert found.publishing is not None
    assert found.publishing.queries == pytest.approx(published, rel=1e-3)
    order = found.publishing.publication.order
    opened = choose_schedule(found.published.spec, votes, epsilon=4.0, delta=DELTA, order=order)
    assert opened == (found.publishing.publication, found.publishing.schedule), "as it is advised"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "grid"),
    [
        pytest.param("lnmax", {"gamma": [0.02]}, marks=pytest.mark.nightly),
        ("stable", {"sigma": [60], "delta_per_query": [1e-10]}),
        ("confident_gnmax", {"threshold": [1200], "sigma1": [200], "sigma2": [100]}),
        pytest.param(
            "interactive_gnmax",
            {"threshold": [1000], "sigma1": [200], "sigma2": [100]},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_publishing_starts_before_the_worst_case_ends_and_goes_beyond_it(
    name: str, grid: dict[str, list[float]]
) -> None:
    votes = synthetic(2000, Consensus(0.95)).with_student(0.3)
    found = plan(name, [votes], delta=DELTA, epsilon=2.0, grid=lambda _: grid)
    apart = [quoted for quoted in found.quotes if quoted.answer_share is None]
    worst_case = max(quoted.answers for quoted in apart) / found.pass_rate
    assert found.publishing is not None
    assert 0 < found.publishing.schedule[0] < worst_case < found.publishing.queries


def test_a_schedule_is_followed_by_the_real_release_and_gate() -> None:
    """Votes as planned, spend and release as in production, refusals on public figures."""
    teachers, sigma, epsilon = 1000, 40.0, 1.5
    found = published(teachers, sigma, 0.7, epsilon)
    assert found is not None
    release = found.publication
    event = build_mechanism(
        {"name": "gnmax", "sigma": sigma}, teachers=teachers, classes=10
    ).events()[VoteOutcome.ANSWERED]
    worst = float(rdp(event, release.order))
    conversion = DELTA * (0.999 - float(SHARE))
    budget = float(rdp_budget(release.order, epsilon, conversion))
    assert release.failure <= float(SHARE) * DELTA

    votes = synthetic(teachers, Consensus(0.7)).counts
    bound, since, paid, answered, spread = 0.0, 0, 0.0, 0, 0.0
    source = np.random.default_rng(3)
    while bound + paid + (since + 1) * worst <= budget and answered < 10**5:
        answered += 1
        since += 1
        if answered in found.schedule:
            # The bound on what an answer reveals is that of all noisy counts.
            transcript = [Charged(GaussianNoisyMax(sigma), np.tile(votes, (answered, 1)))]
            spend = secret_spend(
                transcript, teachers=teachers, order=release.order, beta=release.beta
            )
            whole = math.ceil(answered * worst * COST_UNITS)
            bound, since = release.release(spend, whole, source.bytes) / COST_UNITS, 0
            paid += release.cost
            spread = release.sigma * spend.smooth_sensitivity / worst
            assert bound + paid <= budget
    assert abs(answered - found.queries) <= 5 * spread + 2
    assert answered > found.schedule[-1] * 1.2


@pytest.mark.slow
def test_more_publications_help_where_they_are_cheap() -> None:
    mechanism = build_mechanism({"name": "gnmax", "sigma": 100.0}, teachers=5000, classes=10)
    votes = synthetic(5000, Consensus(0.8))
    reached = []
    for count in (1, 4):
        model = DataDependent(mechanism, votes, delta=DELTA, publications=(count,))
        found = model.plan(2.0)
        assert found is not None
        assert len(found.schedule) == count
        assert list(found.schedule) == sorted(set(found.schedule))
        reached.append(found.queries)
    assert reached[1] > 2 * reached[0]


# ------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("name", sorted(MECHANISMS.keys() - {"neighbours", "sums"}))
@pytest.mark.parametrize("teachers", [1, 2, 10, 5000])
def test_the_default_grid_fits_ensembles_of_any_size(name: str, teachers: int) -> None:
    specs = specifications(name, teachers, DELTA, {})
    assert 1 < len(specs) < 200 or teachers < 10
    assert MECHANISMS[name].plan_grid(teachers, DELTA).keys() == {
        k for k in specs[0] if k != "name"
    }
    built = 0
    for spec in specs:
        try:
            build_mechanism(spec, teachers=teachers, classes=10)
            built += 1
        except ParameterError:
            pass
    assert built or name == "stable"  # one or two teachers can never pass its test


def test_one_teacher_gets_a_plan_or_a_reason() -> None:
    found = plan("gnmax", [synthetic(1, Consensus(1.0))], delta=DELTA, epsilon=50.0)
    assert found.chosen.answers >= 1
    with refuses(ParameterError, "query"):
        plan("gnmax", [synthetic(1, Consensus(1.0))], delta=DELTA, epsilon=0.5)
    with refuses(ParameterError, "answered"):
        plan("stable", [synthetic(2, Consensus(1.0))], delta=DELTA, epsilon=2.0)


@pytest.mark.parametrize(
    "level", [Consensus(0.5, runner_up=1.0), Consensus(0.1, runner_up=0.0), Consensus(1.0)]
)
@pytest.mark.parametrize("name", ["gnmax", "confident_gnmax", "stable"])
def test_tied_and_unanimous_votes_are_planned_without_a_nan(name: str, level: Consensus) -> None:
    votes = synthetic(400, level)
    grid = {"sigma": [20.0]}
    if name == "confident_gnmax":
        grid = {"threshold": [200, 360], "sigma1": [80.0], "sigma2": [20.0]}
    found = plan(name, [votes], delta=DELTA, epsilon=2.0, grid=lambda _: grid)
    assert math.isfinite(found.chosen.accuracy)
    assert math.isfinite(found.chosen.answers)


@pytest.mark.slow
def test_unanimity_beyond_floating_point_is_planned() -> None:
    found = plan(
        "gnmax",
        [synthetic(5000, Consensus(1.0))],
        delta=DELTA,
        epsilon=2.0,
        grid=lambda _: {"sigma": [40.0]},
    )
    assert found.publishing is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": -1.0}, "epsilon -1.0"),
        ({"epsilon": 2.0, "delta": 0.0}, "delta 0"),
        ({"epsilon": 2.0, "grid": lambda _: {"sgima": [1.0]}}, "sgima"),
        ({"epsilon": 2.0, "grid": lambda _: {"sigma": [0.1]}}, "sigma 0.1"),
    ],
)
def test_what_cannot_be_planned_is_explained(arguments: dict[str, object], message: str) -> None:
    given = {"delta": DELTA} | arguments
    with refuses(ParameterError, *message.split()):
        plan("gnmax", [synthetic(100)], **given)  # type: ignore[arg-type]
