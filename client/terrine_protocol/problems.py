"""Every type of problem that the server returns (RFC 9457)."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Problem(BaseModel):
    """RFC 9457 problem details. `type` ends in one of the names in `PROBLEMS`."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, Field(examples=["/problems/budget-exhausted"])]
    title: str
    status: int
    detail: str
    instance: str | None = None


class ProblemType(BaseModel):
    """One stable type of problem, with its documentation."""

    model_config = ConfigDict(frozen=True)

    status: int
    title: str
    meaning: str


PROBLEMS: dict[str, ProblemType] = {
    slug: ProblemType(status=status, title=title, meaning=meaning)
    for slug, status, title, meaning in [
        (
            "malformed-http",
            400,
            "This is not an HTTP request",
            "The request line, headers or chunks are malformed, too long or contradict each other.",
        ),
        (
            "invalid-request",
            422,
            "The request is malformed",
            "A field is missing, unknown or out of range. `errors` names each one.",
        ),
        (
            "invalid-query",
            422,
            "The inputs do not match the ensemble",
            "Shape, dtype, finiteness or range of the inputs or probabilities is wrong, or the "
            "bytes are not a plain array. Nothing was charged.",
        ),
        (
            "invalid-terms",
            422,
            "The project cannot be opened on these terms",
            "A mechanism's parameter, ε or δ is outside what is proven, or makes no sense.",
        ),
        (
            "unsupported-media-type",
            415,
            "Content type not supported",
            "Send application/json, application/x-npy or application/x-npz.",
        ),
        (
            "payload-too-large",
            413,
            "Too much in one request",
            "The body or the batch exceeds the server's limits, which `limit` names. Split it.",
        ),
        (
            "request-timeout",
            408,
            "The body took too long",
            "It did not arrive in the time allowed. Nothing was charged. Send less at once.",
        ),
        (
            "unauthorized",
            401,
            "No valid token",
            "The bearer token is missing, unknown, expired or revoked.",
        ),
        (
            "forbidden",
            403,
            "This token may not do that",
            "The token's role or project does not cover the request.",
        ),
        (
            "not-found",
            404,
            "Not found",
            "The named project, ensemble, token or page does not exist.",
        ),
        (
            "method-not-allowed",
            405,
            "Method not allowed",
            "The path exists, but not with this method.",
        ),
        (
            "conflict",
            409,
            "Conflict with the current state",
            "A name is taken, or a status cannot be changed that way.",
        ),
        (
            "cap-exceeded",
            409,
            "The ensemble's cap does not allow this budget",
            "Projects share the cap of their population, because students can collude.",
        ),
        (
            "budget-exhausted",
            403,
            "The privacy budget is spent",
            "No new query fits the project's budget. Earlier answers can be repeated at no cost.",
        ),
        (
            "project-paused",
            403,
            "The project is paused",
            "The data owner has paused it. Try again later.",
        ),
        (
            "project-closed",
            403,
            "The project is closed",
            "The data owner has closed it. It will not answer again.",
        ),
        (
            "rate-limited",
            429,
            "Too many requests",
            "The token has used its requests for this minute, or work that counts as so many. See "
            "Retry-After.",
        ),
        (
            "overloaded",
            503,
            "The server is busy",
            "It accepts no more requests for now. Nothing was charged. See Retry-After.",
        ),
        (
            "ensemble-unavailable",
            503,
            "The ensemble cannot be used",
            "Its files are missing, altered, or not the ones that were registered; or too few of "
            "those who vote elsewhere answer.",
        ),
        (
            "ledger-restored",
            503,
            "The ledger is older than what was signed of it",
            "A backup was restored, or entries were altered. Nothing new is answered until the "
            "server's operator has run `terrine ledger restored`. What was paid is still answered.",
        ),
        (
            "log-not-signed",
            503,
            "Nothing can be signed",
            "The transparency log's checkpoint cannot be signed, and without it nothing would show "
            "that the ledger went back. Nothing new is answered. What was paid is still answered.",
        ),
        (
            "database-unavailable",
            503,
            "The ledger cannot be reached",
            "Without a durable charge there is no answer; `reason` says why there is none. Send "
            "the same again: what was answered is free.",
        ),
        (
            "ledger-corrupted",
            503,
            "The ledger is inconsistent",
            "The ledger contradicts itself, so nothing is answered or charged. A retry does not "
            "help: the server's operator should run `terrine ledger verify`.",
        ),
        (
            "internal",
            500,
            "Internal error",
            "A defect in the server. Nothing was answered; look up the request id in the log.",
        ),
    ]
}


# Why there is no ledger (`database-unavailable`), in no more words than anybody may read.
Reason = Literal[
    "busy", "starting", "unreachable", "read-only", "disk-full", "misconfigured", "damaged"
]
# Those that may pass by themselves; any other lasts until a person has repaired something.
PASSING_REASONS: frozenset[Reason] = frozenset({"busy", "starting", "unreachable", "read-only"})


def slug_of(name: str) -> str:
    """Return the type of problem of a class, such as `budget-exhausted` of `BudgetExhausted`."""
    slug = re.sub(r"(?<=.)(?=[A-Z])", "-", name).lower()
    return slug.removesuffix("-error")
