"""Ensembles on a Ray cluster: teachers divided among actors, batches streamed to them in blocks.

An actor verifies and loads the ensemble's files as the server's own threads would, from the same
path: on another machine, that is a shared directory. Its votes are the same, bit for bit. An actor
that ends, or is silent for too long, is replaced. Nothing is charged before all votes are there.
Inputs travel within the messages, and never enter Ray's object store (`training`).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, NoReturn

import msgspec
import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from terrine_addons.ray.settings import RaySettings
from terrine_addons.ray.training import (
    ClusterError,
    compare_versions,
    connect,
    disconnect,
    on_node,
    require_ray,
    software_versions,
)
from terrine_models.storage.manifests import MANIFEST_FILE, StoreError
from terrine_models.teachers.ensemble import VOTING_MEMORY_BYTES
from terrine_models.teachers.kinds import load_manifest
from terrine_models.teachers.manifests import Manifest
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.local_voters import FileStamp, LocalVoters, check_manifest, stamp
from terrine_server.labeling.voters import Neighbourhood, Voters
from terrine_server.ledger import EnsembleRecord
from terrine_server.logs import list_frames
from terrine_server.settings import Settings

log = structlog.get_logger("terrine")

# How long an actor may take to start, and to verify and load an ensemble.
LOADING_SECONDS = 600.0
# How long a cluster that could not be reached is not tried again.
RETRY_SECONDS = 10.0
# Inputs in a block, unless an actor votes on more at once: sending few costs as much.
BLOCK_INPUTS = 128
# Blocks that each actor has been sent, at most, before it has answered the first.
BLOCKS_IN_FLIGHT = 2
MAX_ACTORS = 256
# How often a block is sent again to an actor that ended.
MAX_RETRIES = 2


class EnsembleReference(msgspec.Struct, frozen=True):
    """Which registered ensemble is meant: what an actor must know of its record."""

    name: str
    path: str
    manifest_sha256: str

    @classmethod
    def to(cls, record: EnsembleRecord) -> EnsembleReference:
        """Return the reference to an ensemble."""
        return cls(record.name, record.path, record.manifest_sha256)


class ActorDefect(msgspec.Struct, frozen=True):
    """An exception that nobody expected: not its text, which may quote inputs or votes."""

    kind: str
    where: list[str]

    @classmethod
    def of(cls, error: Exception) -> ActorDefect:
        """Describe an exception that was caught."""
        return cls(type(error).__name__, list_frames(error.__traceback__))

    def fail(self) -> NoReturn:
        """Log it here, and raise a RuntimeError that says no more than whose defect it is."""
        log.error("defect in an actor", exception=self.kind, where=self.where)
        raise RuntimeError("an actor failed; the log names the bug")


# Counts [B, m], or why there are none; to a check, how many inputs the actor votes on at once.
Reply = NDArray[np.int64] | int | str | ActorDefect


@dataclass(frozen=True)
class TeacherPart:
    """The teachers with which one of several actors votes: those in some of the files."""

    actor: int
    actors: int

    def of(self, manifest: Manifest) -> int:
        """Into how many parts the teachers are divided. Several actors may have one."""
        files = len(manifest.teacher_files)
        return min(self.actors, files) if manifest.teacher.divisible else 1

    def files(self, manifest: Manifest) -> list[str]:
        """Names of the files of this actor's part."""
        parts = self.of(manifest)
        return manifest.teacher_files[self.actor % parts :: parts]


class _Actor:
    """Votes with one part of the teachers, in a process of the cluster."""

    def __init__(
        self, data_dir: str, part: TeacherPart, memory: int, seconds: float, ours: dict[str, str]
    ) -> None:
        torch.set_num_threads(1)
        self._unfit = compare_versions(ours)
        self._voters = LocalVoters(Path(data_dir), "cpu", memory, seconds, part.files)

    def vote(self, ensemble: EnsembleReference, inputs: NDArray[Any] | None) -> Reply:
        """Vote on inputs [B, …]; without any, verify and load the ensemble."""
        if self._unfit is not None:
            return self._unfit
        try:
            if inputs is None:
                found = self._voters.loaded(ensemble).ensemble
                return 1 if isinstance(found, Neighbourhood) else found.voting.block
            return self._voters.votes(ensemble, inputs)
        except EnsembleUnavailable as error:
            return f"{socket.gethostname()}: {error.detail}"
        except Exception as error:
            return ActorDefect.of(error)


