"""Who casts votes, for every kind of ensemble, and full tallies of them.

Voters of ensembles whose files are here are `local_voters.LocalVoters`, or as an add-on has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from pkgutil import resolve_name
from threading import Lock
from typing import Protocol

import numpy as np

from terrine_models.addons import load_added_as
from terrine_server.errors import EnsembleUnavailable, NotFound
from terrine_server.ledger import SUMS, EnsembleRecord
from terrine_server.privacy import Units
from terrine_server.privacy.numbers import full_tallies
from terrine_server.settings import HERE, Settings

# Imported once an ensemble that is here must vote: PyTorch is as large as all else.
LOCAL_VOTERS = "terrine_server.labeling.local_voters:local_voters"
# Bytes of weights that are held at once.
BLOCK_BYTES = 64 * 2**20


class PublicNeighbours(Protocol):
    """Public points near B queries, as if they were records of S people with accounts."""

    @property
    def weights(self) -> np.ndarray:
        """How many records of each are so near that they vote, uint8 `[B, S]`."""

    @property
    def near_wider(self) -> np.ndarray:
        """The same within a wider reach, by which exhaustion is judged, uint8 `[B, S]`."""


class UnitRecords(Protocol):
    """Records of a private data set, and how near they are to queries."""

    @property
    def since(self) -> np.ndarray:
        """The edition in which each record came, int32[N]: 1 for those that were registered."""

    @property
    def shadows(self) -> int:
        """How many people the public points stand for, S."""

    def to_points(self, x: np.ndarray) -> np.ndarray:
        """Return the points `[B, d]` of inputs `[B, …]`, by a public map."""

    def near(self, points: np.ndarray) -> np.ndarray:
        """Return what each record adds to its class for queries at these points: uint8 `[B, N]`.

        A record's weight is a function of the query, of the record and of what is public alone.
        """

    def public_neighbours(self, points: np.ndarray) -> PublicNeighbours:
        """Return which public points are near; no record is looked at."""


@dataclass(frozen=True)
class Neighbourhood:
    """The records of an ensemble whose units vote, and whose they are."""

    ensemble: UnitRecords
    units: Units

    def record_weights(self, points: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the weights uint8 `[b, N]` of all records for queries at `[B, d]`, in order."""
        records = max(1, self.units.records)
        for asked in _blocks(points, records):
            block = self.ensemble.near(asked)
            _check_weights(block, (len(asked), records))
            yield block

    def public_neighbours(self, points: np.ndarray) -> Iterator[PublicNeighbours]:
        """Yield which public points are near queries at `[B, d]`, in order."""
        shadows = self.ensemble.shadows
        for asked in _blocks(points, shadows):
            found = self.ensemble.public_neighbours(asked)
            _check_weights(found.weights, (len(asked), shadows))
            _check_weights(found.near_wider, (len(asked), shadows))
            yield found


