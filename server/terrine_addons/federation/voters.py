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
import json
import math
import os
import re
import secrets
import ssl
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from math import ceil, sqrt
from math import log as ln
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Annotated, Any, Self

import httpcore
import httpx
import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from terrine_models.data.arrays import InputSpec
from terrine_models.storage.manifests import Name, StoreError
from terrine_models.teachers.kinds import Reached
from terrine_protocol.base import Record, first_problem
from terrine_protocol.files import read
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import EnsembleRecord
from terrine_server.privacy import Entropy, NoisyVotes, Terms, quote
from terrine_server.settings import Settings

if TYPE_CHECKING:
    from terrine_addons.federation.federations import AggregatorAddress, Federation, Owner, Peer


HEADER_LENGTH = "Inference-Header-Content-Length"
"""With tensors as bytes: how many bytes of the body are JSON."""
DATATYPES = {"uint8": "UINT8", "float32": "FP32"}
_LABELS = {"INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8"}
_SCORES = {"FP64", "FP32", "FP16"}


class InferenceError(Exception):
    """A message is not one of the protocol, or does not fit the model. Says what was expected."""


class _Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | None = None
    parameters: dict[str, Any] = {}


class _InferenceRequest(msgspec.Struct):
    inputs: list[_Tensor]
    id: str | None = None


class _InferenceResponse(msgspec.Struct):
    outputs: list[_Tensor]


_REQUEST, _RESPONSE = (
    msgspec.json.Decoder(_InferenceRequest),
    msgspec.json.Decoder(_InferenceResponse),
)


