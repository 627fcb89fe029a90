"""What `terrine doctor` checks on this machine: settings, files, keys, database and ledger."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from shutil import disk_usage

from pydantic import ValidationError
from sqlalchemy import Connection, Engine, text

from terrine_models.addons import load_added
from terrine_protocol.base import quantity
from terrine_protocol.files import PARTIAL, directory_lock
from terrine_server.errors import (
    ConcurrentUpdate,
    DatabaseUnavailable,
    LedgerCorrupted,
    LedgerRestored,
    LogNotSigned,
    NotSealed,
    SchemaMismatch,
    ServiceError,
)
from terrine_server.ledger import Ledger, check_schema, check_writable, connect
from terrine_server.ledger.copies import Registration, registrations
from terrine_server.ledger.database import reading, sqlite_path
from terrine_server.ledger.definitions import schema_differences
from terrine_server.ledger.migrating import excess_rights, missing_rights
from terrine_server.ledger.revisions import has_tables, missing_migrations
from terrine_server.owner.checkpoints import (
    CheckpointError,
    attach_history,
    load_checkpoint_key,
    load_policy,
    signed_entries,
)
from terrine_server.owner.editions import leftovers
from terrine_server.owner.operations import RESTORING
from terrine_server.owner.sign_in import SecretKeyError, load_secret_key
from terrine_server.settings import (
    LOW_DISK_BYTES,
    Settings,
    unknown_variables,
    with_added_settings,
)


class Severity(StrEnum):
    """A warning does not stop the service; a problem does, or should."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The result of one check: what was found and, if it is wrong, how to fix it."""

    check: str
    state: Severity
    found: str
    fix: str = ""


LOST_LEDGER_FIX = (
    "terrine restore DIR, with the newest backup. If there is none: terrine ledger restored, which "
    "asks what was spent"
)
# With less free space, answers are about to stop.
FULL_DISK_BYTES = 2**26


def explain_invalid_settings(error: ValidationError) -> Iterator[Finding]:
    """Yield a finding for each invalid setting, without its value."""
    for item in error.errors(include_url=False, include_input=False):
        where = ".".join(map(str, item["loc"])).upper()
        found = f"TERRINE_{where}: {item['msg']}." if where else item["msg"]
        found = found.replace("Value error, ", "")
        yield Finding("settings", Severity.PROBLEM, found, "docs/settings.md lists the settings")


def check_variables(environment: Mapping[str, str]) -> Finding:
    """Check that every TERRINE_* variable is one that Terrine reads."""
    if unknown := unknown_variables(environment):
        named = ", ".join(unknown)
        found = f"The environment sets {named}, which Terrine does not know."
        return Finding("settings", Severity.WARNING, found, f"unset {' '.join(unknown)}")
    return Finding(
        "settings", Severity.OK, "Every TERRINE_* variable is a setting with a valid value."
    )


def check_device(name: str | None) -> Finding:
    """Check that PyTorch can use the device for voting; None means the best available."""
    import torch

    wanted = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        return Finding(
            "device",
            Severity.PROBLEM,
            f"TERRINE_DEVICE names {wanted}, which cannot be used here ({reason}).",
            "unset TERRINE_DEVICE",
        )
    return Finding("device", Severity.OK, f"Teachers vote on {wanted}.")


def check_data_directory(path: Path) -> Finding:
    """Check that the data directory exists, readable by this account and no other."""
    if not os.path.isdir(path):  # `Path.is_dir` raises where a folder above may not be entered
        found = f"There is no data directory {path.absolute()}, or this account may not enter it."
        return Finding("data directory", Severity.PROBLEM, found, "terrine init")
    if not os.access(path, os.R_OK | os.X_OK):
        found = f"This account may not read {path}."
        return Finding("data directory", Severity.PROBLEM, found, f"chown -R \"$(id -u)\" '{path}'")
    if (path / RESTORING).exists():
        found = f"A restore into {path} was interrupted, so nothing is served."
        fix = "terrine restore DIR, with the same backup"
        return Finding("data directory", Severity.PROBLEM, found, fix)
    if path.stat().st_mode & stat.S_IRWXO:
        found = f"Every account on this machine may enter {path}, which holds private teachers."
        return Finding("data directory", Severity.PROBLEM, found, f"chmod 700 '{path}'")
    return Finding("data directory", Severity.OK, f"{path.absolute()} is closed to other accounts.")


