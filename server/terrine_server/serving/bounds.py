"""Limits of every request: a slot, a body that is neither too long nor too slow, and memory.

Who asks is known before any of the body is read. No client's bodies can take all of the memory for
bodies, just as no client's requests can take all slots.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

import h11
from anyio import CapacityLimiter, to_thread
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from terrine_server.serving import Limits

T = TypeVar("T")


class PerTokenThreads:
    """Runs functions of many tokens in threads, one at a time for each token.

    A token with a thousand to run has one of the threads, or one place among those that wait for
    one. Belongs to one event loop.
    """

    def __init__(self, most: int) -> None:
        self._limiter = CapacityLimiter(most)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, token_id: str, function: Callable[..., T], *given: object) -> T:
        """Return what the function returns, or raise what it raises. It sees the caller's context.

        If the caller is cancelled, a function that has begun still runs to its end, and the token's
        next one waits for it: to hang up gains nobody a second thread.
        """
        lock = self._locks.get(token_id)
        if lock is None:
            lock = self._locks[token_id] = asyncio.Lock()
        async with lock:
            work = asyncio.ensure_future(
                to_thread.run_sync(function, *given, limiter=self._limiter)
            )
            try:
                return await asyncio.shield(work)
            finally:
                await asyncio.wait([work])

    async def stream(self, token_id: str, parts: Iterator[T]) -> AsyncIterator[T]:
        """Yield the parts, each of which is made as by `run`: others have their turn between."""
        end = object()
        while True:
            # A task of its own: who streams cancels again and again, and `run` waits for its end.
            making = asyncio.ensure_future(self.run(token_id, next, parts, end))
            if (part := await asyncio.shield(making)) is end:
                return
            yield cast(T, part)


def limits_for(callers: int) -> Limits:
    """Return the limits of a server with so many callers, each with several requests at a time."""
    return Limits(
        connections=2 * callers + 64,
        held_bytes=2**28,
        keep_alive_seconds=40,  # longer than those who ask keep an idle connection
        body_seconds=30,
        write_seconds=30,
        shutdown_seconds=1,  # peers keep connections open that they do not read from
    )


NETWORK_BITS = 64
"""Whoever has one IPv6 address usually has all of the same first 64 bits."""


class Share(StrEnum):
    """What is shared out, as the refusal of one more request says it."""

    ALL = "Too many clients are connected."
    UNAUTHENTICATED = "Too many clients without a valid token are connected."
    ADDRESS = "Too many clients without a valid token are connected from this address."
    CLAIM = "Too many tokens from this address are being checked."
    TOKEN = "Too many requests with this token are in progress."  # noqa: S105 - not a password


class ConcurrencyLimit:
    """The slots of one process, counted by share. Belongs to one event loop."""

    def __init__(self, limits: Limits) -> None:
        per_token = limits.per_token or max(1, limits.connections // 2)
        self.limits = {
            Share.ALL: limits.connections,
            Share.UNAUTHENTICATED: max(1, limits.connections // 2),
            Share.ADDRESS: max(1, limits.connections // 4),
            Share.CLAIM: per_token,
            Share.TOKEN: per_token,
        }
        self.taken: Counter[tuple[Share, str]] = Counter()

    def is_full(self, share: Share, owner: str) -> bool:
        """Whether this share of this owner has no slot left.

        A token whose limit is t of n slots takes at most t/n of those that others leave, so k of
        them leave (1 - t/n)^k. So switches share a buffer (Choudhury and Hahne 1998, "Dynamic queue
        length thresholds").
        """
        most, taken = self.limits[share], self.taken[share, owner]
        if share is not Share.TOKEN:
            return taken >= most
        slots = self.limits[Share.ALL]
        left = slots - self.taken[Share.ALL, ""] + taken
        return taken * slots >= most * left


CLOSING = {"Connection": "close"}


class Refusal(NamedTuple):
    """Why a request is not handled: the type of the problem, and what else is said of it."""

    slug: str
    detail: str
    extras: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}


class Slot:
    """The slot of a connection, which has at most one request in progress.

    `owner`: an address or a token's id, whichever is known of the client.
    """

    def __init__(self) -> None:
        self.owner = ""
        self._slots: ConcurrencyLimit | None = None
        self._held: tuple[tuple[Share, str], ...] = ()

    @property
    def taken(self) -> bool:
        """Whether a request has it."""
        return (Share.ALL, "") in self._held

    def claim(self, slots: ConcurrencyLimit, address: str) -> Refusal | None:
        """Count a token that is being checked; it does not take the slot yet.

        Returns a refusal if a share is full; then it counts nowhere. So do the others.
        """
        return self._count(slots, (Share.CLAIM, client_network(address)))

    def take_unauthenticated(self, slots: ConcurrencyLimit, address: str) -> Refusal | None:
        """Take it for a request without a valid token."""
        shares = (
            (Share.ALL, ""),
            (Share.UNAUTHENTICATED, ""),
            (Share.ADDRESS, client_network(address)),
        )
        return self._count(slots, *shares)

    def take_unchecked(self, slots: ConcurrencyLimit, address: str) -> Refusal | None:
        """Take it for a request whose token nobody can check now; it still counts as a claim."""
        return self._count(slots, (Share.ALL, ""), (Share.CLAIM, client_network(address)))

    def take_for_token(self, slots: ConcurrencyLimit, token_id: str) -> Refusal | None:
        """Take it for a request with a valid token, wherever it comes from."""
        return self._count(slots, (Share.ALL, ""), (Share.TOKEN, token_id))

    def leave(self) -> None:
        """Give the slot back."""
        for share in self._held:
            assert self._slots is not None  # noqa: S101 - it has been taken
            self._slots.taken[share] -= 1
            if not self._slots.taken[share]:
                del self._slots.taken[share]
        self._held = ()

    def _count(self, slots: ConcurrencyLimit, *shares: tuple[Share, str]) -> Refusal | None:
        self.leave()
        self.owner = shares[-1][1]
        for share in shares:
            if slots.is_full(*share):
                return Refusal("overloaded", share[0], headers=CLOSING)
        self._slots, self._held = slots, shares
        slots.taken.update(shares)
        return None


def client_network(address: str) -> str:
    """Return the address that is counted for a client: of IPv6, the network of 64 bits."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> NETWORK_BITS << NETWORK_BITS))


CONNECTION = "connection"
"""In the state of requests: the `Connection` that they came on."""
SPARE_CONNECTIONS = 32
"""Connections beyond those of the limits, for refusals and for `/healthz`."""
BACKLOG = 128
"""Connections that the system queues, and that are accepted before any is looked at."""
MIN_READ_BYTES = 64 * 1024
"""Bytes that a client must read within `write_seconds`, unless it reads all there are."""


class Connection(H11Protocol):
    """One client's connection. h11 limits the size of a request's headers."""

    def __init__(self, *given: Any, write_seconds: float = 30, **more: Any) -> None:
        super().__init__(*given, **more)
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._write_seconds = write_seconds
        self._headers_due: asyncio.TimerHandle | None = None
        self._read_due: asyncio.TimerHandle | None = None
        self._handling = False
        self._since = self.loop.time()
        self.lost = False
        """Whether the client has closed it."""
        self.slot = Slot()
        self.stopping = False
        self.app_state = {**self.app_state, CONNECTION: self}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request."""
        super().connection_made(transport)
        own: socket.socket = transport.get_extra_info("socket")
        # asyncio leaves Nagle's algorithm on for sockets that it did not make: the second segment
        # of a response would wait 40 ms for the first to be acknowledged.
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Otherwise the system takes megabytes from us before we notice that nobody reads them.
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MIN_READ_BYTES)
        # pause_writing: something could not be sent yet. With 0, TLS pauses when nothing waits.
        transport.set_write_buffer_limits(high=1, low=0)
        self.slot.owner = client_network(self.client[0]) if self.client else ""
        if self._most is not None and len(self.connections) > self._most + SPARE_CONNECTIONS:
            self._evict_idle(self._most + SPARE_CONNECTIONS)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self.lost = True
        super().connection_lost(exc)
        self._stop_waiting()
        self._stop_expecting_reading()
        if not self._handling:
            self.slot.leave()

    def data_received(self, data: bytes) -> None:
        """Process bytes; keep waiting while a request's headers are incomplete."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._expect_headers()
        else:
            self._stop_waiting()

    def pause_writing(self) -> None:
        """Something could not be sent yet: expect the client to read."""
        super().pause_writing()
        if self._read_due is None:
            self._expect_reading()

    def resume_writing(self) -> None:
        """Everything is sent."""
        super().resume_writing()
        self._stop_expecting_reading()
        self._finish_if_sent()

    def shutdown(self) -> None:
        """Close once the request in progress, if there is one, is answered."""
        self.stopping = True
        super().shutdown()

    def begin(self) -> None:
        """Note that a request is being handled."""
        self._handling = True

    def finish(self) -> None:
        """Note that it has been handled. Its slot is free once all of its response is sent."""
        self._handling, self._since = False, self.loop.time()
        self._finish_if_sent()

    def send_400_response(self, msg: str) -> None:
        """Respond to malformed HTTP as the app's `state.malformed` says, and close."""
        app: Any = self.app
        while not hasattr(app, "state"):  # uvicorn's own middleware is around it
            app = app.app
        response: Response = getattr(app.state, "malformed", _malformed)()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(
                    status_code=response.status_code,
                    headers=[*response.raw_headers, (b"connection", b"close")],
                    reason=b"Bad Request",
                ),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def _evict_idle(self, most: int) -> None:
        """Close a connection without a request: the oldest of whoever has most of them."""
        others = [other for other in self.connections if not other.transport.is_closing()]
        if len(others) <= most:
            return
        free = [
            other
            for other in others
            if isinstance(other, Connection) and other is not self and not other.slot.taken
        ]
        of = Counter(other.slot.owner for other in free)
        first = min(free, key=lambda other: (-of[other.slot.owner], other._since), default=self)
        first.transport.abort()

    def _expect_headers(self) -> None:
        if self._headers_due is None and not self.transport.is_closing():
            self._headers_due = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _expect_reading(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._read_due = self.loop.call_later(self._write_seconds, self._check_reading, unsent)

    def _stop_expecting_reading(self) -> None:
        if self._read_due is not None:
            self._read_due.cancel()
            self._read_due = None

    def _check_reading(self, unsent: int) -> None:
        if unsent - self.transport.get_write_buffer_size() < MIN_READ_BYTES:
            self.transport.abort()
        else:
            self._expect_reading()

    def _finish_if_sent(self) -> None:
        sent = self.transport.is_closing() or not self.transport.get_write_buffer_size()
        if sent and not self._handling:
            self.slot.leave()


@contextmanager
def request_slot(scope: Scope) -> Iterator[Slot]:
    """Yield the slot of the connection that a request came on, while the request is handled."""
    connection: Connection | None = scope.get("state", {}).get(CONNECTION)
    if connection is None:
        slot = Slot()
        try:
            yield slot
        finally:
            slot.leave()
    else:
        connection.begin()
        try:
            yield connection.slot
        finally:
            connection.finish()


def client_check(scope: Scope) -> Callable[[], None]:
    """Return a function that raises ClientDisconnect once the client of a request has hung up.

    Any thread may call it.
    """
    connection: Connection | None = scope.get("state", {}).get(CONNECTION)

    def check() -> None:
        if connection is not None and connection.lost:
            raise ClientDisconnect

    return check


def _malformed() -> Response:
    return JSONResponse({"error": "This is not an HTTP request that can be read."}, status_code=400)


def uvicorn_options(limits: Limits, proxies: str = "") -> dict[str, Any]:
    """Return the options of `uvicorn.Config` with which connections keep the limits.

    `proxies`: addresses of those who may say from which address a request comes.
    """
    return {
        "http": partial(Connection, write_seconds=limits.write_seconds),
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": bool(proxies),
        "forwarded_allow_ips": proxies or None,
        "limit_concurrency": limits.connections,
        "backlog": BACKLOG,
        "timeout_keep_alive": limits.keep_alive_seconds,
        "timeout_graceful_shutdown": limits.shutdown_seconds,
    }


MAX_DRAIN_SECONDS = 5.0
"""Maximum seconds for reading and discarding the rest of a refused body."""
SLOWED_STATUSES = {401, 413, 429}
"""Refusals that cost their caller nothing to repeat, and this server the time of others."""
REFUSAL_SECONDS = 0.1
"""How long each of these takes: a connection gets ten of them a second, and no more."""


RETRY_SECONDS = 2
"""`Retry-After` where the server has no better estimate."""
STATUS_OF_PROBLEM = {
    "malformed-http": 400,
    "unauthorized": 401,
    "request-timeout": 408,
    "payload-too-large": 413,
    "overloaded": 503,
}


class RequestLimits:
    """The limits of all requests of one process. Belongs to one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.slots = ConcurrencyLimit(limits)
        self._held: Counter[str] = Counter()
        """Bytes received in the bodies of requests that are still being handled, by owner."""

    async def run(
        self,
        app: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        slot: Slot,
        most: int,
        admit: Callable[[], Awaitable[Refusal | None]],
        answer: Callable[[Refusal], ASGIApp],
    ) -> None:
        """Run the app, or answer with a refusal: of its head, by `admit`, or of its body.

        `admit` takes the `slot`, or says why not. `most`: bytes of the body, whatever its
        Content-Length says.
        """
        headers = dict(scope["headers"])
        body = _Body(receive, headers, most, self.limits.body_seconds)
        refusal, owner, held = _refusal(scope, headers, most), "", 0
        if refusal is None:
            refusal, owner = await admit(), slot.owner

        async def respond(message: Message) -> None:
            if message.get("status") in SLOWED_STATUSES:
                await asyncio.sleep(REFUSAL_SECONDS)
            await body.send_after_draining(message, send)

        async def receive_limited() -> Message:
            nonlocal refusal, held
            try:
                message = await body.receive()
            except TimeoutError:
                refusal = Refusal(
                    "request-timeout",
                    f"The body was not complete within {self.limits.body_seconds:g} s. "
                    "Send less at once.",
                )
                raise ClientDisconnect from None
            if body.received > most:
                refusal = body_too_large(most)
                raise ClientDisconnect
            size = len(message.get("body", b""))
            held += size
            self._held[owner] += size
            if self._holds_too_much(owner, held):
                refusal = Refusal("overloaded", "Too many bytes are being received at once.")
                raise ClientDisconnect
            return message

        async def respond_unless_refused(message: Message) -> None:
            if refusal is None:
                await respond(message)

        if refusal is None:
            try:
                await app(scope, receive_limited, respond_unless_refused)
            except ClientDisconnect:
                if refusal is None:
                    raise
            finally:
                self._held[owner] -= held
                if not self._held[owner]:
                    del self._held[owner]
        if refusal is not None:
            await answer(refusal)(scope, receive, respond)

    def _holds_too_much(self, owner: str, held: int) -> bool:
        """Whether an owner holds more than half of the bytes that others leave.

        A request that is alone may have any size, since nobody else is kept waiting by it.
        """
        total, own = self._held.total(), self._held[owner]
        return 2 * own > self.limits.held_bytes - (total - own) and held < total


class Guard:
    """ASGI middleware: the limits of a server whose callers are few and known by their tokens."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        most: int,
        caller: Callable[[Mapping[bytes, bytes]], str | None],
    ) -> None:
        """`most`: bytes of a body. `caller`: from a request's headers to who asks, if known."""
        self._app = app
        self._limits = RequestLimits(limits)
        self._most = most
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller = self._caller(dict(scope["headers"]))
        address = scope["client"][0] if scope.get("client") else ""
        with request_slot(scope) as slot:

            async def admit() -> Refusal | None:
                if caller is not None:
                    return slot.take_for_token(self._limits.slots, caller)
                return slot.take_unauthenticated(self._limits.slots, address)

            with suppress(ClientDisconnect):  # nobody is there to be told
                await self._limits.run(
                    self._app,
                    scope,
                    receive,
                    send,
                    slot=slot,
                    most=self._most,
                    admit=admit,
                    answer=_render_short,
                )


def _render_short(refusal: Refusal) -> ASGIApp:
    status, headers = STATUS_OF_PROBLEM[refusal.slug], dict(refusal.headers)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_SECONDS)
    return JSONResponse({"error": refusal.detail}, status, headers)


