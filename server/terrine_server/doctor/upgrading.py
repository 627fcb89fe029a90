"""Whether this version of Terrine will serve what an earlier one left: asked before a migration.

It reads, and changes nothing. The ledger may be of any revision up to this version's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from pydantic import ValidationError
from sqlalchemy import Engine

from terrine_server.doctor import files
from terrine_server.doctor.finding import Finding, Severity
from terrine_server.doctor.ledger import files_of
from terrine_server.errors import DatabaseUnavailable, LedgerCorrupted, NotSealed, SchemaMismatch
from terrine_server.ledger import Ledger, connect
from terrine_server.ledger.store.copies import Registration, registrations
from terrine_server.ledger.store.database import reading
from terrine_server.ledger.store.schema import missing_migrations
from terrine_server.owner.checkpoints import CheckpointError, load_checkpoint_key, load_policy
from terrine_server.owner.tokens import SecretKeyError, load_secret_key
from terrine_server.settings import Settings


def examine_upgrade() -> Iterator[Finding]:
    """Yield what this version finds of settings, keys, ledger and ensembles."""
    try:
        settings = Settings()
    except ValidationError as error:
        yield from files.unusable(error)
        return
    yield files.variables(os.environ)
    yield files.device(settings.device)
    yield files.directory(settings.data_dir)
    try:
        key = load_secret_key(settings.secret_key_path)
        load_checkpoint_key(settings.checkpoint_key_path)
        load_policy(settings.log_policy_path)
        engine = connect(settings.database, settings.database_password())
    except (SecretKeyError, CheckpointError, OSError, DatabaseUnavailable) as error:
        fix = "Put it back, or correct the setting that names it"
        yield Finding("keys", Severity.PROBLEM, str(error), fix)
        return
    yield Finding("keys", Severity.OK, "Keys and policy can be read.")
    try:
        yield ledger(engine, key)
        yield from ensembles(engine, settings)
    except SchemaMismatch as error:
        fix = "Install the version that migrated it; if there should be one, correct the settings"
        yield Finding("ledger", Severity.PROBLEM, str(error), fix)
    except NotSealed as error:
        yield Finding("ledger", Severity.PROBLEM, str(error), "terrine ledger seal --old-key FILE")
    except LedgerCorrupted as error:
        fix = "Check it with the version that wrote it, or restore a backup"
        yield Finding("ledger", Severity.PROBLEM, str(error), fix)
    except DatabaseUnavailable as error:
        fix = "Check that it is running, TERRINE_DATABASE_URL and the password file"
        yield Finding("ledger", Severity.PROBLEM, str(error), fix)
    finally:
        engine.dispose()


def ledger(engine: Engine, key: bytes) -> Finding:
    """Check that the ledger is sealed with this key and can be brought to this version.

    Raises SchemaMismatch (newer, or not there), NotSealed and LedgerCorrupted.
    """
    with reading(engine) as connection:
        missing = missing_migrations(connection)
    Ledger(engine, key).check_sealed()
    if not missing:
        return Finding("ledger", Severity.OK, "Its tables are of this version.")
    found = f"Migrations that bring its tables to this version: {missing}."
    return Finding("ledger", Severity.OK, found)


def ensembles(engine: Engine, settings: Settings) -> Iterator[Finding]:
    """Check that every registered ensemble can be read and loaded by this version."""
    for each in registrations(engine):
        yield ensemble(each, settings)


def ensemble(registered: Registration, settings: Settings) -> Finding:
    """Check one ensemble. Its files need not be here if all projects on it are closed."""
    from terrine_models.storage.manifests import StoreError
    from terrine_models.teachers.ensemble import load
    from terrine_models.teachers.federation import is_federation

    directory = settings.data_dir / registered.path
    if not directory.exists():
        found = f"{directory} is not here."
        return Finding(
            f"ensemble {registered.name}",
            Severity.PROBLEM if registered.in_use else Severity.WARNING,
            found,
            "Restore it from a backup: terrine restore"
            if registered.in_use
            else "None is needed as long as all projects on it are closed",
        )
    found_files = files_of(registered.name, directory, registered.manifest_sha256)
    if found_files.state is not Severity.OK or is_federation(directory):
        return found_files
    try:
        load(directory, device="cpu")
    except StoreError as error:
        fix = "Serve it with the version of Terrine that made it, or make it again"
        return Finding(found_files.check, Severity.PROBLEM, str(error), fix)
    return Finding(found_files.check, Severity.OK, "Its files are as registered, and load.")
