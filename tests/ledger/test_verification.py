"""`verify` recomputes the books and finds whatever was done to them."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from books import (
    CONFIDENT,
    LNMAX,
    STABLE,
    abstained,
    answered,
    digest,
    open_ledger,
    open_project,
    register,
    reseal,
    unguarded,
)
from forging import (
    account,
    add,
    altered,
    cut,
    rebuild,
    rehash,
    remove,
    rewrite,
    rows_of,
    swap,
    write,
)
from migrated import SECRET_KEY
from sqlalchemy import Connection, Table, select, update

from terrine_protocol import ProjectStatus
from terrine_server.errors import DatabaseUnavailable, NotFound
from terrine_server.ledger import Ledger, VerificationRecord, connect
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store.tables import charges, ensembles, projects
from terrine_server.ledger.verifying.walk import verify_project

ENTRIES = 6


@pytest.fixture
def ledger(database_url: str) -> Ledger:
    """Six charges of both outcomes in `study`, and another project beside it."""
    ledger = open_ledger(database_url)
    project = open_project(ledger, 10, CONFIDENT)
    ledger.charge(
        project.id, [abstained(i) if i % 3 == 1 else answered(i, i) for i in range(ENTRIES)]
    )
    other = open_project(ledger, 5, LNMAX, name="other")
    ledger.charge(other.id, [answered("elsewhere")])
    assert ledger.verify("study").ok
    assert ledger.verify("other").ok
    return ledger


@pytest.fixture
def forger(ledger: Ledger, database_url: str) -> Iterator[Connection]:
    """A connection without guards, whose forgeries are verified and then rolled back."""
    with unguarded(database_url) as connection:
        connection.commit()
        yield connection


def verified(
    forger: Connection, forge: Callable[[Connection], object], name: str
) -> VerificationRecord:
    """What `verify` says of the books after a forgery, which is then undone."""
    forge(forger)
    reseal(forger)
    found = verify_project(forger, Seals(SECRET_KEY), name)
    forger.rollback()
    return found


def test_one_altered_field_of_any_charge_is_found(forger: Connection) -> None:
    for row in rows_of(forger):
        seq = row["seq"]
        for column in row.keys() - {"project_id", "seq"}:
            forge = partial(write, seq=seq, values={column: altered(row[column])})
            found = verified(forger, forge, "study")
            assert found.problems, f"{column} of entry {seq}"
            assert found.problems[0].startswith(f"entry {seq}: altered"), f"{column}: {found}"
    assert verify_project(forger, Seals(SECRET_KEY), "study").ok


def test_a_renumbered_charge_is_found(forger: Connection) -> None:
    def first_finding(seq: int, renumbered: int) -> str:
        found = verified(forger, partial(write, seq=seq, values={"seq": renumbered}), "study")
        return found.problems[0]

    assert first_finding(1, 100) == "entry 1: missing"
    assert first_finding(3, 0).startswith("entry 0: entries are numbered from 1")
    assert first_finding(6, 8) == "entries 6 to 7: missing"


def test_a_charge_moved_to_another_project_is_found_in_both(
    ledger: Ledger, database_url: str
) -> None:
    with unguarded(database_url) as connection:
        write(connection, 6, {"project_id": 2})
    assert any("head" in problem for problem in ledger.verify("study").problems)
    assert "entries 2 to 5: missing" in ledger.verify("other").problems


def cheaper_terms(connection: Connection) -> None:
    text = connection.execute(select(projects.c.terms).where(projects.c.id == 1)).scalar_one()
    terms = json.loads(text)
    terms["prices"]["answered"]["cost"] -= 1
    account(terms=json.dumps(terms, sort_keys=True, separators=(",", ":")))(connection)


def forged(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The same charge for a query that was never asked."""
    return {**entry, "query_digest": digest("forged"), "input_digest": digest("forged")}


