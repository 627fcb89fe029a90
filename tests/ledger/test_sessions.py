"""Sessions of PostgreSQL as people host it: what they set for themselves, and what is refused."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from support.databases import SECRET_KEY, SERVICE, Postgres, as_owner, transaction_pooler
from support.ledgers import CONFIDENT, answered, charge_one, open_ledger, open_project
from support.processes import PATIENCE_SECONDS
from support.wording import refuses
from terrine_server.errors import DatabaseUnavailable
from terrine_server.ledger import Ledger, check_definitions, check_schema, connect, upgrade
from terrine_server.ledger.definitions import schema_differences

pytestmark = pytest.mark.parametrize("each_database_url", ["postgresql"], indirect=True)

HOSTED = {
    "datestyle": "'SQL, DMY'",
    "intervalstyle": "'sql_standard'",
    "timezone": "'Asia/Kathmandu'",
    "bytea_output": "'escape'",
    "extra_float_digits": "-15",
    "client_encoding": "'SQL_ASCII'",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "quote_all_identifiers": "on",
    "synchronous_commit": "off",
    "lock_timeout": "0",
    "default_transaction_isolation": "'serializable'",
    "search_path": "shadow, pg_catalog, other",
}
"""Settings that somebody may have given a database, or a role."""
SHADOW = (
    "CREATE SCHEMA other",
    "CREATE SCHEMA shadow",
    "CREATE FUNCTION shadow.never(bytea, bytea) RETURNS boolean IMMUTABLE LANGUAGE sql "
    "AS 'SELECT false'",
    "CREATE OPERATOR shadow.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = shadow.never)",
    "CREATE TABLE shadow.alembic_version (version_num text)",
    "GRANT USAGE ON SCHEMA shadow, other TO PUBLIC",
)


def run_as_owner(url: str, *statements: str) -> None:
    with connect(as_owner(url)).begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def database_of(url: str) -> str:
    return f'ALTER DATABASE "{make_url(url).database}"'


def test_whatever_a_role_or_database_was_given_a_session_is_as_it_must_be(
    each_database_url: str,
) -> None:
    url = each_database_url
    alter = [f"{database_of(url)} SET {name} = {value}" for name, value in HOSTED.items()]
    run_as_owner(url, *SHADOW, *alter)
    ledger = open_ledger(url)
    project = open_project(ledger, 10)
    paid, again = (charge_one(ledger, project.id, [answered(1)]).results for _ in range(2))
    assert [each.seq for each in paid] == [each.seq for each in again], "found by its digest"
    assert ledger.verifier.verify_project("study").ok
    assert list(ledger.entries.list("study"))[-1].created_at.utcoffset() is not None
    engine = connect(url)
    check_schema(engine)
    assert schema_differences(engine) == []
    assert upgrade(connect(as_owner(url)), SECRET_KEY) == []
    with engine.connect() as connection:
        (isolation,) = connection.execute(text("SHOW transaction_isolation")).one()
        (commit,) = connection.execute(text("SHOW synchronous_commit")).one()
    assert (isolation, commit) == ("read committed", "on")


def test_a_session_without_triggers_is_refused(each_database_url: str) -> None:
    url = each_database_url
    open_ledger(url)
    early = connect(as_owner(url))
    check_definitions(early)
    run_as_owner(url, f"{database_of(url)} SET session_replication_role = 'replica'")
    for refused in (url, as_owner(url)):
        with refuses(DatabaseUnavailable, "session_replication_role", "replica"):
            Ledger(connect(refused), SECRET_KEY).verifier.verify_schema()
    with early.begin() as connection:
        connection.execute(text("SET session_replication_role = 'replica'"))
    with refuses(DatabaseUnavailable, "session_replication_role", "replica"):
        schema_differences(early)
    with closing(psycopg.connect(_plain(as_owner(url)), autocommit=True)) as superuser:
        superuser.execute(f"{database_of(url)} RESET session_replication_role".encode())
    check_definitions(connect(url))


def test_a_database_that_cannot_write_every_name_is_refused(
    each_database_url: str, postgres: Postgres
) -> None:
    name = make_url(each_database_url).database
    with postgres.connect() as superuser:
        for encoding in ("SQL_ASCII", "LATIN1", "UTF8"):
            other = f"{name}_{encoding.lower()}"
            how = f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
            superuser.execute(f"CREATE DATABASE {other} {how}".encode())
            engine = connect(postgres.url(other))
            try:
                if encoding == "UTF8":
                    assert upgrade(engine, SECRET_KEY) == []
                else:
                    with refuses(DatabaseUnavailable, encoding, "UTF8", "CREATE"):
                        upgrade(engine, SECRET_KEY)
            finally:
                engine.dispose()
                superuser.execute(f"DROP DATABASE {other} WITH (FORCE)".encode())


def test_a_pooler_that_lends_sessions_by_the_transaction_is_refused(
    each_database_url: str, postgres: Postgres
) -> None:
    open_ledger(each_database_url)
    database = str(make_url(each_database_url).database)
    with transaction_pooler(postgres) as sockets:
        engine = connect(postgres.url(database, sockets, SERVICE))
        with refuses(DatabaseUnavailable, "pool_mode", "session", "TERRINE_DATABASE_URL"):
            check_schema(engine)
        engine.dispose()


@pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="needs PgBouncer")
def test_pgbouncer_serves_sessions_and_nothing_else(
    each_database_url: str, postgres: Postgres
) -> None:
    ledger = open_ledger(each_database_url)
    project = open_project(ledger, 10, CONFIDENT)
    for mode in ("transaction", "statement"):
        with pgbouncer(postgres, each_database_url, mode) as url:
            with pytest.raises(DatabaseUnavailable) as refused:
                check_schema(connect(url))
            if mode == "transaction":
                assert "pool_mode" in str(refused.value)
    with pgbouncer(postgres, each_database_url, "session") as url:
        pooled = Ledger(connect(url), SECRET_KEY)
        check_definitions(connect(url))
        assert charge_one(pooled, project.id, [answered(1)]).project.charges == 1
        assert pooled.verifier.verify_project("study").ok


@contextmanager
def pgbouncer(server: Postgres, url: str, mode: str) -> Iterator[str]:
    """Run PgBouncer before a server; yield the URL of the same database and role there."""
    database = str(make_url(url).database)
    with tempfile.TemporaryDirectory(prefix="terrine-pgb-") as made:
        directory = Path(made)  # not pytest's: a socket's path must be short
        account = pwd.getpwnam("nobody") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        os.chown(directory, account.pw_uid, -1)
        (directory / "users").write_text(f'"{SERVICE}" ""\n')
        (directory / "ini").write_text(
            f"[databases]\n* = host={server.socket.parent}\n[pgbouncer]\nlisten_addr =\n"
            f"unix_socket_dir = {directory}\nlisten_port = 5432\nauth_type = trust\n"
            f"auth_file = {directory / 'users'}\npool_mode = {mode}\n"
        )
        given = ["pgbouncer", "--quiet", str(directory / "ini")]
        process = subprocess.Popen(given, user=account.pw_name, cwd="/")
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not (directory / server.socket.name).exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield server.url(database, directory, SERVICE)
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


def _plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