def _blocks(points: np.ndarray, width: int) -> Iterator[np.ndarray]:
    size = max(1, BLOCK_BYTES // max(1, width))
    return (points[start : start + size] for start in range(0, len(points), size))


def _check_weights(weights: np.ndarray, shape: tuple[int, int]) -> None:
    if weights.dtype != np.uint8 or weights.shape != shape:
        raise EnsembleUnavailable("The records did not weigh what they were registered with.")


class Voters(Protocol):
    """Turns batches of inputs into the vote counts of registered ensembles. Thread-safe.

    To add one, derive a class and let `AnyVoters` choose it.
    """

    def check(self, record: EnsembleRecord) -> None:
        """Raise `EnsembleUnavailable` unless the registered ensemble can vote now."""

    def available(self, record: EnsembleRecord) -> bool:
        """Whether `check` passes."""
        try:
            self.check(record)
        except EnsembleUnavailable:
            return False
        return True

    def waits_for_others(self, record: EnsembleRecord) -> bool:
        """Whether votes come from parties of this ensemble alone, who may be silent.

        Then its groups have threads apart from those of other ensembles (`pipeline.Queue`).
        """
        return False

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        """Return the teachers' vote counts for canonical inputs `[B, …]` as int64 `[B, m]`.

        Raises `EnsembleUnavailable`.
        """

    def neighbourhood(self, record: EnsembleRecord) -> Neighbourhood:
        """Return the records of an ensemble whose units vote. Raises `EnsembleUnavailable`.

        Only voters in this process have any: weights of single records go nowhere else.
        """
        raise EnsembleUnavailable(
            f"The people of {record.name} vote where this server has their records: on its own "
            "machine, not on a cluster and not at other owners. Nothing was charged."
        )

    def close(self) -> None:
        """Release what outlives a vote, such as processes. No vote is taken afterwards."""
        return  # most have nothing


def get_full_tallies(voters: Voters, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
    """Return the vote counts for canonical inputs `[B, …]`: int64 `[B, m]`, one vote a teacher.

    Raises `EnsembleUnavailable`, for a shape or type that is not that of its votes. No value is
    checked: an error that depends on votes would tell of them. See `numbers.full_tallies`.
    """
    counts = voters.votes(record, inputs)
    teachers, classes = record.facts.teachers, len(record.facts.classes)
    if counts.shape != (len(inputs), classes) or counts.dtype.kind != "i":
        raise EnsembleUnavailable(
            f"The ensemble {record.name} returned votes of another shape than that of its classes."
        )
    return full_tallies(counts, teachers, classes)


# What an ensemble's students ask, if it was designed (`terrine_models.tables.designed`).
POOL_FILE = "pool.npz"
# What students of an ensemble of sums learn from (`terrine_models.sums`).
SUMS_FILE = "sums.npz"


def read_pool(data_dir: Path, record: EnsembleRecord) -> bytes:
    """Return the designed pool of an ensemble: public, and verified by what was registered.

    Raises NotFound if its students have inputs of their own, and `EnsembleUnavailable`.
    """
    if not record.facts.designed:
        raise NotFound(
            f"Nothing was designed to be asked of {record.name}: its students ask public inputs "
            "of their own."
        )
    return _read_published(data_dir, record, POOL_FILE)


def read_sums(data_dir: Path, record: EnsembleRecord) -> bytes:
    """Return the sums of an ensemble of that kind, as they were registered, with noise.

    Each of its projects has paid for them. Raises NotFound for others, and `EnsembleUnavailable`.
    """
    if record.facts.kind != SUMS:
        raise NotFound(
            f"{record.name} has no sums: it is of the kind {record.facts.kind}. Its students ask "
            "POST /label."
        )
    return _read_published(data_dir, record, SUMS_FILE)


def _read_published(data_dir: Path, record: EnsembleRecord, name: str) -> bytes:
    directory = data_dir / record.path
    try:
        manifest = (directory / "manifest.json").read_bytes()
        found = (directory / name).read_bytes()
    except OSError as error:
        raise EnsembleUnavailable(f"{name} of {record.name}: {error.strerror}.") from None
    registered = sha256(manifest).hexdigest() == record.manifest_sha256
    if not registered or json.loads(manifest)["files"][name] != sha256(found).hexdigest():
        raise EnsembleUnavailable(
            f"The files in {directory} are not those that were registered as {record.name}. "
            "Restore them from a backup."
        )
    return found


class AnyVoters(Voters):
    """Passes each ensemble, in its newest edition, on to the voters of its kind."""

    def __init__(self, settings: Settings, kind: str = HERE) -> None:
        """`kind`: who votes for ensembles that are here."""
        self._settings = settings
        self._kind = kind
        self._voters: dict[str, Voters] = {}
        self._here: Voters | None = None
        self._lock = Lock()

    def check(self, record: EnsembleRecord) -> None:
        """Raise `EnsembleUnavailable` unless the registered ensemble can vote now."""
        self._of(record).check(record.current)

    def waits_for_others(self, record: EnsembleRecord) -> bool:
        """Whether votes come from parties of this ensemble alone, who may be silent."""
        return self._of(record).waits_for_others(record.current)

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        """Return the teachers' vote counts for canonical inputs `[B, …]` as int64 `[B, m]`.

        Raises `EnsembleUnavailable`.
        """
        return self._of(record).votes(record.current, inputs)

    def neighbourhood(self, record: EnsembleRecord) -> Neighbourhood:
        """Return the records of an ensemble whose units vote. Raises `EnsembleUnavailable`."""
        return self._of(record).neighbourhood(record.current)

    def close(self) -> None:
        """Give back what outlives a vote."""
        with self._lock:
            for voters in set(self._voters.values()):
                voters.close()

    def _of(self, record: EnsembleRecord) -> Voters:
        kind = record.facts.kind
        with self._lock:
            if kind not in self._voters:
                elsewhere = load_added_as("voters", kind)
                self._voters[kind] = (
                    self._local() if elsewhere is None else elsewhere(self._settings)
                )
            return self._voters[kind]

    def _local(self) -> Voters:
        """Return those who vote for all ensembles that are here."""
        if self._here is None:
            if self._kind == HERE:
                made = resolve_name(LOCAL_VOTERS)
            else:
                made = load_added_as("local_voters", self._kind)
            if made is None:
                raise EnsembleUnavailable(
                    f"TERRINE_VOTERS={self._kind} needs the add-on `{self._kind}`, which this "
                    "installation of Terrine lacks."
                )
            self._here = made(self._settings)
        return self._here