FORGERIES: Mapping[str, tuple[Callable[[Connection], object], str]] = {
    "first removed": (lambda c: remove(c, 1), "entry 1: missing"),
    "one removed": (lambda c: remove(c, 3), "entry 3: missing"),
    "two removed": (lambda c: remove(c, 3, 4), "entries 3 to 4: missing"),
    "tail removed": (lambda c: remove(c, 6), "head: the project's last hash"),
    "all removed": (lambda c: remove(c, 1, 2, 3, 4, 5, 6), "head: the project's last hash"),
    "swapped": (swap, "entry 2: altered"),
    "added at the end": (lambda c: add(c, 7, rows_of(c)), "head: the project's last hash"),
    "altered and rehashed": (lambda c: rehash(c, 3, label=9), "entry 4: altered"),
    "last altered and rehashed": (lambda c: rehash(c, 6, label=9), "head: the project's"),
    "repriced, chain rewritten": (lambda c: rewrite(c, 3, cost=0), "entry 3: not the price"),
    "label given to an abstention, chain rewritten": (
        lambda c: rewrite(c, 2, label=1),
        "entry 2: abstained, yet has label 1",
    ),
    "label of no class, chain rewritten": (
        lambda c: rewrite(c, 3, label=10),
        "entry 3: label 10 is not one of the 10 classes",
    ),
    "other mechanism, chain rewritten": (
        lambda c: rewrite(c, 3, mechanism='{"name":"stable"}'),
        "entry 3: mechanism is not",
    ),
    "other event, chain rewritten": (
        lambda c: rewrite(c, 3, event='{"event":"nothing"}'),
        "entry 3: cost event is not",
    ),
    "outcome of no price, chain rewritten": (
        lambda c: rewrite(c, 3, outcome="reinforced"),
        "entry 3: outcome 'reinforced' is not on",
    ),
    "added in the middle, chain rewritten": (
        lambda c: rebuild(c, [*rows_of(c)[:3], forged(rows_of(c)[2]), *rows_of(c)[3:]]),
        "balance: charges is 6, but the entries make 7",
    ),
    "removed in the middle, chain rewritten": (
        lambda c: rebuild(c, [*rows_of(c)[:2], *rows_of(c)[3:]]),
        "balance: charges is 6, but the entries make 5",
    ),
    "spent lowered": (account(spent=0), "balance: spent is 0, but the entries make"),
    "delta spent lowered": (account(delta_spent=0), "balance: delta_spent is 0"),
    "cap spent lowered": (account(cap_spent=0), "balance: cap_spent is 0"),
    "count lowered": (account(charges=5), "balance: charges is 5, but the entries make 6"),
    "head replaced": (account(head=bytes(32)), "head: the project's last hash"),
    "genesis replaced": (account(genesis=bytes(32)), "terms: their hash is not"),
    "renamed": (account(name="study2"), "terms: their hash is not"),
    "budget raised": (account(budget=10**15), "terms: their hash is not"),
    "opened earlier": (
        account(opened_at=datetime.fromisoformat("2020-01-01T00:00:00+00:00")),
        "terms: their hash is not",
    ),
    "price list changed": (cheaper_terms, "terms: their hash is not"),
    "terms garbled": (account(terms="{"), "terms: they cannot be read"),
    "cap raised": (
        lambda c: c.execute(update(ensembles).values(cap=ensembles.c.cap + 1)),
        "terms: their hash is not",
    ),
    "records changed": (
        lambda c: c.execute(update(ensembles).values(units=10)),
        "terms: their hash is not",
    ),
    "reservation lowered": (
        lambda c: c.execute(update(ensembles).values(reserved=0)),
        "ensemble mnist: reserved is 0",
    ),
    "delta reservation lowered": (
        lambda c: c.execute(update(ensembles).values(delta_reserved=0)),
        "ensemble mnist: delta_reserved is 0",
    ),
    "closed without returning": (
        account(status="closed", closed_at=datetime.fromisoformat("2020-01-01T00:00:00+00:00")),
        "ensemble mnist: reserved is",
    ),
}


def test_forgeries_are_found_and_named(forger: Connection) -> None:
    for forgery, (forge, first_finding) in FORGERIES.items():
        name = "study2" if forgery == "renamed" else "study"
        found = verified(forger, forge, name)
        assert found.problems, forgery
        assert found.problems[0].startswith(first_finding), f"{forgery}: {found.problems}"
    assert verify_project(forger, Seals(SECRET_KEY), "study").ok


NAMED = {
    "spent": "balance: spent is ",
    "delta_spent": "balance: delta_spent is ",
    "cap_spent": "balance: cap_spent is ",
    "charges": "balance: charges is ",
    "published": "terms: they cannot be read",
    "terms": "terms: ",
    "events": "terms: ",
    "head": "head: the project's last hash",
    "reserved": "ensemble ",
    "delta_reserved": "ensemble ",
}
NOT_IN_THE_BOOKS = {
    "id",
    "ensemble_id",  # references, which the database itself keeps right
    "status",  # an anchor tells whether a closed project was opened again
    "closed_at",
    "registered_at",  # nothing follows from them
    "path",  # the files there are compared with the digest when they are used
    "seal",  # this forger makes its own
    "title",
    "purpose",  # only the administrative log, which this forger writes anew, has them
}


