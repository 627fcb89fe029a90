"""People who vote, behind the whole service: an attack that sees what accounts must prevent.

Each defect is planted in the running service. The brute force of small worlds
(tests/privacy/test_neighbours.py) sees those of the mechanism as well; what the ledger does with
accounts between two requests shows here alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from support.laws import mutated
from support.wording import holds
from terrine_addons.audit import service
from terrine_addons.audit.service import audit_people
from terrine_server.findings import AuditFinding
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.voters import Neighbourhood
from terrine_server.ledger import accounts
from terrine_server.privacy import Neighbours
from terrine_server.privacy.noise import NoiseTable

pytestmark = [pytest.mark.statistical, pytest.mark.slow, pytest.mark.timeout(900)]
LEVEL = 1e-9
"""Probability that one audit convicts what is sound."""
SUSPICION = 1e-3
"""The same of audits that must convict: what has a defect is proven so by half as many students."""
STUDENTS = 30
"""In each world. A defect moves the sum of the last two answers by two votes at least, which the
noise of `little_noise` hides from one student in 20: by the exact laws it is missed less than once
in 10¹⁰ runs."""
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a budget that still allows every person four: fewer students see the same defects."""
    monkeypatch.setattr(service, "SIGMA", 0.5)
    monkeypatch.setattr(service, "PEOPLE_EPSILON", 45.0)


def findings(students: int, level: float) -> list[AuditFinding]:
    return list(audit_people(students, level, np.random.default_rng(0)))


def test_a_vote_tells_half_of_the_price_and_a_spent_account_nothing() -> None:
    first, spent, books = findings(8, LEVEL)
    assert [each.verdict for each in (first, spent, books)] == ["holds"] * 3
    assert first.exact is not None
    assert first.price is not None
    assert 0.4 < first.exact / first.price < 0.5
    assert spent.exact == 0
    holds(books.evidence, 16, 48)


def overspends_in_its_last_step(patch: pytest.MonkeyPatch) -> None:
    """And writes no more than is allowed: accounts above it are refused by the ledger."""
    defective = mutated(
        """takes_part = spent + squared <= allowance
            spent += takes_part * squared""",
        """takes_part = spent < allowance
            spent = np.minimum(spent + takes_part * squared, allowance)""",
    )
    patch.setattr(Neighbours, "cast", defective.cast)


def judges_once_a_request(patch: pytest.MonkeyPatch) -> None:
    """All queries of a request are judged by the accounts before it."""
    usual = Neighbours.cast

    def cast(self: Neighbours, weights: Any, units: Any, accounts: Any, allowance: int) -> Any:
        each = [usual(self, row[None], units, accounts, allowance) for row in weights]
        spent = sum(after.astype(np.int64) - accounts for _, after in each)
        after = np.minimum(accounts + spent, allowance).astype(np.uint32)
        return np.concatenate([counts for counts, _ in each]), after

    patch.setattr(Neighbours, "cast", cast)


def rolls_accounts_back(patch: pytest.MonkeyPatch) -> None:
    """The accounts that are written are those from before the charge."""
    opened: dict[int, Any] = {}
    usual = accounts.save_unit_accounts

    def save(tx: Any, after: Any, accounts: Any) -> None:
        usual(tx, after, opened.setdefault(after.id, np.zeros_like(accounts)))

    patch.setattr(accounts, "save_unit_accounts", save)


def refunds_abstentions(patch: pytest.MonkeyPatch) -> None:
    """What a student would not use, as no count is large, is not charged to anybody."""
    usual = Labeling._draw

    def drawn(self: Labeling, project: Any, *given: Any) -> Any:
        drawn = usual(self, project, *given)
        unused = all(max(each.counts or ()) < 3 for each in drawn.proposals.values())
        if drawn.accounts is None or not unused:
            return drawn
        kept = replace(drawn.accounts, accounts=self._ledger.unit_accounts(project))
        return replace(drawn, accounts=kept)

    patch.setattr(Labeling, "_draw", drawn)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "plant",
    [rolls_accounts_back, overspends_in_its_last_step, judges_once_a_request, refunds_abstentions],
    ids=lambda plant: plant.__name__,
)
@pytest.mark.usefixtures("little_noise")
def test_a_planted_defect_tells_of_a_person_who_has_spent_it(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    # What follows is an audit of the books, and accounts are not in the books.
    _, spent = islice(audit_people(STUDENTS, SUSPICION, np.random.default_rng(0)), 2)
    assert spent.verdict == "exceeded"
    holds(spent.evidence, "not", "distributed")


@pytest.mark.nightly
def test_half_the_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 250 students of each world, whose usual noise shows that better than `little_noise`. By
    the exact laws it is missed less than once in 10¹⁵ times."""
    sample = NoiseTable.sample

    def half(table: NoiseTable, shape: tuple[int, ...], entropy: Any = os.urandom) -> Any:
        return np.rint(sample(table, shape, entropy) / 2).astype(np.int64)

    monkeypatch.setattr(NoiseTable, "sample", half)
    first, spent, _ = findings(250, LEVEL)
    assert {first.verdict, spent.verdict} == {"exceeded"}


@pytest.mark.nightly
@pytest.mark.usefixtures("little_noise")
def test_weights_that_are_of_the_nearest_alone_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a person's two records near a query one votes: at a cost of 1, which still fits."""
    usual = Neighbourhood.record_weights

    def record_weights(self: Neighbourhood, inputs: Any) -> Any:
        for block in usual(self, inputs):
            first = np.zeros_like(block)
            first[np.arange(len(block)), block.argmax(axis=1)] = block.max(axis=1)
            yield first

    monkeypatch.setattr(Neighbourhood, "record_weights", record_weights)
    _, spent, _ = findings(STUDENTS, SUSPICION)
    assert spent.verdict == "exceeded"
