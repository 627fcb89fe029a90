"""One request of the client as data: what to send, how to read the reply, when to retry. No I/O."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, cast

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from terrine_client.errors import (
    ConnectionFailed,
    LedgerCorrupted,
    LedgerRestored,
    LogNotSigned,
    RateLimited,
    ReplyError,
    TimedOut,
    UnexpectedReply,
    make_problem_error,
)
from terrine_protocol import Problem

T = TypeVar("T")
Reply = TypeVar("Reply", covariant=True)
Item = TypeVar("Item", covariant=True)

_RETRIED_STATUSES = frozenset({429, 502, 503, 504})
# After a longer Retry-After there is no retry.
_MAX_WAIT_SECONDS = 120.0


class Page(Protocol[Item]):
    """A page of items; `next` is the cursor of the following one."""

    @property
    def items(self) -> Sequence[Item]: ...
    @property
    def next(self) -> str | None: ...


@dataclass(frozen=True)
class Call(Generic[Reply]):
    """One request, and the type of its reply: `bytes` as they are, everything else from JSON.

    content: a model is sent as JSON, bytes as `media_type`.
    repeatable: sending it twice has the same effect as sending it once.
    """

    method: str
    path: str
    reply: type[Reply] | TypeAdapter[Reply]
    content: BaseModel | bytes | None = None
    media_type: str = "application/json"
    params: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True

    def at(self, cursor: str) -> Call[Reply]:
        """The same call for the page at the cursor."""
        return replace(self, params={**self.params, "cursor": cursor})

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """The request, with the connection's own URL, token and time-outs."""
        content = self.content
        return http.build_request(
            self.method,
            self.path,
            content=content.model_dump_json() if isinstance(content, BaseModel) else content,
            headers={} if content is None else {"Content-Type": self.media_type},
            params=self.params or None,
        )

    def read(self, response: httpx.Response) -> Reply:
        """Parse the reply. Raises ReplyError if it is not of the expected type."""
        if not response.is_success:
            raise _read_failure(response)
        if self.reply is bytes:
            return cast("Reply", response.content)
        adapter = self.reply if isinstance(self.reply, TypeAdapter) else TypeAdapter(self.reply)
        try:
            return adapter.validate_json(response.content)
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
                again = self.repeatable and error.status in _RETRIED_STATUSES
            case ConnectionFailed():
                never_sent = isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)
                again = self.repeatable or never_sent
            case _:
                again = False
        wait = error.retry_after if isinstance(error, ReplyError) else None
        if again and wait is not None:
            return wait if wait <= _MAX_WAIT_SECONDS else False
        return again


# Yields one call after another, and is sent the reply of each; either client drives it.
Plan = Generator[Call[Any], Any, T]


def all_items(call: Call[Page[T]]) -> Plan[list[T]]:
    """Fetch every page."""
    items: list[T] = []
    page: Page[T] = yield call
    items += page.items
    while page.next is not None:
        page = yield call.at(page.next)
        items += page.items
    return items


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


def _read_failure(response: httpx.Response) -> ReplyError:
    wait = _parse_retry_after(response.headers.get("retry-after"))
    try:
        return make_problem_error(Problem.model_validate_json(response.content), wait)
    except ValidationError:
        if response.status_code == 413:
            reason = (
                "what stands before the service, such as a proxy, takes no request of this size. "
                "Pass a smaller batch_size to the client (256 inputs by default), or ask its "
                "operator to let through 16 MiB (of nginx: client_max_body_size)."
            )
        elif response.has_redirect_location:
            reason = f"redirected to {response.headers['location']}; pass that URL to the client."
        else:
            reason = f"{response.url} sent {response.text[:200].strip()!r}; is this Terrine's URL?"
        return UnexpectedReply(response.status_code, reason, wait)


def _parse_retry_after(value: str | None) -> float | None:
    """Seconds, from either form of the header; None if it is absent or invalid."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