@pytest.mark.parametrize("table", [projects, ensembles], ids=["projects", "ensembles"])
def test_one_altered_field_of_an_account_is_found(table: Table, forger: Connection) -> None:
    row = dict(forger.execute(select(table).where(table.c.id == 1)).one()._mapping)
    forger.rollback()
    for column in row.keys() - NOT_IN_THE_BOOKS:
        value = 2.0 if column == "rdp_order" else altered(row[column])
        name = str(value) if (table, column) == (projects, "name") else "study"
        change = update(table).where(table.c.id == 1).values({column: value})
        found = verified(forger, partial(Connection.execute, statement=change), name)
        assert found.problems, column
        expected = NAMED.get(column, "terms: their hash is not the one")
        assert found.problems[0].startswith(expected), f"{column}: {found.problems}"


def test_a_project_moved_to_another_ensemble_is_found(ledger: Ledger, database_url: str) -> None:
    register(ledger, "second")
    second = ledger.ensemble("second").id
    with unguarded(database_url) as connection:
        account(ensemble_id=second)(connection)
    assert ledger.verify("study").problems[0].startswith("terms: their hash is not")


def test_terms_are_bound_before_the_first_charge(ledger: Ledger, database_url: str) -> None:
    project = open_project(ledger, 5, STABLE, name="fresh")
    assert ledger.verify("fresh").ok
    assert ledger.verify("fresh").head == project.genesis
    with unguarded(database_url) as connection:
        connection.execute(
            update(projects).where(projects.c.name == "fresh").values(delta_budget=10**12)
        )
    assert not ledger.verify("fresh").ok


def test_a_truncated_tail_with_matching_balance_shows_only_in_the_head(
    ledger: Ledger, database_url: str
) -> None:
    """The documented limit: whoever rewrites charges and balance leaves a consistent shorter
    ledger. The head that an auditor wrote down is then nowhere to be found."""
    written_down = ledger.verify("study").head
    with unguarded(database_url) as connection:
        cut(connection, keep=5)
    found = ledger.verify("study")
    assert found.ok
    assert found.head != written_down


def test_closing_keeps_the_books_whole(ledger: Ledger) -> None:
    ledger.set_status("study", ProjectStatus.CLOSED)
    assert ledger.verify("study").ok
    assert ledger.verify("other").ok


def test_a_report_is_bounded_and_begins_with_the_first_finding(database_url: str) -> None:
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=300)
    ledger.charge(project.id, [answered(i) for i in range(300)])
    with unguarded(database_url) as connection:
        connection.execute(update(charges).values(label=9))
    problems = ledger.verify("study").problems
    assert len(problems) == 100
    assert problems[0].startswith("entry 1: altered")


def test_unknown_projects_cannot_be_verified(ledger: Ledger) -> None:
    with pytest.raises(NotFound):
        ledger.verify("nobody")


@pytest.mark.slow
def test_any_flipped_bit_of_a_stored_charge_is_found(tmp_path: Path) -> None:
    """On the disk, below SQL: every byte of an entry's record in the SQLite file."""
    path = tmp_path / "terrine.sqlite"
    url = f"sqlite:///{path}"
    ledger = open_ledger(url)
    project = open_project(ledger, 10, CONFIDENT)
    ledger.charge(project.id, [answered(i, i) for i in range(4)])
    entry = ledger.charges("study")[2]
    ledger._engine.dispose()  # the last to close the database writes its log back into the file

    original = path.read_bytes()
    # A record is a header that begins with its own length, then the columns: project_id (1 needs
    # no byte), seq in one byte, created_at, …, hash.
    end = original.index(bytes.fromhex(entry.hash)) + 32
    body = original.rindex(entry.created_at.strftime("%Y-%m-%dT").encode(), 0, end) - 1
    assert original[body] == 3
    start = next(body - n for n in range(15, 40) if original[body - n] == n)

    for position in range(start, end):
        flipped = bytearray(original)
        flipped[position] ^= 1 << (position % 8)
        path.write_bytes(flipped)
        engine = connect(url)
        try:
            found = Ledger(engine, SECRET_KEY).verify("study").problems
        except DatabaseUnavailable:
            continue  # so damaged that SQLite itself refuses it
        finally:
            engine.dispose()
        assert found, f"byte {position - start} of {end - start}"
    path.write_bytes(original)
    assert Ledger(connect(url), SECRET_KEY).verify("study").ok


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # libpq's is not traced
def test_verifying_a_longer_ledger_takes_no_more_memory(database_url: str) -> None:
    ledger = open_ledger(database_url)

    def peak(entries: int) -> int:
        name = f"project{entries}"
        project = open_project(ledger, entries, {"name": "gnmax", "sigma": 400.0}, name=name)
        for start in range(0, entries, 1000):
            ledger.charge(project.id, [answered(i) for i in range(start, start + 1000)])
        tracemalloc.start()
        assert ledger.verify(name).ok
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1000)  # what is read once and kept
    assert peak(8000) < 1.3 * peak(2000)
