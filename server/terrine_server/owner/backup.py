"""Backups of a whole service, and their way back.

    made = back_up(settings, Path("/backups/monday"))
    done = restore(settings, Path("/backups/monday"), replace=True)

A backup is a directory, closed to other accounts: the ledger as a SQLite file, whatever database it
was in; the ensembles; and the files of the data directory that nothing else could bring back. In
`backup.json` are their sizes and digests, sealed with the secret key, which is not inside. So a
backup fits the one ledger that this key seals, and nothing in it can be altered.

A restore first makes all that it needs in a scratch directory inside the data directory: checked,
migrated, and marked as restored. To give that its final name, `restoring`, is the decision: from
then on nothing is served until all of it is in its place, and whoever interrupts it runs the same
command again. Before, nothing was touched.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import Field, ValidationError
from sqlalchemy import Engine

from terrine_protocol.base import Record, Sha256, first_problem
from terrine_protocol.errors import TerrineError
from terrine_protocol.files import (
    MAX_DOCUMENT_BYTES,
    directory_lock,
    new_directory,
    open_regular_file,
    read,
    sync_directory,
    write_atomically,
)
from terrine_protocol.transparency import Checkpoint, Note, NoteError
from terrine_server.errors import Conflict, DatabaseUnavailable, NotSealed, SchemaMismatch
from terrine_server.ledger import Action, Ledger, check_schema, connect, copies, upgrade
from terrine_server.ledger.chain import canonical_json, iso
from terrine_server.ledger.database import sqlite_path
from terrine_server.ledger.projects import RestoredProjects
from terrine_server.ledger.seals import Seals
from terrine_server.owner.operations import RESTORING, check_not_restoring, make_directories
from terrine_server.owner.sign_in import load_secret_key
from terrine_server.settings import Settings, with_added_settings

FORMAT: Literal["terrine-backup-1"] = "terrine-backup-1"
MANIFEST = "backup.json"
LEDGER = "ledger.sqlite"
ENSEMBLES = "ensembles"
# Files of the data directory, beside the ensembles, that nothing else could bring back.
KEPT_PATTERNS = (
    "records.key",
    "token.key",
    "checkpoint.key*",
    "checkpoint.signed*",
    "policy",
)
PLAN = "plan.json"
# In the scratch directory of a restore: what it decided, and what will be placed.
PLACED = "placed"
_BY_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ")
_ENSEMBLE_NAME = re.compile(r"[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?")
_BLOCK_BYTES = 2**20


class BackupError(TerrineError):
    """A backup that cannot be made or restored. Says what is wrong, and what to do."""


class StoredFile(Record):
    """A file of a backup."""

    size: Annotated[int, Field(ge=0)]
    sha256: Sha256


class Backup(Record):
    """What a backup is: `backup.json`."""

    format: Literal["terrine-backup-1"] = FORMAT
    terrine: str
    """The version that made it."""
    made_at: datetime
    revision: str
    """Of the ledger's tables."""
    entries: int
    """Of all projects and the administrative log together: what a checkpoint counts."""
    projects: int
    charges: int
    ensembles: tuple[str, ...]
    left_out: dict[str, str]
    """What is not inside and must be kept apart, and why."""
    files: dict[str, StoredFile]
    seal: str
    """Of all the rest, under the secret key."""

    def sealed(self, key: bytes) -> Backup:
        """Return it with the seal that this key makes."""
        rest = canonical_json(self.model_dump(mode="json", exclude={"seal"}))
        return self.model_copy(update={"seal": Seals(key).over("backup", [rest]).hex()})


@dataclass(frozen=True)
class Restore:
    """What a restore did."""

    backup: Backup
    projects: RestoredProjects
    aside: tuple[str, ...]
    """Where that is which was there before."""
    lost: int
    """How many entries that were signed, as the data directory knows, the backup does not have."""
    stayed: tuple[str, ...]
    """Files of the data directory that are not as in the backup, and stayed as they are."""