def check_secret_key(path: Path) -> Finding:
    """Check that the secret key exists, is long enough, and is closed to other accounts."""
    try:
        load_secret_key(path)
    except SecretKeyError as error:
        back = f"Put back {path} from its copy; only where no ledger is yet: terrine init"
        fix = back if os.path.isdir(path.parent) else "terrine init"
        return Finding("secret key", Severity.PROBLEM, str(error), fix)
    return check_private_file("secret key", path)


def check_private_file(check: str, path: Path) -> Finding:
    """Check that other accounts have no rights on a secret file."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return _unreadable(check, path, error)
    if path.resolve().is_relative_to("/run/secrets"):
        # Container engines mount secrets here, and the container has no other accounts.
        return Finding(check, Severity.OK, f"{path} is a container secret.")
    if mode & stat.S_IRWXO:
        found = f"Every account on this machine may use {path} (mode {stat.S_IMODE(mode):o})."
        return Finding(check, Severity.PROBLEM, found, f"chmod 600 '{path}'")
    if mode & stat.S_IRWXG:
        found = f"The group of {path} may use it (mode {stat.S_IMODE(mode):o})."
        return Finding(check, Severity.WARNING, found, f"chmod 600 '{path}'")
    return Finding(check, Severity.OK, f"{path} is closed to other accounts.")


def _unreadable(check: str, path: Path | str, error: OSError) -> Finding:
    return Finding(
        check,
        Severity.PROBLEM,
        f"{path} cannot be read ({error.strerror or error}).",
        f"Give this account the right to read it, from its owner's: chown -R \"$(id -u)\" '{path}'",
    )


def _survive(check: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings; a path that cannot be read is one of them, and ends no other check."""
    try:
        yield from findings
    except OSError as error:
        yield _unreadable(check, error.filename or check, error)


def check_disk(path: Path, free: int) -> Finding:
    """Check that `free` bytes are enough for the ledger in `path` to grow."""
    found = f"{free / 2**30:.1f} GiB are free on the disk of {path}."
    if free >= LOW_DISK_BYTES:
        return Finding("disk", Severity.OK, found)
    state = Severity.WARNING if free >= FULL_DISK_BYTES else Severity.PROBLEM
    return Finding(
        "disk", state, found, "Free some space: when the ledger cannot grow, answers stop"
    )


def take_others_rights(path: Path) -> bool:
    """Remove all rights of other accounts on a file or directory; return whether there were any."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if path.resolve().is_relative_to("/run/secrets") or not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return False
    path.chmod(mode & stat.S_IRWXU)
    return True


MIN_POSTGRESQL_VERSION = 14
MAX_CLOCK_SKEW = timedelta(seconds=1)
BROKEN_CLOCK_SKEW = timedelta(minutes=1)


def check_database(engine: Engine) -> Iterator[Finding]:
    """Check the database itself, its durability and its clock. Raises DatabaseUnavailable."""
    path = sqlite_path(engine)
    if path is not None:
        yield from _check_sqlite(engine, path)
        return
    with reading(engine) as connection:
        names = ("server_version", "server_version_num", *POSTGRESQL_SETTINGS)
        found = {name: str(_query_value(connection, f"SHOW {name}")) for name in names}
        standby = bool(_query_value(connection, "SELECT pg_is_in_recovery()"))
        before = datetime.now(UTC)
        there = _query_value(connection, "SELECT clock_timestamp()")
        here = before + (datetime.now(UTC) - before) / 2
    yield from check_postgresql(found, standby)
    assert isinstance(there, datetime)  # noqa: S101 - as PostgreSQL documents it
    yield compare_clocks(here, there)


def check_database_rights(engine: Engine) -> Iterator[Finding]:
    """Check this account's rights on the tables; nothing on SQLite or without tables."""
    if sqlite_path(engine) is not None:
        return
    with reading(engine) as connection:
        if _query_value(connection, "SELECT to_regclass('charges')") is None:
            return
        account = _query_value(connection, "SELECT current_user")
        lacking, excess = missing_rights(connection), excess_rights(connection)
    if lacking:
        found = f"The account {account} may not {', '.join(lacking)}."
        fix = f"terrine init --service-role {account}   (as the owner of the tables)"
        yield Finding("rights", Severity.PROBLEM, found, fix)
    elif excess:
        found = f"The account {account} may {', '.join(excess)} charges: only triggers prevent it."
        fix = "Serve with another role: docs/ledger.md, A role with fewer rights"
        yield Finding("rights", Severity.WARNING, found, fix)
    else:
        found = f"The account {account} may add charges, but not change them."
        yield Finding("rights", Severity.OK, found)


