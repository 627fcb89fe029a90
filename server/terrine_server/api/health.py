"""For those who operate the service: is it alive, is it ready, how is it doing?"""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import PlainTextResponse, Response

from terrine_server.api import openapi
from terrine_server.api.services import House
from terrine_server.ledger import check_schema

router = APIRouter(tags=["operation"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answer as long as the process does. Looks at nothing else."""
    return {"status": "alive"}


@router.get(
    "/readyz",
    responses=openapi.problems("database-unavailable", "ensemble-unavailable", token=False),
)
def readyz(house: House) -> dict[str, str]:
    """Answer when the database, its schema and every registered ensemble can be used."""
    check_schema(house.engine)
    for ensemble in house.ledger.ensembles():
        house.voters.check(ensemble)
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(house: House) -> Response:
    """Return Prometheus metrics: requests and durations by route, nothing about data."""
    return Response(generate_latest(house.metrics.registry), media_type=CONTENT_TYPE_LATEST)