@dataclass(eq=False)
class _ActorSlot:
    """Where an actor sits; another one takes its place when it is gone."""

    number: int
    made_of: tuple[Any, ...]
    actor: Any = None
    waiting: int = 0
    """Blocks that it has not answered yet."""

    def ask(self, ensemble: EnsembleReference, inputs: NDArray[Any] | None) -> Any:
        """Send it a block; return what Ray calls the reply that will come."""
        import ray

        if self.actor is None:
            # One processor is required where it starts, none reserved: it may be replaced on a
            # machine that has taken others in.
            kind: Any = ray.remote(_Actor)
            self.actor = kind.options(
                max_restarts=-1,
                max_task_retries=MAX_RETRIES,
                scheduling_strategy=on_node(self.number),
                enable_task_events=False,
            ).remote(*self.made_of)
        return self.actor.vote.remote(ensemble, inputs)

    def leave(self) -> None:
        """End the actor, if it is still there; the next block gets a new one."""
        import ray

        actor, self.actor = self.actor, None
        if actor is not None:
            with suppress(Exception):  # it is gone already, or the cluster is
                ray.kill(actor)


@dataclass(frozen=True)
class _Block:
    """Inputs from `start` on, for whichever of these slots has the least to do."""

    among: Sequence[_ActorSlot]
    start: int = 0
    inputs: NDArray[Any] | None = None