def check_whole_schema(engine: Engine) -> Iterator[Finding]:
    """Check that the whole schema is as this version's migrations make it."""
    parts = schema_differences(engine)
    added = [part.part for part in parts if part.change == "added"]
    lost = [str(part) for part in parts if part.change != "added" and not part.restore]
    restorable = [str(part) for part in parts if part.restore]
    if added:
        found = f"The schema has what is not Terrine's: {'; '.join(added)}."
        fix = "Find out who added it, then DROP it; terrine ledger verify all"
        yield Finding("schema", Severity.PROBLEM, found, fix)
    if restorable:
        found = f"The schema is not as Terrine made it: {'; '.join(restorable)}."
        fix = "terrine init && terrine ledger verify all"
        yield Finding("schema", Severity.PROBLEM, found, fix)
    if lost:
        found = f"The schema is not as Terrine made it, and cannot be restored: {'; '.join(lost)}."
        fix = "Restore a backup of the database; terrine ledger verify all"
        yield Finding("schema", Severity.PROBLEM, found, fix)
    if not parts:
        found = "The whole schema is as this version of Terrine makes it."
        yield Finding("schema", Severity.OK, found)


def _check_sqlite(engine: Engine, path: Path) -> Iterator[Finding]:
    with reading(engine) as connection:
        version = _query_value(connection, "SELECT sqlite_version()")
        journal = _query_value(connection, "PRAGMA journal_mode")
    yield Finding("database", Severity.OK, f"SQLite {version}, {path}.")
    if journal != "wal":
        found = f"The journal mode of {path} is {journal}; expected wal (write-ahead log)."
        yield Finding("database", Severity.PROBLEM, found, "terrine init")
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        found = f"This account may not write to {path} and its directory."
        fix = f"chown \"$(id -u)\" '{path.parent}' '{path}'*"
        yield Finding("database", Severity.PROBLEM, found, fix)
    yield check_private_file("database", path)
    yield check_disk(path, disk_usage(path.parent).free)


# Accepted values of settings without which a charge is not durable or fails; how to set them. What
# a session can set by itself, it does (`ledger/database.py`).
POSTGRESQL_SETTINGS = {
    "fsync": ({"on"}, "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();"),
    "full_page_writes": (
        {"on"},
        "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf();",
    ),
    "default_transaction_read_only": (
        {"off"},
        "ALTER DATABASE … SET default_transaction_read_only = off;",
    ),
}


def check_postgresql(settings: Mapping[str, str], standby: bool) -> Iterator[Finding]:
    """Check a PostgreSQL server's settings, as our session sees them."""
    version = settings["server_version"].partition(" ")[0]
    if int(settings["server_version_num"]) // 10_000 < MIN_POSTGRESQL_VERSION:
        found = f"PostgreSQL {version} is no longer supported by its developers."
        fix = f"Upgrade to PostgreSQL {MIN_POSTGRESQL_VERSION} or newer"
        yield Finding("database", Severity.WARNING, found, fix)
    else:
        yield Finding("database", Severity.OK, f"PostgreSQL {version}.")
    if standby:
        found = "This PostgreSQL server is a standby, which accepts no charges."
        yield Finding(
            "database", Severity.PROBLEM, found, "Point TERRINE_DATABASE_URL at the primary"
        )
    wrong = False
    for name, (right, fix) in POSTGRESQL_SETTINGS.items():
        if settings[name] not in right:
            wrong = True
            found = f"PostgreSQL's {name} is {settings[name]}; expected {' or '.join(right)}."
            yield Finding("durability", Severity.PROBLEM, found, fix)
    if not wrong:
        yield Finding("durability", Severity.OK, "Commits are on disk.")


