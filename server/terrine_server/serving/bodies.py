"""Bodies of requests: neither too long nor too slow, and none takes all the memory for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from terrine_server.serving import Limits
from terrine_server.serving.connections import request_slot
from terrine_server.serving.refusals import (
    OTHER_HTTP,
    TOO_MANY_BYTES,
    TWO_LENGTHS,
    Refusal,
    body_too_large,
    body_too_late,
    refuse_full,
    render_short,
)
from terrine_server.serving.slots import ConcurrencyLimit

# Maximum seconds for reading and discarding the rest of a refused body.
MAX_DRAIN_SECONDS = 5.0
# Refusals that cost their caller nothing to repeat, and this server the time of others.
SLOWED_STATUSES = {401, 413, 429}
# How long each of these takes: a connection gets ten of them a second, and no more.
REFUSAL_SECONDS = 0.1


class HeldBytes:
    """Bytes received in the bodies of requests that are still being handled, by owner."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()

    def add(self, owner: str, size: int, held: int) -> bool:
        """Count bytes of a request that holds so many in all; return whether that is too much.

        An owner may hold half of what others leave. A request that is alone may have any size,
        since nobody else is kept waiting by it.
        """
        self._held[owner] += size
        total, own = self._held.total(), self._held[owner]
        return 2 * own > self._most - (total - own) and held < total

    def free(self, owner: str, size: int) -> None:
        """Stop counting what a request held."""
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]


class LimitedExchange:
    """One request and its response: the body is counted, timed, and read to its end.

    Closing a socket with unread bytes resets it, and a reset discards what the client has not read
    yet: the response that says why. So a response that is sent before the body's end announces the
    close and then reads on (RFC 9112, section 9.6), at most as many bytes again as the limit.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, most: int, seconds: float
    ) -> None:
        """`most`: bytes of the body, whatever its Content-Length says."""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._most = most
        self._seconds = seconds
        self._due = asyncio.get_running_loop().time() + seconds
        self._received = 0
        self._headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self._ended = (
            self._headers.get(b"content-length", b"0") == b"0"
            and b"transfer-encoding" not in self._headers
        )

    def refuse_framing(self) -> Refusal | None:
        """Return the refusal of a request by how its head frames the body, or None."""
        if self._scope["http_version"] not in ("1.0", "1.1"):
            return OTHER_HTTP
        if b"transfer-encoding" in self._headers and (
            b"content-length" in self._headers or self._scope["http_version"] == "1.0"
        ):
            # A proxy could see a different end of the body than we do (RFC 9112, 6.1 and 6.3).
            return TWO_LENGTHS
        length = self._headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self._most:
            return body_too_large(self._most)
        return None

    async def run(self, app: ASGIApp, bytes_of_all: HeldBytes, owner: str) -> Refusal | None:
        """Run the app; return the refusal of its body, if there is one: nothing was sent then."""
        refusal, held = None, 0

        async def receive() -> Message:
            nonlocal refusal, held
            try:
                message = await self._read()
            except TimeoutError:
                refusal = body_too_late(self._seconds)
                raise ClientDisconnect from None
            if self._received > self._most:
                refusal = body_too_large(self._most)
                raise ClientDisconnect
            size = len(message.get("body", b""))
            held += size
            if bytes_of_all.add(owner, size, held):
                refusal = TOO_MANY_BYTES
                raise ClientDisconnect
            return message

        async def send(message: Message) -> None:
            if refusal is None:
                await self.send(message)

        try:
            await app(self._scope, receive, send)
        except ClientDisconnect:
            if refusal is None:
                raise
        finally:
            bytes_of_all.free(owner, held)
        return refusal

    async def answer(self, app: ASGIApp) -> None:
        """Send what a refusal says."""
        await app(self._scope, self._receive, self.send)

    async def send(self, message: Message) -> None:
        """Send a message of the response; before the last one, read the rest of the body."""
        if message.get("status") in SLOWED_STATUSES:
            await asyncio.sleep(REFUSAL_SECONDS)
        if not self._ended and message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not self._ended and last:
            await self._send({**message, "more_body": True})
            await self._discard()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _read(self) -> Message:
        """Return the next message and count its bytes. Raises `TimeoutError` if it is late."""
        async with asyncio.timeout_at(None if self._ended else self._due):
            message = await self._receive()
        self._received += len(message.get("body", b""))
        self._ended = self._ended or not message.get("more_body", False)
        return message

    async def _discard(self) -> None:
        most = self._received + self._most
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_DRAIN_SECONDS):
                while not self._ended and self._received <= most:
                    await self._read()


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
        self._seconds = limits.body_seconds
        self._slots = ConcurrencyLimit(limits)
        self._held = HeldBytes(limits.held_bytes)
        self._most = most
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller = self._caller(dict(scope["headers"]))
        address = scope["client"][0] if scope.get("client") else ""
        with request_slot(scope) as slot, suppress(ClientDisconnect):  # nobody is there to be told
            exchange = LimitedExchange(scope, receive, send, most=self._most, seconds=self._seconds)
            refusal = exchange.refuse_framing()
            if refusal is None:
                refusal = refuse_full(
                    slot.take_unauthenticated(self._slots, address)
                    if caller is None
                    else slot.take_for_token(self._slots, caller)
                )
            if refusal is None:
                refusal = await exchange.run(self._app, self._held, slot.owner)
            if refusal is not None:
                await exchange.answer(render_short(refusal))


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
