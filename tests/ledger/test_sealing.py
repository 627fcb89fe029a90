"""`terrine ledger seal`: for another key, and for edits that are accepted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, text, update

from support.databases import POSTGRESQL_BY_DAY, SECRET_KEY
from support.ledgers import GNMAX, answered, charge_one, open_ledger, open_project, terms, unguarded
from support.processes import Terrine
from support.wording import holds, refuses
from terrine_protocol import ProjectStatus, Role, TokenCreate
from terrine_server.errors import Conflict, LedgerCorrupted, NotSealed, Unauthorized
from terrine_server.ledger import Action, Ledger, NewProject, connect, seal
from terrine_server.ledger.schema import (
    ensembles,
    metadata,
    tokens,
)
from terrine_server.owner.sign_in import SecretKeyError, Tokens, load_token_key
from terrine_server.settings import Settings

OTHER_KEY = b"o" * 64


def sealed(url: str) -> Engine:
    """One project with two charges, of which one has a key, and a token."""
    ledger = open_ledger(url)
    project = open_project(ledger, 10)
    charge_one(ledger, project.id, [answered(1)])
    charge_one(ledger, project.id, [answered(2)])
    Tokens(ledger, SECRET_KEY).create(TokenCreate(role=Role.STUDENT, project="study"))
    return connect(url)


@pytest.fixture
def engine(database_url: str) -> Engine:
    return sealed(database_url)


@pytest.fixture
def each_engine(each_database_url: str) -> Engine:
    return sealed(each_database_url)


def everything(engine: Engine) -> dict[str, list[object]]:
    with engine.connect() as connection:
        return {
            name: [tuple(row) for row in connection.execute(table.select())]
            for name, table in metadata.tables.items()
        }


def test_books_that_do_not_verify_are_not_sealed(engine: Engine, database_url: str) -> None:
    with unguarded(database_url, with_key=False) as connection:
        connection.execute(text("UPDATE charges SET label = 9 WHERE seq = 1"))
    before = everything(engine)
    for how in ({"old_key": SECRET_KEY}, {"accept": True}):
        with refuses(LedgerCorrupted, "study", 1):
            seal(engine, OTHER_KEY, **how)
    assert everything(engine) == before
    with pytest.raises(NotSealed):
        Ledger(engine, OTHER_KEY).log.check_sealed()
    with pytest.raises(Conflict):
        seal(engine, SECRET_KEY)
    assert everything(engine) == before


def test_another_key_seals_what_verifies_under_the_old_one(
    engine: Engine, database_url: str
) -> None:
    with refuses(NotSealed, "--old-key"):
        seal(engine, OTHER_KEY)
    with pytest.raises(LedgerCorrupted):
        seal(engine, OTHER_KEY, old_key=b"neither of them, but long enough")
    seal(engine, OTHER_KEY, old_key=SECRET_KEY)
    ledger = Ledger(engine, OTHER_KEY)
    assert ledger.log.list(newest=True)[-1].action == Action.KEY_CHANGED
    assert ledger.verifier.verify_log().ok
    assert charge_one(ledger, 1, [answered(3)]).project.charges == 3
    with pytest.raises(NotSealed):
        Ledger(engine, SECRET_KEY).log.check_sealed()
    with pytest.raises(LedgerCorrupted):
        charge_one(Ledger(engine, SECRET_KEY), 1, [answered(4)])
    assert ledger.verifier.verify_project("study").ok


def test_a_lost_key_or_an_edit_of_ones_own_can_be_accepted(
    engine: Engine, database_url: str
) -> None:
    with unguarded(database_url, with_key=False) as connection:
        connection.execute(update(ensembles).values(path="elsewhere/mnist"))
        connection.execute(tokens.delete())
    with refuses(LedgerCorrupted, "elsewhere/mnist"):
        seal(engine, OTHER_KEY, old_key=SECRET_KEY)
    sealed = seal(engine, OTHER_KEY, accept=True)
    assert sealed.adopted["ensemble"] == ["mnist"]
    assert sealed.adopted["project"] == []
    assert len(sealed.adopted["token"]) == 1
    ledger = Ledger(engine, OTHER_KEY)
    assert ledger.verifier.verify_log().ok
    assert ledger.ensembles.get("mnist").path == "elsewhere/mnist"
    assert ledger.log.list(newest=True)[-1].detail["accepted"] is True
    seal(engine, OTHER_KEY, accept=True)
    assert ledger.verifier.verify_log().ok


@POSTGRESQL_BY_DAY
def test_an_act_and_its_entry_are_written_together_or_not_at_all(each_engine: Engine) -> None:
    ledger = Ledger(each_engine, SECRET_KEY)
    created = Tokens(ledger, SECRET_KEY).create(TokenCreate(role=Role.ADMIN))
    acts: dict[str, Callable[[], object]] = {
        "open": lambda: ledger.projects.open(NewProject("new", "mnist", GNMAX, terms(2))),
        "pause": lambda: ledger.projects.set_status("study", ProjectStatus.PAUSED),
        "close": lambda: ledger.projects.set_status("study", ProjectStatus.CLOSED),
        "create": lambda: Tokens(ledger, SECRET_KEY).create(TokenCreate(role=Role.ADMIN)),
        "revoke": lambda: ledger.tokens.revoke(created.id),
    }
    before = everything(each_engine)
    for what, act in acts.items():
        fails = 1
        while True:
            failing = Failing(each_engine, fails)
            try:
                act()
            except InterruptedError:
                assert everything(each_engine) == before, (what, fails)
                fails += 1
                continue
            finally:
                failing.stop()
            break
        assert fails > 3, what
        assert ledger.verifier.verify_log().ok, what
        assert everything(each_engine) != before, what
        before = everything(each_engine)


class Failing:
    """Makes the n-th statement that writes fail."""

    def __init__(self, engine: Engine, n: int) -> None:
        self._engine, self._left = engine, n
        event.listen(engine, "before_cursor_execute", self._count)

    def _count(self, *given: object) -> None:
        if str(given[2]).lstrip().startswith(("INSERT", "UPDATE")):
            self._left -= 1
            if self._left == 0:
                raise InterruptedError

    def stop(self) -> None:
        event.remove(self._engine, "before_cursor_execute", self._count)


def test_acts_at_once_are_logged_one_after_another(
    each_engine: Engine, each_database_url: str
) -> None:
    """By several servers, with a charge between them; no act waits for itself."""
    start, each = threading.Barrier(6), 5

    def act(number: int) -> None:
        ledger = Ledger(connect(each_database_url), SECRET_KEY)
        start.wait()
        for turn in range(each):
            if number == 0:
                charge_one(ledger, 1, [answered(f"between {turn}")])
            elif number == 1:
                status = ProjectStatus.PAUSED if turn % 2 else ProjectStatus.ACTIVE
                ledger.projects.set_status("resting", status)
            else:
                made = Tokens(ledger, SECRET_KEY).create(TokenCreate(role=Role.AUDITOR))
                ledger.tokens.revoke(made.id)

    ledger = Ledger(each_engine, SECRET_KEY)
    open_project(ledger, 2, name="resting")
    before = len(ledger.log.list(limit=1000))
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(act, range(6)))
    assert ledger.verifier.verify_log().ok
    assert ledger.verifier.verify_project("study").ok
    log = ledger.log.list(limit=1000)
    assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
    assert len(log) == before + 4 * 2 * each + each - 1


def test_the_command_tells_what_it_took_as_it_is(
    terrine: Terrine, engine: Engine, database_url: str, secret_key: Path, tmp_path: Path
) -> None:
    place = {"TERRINE_DATABASE_URL": database_url}
    holds(terrine("ledger", "seal", **place).refused, "sealed", "already")
    with engine.begin() as connection:
        connection.execute(update(ensembles).values(path="elsewhere/mnist"))
    said = terrine("ledger", "seal", "--accept", **place).fine
    holds(said, "ensemble", "mnist")
    holds(terrine("ledger", "verify", **place).fine, "administrative", "intact")
    old = secret_key.with_name("old.key")
    secret_key.rename(old)
    secret_key.write_bytes(OTHER_KEY)
    holds(terrine("ledger", "verify", **place).refused, "secret", "key")
    holds(terrine("token", "create", "--role", "admin", **place).refused, "secret", "key")
    holds(terrine("ledger", "seal", "--old-key", str(secret_key), **place).refused, "secret", "key")
    assert not (tmp_path / "data" / "token.key").exists()
    terrine("ledger", "seal", "--old-key", str(old), **place).fine  # noqa: B018
    holds(terrine("ledger", "verify", **place).fine, "administrative", "intact")


def test_tokens_outlive_each_secret_key(
    terrine: Terrine, engine: Engine, database_url: str, secret_key: Path, tmp_path: Path
) -> None:
    """By the command, twice over: hashes stay those of the first key, of any bytes."""
    place = {"TERRINE_DATABASE_URL": database_url}
    settings = Settings(data_dir=tmp_path / "data", secret_key_file=secret_key)
    made: list[str] = []

    def replace_key(new: bytes) -> None:
        made.append(terrine("token", "create", "--role", "admin", **place).fine.strip())
        old = secret_key.with_name("old.key")
        secret_key.rename(old)
        secret_key.write_bytes(new)
        terrine("ledger", "seal", "--old-key", str(old), **place).fine  # noqa: B018

    def valid() -> list[str]:
        tokens = Tokens(Ledger(engine, secret_key.read_bytes()), load_token_key(settings))
        return [tokens.authenticate(token).role for token in made]

    replace_key(b"\xff" + OTHER_KEY)
    replace_key(OTHER_KEY)
    assert valid() == [Role.ADMIN] * 2
    kept = settings.token_key_path
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.unlink()
    with pytest.raises(Unauthorized):
        valid()
    kept.write_text("half a k")
    with refuses(SecretKeyError, "token.key"):
        load_token_key(settings)