def back_up(settings: Settings, out: Path) -> Backup:
    """Make a backup in the new directory `out`, whole or not at all. Servers may go on.

    Whoever makes an edition of an ensemble meanwhile waits until its files are copied. Raises
    BackupError (`out` is there; the ledger does not verify; an ensemble is not as registered),
    SecretKeyError, ServiceError and OSError.
    """
    if out.exists():
        raise BackupError(f"{out} is there already. Name a directory that is not.")
    check_not_restoring(settings)
    key = load_secret_key(settings.secret_key_path)
    engine = connect(settings.database, settings.database_password(), copies.COPY_SECONDS)
    files: dict[str, StoredFile] = {}
    with new_directory(out) as work, ExitStack() as stack:
        for directory in _ensemble_directories(settings.ensembles_dir):
            stack.enter_context(directory_lock(directory))
        # Before the ledger: a checkpoint of entries that came after its copy would belie it.
        for pattern in KEPT_PATTERNS:
            for path in sorted(settings.data_dir.glob(pattern)):
                files[path.name] = _copy(path, work / path.name)
        revision = copies.copy_to_file(engine, work / LEDGER)
        entries, charges, projects = _verify_copy(work / LEDGER, key)
        files[LEDGER] = _describe_file(work / LEDGER)
        registered = copies.registrations(copies.file_engine(work / LEDGER))
        newest = {Path(each.path).parts[1]: settings.data_dir / each.path for each in registered}
        for directory in _ensemble_directories(settings.ensembles_dir):
            for path in _ensemble_files(newest.get(directory.name, directory)):
                name = str(path.relative_to(settings.data_dir))
                files[name] = _copy(path, work / name)
        gone = _check_ensembles(work, registered)
        unsealed = Backup(
            terrine=version("terrine"),
            made_at=datetime.now(UTC),
            revision=revision,
            entries=entries,
            projects=projects,
            charges=charges,
            ensembles=tuple(sorted({n.split("/")[1] for n in files if n.startswith(ENSEMBLES)})),
            left_out=_list_omissions(settings, gone),
            files=files,
            seal="",
        )
        made = unsealed.sealed(key)
        _write(work / MANIFEST, made.model_dump_json(indent=2))
        _sync(work)
        check(work, key)
    settings.last_backup_path.touch()  # servers tell when that was
    return made


def back_up_beside(settings: Settings, parent: Path, keep: int) -> tuple[Backup, Path, list[Path]]:
    """Make a backup in a new directory below `parent`, named by the time (UTC), and thin them out.

    Once the new one is complete and checked, all but the newest `keep` good ones are removed: of
    those that this made, sealed with the secret key of now, whose files are all as they were. What
    is damaged, or of another key, counts for nothing and stays.

    Return the new one, where it is, and those that were removed. Raises what `back_up` does, with
    nothing removed.
    """
    key = load_secret_key(settings.secret_key_path)
    out = parent / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}Z"
    made = back_up(settings, out)
    good, removed = 0, []
    for directory in sorted(parent.iterdir(), reverse=True):
        if not _BY_TIME.fullmatch(directory.name):
            continue
        try:
            check(directory, key)
        except (BackupError, NotSealed, OSError):
            continue
        good += 1
        if good > keep:
            (directory / MANIFEST).unlink()  # first: half of one must not pass for a whole one
            shutil.rmtree(directory)
            removed.append(directory)
    return made, out, removed


def check(directory: Path, key: bytes) -> Backup:
    """Return what a backup is, once all of its files are as they were written.

    Raises BackupError, NotSealed for another key, and OSError.
    """
    data = read(directory / MANIFEST, MAX_DOCUMENT_BYTES)
    try:
        found = Backup.model_validate_json(data)
    except ValidationError as error:
        raise BackupError(
            f"{directory / MANIFEST} is not a backup that Terrine {version('terrine')} can read, "
            f"{first_problem(error)}. Restore it with the version that made it."
        ) from None
    if found.sealed(key).seal != found.seal:
        raise NotSealed(
            f"{directory / MANIFEST} was altered, or its ledger is sealed with another secret key "
            "than this one. Put the key that it had where TERRINE_SECRET_KEY_FILE says, by default "
            "`secret.key` in the data directory."
        )
    there = {
        str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()
    } - {MANIFEST}
    for name in sorted(there ^ found.files.keys()):
        what = "missing" if name in found.files else "not of this backup"
        raise BackupError(f"{directory / name} is {what}. Restore another backup.")
    for name, expected in found.files.items():
        if _describe_file(directory / name) != expected:
            raise BackupError(f"{directory / name} was altered. Restore another backup.")
    return found


