"""Dependencies of the routes: the app's services, who may call which route, and how often."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param
from pydantic import BaseModel, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError
from sqlalchemy import Engine
from starlette.responses import Response
from starlette.routing import get_route_path  # type: ignore[attr-defined]
from starlette.types import Scope

from terrine_protocol import LogState, Name, Role
from terrine_protocol.transparency import ENTRY_BYTES, HASH_BYTES, Policy, Tile
from terrine_server.api.decoding import media_type
from terrine_server.errors import (
    Forbidden,
    RateLimited,
    ServiceError,
    Unauthorized,
    UnsupportedMediaType,
)
from terrine_server.labeling.pipeline import CheckedRequest, Labeling, Queue
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import (
    EnsembleRecord,
    Ledger,
    check_definitions,
    check_rights,
    check_schema,
    check_writable,
)
from terrine_server.metrics import Metrics
from terrine_server.owner.checkpoints import SignedHistory, log_state
from terrine_server.owner.sign_in import Principal, Sessions, Tokens
from terrine_server.serving.bounds import PerTokenThreads, client_network
from terrine_server.settings import Settings

MAX_KEYS = 10_000
"""Maximum keys in memory; the least recently used is dropped and later starts afresh."""


class RateLimit:
    """A token bucket for each key: bursts of `per_minute`, refilled at `per_minute` a minute.

    `what`: what is counted, as the refusal says it. Each process counts by itself.
    """

    def __init__(
        self,
        per_minute: int,
        what: str = "requests",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.per_minute = per_minute
        self._what = what
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = Lock()

    def take(self, key: str) -> int:
        """Use one of `key`'s allowance; return what is left. Raises `RateLimited` if none was."""
        return self._take(key, 1)

    def check(self, key: str) -> None:
        """Raise `RateLimited` if nothing is left of `key`'s allowance; use none of it."""
        self._take(key, 0)

    def _take(self, key: str, amount: int, least: int = 1) -> int:
        left = self._use(key, amount, least)
        if left < least:
            wait = max(1, math.ceil((1 - left) * 60 / self.per_minute))
            raise RateLimited(
                f"More than {self.per_minute} {self._what} in a minute. Retry in {wait} s.",
                retry_after=wait,
            )
        return int(left) - amount

    def use(self, key: str, amount: int) -> int:
        """Use what was already granted; the next `take` waits until it is made up for.

        Returns what is left: less than nothing if more was used than there was.
        """
        return int(self._use(key, amount, least=-math.inf)) - amount

    def check_made_up(self, key: str) -> None:
        """Raise `RateLimited` if `key` used more than there was; use none of its allowance."""
        self._take(key, 0, least=0)

    def _use(self, key: str, amount: int, least: float) -> float:
        """Use `amount` if at least `least` is left; return what was left."""
        now = self._clock()
        with self._lock:
            left, seen = self._buckets.pop(key, (float(self.per_minute), now))
            left = min(self.per_minute, left + (now - seen) * self.per_minute / 60)
            self._buckets[key] = (left - amount if left >= least else left, now)
            if len(self._buckets) > MAX_KEYS:
                self._buckets.popitem(last=False)
        return left


Record = TypeVar("Record")
Found = TypeVar("Found")


def _check_cursor(cursor: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(cursor)
    except ValidationError:
        raise PydanticCustomError(
            "cursor",
            "Not a cursor of this list. Send the `next` of the previous page, "
            "or an empty cursor for the first page",
        ) from None


_CURSOR = Query(description="The `next` of the previous page. Empty: the first page.")
TokenId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
_Number = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]

NameCursor = Annotated[Name | Literal[""] | None, WrapValidator(_check_cursor), _CURSOR]
NumberCursor = Annotated[_Number | Literal[""] | None, WrapValidator(_check_cursor), _CURSOR]
TokenCursor = Annotated[TokenId | Literal[""] | None, WrapValidator(_check_cursor), _CURSOR]

Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items on a page.")]
PAGE_ITEMS = 100
"""Items on a page, if the request has no `limit`."""


def render_page(
    model: type[BaseModel],
    found: Sequence[Record],
    limit: int,
    view: Callable[[Record], BaseModel],
    cursor: Callable[[Record], str],
    **beside: object,
) -> Response:
    """Return one page as JSON: the first `limit` of the records found.

    The caller queries one record more, which shows whether there is a next page. `view` turns a
    record into an item; `cursor` returns the cursor for the records after a record; `beside`: what
    else the page says.
    """
    shown = found[:limit]
    more = len(found) > limit
    items = [view(record) for record in shown]
    after = cursor(shown[-1]) if more else None
    made = model.model_validate({"items": items, "next": after, **beside})
    return Response(made.model_dump_json(), media_type="application/json")


LOOKUP_SECONDS = 1.0
"""How long what was looked up is still true. Strangers may ask as often as they like."""
MAX_TILES = 1024
"""Tiles that are kept in memory, of 8 KiB at most."""