def body_too_large(most: int) -> Refusal:
    """Return the refusal of a body that has more bytes."""
    return Refusal(
        "payload-too-large",
        f"The body is larger than {most} bytes. Split the request.",
        {"limit": most},
    )


def _refusal(scope: Scope, headers: Mapping[bytes, bytes], most: int) -> Refusal | None:
    """Return the refusal of a request by how its head frames the body, or None."""
    if scope["http_version"] not in ("1.0", "1.1"):
        return Refusal("malformed-http", "Only HTTP/1.0 and HTTP/1.1 are spoken here.")
    if b"transfer-encoding" in headers and (
        b"content-length" in headers or scope["http_version"] == "1.0"
    ):
        # A proxy could see a different end of the body than we do (RFC 9112, 6.1 and 6.3).
        return Refusal(
            "malformed-http",
            "Transfer-Encoding requires HTTP/1.1, and excludes Content-Length.",
        )
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length[:20]) > most:
        return body_too_large(most)
    return None


class _Body:
    """A request's body: counted, timed, and read to its end before the response ends.

    Closing a socket with unread bytes resets it, and a reset discards what the client has not read
    yet: the response that says why. So a response that is sent before the body's end announces the
    close and then reads on (RFC 9112, section 9.6), at most as many bytes again as the limit.
    """

    def __init__(
        self, receive: Receive, headers: Mapping[bytes, bytes], limit: int, seconds: float
    ) -> None:
        self._receive = receive
        self._limit = limit
        self._due = asyncio.get_running_loop().time() + seconds
        self.received = 0
        self.ended = (
            headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
        )

    async def receive(self) -> Message:
        """Return the next message and count its bytes. Raises `TimeoutError` if it is late."""
        async with asyncio.timeout_at(None if self.ended else self._due):
            message = await self._receive()
        self.received += len(message.get("body", b""))
        self.ended = self.ended or not message.get("more_body", False)
        return message

    async def send_after_draining(self, message: Message, send: Send) -> None:
        """Send a message of the response; before the last one, read the rest of the body."""
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not self.ended and message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        if not self.ended and last:
            await send({**message, "more_body": True})
            await self._discard()
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    async def _discard(self) -> None:
        most = self.received + self._limit
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_DRAIN_SECONDS):
                while not self.ended and self.received <= most:
                    await self.receive()
