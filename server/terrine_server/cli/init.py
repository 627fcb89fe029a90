"""`terrine init`: the data directory, the keys and the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from sqlalchemy import Engine

from terrine_server import doctor as health
from terrine_server.cli.console import (
    fail,
    say,
)
from terrine_server.doctor import Severity
from terrine_server.errors import NotSealed, SchemaMismatch
from terrine_server.ledger import Ledger, connect
from terrine_server.ledger import upgrade as migrate
from terrine_server.ledger.copies import registrations
from terrine_server.ledger.database import reading
from terrine_server.ledger.migrating import grant
from terrine_server.ledger.revisions import has_tables, missing_migrations
from terrine_server.owner.checkpoints import (
    CheckpointError,
    load_checkpoint_key,
    make_key_of_new_log,
    signed_entries,
)
from terrine_server.owner.operations import check_not_restoring, make_directories
from terrine_server.owner.sign_in import load_secret_key, make_secret_key
from terrine_server.settings import Settings

ServiceRole = Annotated[
    str | None,
    typer.Option(
        metavar="ROLE",
        help="PostgreSQL role that `serve` logs in as. It may add charges, never change them.",
    ),
]


def init(
    service_role: ServiceRole = None,
    origin: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the transparency log is called, such as labels.example.org; by default, a "
            "name that nobody else has. It is fixed with the log's key.",
        ),
    ] = None,
) -> None:
    """Create the data directory, the keys and the tables; migrate older tables.

    Safe to repeat: existing files and data are kept. Tables are not migrated if an ensemble that is
    here could not be served by this version (`terrine upgrade --check`).
    """
    prepare(Settings(), say, service_role=service_role, origin=origin)


def prepare(
    settings: Settings,
    say: Callable[[str], None],
    *,
    service_role: str | None = None,
    origin: str | None = None,
) -> None:
    """Do what `terrine init` does, and `say` what was made or kept. What is wrong is printed."""
    check_not_restoring(settings)
    engine = connect(settings.database, settings.database_password())
    _check_not_lost(engine, settings)
    make_directories(settings)
    engine = connect(settings.database, settings.database_password())
    # A ledger that is there has a key, and a new one would not open it.
    made = not has_tables(engine) and make_secret_key(settings.secret_key_path)
    key = load_secret_key(settings.secret_key_path)
    load_checkpoint_key(settings.checkpoint_key_path)  # refused before anything is migrated
    if service_role is not None and engine.dialect.name != "postgresql":
        fail("--service-role is for PostgreSQL; SQLite has no roles.")
    _check_ensembles(engine, settings)
    restored = migrate(engine, key)
    if service_role is not None:
        grant(engine, service_role)
    ledger = Ledger(engine, key)
    try:
        signing = make_key_of_new_log(ledger, settings, origin)
    except CheckpointError as error:
        signing = False
        _warn(str(error))
    signer = load_checkpoint_key(settings.checkpoint_key_path)
    say(f"{'Created' if made else 'Kept'} the secret key {settings.secret_key_path}.")
    if signer is not None:
        kept = f"{'Created' if signing else 'Kept'} the key of the transparency log"
        say(f"{kept} {settings.checkpoint_key_path}. Policies of students and auditors name it:")
        say(f"log {signer.verifier}")
    if restored:
        _warn(
            f"Restored in the ledger's tables: {'; '.join(restored)}. Nothing guarded what was "
            "written without them: run `terrine ledger verify all`."
        )
    try:
        ledger.log.check_sealed()
    except NotSealed as error:
        _warn(error.detail)
        return
    say(f"The ledger is ready. Data directory: {settings.data_dir.absolute()}")


def _check_not_lost(engine: Engine, settings: Settings) -> None:
    """Refuse to make a ledger where one was that is lost: its budgets would be there again."""
    signed = signed_entries(settings)
    if signed and not has_tables(engine):
        fail(
            f"The database is empty, but {signed} entries of a ledger were signed here, as "
            f"{settings.signed_checkpoint_path} says: a new ledger would spend its budgets again. "
            "Is TERRINE_DATABASE_URL right? If the database is lost, restore a backup: `terrine "
            "restore DIR`. If there is none, `terrine ledger restored` makes a new ledger in which "
            "what was spent stays spent."
        )


def _check_ensembles(engine: Engine, settings: Settings) -> None:
    """Refuse to migrate a ledger for a version that could not serve the ensembles that are here."""
    try:
        with reading(engine) as connection:
            if not missing_migrations(connection):
                return
    except SchemaMismatch:  # there is none yet; or it is newer, which `upgrade` says
        return
    here = [each for each in registrations(engine) if (settings.data_dir / each.path).exists()]
    findings = [health.check_ensemble(each, settings) for each in here]
    wrong = [f"{each.check}: {each.found}" for each in findings if each.state is Severity.PROBLEM]
    if wrong:
        fail(
            "Nothing was migrated, because this version could not serve what is here. "
            f"{' '.join(wrong)} Go on with the version before, or repair it first: `terrine "
            "upgrade --check`, docs/upkeep.md."
        )


def _warn(text: str) -> None:
    say(text, style="bold yellow")
