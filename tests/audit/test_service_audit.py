"""Two worlds, the whole service in between, and an attacker who distinguishes them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from terrine_models.teachers.ensemble import Ensemble
from terrine_server.audit import service
from terrine_server.audit.findings import AuditFinding
from terrine_server.audit.service import SPLIT, audit_service
from terrine_server.audit.world import TEACHERS, input_with, save_world
from terrine_server.planning import opening
from terrine_server.privacy import Mechanism, Terms, quote
from terrine_server.privacy.noise import NoiseTable


def findings(students: int, level: float = 1e-9) -> list[AuditFinding]:
    return list(audit_service(students, level, np.random.default_rng(0)))


def test_the_worlds_differ_in_one_teacher_on_every_input(tmp_path: Path) -> None:
    save_world(tmp_path / "here", "here", "here")
    save_world(tmp_path / "there", "there", "there")
    here, there = (Ensemble.load(tmp_path / world, "cpu") for world in ("here", "there"))
    choice = np.random.default_rng(1)
    for votes in range(TEACHERS):
        inputs = np.concatenate([input_with(votes, choice) for _ in range(20)])
        assert here.votes(inputs).tolist() == [[TEACHERS - votes, votes]] * 20
        assert there.votes(inputs).tolist() == [[TEACHERS - votes - 1, votes + 1]] * 20


@pytest.mark.statistical
@pytest.mark.slow
def test_the_service_keeps_its_budget_and_its_books() -> None:
    attack, books = findings(students=12)
    assert attack.verdict == books.verdict == "holds"
    assert attack.unit == "μ"
    assert "24 students sent" in attack.evidence
    assert "24 projects" in books.evidence


def test_the_next_query_depends_on_earlier_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[service.Attack] = []
    judge = service._judge

    def listen(promise: Any, runs: Any, level: float) -> AuditFinding:
        seen.extend(runs)
        return judge(promise, runs, level)

    monkeypatch.setattr(service, "_judge", listen)
    findings(students=6)
    queried = {votes for run in seen for votes, _, _ in run.answers}
    assert all(run.answers[0][0] == SPLIT for run in seen)
    assert queried >= {SPLIT - 1, SPLIT + 1}
    assert len({run.answers for run in seen}) > 1
    # The refusal came when the budget could not pay for one more answer, in either world.
    assert all(len(run.answers) >= 2 for run in seen)


@pytest.fixture
def little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = NoiseTable.sample

    def shrunk(table: NoiseTable, shape: tuple[int, ...], entropy: Any = os.urandom) -> Any:
        return np.rint(sample(table, shape, entropy) / 20).astype(np.int64)

    monkeypatch.setattr(NoiseTable, "sample", shrunk)


@pytest.mark.statistical
@pytest.mark.slow
@pytest.mark.usefixtures("little_noise")
def test_too_little_noise_in_the_service_is_caught() -> None:
    attack, books = findings(students=100, level=0.01)
    assert attack.verdict == "exceeded"
    assert books.verdict == "holds"  # the ledger cannot know


def test_answers_sold_too_cheaply_are_caught_by_the_books(monkeypatch: pytest.MonkeyPatch) -> None:
    def cheap(mechanism: Mechanism, epsilon: float, delta: float, **more: Any) -> Terms:
        terms = quote(mechanism, epsilon, delta, **more)
        prices = {
            outcome: replace(price, cost=price.cost // 2, cap_cost=price.cap_cost // 2)
            for outcome, price in terms.prices.items()
        }
        return replace(terms, prices=prices)

    monkeypatch.setattr(opening, "quote", cheap)
    _, *books = findings(students=3)
    assert [finding.verdict for finding in books] == ["exceeded"] * 6 + ["holds"]
    assert "entry 1 paid a cost of" in books[0].evidence
