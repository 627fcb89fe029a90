"""Refusals before any route: the type of the problem, its words, and its short form.

The service renders them as problems or pages, and other servers as one line of JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from terrine_server.serving.slots import Share

# `Retry-After` where the server has no better estimate.
RETRY_SECONDS = 2
CLOSING = {"Connection": "close"}
STATUS_OF_PROBLEM = {
    "malformed-http": 400,
    "unauthorized": 401,
    "request-timeout": 408,
    "payload-too-large": 413,
    "overloaded": 503,
}


class Refusal(NamedTuple):
    """Why a request is not handled: the type of the problem, and what else is said of it."""

    slug: str
    detail: str
    extras: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}


TOO_MANY = {
    Share.ALL: "Too many clients are connected.",
    Share.UNAUTHENTICATED: "Too many clients without a valid token are connected.",
    Share.ADDRESS: "Too many clients without a valid token are connected from this address.",
    Share.CLAIM: "Too many tokens from this address are being checked.",
    Share.TOKEN: "Too many requests with this token are in progress.",
}
TOO_MANY_BYTES = Refusal("overloaded", "Too many bytes are being received at once.")
STOPPED = Refusal(
    "overloaded",
    "The server is stopping, and does not know whether this was answered. "
    "Send the same again: what was answered before is free.",
    headers=CLOSING,
)
DEFECT = Refusal(
    "internal",
    "A bug in the server; the request was not answered. "
    "The server's log has the details under this request id.",
)
OTHER_HTTP = Refusal("malformed-http", "Only HTTP/1.0 and HTTP/1.1 are spoken here.")
TWO_LENGTHS = Refusal(
    "malformed-http", "Transfer-Encoding requires HTTP/1.1, and excludes Content-Length."
)


def refuse_full(share: Share | None) -> Refusal | None:
    """Return the refusal of one more request where this share has no slot left."""
    return None if share is None else Refusal("overloaded", TOO_MANY[share], headers=CLOSING)


def body_too_late(seconds: float) -> Refusal:
    """Return the refusal of a body that took longer."""
    return Refusal(
        "request-timeout", f"The body was not complete within {seconds:g} s. Send less at once."
    )


def body_too_large(most: int) -> Refusal:
    """Return the refusal of a body that has more bytes."""
    return Refusal(
        "payload-too-large",
        f"The body is larger than {most} bytes. Split the request.",
        {"limit": most},
    )


def render_short(refusal: Refusal) -> ASGIApp:
    """Return the answer of a server without pages."""
    status, headers = STATUS_OF_PROBLEM[refusal.slug], dict(refusal.headers)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_SECONDS)
    return JSONResponse({"error": refusal.detail}, status, headers)
