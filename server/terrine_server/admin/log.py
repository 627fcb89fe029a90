"""The page of the administrative log: who did what, and when."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from terrine_server import views
from terrine_server.admin.access import Reader
from terrine_server.admin.rendering import page
from terrine_server.api.paths import PAGES_PATH
from terrine_server.api.services import ServicesDep

router = APIRouter(prefix=PAGES_PATH)

# Entries on a page.
ENTRIES_ON_A_PAGE = 40


@router.get("/log")
def administrative_log(
    request: Request,
    services: ServicesDep,
    reader: Reader,
    before: Annotated[int | None, Query(ge=1, le=10**18)] = None,
) -> Response:
    """Show who did what, newest first."""
    found = services.ledger.log.list(limit=ENTRIES_ON_A_PAGE + 1, newest=True, before_seq=before)[
        ::-1
    ]
    return page(
        request,
        "log.html",
        reader,
        entries=found[:ENTRIES_ON_A_PAGE],
        actors=views.actors(services.ledger, (entry.actor for entry in found)),
        next=found[ENTRIES_ON_A_PAGE - 1].seq if len(found) > ENTRIES_ON_A_PAGE else None,
        before=before,
    )
