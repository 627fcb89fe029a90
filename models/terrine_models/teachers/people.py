"""Who the people of private records are: digests of their names under a key of the owner's.

    people = People.of(data, key)  # of records whose people have names: `--group`
    slots, left = people.remove(name_digests(["Ada"], key))

Without the key, which the owner keeps (`records.key`), a digest tells nothing: nobody can compute
that of a person whom they guess. Records without a group have no people: nobody knows which of two
equal records is whose, so nobody can be found by a record.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError, Dataset
from terrine_models.storage.manifests import IDENTITIES_FILE, StoreError, save_tensors
from terrine_models.teachers.manifests import StoredEnsemble, check_shapes
from terrine_models.teachers.shards import unit_count
from terrine_protocol.base import normalize

# Keyed digests [n, 32] of who people are.
Digests = NDArray[np.uint8]


def key_check(key: bytes) -> bytes:
    """What tells whether digests are of this key, and nothing about it."""
    return hmac.digest(key, b"terrine/people/check/1", "sha256")


def name_digests(names: Sequence[str], key: bytes) -> Digests:
    """Digests [U, 32] of people by their names, in Unicode NFC."""
    made = b"".join(
        hmac.digest(key, b"terrine/people/name/1\0" + normalize(name).encode(), "sha256")
        for name in names
    )
    return np.frombuffer(made, np.uint8).reshape(-1, 32).copy()


def people_digests(data: Dataset, key: bytes) -> Digests:
    """Digests [U, 32] of the people of records that have a group, in their order.

    Raises DataError if the names are not known.
    """
    if data.people is None or len(data.people) != unit_count(data):
        raise DataError(f"{data.name}: the names of its people are not known.")
    return name_digests(data.people, key)


@dataclass(frozen=True)
class People:
    """Who is in an ensemble, and who was forgotten."""

    present: Digests
    """uint8[U, 32], who is in each slot; zeros for those who left."""
    erased: Digests
    """uint8[E, 32], who was forgotten, whether they were here or not; in an order that tells
    nothing."""

    @classmethod
    def of(cls, data: Dataset, key: bytes) -> People:
        """The people of some records; nobody is forgotten. Raises DataError as `people_digests`."""
        return cls(people_digests(data, key), np.empty((0, 32), np.uint8))

    @classmethod
    def load(cls, stored: StoredEnsemble, key: bytes) -> People:
        """Those of an ensemble. Raises StoreError."""
        people, check = cls.stored(stored)
        if not hmac.compare_digest(check, key_check(key)):
            raise StoreError(
                f"The key of the records is not the one that {stored.directory} was built with, so "
                "nobody in it can be found. Restore records.key from a backup."
            )
        return people

    @classmethod
    def stored(cls, stored: StoredEnsemble) -> tuple[People, bytes]:
        """Those of an ensemble, and the check of the key of their digests. Raises StoreError."""
        directory, manifest = stored.directory, stored.manifest
        if not manifest.knows_people:
            raise StoreError(
                f"{directory} does not know whose its records are, so nobody in it can be found. "
                "Build it again with the column that names the person (the role group, or an "
                "array `group`)."
            )
        who = stored.tensors(IDENTITIES_FILE)
        erased = len(who.get("erased", ()))
        shapes = {"present": (manifest.units, 32), "erased": (erased, 32), "check": (32,)}
        check_shapes(str(directory / IDENTITIES_FILE), who, shapes)
        people = cls(who["present"].numpy(), who["erased"].numpy())
        return people, who["check"].numpy().tobytes()

    def save(self, directory: Path, key: bytes) -> str:
        """Save them; return the SHA-256 of the file."""
        tensors = {
            "present": torch.from_numpy(self.present),
            "erased": torch.from_numpy(self.erased),
            "check": torch.from_numpy(np.frombuffer(key_check(key), np.uint8).copy()),
        }
        return save_tensors(directory / IDENTITIES_FILE, tensors)

    def knows(self, who: Digests) -> NDArray[np.bool_]:
        """Which of `who` [k, 32] are here, or were forgotten, [k]."""
        known = {bytes(row) for rows in (self.present, self.erased) for row in rows}
        return np.array([bytes(row) in known for row in who], dtype=bool)

    def remove(self, who: Digests) -> tuple[NDArray[np.int64], People] | None:
        """The slots of those of `who` that are here, and everybody else.

        All of `who` are forgotten, also those who were not here. None if all of them were before.
        """
        gone, leaving = {bytes(row) for row in self.erased}, {bytes(row) for row in who}
        if leaving <= gone:
            return None
        slots = np.flatnonzero([bytes(row) in leaving for row in self.present])
        present = self.present.copy()
        present[slots] = 0
        erased = np.frombuffer(b"".join(sorted(gone | leaving)), np.uint8).reshape(-1, 32)
        return slots, People(present, erased.copy())
