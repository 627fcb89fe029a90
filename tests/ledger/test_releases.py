"""A project may begin with a release: its first charge, made when it is opened, and never again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr
from sqlalchemy import Connection, delete, update

from support.databases import SECRET_KEY, migrated
from support.forgeries import first_finding, rebuild, rows_of
from support.ledgers import (
    CLASSES,
    COUNTED,
    DELTA,
    EPSILON,
    FACTS,
    PUBLISHING_CAP,
    PUBLISHING_CLASSES,
    PUBLISHING_GNMAX,
    PUBLISHING_TEACHERS,
    TEACHERS,
    abstained,
    answered,
    charge_one,
    counted,
    open_project,
    published_terms,
    register,
    unguarded,
    unvoted,
    voted,
)
from support.processes import at_once, in_processes
from support.servers import REPOSITORY
from support.wording import refuses
from support.workers import die_opening
from terrine_addons.audit.ledger import check_project
from terrine_protocol import HistogramRelease, Outcome, ProjectStatus, SumRelease
from terrine_protocol.projects import Release
from terrine_server.errors import BudgetExhausted, CapExceeded, Conflict, InvalidTerms
from terrine_server.ledger import Ledger, NewProject, ProjectRecord, connect
from terrine_server.ledger.chain import canonical_json, release_digest
from terrine_server.ledger.schema import charges, projects
from terrine_server.planning.opening import choose
from terrine_server.privacy import (
    GDP,
    ParameterError,
    SumAnswers,
    Sums,
    Terms,
    build_mechanism,
    cap,
    price,
    quote,
)

HISTOGRAMS = HistogramRelease(sigma=60.0, cells=(40, 5, 2), schema_sha256="5c" * 32)
SUMS = SumRelease(sigma=600.0, norm=100, features=6, classes=CLASSES, map_sha256="5d" * 32)
RELEASED: Sequence[Release] = (HISTOGRAMS, SUMS)
BEGUN = FACTS.model_copy(update={"designed": True, "release": HISTOGRAMS})
SUMMED = FACTS.model_copy(update={"kind": "sums", "teachers": 1, "release": SUMS})


# δ of the ideal mechanism, whose ε it is at the share of δ that converts.
SUMS_EPSILON = float(
    brentq(
        lambda epsilon: (
            ndtr(1 / 6 - 3 * epsilon) - np.exp(epsilon) * ndtr(-1 / 6 - 3 * epsilon) - 0.999e-6
        ),
        1.0,
        2.0,
        xtol=1e-12,
    )
)


def begun_terms(release: Release | None = HISTOGRAMS, epsilon: float = 2.0) -> Terms:
    spec = None if release is None else release.model_dump(mode="json")
    mechanism = {"name": "sums"} if isinstance(release, SumRelease) else COUNTED
    made = build_mechanism(mechanism, teachers=TEACHERS, classes=CLASSES)
    return quote(made, epsilon, 1e-6, release=spec)


def new_project(name: str = "study", release: Release | None = HISTOGRAMS) -> NewProject:
    """On the ensemble of sums, or on that of teachers."""
    if isinstance(release, SumRelease):
        return NewProject(name, "summed", {"name": "sums"}, begun_terms(release))
    return NewProject(name, "mnist", COUNTED, begun_terms(release))


def begun_ledger(url: str) -> Ledger:
    ledger = Ledger(migrated(url), SECRET_KEY)
    register(ledger, "mnist", facts=BEGUN)
    register(ledger, "summed", facts=SUMMED)
    return ledger


@pytest.fixture
def ledger(each_database_url: str) -> Ledger:
    return begun_ledger(each_database_url)


@pytest.fixture
def study(ledger: Ledger, release: Release) -> ProjectRecord:
    """The release, and two answers where any are paid for."""
    opened = ledger.projects.open(new_project(release=release))
    if isinstance(release, SumRelease):
        return opened
    return charge_one(ledger, opened.id, [counted(1), counted(2)]).project


@pytest.fixture
def release() -> Release:
    return HISTOGRAMS


def test_what_a_project_begins_with_is_charged_as_it_is_opened(ledger: Ledger) -> None:
    opened = ledger.projects.open(new_project())
    release = opened.terms.release
    assert release is not None
    assert (opened.charges, opened.account) == (1, opened.terms.start)
    assert opened.spent == release.price.cost > 0
    assert opened.affordable == opened.terms.affordable(opened.terms.start)
    [entry] = ledger.entries.list("study")
    assert (entry.outcome, entry.label, entry.counts) == (Outcome.RELEASED, None, None)
    assert entry.event == {"event": "released_counts", "sigma": 60.0, "squared": 6}
    assert entry.query_digest == entry.input_digest == release_digest(opened.genesis).hex()
    assert ledger.entries.list("study", outcome=Outcome.RELEASED) == [entry]
    assert ledger.entries.history("study").outcomes == {Outcome.RELEASED: 1}
    assert ledger.verifier.verify_project("study").ok
    assert ledger.verifier.verify_log().ok
    assert ledger.tree.grow() is not None
    paid = charge_one(ledger, opened.id, [counted(1)])
    assert paid.results[0].seq == 2
    assert paid.project.account.queries == 1
    assert ledger.entries.history("study").outcomes == {Outcome.ANSWERED: 1, Outcome.RELEASED: 1}
    assert ledger.verifier.verify_project("study").ok


def test_the_budget_ends_as_if_the_release_were_so_many_queries_more(ledger: Ledger) -> None:
    terms = begun_terms()
    few = replace(terms, budget=terms.start.spent + 3 * terms.worst.cost)
    opened = ledger.projects.open(NewProject("study", "mnist", COUNTED, few))
    assert opened.affordable == 3
    answer = charge_one(ledger, opened.id, [counted(query) for query in range(5)])
    assert [result.outcome for result in answer.results] == ["answered"] * 3 + ["refused"] * 2
    assert answer.project.spent == few.budget
    closed = ledger.projects.set_status("study", ProjectStatus.CLOSED)
    assert ledger.ensembles.get("mnist").population.reserved == closed.cap_spent == few.budget
    assert ledger.verifier.verify_project("study").ok


def test_sums_are_all_that_a_project_on_them_ever_pays_for(ledger: Ledger) -> None:
    opened = ledger.projects.open(new_project(release=SUMS))
    terms, paid = opened.terms, opened.terms.release
    assert paid is not None
    assert dict(terms.prices) == {}
    assert (opened.charges, opened.account) == (1, terms.start)
    assert opened.spent == paid.price.cost == opened.cap_spent == terms.cap_budget
    assert terms.budget - opened.spent > 0, "that nobody can spend"
    assert (opened.affordable, terms.most_admitted(opened.account)) == (0, 0)
    assert terms.epsilon_spent(opened.spent) == pytest.approx(SUMS_EPSILON, rel=1e-6)
    [entry] = ledger.entries.list("study")
    assert entry.event == {"event": "released_counts", "sigma": 600.0, "squared": 4 * 100**2}
    for proposal in (counted(1), answered(1), abstained(1), unvoted(1)):
        with pytest.raises(BudgetExhausted):
            charge_one(ledger, opened.id, [proposal])
    assert ledger.projects.get("study").charges == 1
    assert ledger.ensembles.get("summed").population.reserved == terms.cap_budget
    closed = ledger.projects.set_status("study", ProjectStatus.CLOSED)
    assert ledger.ensembles.get("summed").population.reserved == closed.cap_spent == opened.spent
    assert ledger.verifier.verify_project("study").ok
    assert list(check_project(ledger, closed)) == []
    assert Terms.from_json(json.loads(json.dumps(terms.to_json()))) == terms


def test_a_second_project_on_sums_pays_as_its_students_are_told_them_too(ledger: Ledger) -> None:
    population = register(ledger, "few", cap(2.0, 1e-5), SUMMED).population
    price = begun_terms(SUMS).cap_budget
    fits = population.cap // price
    opened = [replace(new_project(f"study-{each}", SUMS), ensemble="few") for each in range(fits)]
    for each in opened:
        assert ledger.projects.open(each).spent == price
    with pytest.raises(CapExceeded):
        ledger.projects.open(replace(opened[0], name="one-more"))
    assert fits > 1
    reserved = ledger.ensembles.get("few").population.reserved
    assert population.cap - price < reserved == fits * price


@pytest.mark.parametrize("order", [None, 20.0])
def test_what_sums_cost_must_fit_in_the_budget(order: float | None) -> None:
    """Whichever way a cap adds up, to the last unit."""
    rule, mechanism = cap(20.0, 1e-5, order).rule, SumAnswers(1, CLASSES)
    spec = SUMS.model_dump(mode="json")
    enough = quote(mechanism, 1.001 * SUMS_EPSILON, 1e-6, cap_rule=rule, release=spec)
    assert enough.rule == GDP
    assert enough.start.spent <= enough.budget < 1.01 * enough.start.spent
    assert enough.cap_budget == price(Sums(600.0, 100, 6, CLASSES, "").event, rule, rule).cost
    with refuses(ParameterError, "sums", "epsilon"):
        quote(mechanism, 0.999 * SUMS_EPSILON, 1e-6, cap_rule=rule, release=spec)
    chosen = choose(mechanism, 2.0, 1e-6, cap_rule=rule, release=spec).terms
    assert (chosen.cap_budget, chosen.release) == (enough.cap_budget, enough.release)


@pytest.mark.parametrize("release", RELEASED, ids=lambda each: each.kind)
def test_two_servers_that_open_it_at_once_charge_it_once(
    release: Release, ledger: Ledger, each_database_url: str
) -> None:
    servers = [ledger, Ledger(connect(each_database_url), SECRET_KEY)]

    def attempt(number: int) -> str:
        try:
            return servers[number % 2].projects.open(new_project(release=release)).name
        except Conflict as error:
            return error.problem

    assert sorted(at_once(4, attempt)) == ["conflict"] * 3 + ["study"]
    assert [entry.outcome for entry in ledger.entries.list("study")] == ["released"]
    assert ledger.verifier.verify_project("study").ok
    opened = ledger.projects.get("study")
    assert opened.ensemble.population.reserved == opened.terms.cap_budget


def test_each_project_on_the_ensemble_pays_for_what_its_students_are_told(ledger: Ledger) -> None:
    for name in ("study", "second"):
        assert ledger.projects.open(new_project(name)).charges == 1
    for release in (None, HISTOGRAMS.model_copy(update={"sigma": 61.0})):
        with refuses(InvalidTerms, "begin"):
            ledger.projects.open(new_project("third", release))
    register(ledger, "plain")
    with refuses(InvalidTerms, "begin"):
        ledger.projects.open(replace(new_project("third"), ensemble="plain"))
    assert open_project(ledger, 3, ensemble="plain", name="third").charges == 0


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASED, ids=lambda each: each.kind)
def test_killed_as_it_is_opened_it_is_charged_with_its_project_or_not_at_all(
    release: Release, each_database_url: str
) -> None:
    ledger = begun_ledger(each_database_url)
    for step in count():
        name = f"study-{step}"
        new = new_project(name, release)
        [process] = in_processes(die_opening, (each_database_url, new, step))
        names = ledger.projects.list_names()
        if name in names:
            assert ledger.projects.get(name).charges == 1
            assert ledger.verifier.verify_project(name).ok
            assert process.exitcode == 0
            break
        assert process.exitcode == -signal.SIGKILL
        assert ledger.ensembles.get(new.ensemble).population.reserved == 0
    assert step >= 8, "it took fewer steps than the test reckons with"


def test_published_figures_leave_what_was_released_first(each_database_url: str) -> None:
    ledger = Ledger(migrated(each_database_url), SECRET_KEY)
    facts = BEGUN.model_copy(update={"teachers": PUBLISHING_TEACHERS})
    register(ledger, "thousand", PUBLISHING_CAP, facts)
    plain = published_terms()
    assert plain.schedule is not None
    terms = quote(
        build_mechanism(PUBLISHING_GNMAX, teachers=PUBLISHING_TEACHERS, classes=PUBLISHING_CLASSES),
        EPSILON,
        DELTA,
        cap_rule=PUBLISHING_CAP.rule,
        publishing=(plain.schedule.publication, plain.schedule.counts),
        release=HISTOGRAMS.model_dump(mode="json"),
    )
    opened = ledger.projects.open(NewProject("study", "thousand", PUBLISHING_GNMAX, terms))
    queries = range(plain.schedule.counts[0] + 1)
    after = charge_one(ledger, opened.id, voted(opened, queries)).project
    [figure] = after.published
    assert figure.queries == figure.seq - 2, "neither the release nor itself"
    assert after.spent > terms.start.spent + plain.schedule.price.cost
    assert after.account.queries == len(queries)
    assert ledger.entries.history("study").reached[-1].spent == after.spent
    assert ledger.verifier.verify_project("study").ok


@pytest.mark.parametrize("release", RELEASED, ids=lambda each: each.kind)
def test_an_auditor_checks_it_with_an_export_alone(
    study: ProjectRecord, ledger: Ledger, tmp_path: Path
) -> None:
    lines = list(ledger.exports.export_project("study"))
    file = tmp_path / "study.jsonl"
    assert first_finding(file, lines) == ""
    checker = [sys.executable, str(REPOSITORY / "docs" / "check_chain.py"), str(file)]
    checked = subprocess.run(checker, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout.count("intact")) == (0, 1), checked.stdout


def drop_release(connection: Connection) -> None:
    """Numbered and chained anew without the release, and its price given back."""
    entries = rows_of(connection)
    first = entries[0]
    rebuild(connection, entries[1:])
    back = {"spent": "cost", "delta_spent": "delta", "cap_spent": "cap_cost"}
    less = {name: projects.c[name] - first[part] for name, part in back.items()}
    connection.execute(update(projects).where(projects.c.id == 1).values(charges=2, **less))


def make_second(connection: Connection) -> None:
    """Charged again for an answer."""
    entries = rows_of(connection)
    again = {**entries[0], "query_digest": bytes(32), "input_digest": bytes(32)}
    rebuild(connection, [*entries[:2], again])


def charge_twice(connection: Connection) -> None:
    """Once more, as a second release."""
    entries = rows_of(connection)
    again = {**entries[0], "query_digest": bytes(32), "input_digest": bytes(32)}
    rebuild(connection, [entries[0], again, *entries[1:]])
    columns = {"spent": "cost", "delta_spent": "delta", "cap_spent": "cap_cost"}
    more = {name: projects.c[name] + entries[0][part] for name, part in columns.items()}
    more |= {"charges": len(entries) + 1}
    connection.execute(update(projects).where(projects.c.id == 1).values(**more))


def never_charge(connection: Connection) -> None:
    """No entry at all, as before it was opened."""
    connection.execute(delete(charges))
    empty = {"charges": 0, "spent": 0, "delta_spent": 0, "cap_spent": 0}
    connection.execute(update(projects).values(head=projects.c.genesis, **empty))


def cheaper(connection: Connection) -> None:
    """At half its price."""
    entries = rows_of(connection)
    half = entries[0]["cost"] // 2
    rebuild(connection, [{**entries[0], "cost": half}, *entries[1:]])
    less = projects.c.spent - (entries[0]["cost"] - half)
    connection.execute(update(projects).where(projects.c.id == 1).values(spent=less))


def quieter(connection: Connection) -> None:
    """With half the noise."""
    entries = rows_of(connection)
    event = json.loads(entries[0]["event"])
    event = canonical_json({**event, "sigma": event["sigma"] / 2})
    rebuild(connection, [{**entries[0], "event": event}, *entries[1:]])


@pytest.mark.parametrize("each_database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("release", "forge", "said", "checked"),
    [
        (HISTOGRAMS, drop_release, "begins", True),
        (HISTOGRAMS, make_second, "begins", True),
        *(
            (release, *forged)
            for release in RELEASED
            for forged in (
                (never_charge, "begins", True),
                (charge_twice, "begins", True),
                (cheaper, "price", True),
                (quieter, "event", False),
            )
        ),
    ],
)
def test_a_forged_release_is_found_in_spite_of_the_key(
    forge: Callable[[Connection], None],
    said: str,
    checked: bool,
    study: ProjectRecord,
    ledger: Ledger,
    each_database_url: str,
    tmp_path: Path,
) -> None:
    """Also by docs/check_chain.py, which does not know what events cost."""
    lines = list(ledger.exports.export_project("study"))
    with unguarded(each_database_url) as connection:
        forge(connection)
        account = dict(connection.execute(projects.select()).mappings().one())
        forged = rows_of(connection)
    assert any(said in problem for problem in ledger.verifier.verify_project("study").problems)
    names = ("charges", "spent", "delta_spent", "cap_spent")
    first = {**lines[0]["account"], **{name: account[name] for name in names}}
    first["head"] = account["head"].hex()
    entries = [
        {
            **lines[1],
            **{name: entry[name] for name in ("seq", "outcome", "label", "cost", "delta")},
            "cap_cost": entry["cap_cost"],
            "event": json.loads(entry["event"]),
            "created_at": entry["created_at"].strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            **{name: entry[name].hex() for name in ("query_digest", "input_digest", "hash")},
            **({} if entry["counts"] is None else {"counts": json.loads(entry["counts"])}),
        }
        for entry in forged
    ]
    file = tmp_path / "forged.jsonl"
    assert said in first_finding(file, [{**lines[0], "account": first}, *entries])
    checker = [sys.executable, str(REPOSITORY / "docs" / "check_chain.py"), str(file)]
    found = subprocess.run(checker, capture_output=True, text=True, check=False)
    assert found.returncode == int(checked), found.stdout