def compare_clocks(here: datetime, there: datetime) -> Finding:
    """Compare this machine's clock with the database's."""
    apart = abs(here - there)
    found = (
        f"The clocks of this machine and of the database are {apart.total_seconds():.1f} s apart."
    )
    if apart < MAX_CLOCK_SKEW:
        return Finding("clock", Severity.OK, found)
    state = Severity.WARNING if apart < BROKEN_CLOCK_SKEW else Severity.PROBLEM
    return Finding("clock", state, found, "timedatectl set-ntp true")


def _query_value(connection: Connection, query: str) -> object:
    return connection.execute(text(query)).scalar_one()


def check_ensemble_files(name: str, directory: Path, digest: str) -> Finding:
    """Check that an ensemble's files are those that were registered, and that we can read them."""
    from terrine_models.storage.manifests import StoreError
    from terrine_models.teachers.kinds import ensemble_format

    check, held = f"ensemble {name}", ensemble_format(directory)
    fix = f"Restore {directory} from a backup: terrine restore"
    try:
        if held.digest(directory) != digest:
            found = f"{directory} holds a different ensemble from the one registered."
            return Finding(check, Severity.PROBLEM, found, fix)
        try:
            held.load(directory)
        except StoreError as error:  # nobody altered it
            other = "Serve it with the version of Terrine that made it, or make it again"
            return Finding(check, Severity.PROBLEM, str(error), other)
        held.verify(directory)
    except StoreError as error:
        return Finding(check, Severity.PROBLEM, str(error), fix)
    return Finding(check, Severity.OK, "Its files are as registered.")


def check_ensembles(ledger: Ledger, settings: Settings) -> Iterator[Finding]:
    """Verify the files of every registered ensemble, and report unregistered directories."""
    registered = ledger.ensembles.list()
    for registration in registered:
        record = registration.current
        found = check_ensemble_files(
            record.name, settings.data_dir / record.path, record.manifest_sha256
        )
        yield found
        if found.state is not Severity.OK or record.edition is None:
            continue
        if left := leftovers(settings, registration):
            named = ", ".join(path.name for path in left)
            yield Finding(
                found.check,
                Severity.PROBLEM,
                f"{named}: private records of an edition that does not serve.",
                "the command that was interrupted, once more: `terrine ensemble forget` or "
                "`terrine ensemble add`",
            )
    known = {(settings.data_dir / record.path).resolve() for record in registered}
    for directory in sorted(settings.ensembles_dir.glob("*/")):
        if directory.suffix == PARTIAL:
            yield from check_partial(directory)
        elif directory.resolve() not in known:
            yield Finding(
                f"ensemble {directory.name}",
                Severity.WARNING,
                f"{directory} is not registered: no project can use it.",
                f"terrine ensemble register {directory.name}",
            )


def check_partial(directory: Path) -> Iterator[Finding]:
    """Report what is left of an ensemble, unless a process is making it."""
    with suppress(BlockingIOError), directory_lock(directory, wait=False):
        yield Finding(
            "ensembles",
            Severity.WARNING,
            f"{directory} is what a process left that was interrupted.",
            f"the command that was interrupted, once more; or: rm -r '{directory}'",
        )


def check_balances(ledger: Ledger) -> Iterator[Finding]:
    """Check that each project's balance and its units' accounts match its last entry.

    Also that no entry is dated in the future.
    """
    whole, newest = 0, None
    names = ledger.projects.list_names()
    for name in names:
        try:
            project = ledger.projects.get(name)
            last = ledger.entries.list(name, after_seq=max(0, project.charges - 1), limit=1)
            if project.terms.allowance is not None:
                with suppress(ConcurrentUpdate):  # a server has just read and written them
                    ledger.charging.unit_accounts(project)
        except ServiceError as error:
            yield Finding("ledger", Severity.PROBLEM, str(error), f"terrine ledger verify {name}")
            continue
        whole += 1
        newest = max(filter(None, [newest, *(entry.created_at for entry in last)]), default=None)
    said = (
        f"Projects whose last entry is as balance and accounts say: {whole} of {len(names)}. "
        "All entries: `terrine ledger verify`."
    )
    yield Finding("ledger", Severity.OK, said)
    yield check_newest_charge(datetime.now(UTC), newest)


