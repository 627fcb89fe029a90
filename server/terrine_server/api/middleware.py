"""What surrounds every request: an id, a slot, body limits, a log line, metrics, no tracebacks.

The log line has the route, status and duration, the id of the token, the numbers of the charges
that a request to label paid, and the type of the problem if there was one. It never has paths,
query strings, bodies, or texts of unexpected exceptions, which may quote them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any
from uuid import uuid4

import structlog
from anyio import CapacityLimiter, to_thread
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from terrine_server.api.callers import PRINCIPAL_KEY, Check
from terrine_server.api.paths import LABEL_PATH, USED_UP_PATH, route_path
from terrine_server.api.problems import Answer, problem
from terrine_server.errors import DatabaseUnavailable, ServiceError
from terrine_server.logs import list_frames
from terrine_server.metrics import Metrics
from terrine_server.owner.sign_in import Principal
from terrine_server.serving.bodies import HeldBytes, LimitedExchange
from terrine_server.serving.connections import CONNECTION, Connection, request_slot
from terrine_server.serving.refusals import DEFECT, STOPPED, Refusal, refuse_full
from terrine_server.serving.slots import ConcurrencyLimit, Share, Slot
from terrine_server.settings import Settings

log = structlog.get_logger("terrine")

# How long a request without a valid token waits for each that is in progress, itself included: all
# strangers together get 200 answers a second, and students the rest of the time.
STRANGER_SECONDS = 0.005
# Maximum bytes of a body, except for `POST /label`.
SMALL_BODY_BYTES = 64 * 1024
# Headers that may appear only once: of two, a proxy might use one and we the other.
SINGLE_HEADERS = (
    b"authorization",
    b"content-type",
    b"content-encoding",
    b"cookie",
    b"origin",
)
# Answered without a slot, so also when all are taken.
ALIVE_PATH = "/healthz"
# Problems after which a student would wonder whether anything was charged.
PROBLEMS_THAT_CHARGE_NOTHING = {"overloaded", "request-timeout"}
# An `X-Request-Id` of this form is kept; any other is replaced.
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


# Tokens checked at a time. Routes use other threads.
_CHECKING = CapacityLimiter(16)

# From a path and headers to a check of who asks; None if the headers say nothing.
Authenticate = Callable[[str, Mapping[bytes, bytes]], Check | None]


class RequestMiddleware:
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
        self.slots = ConcurrencyLimit(settings.limits)
        self.held = HeldBytes(settings.limits.held_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        if self.settings.path_prefix:
            # A server's own `root_path` would be put before every path, which a proxy may pass on.
            scope["root_path"] = self.settings.path_prefix
        sent = dict(scope["headers"])
        offered = sent.get(b"x-request-id", b"").decode("latin-1")
        request_id = offered if REQUEST_ID.fullmatch(offered) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        connection: Connection | None = scope["state"].get(CONNECTION)
        status = 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [
                    *message["headers"],
                    (b"x-request-id", request_id.encode()),
                    (b"x-content-type-options", b"nosniff"),
                ]
                left = scope["state"].get("left")
                if left is not None:
                    # What the caller's token may still ask: draft-ietf-httpapi-ratelimit-headers.
                    limit = self.settings.requests_per_minute
                    headers.append((b"ratelimit-policy", f'"requests";q={limit};w=60'.encode()))
                    headers.append((b"ratelimit", f'"requests";r={left}'.encode()))
                if b"cache-control" not in dict(headers):
                    headers.append((b"cache-control", b"no-store"))
                if connection is not None and connection.stopping:
                    headers.append(CLOSE)
                message["headers"] = headers
            await send(message)

        with (
            structlog.contextvars.bound_contextvars(request_id=request_id),
            request_slot(scope) as slot,
        ):
            large = route_path(scope) in (LABEL_PATH, USED_UP_PATH)
            exchange = LimitedExchange(
                scope,
                receive,
                send_named,
                most=self.settings.max_body_bytes if large else SMALL_BODY_BYTES,
                seconds=self.settings.limits.body_seconds,
            )
            try:
                refusal = exchange.refuse_framing()
                if refusal is None:
                    refusal = await self._admit(scope, sent, slot)
                if refusal is None:
                    refusal = await exchange.run(self._run_routes, self.held, slot.owner)
                if refusal is not None:
                    await exchange.answer(self._refuse(scope, refusal))
            except ClientDisconnect:
                status = status or 499
            except asyncio.CancelledError:
                scope["state"]["problem"] = "overloaded"
                if status:
                    raise
                response = self.answer(scope, *STOPPED)
                await response(scope, receive, send_named)
            except Exception as error:  # a defect anywhere: no traceback may reach the client
                log.error(
                    "defect", exception=type(error).__name__, where=list_frames(error.__traceback__)
                )
                scope["state"]["problem"] = "internal"
                if status:
                    # Part of the response was sent: only closing the connection tells the client.
                    raise RuntimeError("response aborted; the log names the bug") from None
                response = self.answer(scope, *DEFECT)
                await response(scope, receive, send_named)
            finally:
                self._record(scope, status, time.perf_counter() - started)

    async def _admit(
        self, scope: Scope, headers: Mapping[bytes, bytes], slot: Slot
    ) -> Refusal | None:
        """Check the head and the token, before any of the body, and take a slot; or refuse.

        The routes find the token's principal in the state, or why there is none.
        """
        refusal = _refuse_head(scope, headers)
        if refusal is not None or route_path(scope) == ALIVE_PATH:
            return refusal
        address = scope["client"][0] if scope.get("client") else ""
        check = self.authenticate(route_path(scope), headers)
        found: Principal | ServiceError | None = None
        if check is not None:
            full = slot.claim(self.slots, address)
            if full is not None:
                return refuse_full(full)
            try:
                found = await to_thread.run_sync(check, limiter=_CHECKING)
            except ServiceError as error:
                found = error
            scope["state"][PRINCIPAL_KEY] = found
        if isinstance(found, Principal):
            return refuse_full(slot.take_for_token(self.slots, found.token_id))
        if isinstance(found, DatabaseUnavailable):  # many students at once, who are authenticated
            return refuse_full(slot.take_unchecked(self.slots, address))
        full = slot.take_unauthenticated(self.slots, address)
        if full is None:
            await pace(self.slots.taken[Share.UNAUTHENTICATED, ""])
        return refuse_full(full)

    def _refuse(self, scope: Scope, refusal: Refusal) -> ASGIApp:
        """Return the answer to a request that is not handled."""
        slug, detail, *more = refusal
        scope["state"]["problem"] = slug
        if slug in PROBLEMS_THAT_CHARGE_NOTHING:
            detail += " Nothing was charged."
        return self.answer(scope, slug, detail, *more)

    async def _run_routes(self, scope: Scope, receive: Receive, send: Send) -> None:
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
        caller, charges = (scope["state"].get(name) for name in (PRINCIPAL_KEY, "charges"))
        if isinstance(caller, Principal):
            fields["token"] = caller.token_id
        if charges is not None:
            fields["charges"] = "{}-{}".format(*charges)
        slug = scope["state"].get("problem")
        if slug is not None:
            self.metrics.problems(slug).inc()
            fields["problem"] = slug
        probe = route == ALIVE_PATH and status == 200  # a proxy asks every second
        (log.debug if probe else log.info)("request", method=method, route=route, **fields)


CLOSE = (b"connection", b"close")


async def pace(strangers: int) -> None:
    """Wait as one of so many, so that they share a number of answers a second."""
    await asyncio.sleep(STRANGER_SECONDS * strangers)


def _refuse_head(scope: Scope, headers: Mapping[bytes, bytes]) -> Refusal | None:
    """Return the refusal of a request by its head alone, or None."""
    if scope["path"].endswith("\n"):
        # Routes are matched with `$`, which accepts a final newline; a proxy's rules do not.
        return Refusal("not-found", "Nothing exists at a path that ends in a newline.")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        return Refusal(
            "unsupported-media-type",
            "Compressed bodies (Content-Encoding) are not accepted. Use .npz to send less.",
        )
    names = [name for name, _ in scope["headers"]]
    for name in SINGLE_HEADERS:
        if names.count(name) > 1:
            return Refusal("invalid-request", f"The header {name.decode()} was sent twice.")
    return None


def answer_malformed(metrics: Metrics, settings: Settings) -> Response:
    """Answer malformed HTTP with a problem, log and count it: no route ever sees it.

    Its text is the client's, so it is left out.
    """
    slug, request_id = "malformed-http", uuid4().hex
    log.info("request", method="(other)", route="(none)", status=400, problem=slug)
    metrics.requests("(other)", "(none)", "400").inc()
    metrics.problems(slug).inc()
    why = "The request line, a header or a chunk is malformed or too long. Nothing was answered."
    unread = {"path": "", "root_path": settings.path_prefix, "state": {"request_id": request_id}}
    return problem(unread, slug, why, headers={"X-Request-Id": request_id})


METHODS = {"GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "PUT"}
