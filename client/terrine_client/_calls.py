"""Every request of the client as data: what to send and how to read the reply. No I/O."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from terrine_client.errors import (
    ConfigurationError,
    ConnectionFailed,
    LedgerCorrupted,
    LedgerRestored,
    LogNotSigned,
    RateLimited,
    ReplyError,
    TimedOut,
    UnexpectedReply,
    problem_error,
)
from terrine_protocol import (
    Budget,
    BudgetPage,
    EnsembleAccount,
    EnsembleInfo,
    LabelResponse,
    LedgerPage,
    MechanismSpec,
    Outcome,
    Problem,
    ProjectInfo,
    ProjectOpen,
    ProjectStatus,
    ProjectUpdate,
    ReceiptPage,
    RequestAccount,
    RequestApprove,
    RequestApproved,
    RequestCreate,
    RequestInfo,
    RequestPage,
    RequestRefuse,
    RequestStatus,
    TokenCreate,
    TokenCreated,
    TokenInfo,
    TokenPage,
    UsedUp,
    Verification,
)

T = TypeVar("T")

_RETRIED = frozenset({429, 502, 503, 504})
_LONGEST_WAIT = 120.0  # seconds; after a longer Retry-After there is no retry
_PAGE = "1000"


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and the type of its reply.

    `repeatable`: sending it twice has the same effect as sending it once.
    """

    reply: TypeAdapter[T]
    method: str
    path: str
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True

    def at(self, cursor: str) -> Call[T]:
        """The same call for the page at the cursor."""
        return replace(self, params={**self.params, "cursor": cursor})

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """The request, with the connection's own URL, token and time-outs."""
        return http.build_request(
            self.method,
            self.path,
            content=self.content,
            headers=self.headers,
            params=self.params or None,
        )

    def read(self, response: httpx.Response) -> T:
        """The content of the reply. Raises ReplyError if it is not of the expected type."""
        if not response.is_success:
            raise _failure(response)
        try:
            return self.reply.validate_json(response.content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the reply"
            detail = f"{where}: {first['msg']}"
            reason = f"{self.method} {self.path} returned what this client cannot read ({detail})."
            raise UnexpectedReply(response.status_code, reason) from error

    def retry(self, error: Exception) -> bool | float:
        """Whether to retry after this error; a number is how many seconds to wait first."""
        match error:
            case RateLimited():
                again = True
            case LedgerCorrupted() | LedgerRestored() | LogNotSigned():
                again = False  # a person has to act first
            case ReplyError():
                again = self.repeatable and error.status in _RETRIED
            case ConnectionFailed():
                never_sent = isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)
                again = self.repeatable or never_sent
            case _:
                again = False
        wait = error.retry_after if isinstance(error, ReplyError) else None
        if again and wait is not None:
            return wait if wait <= _LONGEST_WAIT else False
        return again


@dataclass(frozen=True)
class BytesCall(Call[bytes]):
    """A call whose reply is bytes."""

    def read(self, response: httpx.Response) -> bytes:
        """The bytes."""
        if not response.is_success:
            raise _failure(response)
        return response.content


@contextmanager
def transport_errors() -> Iterator[None]:
    """Turn httpx's errors into the client's own."""
    try:
        yield
    except httpx.RequestError as error:
        where = error.request.url.copy_with(query=None)
        detail = str(error) or type(error).__name__
        if isinstance(error, httpx.TimeoutException):
            raise TimedOut(f"{where} did not reply in time ({detail}).") from error
        if isinstance(error, httpx.DecodingError):
            reason = f"{where}: the body cannot be decoded ({detail})."
            raise UnexpectedReply(200, reason) from error
        raise ConnectionFailed(f"No reply from {where} ({detail}).") from error


def _failure(response: httpx.Response) -> ReplyError:
    wait = _retry_after(response.headers.get("retry-after"))
    try:
        return problem_error(Problem.model_validate_json(response.content), wait)
    except ValidationError:
        if response.has_redirect_location:
            reason = f"redirected to {response.headers['location']}; pass that URL to the client."
        else:
            reason = f"{response.url} sent {response.text[:200].strip()!r}; is this Terrine's URL?"
        return UnexpectedReply(response.status_code, reason, wait)


