"""Bounds of every request: a slot, a body that is neither too long nor too slow, and memory.

Who asks is known before any of the body is read. Nobody's bodies can take all of the memory that
there is for bodies, as nobody's requests can take all slots.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from terrine_server.serving.concurrency import ConcurrencyLimit, Share, Slot
from terrine_server.serving.connection import CONNECTION, Connection
from terrine_server.serving.limits import Limits

LINGER = 5.0
"""Maximum seconds for reading and discarding the rest of a refused body."""
CLOSING = {"Connection": "close"}
REPEATED = {401, 413, 429}
"""Refusals that cost their caller nothing to repeat, and this server the time of others."""
REFUSAL_SECONDS = 0.1
"""How long each of these takes: a connection gets ten of them a second, and no more."""


class Refusal(NamedTuple):
    """Why a request is not handled: the type of the problem, and what else is said of it."""

    slug: str
    detail: str
    extras: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}


STATUS = {
    "malformed-http": 400,
    "unauthorized": 401,
    "request-timeout": 408,
    "payload-too-large": 413,
    "overloaded": 503,
}


class Bounds:
    """The bounds of one process. Belongs to one event loop."""

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
            if message.get("status") in REPEATED:
                await asyncio.sleep(REFUSAL_SECONDS)
            await body.before_the_end(message, send)

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
                refusal = too_large(most)
                raise ClientDisconnect
            size = len(message.get("body", b""))
            held += size
            self._held[owner] += size
            if self._too_much(owner, held):
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

    def _too_much(self, owner: str, held: int) -> bool:
        """Whether an owner holds more than half of the bytes that others leave.

        A request that is alone may have any size, since nobody else is kept waiting by it.
        """
        total, own = self._held.total(), self._held[owner]
        return 2 * own > self.limits.held_bytes - (total - own) and held < total


class Guard:
    """ASGI middleware: the bounds of a server whose callers are few and known by their tokens."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        most: int,
        caller: Callable[[Mapping[bytes, bytes]], str | None],
    ) -> None:
        """`most`: bytes of a body. `caller`: from a request's headers to who asks, if known."""
        self._app = app
        self._bounds = Bounds(limits)
        self._most = most
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection: Connection | None = scope.get("state", {}).get(CONNECTION)
        slot = Slot() if connection is None else connection.slot
        caller = self._caller(dict(scope["headers"]))
        address = scope["client"][0] if scope.get("client") else ""

        async def admit() -> Refusal | None:
            if caller is not None:
                return full(slot.of_token(self._bounds.slots, caller))
            return full(slot.of_unauthenticated(self._bounds.slots, address))

        if connection is not None:
            connection.begin()
        try:
            await self._bounds.run(
                self._app,
                scope,
                receive,
                send,
                slot=slot,
                most=self._most,
                admit=admit,
                answer=_short,
            )
        except ClientDisconnect:
            pass  # nobody is there to be told
        finally:
            if connection is None:
                slot.leave()
            else:
                connection.finish()


def _short(refusal: Refusal) -> ASGIApp:
    return JSONResponse({"error": refusal.detail}, STATUS[refusal.slug], dict(refusal.headers))


def full(share: Share | None) -> Refusal | None:
    """Return the refusal for a share that has no slot left."""
    return None if share is None else Refusal("overloaded", share, headers=CLOSING)


def too_large(most: int) -> Refusal:
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
        return too_large(most)
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
