"""Checks of the data owner's machine. Each finding says how to fix what it found.

`examine` reads and never changes anything. It checks files first, then the database, then what both
must agree on. A check is skipped if it depends on something that is broken. Findings contain paths,
names and versions, never a secret, a vote or the value of a variable.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from terrine_server.doctor import database, files
from terrine_server.doctor import ledger as books
from terrine_server.doctor.files import device
from terrine_server.doctor.finding import Finding, Severity
from terrine_server.doctor.issuer import sign_in
from terrine_server.doctor.upgrading import examine_upgrade
from terrine_server.errors import DatabaseUnavailable, LedgerCorrupted, NotSealed, SchemaMismatch
from terrine_server.ledger import Ledger, check_schema, connect
from terrine_server.owner.tokens import SecretKeyError, load_secret_key
from terrine_server.settings import Settings

__all__ = ["Finding", "Severity", "close_to_others", "device", "examine", "examine_upgrade"]


def close_to_others() -> list[Path]:
    """Take the rights of other accounts on the data directory and secret files; return these.

    Raises ValidationError if the settings are invalid, OSError for a file of another account.
    """
    settings = Settings()
    directory = settings.data_dir
    private = [directory, settings.ensembles_dir, settings.secret_key_path]
    private += [settings.checkpoint_key_path, settings.records_key_path]
    private += [directory / f"terrine.sqlite{suffix}" for suffix in ("", "-wal", "-shm")]
    secrets = (settings.database_password_file, settings.oidc_client_secret_file)
    private += [path for path in secrets if path is not None]
    return [path for path in private if path.exists() and files.close(path)]


def examine() -> Iterator[Finding]:
    """Yield the findings on this machine, in the order in which to fix them."""
    try:
        settings = Settings()
    except ValidationError as error:
        yield from files.unusable(error)
        return
    yield files.variables(os.environ)
    yield device(settings.device)
    yield files.directory(settings.data_dir)
    yield files.secret_key(settings.secret_key_path)
    if settings.checkpoint_key_path.exists():
        yield files.private("checkpoint key", settings.checkpoint_key_path)
    if settings.records_key_path.exists():
        yield files.private("key of the records", settings.records_key_path)
    try:
        password = settings.database_password()
    except OSError as error:
        path = settings.database_password_file
        yield Finding(
            "password",
            Severity.PROBLEM,
            f"The database password file {path} cannot be read ({error.strerror}).",
            "Create it, or correct TERRINE_DATABASE_PASSWORD_FILE",
        )
        return
    if settings.database_password_file is not None:
        yield files.private("password", settings.database_password_file)
    yield from _with_database(settings, password)
    yield from sign_in(settings)


def _with_database(settings: Settings, password: str | None) -> Iterator[Finding]:
    try:
        engine = connect(settings.database, password)
    except DatabaseUnavailable as error:
        yield Finding("database", Severity.PROBLEM, str(error), "Correct TERRINE_DATABASE_URL")
        return
    try:
        yield from database.look(engine)
        yield from database.rights(engine)
        check_schema(engine)
        yield from database.schema(engine)
        try:
            ledger = Ledger(engine, load_secret_key(settings.secret_key_path))
        except SecretKeyError:
            return  # which `files.secret_key` has found
        ledger.check_sealed()
        yield from books.ensembles(ledger, settings)
        yield from books.ends(ledger)
        yield from books.log(ledger)
        yield books.signed(ledger, settings)
    except SchemaMismatch as error:
        newer = "newer" in error.detail
        fix = "Install the version of Terrine that migrated it" if newer else "terrine init"
        yield Finding("schema", Severity.PROBLEM, str(error), fix)
    except NotSealed as error:
        yield Finding("seals", Severity.PROBLEM, str(error), "terrine ledger seal --old-key FILE")
    except LedgerCorrupted as error:
        yield Finding("books", Severity.PROBLEM, str(error), "terrine ledger verify all")
    except DatabaseUnavailable as error:
        fix = "Check that it is running, TERRINE_DATABASE_URL and the password file"
        yield Finding("database", Severity.PROBLEM, str(error), fix)
    finally:
        engine.dispose()