class RayVoters(Voters):
    """Turns batches of inputs into vote counts, for any registered ensemble."""

    def __init__(
        self, data_dir: Path, address: str | None, actors: int | None, seconds: float
    ) -> None:
        """`address`: see `training.connect`; `actors`: by default one for each processor.

        `seconds`: how long no actor may answer. Without a cluster, joining it is tried again later.
        """
        self._data_dir = data_dir.absolute()
        self._address = address
        self._actors = actors
        self._seconds = seconds
        self._lock = Lock()
        self._joining = Lock()
        self._slots: list[_ActorSlot] = []
        self._not_before = 0.0
        self._manifests: dict[EnsembleReference, tuple[FileStamp, Manifest]] = {}
        self._sizes: dict[EnsembleReference, int] = {}
        """Inputs in the blocks of ensembles that the actors have loaded."""
        self._join()  # here, in the main thread, Ray can be kept from handling signals

    def check(self, record: EnsembleRecord) -> None:
        """Let every actor load and verify its part. Raises `EnsembleUnavailable`."""
        self._manifest(record)
        key = EnsembleReference.to(record)
        seconds = self._seconds if key in self._sizes else LOADING_SECONDS
        blocks = [_Block([slot]) for slot in self._joined(record)]
        for _, at_once in self._replies(record, blocks, seconds):
            self._sizes[key] = max(1, BLOCK_INPUTS // at_once) * at_once

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        """Return the teachers' vote counts for canonical inputs `[B, …]` as int64 `[B, m]`.

        Raises `EnsembleUnavailable`, also if no actor answers in time, or one that is asked ends
        again and again.
        """
        key = EnsembleReference.to(record)
        if key not in self._sizes:
            self.check(record)
        manifest, slots, size = self._manifest(record), self._joined(record), self._sizes[key]
        parts = TeacherPart(0, len(slots)).of(manifest)
        blocks = (
            _Block(slots[part::parts], start, inputs[start : start + size])
            for start in range(0, len(inputs), size)
            for part in range(parts)
        )
        counts = np.zeros((len(inputs), len(manifest.classes)), dtype=np.int64)
        for block, found in self._replies(record, blocks, self._seconds):
            counts[block.start : block.start + size] += found
        return counts

    def close(self) -> None:
        """End the actors, and leave the cluster."""
        with self._joining, self._lock:
            for slot in self._slots:
                slot.leave()
            if self._slots:
                disconnect()
            self._slots = []

    def _manifest(self, record: EnsembleRecord) -> Manifest:
        """Return the manifest, which is the one that was registered."""
        directory, key = self._data_dir / record.path, EnsembleReference.to(record)
        try:
            now = stamp(directory, [MANIFEST_FILE])
            known = self._manifests.get(key)
            if known is None or known[0] != now:
                known = now, load_manifest(directory)
                check_manifest(record, directory)  # it is the one that was read
                self._manifests[key] = known
        except (StoreError, OSError) as error:
            raise EnsembleUnavailable(str(error)) from error
        return known[1]

    def _joined(self, record: EnsembleRecord) -> list[_ActorSlot]:
        """Return the slots of the actors, once the cluster has been joined."""
        slots = self._join()
        if not slots:
            raise _unreachable(record)
        return slots

    def _join(self) -> list[_ActorSlot]:
        """Join the cluster, unless that just failed. Without one there are no slots."""
        with self._joining:
            if self._slots or monotonic() < self._not_before:
                return self._slots
            try:
                processors = connect(self._address)
            except ClusterError as error:
                log.error("no cluster to vote on", cause=str(error))
                self._not_before = monotonic() + RETRY_SECONDS
                return []
            count = min(self._actors or processors, MAX_ACTORS)
            # An actor votes with one thread, on as many inputs at a time as a thread of the server:
            # products round by their size.
            memory = VOTING_MEMORY_BYTES // torch.get_num_threads()
            data_dir, ours = str(self._data_dir), software_versions()
            self._slots = [
                _ActorSlot(
                    number, (data_dir, TeacherPart(number, count), memory, self._seconds, ours)
                )
                for number in range(count)
            ]
            return self._slots

    def _replies(
        self, record: EnsembleRecord, blocks: Iterable[_Block], seconds: float
    ) -> Iterator[tuple[_Block, Any]]:
        """Yield each block with its counts, in the order in which they come."""
        import ray
        from ray.exceptions import RayError

        ensemble = EnsembleReference.to(record)
        coming: dict[Any, tuple[_Block, _ActorSlot]] = {}
        left = iter(blocks)
        try:
            while True:
                for block in islice(left, BLOCKS_IN_FLIGHT * len(self._slots) - len(coming)):
                    with self._lock:
                        slot = min(block.among, key=lambda each: each.waiting)
                        slot.waiting += 1
                        coming[slot.ask(ensemble, block.inputs)] = block, slot
                if not coming:
                    return
                done, _ = ray.wait(list(coming), timeout=seconds)
                if not done:
                    raise TimeoutError
                for reply in done:
                    found = _decode_reply(ray.get(reply, timeout=seconds))
                    block, slot = coming.pop(reply)
                    self._answered(slot)
                    yield block, found
        except (RayError, OSError) as error:  # TimeoutError and ConnectionError are OSErrors
            log.error("the cluster does not vote", cause=type(error).__name__)
            self._leave({slot for _, slot in coming.values()})
            raise _unreachable(record) from None
        finally:
            for _, slot in coming.values():
                self._answered(slot)

    def _answered(self, slot: _ActorSlot) -> None:
        with self._lock:
            slot.waiting -= 1

    def _leave(self, slots: set[_ActorSlot]) -> None:
        """Give up the actors on these slots; if the connection is lost, all of them."""
        import ray

        with self._lock:
            for slot in slots:
                slot.leave()
        with self._joining:
            if not ray.is_initialized():
                self._slots = []


def _decode_reply(reply: Reply) -> NDArray[np.int64] | int:
    if isinstance(reply, str):
        raise EnsembleUnavailable(reply)
    if isinstance(reply, ActorDefect):
        reply.fail()
    return reply


def _unreachable(record: EnsembleRecord) -> EnsembleUnavailable:
    return EnsembleUnavailable(
        f"The cluster that votes for {record.name} does not answer. Nothing was charged. Retry "
        "later; the server's log says more."
    )


def ray_voters(settings: Settings) -> RayVoters:
    """Return who votes on the cluster that the settings name."""
    chosen = RaySettings.of(settings)
    return RayVoters(chosen.data_dir, chosen.ray_address, chosen.ray_actors, chosen.voting_seconds)


def check_settings(settings: Settings) -> None:
    """Raise ClusterError if a server that is to vote on a cluster cannot."""
    if settings.voters != "ray":
        return
    require_ray()
    if settings.device not in (None, "cpu"):
        raise ClusterError("Actors of a Ray cluster vote on processors: leave TERRINE_DEVICE out.")
