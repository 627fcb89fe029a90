"""Teachers that stay with their owners, who are asked over the network.

Who is asked, and how long their answers are waited for, is fixed in the federation and public. An
owner whose answer does not come in time, or is no answer, is absent from that batch: their vote is
then cast by a public rule that looks at the input alone (`stand_in`). So every tally is full, and
what an owner does, answering, lying or failing, moves their own vote and nobody else's: see
docs/privacy/remote-owners.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import httpcore
import httpx
import numpy as np
import structlog
from numpy.typing import NDArray

from terrine_models.storage.manifests import StoreError
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling import inference, shares
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import EnsembleRecord

if TYPE_CHECKING:
    from terrine_models.teachers.federation import Federation, Owner, Peer

log = structlog.get_logger("terrine")

REPLY_BYTES = 64 * 1024
"""Bytes of a response, beyond `VALUE_BYTES` for each value that it may hold."""
VALUE_BYTES = 32
PIECE = 4096
"""Bytes that are read of one response before others have their turn: some 10 ms of work at most,
if they are made of as many events of HTTP as fit."""
KEPT_SECONDS = 30.0
"""How long an idle connection is kept: a new one costs both sides a handshake."""


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        Thread(target=self.loop.run_forever, daemon=True, name="terrine-owners").start()

    def run(self, work: Any) -> Any:
        """Run a coroutine there, and wait for its result."""
        made: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return made.result()


@dataclass(frozen=True)
class VoteRequest:
    """What one owner is sent, and the most bytes of a response that are read."""

    sent: Mapping[str, Any]
    most: int


def requests_for(
    owners: Iterable[Owner], x: NDArray[np.generic], classes: int, of_round: str | None = None
) -> Iterator[VoteRequest]:
    """Yield the request for each owner; owners who are asked alike share its body.

    `of_round`: name of the round whose shares they are asked for, in place of their votes.
    """
    made: dict[tuple[str, str | None, bool], tuple[bytes, dict[str, str]]] = {}
    for owner in owners:
        how = (owner.input, owner.output, owner.binary)
        body, headers = made.get(how) or made.setdefault(how, inference.request(x, *how))
        url = f"v2/models/{owner.model}/infer"
        if of_round is not None:
            url = f"v2/models/{owner.model}/share"
            headers = {**headers, shares.ROUND: of_round}
        sent = {"url": url, "content": body, "headers": headers}
        yield VoteRequest(sent, REPLY_BYTES + VALUE_BYTES * len(x) * classes)


@dataclass(frozen=True)
class _Asked:
    """An owner, and the connections to their server."""

    owner: Owner
    http: httpx.AsyncClient


@dataclass(frozen=True)
class _Gathered:
    """A verified federation, ready to vote."""

    federation: Federation
    stamp: tuple[tuple[int, int, int], ...]
    asked: Sequence[_Asked]
    aggregator: httpx.AsyncClient | None


class RemoteVoters(Voters):
    """Turns batches of inputs into vote counts, by asking each owner of a federation."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._lock = Lock()
        self._loop: _Loop | None = None
        self._gathered: dict[tuple[str, str], _Gathered] = {}

    def check(self, record: EnsembleRecord) -> None:
        """Verify the federation. Raises `EnsembleUnavailable`. Asks nobody."""
        self._verified(record)

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        """Return the owners' vote counts for canonical inputs `[B, …]` as int64 `[B, m]`.

        Raises `EnsembleUnavailable`, also if fewer owners than the quorum answer.
        """
        gathered = self._verified(record)
        federation, classes = gathered.federation, len(gathered.federation.classes)
        requests = list(requests_for(federation.owners, inputs, classes))
        replies = self._running().run(ask_all(gathered.asked, requests, federation.timeout_seconds))
        choices = np.empty((len(inputs), len(federation.owners)), dtype=np.int64)
        absent = []
        # Read after the deadline: a reply that is slow to read must not make another one late.
        for column, (owner, reply) in enumerate(zip(federation.owners, replies, strict=True)):
            found = read(reply, owner, len(inputs), classes)
            if isinstance(found, str):
                absent.append(owner.name)
                found = stand_in(owner.name, inputs, classes)
            choices[:, column] = found
        check_quorum(record, federation, absent)
        offsets = np.arange(len(inputs))[:, None] * classes
        counts = np.bincount((choices + offsets).ravel(), minlength=len(inputs) * classes)
        return counts.reshape(len(inputs), classes).astype(np.int64)

    def _running(self) -> _Loop:
        with self._lock:
            if self._loop is None:
                self._loop = _Loop()
            return self._loop

    def _verified(self, record: EnsembleRecord) -> _Gathered:
        from terrine_models.teachers.federation import federation_digest, load_federation

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
                    asked = [
                        _Asked(owner, connected(directory, owner)) for owner in federation.owners
                    ]
                    aggregator = (
                        connected(directory, federation.aggregator)
                        if federation.aggregator
                        else None
                    )
                    found = self._gathered[key] = _Gathered(federation, stamp, asked, aggregator)
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


def connected(directory: Path, peer: Peer) -> httpx.AsyncClient:
    """Return a client of a server, with the certificate and token in `directory`.

    Raises StoreError.
    """
    from terrine_models.teachers.federation import peer_token

    certificate = None if peer.certificate is None else directory / f"{peer.name}.pem"
    return client(peer.url, certificate, peer_token(directory, peer))


def client(url: str, certificate: Path | None, token: str | None) -> httpx.AsyncClient:
    """Return a client of the server at `url`, trusted by this certificate or by the system's.

    Raises StoreError.
    """
    try:
        context = (
            _system()
            if certificate is None
            else ssl.create_default_context(cafile=str(certificate))
        )
    except (ssl.SSLError, OSError) as error:
        raise StoreError(f"{certificate} holds no certificate: {error}") from None
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        transport=_Transport(context),
        timeout=None,  # noqa: S113 - one deadline for all of a reply, see `ask`
        trust_env=False,
    )