def restore(settings: Settings, backup: Path, *, replace: bool = False) -> Restore:
    """Put a backup in the place of what is there, or of nothing. Stop all servers before.

    `replace`: though the ledger that is there has entries; it is kept aside, and so is all else
    that gives way. The restored ledger's projects are paused, and accounts of people count as spent
    (`Projects.fill_accounts`). Files that the data directory has and that can only be newer stay:
    the last signed checkpoint, the policy. If it is interrupted, the same call does the rest.

    Raises BackupError, Conflict (a server runs; there is a ledger, and `replace` was not said;
    another account of PostgreSQL than the owner's), SecretKeyError, NotSealed, SchemaMismatch (a
    newer version made it), LedgerCorrupted, and OSError, with nothing changed.
    """
    key = load_secret_key(settings.secret_key_path)
    found = check(backup, key)
    make_directories(settings)
    engine = connect(settings.database, settings.database_password(), copies.COPY_SECONDS)
    staged, done = settings.data_dir / RESTORING, settings.data_dir / f".{RESTORING}.done"
    if not staged.exists():
        shutil.rmtree(done, ignore_errors=True)
        _check_target(engine, replace)
        _stage(settings, backup, found, key)
    plan = _RestorePlan.model_validate_json(read(staged / PLAN))
    if plan.seal != found.seal:
        raise BackupError(
            f"The restore of the backup of {plan.made_at:%Y-%m-%d %H:%M} UTC was interrupted. Run "
            "`terrine restore` with that one again: it does the rest."
        )
    _place_files(settings.data_dir, staged, plan)
    _place_ledger(settings.data_dir, engine, staged, plan, key)
    aside = [str(path) for path in [settings.data_dir / plan.aside] if path.exists()]
    if sqlite_path(engine) is None and copies.has_schema(engine, plan.aside_schema):
        aside.append(f"the schema {plan.aside_schema} of the database")
    engine.dispose()
    staged.rename(done)
    sync_directory(settings.data_dir)
    shutil.rmtree(done)
    return Restore(
        found, RestoredProjects(plan.paused, plan.filled), tuple(aside), plan.lost, plan.stayed
    )


class _RestorePlan(Record):
    """What a restore decided before it touched anything."""

    seal: str
    """Of the backup."""
    made_at: datetime
    aside: str
    """Directory for what gives way."""
    paused: tuple[str, ...]
    filled: tuple[str, ...]
    lost: int
    stayed: tuple[str, ...]

    @property
    def aside_schema(self) -> str:
        """Schema of PostgreSQL for the tables that give way."""
        return self.aside.replace("-", "_")


def _check_target(engine: Engine, replace: bool) -> None:
    """Raise Conflict unless nobody uses the ledger that is there, and it may be replaced."""
    path, missed = sqlite_path(engine), False
    if path is None:
        copies.check_owner(engine)
        others = copies.others_connected(engine)
        if others:
            raise Conflict(
                f"Others are connected to the ledger's database: {', '.join(others)}. Stop all "
                "servers, and whatever else uses it."
            )
        missed = copies.holds_entries(engine)
    elif path.exists():
        try:
            missed = copies.holds_entries(engine)
        except DatabaseUnavailable:  # damaged, which is what backups are for
            missed = True
        engine.dispose()
        _check_unused(path)
    if missed and not replace:
        raise Conflict(
            "There is a ledger with entries. To put the backup in its place, say --replace: what "
            "is there is kept aside."
        )


def _check_unused(path: Path) -> None:
    """Raise Conflict if another process has a SQLite file open. Its write-ahead log is emptied."""
    uri = f"file:{quote(str(path.absolute()))}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, timeout=1, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise Conflict(f"{path} is in use. Stop the server first.") from None
            # It is damaged, and will give way.


