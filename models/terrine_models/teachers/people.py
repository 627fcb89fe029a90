"""Who the people of private data are, and which data they are: digests under a key of the owner's.

    who = record_digests(data, key)     # uint8 [U, 32], a digest of each person
    known = known_data(data, who, key)  # what tells these data when they come again

Without the key, which the owner keeps (`records.key`), a digest tells nothing: nobody can compute
that of a person, or of data, that they guess.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError, Dataset
from terrine_models.storage.manifests import StoreError, save_tensors
from terrine_models.teachers.manifests import DataFingerprint, StoredEnsemble, check_shapes
from terrine_models.teachers.shards import unit_count

IDENTITIES = "identities.safetensors"
"""Who is in each slot, and who left: keyed digests. Not there if the ensemble was built without."""
Digests = NDArray[np.uint8]
"""Keyed digests [n, 32] of who people are."""


def key_check(key: bytes) -> bytes:
    """What tells whether digests are of this key, and nothing about it."""
    return hmac.digest(key, b"terrine/people/check/1", "sha256")


def name_digests(names: Sequence[str], key: bytes) -> Digests:
    """Digests [U, 32] of people by what they are called."""
    return _digests(b"terrine/people/name/1\0", [name.encode() for name in names], key)


def record_digests(data: Dataset, key: bytes) -> Digests:
    """Digests [U, 32] of the people of some records: by name, or else by their one record.

    Raises DataError if records have groups, and nobody knows what these are called.
    """
    if data.groups is not None:
        if data.people is None or len(data.people) != unit_count(data):
            raise DataError(f"{data.name}: it is not known what its people are called.")
        return name_digests(data.people, key)
    labels = data.labels.astype("<i8")
    rows = (x.tobytes() + label.tobytes() for x, label in zip(data.inputs, labels, strict=True))
    kind = f"terrine/people/record/1 {data.inputs.dtype.str} {data.inputs.shape[1:]}\0".encode()
    return _digests(kind, rows, key)


def known_data(data: Dataset, who: Digests, key: bytes) -> DataFingerprint:
    """What tells data when they come again: by their people `who` in any order, and by the file.

    The file tells a table that another schema encodes into other records.
    """
    known = people_known(who, key)
    if data.sha256 is None:
        return known
    file = hmac.digest(key, b"terrine/data/file/1" + bytes.fromhex(data.sha256), "sha256")
    return known.with_more([file.hex()])


def people_known(who: Digests, key: bytes) -> DataFingerprint:
    """What tells these very people, uint8[U, 32] as `record_digests` has them, in any order."""
    people = b"".join(sorted(map(bytes, who)))
    whole = hmac.digest(key, b"terrine/data/people/1" + people, "sha256")
    return DataFingerprint(key=key_check(key).hex(), digests=(whole.hex(),))


@dataclass(frozen=True)
class People:
    """Who is in an ensemble, and who left it."""

    present: Digests
    """uint8[U, 32], who is in each slot; zeros for those who left."""
    erased: Digests
    """uint8[E, 32], who left, in an order that tells nothing."""

    @classmethod
    def of(cls, data: Dataset, key: bytes) -> People:
        """The people of some records, whom nobody left. Raises as `record_digests`."""
        return cls(record_digests(data, key), np.empty((0, 32), np.uint8))

    @classmethod
    def load(cls, stored: StoredEnsemble, key: bytes) -> People:
        """Those of an ensemble. Raises StoreError."""
        directory, manifest = stored.directory, stored.manifest
        if IDENTITIES not in manifest.files:
            raise StoreError(
                f"{directory} was made without a key of records, so nobody in it can be found. "
                "Make it again with `terrine neighbours build` or `terrine ensemble train`."
            )
        who = stored.tensors(IDENTITIES)
        erased = len(who.get("erased", ()))
        shapes = {"present": (manifest.units, 32), "erased": (erased, 32), "check": (32,)}
        check_shapes(str(directory / IDENTITIES), who, shapes)
        if not hmac.compare_digest(who["check"].numpy().tobytes(), key_check(key)):
            raise StoreError(
                f"The key of the records is not the one that {directory} was built with, so nobody "
                "in it can be found. Restore records.key from a backup."
            )
        return cls(who["present"].numpy(), who["erased"].numpy())

    def save(self, directory: Path, key: bytes) -> str:
        """Save them; return the SHA-256 of the file."""
        tensors = {
            "present": torch.from_numpy(self.present),
            "erased": torch.from_numpy(self.erased),
            "check": torch.from_numpy(np.frombuffer(key_check(key), np.uint8).copy()),
        }
        return save_tensors(directory / IDENTITIES, tensors)

    def known(self, key: bytes) -> DataFingerprint:
        """What tells those who are there."""
        return people_known(self.present[self.present.any(1)], key)

    def without(self, who: Digests, name: str) -> tuple[NDArray[np.int64], People]:
        """The slots of those of `who` that are there, and everybody else.

        Where a record is all that is known of a person, everyone with the same record leaves.
        Raises DataError if somebody was never in the ensemble called `name`.
        """
        gone = {bytes(row) for row in self.erased}
        leaving = {bytes(row) for row in who}
        slots = np.flatnonzero([bytes(row) in leaving for row in self.present])
        found = {bytes(row) for row in self.present[slots]}
        unknown = [place + 1 for place, row in enumerate(who) if bytes(row) not in found | gone]
        if unknown:
            raise DataError(
                f"{len(unknown)} of {len(who)} to be forgotten are not in {name}, the first of "
                f"them number {unknown[0]}. Nobody was forgotten."
            )
        present = self.present.copy()
        present[slots] = 0
        rows = np.frombuffer(b"".join(sorted(found)), np.uint8).reshape(-1, 32)
        return slots, People(present, np.unique(np.concatenate([self.erased, rows]), axis=0))


def _digests(kind: bytes, parts: Iterable[bytes], key: bytes) -> Digests:
    made = b"".join(hmac.digest(key, kind + part, "sha256") for part in parts)
    return np.frombuffer(made, np.uint8).reshape(-1, 32).copy()