def _retry_after(value: str | None) -> float | None:
    """Seconds, from either form of the header; None if it is absent or invalid."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


# ------------------------------------------------------------------------------- the calls

_LABELS = TypeAdapter(LabelResponse)
_BUDGET = TypeAdapter(Budget)
_USED_UP = TypeAdapter(UsedUp)
_PROJECT = TypeAdapter(ProjectInfo)
_ENSEMBLES: TypeAdapter[list[EnsembleAccount | EnsembleInfo]] = TypeAdapter(
    list[EnsembleAccount | EnsembleInfo]
)
_BUDGETS = TypeAdapter(BudgetPage)
_CHARGES = TypeAdapter(LedgerPage)
_VERIFICATION = TypeAdapter(Verification)
_RECEIPTS = TypeAdapter(ReceiptPage)
_BYTES = TypeAdapter(bytes)
_REQUEST: TypeAdapter[RequestAccount | RequestInfo] = TypeAdapter(RequestAccount | RequestInfo)
_REQUESTS = TypeAdapter(RequestPage)
_APPROVED = TypeAdapter(RequestApproved)
_TOKEN = TypeAdapter(TokenInfo)
_TOKENS = TypeAdapter(TokenPage)
_TOKEN_CREATED = TypeAdapter(TokenCreated)


def label(content: bytes, media_type: str) -> Call[LabelResponse]:
    """One batch. Repeatable: what was paid is answered from the record."""
    return Call(_LABELS, "POST", "/label", content, {"Content-Type": media_type})


def used_up(content: bytes, media_type: str) -> Call[UsedUp]:
    return Call(_USED_UP, "POST", "/label/used-up", content, {"Content-Type": media_type})


def budget() -> Call[Budget]:
    return Call(_BUDGET, "GET", "/budget")


def project(name: str | None) -> Call[ProjectInfo]:
    return Call(_PROJECT, "GET", "/project" if name is None else f"/projects/{_segment(name)}")


def ensembles() -> Call[list[EnsembleAccount | EnsembleInfo]]:
    return Call(_ENSEMBLES, "GET", "/ensembles")


def ledger(limit: str = _PAGE) -> Call[BudgetPage]:
    return Call(_BUDGETS, "GET", "/ledger", params={"limit": limit})


def charges(
    project: str, outcome: Outcome | str | None, since: datetime | None, until: datetime | None
) -> Call[LedgerPage]:
    if outcome is not None and outcome not in set(Outcome):
        raise ConfigurationError(f"The outcome must be one of {', '.join(Outcome)}.")
    filters = {
        "outcome": outcome and str(outcome),
        "since": since.astimezone(UTC).isoformat() if since else None,
        "until": until.astimezone(UTC).isoformat() if until else None,
    }
    params = {"limit": _PAGE} | {
        name: value for name, value in filters.items() if value is not None
    }
    return Call(_CHARGES, "GET", f"/ledger/{_segment(project)}", params=params)


def verify(project: str) -> Call[Verification]:
    return Call(_VERIFICATION, "GET", f"/ledger/{_segment(project)}/verify")


def checkpoint() -> Call[bytes]:
    return BytesCall(_BYTES, "GET", "/checkpoint")


def tile(path: str) -> Call[bytes]:
    return BytesCall(_BYTES, "GET", f"/tile/{path}")


def receipts(cursor: str) -> Call[ReceiptPage]:
    return Call(_RECEIPTS, "GET", "/receipts", params={"limit": _PAGE, "cursor": cursor})


def open_project(terms: ProjectOpen) -> Call[ProjectInfo]:
    return _send(_PROJECT, "POST", "/projects", terms, repeatable=False)


def set_status(project: str, status: ProjectStatus) -> Call[ProjectInfo]:
    path = f"/projects/{_segment(project)}"
    return _send(_PROJECT, "PATCH", path, ProjectUpdate(status=status))


def make_request(
    title: str,
    purpose: str,
    epsilon: float,
    delta: float | None,
    mechanism: MechanismSpec | None,
) -> Call[RequestAccount | RequestInfo]:
    """Repeatable: while it is open, the same request is the same one."""
    request = RequestCreate(
        title=title, purpose=purpose, epsilon=epsilon, delta=delta, mechanism=mechanism
    )
    return _send(_REQUEST, "POST", "/requests", request)


def requests(status: RequestStatus | str | None) -> Call[RequestPage]:
    if status is not None and status not in set(RequestStatus):
        raise ConfigurationError(f"The status must be one of {', '.join(RequestStatus)}.")
    chosen = {} if status is None else {"status": str(status)}
    return Call(_REQUESTS, "GET", "/requests", params={"limit": _PAGE, **chosen})


def request(request_id: str) -> Call[RequestAccount | RequestInfo]:
    return Call(_REQUEST, "GET", f"/requests/{_segment(request_id)}")


def approve_request(request_id: str, approval: RequestApprove) -> Call[RequestApproved]:
    path = f"/requests/{_segment(request_id)}/approve"
    return _send(_APPROVED, "POST", path, approval, repeatable=False)


def refuse_request(request_id: str, reason: str) -> Call[RequestAccount | RequestInfo]:
    path = f"/requests/{_segment(request_id)}/refuse"
    return _send(_REQUEST, "POST", path, RequestRefuse(reason=reason), repeatable=False)


def create_token(request: TokenCreate) -> Call[TokenCreated]:
    return _send(_TOKEN_CREATED, "POST", "/tokens", request, repeatable=False)


def tokens() -> Call[TokenPage]:
    return Call(_TOKENS, "GET", "/tokens", params={"limit": _PAGE, "cursor": ""})


def revoke_token(token_id: str) -> Call[TokenInfo]:
    return Call(_TOKEN, "DELETE", f"/tokens/{_segment(token_id)}")


def _send(
    reply: TypeAdapter[T], method: str, path: str, body: BaseModel, repeatable: bool = True
) -> Call[T]:
    content = body.model_dump_json().encode()
    headers: dict[str, Any] = {"Content-Type": "application/json"}
    return Call(reply, method, path, content, headers, repeatable=repeatable)


def _segment(name: str) -> str:
    return quote(name, safe="")
