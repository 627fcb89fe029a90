"""Kill it, lock it, take it away: what was sent is paid, what was paid is kept, nothing is half."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import time
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import text

from support.databases import SECRET_KEY, SQLITE_BY_DAY, as_owner
from support.ledgers import (
    COUNTED,
    NOISY,
    answered,
    charge_one,
    counted,
    digest,
    open_ledger,
    open_project,
    open_published,
    publishing_ledger,
    voted,
)
from support.processes import in_processes, start
from support.workers import ask_and_log, die_before
from terrine_server.errors import DatabaseUnavailable
from terrine_server.ledger import Ledger, connect
from terrine_server.ledger import database as database_module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("each_database_url", "what", "least"),
    [
        ("postgresql", "alone", 5),
        ("sqlite", "tallied", 8),
        ("postgresql", "another came between", 8),
        pytest.param("sqlite", "alone", 5, marks=pytest.mark.nightly),
        pytest.param("sqlite", "counted", 5, marks=pytest.mark.nightly),
        pytest.param("postgresql", "tallied", 8, marks=pytest.mark.nightly),
        pytest.param("sqlite", "another came between", 8, marks=pytest.mark.nightly),
        pytest.param("postgresql", "counted", 5, marks=pytest.mark.nightly),
    ],
    indirect=["each_database_url"],
)
def test_killed_at_any_step_leaves_nothing_half_written(
    what: str, least: int, each_database_url: str
) -> None:
    """Before each statement and each COMMIT, until there is none left to be killed before."""
    if what == "tallied":
        ledger = publishing_ledger(each_database_url)
        project = open_published(ledger)
    else:
        ledger = open_ledger(each_database_url)
        project = open_project(ledger, 500, COUNTED if what == "counted" else NOISY)
    between, paid = what == "another came between", 0
    for step in count():
        queries = [f"{step} {i}" for i in range(5)]
        batch = list(map(counted if what == "counted" else answered, queries))
        if what == "tallied":
            batch = voted(project, queries)
        others = f"between {step}"
        [process] = in_processes(die_before, (each_database_url, project.id, batch, step, between))
        new = {entry.query_digest for entry in ledger.entries.list("study", after_seq=paid)}
        ours = len(new - {digest(others).hex()})
        written = ours == 5
        assert ours == (5 if written else 0)
        # Only the one statement of PostgreSQL is durable before SQLAlchemy tells of a commit.
        alone = what in ("alone", "counted") and not each_database_url.startswith("sqlite")
        assert alone or written == (process.exitcode == 0)
        assert ledger.verifier.verify_project("study").ok
        # Nobody is left holding a lock: the retry goes through, and is charged once in all.
        retry = charge_one(ledger, project.id, batch)
        assert [r.counts for r in retry.results] == [proposal.counts for proposal in batch]
        paid += len(new) - ours + 5
        assert ledger.projects.get("study").charges == paid
        assert ledger.verifier.verify_project("study").ok
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert step >= least, "it took fewer steps than the test reckons with"


@SQLITE_BY_DAY
@pytest.mark.slow
def test_killed_at_any_moment_everything_sent_was_paid(
    each_database_url: str, tmp_path: Path
) -> None:
    ledger = open_ledger(each_database_url)
    project = open_project(ledger, 20_000, {"name": "gnmax", "sigma": 400.0})
    for generation in range(2):
        files = [tmp_path / f"sent-{generation}-{i}" for i in range(3)]
        processes = [
            start(ask_and_log, each_database_url, project.id, file.name, str(file))
            for file in files
        ]
        while not all(file.exists() and file.stat().st_size for file in files):
            time.sleep(0.01)
        while files[0].read_text().count("\n") <= 5 * generation:  # each time elsewhere
            time.sleep(0.001)
        for process in processes:
            process.kill()
            process.join()
    assert ledger.verifier.verify_project("study").ok
    paid = {charge.seq: charge.query_digest for charge in ledger.entries.stream("study")}
    sent = [
        line.split() for file in tmp_path.glob("sent-*") for line in file.read_text().splitlines()
    ]
    assert len(sent) >= 6
    assert all(paid[int(seq)] == query for seq, query in sent)
    assert len(paid) - len(sent) <= 6, "at most one answer per process was paid for but not sent"


def test_a_lock_that_is_held_too_long_is_a_clear_error(
    each_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = open_project(open_ledger(each_database_url), queries=10)
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.3)
    monkeypatch.setitem(database_module._POSTGRESQL, "lock_timeout", "300ms")
    impatient = Ledger(connect(each_database_url), SECRET_KEY)
    with database_module.writing(connect(each_database_url)) as holder:
        holder.execute(text("UPDATE projects SET status = 'active'"))
        with pytest.raises(DatabaseUnavailable):
            charge_one(impatient, project.id, [answered(1)])
        assert impatient.projects.get("study").charges == 0, "reading needs no lock"
    assert charge_one(impatient, project.id, [answered(1)]).project.charges == 1


@pytest.mark.parametrize("each_database_url", ["postgresql"], indirect=True)
def test_connections_cut_by_the_server_are_replaced(each_database_url: str) -> None:
    ledger = open_ledger(each_database_url)
    project = open_project(ledger, queries=10)
    charge_one(ledger, project.id, [answered(1)])
    with connect(each_database_url).connect() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    assert charge_one(ledger, project.id, [answered(2)]).project.charges == 2


@pytest.mark.parametrize("each_database_url", ["postgresql"], indirect=True)
def test_a_database_that_was_read_only_is_written_to_again(each_database_url: str) -> None:
    """Sessions that began meanwhile, and cannot write for as long as they live, are replaced."""
    ledger = open_ledger(each_database_url)
    project = open_project(ledger, queries=10)
    late = Ledger(connect(each_database_url), SECRET_KEY)
    with connect(as_owner(each_database_url)).connect() as connection:
        name = connection.scalar(text("SELECT current_database()"))
        connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
        connection.commit()
        with pytest.raises(DatabaseUnavailable):
            charge_one(late, project.id, [answered(1)])
        connection.execute(text(f"ALTER DATABASE {name} RESET default_transaction_read_only"))
        connection.commit()
    assert charge_one(late, project.id, [answered(1)]).project.charges == 1


def test_an_unreachable_server_is_a_clear_error() -> None:
    ledger = Ledger(
        connect("postgresql://nobody@127.0.0.1:1/terrine", password="secret"), SECRET_KEY
    )
    with pytest.raises(DatabaseUnavailable) as refusal:
        charge_one(ledger, 1, [answered(1)])
    assert "secret" not in str(refusal.value)
    assert "127.0.0.1" in str(refusal.value)
    assert "127.0.0.1" not in refusal.value.detail, "whoever asks need not know where it runs"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "terrine.sqlite"


def test_a_removed_file_is_never_written_to(file: Path) -> None:
    """Writing on to a file that no name leads to would be paying into the void."""
    ledger = open_ledger(f"sqlite:///{file}")
    project = open_project(ledger, queries=10)
    charge_one(ledger, project.id, [answered(1)])
    file.unlink()
    with pytest.raises(DatabaseUnavailable):
        charge_one(ledger, project.id, [answered(2)])
    with pytest.raises(DatabaseUnavailable):
        charge_one(ledger, project.id, [answered(2)])
    assert not file.exists()


def test_a_replaced_file_is_never_mixed_with_the_old_one(file: Path, tmp_path: Path) -> None:
    ledger = open_ledger(f"sqlite:///{file}")
    project = open_project(ledger, queries=10)
    charge_one(ledger, project.id, [answered(1)])
    with sqlite3.connect(file) as source, sqlite3.connect(tmp_path / "backup") as target:
        source.backup(target)
    shutil.move(tmp_path / "backup", file)
    with pytest.raises(DatabaseUnavailable):
        charge_one(ledger, project.id, [answered(2)])


def test_a_file_that_is_no_database_is_a_clear_error(file: Path) -> None:
    file.write_bytes(b"this is not a database " * 100)
    with pytest.raises(DatabaseUnavailable):
        Ledger(connect(f"sqlite:///{file}"), SECRET_KEY).ensembles.list()
