"""Around every request: an id, a seat, limits on the body, a log line, metrics, no tracebacks.

The log line has the route, status and duration, the id of the token, the numbers of the charges
that a request to label paid, and the type of the problem if there was one. It never has paths,
query strings, bodies, or texts of unexpected exceptions, which may quote them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from terrine_server.api.connection import CONNECTION, Connection
from terrine_server.api.problems import Answer, problem
from terrine_server.api.seats import Seat, Seats, Share
from terrine_server.api.services import PRINCIPAL, Check, checked
from terrine_server.errors import DatabaseUnavailable, TerrineError
from terrine_server.logs import frames
from terrine_server.metrics import Metrics
from terrine_server.owner.tokens import Principal
from terrine_server.settings import Settings

log = structlog.get_logger("terrine")

SMALL_BODY = 64 * 1024
"""Maximum bytes of a body, except for `POST /label`."""
SINGLE = (
    *(b"authorization", b"content-type", b"content-encoding", b"idempotency-key"),
    *(b"cookie", b"origin"),
)
"""Headers that may appear only once: of two, a proxy might use one and we the other."""
ALIVE = "/healthz"
"""Answered without a seat, so also when all are taken."""
LINGER = 5.0
"""Maximum seconds for reading and discarding the rest of a refused body."""
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""An `X-Request-Id` of this form is kept; any other is replaced."""


Authenticate = Callable[[str, Mapping[bytes, bytes]], Check | Principal | None]
"""From a path and headers: who asks, or how to find out; None if nobody says."""


