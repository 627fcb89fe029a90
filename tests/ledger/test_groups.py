"""Requests that share a transaction are charged as if each had come by itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ledgers import CONFIDENT, abstained, answered, charge_one, open_ledger, open_project
from support.wording import holds
from terrine_protocol import ProjectStatus
from terrine_server.errors import (
    BudgetExhausted,
    InvalidQuery,
    ProjectPaused,
    ServiceError,
)
from terrine_server.ledger import ChargedBatch, Ledger, Proposal


@pytest.fixture
def ledger(each_database_url: str) -> Ledger:
    return open_ledger(each_database_url)


def numbers(fate: ChargedBatch | ServiceError) -> list[int | None]:
    assert isinstance(fate, ChargedBatch), fate
    return [result.seq for result in fate.results]


def test_what_is_wrong_with_one_request_does_not_touch_the_others(ledger: Ledger) -> None:
    project = open_project(ledger, queries=2)
    charge_one(ledger, project.id, [answered("before")])
    fates = ledger.charging.charge(
        project.id, [[], [answered("before")], [answered(2)], [answered(3)], [answered("before")]]
    )
    assert list(map(type, fates)) == [
        InvalidQuery,
        ChargedBatch,
        ChargedBatch,
        BudgetExhausted,
        ChargedBatch,
    ]
    assert numbers(fates[2]) == [2]
    assert ledger.projects.get("study").charges == 2


def test_a_refusal_says_what_is_spent_of_which_budget(ledger: Ledger) -> None:
    """Also what requests of its own group have spent, which came first."""
    project = open_project(ledger, queries=3)
    charge_one(ledger, project.id, [answered("before")])
    _, grouped = ledger.charging.charge(project.id, [[answered(0), answered(1)], [answered(2)]])
    (alone,) = ledger.charging.charge(project.id, [[answered(3)]])
    for refused in (grouped, alone):
        assert isinstance(refused, BudgetExhausted)
        assert refused.extras == {"spent": project.terms.budget, "budget": project.terms.budget}
        holds(refused.detail, "100.0000%")


def test_what_concerns_the_project_concerns_all_of_them(ledger: Ledger) -> None:
    project = open_project(ledger, queries=5)
    ledger.projects.set_status("study", ProjectStatus.PAUSED)
    with pytest.raises(ProjectPaused):
        ledger.charging.charge(project.id, [[answered(0)], [answered(1)]])


def proposal(query: int, kind: int) -> Proposal:
    return answered(query, query % 10) if kind else abstained(query)


@pytest.mark.slow
@settings(max_examples=12)
@given(
    requests=st.lists(
        st.lists(st.builds(proposal, st.integers(0, 9), st.integers(0, 2)), min_size=1, max_size=4),
        min_size=1,
        max_size=6,
    ),
    queries=st.integers(1, 8),
    cut=st.integers(0, 6),
)
def test_grouping_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    requests: list[list[Proposal]],
    queries: int,
    cut: int,
) -> None:
    directory = tmp_path_factory.mktemp("grouping")

    def books(name: str) -> tuple[Ledger, int]:
        ledger = open_ledger(f"sqlite:///{directory / name}")
        return ledger, open_project(ledger, queries, CONFIDENT).id

    def comparable(fate: ChargedBatch | ServiceError) -> object:
        return list(fate.results) if isinstance(fate, ChargedBatch) else type(fate)

    alone, grouped = books("alone"), books("grouped")
    one_by_one = [alone[0].charging.charge(alone[1], [request])[0] for request in requests]
    in_groups = [
        fate
        for part in (requests[:cut], requests[cut:])
        for fate in grouped[0].charging.charge(grouped[1], part)
    ]
    assert list(map(comparable, one_by_one)) == list(map(comparable, in_groups))
    assert alone[0].projects.get("study").account == grouped[0].projects.get("study").account
    assert grouped[0].verifier.verify_project("study").ok