class SharedLookup(Generic[Found]):
    """Looks something up in a thread, once a second at most, for everybody who asks.

    Belongs to one event loop.
    """

    def __init__(self, function: Callable[[], Found], thread: CapacityLimiter) -> None:
        self._function = function
        self._thread = thread
        self._task: asyncio.Task[Found | ServiceError] | None = None
        self._until = 0.0

    async def __call__(self) -> Found:
        """Return what the function returned a second ago at most. Raises its `ServiceError`."""
        now = asyncio.get_running_loop().time()
        if self._task is None or (self._task.done() and now > self._until):
            self._task = asyncio.create_task(self._look_up())
        found = await asyncio.shield(self._task)
        if isinstance(found, ServiceError):
            raise found.with_traceback(None)
        return found

    async def _look_up(self) -> Found | ServiceError:
        try:
            return await to_thread.run_sync(self._function, limiter=self._thread)
        except ServiceError as error:
            return error
        finally:
            self._until = asyncio.get_running_loop().time() + LOOKUP_SECONDS


class SharedScrape:
    """Builds the metrics once a second at most, for all who asked before it began.

    Whoever asks again and again waits: to build them takes what answers to students are made with.
    Belongs to one event loop.
    """

    def __init__(self, build: Callable[[], Awaitable[bytes]]) -> None:
        self._build = build
        self._building = asyncio.Lock()
        self._next: asyncio.Task[bytes | ServiceError] | None = None
        self._from = 0.0

    async def __call__(self) -> bytes:
        """Return them as they are now, or soon. Raises `ServiceError`."""
        if self._next is None:
            self._next = asyncio.create_task(self._build_next())
        found = await asyncio.shield(self._next)
        if isinstance(found, ServiceError):
            raise found.with_traceback(None)
        return found

    async def _build_next(self) -> bytes | ServiceError:
        clock = asyncio.get_running_loop().time
        async with self._building:
            await asyncio.sleep(max(0.0, self._from - clock()))
            self._next = None  # what happens from here on may be in it or not
            try:
                return await self._build()
            except ServiceError as error:
                return error
            finally:
                self._from = clock() + LOOKUP_SECONDS


VERIFYING = PerTokenThreads(1)
"""Verifications of the ledger at a time; others wait, of each token one. They read all of it."""
EXPORTING = PerTokenThreads(1)
"""Pages of exports that are read at a time, of each token one. Between two of them, those of others
have their turn, and whoever takes them slowly has no thread."""


class PublishedLog:
    """What everybody may read of a ledger's log, from memory. Belongs to one event loop.

    Nobody needs a token for it, so it takes nothing that students wait for: what is not in memory
    is read by one thread of its own, one at a time.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._thread = CapacityLimiter(1)
        self._tiles = OrderedDict[tuple[int | None, int], bytes]()
        self.checkpoint = SharedLookup(ledger.tree.checkpoint, self._thread)
        """The last checkpoint."""

    async def tile(self, tile: Tile) -> bytes:
        """Return a tile, or a bundle of entries. Raises NotFound and DatabaseUnavailable."""
        place = tile.level, tile.index
        size = tile.width * (ENTRY_BYTES if tile.level is None else HASH_BYTES)
        kept = self._tiles.get(place, b"")
        if len(kept) < size:  # the tree grows: what was read is the beginning of what is there now
            kept = await to_thread.run_sync(self._ledger.tree.tile, tile, limiter=self._thread)
            self._tiles[place] = max(kept, self._tiles.get(place, b""), key=len)
            if len(self._tiles) > MAX_TILES:
                self._tiles.popitem(last=False)
        self._tiles.move_to_end(place)
        return kept[:size]


class Readiness:
    """Whether queries can be answered. Belongs to one event loop."""

    def __init__(
        self, engine: Engine, ledger: Ledger, voters: Voters, policy: Policy | None
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._voters = voters
        self.policy = policy
        self.check = SharedLookup(self._check, CapacityLimiter(1))
        """Raises what keeps queries from being answered, if anything does; else returns the state
        of the transparency log, which keeps none."""

    def _check(self) -> LogState | None:
        check_schema(self._engine)
        check_definitions(self._engine)
        check_rights(self._engine)
        self._ledger.log.check_sealed()
        self._ledger.check_history()
        check_writable(self._engine)
        for ensemble in self._ledger.ensembles.list():
            self._voters.check(ensemble)
        return log_state(self._ledger.tree.checkpoint(), self.policy)


class LabelReply(NamedTuple):
    """The answer to a request to label: its body, how many of its queries were replayed, and the
    numbers of the first and the last charge that it paid, if it paid any."""

    body: bytes
    replayed: int
    paid: tuple[int, int] | None


@dataclass(frozen=True)
class Services:
    """Made once by `create_app`, for all routes."""

    settings: Settings
    engine: Engine
    ledger: Ledger
    tokens: Tokens
    sessions: Sessions
    voters: Voters
    readiness: Readiness
    published_log: PublishedLog
    labeling: Labeling
    history: SignedHistory
    queue: Queue[CheckedRequest, LabelReply]
    requests: RateLimit
    replays: RateLimit
    failed_logins: RateLimit
    metrics: Metrics
    scrape: SharedScrape

    def available(self, ensemble: EnsembleRecord) -> bool:
        """Whether the ensemble's files verify."""
        return self.voters.available(ensemble)