@cache
def _system() -> ssl.SSLContext:
    """Return what the system trusts: read once, since it takes a hundredth of a second."""
    return ssl.create_default_context()


class TooLong(Exception):  # noqa: N818 - of a peer, not of ours
    """A response has more bytes than it may."""


_most: ContextVar[int] = ContextVar("most", default=REPLY_BYTES)
"""Bytes that the response to the request of this task may have."""


class _Counted(httpcore.AsyncNetworkStream):
    """A connection on which whatever a peer sends is counted, and read in small pieces.

    Its body alone would not do: any number of interim responses may come before its head (RFC 9110,
    section 15.2), and each byte of it may be a chunk. To read these takes time, and responses of
    other owners are read by the same loop.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._read = 0
        """Bytes since the request."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(min(max_bytes, PIECE), timeout)
        self._read += len(data)
        if self._read > _most.get():
            raise TooLong
        await asyncio.sleep(0)  # under TLS, reading alone may wait for nothing
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._read = 0
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Counted(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Network(httpcore.AnyIOBackend):
    """Connects as usual."""

    async def connect_tcp(self, *given: Any, **more: Any) -> httpcore.AsyncNetworkStream:
        return _Counted(await super().connect_tcp(*given, **more))


class _Transport(httpx.AsyncHTTPTransport):
    """httpx over connections that are counted."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=None,
            keepalive_expiry=KEPT_SECONDS,
            network_backend=_Network(),
        )


async def ask(http: httpx.AsyncClient, request: VoteRequest, seconds: float) -> bytes | str:
    """Ask one owner; return the body of the response, or why there is none in time.

    They are asked once more if the connection ends: many servers end idle ones after 5 s, and a
    request may be on its way just then.
    """
    try:
        async with asyncio.timeout(seconds):
            try:
                return await _exchanged(http, request)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                return await _exchanged(http, request)
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except TooLong:
        return f"more than {request.most} bytes"
    except (httpx.HTTPError, ssl.SSLError, OSError) as error:
        return f"{type(error).__name__}: {error}"


async def _exchanged(http: httpx.AsyncClient, request: VoteRequest) -> bytes | str:
    """Return the body of the response, or why there is none.

    Raises TooLong, httpx.HTTPError, OSError.
    """
    _most.set(request.most)
    async with http.stream("POST", **request.sent) as reply:
        if reply.status_code != 200:
            return f"status {reply.status_code}"
        return b"".join([part async for part in reply.aiter_raw()])


def read(reply: bytes | str, owner: Owner, rows: int, classes: int) -> NDArray[np.int64] | str:
    """Return the labels `[B]` of a reply to `ask`, or why there are none."""
    if isinstance(reply, str):
        return reply
    try:
        return inference.labels(reply, owner.output, rows, classes)
    except inference.ProtocolError as error:
        return str(error)


def read_share(reply: bytes | str, rows: int, classes: int) -> shares.Share | str:
    """Return the share `[B, m]` of a reply to `ask`, or why there is none."""
    if isinstance(reply, str):
        return reply
    try:
        return shares.read(reply, rows, classes)
    except inference.ProtocolError as error:
        return str(error)


def probe(directory: Path, federation: Federation) -> list[str | None]:
    """Ask each owner about one blank input; return for each what is wrong, or None.

    With an aggregator, they are asked for shares, of a round that is never opened. Raises
    StoreError for a certificate or token in `directory` that cannot be used.
    """
    classes, spec = len(federation.classes), federation.input
    blank = np.full((1, *spec.shape), spec.low, dtype=spec.dtype)
    of_round = None if federation.aggregator is None else shares.new_round()
    requests = list(requests_for(federation.owners, blank, classes, of_round))

    async def all_of_them() -> list[bytes | str]:
        asked = [_Asked(owner, connected(directory, owner)) for owner in federation.owners]
        try:
            return await ask_all(asked, requests, federation.timeout_seconds)
        finally:
            for each in asked:
                await each.http.aclose()

    replies = asyncio.run(all_of_them())
    found = (
        read(reply, owner, 1, classes) if of_round is None else read_share(reply, 1, classes)
        for reply, owner in zip(replies, federation.owners, strict=True)
    )
    return [each if isinstance(each, str) else None for each in found]


def stand_in(owner: str, inputs: np.ndarray, classes: int) -> NDArray[np.int64]:
    """Return the votes `[B]` that are cast for an absent owner: by input and name, of no meaning.

    They spread over the classes, so they favour none, and anybody can compute them.
    """
    prefix = b"terrine/absent/1\0" + owner.encode() + b"\0"
    rows = (hashlib.sha256(prefix + np.ascontiguousarray(row).tobytes()).digest() for row in inputs)
    return np.array([int.from_bytes(row[:8], "big") % classes for row in rows], dtype=np.int64)


async def ask_all(
    asked: Sequence[_Asked], requests: Sequence[VoteRequest], seconds: float
) -> list[bytes | str]:
    """Ask every owner at once; return what `ask` returns, for each."""
    return await asyncio.gather(
        *(ask(each.http, one, seconds) for each, one in zip(asked, requests, strict=True))
    )


def _stamp(directory: Path) -> tuple[tuple[int, int, int], ...]:
    """Return inode, size and change time of every file."""
    found = (path.stat() for path in sorted(directory.iterdir()))
    return tuple((s.st_ino, s.st_size, s.st_ctime_ns) for s in found)
