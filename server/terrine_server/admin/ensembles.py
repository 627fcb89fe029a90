"""The page of ensembles, by the people whom they are of."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from terrine_server import views
from terrine_server.admin.access import Reader
from terrine_server.admin.overview import list_caps
from terrine_server.admin.rendering import page
from terrine_server.api.paths import PAGES_PATH
from terrine_server.api.services import ServicesDep
from terrine_server.owner.operations import find_largest_return

router = APIRouter(prefix=PAGES_PATH)


@router.get("/ensembles")
def ensembles(request: Request, services: ServicesDep, reader: Reader) -> Response:
    """Show each population with its cap, and its ensembles, and whether their files verify."""
    found = [
        (
            cap,
            find_largest_return(services.ledger, cap.population),
            [
                (each, views.ensemble_account(each, services.available(each)))
                for each in cap.ensembles
            ],
        )
        for cap in list_caps(services.ledger)
    ]
    return page(request, "ensembles.html", reader, populations=found)