async def get_services(request: Request) -> Services:
    """Return the app's services."""
    found: Services = request.app.state.services
    return found


ServicesDep = Annotated[Services, Depends(get_services)]


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse query parameters that are unknown to the route or given twice.

    A misspelt filter must not become no filter.
    """
    names = {field.alias for field in request.scope["route"].dependant.query_params}
    given = [name for name, _ in request.query_params.multi_items()]
    errors = [
        {"loc": ("query", name), "msg": "Given twice" if name in names else "No such parameter"}
        for name in dict.fromkeys(given)
        if name not in names or given.count(name) > 1
    ]
    if errors:
        raise RequestValidationError(errors)


async def json_only(request: Request) -> None:
    """Refuse a body that does not say that it is JSON. Raises `UnsupportedMediaType`."""
    kind = media_type(request.headers.get("content-type", ""))
    if kind not in ("", "application/json"):
        raise UnsupportedMediaType(f"The content type {kind!r} is not application/json.")


JsonBody = Annotated[None, Depends(json_only)]


_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    bearerFormat="terrine_<id>_<secret>",
    description="A token from the data owner: of a student, an auditor, an admin, or for metrics.",
)


Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]

PRINCIPAL_KEY = "principal"
"""In the state of a request with a token: its `Principal`, or the error that says why not."""
LABEL_PATH = "/label"
METRICS_PATH = "/metrics"
USED_UP_PATH = "/label/used-up"
Check = Callable[[], Principal]
"""Finds out who asks. It takes time. Raises `ServiceError`."""


PAGES_PATH = "/admin"


def is_page(path: str) -> bool:
    """Whether a path is one of the owner's pages, rather than of the API."""
    return path == PAGES_PATH or path.startswith(f"{PAGES_PATH}/")


def route_path(scope: Scope) -> str:
    """Return the path of a request as routes have it: without the prefix, if a proxy passed it."""
    path: str = get_route_path(scope)
    return path


def public_path(scope: Scope, path: str) -> str:
    """Return where clients find a path that a route has: below the prefix."""
    return f"{scope.get('root_path', '')}{path}"


def caller_check(
    services: Services,
    session_check: Callable[[Services, Mapping[bytes, bytes]], Check | None],
    path: str,
    headers: Mapping[bytes, bytes],
) -> Check | None:
    """Return a check of who sends these headers to this path; None if they do not say.

    `session_check`: what checks a browser's session. Pages have that, all else a bearer token.
    """
    if is_page(path):
        return session_check(services, headers)
    given = headers.get(b"authorization", b"").decode("latin-1")
    scheme, token = get_authorization_scheme_param(given)
    if scheme.lower() != "bearer":
        return None
    if path == METRICS_PATH:
        return partial(services.tokens.authenticate_scraper, token)
    return partial(services.tokens.authenticate, token)


def authenticated_caller(request: Request, services: Services) -> Principal:
    """Return the caller, whom the middleware has authenticated.

    Raises `Unauthorized`, `RateLimited`. Failures are counted per address and never block a valid
    token: unauthenticated clients behind one proxy or router share an address.
    """
    found = getattr(request.state, PRINCIPAL_KEY, None)
    if isinstance(found, Principal):
        return replace(found, request_id=request.state.request_id)
    error = found or Unauthorized("Send the header 'Authorization: Bearer <token>'.")
    if isinstance(error, Unauthorized):
        services.failed_logins.take(client_network(request.client.host) if request.client else "")
    raise error


def allow(*roles: Role) -> Callable[[Request, Services, Bearer], Awaitable[Principal]]:
    """Return a dependency that accepts tokens of these roles."""

    async def check(request: Request, services: ServicesDep, _: Bearer) -> Principal:
        holder = authenticated_caller(request, services)
        request.state.left = services.requests.take(holder.token_id)
        if holder.role not in roles:
            needed = " or ".join(roles)
            raise Forbidden(f"This needs a token of role {needed}; yours is {holder.role}.")
        return holder

    return check


_student = allow(Role.STUDENT)


async def own_project(request: Request, services: ServicesDep, credentials: Bearer) -> str:
    """Return the project that the student's token belongs to."""
    # A call: FastAPI takes longer to resolve a dependency than this takes to run.
    holder = await _student(request, services, credentials)
    if holder.project is None:
        raise Forbidden("This token belongs to no project.")
    return holder.project


Anyone = Annotated[Principal, Depends(allow(Role.STUDENT, Role.AUDITOR, Role.ADMIN))]
Student = Annotated[Principal, Depends(_student)]
Admin = Annotated[Principal, Depends(allow(Role.ADMIN))]
Auditor = Annotated[Principal, Depends(allow(Role.ADMIN, Role.AUDITOR))]
Scraper = Annotated[Principal, Depends(allow(Role.ADMIN, Role.AUDITOR, Role.METRICS))]
OwnProject = Annotated[str, Depends(own_project)]
