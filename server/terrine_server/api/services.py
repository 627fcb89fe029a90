"""The services that `create_app` makes for all routes, and what every route checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy import Engine

from terrine_server.api.decoding import media_type
from terrine_server.api.rate_limits import RateLimit
from terrine_server.api.shared import PublishedLog, Readiness, SharedScrape
from terrine_server.errors import UnsupportedMediaType
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.queries import CheckedRequest
from terrine_server.labeling.queue import Queue
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import (
    EnsembleRecord,
    Ledger,
)
from terrine_server.metrics import Metrics
from terrine_server.owner.checkpoints import SignedHistory
from terrine_server.owner.sign_in import Sessions, Tokens
from terrine_server.settings import Settings
from terrine_server.views import LabelReply


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
    given = [name for name, _ in request.query_params.multi_items()]
    if not given:
        return
    names = {field.alias for field in request.scope["route"].dependant.query_params}
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
