"""A cap is shared by every project of its ensemble, and terms are for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from support.databases import SECRET_KEY
from support.ledgers import (
    CLASSES,
    CONFIDENT,
    FACTS,
    GNMAX,
    IMMUTABLE,
    LNMAX,
    RECORDS,
    STABLE,
    TEACHERS,
    answered,
    charge_one,
    digest,
    open_ledger,
    open_project,
    register,
    terms,
)
from support.wording import refuses
from terrine_protocol import ProjectStatus
from terrine_server.errors import CapExceeded, Conflict, InvalidTerms, NotFound
from terrine_server.ledger import Ledger, NewProject, connect
from terrine_server.privacy import build_mechanism, cap, quote


@pytest.fixture
def ledger(database_url: str) -> Ledger:
    return open_ledger(database_url, epsilon=4.0)


@pytest.fixture
def each_ledger(each_database_url: str) -> Ledger:
    return open_ledger(each_database_url, epsilon=4.0)


def test_an_ensemble_is_remembered_as_registered(ledger: Ledger) -> None:
    limit, ensemble = cap(4.0, 1e-5), ledger.ensembles.get("mnist")
    people = ensemble.population
    assert ledger.ensembles.list() == [ensemble]
    assert (people.cap, people.delta_cap) == (limit.budget, limit.delta_budget)
    assert (people.epsilon, people.delta) == (4.0, 1e-5)
    assert (people.reserved, people.delta_reserved) == (0, 0)
    assert (ensemble.facts, ensemble.units) == (FACTS, RECORDS)
    assert ensemble.manifest_sha256 == digest("mnist").hex()
    with pytest.raises(NotFound):
        ledger.ensembles.get("nobody")


def test_the_same_teachers_never_get_a_second_cap(ledger: Ledger) -> None:
    with pytest.raises(Conflict):
        register(ledger, "mnist")
    with pytest.raises(Conflict):
        ledger.ensembles.register(
            "mnist-again", "elsewhere", digest("mnist").hex(), FACTS, RECORDS, cap(4.0, 1e-5)
        )


@pytest.mark.parametrize("delta", [1 / RECORDS, 1e-4])
def test_a_delta_of_one_record_or_more_is_refused(ledger: Ledger, delta: float) -> None:
    with refuses(InvalidTerms, "1/60000"):
        register(ledger, "other", cap(4.0, delta))
    with refuses(InvalidTerms, "1/60000"):
        ledger.projects.open(NewProject("study", "mnist", GNMAX, terms(1, delta=delta)))
    assert ledger.ensembles.get("mnist").population.reserved == 0


@pytest.mark.parametrize("name", ["", "Study", "-study", "a b", "x" * 65, "étude", "a/b"])
def test_a_name_that_no_url_could_hold_is_refused(ledger: Ledger, name: str) -> None:
    with pytest.raises(InvalidTerms):
        open_project(ledger, 1, name=name)
    with pytest.raises(InvalidTerms):
        register(ledger, name)


@pytest.mark.parametrize(
    "mechanism", [GNMAX, CONFIDENT, LNMAX, STABLE, IMMUTABLE], ids=lambda m: m["name"]
)
def test_opening_reserves_and_closing_returns_what_was_not_spent(
    ledger: Ledger, mechanism: dict[str, Any]
) -> None:
    project = open_project(ledger, 3, mechanism)
    opened = ledger.ensembles.get("mnist")
    assert opened.population.reserved == project.terms.cap_budget
    assert opened.population.delta_reserved == project.terms.delta_budget

    after = charge_one(ledger, project.id, [answered(1)]).project
    assert ledger.ensembles.get("mnist").population.reserved == opened.population.reserved, (
        "charging reserves no more"
    )

    closed = ledger.projects.set_status("study", ProjectStatus.CLOSED)
    assert closed.closed_at is not None
    assert closed.ensemble == ledger.ensembles.get("mnist")
    assert closed.ensemble.population.reserved == after.cap_spent == project.terms.worst.cap_cost
    assert closed.ensemble.population.delta_reserved == after.delta_spent
    assert ledger.verifier.verify_project("study").ok


def test_what_was_returned_can_be_reserved_again(ledger: Ledger) -> None:
    everything = ledger.ensembles.get("mnist").population.cap
    whole = replace(terms(1), budget=everything, cap_budget=everything)
    ledger.projects.open(NewProject("first", "mnist", GNMAX, whole))
    with pytest.raises(CapExceeded) as refusal:
        ledger.projects.open(NewProject("second", "mnist", GNMAX, terms(1)))
    assert refusal.value.extras["available"] == 0
    assert refusal.value.extras["required"] == terms(1).cap_budget
    ledger.projects.set_status("first", ProjectStatus.CLOSED)
    ledger.projects.open(NewProject("second", "mnist", GNMAX, terms(1)))
    assert all(ledger.verifier.verify_project(name).ok for name in ("first", "second"))


def test_terms_come_back_exactly_as_they_were_opened(ledger: Ledger) -> None:
    mechanism = build_mechanism(CONFIDENT, teachers=TEACHERS, classes=CLASSES)
    quoted = quote(mechanism, 1.0, 1e-6)
    ledger.projects.open(NewProject("study", "mnist", CONFIDENT, quoted))
    project = ledger.projects.get("study")
    assert project.terms == quoted
    assert project.mechanism == CONFIDENT
    assert project.events == {o: event.to_json() for o, event in mechanism.events().items()}
    assert project.status is ProjectStatus.ACTIVE
    assert (project.charges, project.head) == (0, project.genesis)


@pytest.mark.parametrize(
    ("mechanism", "why"),
    [
        (CONFIDENT, "quoted"),
        ({"name": "gnmax", "sigma": 0.0}, "sigma"),
        ({"name": "gnmaxx", "sigma": 40.0}, "gnmaxx"),
    ],
    ids=["other outcomes", "no noise", "unknown"],
)
def test_terms_of_another_mechanism_are_refused(
    ledger: Ledger, mechanism: dict[str, Any], why: str
) -> None:
    with refuses(InvalidTerms, *why.split()):
        ledger.projects.open(NewProject("study", "mnist", mechanism, terms(2, GNMAX)))


@pytest.mark.parametrize("amount", [-1, 2**63])
def test_amounts_beyond_what_is_counted_are_refused(ledger: Ledger, amount: int) -> None:
    for name in ("budget", "delta_budget", "cap_budget"):
        with refuses(InvalidTerms, name, amount):
            changed: Any = {name: amount}
            ledger.projects.open(NewProject("study", "mnist", GNMAX, replace(terms(1), **changed)))
    limit = cap(4.0, 1e-5)
    for words, wrong, units in (
        ("cap", replace(limit, budget=amount), RECORDS),
        ("delta_cap", replace(limit, delta_budget=amount), RECORDS),
        ("units", replace(limit, delta=1e-25), 2**63),
        ("0", limit, 0),
        ("0", replace(limit, delta=0.0), 1),
    ):
        with refuses(InvalidTerms, words):
            register(ledger, "other", wrong, units=units)


def test_the_largest_and_the_smallest_amounts_are_counted(each_ledger: Ledger) -> None:
    most = 2**63 - 1
    for name, limit, units in (
        ("e", replace(cap(4.0, 1e-5), delta=1e-25, budget=most, delta_budget=0), most),
        ("f", replace(cap(4.0, 0.5), budget=0, delta_budget=most), 1),
    ):
        found = register(each_ledger, name, limit, units=units)
        counted = (found.population.cap, found.population.delta_cap, found.units)
        assert counted == (limit.budget, limit.delta_budget, units)


def test_a_refusal_says_how_much_of_the_cap_is_left(ledger: Ledger) -> None:
    half = ledger.ensembles.get("mnist").population.delta_cap // 2
    share = replace(terms(3, STABLE), delta_budget=half)
    ledger.projects.open(NewProject("first", "mnist", STABLE, share))
    ensemble = ledger.ensembles.get("mnist")
    left = {
        "available": ensemble.population.cap - share.cap_budget,
        "delta_available": ensemble.population.delta_cap - half,
    }
    for name, required in (("cap_budget", "required"), ("delta_budget", "delta_required")):
        most = left["available" if name == "cap_budget" else "delta_available"]
        more: Any = {name: most + 1}
        asked = replace(share, **more)
        with pytest.raises(CapExceeded) as refusal:
            ledger.projects.open(NewProject("second", "mnist", STABLE, asked))
        amounts = {"required": asked.cap_budget, "delta_required": asked.delta_budget}
        assert refusal.value.extras == {**left, **amounts}
        assert refusal.value.extras[required] == most + 1
    whole = replace(share, cap_budget=left["available"], delta_budget=left["delta_available"])
    ledger.projects.open(NewProject("second", "mnist", STABLE, whole))
    assert ledger.ensembles.get("mnist").population.reserved == ensemble.population.cap


def test_a_name_is_never_used_twice(ledger: Ledger) -> None:
    open_project(ledger, 1)
    ledger.projects.set_status("study", ProjectStatus.CLOSED)
    with pytest.raises(Conflict):
        open_project(ledger, 1)
    with refuses(NotFound, "nobody"):
        open_project(ledger, 1, name="other", ensemble="nobody")


def test_pausing_can_be_undone_and_closing_cannot(ledger: Ledger) -> None:
    open_project(ledger, 1)
    for status in (ProjectStatus.PAUSED, ProjectStatus.ACTIVE, ProjectStatus.CLOSED):
        assert ledger.projects.set_status("study", status).status is status
    closed = ledger.projects.get("study")
    assert ledger.projects.set_status("study", ProjectStatus.CLOSED) == closed, (
        "closing twice is no error"
    )
    with pytest.raises(Conflict):
        ledger.projects.set_status("study", ProjectStatus.ACTIVE)
    with pytest.raises(NotFound):
        ledger.projects.set_status("nobody", ProjectStatus.CLOSED)


def test_a_list_of_projects_takes_as_many_statements_however_many_they_are(
    each_ledger: Ledger, each_database_url: str
) -> None:
    engine, statements = connect(each_database_url), list[str]()
    reader = Ledger(engine, SECRET_KEY)
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    needed = set[int]()
    for name in "abcd":
        open_project(each_ledger, 1, name=name)
        statements.clear()
        reader.projects.list()
        needed.add(len(statements))
    assert len(needed) == 1


def test_projects_are_paged_and_filtered(ledger: Ledger) -> None:
    register(ledger, "second")
    for name in ("d", "a", "c", "b"):
        open_project(ledger, 1, name=name, ensemble="second" if name == "c" else "mnist")
    ledger.projects.set_status("b", ProjectStatus.PAUSED)

    def names(**filters: Any) -> list[str]:
        return [project.name for project in ledger.projects.list(**filters)]

    assert names(limit=2) == ["a", "b"]
    assert names(after="b", limit=2) == ["c", "d"]
    assert names(ensemble="mnist") == ["a", "b", "d"]
    assert names(status=ProjectStatus.PAUSED) == ["b"]
    assert names(after="d") == []
