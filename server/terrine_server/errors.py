"""Every error that the server reports, as one tree.

    ServiceError
    ├── InvalidQuery            inputs do not match the ensemble
    ├── InvalidTerms            terms of a project or cap that cannot be proved or make no sense
    ├── UnsupportedMediaType
    ├── PayloadTooLarge
    ├── Unauthorized            no valid token
    │   └── TokenChanged        valid when it was last looked at; it is looked at again
    ├── Forbidden               a valid token that may not do that
    ├── NotFound
    ├── Conflict                a name is taken, a status cannot change that way
    │   └── ConcurrentUpdate    accounts of people moved meanwhile; it is voted on again
    ├── CapExceeded             the population's cap does not allow this budget
    ├── BudgetExhausted         no new query fits
    ├── ProjectPaused
    ├── ProjectClosed
    ├── RateLimited
    ├── Overloaded              too many requests are waiting
    ├── EnsembleUnavailable     files missing, altered, or not those registered
    └── DatabaseUnavailable     without a durable charge there is no answer
        ├── DatabaseStarting    PostgreSQL does not accept connections yet
        ├── SchemaMismatch      the database is not at this version's schema
        ├── NotSealed           its rows are sealed with another secret key
        ├── LedgerCorrupted     a balance, number or hash does not match its charges
        ├── LedgerRestored      it is older than what was signed of it
        └── LogNotSigned        nothing can be signed of it any more

Those named after an entry of `terrine_protocol.PROBLEMS` are documented there. The API turns any of
them into an RFC 9457 problem in one place, and the command line into one line on stderr.
"""

# ruff: noqa: N818 - named after the problem types, without the suffix Error
from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from terrine_protocol.errors import TerrineError
from terrine_protocol.problems import PROBLEMS, Reason, slug_of


class ServiceError(TerrineError):
    """An error of the service that its reader can act on.

    `detail` says what is wrong, what was expected and what to do; `extras` are further public
    members of the problem document. Neither ever holds anything computed from votes.
    """

    problem: ClassVar[str] = "internal"

    def __init_subclass__(cls) -> None:
        slug = slug_of(cls.__name__)
        if slug in PROBLEMS:
            cls.problem = slug
            cls.__doc__ = cls.__doc__ or PROBLEMS[slug].meaning

    def __init__(self, detail: str, **extras: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extras = extras


class InvalidQuery(ServiceError): ...


class InvalidTerms(ServiceError): ...


class UnsupportedMediaType(ServiceError): ...


class PayloadTooLarge(ServiceError): ...


class Unauthorized(ServiceError): ...


class TokenChanged(Unauthorized):
    """The rows of these `tokens` (ids) are not as they were: authenticate again, which says why."""

    def __init__(self, tokens: Collection[str]) -> None:
        super().__init__("This token is not what it was. Send the request again.")
        self.tokens = tokens


class Forbidden(ServiceError): ...


class NotFound(ServiceError): ...


class Conflict(ServiceError): ...


class ConcurrentUpdate(Conflict):
    """Another request moved the accounts of people, or people left or came, while they voted."""

    def __init__(self, detail: str = "Another request came first. Send the queries again.") -> None:
        super().__init__(detail)


class CapExceeded(ServiceError): ...


class BudgetExhausted(ServiceError): ...


class ProjectPaused(ServiceError): ...


class ProjectClosed(ServiceError): ...


class RateLimited(ServiceError): ...


class Overloaded(ServiceError): ...


class EnsembleUnavailable(ServiceError): ...


class DatabaseUnavailable(ServiceError):
    """The ledger cannot be reached, or cannot be trusted.

    `detail` says what is wrong, `fix` what the server's operator can do about it, and `cause` what
    the database says; `str(error)` has all three, for the operator alone. Clients get `reason`.
    """

    def __init__(
        self, detail: str, cause: str = "", *, fix: str = "", reason: Reason = "unreachable"
    ) -> None:
        super().__init__(detail)
        self.cause = cause
        self.fix = fix
        self.reason = reason

    @property
    def symptom(self) -> str:
        """What is wrong, without what to do about it."""
        return f"{self.detail} ({self.cause})" if self.cause else self.detail

    def __str__(self) -> str:
        whole = f"{self.detail} {self.fix}" if self.fix else self.detail
        return f"{whole} ({self.cause})" if self.cause else whole


class DatabaseStarting(DatabaseUnavailable):
    """PostgreSQL is starting, recovering, or shutting down; it may soon be there."""


class SchemaMismatch(DatabaseUnavailable):
    """The database is older or newer than this version of Terrine, or has no tables."""

    def __init__(self, detail: str, cause: str = "") -> None:
        super().__init__(detail, cause, reason="misconfigured")


class NotSealed(DatabaseUnavailable):
    """The ledger's rows are not sealed with this server's secret key."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, reason="misconfigured")


class LedgerCorrupted(DatabaseUnavailable):
    """The ledger is inconsistent, and no more queries are answered.

    `found` is a sentence that anyone may read: it names what does not agree, and quotes no label,
    no path and no text of the database. `project` is the one to verify, where one is known.
    """

    def __init__(self, found: str, project: str = "all", cause: str = "") -> None:
        super().__init__(
            f"{found} The ledger is inconsistent, so nothing is answered or charged. "
            f"The server's operator should run `terrine ledger verify {project}`.",
            cause,
            reason="damaged",
        )
        self.found = found


class LedgerRestored(DatabaseUnavailable):
    """The ledger does not continue what was signed of it."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            "The ledger is older than what was signed of it: a backup was restored, or entries "
            "were altered. What was paid is answered, nothing else. The server's operator should "
            "restore the newer database (`terrine restore DIR`) or, if that is lost, run `terrine "
            "ledger restored` and restart the servers.",
            cause,
            reason="damaged",
        )


class LogNotSigned(DatabaseUnavailable):
    """No checkpoint could be signed for a while."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            "No checkpoint of the transparency log can be signed, so nothing would show that the "
            "ledger went back. What was paid is answered, nothing else. The server's log says why.",
            cause,
            reason="damaged",
        )
