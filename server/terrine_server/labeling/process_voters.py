"""Ensembles in processes of their own, so that votes, HTTP and charges share no interpreter lock.

Each process votes on one block of inputs at a time, with one thread. It verifies and loads an
ensemble as threads of the server would, and its votes are the same, bit for bit. One that ends, or
takes too long, is replaced. Nothing is charged before the votes are complete.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
import structlog

from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.channel import Ask, Channel, Reply
from terrine_server.labeling.elsewhere import Reference
from terrine_server.labeling.local_voters import FileStamp, stamp
from terrine_server.labeling.voters import Voters

if TYPE_CHECKING:
    from terrine_server.ledger import EnsembleRecord

log = structlog.get_logger("terrine")

T = TypeVar("T")
PROGRAM = "terrine_server.labeling.voting_process"
LOADING_SECONDS = 600.0
"""How long a process may take to start, and to verify and load an ensemble."""


class _Ended(Exception):  # noqa: N818 - it is asked again
    """The process ended before it answered."""


@dataclass(frozen=True)
class _Known:
    """An ensemble that a process has verified, and the files that it had then."""

    files: tuple[str, ...]
    stamp: FileStamp
    block: int


@dataclass
class _Slot:
    """One ensemble."""

    loading: Lock = field(default_factory=Lock)
    known: _Known | None = None


class ProcessVoters(Voters):
    """Turns batches of inputs into vote counts, for any registered ensemble."""

    def __init__(
        self, data_dir: Path, device: str | None, processes: int | None, seconds: float
    ) -> None:
        """`seconds`: how long a process may vote on one block. Starts processes when first used."""
        self._data_dir = data_dir
        self._seconds = seconds
        self._slots: dict[Reference, _Slot] = {}
        self._lock = Lock()
        count = processes or usual_processes()
        self._voters = [_Voter(data_dir, device) for _ in range(count)]
        self._idle: Queue[_Voter] = Queue()
        for voter in self._voters:
            self._idle.put(voter)
        self._threads = ThreadPoolExecutor(count, "terrine-voters")

    def check(self, record: EnsembleRecord) -> None:
        """Load and verify the ensemble if necessary. Raises `EnsembleUnavailable`."""
        self._verified(record)

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        """Return the teachers' vote counts for canonical inputs `[B, …]` as int64 `[B, m]`.

        Raises `EnsembleUnavailable`, also if a process takes too long, or ends and so does the
        next one that is asked.
        """
        # The process compares the files before it votes; so they are not compared here as well.
        known = self._slot(record).known or self._verified(record)

        def vote(start: int) -> np.ndarray:
            block = inputs[start : start + known.block]
            return self._asking(record, lambda voter: self._vote(voter, record, known, block))

        if len(inputs) <= known.block:
            return vote(0)
        return np.concatenate(list(self._threads.map(vote, range(0, len(inputs), known.block))))

    def close(self) -> None:
        """End the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for voter in self._voters:
            voter.close()

    def _slot(self, record: EnsembleRecord) -> _Slot:
        with self._lock:
            return self._slots.setdefault(Reference.to(record), _Slot())

    def _verified(self, record: EnsembleRecord) -> _Known:
        slot = self._slot(record)
        known = slot.known
        if known is not None and self._unchanged(record, known):
            return known
        with slot.loading:
            if slot.known is not known and slot.known is not None:
                return slot.known  # loaded just now, by another thread
            slot.known = None
            known = slot.known = self._asking(record, lambda voter: self._load(voter, record))
            for _ in self._voters[1:]:
                self._threads.submit(self._load_ahead, record, known)
            return known

    def _unchanged(self, record: EnsembleRecord, known: _Known) -> bool:
        try:
            return stamp(self._data_dir / record.path, known.files) == known.stamp
        except OSError:
            return False  # a process says what is wrong

    def _asking(self, record: EnsembleRecord, work: Callable[[_Voter], T]) -> T:
        """Let an idle process do it; if that one ends, another one, once: nothing was charged."""
        with suppress(_Ended), self._one() as voter:
            return work(voter)
        try:
            with self._one() as voter:
                return work(voter)
        except _Ended:
            raise EnsembleUnavailable(
                f"The processes that vote for {record.name} ended before they had voted. "
                "Nothing was charged. Retry later; the server's log says more."
            ) from None

    @contextmanager
    def _one(self) -> Iterator[_Voter]:
        voter = self._idle.get()
        try:
            yield voter
        finally:
            self._idle.put(voter)

    def _vote(
        self, voter: _Voter, record: EnsembleRecord, known: _Known, inputs: np.ndarray
    ) -> np.ndarray:
        if voter.loaded.get(Reference.to(record)) != known.stamp:
            self._load(voter, record)
        ask = Ask(Reference.to(record), inputs.dtype.str, inputs.shape)
        reply, counts = self._answer(
            voter, record, ask, np.ascontiguousarray(inputs).data, self._seconds
        )
        return np.frombuffer(counts, "<i8").reshape(reply.shape)

    def _load(self, voter: _Voter, record: EnsembleRecord) -> _Known:
        reply, _ = self._answer(voter, record, Ask(Reference.to(record)), b"", LOADING_SECONDS)
        voter.loaded[Reference.to(record)] = reply.stamp
        return _Known(reply.files, reply.stamp, reply.block)

    def _load_ahead(self, record: EnsembleRecord, known: _Known) -> None:
        """Load an ensemble in one more process, so that the first student does not wait."""
        with suppress(_Ended, EnsembleUnavailable), self._one() as voter:
            if voter.loaded.get(Reference.to(record)) != known.stamp:
                self._load(voter, record)

    def _answer(
        self,
        voter: _Voter,
        record: EnsembleRecord,
        ask: Ask,
        array: bytes | memoryview,
        seconds: float,
    ) -> tuple[Reply, bytearray]:
        try:
            reply, counts = voter.ask(ask, array, seconds)
        except TimeoutError:
            raise EnsembleUnavailable(
                f"The ensemble {record.name} took longer than {seconds:g} s to "
                f"{'vote on a block of inputs' if ask.shape else 'load'}. Nothing was charged. "
                "Retry later, or ask the data owner, who may raise TERRINE_VOTING_SECONDS."
            ) from None
        if reply.refused is not None:
            raise EnsembleUnavailable(reply.refused)
        if reply.defect is not None:
            reply.defect.fail("a voting process")
        return reply, counts


