"""Two worlds, the whole service in between, and adversaries who distinguish them."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.processes import seed_noise
from support.wording import holds
from terrine_addons.audit import service
from terrine_addons.audit.service import (
    ADVERSARIES,
    MECHANISM,
    QUERIES_PER_REQUEST,
    TEACHERS,
    WORLDS,
    Adversary,
    Strategy,
    Transcripts,
    audit_service,
    save_world,
)
from terrine_models.teachers.ensemble import Ensemble
from terrine_server.findings import AuditFinding
from terrine_server.planning import opening
from terrine_server.privacy import Mechanism, Terms, quote
from terrine_server.privacy.mechanisms.base import VoteOutcome
from terrine_server.privacy.noise import NoiseTable

LEVEL = 1e-9
"""Probability that one audit convicts what is sound."""
SUSPICION = 1e-3
"""The same of an audit that must convict: what has a defect is proven so by fewer students."""
QUERIES, SHARDS, BOTH = ADVERSARIES


def findings(
    students: int, *adversaries: Adversary, level: float = LEVEL
) -> tuple[AuditFinding, ...]:
    return tuple(audit_service(students, level, np.random.default_rng(0), adversaries))


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda each: each.name)
def test_the_worlds_differ_in_one_teacher_on_every_input(
    tmp_path: Path, adversary: Adversary
) -> None:
    for world in WORLDS:
        save_world(adversary, world, tmp_path / world, world)
    here, there = (Ensemble.load(tmp_path / world, "cpu") for world in ("here", "there"))
    choice = np.random.default_rng(1)
    regions = adversary.regions()
    assert sum(region.share for region in regions) == pytest.approx(1)
    for region in regions:
        inputs = np.stack([region.draw(choice) for _ in range(20)])
        votes = region.votes
        assert here.votes(inputs).tolist() == [[TEACHERS - votes, votes]] * 20
        assert there.votes(inputs).tolist() == [[TEACHERS - votes - 1, votes + 1]] * 20


def test_an_adversary_can_bring_about_no_more_votes_than_it_has_power_for() -> None:
    reached = {
        adversary.name: {region.votes for region in adversary.regions()}
        for adversary in ADVERSARIES
    }
    assert reached["queries"] == {0, 3, 7, 10}
    assert reached["shards"] == {3, 6, 7}
    assert reached["both"] == set(range(11))


@cache
def transcripts(adversary: Adversary) -> Transcripts:
    strategy = Strategy(adversary)
    terms = quote(MECHANISM, service.EPSILON, service.DELTA)
    return Transcripts.of(terms, strategy.laws, strategy.following, QUERIES_PER_REQUEST)


def test_each_adversary_comes_near_the_budget_and_both_powers_come_nearest() -> None:
    exact = {each.name: transcripts(each) for each in ADVERSARIES}
    for found in exact.values():
        assert found.masses.values.sum(axis=1) == pytest.approx([1, 1], abs=1e-12)
        assert 5 < found.epsilon(service.DELTA) < service.EPSILON
    advantages = {name: found.advantage for name, found in exact.items()}
    assert advantages["both"] > 1.15 * max(advantages["queries"], advantages["shards"])
    assert min(advantages.values()) > 0.5


def test_the_exact_law_is_that_of_many_students() -> None:
    """Every transcript of a student, drawn from the same laws by another program."""
    draw, found = np.random.default_rng(4), transcripts(BOTH)
    strategy, terms = Strategy(BOTH), quote(MECHANISM, service.EPSILON, service.DELTA)
    kinds: dict[int, list[Any]] = {}
    for answer in strategy.laws:
        kinds.setdefault(answer[0], []).append(answer)
    chances = {v: np.cumsum([strategy.laws[each][0] for each in kinds[v]]) for v in kinds}
    costs = {str(outcome): price.cost for outcome, price in terms.prices.items()}
    scores = []
    for _ in range(4000):
        spent, answers, last = 0, [], None
        while terms.budget - spent >= terms.worst.cost:
            (votes,) = strategy.following(last)
            for _ in range(QUERIES_PER_REQUEST):
                if terms.budget - spent < terms.worst.cost:
                    break
                chance = chances[votes]
                answer = kinds[votes][int(np.searchsorted(chance, draw.random() * chance[-1]))]
                answers.append(answer)
                last = answer[2] if answer[2] >= 0 else last
                spent += costs[answer[1]]
        scores.append(found.score(answers))
    here = found.masses.values[0].cumsum()
    for guess in (-100, 0, 100, 200):
        share = here[guess - 1 - found.masses.low]
        # A share of 4,000 draws is further than 8 deviations off less than once in 10⁹ times.
        assert abs(np.mean(np.array(scores) < guess) - share) < 8 * (0.25 / 4000) ** 0.5


@pytest.mark.statistical
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_service_keeps_its_budget_its_law_and_its_books() -> None:
    """Convicted by chance once in 10⁹ times; half the noise is caught, by the test below."""
    *attacks, books = findings(2, *ADVERSARIES)
    assert [each.verdict for each in attacks] == ["holds"] * 3
    assert books.verdict == "holds"
    for each in attacks:
        holds(each.evidence, 4, "students")
        assert each.unit == "μ"
        assert each.exact is not None
        assert each.price is not None
        assert 0.6 < each.exact / each.price < 0.8
    holds(books.evidence, 12, "projects")


def test_the_next_query_depends_on_earlier_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[service.Attack] = []
    judge = service._judge

    def listen(strategy: Any, runs: Any, level: float) -> AuditFinding:
        seen.extend(runs)
        return judge(strategy, runs, level)

    monkeypatch.setattr(service, "_judge", listen)
    seed_noise(monkeypatch)
    monkeypatch.setattr(
        service, "CONCURRENT_STUDENTS", 1
    )  # one by one, each has the same noise every time
    findings(6, BOTH)
    assert {votes for run in seen for votes, _, _ in run.answers} == {5, 6}
    assert len({run.answers for run in seen}) > 1
    # The refusal came when the budget could not pay for one more answer, in either world.
    terms = quote(MECHANISM, service.EPSILON, service.DELTA)
    for run in seen:
        costs = [terms.prices[VoteOutcome(outcome)].cost for _, outcome, _ in run.answers]
        assert 0 <= terms.budget - sum(costs) < terms.worst.cost


@pytest.mark.statistical
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("adversary", "students"),
    [
        (QUERIES, 50),
        pytest.param(SHARDS, 350, marks=pytest.mark.nightly),
        pytest.param(BOTH, 400, marks=pytest.mark.nightly),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_half_the_noise_in_the_service_is_caught(
    adversary: Adversary, students: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the exact laws of transcripts under half the noise, so many students are judged lawful
    less than once in 10¹⁰ times."""
    sample = NoiseTable.sample

    def half(table: NoiseTable, shape: tuple[int, ...], entropy: Any = os.urandom) -> Any:
        return np.rint(sample(table, shape, entropy) / 2).astype(np.int64)

    monkeypatch.setattr(NoiseTable, "sample", half)
    # What follows is an audit of the books, which cannot know.
    attack = next(audit_service(students, SUSPICION, np.random.default_rng(0), [adversary]))
    assert attack.verdict == "exceeded"
    holds(attack.evidence, "not", "distributed")


@pytest.mark.nightly
def test_answers_sold_too_cheaply_are_caught_by_the_books(monkeypatch: pytest.MonkeyPatch) -> None:
    def cheap(mechanism: Mechanism, epsilon: float, delta: float, **more: Any) -> Terms:
        terms = quote(mechanism, epsilon, delta, **more)
        prices = {
            outcome: replace(price, cost=price.cost // 2, cap_cost=price.cap_cost // 2)
            for outcome, price in terms.prices.items()
        }
        return replace(terms, prices=prices)

    monkeypatch.setattr(opening, "quote", cheap)
    _, *books = findings(3, BOTH)
    assert [finding.verdict for finding in books] == ["exceeded"] * 6 + ["holds"]
    holds(books[0].evidence, 1, "cost")
