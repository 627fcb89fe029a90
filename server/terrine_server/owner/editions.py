"""People leave an ensemble, or join one of neighbours, while it serves.

An edition is a directory beside the files that were registered, and a row of the ledger that names
its digest. First the directory is complete and durable, then one transaction makes it the newest
edition and takes all accounts over, then the files of the edition before are removed. Whatever dies
in between, the ledger names one whole edition, and the next run of the same command does the rest:
nobody is told that somebody is forgotten before their records are gone.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from terrine_protocol.files import sync_directory
from terrine_server.errors import Conflict
from terrine_server.ledger import Edition, EnsembleRecord, Ledger
from terrine_server.owner.operations import private_data
from terrine_server.owner.tokens import SecretKeyError, load_secret_key, make_secret_key
from terrine_server.settings import Settings

if TYPE_CHECKING:
    from terrine_models.data.arrays import Dataset
    from terrine_models.features.maps import PublicData
    from terrine_models.teachers.editions import SavedEdition
    from terrine_models.teachers.people import Digests

_OF_AN_EDITION = re.compile(r"\.?edition-\d+(\..*)?|\.?manifest\.json.*|.*\.(safetensors|onnx|tmp)")


@dataclass(frozen=True)
class EditionChange:
    """`edition`: the newest one. `people`: how many left or came with it; `left_out`: how many had
    left before and were not let in. `new`: whether it was made by this run."""

    edition: int
    people: int
    left_out: int
    new: bool


def records_key(settings: Settings, *, make: bool = False) -> bytes:
    """Return the key under which people are found again; `make` it if there is none yet.

    Raises SecretKeyError.
    """
    path = settings.records_key_path
    if make:
        make_secret_key(path)
    try:
        return load_secret_key(path)
    except SecretKeyError:
        raise SecretKeyError(
            f"The key of the records, {path}, is not there or too short, so nobody can be found. "
            "Restore it from a backup: a new one would not know those who are there."
        ) from None


def forget(ledger: Ledger, settings: Settings, name: str, who: Digests) -> EditionChange:
    """Forget people, uint8[k, 32] as `people.name_digests` or `record_digests` has them.

    When it returns, their records are on no disk of this service, and they vote in no query that is
    charged from now on. Raises Conflict (an ensemble of another kind, another edition was made
    meanwhile), NotFound, DataError (somebody is not there), StoreError and SecretKeyError.
    """
    from terrine_models.teachers import editions

    key = records_key(settings)
    return _next(ledger, settings, name, lambda old, out: editions.forget(old, out, who, key))


def forget_taught(
    ledger: Ledger,
    settings: Settings,
    name: str,
    who: Digests,
    data: Dataset,
    public: PublicData | None = None,
) -> EditionChange:
    """Forget people in trained teachers: the teachers that saw them are trained anew without them.

    `data`, `public`: see `terrine_models.teachers.editions.forget_taught`. A query that is being
    answered meanwhile ends on the edition it began with. Raises what `forget` raises.
    """
    from terrine_models.teachers import editions

    key = records_key(settings)

    def make(old: Path, out: Path) -> SavedEdition | None:
        return editions.forget_taught(old, out, who, data, key, public)

    return _next(ledger, settings, name, make)


def add(ledger: Ledger, settings: Settings, name: str, data: Dataset) -> EditionChange:
    """Add people, or records of people who are there. Who was forgotten is left out.

    Raises what `forget` raises; DataError for records of another kind.
    """
    from terrine_models.teachers import editions

    key = records_key(settings)
    return _next(ledger, settings, name, lambda old, out: editions.add(old, out, data, key))


def living(ledger: Ledger, name: str) -> tuple[EnsembleRecord, Edition]:
    """Return an ensemble that people can leave and join, and its newest edition.

    Raises NotFound, and Conflict for an ensemble of another kind.
    """
    record = ledger.ensemble(name)
    if record.edition is None:
        raise Conflict(
            f"Nobody knows who is in {name} (kind {record.facts.kind}): its teachers were trained "
            "elsewhere, or without a key of records. Whoever trained them can train them anew."
        )
    return record, record.edition


def _next(
    ledger: Ledger,
    settings: Settings,
    name: str,
    make: Callable[[Path, Path], SavedEdition | None],
) -> EditionChange:
    from terrine_models.storage.manifests import manifest_digest
    from terrine_models.teachers.ensemble import load

    directory = settings.data_dir / living(ledger, name)[0].path
    with _alone(directory):
        record, newest = living(ledger, name)
        _tidy(settings, record)
        number = newest.number + 1
        change = make(settings.data_dir / record.current.path, directory / f"edition-{number}")
        if change is None:
            return EditionChange(newest.number, 0, 0, new=False)
        made = directory / f"edition-{number}"
        load(made, device="cpu")
        erased, slots = {*newest.erased, *change.slots}, change.manifest.units
        digest, data = manifest_digest(made), private_data(change.manifest)
        try:
            ledger.make_edition(name, number, digest, slots, erased, data=data)
        except Conflict:
            _tidy(settings, ledger.ensemble(name))
            raise
        _tidy(settings, ledger.ensemble(name))
        return EditionChange(number, change.people, change.left_out, new=True)


def _tidy(settings: Settings, record: EnsembleRecord) -> None:
    """Remove what is of any edition but the newest, and make that durable.

    Raises StoreError, with nothing removed, unless the newest is there.
    """
    from terrine_models.storage.manifests import StoreError, manifest_digest

    directory = settings.data_dir / record.path
    kept = settings.data_dir / record.current.path
    if manifest_digest(kept) != record.current.manifest_sha256:
        raise StoreError(
            f"{kept} is not the edition that the ledger names. Restore it from the backup that the "
            "ledger is of."
        )
    for path in leftovers(settings, record):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    sync_directory(directory)


def leftovers(settings: Settings, record: EnsembleRecord) -> list[Path]:
    """Return what is there of editions that are over, or were never made: private records."""
    directory = settings.data_dir / record.path
    kept = settings.data_dir / record.current.path
    return [
        path
        for path in sorted(directory.iterdir())
        if path != kept
        and _OF_AN_EDITION.fullmatch(path.name)
        and (path.is_dir() or kept != directory)
    ]


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Wait for others who make an edition of the same ensemble on this machine."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