def encode_request(
    x: NDArray[np.generic], name: str, output: str | None, binary: bool
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of an inference request for inputs `[B, …]`, uint8 or float32."""
    tensor: dict[str, Any] = {
        "name": name,
        "shape": list(x.shape),
        "datatype": DATATYPES[x.dtype.name],
    }
    document: dict[str, Any] = {"inputs": [tensor]}
    if output is not None:
        document["outputs"] = [{"name": output}]
    if not binary:
        tensor["data"] = x.ravel().tolist()
        return msgspec.json.encode(document), {"Content-Type": "application/json"}
    raw = np.ascontiguousarray(x, x.dtype.newbyteorder("<")).tobytes()
    tensor["parameters"] = {"binary_data_size": len(raw)}
    head = msgspec.json.encode(document)
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
    return head + raw, headers


NO_CLASS = -1
"""Stands for an output that chooses none."""


def decode_labels(body: bytes, output: str | None, rows: int, classes: int) -> NDArray[np.int64]:
    """Read the labels `[B]` of a response: an output of labels, or of scores by class.

    Of scores, the highest wins, and of equal ones the first, as for every teacher. `NO_CLASS` where
    a label is not a class, or a score not finite. Raises InferenceError for a message of another
    form, such as another shape, and for no value.
    """
    try:
        found = _decode_response(body).outputs
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise InferenceError("no response of the protocol") from None
    tensors = [tensor for tensor in found if output in (None, tensor.name)]
    if len(tensors) != 1:
        raise InferenceError(
            f"{len(tensors)} outputs, expected one" + (f" {output}" * bool(output))
        )
    tensor = tensors[0]
    if tensor.datatype in _LABELS and tensor.shape in ([rows], [rows, 1]):
        given = _numbers(tensor).reshape(rows)
        known = (given >= 0) & (given < classes) & (given == np.floor(given))
        return np.where(known, given, NO_CLASS).astype(np.int64)
    if tensor.datatype in _SCORES and tensor.shape == [rows, classes]:
        scores = _numbers(tensor).reshape(rows, classes)
        known = np.isfinite(scores).all(axis=1)
        return np.where(known, scores.argmax(axis=1), NO_CLASS)
    raise InferenceError(
        f"an output of {tensor.datatype[:20]} {tensor.shape[:4]}, expected labels [{rows}] or "
        f"scores [{rows}, {classes}]"
    )


def _decode_response(body: bytes) -> _InferenceResponse:
    """Read a response. Raises MsgspecError, RecursionError and ValueError."""
    try:
        return _RESPONSE.decode(body)
    except msgspec.MsgspecError:
        # Servers in Python write NaN and Infinity, which JSON has not, for what is not finite.
        return msgspec.convert(json.loads(body), _InferenceResponse)


def _numbers(tensor: _Tensor) -> NDArray[Any]:
    """Return the numbers of a tensor. Raises InferenceError if they are others than it says."""
    try:
        given = np.asarray(tensor.data)
        if given.dtype.kind == "O":  # null, where a number is not finite, or numbers of any size
            known = (math.nan if each is None else each for each in tensor.data or ())
            given = np.array([*known], dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        given = np.empty(0, dtype=np.object_)
    if given.dtype.kind not in "iuf" or given.size != math.prod(tensor.shape):
        raise InferenceError(f"the data of {tensor.name[:40]!r}: not the numbers that it says")
    return given


def decode_inputs(body: bytes, header_length: int | None, spec: InputSpec) -> NDArray[np.generic]:
    """Read the inputs `[B, …]` of a request for a model of this kind. Raises InferenceError."""
    head = body if header_length is None else body[:header_length]
    try:
        given = _REQUEST.decode(head).inputs
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InferenceError(f"no request of the protocol ({error})") from None
    expected = f"{DATATYPES[spec.dtype]} [B, {', '.join(map(str, spec.shape))}]"
    if len(given) != 1:
        raise InferenceError(f"{len(given)} inputs, expected one: {expected}")
    tensor = given[0]
    shape = tensor.shape
    if tensor.datatype != DATATYPES[spec.dtype] or shape[1:] != list(spec.shape) or shape[0] < 1:
        raise InferenceError(f"{tensor.datatype[:20]} {shape[:5]}, expected {expected}")
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    if header_length is None:
        return _array(tensor, dtype)
    raw = body[header_length:]
    size = math.prod(shape) * dtype.itemsize
    if len(raw) != size or tensor.parameters.get("binary_data_size") != size:
        raise InferenceError(f"{len(raw)} bytes after the header, expected {size}")
    return np.frombuffer(raw, dtype).reshape(shape)


def encode_response(model: str, found: NDArray[np.int64]) -> bytes:
    """Return a response with labels `[B]`."""
    tensor = {
        "name": "label",
        "shape": [len(found)],
        "datatype": "INT64",
        "data": found.tolist(),
    }
    return msgspec.json.encode({"model_name": model, "outputs": [tensor]})


def _array(tensor: _Tensor, dtype: Any) -> NDArray[Any]:
    given, name = _numbers(tensor), tensor.name[:40]
    if np.dtype(dtype).kind != "f" and given.dtype.kind == "f":
        raise InferenceError(f"the data of {name!r}: fractions, expected whole numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        converted = given.astype(dtype).reshape(tensor.shape)
    if np.dtype(dtype).kind != "f" and (converted.ravel() != given.ravel()).any():
        raise InferenceError(f"the data of {name!r}: numbers out of range")
    return converted


Share = NDArray[np.uint32]
ROUND = "Terrine-Round"
"""The header that names the round for which an owner is asked for shares."""
ROUND_NAME = r"[0-9a-f]{32}"
SHAPE = "Terrine-Shape"
"""The header in which an owner says how many rows and classes the aggregator's share has:
`8x10`."""
NUMBER_BYTES = 4
"""Bytes of each number of a share, least significant first."""


def new_round() -> str:
    """Return the name of a new round."""
    return secrets.token_hex(16)


def split_votes(
    labels: NDArray[np.int64], classes: int, entropy: Entropy = os.urandom
) -> tuple[Share, Share]:
    """Return the two shares of one vote on each of B inputs; their sum has a 1 at each label.

    The second is drawn anew and is uniform, whatever the labels; so is the first, without it.
    """
    drawn = decode_share(entropy(len(labels) * classes * NUMBER_BYTES), len(labels), classes)
    return one_hot(labels, classes) - drawn, drawn


def one_hot(labels: NDArray[np.int64], classes: int) -> Share:
    """Return labels `[B]` as votes."""
    votes = np.zeros((len(labels), classes), dtype=np.uint32)
    votes[np.arange(len(labels)), labels] = 1
    return votes


def decode_share(body: bytes, rows: int, classes: int) -> Share:
    """Read what `write` wrote. Raises InferenceError if it is not of this size."""
    if len(body) != rows * classes * NUMBER_BYTES:
        raise InferenceError(
            f"{len(body)} bytes, expected {NUMBER_BYTES} for each of {rows} x {classes} numbers"
        )
    return np.frombuffer(body, dtype="<u4").reshape(rows, classes).astype(np.uint32)


def shape_of(share: Share) -> str:
    """Return what an owner says of a share in the header `SHAPE`."""
    rows, classes = share.shape
    return f"{rows}x{classes}"


def check_share(shape: str, body: bytes, classes: int) -> None:
    """Check the bytes of a share by its header. Raises InferenceError.

    The size alone does not tell: rows of ten classes are fewer rows of twenty, each with two votes.
    """
    found = re.fullmatch(r"([1-9][0-9]{0,9})x([1-9][0-9]{0,9})", shape)
    if found is None:
        raise InferenceError(f"{SHAPE} says no rows and classes, such as 8x{classes}")
    rows, theirs = map(int, found.groups())
    if theirs != classes:
        raise InferenceError(f"rows of {theirs} classes, expected {classes}")
    if len(body) != rows * classes * NUMBER_BYTES:
        raise InferenceError(
            f"{len(body)} bytes, expected {NUMBER_BYTES} for each of {rows} x {classes} numbers"
        )


def encode_share(share: Share) -> bytes:
    """Return the bytes that a share is sent as."""
    return share.astype("<u4").tobytes()


log = structlog.get_logger("terrine")

REPLY_BYTES = 64 * 1024
"""Bytes of a response, beyond `VALUE_BYTES` for each value that it may hold."""
VALUE_BYTES = 32
READ_BYTES = 4096
"""Bytes that are read of one response before others have their turn: some 10 ms of work at most,
if they are made of as many events of HTTP as fit."""
KEEP_ALIVE_SECONDS = 30.0
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
        body, headers = made.get(how) or made.setdefault(how, encode_request(x, *how))
        url = f"v2/models/{owner.model}/infer"
        if of_round is not None:
            url = f"v2/models/{owner.model}/share"
            headers = {**headers, ROUND: of_round}
        sent = {"url": url, "content": body, "headers": headers}
        yield VoteRequest(sent, REPLY_BYTES + VALUE_BYTES * len(x) * classes)


@dataclass(frozen=True)
class _OwnerClient:
    """An owner, and the connections to their server."""

    owner: Owner
    http: httpx.AsyncClient


@dataclass(frozen=True)
class _LoadedFederation:
    """A verified federation, ready to vote."""

    federation: Federation
    stamp: tuple[tuple[int, int, int], ...]
    asked: Sequence[_OwnerClient]
    aggregator: httpx.AsyncClient | None


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
        replies = self._running().run(ask_all(gathered.asked, requests, federation.timeout_seconds))
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
        from terrine_addons.federation.federations import federation_digest, load_federation

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
                        _OwnerClient(owner, connect(directory, owner))
                        for owner in federation.owners
                    ]
                    aggregator = (
                        connect(directory, federation.aggregator) if federation.aggregator else None
                    )
                    found = self._gathered[key] = _LoadedFederation(
                        federation, stamp, asked, aggregator
                    )
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


def connect(directory: Path, peer: Peer) -> httpx.AsyncClient:
    """Return a client of a server, with the certificate and token in `directory`.

    Raises StoreError.
    """
    from terrine_addons.federation.federations import peer_token

    certificate = None if peer.certificate is None else directory / f"{peer.name}.pem"
    return make_client(peer.url, certificate, peer_token(directory, peer))


def make_client(url: str, certificate: Path | None, token: str | None) -> httpx.AsyncClient:
    """Return a client of the server at `url`, trusted by this certificate or by the system's.

    Raises StoreError.
    """
    try:
        context = (
            _system_context()
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
def _system_context() -> ssl.SSLContext:
    """Return what the system trusts: read once, since it takes a hundredth of a second."""
    return ssl.create_default_context()


class ReplyTooLarge(Exception):  # noqa: N818 - of a peer, not of ours
    """A response has more bytes than it may."""


_most: ContextVar[int] = ContextVar("most", default=REPLY_BYTES)
"""Bytes that the response to the request of this task may have."""


class _LimitedStream(httpcore.AsyncNetworkStream):
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
        data = await self._stream.read(min(max_bytes, READ_BYTES), timeout)
        self._read += len(data)
        if self._read > _most.get():
            raise ReplyTooLarge
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
        return _LimitedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Network(httpcore.AnyIOBackend):
    """Connects as usual."""

    async def connect_tcp(self, *given: Any, **more: Any) -> httpcore.AsyncNetworkStream:
        return _LimitedStream(await super().connect_tcp(*given, **more))


class _Transport(httpx.AsyncHTTPTransport):
    """httpx over connections that are counted."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=None,
            keepalive_expiry=KEEP_ALIVE_SECONDS,
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
                return await _post(http, request)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                return await _post(http, request)
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except ReplyTooLarge:
        return f"more than {request.most} bytes"
    except (httpx.HTTPError, ssl.SSLError, OSError) as error:
        return f"{type(error).__name__}: {error}"


async def _post(http: httpx.AsyncClient, request: VoteRequest) -> bytes | str:
    """Return the body of the response, or why there is none.

    Raises TooLong, httpx.HTTPError, OSError.
    """
    _most.set(request.most)
    async with http.stream("POST", **request.sent) as reply:
        if reply.status_code != 200:
            return f"status {reply.status_code}"
        return b"".join([part async for part in reply.aiter_raw()])


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


def receive_share(reply: bytes | str, rows: int, classes: int) -> Share | str:
    """Return the share `[B, m]` of a reply to `ask`, or why there is none."""
    if isinstance(reply, str):
        return reply
    try:
        return decode_share(reply, rows, classes)
    except InferenceError as error:
        return str(error)


def probe(directory: Path, federation: Federation) -> list[str | None]:
    """Ask each owner about one blank input; return for each what is wrong, or None.

    With an aggregator, they are asked for shares, of a round that is never opened. Raises
    StoreError for a certificate or token in `directory` that cannot be used.
    """
    classes, spec = len(federation.classes), federation.input
    blank = np.full((1, *spec.shape), spec.low, dtype=spec.dtype)
    of_round = None if federation.aggregator is None else new_round()
    requests = list(requests_for(federation.owners, blank, classes, of_round))

    async def all_of_them() -> list[bytes | str]:
        asked = [_OwnerClient(owner, connect(directory, owner)) for owner in federation.owners]
        try:
            return await ask_all(asked, requests, federation.timeout_seconds)
        finally:
            for each in asked:
                await each.http.aclose()

    replies = asyncio.run(all_of_them())
    found = (
        receive_labels(reply, owner, 1, classes)
        if of_round is None
        else receive_share(reply, 1, classes)
        for reply, owner in zip(replies, federation.owners, strict=True)
    )
    return [
        each
        if isinstance(each, str)
        else "an output that is no class"
        if of_round is None and (each == NO_CLASS).any()
        else None
        for each in found
    ]


def substitute_vote(owner: str, inputs: np.ndarray, classes: int) -> NDArray[np.int64]:
    """Return the votes `[B]` that are cast for an absent owner: by input and name, of no meaning.

    They spread over the classes, so they favour none, and anybody can compute them.
    """
    prefix = b"terrine/absent/1\0" + owner.encode() + b"\0"
    rows = (hashlib.sha256(prefix + np.ascontiguousarray(row).tobytes()).digest() for row in inputs)
    return np.array([int.from_bytes(row[:8], "big") % classes for row in rows], dtype=np.int64)


async def ask_all(
    asked: Sequence[_OwnerClient], requests: Sequence[VoteRequest], seconds: float
) -> list[bytes | str]:
    """Ask every owner at once; return what `ask` returns, for each."""
    return await asyncio.gather(
        *(ask(each.http, one, seconds) for each, one in zip(asked, requests, strict=True))
    )


def _stamp(directory: Path) -> tuple[tuple[int, int, int], ...]:
    """Return inode, size and change time of every file."""
    found = (path.stat() for path in sorted(directory.iterdir()))
    return tuple((s.st_ino, s.st_size, s.st_ctime_ns) for s in found)


TERMS = "Terrine-Terms"
"""The header with the digest of the terms under which an owner shares."""


class AggregatorTerms(Record):
    """What an aggregator does, fixed when it is made."""

    owners: Annotated[tuple[Name, ...], Field(min_length=2, max_length=10_000)]
    classes: int
    """Numbers in each row of a share. One row is what one query is priced at, so an owner whose
    rows had fewer would have several votes counted as one."""
    sigma: float
    """Of its noise, in votes."""
    epsilon: float
    delta: float
    """What the service may learn from all that is ever released."""

    @model_validator(mode="after")
    def _are_coherent(self) -> Self:
        if len(set(self.owners)) < len(self.owners):
            raise ValueError("owners must have different names")
        self.price()
        return self

    def price(self) -> Terms:
        """Return the price of each query under this budget: that of noisy counts with this σ."""
        mechanism = NoisyVotes(len(self.owners), self.classes, self.sigma)
        return quote(mechanism, self.epsilon, self.delta)

    def digest(self) -> str:
        """Return the SHA-256 that a share names them by."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class AggregatorInfo(Record):
    """What an aggregator says of itself to those who hold a token of it."""

    terms: AggregatorTerms
    queries_left: int


def read_terms(file: Path) -> AggregatorTerms:
    """Read the terms from a file of TOML. Raises StoreError."""
    try:
        return AggregatorTerms.model_validate(tomllib.loads(read(file).decode()))
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StoreError(f"{file} is not a TOML file: {error}.") from None
    except ValidationError as error:
        raise StoreError(f"{file}: {first_problem(error)}.") from None


def ask_terms(http: httpx.AsyncClient, seconds: float) -> AggregatorInfo | str:
    """Ask an aggregator for its terms and close the connection; or return why there are none."""

    async def asked() -> httpx.Response:
        async with http:
            return await http.get("v1/terms", timeout=seconds)

    try:
        reply = asyncio.run(asked())
    except (httpx.HTTPError, ssl.SSLError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    if reply.status_code != 200:
        return f"status {reply.status_code}"
    try:
        return AggregatorInfo.model_validate_json(reply.content)
    except ValidationError as error:
        return f"no terms of an aggregator ({first_problem(error)})"


FALSE_ALARM_PROBABILITY = 1e-12
"""How often, at most, the aggregator's noise alone makes the sum of an input's counts look
wrong."""

logger = structlog.get_logger("terrine")


class SharedVoters(RemoteVoters):
    """Turns batches of inputs into sums of votes that carry an aggregator's noise."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self._inconsistent = set[str]()
        """Digests of federations whose shares did not add up: asking again would spend the
        aggregator's budget for nothing. They stay here until the operator starts the server
        again."""

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        """Return the sums for canonical inputs `[B, …]`, modulo 2³²: uint32 `[B, m]`.

        Raises `EnsembleUnavailable`, also if fewer owners than the quorum answer, if the aggregator
        does not, or if the sums cannot be those of one vote an owner.
        """
        gathered = self._verified(record)
        federation, aggregator = gathered.federation, gathered.aggregator
        if federation.aggregator is None or aggregator is None:
            raise EnsembleUnavailable(f"The federation of {record.name} names no aggregator.")
        if record.manifest_sha256 in self._inconsistent:
            raise _inconsistent_sums(record)
        rows, classes, name = len(inputs), len(federation.classes), new_round()
        requests = list(requests_for(federation.owners, inputs, classes, name))
        replies = self._running().run(ask_all(gathered.asked, requests, federation.timeout_seconds))
        sums = np.zeros((rows, classes), dtype=np.uint32)
        present, absent = [], []
        for owner, reply in zip(federation.owners, replies, strict=True):
            share = receive_share(reply, rows, classes)
            if isinstance(share, str):
                absent.append(owner.name)
                share = one_hot(substitute_vote(owner.name, inputs, classes), classes)
            else:
                present.append(owner.name)
            sums += share
        check_quorum(record, federation, absent)
        sums += self._ask_aggregator(
            record, aggregator, name, present, sums.shape, federation.timeout_seconds
        )
        if not sums_are_consistent(sums, len(federation.owners), federation.aggregator.sigma):
            self._inconsistent.add(record.manifest_sha256)
            logger.error(
                "shares do not add up",
                ensemble=record.name,
                then="nobody is asked again before this server is restarted; find the owner first",
            )
            raise _inconsistent_sums(record)
        return sums

    def _ask_aggregator(
        self,
        record: EnsembleRecord,
        aggregator: httpx.AsyncClient,
        name: str,
        present: list[str],
        shape: tuple[int, int],
        seconds: float,
    ) -> Share:
        """Return the aggregator's shares of these owners and its noise, added up."""
        body = msgspec.json.encode({"owners": present, "rows": shape[0]})
        sent = {"url": f"v1/rounds/{name}", "content": body}
        most = REPLY_BYTES + NUMBER_BYTES * shape[0] * shape[1]
        reply = self._running().run(ask(aggregator, VoteRequest(sent, most), seconds))
        if reply == "status 403":
            raise EnsembleUnavailable(
                f"The aggregator of {record.name} has released all that its budget pays for. "
                "Nothing was charged. More is for the party who runs it to decide."
            )
        found = receive_share(reply, *shape)
        if isinstance(found, str):
            logger.error("aggregator failed", ensemble=record.name, because=found)
            raise EnsembleUnavailable(
                f"The aggregator of {record.name} did not answer as it should. Nothing was "
                "charged. Retry later."
            )
        return found


def _inconsistent_sums(record: EnsembleRecord) -> EnsembleUnavailable:
    return EnsembleUnavailable(
        f"The shares of {record.name} do not add up to one vote an owner: an owner, or the "
        "aggregator, sends something else. Nothing was charged, and nobody is asked again before "
        "the operator has restarted the server."
    )


def probe_aggregator(
    directory: Path, federation: Federation, aggregator: AggregatorAddress
) -> str | None:
    """Ask the aggregator of a federation for its terms; return what is wrong with it, or None.

    Raises StoreError for a certificate or token in `directory` that cannot be used.
    """
    found = ask_terms(connect(directory, aggregator), federation.timeout_seconds)
    if isinstance(found, str):
        return found
    terms = found.terms
    if terms.sigma != aggregator.sigma or terms.classes != len(federation.classes):
        return (
            f"σ = {terms.sigma:g} and {terms.classes} classes there, σ = {aggregator.sigma:g} "
            f"and {len(federation.classes)} in the federation"
        )
    unknown = {owner.name for owner in federation.owners} - set(terms.owners)
    return f"it does not know {', '.join(sorted(unknown)[:5])}" if unknown else None


def reach(directory: Path) -> Reached:
    """Ask every party of a federation, as `probe` and `probe_aggregator` do. Raises StoreError."""
    from terrine_addons.federation.federations import load_federation

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
    if federation.aggregator is not None:
        unlike = probe_aggregator(directory, federation, federation.aggregator)
        answers.append(
            {
                "owner": federation.aggregator.name,
                "model": "",
                "at": federation.aggregator.url,
                "answers": "yes" if unlike is None else unlike,
            }
        )
        if unlike is not None:
            wrong = f"The aggregator is not as the federation says: {unlike}."
    return Reached(answers, wrong)


def sums_are_consistent(sums: NDArray[np.uint32], owners: int, sigma: float) -> bool:
    """Whether each row of sums adds up to the owners, except for the aggregator's noise.

    Each of m draws is σ²-subgaussian (Canonne, Kamath & Steinke 2020), so their sum exceeds the
    tolerance with a probability of at most `FALSE_ALARM_PROBABILITY`. What the honest voted for has
    no part in it.
    """
    tolerance = ceil(sigma * sqrt(2 * sums.shape[1] * ln(2 / FALSE_ALARM_PROBABILITY)))
    totals = sums.sum(axis=1, dtype=np.uint32) - np.uint32(owners)
    return bool((np.abs(totals.view(np.int32).astype(np.int64)) <= tolerance).all())


def remote_voters(settings: Settings) -> RemoteVoters:
    """Return who votes for ensembles whose owners say how they voted."""
    return RemoteVoters(settings.data_dir)


def make_shared_voters(settings: Settings) -> SharedVoters:
    """Return who votes for ensembles whose owners split their votes between two servers."""
    return SharedVoters(settings.data_dir)
