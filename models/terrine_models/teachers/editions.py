"""Editions of neighbours: the same ensemble, from which people left or to which they came.

    from terrine_models.teachers.editions import add, forget
    from terrine_models.teachers.neighbours import name_digests

    forget(directory, out, name_digests(["Ada"], key), key)  # nobody's records but hers go
    add(directory, out, coming, key)

Who somebody is, is kept as a digest under a key of the owner's: of the name where records have a
group, and otherwise of the record itself. Whether a person is admitted or erased follows from that
person's own digest and from lists that the owner gave, never from whom else the ensemble holds.
"""

from __future__ import annotations

import hmac
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError, Dataset
from terrine_models.storage.manifests import (
    StoreError,
    save_tensors,
    sync_directory,
    verified_bytes,
    write_atomically,
)
from terrine_models.teachers.heads import load_map
from terrine_models.teachers.manifests import (
    Manifest,
    Stored,
    check_shapes,
    load_manifest,
    save_manifest,
)
from terrine_models.teachers.neighbours import (
    IDENTITIES,
    RECORDS,
    Digests,
    NeighbourTeachers,
    key_check,
    placed,
    record_digests,
    save_identities,
)
from terrine_models.teachers.shards import check_encoding, unit_count

Records = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Change:
    """A new edition, which is saved. `slots`: of those who left with it; secret.

    `people`: how many left, or came with records of their own. `left_out`: how many were kept from
    coming back.
    """

    manifest: Manifest
    slots: tuple[int, ...]
    people: int
    left_out: int = 0


@dataclass(frozen=True)
class _Opened:
    """An edition, and what its next one is made of."""

    directory: Path
    manifest: Manifest
    kind: NeighbourTeachers
    records: Records
    present: Digests
    """uint8[U, 32], who is in each slot; zeros for those who left."""
    erased: Digests
    """uint8[E, 32], who left, in an order that tells nothing."""


def forget(directory: Path, out: Path, who: Digests, key: bytes) -> Change | None:
    """Save in `out` the edition of `directory` without the people `who`, uint8[k, 32].

    Their records are not in it, their digests keep them from coming back, and their slots stay
    empty. Where a record is all that is known of a person, everyone with the same record leaves.
    None if all of them left before. Raises DataError (somebody is not there, or all would leave),
    and StoreError.
    """
    old = _opened(directory, key)
    gone = {bytes(row) for row in old.erased}
    leaving = {bytes(row) for row in who}
    here = [bytes(row) in leaving for row in old.present]
    slots = np.flatnonzero(here)
    found = {bytes(row) for row in old.present[slots]}
    unknown = [place + 1 for place, row in enumerate(who) if bytes(row) not in found | gone]
    if unknown:
        raise DataError(
            f"{len(unknown)} of {len(who)} to be forgotten are not in {old.manifest.name}, the "
            f"first of them number {unknown[0]}. Nobody was forgotten."
        )
    if not len(slots):
        return None
    stays = ~np.isin(old.records["units"], slots)
    if not stays.any():
        raise DataError(
            f"Nobody would be left in {old.manifest.name}. Close its projects and remove "
            f"{old.directory} instead."
        )
    present = old.present.copy()
    present[slots] = 0
    erased = np.unique(np.concatenate([old.erased, _rows(found)]), axis=0)
    records = {name: values[stays] for name, values in old.records.items()}
    manifest = _saved(old, out, records, present, erased, old.kind.added, key)
    return Change(manifest, tuple(map(int, slots)), len(slots))