class Envelope:
    """ASGI middleware around all routes."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        settings: Settings,
        authenticate: Authenticate,
        answer: Answer = problem,
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.settings = settings
        self.authenticate = authenticate
        self.answer = answer
        self.seats = Seats(settings)
        self.held = 0
        """Bytes received in the bodies of all requests that are still being handled."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id", b""))
        scope.setdefault("state", {})["request_id"] = request_id
        connection: Connection | None = scope["state"].get(CONNECTION)
        seat = Seat() if connection is None else connection.seat
        status = 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", request_id.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    *self._allowance(scope["state"].get("left")),
                ]
                if not any(name == b"cache-control" for name, _ in message["headers"]):
                    message["headers"] = [*message["headers"], (b"cache-control", b"no-store")]
                if connection is not None and connection.stopping:
                    message["headers"] = [*message["headers"], CLOSE]
            await send(message)

        if connection is not None:
            connection.begin()
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._limited(scope, headers, seat, receive, send_named)
            except ClientDisconnect:
                status = status or 499
            except asyncio.CancelledError:
                scope["state"]["problem"] = "overloaded"
                if status:
                    raise
                response = self.answer(request_id, scope["path"], *STOPPED)
                await response(scope, receive, send_named)
            except Exception as error:  # a defect anywhere: no traceback may reach the client
                log.error(
                    "defect", exception=type(error).__name__, where=frames(error.__traceback__)
                )
                scope["state"]["problem"] = "internal"
                if status:
                    # Part of the response was sent: only closing the connection tells the client.
                    raise RuntimeError("response aborted; the log names the bug") from None
                response = self.answer(request_id, scope["path"], *DEFECT)
                await response(scope, receive, send_named)
            finally:
                if connection is None:
                    seat.leave()
                else:
                    connection.finish()
                self._record(scope, status, time.perf_counter() - started)

    def _allowance(self, left: int | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield what the caller's token may still ask (draft-ietf-httpapi-ratelimit-headers)."""
        if left is not None:
            limit = self.settings.requests_per_minute
            yield b"ratelimit-policy", f'"requests";q={limit};w=60'.encode()
            yield b"ratelimit", f'"requests";r={left}'.encode()

    async def _no_seat(
        self, scope: Scope, headers: Mapping[bytes, bytes], seat: Seat
    ) -> Refusal | None:
        """Check the token, before any of the body, and take a seat; or return a refusal.

        The routes find the token's principal in the state, or why there is none.
        """
        if scope["path"] == ALIVE:
            return None
        address = scope["client"][0] if scope.get("client") else ""
        caller = self.authenticate(scope["path"], headers)
        found: Principal | TerrineError | None = None
        if caller is not None:
            full = seat.claim(self.seats, address)
            if full is not None:
                return _full(full)
            found = await checked(caller) if callable(caller) else caller
            scope["state"][PRINCIPAL] = found
        if isinstance(found, Principal):
            full = seat.of_token(self.seats, found.token_id)
        elif isinstance(found, DatabaseUnavailable):  # many students at once, who are no strangers
            full = seat.of_unchecked(self.seats, address)
        else:
            full = seat.of_stranger(self.seats, address)
        return None if full is None else _full(full)

    async def _limited(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        seat: Seat,
        receive: Receive,
        send: Send,
    ) -> None:
        """Run the app, limiting the body's size and duration whatever its Content-Length says."""
        settings = self.settings
        limit = settings.max_body_bytes if scope["path"] == "/label" else SMALL_BODY
        body = _Body(receive, headers, limit, settings.body_seconds)
        refusal, held = _refusal(scope, headers, limit), 0
        if refusal is None:
            refusal = await self._no_seat(scope, headers, seat)

        async def respond(message: Message) -> None:
            await body.before_the_end(message, send)

        async def receive_limited() -> Message:
            nonlocal refusal, held
            try:
                message = await body.receive()
            except TimeoutError:
                refusal = Refusal(
                    "request-timeout",
                    f"The body was not complete within {settings.body_seconds} s. "
                    "Nothing was charged. Send less at once.",
                )
                raise ClientDisconnect from None
            if body.received > limit:
                refusal = _too_large(limit)
                raise ClientDisconnect
            size = len(message.get("body", b""))
            held, self.held = held + size, self.held + size
            if settings.max_held_bytes < self.held != held:
                refusal = Refusal(
                    "overloaded", "Too many bytes are being received at once. Nothing was charged."
                )
                raise ClientDisconnect
            return message

        async def respond_unless_refused(message: Message) -> None:
            if refusal is None:
                await respond(message)

        if refusal is None:
            try:
                await self._routed(scope, receive_limited, respond_unless_refused)
            except ClientDisconnect:
                if refusal is None:
                    raise
            finally:
                self.held -= held
        if refusal is not None:
            scope["state"]["problem"] = refusal.slug
            response = self.answer(scope["state"]["request_id"], scope["path"], *refusal)
            await response(scope, receive, respond)

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app; HEAD as GET, whose body the server leaves out (RFC 9110, section 9.3.2)."""
        if scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        inner = {**scope, "method": "GET"}
        try:
            await self.app(inner, receive, send)
        finally:
            scope.update((name, inner[name]) for name in ("route",) if name in inner)

    def _record(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "(none)")
        method = scope["method"] if scope["method"] in METHODS else "(other)"
        self.metrics.requests(method, route, str(status)).inc()
        self.metrics.seconds(method, route).observe(seconds)
        fields: dict[str, Any] = {"status": status, "seconds": round(seconds, 4)}
        caller, charges = (scope["state"].get(name) for name in (PRINCIPAL, "charges"))
        if isinstance(caller, Principal):
            fields["token"] = caller.token_id
        if charges is not None:
            fields["charges"] = "{}-{}".format(*charges)
        slug = scope["state"].get("problem")
        if slug is not None:
            self.metrics.problems(slug).inc()
            fields["problem"] = slug
        probe = route == ALIVE and status == 200  # a proxy asks every second
        (log.debug if probe else log.info)("request", method=method, route=route, **fields)


class Refusal(NamedTuple):
    """The problem that the envelope answers a request with."""

    slug: str
    detail: str
    extras: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}


DEFECT = Refusal(
    "internal",
    "A bug in the server; the request was not answered. "
    "The server's log has the details under this request id.",
)
CLOSE = (b"connection", b"close")
CLOSING = {"Connection": "close"}
STOPPED = Refusal(
    "overloaded",
    "The server is stopping, and does not know whether this was answered. "
    "Retry with the same Idempotency-Key.",
    headers=CLOSING,
)


def _refusal(scope: Scope, headers: Mapping[bytes, bytes], limit: int) -> Refusal | None:
    """Return the refusal of a request by its head alone, or None."""
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
    if scope["path"].endswith("\n"):
        # Routes are matched with `$`, which accepts a final newline; a proxy's rules do not.
        return Refusal("not-found", "There is nothing at a path that ends in a newline.")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        return Refusal(
            "unsupported-media-type",
            "Compressed bodies (Content-Encoding) are not accepted. Use .npz to send less.",
        )
    names = [name for name, _ in scope["headers"]]
    for name in SINGLE:
        if names.count(name) > 1:
            return Refusal("invalid-request", f"The header {name.decode()} was sent twice.")
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length[:20]) > limit:
        return _too_large(limit)
    return None


def _full(share: Share) -> Refusal:
    return Refusal("overloaded", f"{share} Nothing was charged.", headers=CLOSING)


def _too_large(limit: int) -> Refusal:
    return Refusal(
        "payload-too-large",
        f"The body is larger than {limit} bytes. Split the request.",
        {"limit": limit},
    )


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

    async def before_the_end(self, message: Message, send: Send) -> None:
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
            async with asyncio.timeout(LINGER):
                while not self.ended and self.received <= most:
                    await self.receive()


METHODS = {"GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "PUT"}


def _request_id(offered: bytes) -> str:
    text = offered.decode("latin-1")
    return text if REQUEST_ID.fullmatch(text) else uuid4().hex
