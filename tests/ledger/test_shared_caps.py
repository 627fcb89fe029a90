"""One cap for the same people, however many ensembles are made of them: never is more reserved."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from at_once import at_once
from books import FACTS, GNMAX, answered, open_project, private, register, terms
from dialects import POSTGRESQL_BY_DAY, SQLITE_BY_DAY
from ledger_workers import open_projects_on, register_data
from migrated import SECRET_KEY, migrated
from neighbouring import PEOPLE, open_study, register_people
from processes import in_processes
from refusals import holds, refuses
from sqlalchemy import select, update

from terrine_protocol import ProjectStatus
from terrine_server.errors import CapExceeded, Conflict, LedgerCorrupted, NotFound
from terrine_server.ledger import EnsembleRecord, Ledger, NewProject, connect
from terrine_server.ledger.store.tables import ensembles, private_data
from terrine_server.owner.cap_advice import gives_back
from terrine_server.privacy import Terms

DATA = private("digits")


def empty(url: str) -> Ledger:
    return Ledger(migrated(url), SECRET_KEY)


def share(of: EnsembleRecord, parts: int) -> Terms:
    """Terms that reserve one of so many parts of a cap."""
    part = of.cap // parts
    return replace(terms(1), budget=part, cap_budget=part)


def open_part(ledger: Ledger, name: str, ensemble: str, parts: int) -> None:
    wanted = share(ledger.ensemble(ensemble), parts)
    ledger.open_project(NewProject(name, ensemble, GNMAX, wanted))


def test_ensembles_of_the_same_data_share_one_cap(each_database_url: str) -> None:
    ledger = empty(each_database_url)
    alone = register(ledger, "first", data=DATA)
    second = register(ledger, "second", data=private("digits", "the file"))
    third = register(ledger, "third", data=private("the file"))
    other = register(ledger, "other", data=private("clothes"))
    assert (alone.shares_with, other.shares_with) == ((), ())
    assert second.shares_with == ("first",)
    assert third.shares_with == ("first", "second"), "of the same file as one that shares"
    open_part(ledger, "a", "first", 2)
    open_part(ledger, "b", "third", 3)
    reserved = ledger.project("a").terms.cap_budget + ledger.project("b").terms.cap_budget
    assert {ledger.ensemble(name).reserved for name in ("first", "second", "third")} == {reserved}
    assert ledger.ensemble("other").reserved == 0
    with refuses(CapExceeded, "second", "first", "third"):
        open_part(ledger, "c", "second", 3)
    back = gives_back(ledger, ledger.ensemble("second"))
    assert back is not None
    assert back[0].name == "a", "of another ensemble, whose cap it is"
    ledger.set_status("a", ProjectStatus.CLOSED)
    assert ledger.ensemble("second").reserved == ledger.project("b").terms.cap_budget
    open_part(ledger, "c", "second", 3)
    assert all(ledger.verify(name).ok for name in "abc")
    assert ledger.verify_log().ok
    said = [json.loads(json.dumps(e.detail)) for e in ledger.log(limit=100) if "data" in e.action]
    assert [each["cap_of"] for each in said].count("first") == 3
    assert "digits" not in str(said), "nor any digest"


@SQLITE_BY_DAY
def test_what_is_spent_of_a_shared_cap_is_shown_with_each(each_database_url: str) -> None:
    ledger = empty(each_database_url)
    first, second = (register(ledger, name, data=DATA) for name in ("first", "second"))
    open_project(ledger, 3, ensemble="first")
    ledger.charge(ledger.project("study").id, [answered(1)])
    spent = ledger.project("study").cap_spent
    assert ledger.spent_of_caps() == {first.id: spent, second.id: spent}


@SQLITE_BY_DAY
def test_an_owner_says_that_people_are_the_same(each_database_url: str) -> None:
    ledger = empty(each_database_url)
    register(ledger, "first")
    imported = register(ledger, "imported", shares_cap_of="first")
    assert imported.shares_with == ("first",)
    later = register(ledger, "later", data=private("more"), shares_cap_of="imported")
    assert later.shares_with == ("first", "imported")
    assert register(ledger, "last", data=private("more")).shares_with == (
        *later.shares_with,
        "later",
    )
    with refuses(NotFound, "nobody"):
        register(ledger, "lost", shares_cap_of="nobody")
    assert ledger.verify_log().ok


@SQLITE_BY_DAY
def test_what_cannot_be_one_cap_is_refused_in_words(each_database_url: str) -> None:
    ledger = empty(each_database_url)
    register(ledger, "first", data=DATA)
    register(ledger, "clothes", data=private("clothes"))
    before = ledger.log(limit=100)
    with refuses(Conflict, "first", "--epsilon", 20.0, "--delta", 1e-05):
        register(ledger, "second", 19.0, data=DATA)
    grouped = FACTS.model_copy(update={"group_column": "patient"})
    with refuses(Conflict, "first", "patient", "record"):
        register(ledger, "second", data=DATA, facts=grouped)
    with refuses(Conflict, "second", "clothes", "first", "cap"):
        register(ledger, "second", data=private("digits", "clothes"))
    with refuses(Conflict, "second", "first", "cap"):
        register(ledger, "second", data=DATA, shares_cap_of="clothes")
    with refuses(Conflict, "first", "key", "--shares-cap-of"):
        register(ledger, "second", data=private("new", key="another"))
    assert ledger.log(limit=100) == before, "nothing was recorded"
    said = register(ledger, "second", data=private("new", key="another"), shares_cap_of="first")
    assert said.shares_with == ("first",)
    declared = FACTS.model_copy(update={"disjoint_by": "hospital"})
    assert register(ledger, "third", shares_cap_of="first", facts=declared).shares_with


@SQLITE_BY_DAY
def test_people_who_come_keep_the_cap_of_their_data(each_database_url: str) -> None:
    """What an edition adds is known from then on; people whose data have another cap stay out."""
    ledger = empty(each_database_url)
    register_people(ledger)
    open_study(ledger)
    register(ledger, "digits", data=private("others"))
    with refuses(Conflict, "digits", "cap"):
        ledger.make_edition("people", 2, "22" * 32, PEOPLE + 2, [], data=private("others"))
    assert ledger.ensemble("people").edition == ledger.editions("people")[0]
    ledger.make_edition("people", 2, "22" * 32, PEOPLE + 2, [], data=private("more", "both"))
    with refuses(Conflict, "people", 20.0):
        register(ledger, "trained", 3.0, data=private("more"))
    assert register(ledger, "trained", data=private("both")).shares_with == ("people",)
    assert ledger.verify_log().ok
    assert ledger.verify("study").ok


@SQLITE_BY_DAY
@pytest.mark.slow
def test_projects_opened_at_once_on_ensembles_of_the_same_data_never_exceed_the_cap(
    each_database_url: str,
) -> None:
    """The cap holds 5 such budgets; 4 processes try 3 each, on two ensembles, the counting one
    and the other, and close what they opened last."""
    ledger = empty(each_database_url)
    cap = register(ledger, "mnist", data=DATA).cap
    register(ledger, "again", data=DATA)
    part = replace(terms(1), budget=cap // 5, cap_budget=cap // 5)
    work = [
        (each_database_url, [f"p{n}-{i}" for i in range(3)], part, ("mnist", "again")[n % 2])
        for n in range(4)
    ]
    processes = in_processes(open_projects_on, *work)
    assert [process.exitcode for process in processes] == [0] * 4
    found = ledger.projects()
    opened = [each for each in found if each.status is ProjectStatus.ACTIVE]
    assert len(opened) == 5, "and what was closed came back"
    assert {each.ensemble.reserved for each in found} == {5 * (cap // 5)}
    assert all(ledger.verify(each.name).ok for each in found)


@POSTGRESQL_BY_DAY
@pytest.mark.slow
def test_the_same_data_registered_at_once_have_one_cap(each_database_url: str) -> None:
    ledger = empty(each_database_url)
    names = [f"e{n}" for n in range(4)]
    in_processes(register_data, *[(each_database_url, name, "digits") for name in names])
    assert [len(each.shares_with) for each in ledger.ensembles()] == [3] * 4
    assert len({each.cap_id for each in ledger.ensembles()}) == 1
    assert ledger.verify_log().ok


@POSTGRESQL_BY_DAY
def test_threads_that_open_and_close_on_both_never_wait_for_each_other_in_a_circle(
    each_database_url: str,
) -> None:
    ledger = empty(each_database_url)
    register_people(ledger)
    register(ledger, "trained", shares_cap_of="people")
    open_study(ledger)

    def work(client: int) -> None:
        own = Ledger(connect(each_database_url), SECRET_KEY)
        for n in range(3):
            name = f"c{client}-{n}"
            if client % 3 == 0:
                open_study(own, name=name)
            else:
                open_part(own, name, "trained", 60)
            own.set_status(name, ProjectStatus.CLOSED)

    def edit(client: int) -> None:
        own = Ledger(connect(each_database_url), SECRET_KEY)
        own.make_edition("people", 2, "22" * 32, PEOPLE, [client])

    at_once(4, lambda client: edit(client) if client == 3 else work(client))
    assert len(ledger.editions("people")) == 2
    assert ledger.ensemble("trained").reserved == ledger.project("study").terms.cap_budget
    assert ledger.verify_log().ok


def test_an_ensemble_whose_row_went_is_refused_by_everybody(database_url: str) -> None:
    """Whoever removed it would have given the ensemble a cap of its own."""
    ledger = empty(database_url)
    for name in ("first", "second"):
        register(ledger, name, data=DATA)
    open_part(ledger, "a", "second", 2)
    engine = connect(database_url)
    with engine.connect() as connection:
        for trigger in ("private_data_no_delete", "private_data_fixed"):
            connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
        second = connection.execute(
            select(ensembles.c.id).where(ensembles.c.name == "second")
        ).scalar_one()
        connection.execute(update(private_data).values(cap_id=second))
        connection.commit()
        for act in (
            lambda: ledger.ensemble("second"),
            lambda: ledger.project("a"),
            lambda: open_part(ledger, "b", "second", 4),
            lambda: open_part(ledger, "b", "first", 4),
            lambda: ledger.set_status("a", ProjectStatus.CLOSED),
            lambda: register(ledger, "third", data=DATA),
        ):
            with refuses(LedgerCorrupted, "cap"):
                act()
        connection.execute(private_data.delete())
        connection.commit()
    for name in ("first", "second"):
        with refuses(LedgerCorrupted, name, "cap"):
            ledger.ensemble(name)
    assert not ledger.verify("a").ok
    holds(ledger.verify_log().problems, "data", "second", "gone")