def _stage(settings: Settings, backup: Path, found: Backup, key: bytes) -> None:
    """Make all ready that is to be placed, in a directory that is called `restoring` in the end."""
    data = settings.data_dir
    with new_directory(data / RESTORING) as work:
        ledger_file = work / LEDGER
        placed, stayed = _choose_files(data, backup, found)
        for name in (LEDGER, *placed):
            copy = ledger_file if name == LEDGER else work / PLACED / name
            if _copy(backup / name, copy) != found.files[name]:
                raise BackupError(f"{backup / name} changed while it was read.")
        (work / PLACED).mkdir(mode=0o700, exist_ok=True)
        engine = copies.file_engine(ledger_file)
        _check_ensembles(backup, copies.registrations(engine))
        upgrade(engine, key)
        ledger = Ledger(engine, key)
        _verify(ledger)
        done = ledger.projects.fill_accounts()
        detail = {"made_at": iso(found.made_at), "entries": found.entries}
        ledger.log.record(Action.LEDGER_RESTORED, "ledger", detail)
        copies.settle(engine)
        plan = _RestorePlan(
            seal=found.seal,
            made_at=found.made_at,
            aside=f"before-restore-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}",
            paused=tuple(done.paused),
            filled=tuple(done.filled),
            lost=_count_lost_entries(settings.signed_checkpoint_path, backup, found),
            stayed=tuple(stayed),
        )
        _write(work / PLAN, plan.model_dump_json())
        _sync(work)


def _choose_files(data: Path, backup: Path, found: Backup) -> tuple[list[str], list[str]]:
    """Return which files are to be placed, and which of the data directory's differ and stay.

    A log that has ended here is not begun again, and what was signed is not forgotten.
    """
    placed: list[str] = []
    stayed: list[str] = []
    key_file, signed_file = "checkpoint.key", "checkpoint.signed"
    known_keys = {read(path) for path in data.glob(f"{key_file}*")}
    new_log = key_file in found.files and read(backup / key_file) not in known_keys
    for name, expected in found.files.items():
        here = data / name
        if name == LEDGER or "/" in name or (here.exists() and _describe_file(here) == expected):
            continue
        if name == key_file:
            wanted = new_log
        elif name == signed_file:
            ours, theirs = _read_checkpoint(here), _read_checkpoint(backup / name)
            if ours is None or theirs is None:
                wanted = True
            elif ours.origin == theirs.origin:
                wanted = ours.size < theirs.size
            else:
                wanted = new_log
        else:
            wanted = name == "records.key" or not here.exists()
        (placed if wanted else stayed).append(name)
    for ensemble in found.ensembles:
        within = f"{ENSEMBLES}/{ensemble}/"
        of_it = {name: each for name, each in found.files.items() if name.startswith(within)}
        there = _ensemble_files(data / within, editions=True)
        if {str(path.relative_to(data)): _describe_file(path) for path in there} != of_it:
            placed += of_it
    return placed, stayed


