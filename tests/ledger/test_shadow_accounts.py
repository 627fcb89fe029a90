"""Public points that are charged as if they were private, by the real queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import event, select, update
from sqlalchemy.exc import NoResultFound

from support.databases import SECRET_KEY, SQLITE_BY_DAY
from support.ledgers import (
    NEIGHBOURS,
    PEOPLE,
    Opened,
    People,
    TheirVoters,
    digest,
    many,
    open_people,
    open_study,
    unguarded,
)
from support.wording import refuses
from terrine_server import views
from terrine_server.errors import BudgetExhausted
from terrine_server.labeling.pipeline import Labeling
from terrine_server.ledger import ChargedBatch, Ledger, connect
from terrine_server.ledger.schema import shadow_accounts, unit_accounts
from terrine_server.metrics import Metrics


@pytest.fixture
def opened(each_database_url: str) -> Opened:
    return open_people(each_database_url)


def used_up(opened: Opened) -> float | None:
    replica = Ledger(connect(opened.url), SECRET_KEY)
    return views.budget(*replica.projects.get_with_shadows("study")).used_up


def expected(opened: Opened, inputs: Sequence[NDArray[np.uint8]]) -> list[int]:
    """Every query costs 1 where a point is near, while that fits."""
    spent = [0] * PEOPLE
    for x in inputs:
        for point, weight in enumerate(x):
            spent[point] += min(int(weight), 1) if spent[point] < opened.allowance else 0
    return spent


def test_they_are_charged_by_the_real_queries_with_them_and_no_oftener(opened: Opened) -> None:
    inputs = many(opened.people, 6)
    with pytest.raises(NoResultFound):
        opened.row(shadow_accounts)
    assert used_up(opened) == 0
    opened.ask(inputs[:4])
    opened.ask(inputs[2:])
    opened.ask(inputs)  # paid already
    accounts = np.frombuffer(opened.row(shadow_accounts).accounts, "<u4")
    assert accounts.tolist() == expected(opened, inputs)
    assert opened.ledger.verifier.verify_project("study").problems == []


def test_a_project_and_its_shadows_are_read_as_of_one_moment(opened: Opened) -> None:
    inputs = many(opened.people, 4)
    opened.ask(inputs[:2])
    reader, later = Ledger(connect(opened.url), SECRET_KEY), [inputs[2:]]

    @event.listens_for(reader._access.engine, "before_cursor_execute")
    def come_between(_: object, __: object, statement: str, *___: object) -> None:
        if "shadow_accounts" in statement and later:
            opened.ask(later.pop())

    project, shadows = reader.projects.get_with_shadows("study")
    assert shadows is not None
    assert (project.charges, shadows.tolist()) == (2, expected(opened, inputs[:2]))
    assert opened.ledger.projects.get("study").charges == 4


@SQLITE_BY_DAY
def test_what_is_used_up_shows_where_one_student_drains_a_region(opened: Opened) -> None:
    rows = [opened.people.input(0, 1, 2) for _ in range(30)]
    for number, row in enumerate(rows):
        row[11] = number // 16 + 1  # else they were one query
        row[10] = number % 16 + 1
    opened.ask(rows)
    accounts = np.frombuffer(opened.row(shadow_accounts).accounts, "<u4")
    assert accounts.tolist() == expected(opened, rows)
    assert (accounts[[0, 1, 2, 10, 11]] == opened.allowance).all()
    assert used_up(opened) == pytest.approx(5 / PEOPLE)


def spend(opened: Opened, *people: int) -> list[NDArray[np.uint8]]:
    """Ask near these people, and one other at a time, until theirs are used up; return the rows."""
    rows = []
    for number in range(opened.allowance):
        row = opened.people.input(*people)
        row[10] = number + 1  # else they were one query
        rows.append(row)
    answer = opened.ask(rows)
    assert [each.outcome for each in answer.results] == ["answered"] * len(rows)
    return rows


@SQLITE_BY_DAY
def test_where_people_are_used_up_nobody_is_asked_and_nothing_is_charged(opened: Opened) -> None:
    """Within one request as well: each query is judged by those before it."""
    most = opened.allowance
    rows = [opened.people.input(0, 1, 2) * (number + 1) for number in range(most + 7)]
    answer = opened.ask([*rows, opened.people.input(3)])
    told = ["answered"] * most + ["exhausted"] * 7 + ["answered"]
    assert [each.outcome for each in answer.results] == told
    gone = answer.results[most:-1]
    assert {each.seq for each in gone} == {None}
    assert answer.project.charges == most + 1
    assert answer.project.affordable == 40 - most - 1
    accounts = opened.stored().copy()
    assert opened.ask(rows[most:]).results == gone
    assert opened.ask(rows[most:] * 2).results == [*gone, *gone]
    assert (opened.stored() == accounts).all()
    assert opened.ledger.projects.get("study").charges == most + 1
    assert opened.ledger.verifier.verify_project("study").problems == []


def test_once_nothing_more_is_paid_for_what_was_exhausted_is_refused(
    each_database_url: str,
) -> None:
    opened = open_people(each_database_url, spec={**NEIGHBOURS, "sigma": 25.0})
    near = opened.people.input
    drained = spend(opened, 0, 1, 2)
    fresh = many(opened.people, 30, "fresh")
    first = opened.ask([near(0, 1), *drained[:2], *fresh, near(1, 2), near(0, 2) * 2])
    paid = 40 - opened.allowance
    assert [each.outcome for each in first.results] == (
        ["exhausted"] + ["answered"] * (2 + paid) + ["refused"] * (32 - paid)
    )
    assert [each.replayed for each in first.results[1:3]] == [True, True]
    with refuses(BudgetExhausted, 40):
        opened.ask([near(0, 1)])
    assert opened.ledger.verifier.verify_project("study").problems == []


@SQLITE_BY_DAY
def test_those_who_come_can_be_asked_where_others_are_used_up(opened: Opened) -> None:
    """How many came is not public, so every region counts as full of them."""
    spend(opened, 0, 1, 2)
    assert opened.ask([opened.people.input(0, 1)]).results[0].outcome == "exhausted"
    opened.ledger.ensembles.make_edition("people", 2, digest("people").hex(), PEOPLE, ())
    assert used_up(opened) == 0
    assert opened.ask([opened.people.input(0, 1)]).results[0].outcome == "answered"
    assert opened.ledger.verifier.verify_project("study").problems == []


@SQLITE_BY_DAY
def test_after_a_restore_no_edition_empties_them(opened: Opened) -> None:
    """Those who come then have full accounts, too."""
    opened.ask(many(opened.people, 4))
    opened.ledger.projects.fill_accounts()
    assert used_up(opened) == 1
    assert opened.ledger.verifier.verify_project("study").problems == []
    opened.ledger.ensembles.make_edition("people", 2, digest("people").hex(), PEOPLE, ())
    assert used_up(opened) == 1


@pytest.mark.parametrize("world", ["nobody", "many records", "everybody's accounts are full"])
@pytest.mark.parametrize("each_database_url", ["sqlite"], indirect=True)
def test_outcomes_are_the_same_whatever_the_private_data_are(opened: Opened, world: str) -> None:
    """Two data sets, or other accounts, and the very same queries: the same outcomes."""
    rows = [*many(opened.people, 30), *(opened.people.input(0, 1) * k for k in range(1, 30))]
    parts = [rows[:20], rows[20:21], rows[10:45], rows[45:]]
    other = open_study(opened.ledger, name="other")
    here = [each.outcome for part in parts for each in opened.ask(part).results]
    people, voters = opened.people, opened.voters
    if world == "everybody's accounts are full":
        with unguarded(opened.url) as connection:
            here_ = unit_accounts.c.project_id == other.id
            row = dict(connection.execute(select(unit_accounts).where(here_)).one()._mapping)
            row["accounts"] = np.full(PEOPLE, opened.allowance, "<u4").tobytes()
            row |= {"filled": 1}
            row["seal"] = opened.ledger._access.seals.of("unit_accounts", row)
            connection.execute(update(unit_accounts).values(row).where(here_))
    else:
        weight = 0 if world == "nobody" else 1
        voters = TheirVoters(people)
        voters.found = replace(voters.found, ensemble=Same(people, weight))
    labeling = Labeling(opened.ledger, voters, Metrics(), max_batch=1000)
    there = []
    for part in parts:
        (answer,) = labeling.answer("other", [labeling.check("other", np.stack(part))])
        assert isinstance(answer, ChargedBatch)
        there += [each.outcome for each in answer.results]
    assert here == there
    assert {*here} == {"answered", "exhausted"}


class Same(People):
    """Every record weighs the same, wherever the query is."""

    def __init__(self, people: People, weight: int) -> None:
        super().__init__()
        self.weight = weight

    def near(self, points: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.full((len(points), len(self.units)), self.weight, np.uint8)


@SQLITE_BY_DAY
def test_other_projects_have_none(opened: Opened) -> None:
    assert views.budget(opened.project).used_up is None, "it is not read where it is not asked for"
