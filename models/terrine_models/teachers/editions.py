"""Editions: the same ensemble, from which people left or to which they came.

    from terrine_models.teachers.editions import add, forget
    from terrine_models.teachers.people import name_digests

    forget(directory, out, name_digests(["Ada"], key), key)  # nobody's records but hers go
    add(directory, out, coming, key)
    forget_taught(trained, out, name_digests(["Ada"], key), private, key)

Who somebody is, is kept as a digest under a key of the owner's: of the name where records have a
group, and otherwise of the record itself. Whether a person is admitted or erased follows from that
person's own digest and from lists that the owner gave, never from whom else the ensemble holds.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError, Dataset
from terrine_models.features.maps import PublicData
from terrine_models.storage.manifests import StoreError, save_tensors, verified_bytes
from terrine_models.teachers.heads import load_map
from terrine_models.teachers.kinds import load_manifest
from terrine_models.teachers.manifests import (
    DataFingerprint,
    Manifest,
    ShardTeachers,
    StoredEnsemble,
    Trained,
    save_manifest,
)
from terrine_models.teachers.neighbours import RECORDS, NeighbourTeachers, placed
from terrine_models.teachers.people import (
    IDENTITIES,
    Digests,
    People,
    known_data,
    record_digests,
)
from terrine_models.teachers.shards import Shards, check_encoding, teacher_of, unit_count
from terrine_protocol.files import new_directory, write_atomically

Records = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class SavedEdition:
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
    """An edition of neighbours, and what its next one is made of."""

    directory: Path
    manifest: Manifest
    kind: NeighbourTeachers
    records: Records
    people: People


def forget(directory: Path, out: Path, who: Digests, key: bytes) -> SavedEdition | None:
    """Save in `out` the edition of `directory` without the people `who`, uint8[k, 32].

    Their records are not in it, their digests keep them from coming back, and their slots stay
    empty. Where a record is all that is known of a person, everyone with the same record leaves.
    None if all of them left before. Raises DataError (somebody is not there, or all would leave),
    and StoreError.
    """
    old = _opened(directory, key)
    slots, people = old.people.without(who, old.manifest.name)
    if not len(slots):
        return None
    stays = ~np.isin(old.records["units"], slots)
    if not stays.any():
        raise DataError(
            f"Nobody would be left in {old.manifest.name}. Close its projects and remove "
            f"{old.directory} instead."
        )
    records = {name: values[stays] for name, values in old.records.items()}
    manifest = _next(old, out, records, people, old.kind.added, people.known(key), key)
    return SavedEdition(manifest, tuple(map(int, slots)), len(slots))


def add(directory: Path, out: Path, data: Dataset, key: bytes) -> SavedEdition | None:
    """Save in `out` the edition of `directory` with more people, or more records of people.

    New people have new slots. Who left before is left out. None if these very records were added
    before. Raises DataError for records of another kind than the ensemble's, and StoreError.
    """
    old = _opened(directory, key)
    manifest, kind = old.manifest, old.kind
    grouped = manifest.partition is not None
    _check_same_kind(data, manifest, grouped)
    digest = hmac.digest(key, b"terrine/added/1" + bytes.fromhex(data.digest()), "sha256").hex()
    if digest in kind.added:
        return None
    who, present = record_digests(data, key), old.people.present
    gone = {bytes(row) for row in old.people.erased}
    # Only names are compared with those of others: equal records may be of two people.
    known = {bytes(row): slot for slot, row in enumerate(present)} if grouped else {}
    slots = np.full(unit_count(data), -1)
    came: list[NDArray[np.uint8]] = []
    for unit, row in enumerate(who):
        if bytes(row) in gone:
            continue
        if bytes(row) in known:
            slots[unit] = known[bytes(row)]
        else:
            slots[unit] = len(present) + len(came)
            came.append(row)
    stored = StoredEnsemble(old.directory, manifest, manifest.teacher_files)
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
    people = replace(
        old.people, present=np.concatenate([present, np.array(came, np.uint8).reshape(-1, 32)])
    )
    now = known_data(data, who, key).with_more(people.known(key).digests)
    saved = _next(old, out, records, people, (*kind.added, digest), now, key)
    return SavedEdition(saved, (), len(came), int((slots < 0).sum()))


def forget_taught(
    directory: Path,
    out: Path,
    who: Digests,
    data: Dataset,
    key: bytes,
    public: PublicData | None = None,
) -> SavedEdition | None:
    """Save in `out` the edition of trained teachers that never saw the people `who`, uint8[k, 32].

    The teachers whose shards held them, and those in the same files, are trained anew, each from
    what is left of its shard, as if the others had never been there. `data`: the records that all
    were trained on, or what is left of them; who left before, or was never there, is passed over.
    `public`: the public rows that teachers of tables match their prior on. None if all of them left
    before. Raises DataError (somebody is not there, a shard would be empty, records of those who
    stay are missing, other public rows) and StoreError.
    """
    manifest = load_manifest(directory)
    kind, partition = manifest.teacher, manifest.partition
    stored = StoredEnsemble(directory, manifest, manifest.teacher_files)
    old = People.load(stored, key)
    if partition is None or not isinstance(kind, ShardTeachers):
        raise StoreError(f"Nobody knows whose records taught which teacher of {manifest.name}.")
    _check_same_kind(data, manifest, partition.recipe == "groups")
    _check_public(kind, public)
    slots, people = old.without(who, manifest.name)
    if not len(slots):
        return None
    owner = teacher_of(manifest.units, manifest.teachers, partition.seed)
    left = np.bincount(owner[people.present.any(1)], minlength=manifest.teachers)
    empty = [int(teacher) for teacher in np.unique(owner[slots]) if not left[teacher]]
    if empty:
        raise DataError(
            f"Nobody would be left in the shards of {len(empty)} teachers of {manifest.name}, and "
            "no teacher learns from nobody. Train another ensemble, of fewer teachers; it shares "
            "this one's cap."
        )
    files = {
        file: range(at, min(at + kind.per_file, manifest.teachers))
        for file, at in zip(
            manifest.teacher_files, range(0, manifest.teachers, kind.per_file), strict=True
        )
    }
    touched = {file: run for file, run in files.items() if np.isin(owner[slots], run).any()}
    place = _places(record_digests(data, key), people.present)
    taught = np.isin(owner, [teacher for run in touched.values() for teacher in run])
    missing = int((people.present.any(1) & taught & ~np.isin(np.arange(len(owner)), place)).sum())
    if missing:
        raise DataError(
            f"{data.name}: {missing} of those who stay, whose shards are to be learned anew, are "
            f"not in it. Give the records that {manifest.name} was trained on."
        )
    unit_of = np.arange(len(data)) if data.groups is None else data.groups
    features = None if kind.features is None else load_map(stored, kind.features)
    trained = {}
    for file, run in touched.items():
        slot = place[unit_of]
        rows = {i: np.flatnonzero((slot >= 0) & (owner[slot] == i)) for i in run}
        trained[file] = kind.train(Shards(data, rows, partition.seed, features, public), run)
    known = people.known(key)
    changed = {"data": known if manifest.data is None else manifest.data.with_more(known.digests)}
    saved = _saved(directory, manifest, out, trained, people, key, changed)
    return SavedEdition(saved, tuple(map(int, slots)), len(slots))


def _places(who: Digests, present: Digests) -> NDArray[np.int64]:
    """Return the slot of each person [U]; of several with one digest the first has the first.

    −1 for who is not there.
    """
    free: dict[bytes, list[int]] = {}
    for slot in reversed(range(len(present))):
        free.setdefault(bytes(present[slot]), []).append(slot)
    free.pop(bytes(32), None)
    return np.array([slots.pop() if (slots := free.get(bytes(row))) else -1 for row in who])


def _check_public(kind: ShardTeachers, public: PublicData | None) -> None:
    if not kind.matches_prior:
        return
    known = kind.public_rows
    if known is not None and (public is None or public.source.sha256 != known.sha256):
        raise DataError(
            f"Its teachers match their prior on the public rows of {known.name}: give these very "
            "rows (--public)."
        )


def _check_same_kind(data: Dataset, manifest: Manifest, grouped: bool) -> None:
    """Raise DataError unless records are of the kind of an ensemble's."""
    check_encoding(data)
    if (data.spec, data.classes) != (manifest.input, manifest.classes):
        raise DataError(
            f"{data.name}: inputs or classes are not those of {manifest.name}: {data.spec} and "
            f"{', '.join(data.classes)}, expected {manifest.input} and "
            f"{', '.join(manifest.classes)}."
        )
    if (data.groups is not None) != grouped:
        wanted = "with a group, as" if grouped else "without one, as"
        raise DataError(f"{data.name}: expected records {wanted} {manifest.name} has them.")


