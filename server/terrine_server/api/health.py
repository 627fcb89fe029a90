"""For those who operate the service: is it alive, is it ready, how is it doing?"""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter
from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse, Response

from terrine_protocol import ProjectStatus
from terrine_server import views
from terrine_server.api import openapi
from terrine_server.api.services import Auditor, ServicesDep
from terrine_server.ledger import Ledger, ProjectRecord, check_schema

router = APIRouter(tags=["operation"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answer as long as the process does. Looks at nothing else."""
    return {"status": "alive"}


@router.get(
    "/readyz",
    responses=openapi.problems("database-unavailable", "ensemble-unavailable", token=False),
)
def readyz(services: ServicesDep) -> dict[str, str]:
    """Answer when the database, its schema and every registered ensemble can be used."""
    check_schema(services.engine)
    for ensemble in services.ledger.ensembles():
        services.voters.check(ensemble)
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse, responses=openapi.problems())
def metrics(services: ServicesDep, _: Auditor) -> Response:
    """Return Prometheus metrics: requests, stages, outcomes, and each project's public account."""
    text = services.metrics.text(Accounts(services.ledger))
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


class Accounts(Collector):
    """What every project that is not closed may be told of its budget, read when asked for."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        """Yield one gauge for each figure, with one value for each project."""
        accounts = [views.budget(project) for project in self._open()]
        for figure, meaning in FIGURES.items():
            gauge = GaugeMetricFamily(f"terrine_project_{figure}", meaning, labels=["project"])
            for account in accounts:
                gauge.add_metric([account.project], getattr(account, figure))
            yield gauge

    def _open(self) -> Iterator[ProjectRecord]:
        after = None
        while page := self._ledger.projects(after, PAGE):
            yield from (p for p in page if p.status is not ProjectStatus.CLOSED)
            after = page[-1].name


PAGE = 1000
FIGURES = {
    "epsilon": "The privacy budget's epsilon.",
    "epsilon_spent": "Epsilon spent so far, as the project's students are told it.",
    "charges": "Ledger entries so far.",
    "affordable": "Further queries that are certain to fit, at worst price.",
}
"""Of an account as it is published, nothing else: what students may ask `GET /budget` for."""
