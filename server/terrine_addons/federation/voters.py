"""Teachers that stay with their owners, who are asked over the network.

Who is asked, and how long their answers are waited for, is fixed in the federation and public. An
owner whose answer does not come in time, or is not one, is absent from that batch: their vote is
then cast by a public rule that looks at the input alone (`substitute_vote`). So every tally is
full, and what an owner does, answering, lying or failing, moves their own vote and nobody else's:
see docs/addons/federation.md.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import httpx
import numpy as np
import structlog
from numpy.typing import NDArray

from terrine_addons.federation.connections import REPLY_BYTES, VoteRequest, ask_all, connect
from terrine_addons.federation.federations import (
    Federation,
    Owner,
    federation_digest,
    load_federation,
)
from terrine_addons.federation.inference import (
    NO_CLASS,
    InferenceError,
    decode_labels,
    encode_request,
)
from terrine_models.storage.manifests import StoreError
from terrine_models.teachers.kinds import Reached
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import EnsembleRecord
from terrine_server.settings import Settings

log = structlog.get_logger("terrine")

# Bytes of a response for each value that it may hold.
VALUE_BYTES = 32


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        Thread(target=self.loop.run_forever, daemon=True, name="terrine-owners").start()

    def run(self, work: Any) -> Any:
        """Run a coroutine there, and wait for its result."""
        made: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return made.result()


def requests_for(
    owners: Iterable[Owner], x: NDArray[np.generic], classes: int
) -> Iterator[VoteRequest]:
    """Yield the request for each owner; owners who are asked alike share its body."""
    made: dict[tuple[str, str | None, bool], tuple[bytes, dict[str, str]]] = {}
    for owner in owners:
        how = (owner.input, owner.output, owner.binary)
        body, headers = made.get(how) or made.setdefault(how, encode_request(x, *how))
        sent = {"url": f"v2/models/{owner.model}/infer", "content": body, "headers": headers}
        yield VoteRequest(sent, REPLY_BYTES + VALUE_BYTES * len(x) * classes)


@dataclass(frozen=True)
class _LoadedFederation:
    """A verified federation, ready to vote."""

    federation: Federation
    stamp: tuple[tuple[int, int, int], ...]
    clients: Sequence[httpx.AsyncClient]
    """Of its owners, in their order."""


class RemoteVoters(Voters):
    """Turns batches of inputs into vote counts, by asking each owner of a federation."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._lock = Lock()
        self._loop: _Loop | None = None
        self._gathered: dict[tuple[str, str], _LoadedFederation] = {}

    def check(self, record: EnsembleRecord) -> None:
        """Verify the federation. Raises `EnsembleUnavailable`. Asks nobody."""
        self._verified(record)

    def waits_for_others(self, record: EnsembleRecord) -> bool:
        """Whether votes come from parties of this ensemble alone, who may be silent: its owners."""
        return True

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        """Return the owners' vote counts for canonical inputs `[B, …]` as int64 `[B, m]`.

        Raises `EnsembleUnavailable`, also if fewer owners than the quorum answer.
        """
        gathered = self._verified(record)
        federation, classes = gathered.federation, len(gathered.federation.classes)
        requests = list(requests_for(federation.owners, inputs, classes))
        seconds = federation.timeout_seconds
        replies = self._running().run(ask_all(gathered.clients, requests, seconds))
        choices = np.empty((len(inputs), len(federation.owners)), dtype=np.int64)
        absent = []
        # Read after the deadline: a reply that is slow to read must not make another one late.
        for column, (owner, reply) in enumerate(zip(federation.owners, replies, strict=True)):
            found = receive_labels(reply, owner, len(inputs), classes)
            if isinstance(found, str):
                absent.append(owner.name)
                found = np.full(len(inputs), NO_CLASS)
            # Who says no class is not absent: whether there is a quorum depends on no output.
            instead = substitute_vote(owner.name, inputs, classes)
            choices[:, column] = np.where(found == NO_CLASS, instead, found)
        check_quorum(record, federation, absent)
        offsets = np.arange(len(inputs))[:, None] * classes
        counts = np.bincount((choices + offsets).ravel(), minlength=len(inputs) * classes)
        return counts.reshape(len(inputs), classes).astype(np.int64)

    def _running(self) -> _Loop:
        with self._lock:
            if self._loop is None:
                self._loop = _Loop()
            return self._loop

    def _verified(self, record: EnsembleRecord) -> _LoadedFederation:
        directory, key = self._data_dir / record.path, (record.name, record.manifest_sha256)
        with self._lock:
            found = self._gathered.get(key)
            try:
                stamp = _stamp(directory)
                if found is None or found.stamp != stamp:
                    federation = load_federation(directory)
                    if federation_digest(directory) != record.manifest_sha256:
                        raise StoreError(
                            f"The federation in {directory} is not the one that was registered as "
                            f"{record.name}. Restore it from a backup."
                        )
                    clients = [connect(directory, owner) for owner in federation.owners]
                    found = self._gathered[key] = _LoadedFederation(federation, stamp, clients)
            except (StoreError, OSError) as error:
                raise EnsembleUnavailable(str(error)) from error
            return found