def _opened(directory: Path, key: bytes) -> _Opened:
    manifest = load_manifest(directory)
    kind = manifest.teacher
    if not isinstance(kind, NeighbourTeachers):
        raise StoreError(f"{directory} holds {kind.kind}, not neighbours.")
    stored = StoredEnsemble(directory, manifest, manifest.teacher_files)
    people = People.load(stored, key)
    records: Records = {name: each.numpy() for name, each in stored.tensors(RECORDS).items()}
    return _Opened(directory, manifest, kind, records, people)


def _next(
    old: _Opened,
    out: Path,
    records: Records,
    people: People,
    added: tuple[str, ...],
    known: DataFingerprint,
    key: bytes,
) -> Manifest:
    kind = old.kind.model_copy(update={"edition": old.kind.edition + 1, "added": added})
    changed = {
        "teacher": kind,
        "teachers": len(people.present),
        "units": len(people.present),
        "data": (old.manifest.data or known).with_more(known.digests),
    }
    tensors = {RECORDS: {name: torch.from_numpy(each) for name, each in records.items()}}
    return _saved(old.directory, old.manifest, out, tensors, people, key, changed)


def _saved(
    directory: Path,
    before: Manifest,
    out: Path,
    tensors: Mapping[str, Trained],
    people: People,
    key: bytes,
    changed: Mapping[str, object],
) -> Manifest:
    """Save an edition in `out`, which must not exist, completely or not at all.

    `tensors`: of the files that are new; all others, but for identities, stay as they are.
    """
    with new_directory(out) as work:
        files = dict(before.files)
        for name, digest in files.items():
            if name not in (*tensors, IDENTITIES):
                write_atomically(work / name, verified_bytes(directory, name, digest))
        files |= {name: save_tensors(work / name, new) for name, new in tensors.items()}
        files[IDENTITIES] = people.save(work, key)
        fields = {name: getattr(before, name) for name in Manifest.model_fields}
        manifest = Manifest.model_validate({**fields, **changed, "files": files})
        save_manifest(work, manifest)
    return manifest
