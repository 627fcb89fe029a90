"""One cap for a population, however many ensembles are made of it: never is more reserved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from support.databases import POSTGRESQL_BY_DAY, SECRET_KEY, SQLITE_BY_DAY, migrated
from support.ledgers import (
    FACTS,
    GNMAX,
    RECORDS,
    answered,
    charge_one,
    digest,
    open_project,
    open_study,
    register,
    register_people,
    terms,
)
from support.processes import at_once, in_processes
from support.wording import holds, refuses
from support.workers import open_projects_on, register_in
from terrine_protocol import ProjectStatus
from terrine_server.errors import CapExceeded, Conflict, InvalidTerms, LedgerCorrupted, NotFound
from terrine_server.ledger import EnsembleRecord, Ledger, NewProject, connect
from terrine_server.ledger.schema import ensembles
from terrine_server.owner.operations import find_largest_return
from terrine_server.privacy import Cap, Terms, cap

GROUPED = FACTS.model_copy(update={"group_column": "patient"})


def empty(url: str) -> Ledger:
    return Ledger(migrated(url), SECRET_KEY)


def registered(ledger: Ledger, name: str, limit: Cap | None = None, **given: Any) -> EnsembleRecord:
    """Register as an owner does, who may leave population and cap out."""
    facts, units = given.pop("facts", FACTS), given.pop("units", RECORDS)
    manifest = digest(name).hex()
    return ledger.ensembles.register(
        name, f"ensembles/{name}", manifest, facts, units, limit, **given
    )


def share(of: EnsembleRecord, parts: int) -> Terms:
    """Terms that reserve one of so many parts of a cap."""
    part = of.population.cap // parts
    return replace(terms(1), budget=part, cap_budget=part)


def open_part(ledger: Ledger, name: str, ensemble: str, parts: int) -> None:
    wanted = share(ledger.ensembles.get(ensemble), parts)
    ledger.projects.open(NewProject(name, ensemble, GNMAX, wanted))


def test_everything_in_a_ledger_shares_one_cap_unless_its_owner_says_otherwise(
    each_database_url: str,
) -> None:
    ledger = empty(each_database_url)
    first = registered(ledger, "first", cap(20.0, 1e-5))
    assert (first.population.name, first.population.disjoint_from) == ("people", ())
    second = registered(ledger, "second")
    third = registered(ledger, "third", cap(20.0, 1e-5), population="people")
    assert {each.population.id for each in (first, second, third)} == {first.population.id}
    staff = registered(ledger, "staff", cap(3.0, 1e-5), population="staff", disjoint=True)
    assert staff.population.disjoint_from == ("people",)
    open_part(ledger, "a", "first", 2)
    open_part(ledger, "b", "third", 3)
    reserved = ledger.projects.get("a").terms.cap_budget + ledger.projects.get("b").terms.cap_budget
    found = {each.name: each for each in ledger.ensembles.list_populations()}
    assert {name: each.reserved for name, each in found.items()} == {"people": reserved, "staff": 0}
    with refuses(CapExceeded, "people"):
        open_part(ledger, "c", "second", 3)
    back = find_largest_return(ledger, found["people"])
    assert back is not None
    assert back[0].name == "a", "of another ensemble, whose cap it is"
    ledger.projects.set_status("a", ProjectStatus.CLOSED)
    left = ledger.ensembles.get("second").population.reserved
    assert left == ledger.projects.get("b").terms.cap_budget
    open_part(ledger, "c", "second", 3)
    assert all(ledger.verifier.verify_project(name).ok for name in "abc")
    assert ledger.verifier.verify_log().ok
    said = [each for each in ledger.log.list(limit=100) if each.action == "population-declared"]
    stated = [(each.subject, each.detail["disjoint_from"]) for each in said]
    assert stated == [("people", "[]"), ("staff", '["people"]')]


@pytest.mark.parametrize(
    "other",
    [
        {"units": RECORDS - 1},
        {"facts": FACTS.model_copy(update={"classes": ["no", "yes"]})},
        {"facts": FACTS.model_copy(update={"kind": "networks", "teachers": 7})},
        {"facts": FACTS.model_copy(update={"disjoint_by": "one model per hospital"})},
    ],
    ids=["a record less", "other labels", "other teachers", "imported"],
)
def test_no_private_record_decides_whose_cap_it_is(
    database_url: str, other: dict[str, Any]
) -> None:
    """Two files that differ in anything: the second never has a cap of its own by itself."""
    ledger = empty(database_url)
    registered(ledger, "first", cap(3.0, 1e-5))
    assert registered(ledger, "second", **other).population.name == "people"
    with refuses(Conflict, "people", "3", "--epsilon"):
        registered(ledger, "third", cap(2.9, 1e-5), **other)
    assert len(ledger.ensembles.list_populations()) == 1


@SQLITE_BY_DAY
def test_what_is_spent_of_a_shared_cap_is_that_of_all(each_database_url: str) -> None:
    ledger = empty(each_database_url)
    first = register(ledger, "first", population="people")
    register(ledger, "second", population="people")
    open_project(ledger, 3, ensemble="first")
    charge_one(ledger, ledger.projects.get("study").id, [answered(1)])
    spent = ledger.projects.get("study").cap_spent
    assert ledger.projects.spent_of_caps() == {first.population.id: spent}


@SQLITE_BY_DAY
def test_what_cannot_be_one_cap_is_refused_and_nothing_is_recorded(each_database_url: str) -> None:
    ledger = empty(each_database_url)
    with refuses(InvalidTerms, "people", "--epsilon"):
        registered(ledger, "first")
    with refuses(InvalidTerms, "People", "population"):
        registered(ledger, "first", cap(3.0, 1e-5), population="The People")
    registered(ledger, "first", cap(20.0, 1e-5))
    before = ledger.log.list(limit=100)
    for limit in (cap(19.0, 1e-5), cap(20.0, 1e-6), cap(20.0, 1e-5, 12.0)):
        with refuses(Conflict, "people", "20", "without", "--epsilon"):
            registered(ledger, "second", limit)
    with refuses(Conflict, "first", "record", "--disjoint"):
        registered(ledger, "second", facts=GROUPED)
    with refuses(NotFound, "persons", "people", "--disjoint"):
        registered(ledger, "second", cap(3.0, 1e-5), population="persons")
    with refuses(Conflict, "people", "--disjoint"):
        registered(ledger, "second", population="people", disjoint=True)
    with refuses(InvalidTerms, "staff", "--epsilon"):
        registered(ledger, "second", population="staff", disjoint=True)
    with refuses(InvalidTerms, "people", "1e-05", "100000"):
        registered(ledger, "second", units=100_000)
    assert ledger.log.list(limit=100) == before
    assert [each.name for each in ledger.ensembles.list_populations()] == ["people"]
    registered(ledger, "staff", cap(3.0, 1e-5), population="staff", disjoint=True, facts=GROUPED)
    with refuses(Conflict, "people", "staff"):
        registered(ledger, "second")


@SQLITE_BY_DAY
def test_no_more_people_come_than_the_delta_of_the_cap_allows(each_database_url: str) -> None:
    ledger = empty(each_database_url)
    register_people(ledger)
    open_study(ledger)
    with refuses(InvalidTerms, "1e-05", "100000"):
        ledger.ensembles.make_edition("people", 2, "22" * 32, 100_001, [0])
    assert ledger.ensembles.get("people").edition == ledger.ensembles.list_editions("people")[0]
    ledger.ensembles.make_edition("people", 2, "22" * 32, 100_000, [0])
    ledger.ensembles.make_edition("people", 3, "33" * 32, 100_000, [0, 1])


@pytest.mark.slow
def test_projects_opened_at_once_on_ensembles_of_one_population_never_exceed_its_cap(
    each_database_url: str,
) -> None:
    """The cap holds 5 such budgets; 4 processes try 3 each, on two ensembles, and close what they
    opened last."""
    ledger = empty(each_database_url)
    limit = register(ledger, "mnist", population="people").population.cap
    register(ledger, "again", population="people")
    part = replace(terms(1), budget=limit // 5, cap_budget=limit // 5)
    work = [
        (each_database_url, [f"p{n}-{i}" for i in range(3)], part, ("mnist", "again")[n % 2])
        for n in range(4)
    ]
    processes = in_processes(open_projects_on, *work)
    assert [process.exitcode for process in processes] == [0] * 4
    found = ledger.projects.list()
    opened = [each for each in found if each.status is ProjectStatus.ACTIVE]
    assert len(opened) == 5, "and what was closed came back"
    assert {each.ensemble.population.reserved for each in found} == {5 * (limit // 5)}
    assert all(ledger.verifier.verify_project(each.name).ok for each in found)


@POSTGRESQL_BY_DAY
@pytest.mark.slow
@pytest.mark.parametrize("population", [None, "patients"])
def test_ensembles_registered_at_once_are_of_one_population(
    each_database_url: str, population: str | None
) -> None:
    ledger = empty(each_database_url)
    work = [(each_database_url, f"e{n}", population) for n in range(4)]
    assert [each.exitcode for each in in_processes(register_in, *work)] == [0] * 4
    assert len(ledger.ensembles.list()) == 4
    assert [each.name for each in ledger.ensembles.list_populations()] == [population or "people"]
    assert ledger.verifier.verify_log().ok


@POSTGRESQL_BY_DAY
def test_threads_that_open_and_close_on_both_never_wait_for_each_other_in_a_circle(
    each_database_url: str,
) -> None:
    ledger = empty(each_database_url)
    register_people(ledger)
    register(ledger, "trained", facts=GROUPED, population="patients")
    open_study(ledger)

    def work(client: int) -> None:
        own = Ledger(connect(each_database_url), SECRET_KEY)
        for n in range(3):
            name = f"c{client}-{n}"
            if client % 3 == 0:
                open_study(own, name=name)
            else:
                open_part(own, name, "trained", 60)
            own.projects.set_status(name, ProjectStatus.CLOSED)

    def edit(client: int) -> None:
        own = Ledger(connect(each_database_url), SECRET_KEY)
        slots = own.ensembles.list_editions("people")[0].slots
        own.ensembles.make_edition("people", 2, "22" * 32, slots, [client])

    at_once(4, lambda client: edit(client) if client == 3 else work(client))
    assert len(ledger.ensembles.list_editions("people")) == 2
    reserved = ledger.ensembles.get("trained").population.reserved
    assert reserved == ledger.projects.get("study").terms.cap_budget
    assert ledger.verifier.verify_log().ok


def test_an_ensemble_that_was_moved_is_refused_by_everybody(database_url: str) -> None:
    """Whoever moved it would have given it another cap."""
    ledger = empty(database_url)
    for name in ("first", "second"):
        register(ledger, name, population="people")
    other = register(ledger, "other").population.id
    open_part(ledger, "a", "second", 2)
    with connect(database_url).connect() as connection:
        connection.exec_driver_sql("DROP TRIGGER ensembles_fixed")
        second = ensembles.c.name == "second"
        moved = update(ensembles).where(second).values(population_id=other)
        connection.execute(moved)
        connection.commit()
        for act in (
            lambda: ledger.ensembles.get("second"),
            lambda: ledger.projects.get("a"),
            lambda: open_part(ledger, "b", "second", 4),
            lambda: ledger.projects.set_status("a", ProjectStatus.CLOSED),
            lambda: register(ledger, "third", population="people"),
        ):
            with refuses(LedgerCorrupted, "second"):
                act()
    assert not ledger.verifier.verify_project("a").ok
    holds(ledger.verifier.verify_log().problems, "ensemble", "second", "seal")
