"""A witness: cosigns a log's checkpoints if each continues the last one (c2sp.org/tlog-witness).

It is for somebody else's machine: it needs no database, and beside `cryptography` only what serves.
The last checkpoint of each log is in a file, on disk before its cosignature is given away, so that
a witness which is killed at any point never cosigns two histories.
"""

from __future__ import annotations

import fcntl
import hashlib
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path

import structlog
from anyio import to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from terrine_protocol.errors import TerrineError
from terrine_protocol.files import read, write_atomically
from terrine_protocol.transparency import (
    EMPTY_ROOT,
    MAX_NOTE_BYTES,
    Checkpoint,
    Note,
    NoteError,
    ProofError,
    SignerKey,
    VerifierKey,
    check_consistency,
    check_text,
    decode_base64,
    open_checkpoint,
    parse_decimal,
)
from terrine_server.serving import Limits
from terrine_server.serving.bodies import Guard

MOST_PROOF_LINES = 63
LIMITS = Limits(
    connections=1024,
    held_bytes=2**24,
    keep_alive_seconds=15,
    body_seconds=15,
    write_seconds=15,
    shutdown_seconds=5,
)
ADD, READ = "/add-checkpoint", "/checkpoint/"
TEXT, SIZE = "text/plain; charset=utf-8", "text/x.tlog.size"

logger = structlog.get_logger("terrine")


class WitnessError(TerrineError):
    """A key or a state that cannot be used. The message says what to do."""


@dataclass(frozen=True)
class Answer:
    """What is answered: a status, a text and its media type."""

    status: HTTPStatus
    text: str
    kind: str = TEXT


class Witness:
    """Cosigns checkpoints of these logs. Its state is a directory, which it alone may use.

    Raises WitnessError if another process uses it. Threads may share it.
    """

    def __init__(self, key: SignerKey, logs: list[VerifierKey], state: Path) -> None:
        self._key = key
        self._logs = {log.name: log for log in logs}
        self._state = state
        self._one = threading.Lock()
        self._stack = ExitStack()
        if len(self._logs) < len(logs):
            raise WitnessError("Two logs have the same name.")
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._stack.enter_context((state / "lock").open("w"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WitnessError(f"Another witness uses {state}. Give each its own.") from None
        for log in logs:
            self.last(log)  # unreadable state must not be noticed only at the first checkpoint

    def close(self) -> None:
        """Let others use the state."""
        self._stack.close()

    def last(self, log: VerifierKey) -> Checkpoint | None:
        """Return the last checkpoint of a log that was cosigned. Raises WitnessError."""
        try:
            return open_checkpoint(read(self.path(log.name), MAX_NOTE_BYTES), log)
        except FileNotFoundError:
            return None
        except (NoteError, OSError) as error:
            raise WitnessError(
                f"{self.path(log.name)} does not hold what this witness wrote ({error}). It says "
                "what was cosigned, so without it nothing may be: restore the file."
            ) from None

    def path(self, origin: str) -> Path:
        """Return the file with the last checkpoint of a log."""
        return self._state / f"{hashlib.sha256(origin.encode()).hexdigest()}.checkpoint"

    def read(self, path: str) -> Answer:
        """Answer with the last checkpoint of a log, and its cosignature as of now."""
        path = path[path.find(READ) :] if READ in path else path
        with self._one:
            for origin, log in self._logs.items():
                if path == f"{READ}{hashlib.sha256(origin.encode()).hexdigest()}":
                    last = self.last(log)
                    if last is not None:
                        note = Note.parse(read(self.path(origin), MAX_NOTE_BYTES))
                        mine = self._key.sign(note.text, int(time.time()))
                        return Answer(HTTPStatus.OK, str(Note(note.text, (*note.signatures, mine))))
        return Answer(HTTPStatus.NOT_FOUND, "no checkpoint of this log\n")

    def add(self, body: bytes) -> Answer:
        """Answer the body of `add-checkpoint`."""
        try:
            text = check_text(body)
            head, gap, rest = text.partition("\n\n")
            first, *lines = head.split("\n")
            if not gap or not first.startswith("old ") or len(lines) > MOST_PROOF_LINES:
                raise NoteError("the first line is `old` and a size, then a proof and a checkpoint")
            old = parse_decimal(first.removeprefix("old "))
            proof = [decode_base64(line, 32) for line in lines]
            note = Note.parse(rest)
            log = self._logs.get(Checkpoint.parse(note.text).origin)
        except NoteError as error:
            return Answer(HTTPStatus.BAD_REQUEST, f"{error}\n")
        if log is None:
            return Answer(HTTPStatus.NOT_FOUND, "this witness does not know this log\n")
        try:
            checkpoint = open_checkpoint(note, log)
        except NoteError as error:
            return Answer(HTTPStatus.FORBIDDEN, f"{error}\n")
        if old > checkpoint.size:
            return Answer(HTTPStatus.BAD_REQUEST, "the old size is above the checkpoint's\n")
        with self._one:
            return self._cosign(log, note, checkpoint, old, proof)

    def _cosign(
        self, log: VerifierKey, note: Note, checkpoint: Checkpoint, old: int, proof: list[bytes]
    ) -> Answer:
        last = self.last(log)
        size, root = (0, EMPTY_ROOT) if last is None else (last.size, last.root)
        if old != size:
            return Answer(HTTPStatus.CONFLICT, f"{size}\n", SIZE)
        if old == checkpoint.size and root != checkpoint.root:
            return Answer(HTTPStatus.CONFLICT, f"another tree of {size} leaves was cosigned\n")
        try:
            check_consistency(old, checkpoint.size, root, checkpoint.root, proof)
        except ProofError as error:
            return Answer(HTTPStatus.UNPROCESSABLE_ENTITY, f"{error}\n")
        if last != checkpoint:
            # Of the signatures, only the log's is kept: others could fill the disk.
            own = [s for s in note.signatures if (s.name, s.key_id) == (log.name, log.key_id)]
            write_atomically(self.path(log.name), str(Note(note.text, (own[0],))).encode())
        return Answer(HTTPStatus.OK, str(self._key.sign(note.text, int(time.time()))))


def serve_app(witness: Witness) -> Starlette:
    """Return the routes of a witness, as an app for `listening.serve`; a proxy in front adds TLS.

    It has no tokens, so it is bounded as strangers are: no address takes more than its part.
    """

    async def answer(request: Request) -> Response:
        find: Callable[[], Answer]
        if request.method == "POST":
            if not request.url.path.endswith(ADD):
                return _response(_NOTHING)
            find = partial(witness.add, await request.body())
        else:
            find = partial(witness.read, request.url.path)
        try:
            found = await to_thread.run_sync(find)
        except (WitnessError, OSError) as error:  # its disk: say nothing and cosign nothing
            logger.error("cannot cosign", cause=str(error))
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            found = Answer(status, "this witness cannot cosign now\n")
        if found.status != HTTPStatus.OK:  # cosigning is what it does all day
            logger.info("refused", method=request.method, status=int(found.status))
        return _response(found)

    return Starlette(
        routes=[Route("/{path:path}", answer, methods=["GET", "POST"])],
        middleware=[Middleware(Guard, LIMITS, MAX_NOTE_BYTES, lambda _: None)],
    )


def _response(answer: Answer) -> Response:
    return Response(answer.text, answer.status, {"Content-Type": answer.kind})


_NOTHING = Answer(HTTPStatus.NOT_FOUND, "a witness has add-checkpoint\n")