class _Voter:
    """One voting process: started when it is asked, and anew if it has ended."""

    def __init__(self, data_dir: Path, device: str | None) -> None:
        self._arguments = (str(data_dir.absolute()), device or "")
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[Reply] | None = None
        self._closed = False
        self.loaded: dict[Reference, FileStamp] = {}
        """The ensembles that it holds, as their files were."""

    def ask(self, ask: Ask, array: bytes | memoryview, seconds: float) -> tuple[Reply, bytearray]:
        """Return its reply. Raises _Ended or TimeoutError; then it is gone."""
        try:
            channel = self._channel or self._start()
            channel.send(ask, array, seconds)
            return channel.receive(seconds)
        except TimeoutError:
            self._end("was too slow")
            raise
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            self._end(f"did not reply ({type(error).__name__})")
            raise _Ended from None
        except BaseException:
            self._end("was left")  # in the middle of a message
            raise

    def close(self) -> None:
        """End it for good. Whoever asks it meanwhile is told that it ended."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _start(self) -> Channel[Reply]:
        if self._closed:
            raise EOFError
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, Reply)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter, and a constant
                [sys.executable, "-m", PROGRAM, str(theirs.fileno()), *self._arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        return self._channel

    def _end(self, why: str) -> None:
        self.loaded.clear()
        process, channel = self._process, self._channel
        self._process = self._channel = None
        status = None
        if process is not None:
            process.kill()
            status = process.wait()
        if channel is not None:
            channel.socket.close()
        if not self._closed:
            log.warning("voting process ended", cause=why, status=status)


def usual_processes() -> int:
    """Return how many processes vote unless a setting says: as many as the server had threads."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if threads.isdecimal() and int(threads):
        return int(threads)
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
