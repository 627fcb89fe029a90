"""One request: what is checked before it is answered, and how many of its queries are possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.ledgers import (
    CLASSES,
    INTERACTIVE,
    MOST,
    SHARP,
    TEACHERS,
    TOLD_CONFIDENT,
    Told,
    cast_votes,
    images,
    one,
    open_published,
    publishing_ledger,
    study,
    terms,
)
from support.wording import refuses
from terrine_server.errors import (
    EnsembleUnavailable,
    InvalidQuery,
    PayloadTooLarge,
)
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.queries import input_digests, query_digests
from terrine_server.labeling.strategies import mechanism_of
from terrine_server.labeling.voters import get_full_tallies
from terrine_server.ledger import ChargedBatch, EnsembleRecord
from terrine_server.metrics import Metrics
from terrine_server.privacy import (
    Account,
    ComparesWithStudent,
    Price,
    Terms,
    VoteOutcome,
)
from terrine_server.privacy.budget import BaselinePrices


def test_a_request_is_checked_and_identified(tmp_path: Path) -> None:
    service, _, ledger = study(tmp_path, SHARP, 5)
    inputs = images((1, 0), (2, 1))
    ask = service.check("study", inputs.astype(">f8"))
    assert ask.queries.dtype == np.uint8
    assert (ask.queries == inputs).all()
    assert (ask.probabilities, ask.baselines) == (None, None)
    theirs = input_digests(inputs, ledger.ensembles.get("mnist").manifest_sha256)
    queries = query_digests(theirs, None)
    assert [(d.query, d.input) for d in ask.digests] == list(zip(queries, theirs, strict=True))
    assert ask.genesis == ledger.projects.get("study").genesis
    assert len(ask) == 2
    service.check("study", images(*[(1, n) for n in range(MOST)]))
    with pytest.raises(PayloadTooLarge):
        service.check("study", images(*[(1, n) for n in range(MOST + 1)]))
    with refuses(InvalidQuery, "probabilities"):
        service.check("study", inputs, np.full((2, CLASSES), 0.1))


def test_a_students_probabilities_are_part_of_the_query(tmp_path: Path) -> None:
    service, _, ledger = study(tmp_path, INTERACTIVE, 5)
    mechanism = mechanism_of(ledger.projects.get("study"))
    assert isinstance(mechanism, ComparesWithStudent)
    inputs, student = images((1, 0), (1, 0)), np.full((2, CLASSES), 0.1)
    student[1] = np.eye(CLASSES)[3]
    ask = service.check("study", inputs, student)
    assert ask.probabilities is not None
    assert ask.baselines is not None
    assert (ask.probabilities == student).all()
    assert (ask.baselines == mechanism.canonical_baseline(student)).all()
    theirs = input_digests(inputs, ledger.ensembles.get("mnist").manifest_sha256)
    queries = query_digests(theirs, ask.baselines)
    assert [(d.query, d.input) for d in ask.digests] == list(zip(queries, theirs, strict=True))
    assert len({d.query for d in ask.digests}) == 2
    for wrong in (None, student[:1], student[:, :9]):
        with refuses(InvalidQuery, f"[2, {CLASSES}]"):
            service.check("study", inputs, wrong)


Change = Callable[[np.ndarray], np.ndarray]


def wrong(change: Change) -> Told:
    """Return voters whose votes are changed."""

    class Wrong(Told):
        def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
            return change(super().votes(record, inputs))

    return Wrong()


@pytest.mark.parametrize(
    "change",
    [
        lambda votes: votes[:1],
        lambda votes: votes[:, :9],
        lambda votes: votes.astype(np.float64),
    ],
    ids=["too few", "a class short", "floats"],
)
def test_votes_of_another_shape_or_type_are_refused(change: Change, tmp_path: Path) -> None:
    service, voters, ledger = study(tmp_path, SHARP, 5)
    record, inputs = ledger.ensembles.get("mnist"), images((1, 0), (2, 1))
    assert (get_full_tallies(voters, record, inputs) == cast_votes(inputs, TEACHERS)).all()
    with refuses(EnsembleUnavailable, "shape"):
        get_full_tallies(wrong(change), record, inputs)
    service = Labeling(ledger, wrong(change), Metrics(), MOST)
    with pytest.raises(EnsembleUnavailable):
        one(service, service.check("study", inputs))
    assert ledger.projects.get("study").charges == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda votes: votes + np.eye(CLASSES, dtype=np.int64)[[4, 4]],
        lambda votes: votes - np.eye(CLASSES, dtype=np.int64)[[1, 2]],
        lambda votes: votes + np.array([[0] * CLASSES, [-1, 1] + [0] * (CLASSES - 2)]),
        lambda votes: votes * 2**40,
    ],
    ids=["one too many", "one too few", "negative", "huge"],
)
def test_no_value_of_votes_is_an_error(change: Change, tmp_path: Path) -> None:
    """Whether an answer came would tell of them; each row becomes one vote of each teacher."""
    service, _, ledger = study(tmp_path, SHARP, 5)
    record, inputs = ledger.ensembles.get("mnist"), images((1, 0), (2, 1))
    tallies = get_full_tallies(wrong(change), record, inputs)
    assert (tallies.sum(axis=1) == TEACHERS).all()
    service = Labeling(ledger, wrong(change), Metrics(), MOST)
    answered = one(service, service.check("study", inputs))
    assert isinstance(answered, ChargedBatch)
    assert [result.outcome for result in answered.results] == ["answered"] * 2
    assert ledger.projects.get("study").charges == 2


def priced(budget: int, delta_budget: int, *prices: tuple[int, int]) -> Terms:
    """Terms with these budgets, and a price (cost, delta) for an answer and an abstention."""
    quoted = terms(2, TOLD_CONFIDENT, epsilon=80.0)
    answered, abstained = (Price(cost, delta, cost) for cost, delta in prices)
    listed = {VoteOutcome.ANSWERED: answered, VoteOutcome.ABSTAINED: abstained}
    return replace(quoted, budget=budget, delta_budget=delta_budget, prices=listed)


@pytest.mark.parametrize(
    ("quoted", "account", "most"),
    [
        (priced(100, 10**6, (30, 1), (7, 1)), Account(), 11),
        (priced(100, 10**6, (30, 1), (7, 1)), Account(spent=1), 10),
        (priced(100, 10**6, (30, 1), (7, 1)), Account(spent=70), 1),
        (priced(100, 10**6, (30, 1), (7, 1)), Account(spent=71), 0),
        (priced(10**6, 100, (1, 30), (1, 7)), Account(), 11),
        (priced(10**6, 100, (1, 30), (1, 7)), Account(delta_spent=1), 10),
        (priced(10**6, 100, (1, 30), (1, 7)), Account(delta_spent=70), 1),
        (priced(10**6, 100, (1, 30), (1, 7)), Account(delta_spent=71), 0),
        (priced(100, 100, (30, 30), (0, 0)), Account(), float("inf")),
        (priced(100, 100, (30, 30), (0, 9)), Account(), 8),
        (priced(100, 100, (1, 30), (1, 9)), Account(), 8),
    ],
)
def test_as_many_are_possible_as_the_cheapest_outcomes_leave_room_for(
    quoted: Terms, account: Account, most: float
) -> None:
    assert quoted.most_admitted(account) == most


def test_a_query_with_the_highest_baseline_is_possible_where_no_other_is() -> None:
    quoted = priced(100, 10**6, (30, 1), (7, 1))
    cheaper = {VoteOutcome.ANSWERED: Price(20, 1, 20), VoteOutcome.ABSTAINED: Price(5, 1, 5)}
    quoted = replace(quoted, by_baseline=(BaselinePrices(9, cheaper),))
    left = {100: 17, 30: 3, 29: 2, 20: 1, 19: 0}
    assert {n: quoted.most_admitted(Account(spent=100 - n)) for n in left} == left


def test_a_figure_still_to_be_published_may_free_any_amount(tmp_path: Path) -> None:
    project = open_published(publishing_ledger(f"sqlite:///{tmp_path / 'terrine.sqlite'}"))
    assert project.terms.schedule is not None
    all_of_them = len(project.terms.schedule.counts)
    before = project.terms.most_admitted(Account(published=all_of_them - 1))
    after = project.terms.most_admitted(Account(published=all_of_them))
    assert 0 < after < before, "δ alone limits them before"
    full = Account(spent=project.terms.budget)
    assert project.terms.most_admitted(full) == 0