def _place_files(data: Path, staged: Path, plan: _RestorePlan) -> None:
    """Place files and ensembles; what is there gives way. Done again, it does what is left."""
    files = staged / PLACED
    aside = data / plan.aside
    for new in [*_children(files / ENSEMBLES), *_children(files)]:
        if new == files / ENSEMBLES:
            continue
        name = new.relative_to(files)
        if os.path.lexists(data / name):
            (aside / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (data / name).rename(aside / name)
        new.rename(data / name)
        sync_directory((data / name).parent)


def _place_ledger(data: Path, engine: Engine, staged: Path, plan: _RestorePlan, key: bytes) -> None:
    """Place the ledger; done again, it does what is left."""
    new, file = staged / LEDGER, sqlite_path(engine)
    if not new.exists():  # it was placed before this was interrupted
        return
    if file is None:
        if copies.log_end(engine) != copies.log_end(copies.file_engine(new)):
            copies.replace_ledger(engine, new, plan.aside_schema)
        new.unlink()
        return
    aside = data / plan.aside
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if file.exists():
        for suffix in ("-wal", "-shm", ""):  # a log is there only if the file is damaged
            old = file.with_name(file.name + suffix)
            if old.exists() and not (aside / old.name).exists():
                scratch = aside / f".{old.name}.partial"
                scratch.unlink(missing_ok=True)
                _copy(old, scratch)
                scratch.rename(aside / old.name)
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    scratch = file.with_name(f".{file.name}.restored")
    scratch.unlink(missing_ok=True)
    _copy(new, scratch)
    scratch.replace(file)
    sync_directory(file.parent)
    new.unlink()
    upgrade(engine, key)  # it is of this version: this only sets how SQLite writes


def _verify_copy(file: Path, key: bytes) -> tuple[int, int, int]:
    """Return how many entries, charges and projects a copy has, once it verifies.

    One of an earlier version is verified as it will be after its migration.
    """
    engine = copies.file_engine(file)
    counts = copies.count_entries(engine)
    try:
        check_schema(engine)
    except SchemaMismatch:
        scratch = file.with_name(f".{file.name}.migrated")
        _copy(file, scratch)
        migrated = copies.file_engine(scratch)
        try:
            upgrade(migrated, key)
            _verify(Ledger(migrated, key))
        finally:
            migrated.dispose()
            for suffix in ("", "-wal", "-shm"):
                scratch.with_name(scratch.name + suffix).unlink(missing_ok=True)
    else:
        _verify(Ledger(engine, key))
    finally:
        engine.dispose()
    return counts


def _verify(ledger: Ledger) -> None:
    """Raise BackupError unless a ledger verifies, and NotSealed for another key."""
    ledger.log.check_sealed()
    problems = list(ledger.verifier.verify_log().problems)
    for name in ledger.projects.list_names():
        problems += [
            f"{name}: {problem}" for problem in ledger.verifier.verify_project(name).problems
        ]
    if problems:
        raise BackupError(
            f"The ledger does not verify: {'; '.join(problems)}. `terrine ledger verify all` shows "
            "more; `terrine ledger seal --accept` takes it as it is, if you know why."
        )


def _check_ensembles(root: Path, registered: list[copies.Registration]) -> list[str]:
    """Return which ensembles are gone with all their projects closed.

    Raises BackupError unless the files of all others are as registered, and StoreError.
    """
    from terrine_models.teachers.kinds import verify_ensemble

    gone = []
    for each in registered:
        directory = root / each.path
        if not directory.exists():
            if each.in_use:
                raise BackupError(
                    f"There are no files of the ensemble {each.name}, which is in use."
                )
            gone.append(each.name)
        elif verify_ensemble(directory) != each.manifest_sha256:
            raise BackupError(
                f"The files of the ensemble {each.name} are not those that were registered. "
                "`terrine doctor` says more."
            )
    return gone


def _list_omissions(settings: Settings, gone: list[str]) -> dict[str, str]:
    """Return what is not in a backup, and why."""
    secrets = {
        "the secret key, without which the backup is of no use": settings.secret_key_path,
        "the key of the transparency log": settings.checkpoint_key_file,
        "the policy of the transparency log": settings.log_policy_file,
    }
    for each in with_added_settings(settings):
        secrets |= each.secret_files
    return {str(path): what for what, path in secrets.items() if path is not None} | {
        f"ensemble {name}": "its files are gone, and no project on it is open" for name in gone
    }


def _count_lost_entries(signed: Path, backup: Path, found: Backup) -> int:
    """Return how many entries that were signed, as far as is known here, are not in a backup."""
    ours, theirs = _read_checkpoint(signed), _read_checkpoint(backup / "checkpoint.signed")
    if ours is None or (theirs is not None and theirs.origin != ours.origin):
        return 0
    return max(0, ours.size - found.entries)


def _read_checkpoint(path: Path) -> Checkpoint | None:
    """Return what a file says was signed; None if it is not there or cannot be read."""
    try:
        return Checkpoint.parse(Note.parse(read(path)).text)
    except (OSError, NoteError):
        return None


def _ensemble_directories(directory: Path) -> list[Path]:
    """Return the directories of ensembles; others are scratch of whoever makes one."""
    return [
        path
        for path in _children(directory)
        if path.is_dir() and _ENSEMBLE_NAME.fullmatch(path.name)
    ]


def _children(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _ensemble_files(directory: Path, editions: bool = False) -> Iterator[Path]:
    """Yield the files of an ensemble; `editions`: and those of all that is below it."""
    for path in _children(directory):
        if path.is_dir():
            if editions:
                yield from _ensemble_files(path, editions)
        elif not path.name.startswith(".") or editions:
            yield path


def _copy(source: Path, target: Path) -> StoredFile:
    """Copy a file, closed to other accounts and durable; return what was copied."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as copy, open_regular_file(source) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
            copy.write(block)
        copy.flush()
        os.fsync(handle)
    return StoredFile(size=size, sha256=digest.hexdigest())


def _describe_file(path: Path) -> StoredFile:
    """Return what a file holds."""
    with open_regular_file(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return StoredFile(size=file.tell(), sha256=digest)


def _write(path: Path, text: str) -> None:
    write_atomically(path, f"{text}\n".encode())
    path.chmod(0o600)


def _sync(directory: Path) -> None:
    """Make the names in a directory and below durable."""
    for path in (directory, *directory.rglob("*")):
        if path.is_dir():
            sync_directory(path)