def add(directory: Path, out: Path, data: Dataset, key: bytes) -> Change | None:
    """Save in `out` the edition of `directory` with more people, or more records of people.

    New people have new slots. Who left before is left out. None if these very records were added
    before. Raises DataError for records of another kind than the ensemble's, and StoreError.
    """
    old = _opened(directory, key)
    manifest, kind = old.manifest, old.kind
    check_encoding(data)
    if (data.spec, data.classes) != (manifest.input, manifest.classes):
        raise DataError(
            f"{data.name}: inputs or classes are not those of {manifest.name}: {data.spec} and "
            f"{', '.join(data.classes)}, expected {manifest.input} and "
            f"{', '.join(manifest.classes)}."
        )
    grouped = manifest.partition is not None
    if (data.groups is not None) != grouped:
        wanted = "with a group, as" if grouped else "without one, as"
        raise DataError(f"{data.name}: expected records {wanted} {manifest.name} has them.")
    digest = hmac.digest(key, b"terrine/added/1" + bytes.fromhex(data.digest()), "sha256").hex()
    if digest in kind.added:
        return None
    who = record_digests(data, key)
    gone = {bytes(row) for row in old.erased}
    # Only names are compared with those of others: equal records may be of two people.
    known = {bytes(row): slot for slot, row in enumerate(old.present)} if grouped else {}
    slots = np.full(unit_count(data), -1)
    came: list[NDArray[np.uint8]] = []
    for unit, row in enumerate(who):
        if bytes(row) in gone:
            continue
        if bytes(row) in known:
            slots[unit] = known[bytes(row)]
        else:
            slots[unit] = len(old.present) + len(came)
            came.append(row)
    stored = Stored(old.directory, manifest, manifest.teacher_files)
    # All are placed, and then some left out: where a record is placed must not depend on others.
    new = dict(placed(data, load_map(stored, kind.features), kind.scale))
    units = slots[new["units"]].astype(np.int32)
    stays = units >= 0
    new["units"] = units
    new["since"] = np.full(len(stays), kind.edition + 1, np.int32)
    records = {
        name: np.concatenate([values, new[name][stays]]) for name, values in old.records.items()
    }
    order = np.lexsort((records["labels"], records["units"]))
    records = {name: values[order] for name, values in records.items()}
    present = np.concatenate([old.present, np.array(came, np.uint8).reshape(-1, 32)])
    added = (*kind.added, digest)
    saved = _saved(old, out, records, present, old.erased, added, key)
    return Change(saved, (), len(came), int((slots < 0).sum()))


def _opened(directory: Path, key: bytes) -> _Opened:
    manifest = load_manifest(directory)
    kind = manifest.teacher
    if not isinstance(kind, NeighbourTeachers):
        raise StoreError(f"{directory} holds {kind.kind}, not neighbours.")
    if IDENTITIES not in manifest.files:
        raise StoreError(
            f"{directory} was built without a key, so nobody in it can be found. Build it again "
            "with `terrine neighbours build`."
        )
    stored = Stored(directory, manifest, manifest.teacher_files)
    who = stored.tensors(IDENTITIES)
    erased = len(who.get("erased", ()))
    shapes = {"present": (manifest.units, 32), "erased": (erased, 32), "check": (32,)}
    check_shapes(str(directory / IDENTITIES), who, shapes)
    if not hmac.compare_digest(who["check"].numpy().tobytes(), key_check(key)):
        raise StoreError(
            f"The key of the records is not the one that {directory} was built with, so nobody in "
            "it can be found. Restore records.key from a backup."
        )
    records: Records = {name: each.numpy() for name, each in stored.tensors(RECORDS).items()}
    present, left = who["present"].numpy(), who["erased"].numpy()
    return _Opened(directory, manifest, kind, records, present, left)


def _saved(
    old: _Opened,
    out: Path,
    records: Records,
    present: Digests,
    erased: Digests,
    added: tuple[str, ...],
    key: bytes,
) -> Manifest:
    """Save an edition in `out`, which must not exist, completely or not at all."""
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))  # closed to others
    try:
        files = dict(old.manifest.files)
        for name, digest in files.items():
            if name not in (RECORDS, IDENTITIES):  # what is public stays as it is
                write_atomically(work / name, verified_bytes(old.directory, name, digest))
        files[RECORDS] = save_tensors(
            work / RECORDS, {name: torch.from_numpy(each) for name, each in records.items()}
        )
        files[IDENTITIES] = save_identities(work, present, erased, key)
        kind = old.kind.model_copy(update={"edition": old.kind.edition + 1, "added": added})
        changed = {"teacher": kind, "teachers": len(present), "units": len(present), "files": files}
        manifest = Manifest.model_validate(
            {**{name: getattr(old.manifest, name) for name in Manifest.model_fields}, **changed}
        )
        save_manifest(work, manifest)
        sync_directory(work)
        work.rename(out)
        sync_directory(out.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return manifest


def _rows(digests: set[bytes]) -> Digests:
    found: Digests = np.frombuffer(b"".join(sorted(digests)), np.uint8).reshape(-1, 32)
    return found
