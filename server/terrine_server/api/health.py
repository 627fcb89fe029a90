"""Routes for operators: liveness, readiness and metrics."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter
from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse, Response

from terrine_protocol import ProjectStatus, Ready
from terrine_protocol.transparency.policies import Policy
from terrine_server import views
from terrine_server.api import openapi
from terrine_server.api.services import Scraper, ServicesDep
from terrine_server.ledger import Ledger, ProjectRecord
from terrine_server.owner.checkpoints import log_state

router = APIRouter(tags=["operation"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Succeed as long as the process responds. Checks nothing else."""
    return {"status": "alive"}


@router.get(
    "/readyz",
    responses=openapi.problems("database-unavailable", "ensemble-unavailable", token=False),
)
async def readyz(services: ServicesDep) -> Ready:
    """Succeed if a query could be answered and paid for now.

    The database, its schema and every registered ensemble can be used, and a commit can be made
    durable. That is found out at most once a second, however often it is asked. Who did not cosign
    the transparency log's last checkpoint is said, but keeps nothing from being answered.
    """
    return Ready(log=await services.readiness.check())


@router.get("/metrics", response_class=PlainTextResponse, responses=openapi.problems())
def metrics(services: ServicesDep, _: Scraper) -> Response:
    """Return Prometheus metrics: requests, stages, outcomes, the log, each project's account."""
    log = LogMetrics(services.ledger, services.readiness.policy)
    text = services.metrics.text(AccountMetrics(services.ledger), log)
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


class AccountMetrics(Collector):
    """The public account of every project that is not closed, read at each scrape."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        """Yield one gauge per figure, with one value per project."""
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


class LogMetrics(Collector):
    """What the transparency log's last checkpoint says, read at each scrape."""

    def __init__(self, ledger: Ledger, policy: Policy | None) -> None:
        self._ledger = ledger
        self._policy = policy

    def collect(self) -> Iterator[Metric]:
        """Yield its size, and whether each witness of the policy cosigned it."""
        log = log_state(self._ledger.checkpoint(), self._policy)
        entries = GaugeMetricFamily("terrine_log_entries", "Entries under the last checkpoint.")
        meaning = "Whether the witness cosigned the last checkpoint."
        cosigned = GaugeMetricFamily("terrine_log_cosigned", meaning, labels=["witness"])
        if log is not None:
            entries.add_metric([], log.size)
            for witness in (*log.cosigned, *log.missing):
                cosigned.add_metric([witness], float(witness in log.cosigned))
        yield entries
        yield cosigned


PAGE = 1000
FIGURES = {
    "epsilon": "The privacy budget's epsilon.",
    "epsilon_spent": "Epsilon spent so far, as shown to the project's students.",
    "charges": "Ledger entries so far.",
    "affordable": "Further queries that are certain to fit, at the worst-case price.",
}
"""Figures of the public account only: students see the same in `GET /budget`."""