def check_log(ledger: Ledger) -> Iterator[Finding]:
    """Check the administrative log, and that tables agree with it."""
    found = ledger.verifier.verify_log()
    for problem in found.problems:
        yield Finding(
            "log", Severity.PROBLEM, problem, "terrine ledger show; docs/ledger.md, Edits by hand"
        )
    if found.ok:
        entries = quantity(found.entries, "entry says", "entries say")
        said = f"Tokens, projects and ensembles are as its {entries}."
        yield Finding("log", Severity.OK, said)


def check_signed_checkpoint(ledger: Ledger, settings: Settings) -> Finding:
    """Check that the ledger continues the checkpoint that the data directory has of it."""
    path = settings.signed_checkpoint_path
    try:
        attach_history(ledger, settings).check()
    except LedgerRestored as error:
        return Finding("signed", Severity.PROBLEM, str(error), LOST_LEDGER_FIX)
    except LogNotSigned as error:
        fix = f"Make {path} readable, or see docs/ledger.md"
        return Finding("signed", Severity.PROBLEM, str(error), fix)
    except CheckpointError as error:
        return Finding("signed", Severity.PROBLEM, str(error), "terrine init")
    if not path.exists():
        return Finding("signed", Severity.OK, "Nothing has been signed of the ledger yet.")
    return Finding("signed", Severity.OK, f"The ledger continues what {path} says.")


def _check_missing_schema(error: SchemaMismatch, engine: Engine, settings: Settings) -> Finding:
    """Say what to do where the ledger's tables are of another version, or not there."""
    try:
        signed, there = signed_entries(settings), has_tables(engine)
    except CheckpointError as unreadable:
        fix = "Put the file back as it was, or restore a backup: terrine restore DIR"
        return Finding("signed", Severity.PROBLEM, str(unreadable), fix)
    if signed and not there:
        found = f"The database is empty, but {signed} entries of a ledger were signed here."
        return Finding("signed", Severity.PROBLEM, found, LOST_LEDGER_FIX)
    newer = "newer" in error.detail
    fix = "Install the version of Terrine that migrated it" if newer else "terrine init"
    return Finding("schema", Severity.PROBLEM, str(error), fix)


def check_newest_charge(now: datetime, newest: datetime | None) -> Finding:
    """Check this machine's clock against the newest charge, which cannot be in the future."""
    if newest is None or newest <= now + MAX_CLOCK_SKEW:
        return Finding("clock", Severity.OK, "No charge is dated in the future.")
    found = f"A charge is dated {newest:%Y-%m-%d %H:%M:%S} UTC, but this machine's clock says "
    now_text = f"{now:%Y-%m-%d %H:%M:%S} UTC."
    return Finding("clock", Severity.PROBLEM, found + now_text, "timedatectl set-ntp true")


def examine_upgrade() -> Iterator[Finding]:
    """Check that this version can serve the settings, keys, ledger and ensembles that are here."""
    settings = yield from _examine_settings()
    if settings is None:
        return
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
        yield check_ledger(engine, key)
        for registered in registrations(engine):
            yield check_ensemble(registered, settings)
    except SchemaMismatch as error:
        fix = "Install the version that migrated it; if there should be one, correct the settings"
        yield Finding("ledger", Severity.PROBLEM, str(error), fix)
    except NotSealed as error:
        yield Finding("ledger", Severity.PROBLEM, str(error), "terrine ledger seal --old-key FILE")
    except LedgerCorrupted as error:
        fix = "Check it with the version that wrote it, or restore a backup"
        yield Finding("ledger", Severity.PROBLEM, str(error), fix)
    except DatabaseUnavailable as error:
        yield Finding("ledger", Severity.PROBLEM, error.symptom, error.fix or "As it says")
    finally:
        engine.dispose()


def check_ledger(engine: Engine, key: bytes) -> Finding:
    """Check that the ledger is sealed with this key and can be brought to this version.

    Raises SchemaMismatch (newer, or not there), NotSealed and LedgerCorrupted.
    """
    with reading(engine) as connection:
        missing = missing_migrations(connection)
    Ledger(engine, key).log.check_sealed()
    if not missing:
        return Finding("ledger", Severity.OK, "Its tables are of this version.")
    found = f"Migrations that bring its tables to this version: {missing}."
    return Finding("ledger", Severity.OK, found)


