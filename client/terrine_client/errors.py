"""What can go wrong, and what to do about it::

    ClientError                       base of all; `partial` holds the answers so far
    ├── ConfigurationError            the URL, token or key cannot be used (also a ValueError)
    ├── DistillError                  the data do not fit the project (in `distill`)
    ├── PapersError                   a student's privacy.json cannot be read (in `distill`)
    ├── ConnectionFailed              no reply, after every retry
    │   └── TimedOut
    └── ReplyError                    a reply that is not the expected one; `status`
        ├── UnexpectedReply           not Terrine's: a proxy's page, a redirect, truncated JSON
        └── ProblemError              an RFC 9457 problem from Terrine; `problem`
            ├── MalformedHttp         400  something in between garbled the request
            ├── InvalidRequest        422
            ├── InvalidQuery          422  inputs or probabilities do not match the ensemble
            ├── InvalidTerms          422  mechanism, ε or δ
            ├── UnsupportedMediaType  415
            ├── PayloadTooLarge       413
            ├── RequestTimeout        408  the body took too long to arrive
            ├── Unauthorized          401  token missing, unknown, expired or revoked
            ├── Forbidden             403  token valid, but not for this
            ├── NotFound              404
            ├── MethodNotAllowed      405
            ├── Conflict              409
            ├── CapExceeded           409
            ├── BudgetExhausted       403  no new query fits; earlier answers stay free
            ├── ProjectPaused         403
            ├── ProjectClosed         403
            ├── RateLimited           429  `retry_after`
            ├── Overloaded            503  `retry_after`
            ├── EnsembleUnavailable   503
            ├── DatabaseUnavailable   503
            ├── LedgerCorrupted           503  until the data owner has repaired the ledger
            ├── LedgerRestored            503  until the data owner has made a backup safe
            ├── LogNotSigned              503  until the data owner's server signs its log again
            └── InternalError         500

Nothing is ever charged twice: after any of these, the same request may be sent again, and answers
that were paid for are repeated from the ledger at no cost.
"""

# ruff: noqa: N818 - named after the problem types, without the suffix Error
from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar

from terrine_protocol import PROBLEMS, Problem
from terrine_protocol.errors import TerrineError
from terrine_protocol.problems import slug_of

if TYPE_CHECKING:
    from terrine_client._labels import Labels


class ClientError(TerrineError):
    """Base of every error that the client raises about the service.

    When `label` fails half-way, `partial` holds the answers to the first `len(partial)` inputs.
    """

    partial: Labels | None = None


class ConfigurationError(ClientError, ValueError):
    """The client was given a URL or token that cannot be used."""


class ConnectionFailed(ClientError):
    """The server could not be reached, or closed the connection before it replied."""


class TimedOut(ConnectionFailed):
    """The server did not reply in time."""


class ReplyError(ClientError):
    """The server replied, but not with what the call expects."""

    status: int
    retry_after: float | None = None
    """Seconds that the server asks to wait before a retry."""


class UnexpectedReply(ReplyError):
    """The reply is not Terrine's: `url` may point elsewhere, or a proxy replied."""

    def __init__(self, status: int, reason: str, retry_after: float | None = None):
        super().__init__(status, reason, retry_after)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

    def __str__(self) -> str:
        known = self.status in HTTPStatus._value2member_map_
        phrase = f" {HTTPStatus(self.status).phrase}" if known else ""
        return f"Unexpected reply (HTTP {self.status}{phrase}): {self.reason}"


class ProblemError(ReplyError):
    """Terrine returned a problem. A type unknown to this version is raised as this class."""

    slug: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        cls.slug = slug_of(cls.__name__)
        cls.__doc__ = PROBLEMS[cls.slug].meaning

    def __init__(self, problem: Problem, retry_after: float | None = None):
        super().__init__(problem, retry_after)
        self.problem = problem
        self.status = problem.status
        self.retry_after = retry_after

    @property
    def contact(self) -> str | None:
        """How to reach the data owner, if the server says: when a budget is spent, or a project is
        paused or closed."""
        contact = (self.problem.model_extra or {}).get("contact")
        return contact if isinstance(contact, str) else None

    def __str__(self) -> str:
        extra = self.problem.model_extra or {}
        lines = [f"{self.problem.title}: {self.problem.detail}"]
        match extra:  # invalid-request's detail covers only the first field
            case {"errors": [_, *others]}:
                lines += [f"  {_describe(error)}" for error in others]
        if self.contact is not None:
            lines.append(f"  contact: {self.contact}")
        if self.status >= 500 and "request_id" in extra:
            lines.append(f"  request id {extra['request_id']}")
        return "\n".join(lines)


def _describe(error: object) -> str:
    match error:
        case {"field": field, "message": message}:
            return f"{field}: {message}"
    return str(error)


# Named after the types of problems, which `terrine_protocol.PROBLEMS` documents.
class MalformedHttp(ProblemError): ...


class InvalidRequest(ProblemError): ...


class InvalidQuery(ProblemError): ...


class InvalidTerms(ProblemError): ...


class UnsupportedMediaType(ProblemError): ...


class PayloadTooLarge(ProblemError): ...


class RequestTimeout(ProblemError): ...


class Unauthorized(ProblemError): ...


class Forbidden(ProblemError): ...


class NotFound(ProblemError): ...


class MethodNotAllowed(ProblemError): ...


class Conflict(ProblemError): ...


class CapExceeded(ProblemError): ...


class BudgetExhausted(ProblemError): ...


class ProjectPaused(ProblemError): ...


class ProjectClosed(ProblemError): ...


class RateLimited(ProblemError): ...


class Overloaded(ProblemError): ...


class EnsembleUnavailable(ProblemError): ...


class DatabaseUnavailable(ProblemError): ...


class LedgerCorrupted(ProblemError): ...


class LedgerRestored(ProblemError): ...


class LogNotSigned(ProblemError): ...


class InternalError(ProblemError): ...


_KINDS = {kind.slug: kind for kind in ProblemError.__subclasses__()}


def make_problem_error(problem: Problem, retry_after: float | None) -> ProblemError:
    """Return the error of the problem's type."""
    kind = _KINDS.get(problem.type.rsplit("/", 1)[-1], ProblemError)
    return kind(problem, retry_after)
