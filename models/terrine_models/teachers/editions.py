"""Editions: the same ensemble, from which people left or to which they came.

    from terrine_models.teachers.editions import add, forget
    from terrine_models.teachers.people import name_digests

    forget(directory, out, name_digests(["Ada"], key), key)  # nobody's records but hers go
    add(directory, out, coming, key)
    forget(trained, out, name_digests(["Ada"], key), key, private)

Only people who have names (a group) leave or join. Who somebody is, is kept as a digest of the name
under a key of the owner's. Whether a person's records are admitted or go follows from that person's
name and records and from the lists of names that the owner gave, never from anybody else's records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError, Dataset
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import (
    IDENTITIES_FILE,
    POOL_FILE,
    StoreError,
    read_verified,
    save_tensors,
)
from terrine_models.tables.designed import DesignedPool
from terrine_models.teachers.heads import load_feature_map
from terrine_models.teachers.kinds import StoredEnsemble
from terrine_models.teachers.manifests import (
    Manifest,
    ShardTeachers,
    Trained,
    save_manifest,
)
from terrine_models.teachers.margins import ANSWERS_FILE, MarginTeachers, forget_answers
from terrine_models.teachers.neighbours import RECORDS_FILE, NeighbourTeachers, place_records
from terrine_models.teachers.people import (
    Digests,
    People,
    people_digests,
)
from terrine_models.teachers.shards import Shards, check_encoding, teacher_of, unit_count
from terrine_models.teachers.sums import SumTeachers
from terrine_models.teachers.training import DESIGNED
from terrine_protocol.files import new_directory, write_atomically

RecordArrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class SavedEdition:
    """A new edition, which is saved. `slots`: of those who left with it; secret.

    `people`: how many left, or came as new. `left_out`: how many were kept from coming back.
    """

    manifest: Manifest
    slots: tuple[int, ...]
    people: int
    left_out: int = 0


def forget(
    directory: Path,
    out: Path,
    who: Digests,
    key: bytes,
    data: Dataset | None = None,
    public: PublicData | None = None,
) -> SavedEdition | None:
    """Save in `out` the edition of `directory` without the people `who`, uint8[k, 32].

    Their digests keep all of them from coming (back), also those who were never here. Of
    neighbours, their records are not in it. Of sums, only who is there changes. Of trained
    teachers, those whose shards held them, and those in the same files, are trained anew, each from
    what is left of its shard, as if they had never been there.

    `data`: the records that teachers were trained on, or what is left of them; who left before, or
    was never there, is passed over. `public`: the public rows on which teachers of tables match
    their prior. None if all of `who` were forgotten before. Raises DataError (nobody would be left
    in the ensemble or in a shard, `data` is missing or lacks records of those who stay, other
    public rows) and StoreError.
    """
    stored = StoredEnsemble.open(directory)
    manifest, before = stored.manifest, People.load(stored, key)
    left = before.remove(who)
    if left is None:
        return None
    slots, people = left
    if not people.present.any():
        raise DataError(
            f"Nobody would be left in {manifest.name}. Close its projects and remove {directory} "
            "instead."
        )
    kind, changed = manifest.teacher, dict[str, object]()
    if isinstance(kind, NeighbourTeachers):
        records = _load_records(stored)
        stays = ~np.isin(records["units"], slots)
        tensors = _tensors({name: values[stays] for name, values in records.items()})
        changed = {"teacher": kind.model_copy(update={"edition": kind.edition + 1})}
    elif isinstance(kind, MarginTeachers):
        tensors = {ANSWERS_FILE: forget_answers(stored, slots)}
    elif isinstance(kind, SumTeachers):
        tensors = {}  # nothing is there of anybody, and nothing is told anew
    elif isinstance(kind, ShardTeachers):
        tensors = _retrain(stored, kind, slots, people, key, data, public)
    else:
        raise StoreError(f"Nobody knows whose records taught which teacher of {manifest.name}.")
    saved = _save_edition(directory, manifest, out, tensors, people, key, changed)
    return SavedEdition(saved, tuple(map(int, slots)), len(slots))


def add(directory: Path, out: Path, data: Dataset, key: bytes) -> SavedEdition:
    """Save in `out` the edition of `directory` with more people, or more records of people.

    New people have new slots. Who was forgotten is left out. A record that its person has already
    is not added again. Raises DataError for records of another kind than the ensemble's, and
    StoreError.
    """
    stored = StoredEnsemble.open(directory)
    manifest, kind = stored.manifest, stored.manifest.teacher
    if isinstance(kind, SumTeachers):
        raise StoreError(
            f"{directory} holds sums: their noise and their number of people are those of what was "
            "released, so nobody joins. Make another ensemble."
        )
    if not isinstance(kind, NeighbourTeachers):
        raise StoreError(f"{directory} holds {kind.kind}, not neighbours.")
    people = People.load(stored, key)
    _check_same_kind(data, manifest)
    gone = {bytes(row) for row in people.erased}
    known = {bytes(row): slot for slot, row in enumerate(people.present)}
    slots = np.full(unit_count(data), -1)
    came: list[NDArray[np.uint8]] = []
    for unit, row in enumerate(people_digests(data, key)):
        if bytes(row) in gone:
            continue
        if bytes(row) not in known:
            known[bytes(row)] = len(people.present) + len(came)
            came.append(row)
        slots[unit] = known[bytes(row)]
    # All are placed, and then some left out: where a record is placed must not depend on others.
    new = place_records(data, load_feature_map(stored, kind.features), kind.scale)
    slot_of = slots[new["units"]]
    new["units"] = slot_of.astype(np.int32)
    new["since"] = np.full(len(slot_of), kind.edition + 1, np.int32)
    records = _load_records(stored)
    stays = (slot_of >= 0) & ~_find_repeated(new, records)
    records = {name: np.concatenate([values, new[name][stays]]) for name, values in records.items()}
    order = np.lexsort((records["labels"], records["units"]))
    present = np.concatenate([people.present, np.array(came, np.uint8).reshape(-1, 32)])
    changed = {
        "teacher": kind.model_copy(update={"edition": kind.edition + 1}),
        "teachers": len(present),
        "units": len(present),
    }
    tensors = _tensors({name: values[order] for name, values in records.items()})
    people = replace(people, present=present)
    saved = _save_edition(directory, manifest, out, tensors, people, key, changed)
    return SavedEdition(saved, (), len(came), int((slots < 0).sum()))


def _load_records(stored: StoredEnsemble) -> RecordArrays:
    return {name: each.numpy() for name, each in stored.tensors(RECORDS_FILE).items()}


def _tensors(records: RecordArrays) -> dict[str, Trained]:
    return {RECORDS_FILE: {name: torch.from_numpy(values) for name, values in records.items()}}


def _find_repeated(new: RecordArrays, records: RecordArrays) -> NDArray[np.bool_]:
    """Which records that come their own person has already, [n]: with the same point and label.

    So whoever adds a file twice adds nothing, and nobody's records decide about another's.
    """
    names = [name for name in records if name != "since"]

    def keys(of: RecordArrays) -> list[bytes]:
        parts = zip(*(of[name] for name in names), strict=True)
        return [b"".join(part.tobytes() for part in record) for record in parts]

    own = np.isin(records["units"], new["units"])
    had = set(keys({name: values[own] for name, values in records.items()}))
    return np.array([key in had for key in keys(new)], dtype=bool)


def _retrain(
    stored: StoredEnsemble,
    kind: ShardTeachers,
    slots: NDArray[np.int64],
    people: People,
    key: bytes,
    data: Dataset | None,
    public: PublicData | None,
) -> dict[str, Trained]:
    """Train the files of teachers whose shards held the people in these slots. See `forget`."""
    manifest, partition = stored.manifest, stored.manifest.partition
    if partition is None:
        raise StoreError(f"Nobody knows whose records taught which teacher of {manifest.name}.")
    if not len(slots):
        return {}
    if data is None:
        raise DataError(
            f"People who leave {manifest.name} taught some of its teachers. Give the records that "
            "it was trained on, or what is left of them, to train these anew."
        )
    _check_same_kind(data, manifest)
    public = _load_pool(stored) or public
    _check_public(kind, public)
    owner = teacher_of(manifest.units, manifest.teachers, partition.seed)
    stays: NDArray[np.bool_] = np.asarray(people.present.any(1))
    left = np.bincount(owner[stays], minlength=manifest.teachers)
    empty = [int(teacher) for teacher in np.unique(owner[slots]) if not left[teacher]]
    if empty:
        raise DataError(
            f"Nobody would be left in the shards of {len(empty)} teachers of {manifest.name}, and "
            "no teacher learns from nobody. Train another ensemble, of fewer teachers; it shares "
            "this one's cap."
        )
    starts = range(0, manifest.teachers, kind.per_file)
    files = {
        file: range(at, min(at + kind.per_file, manifest.teachers))
        for file, at in zip(manifest.teacher_files, starts, strict=True)
    }
    touched = {file: run for file, run in files.items() if np.isin(owner[slots], run).any()}
    slot_of = {bytes(row): slot for slot, row in enumerate(people.present) if stays[slot]}
    place = np.array([slot_of.get(bytes(row), -1) for row in people_digests(data, key)])
    taught = np.isin(owner, [teacher for run in touched.values() for teacher in run])
    missing = int((stays & taught & ~np.isin(np.arange(len(owner)), place)).sum())
    if missing:
        raise DataError(
            f"{data.name}: {missing} of those who stay, whose shards are to be learned anew, are "
            f"not in it. Give the records that {manifest.name} was trained on."
        )
    features = None if kind.features is None else load_feature_map(stored, kind.features)
    slot = place[data.groups]
    trained = {}
    for file, run in touched.items():
        rows = {i: np.flatnonzero((slot >= 0) & (owner[slot] == i)) for i in run}
        trained[file] = kind.train(Shards(data, rows, partition.seed, features, public), run)
    return trained


def _load_pool(stored: StoredEnsemble) -> PublicData | None:
    """Return the rows that were designed to be asked, on which heads are levelled; None of none."""
    files = stored.manifest.files
    if POOL_FILE not in files:
        return None
    pool = DesignedPool.of_bytes(read_verified(stored.directory, POOL_FILE, files[POOL_FILE]))
    return PublicData.declare(DESIGNED, pool.rows)


def _check_public(kind: ShardTeachers, public: PublicData | None) -> None:
    if not (kind.matches_prior or kind.levelled):
        return
    known = kind.public_rows
    if known is not None and (public is None or public.source.sha256 != known.sha256):
        raise DataError(
            f"Its teachers match their prior on the public rows of {known.name}: give these very "
            "rows (--public)."
        )


def _check_same_kind(data: Dataset, manifest: Manifest) -> None:
    """Raise DataError unless records are of the kind of an ensemble's."""
    check_encoding(data)
    if (data.spec, data.classes) != (manifest.input, manifest.classes):
        raise DataError(
            f"{data.name}: inputs or classes are not those of {manifest.name}: {data.spec} and "
            f"{', '.join(data.classes)}, expected {manifest.input} and "
            f"{', '.join(manifest.classes)}."
        )
    if data.groups is None:
        raise DataError(f"{data.name}: expected records with a group, as {manifest.name} has them.")


def _save_edition(
    directory: Path,
    before: Manifest,
    out: Path,
    tensors: Mapping[str, Trained],
    people: People,
    key: bytes,
    changed: Mapping[str, object],
) -> Manifest:
    """Save an edition in `out`, which must not exist, completely or not at all.

    `tensors`: of the files that are new; all others except identities stay as they are.
    """
    with new_directory(out) as work:
        files = dict(before.files)
        for name, digest in files.items():
            if name not in (*tensors, IDENTITIES_FILE):
                write_atomically(work / name, read_verified(directory, name, digest))
        files |= {name: save_tensors(work / name, new) for name, new in tensors.items()}
        files[IDENTITIES_FILE] = people.save(work, key)
        fields = {name: getattr(before, name) for name in Manifest.model_fields}
        manifest = Manifest.model_validate({**fields, **changed, "files": files})
        save_manifest(work, manifest)
    return manifest