def check_quorum(record: EnsembleRecord, federation: Federation, absent: Collection[str]) -> None:
    """Log who is absent; raise `EnsembleUnavailable` if too few owners are left."""
    if absent:
        # Not what they sent: that may hold labels.
        log.warning("owners absent", ensemble=record.name, owners=absent)
    if len(federation.owners) - len(absent) < federation.quorum:
        raise EnsembleUnavailable(
            f"Fewer owners of {record.name} answered than its quorum of {federation.quorum}. "
            "Nothing was charged. Retry later."
        )


def receive_labels(
    reply: bytes | str, owner: Owner, rows: int, classes: int
) -> NDArray[np.int64] | str:
    """Return the labels `[B]` of a reply to `ask` (see `decode_labels`), or why there are none."""
    if isinstance(reply, str):
        return reply
    try:
        return decode_labels(reply, owner.output, rows, classes)
    except InferenceError as error:
        return str(error)


def probe(directory: Path, federation: Federation) -> list[str | None]:
    """Ask each owner about one blank input; return for each what is wrong, or None.

    Raises StoreError for a certificate or token in `directory` that cannot be used.
    """
    classes, spec = len(federation.classes), federation.input
    blank = np.full((1, *spec.shape), spec.low, dtype=spec.dtype)
    requests = list(requests_for(federation.owners, blank, classes))

    async def all_of_them() -> list[bytes | str]:
        clients = [connect(directory, owner) for owner in federation.owners]
        try:
            return await ask_all(clients, requests, federation.timeout_seconds)
        finally:
            for each in clients:
                await each.aclose()

    def what_is_wrong(owner: Owner, reply: bytes | str) -> str | None:
        found = receive_labels(reply, owner, 1, classes)
        if isinstance(found, str):
            return found
        return "an output that is no class" if (found == NO_CLASS).any() else None

    return [*map(what_is_wrong, federation.owners, asyncio.run(all_of_them()))]


def substitute_vote(owner: str, inputs: np.ndarray, classes: int) -> NDArray[np.int64]:
    """Return the votes `[B]` that are cast for an absent owner: by input and name, of no meaning.

    They spread over the classes, so they favour none, and anybody can compute them.
    """
    prefix = b"terrine/absent/1\0" + owner.encode() + b"\0"
    rows = (hashlib.sha256(prefix + np.ascontiguousarray(row).tobytes()).digest() for row in inputs)
    return np.array([int.from_bytes(row[:8], "big") % classes for row in rows], dtype=np.int64)


def _stamp(directory: Path) -> tuple[tuple[int, int, int], ...]:
    """Return inode, size and change time of every file."""
    found = (path.stat() for path in sorted(directory.iterdir()))
    return tuple((s.st_ino, s.st_size, s.st_ctime_ns) for s in found)


def reach(directory: Path) -> Reached:
    """Ask every owner of a federation, as `probe` does. Raises StoreError."""
    federation = load_federation(directory)
    absent = probe(directory, federation)
    answers: list[dict[str, object]] = [
        {
            "owner": owner.name,
            "model": owner.model,
            "at": owner.url,
            "answers": "yes" if why is None else why,
        }
        for owner, why in zip(federation.owners, absent, strict=True)
    ]
    present, wrong = absent.count(None), None
    if present < federation.quorum:
        wrong = (
            f"{present} of {len(federation.owners)} owners answer; the quorum is "
            f"{federation.quorum}."
        )
    return Reached(answers, wrong)


def remote_voters(settings: Settings) -> RemoteVoters:
    """Return who votes for ensembles whose owners say how they voted."""
    return RemoteVoters(settings.data_dir)