def check_ensemble(registered: Registration, settings: Settings) -> Finding:
    """Check that this version can load an ensemble.

    Its files may be missing if all projects on it are closed.
    """
    from terrine_models.storage.manifests import StoreError
    from terrine_models.teachers.ensemble import load
    from terrine_models.teachers.kinds import ensemble_format

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
    found_files = check_ensemble_files(registered.name, directory, registered.manifest_sha256)
    if found_files.state is not Severity.OK or not ensemble_format(directory).has_manifest:
        return found_files
    try:
        load(directory, device="cpu")
    except StoreError as error:
        fix = "Serve it with the version of Terrine that made it, or make it again"
        return Finding(found_files.check, Severity.PROBLEM, str(error), fix)
    return Finding(found_files.check, Severity.OK, "Its files are as registered, and load.")


def close_to_others() -> list[Path]:
    """Remove the rights of other accounts on the data directory and secret files; return these.

    Raises ValidationError if the settings are invalid, OSError for a file of another account.
    """
    settings = Settings()
    directory = settings.data_dir
    private = [directory, settings.ensembles_dir, settings.secret_key_path]
    private += [settings.checkpoint_key_path, settings.records_key_path, settings.token_key_path]
    private += [directory / f"terrine.sqlite{suffix}" for suffix in ("", "-wal", "-shm")]
    for each in with_added_settings(settings):
        private += [path for path in each.secret_files.values() if path is not None]
    return [path for path in private if path.exists() and take_others_rights(path)]


def examine() -> Iterator[Finding]:
    """Yield the findings on this machine, in the order in which to fix them."""
    settings = yield from _examine_settings()
    if settings is None:
        return
    yield check_secret_key(settings.secret_key_path)
    others = {
        "checkpoint key": settings.checkpoint_key_path,
        "key of the records": settings.records_key_path,
        "key of tokens": settings.token_key_path,
    }
    for secret, private in others.items():
        if os.path.lexists(private):
            yield check_private_file(secret, private)
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
        yield check_private_file("password", settings.database_password_file)
    yield from _examine_database(settings, password)
    for check in load_added("checks"):
        yield from _survive(check.__name__, check(settings))


def _examine_settings() -> Generator[Finding, None, Settings | None]:
    """Check settings, device and data directory; return the settings if they are valid."""
    try:
        settings = Settings()
        with_added_settings(settings)
    except ValidationError as error:
        yield from explain_invalid_settings(error)
        return None
    yield check_variables(os.environ)
    yield check_device(settings.device)
    yield check_data_directory(settings.data_dir)
    return settings


def _examine_database(settings: Settings, password: str | None) -> Iterator[Finding]:
    try:
        engine = connect(settings.database, password)
    except DatabaseUnavailable as error:
        yield Finding("database", Severity.PROBLEM, error.symptom, error.fix or "As it says")
        return
    try:
        yield from check_database(engine)
        yield from check_database_rights(engine)
        check_schema(engine)
        yield from check_whole_schema(engine)
        try:
            ledger = Ledger(engine, load_secret_key(settings.secret_key_path))
        except SecretKeyError:
            return  # `check_secret_key` has reported it
        ledger.log.check_sealed()
        yield from _survive("ensembles", check_ensembles(ledger, settings))
        yield from check_balances(ledger)
        yield from check_log(ledger)
        check_writable(engine)
        signed = (check_signed_checkpoint(each, settings) for each in (ledger,))
        yield from _survive("checkpoint", signed)
    except SchemaMismatch as error:
        yield _check_missing_schema(error, engine, settings)
    except NotSealed as error:
        yield Finding("seals", Severity.PROBLEM, str(error), "terrine ledger seal --old-key FILE")
    except LedgerCorrupted as error:
        yield Finding("ledger", Severity.PROBLEM, str(error), "terrine ledger verify all")
    except DatabaseUnavailable as error:
        yield Finding("database", Severity.PROBLEM, error.symptom, error.fix or "As it says")
    finally:
        engine.dispose()
