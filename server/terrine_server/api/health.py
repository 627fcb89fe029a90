"""Routes for operators: liveness, readiness and metrics."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from shutil import disk_usage

import structlog
from anyio import to_thread
from fastapi import APIRouter
from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse, Response

from terrine_protocol import ProjectStatus, Ready
from terrine_protocol.transparency import Policy
from terrine_server import views
from terrine_server.api import openapi
from terrine_server.api.callers import Scraper
from terrine_server.api.paths import METRICS_PATH
from terrine_server.api.services import Services, ServicesDep
from terrine_server.errors import (
    DatabaseUnavailable,
    LedgerRestored,
    LogNotSigned,
    ServiceError,
)
from terrine_server.ledger import Ledger, schema_revision
from terrine_server.owner.checkpoints import SignedHistory, log_state
from terrine_server.owner.operations import every_project
from terrine_server.settings import LOW_DISK_BYTES

log = structlog.get_logger("terrine")
router = APIRouter(tags=["operation"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Succeed as long as the process responds. Checks nothing else."""
    return {"status": "alive"}


@router.get(
    "/readyz",
    responses=openapi.problems(
        "database-unavailable",
        "ensemble-unavailable",
        *openapi.NOT_SIGNED,
        token=False,
    ),
)
async def readyz(services: ServicesDep) -> Ready:
    """Succeed if a query could be answered and paid for now.

    The database, its schema and every registered ensemble can be used, the ledger continues what
    was signed of it, and a commit can be made durable. That is found out at most once a second,
    however often it is asked. Who did not cosign the transparency log's last checkpoint is said,
    but keeps nothing from being answered.
    """
    return Ready(log=await services.readiness.check())


@router.get(METRICS_PATH, response_class=PlainTextResponse, responses=openapi.problems())
async def metrics(services: ServicesDep, _: Scraper) -> Response:
    """Return Prometheus metrics: requests, stages, outcomes, the log, each project's account.

    They are built once a second at most; whoever asks sooner waits for the next. While the ledger
    cannot be read, they are those of the process, for tokens of role `metrics` that it has seen.
    """
    return Response(await services.scrape(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def build_metrics(services: Services) -> bytes:
    """Return all metrics in Prometheus's text format; only the process's without a ledger."""
    ledger = LedgerMetrics(services.ledger, services.readiness.policy, services.history)
    try:
        ready = await _is_ready(services)
        whole = (ServerMetrics(services, ready), ledger)
        return await to_thread.run_sync(services.metrics.text, *whole)
    except ServiceError as error:
        log.error("unavailable", problem=error.problem, cause=str(error))
        alone = ServerMetrics(services, ready=False)
        return await to_thread.run_sync(services.metrics.text, alone)


async def _is_ready(services: Services) -> bool:
    """Whether a query could be answered. Raises DatabaseUnavailable if the ledger is not there."""
    try:
        await services.readiness.check()
    except ServiceError as error:
        if isinstance(error, DatabaseUnavailable) and error.reason == "unreachable":
            raise  # to read the ledger would be to wait in vain once more
        return False
    return True


class ServerMetrics(Collector):
    """What this server is, and whether it could answer now."""

    def __init__(self, services: Services, ready: bool) -> None:
        self._services = services
        self._ready = ready

    def collect(self) -> Iterator[Metric]:
        """Yield versions, readiness, the space that is left, and when a backup was made."""
        versions = {
            "version": version("terrine"),
            "python": platform.python_version(),
            "database": self._services.engine.dialect.name,
            "schema": schema_revision(),
        }
        yield InfoMetricFamily("terrine_build", "What this server is made of.", versions)
        yield GaugeMetricFamily(
            "terrine_ready",
            "Whether a query could be answered and paid for now, as in /readyz.",
            float(self._ready),
        )
        low = GaugeMetricFamily(
            "terrine_data_disk_low", "Whether less than 1 GiB is free for the data directory."
        )
        with suppress(OSError):  # how much it is would tell how large the private records are
            free = disk_usage(self._services.settings.data_dir).free
            low.add_metric([], float(free < LOW_DISK_BYTES))
        yield low
        backup = GaugeMetricFamily(
            "terrine_backup_timestamp_seconds",
            "When `terrine backup` last made a good one here, if it ever did. Unix time.",
        )
        with suppress(FileNotFoundError):
            backup.add_metric([], self._services.settings.last_backup_path.stat().st_mtime)
        yield backup


class LedgerMetrics(Collector):
    """What the ledger says, read at each scrape. Auditors see the same in the API."""

    def __init__(self, ledger: Ledger, policy: Policy | None, history: SignedHistory) -> None:
        self._ledger = ledger
        self._policy = policy
        self._history = history

    def collect(self) -> Iterator[Metric]:
        """Yield accounts, caps and the log."""
        yield from self._accounts()
        yield from self._caps()
        yield from self._log()

    def _accounts(self) -> Iterator[Metric]:
        """Yield one gauge per public figure, with one value per project that is not closed."""
        accounts = [
            views.budget(project)
            for project in every_project(self._ledger)
            if project.status is not ProjectStatus.CLOSED
        ]
        for figure, meaning in ACCOUNT_METRICS.items():
            gauge = GaugeMetricFamily(f"terrine_project_{figure}", meaning, labels=["project"])
            for account in accounts:
                gauge.add_metric([account.project], getattr(account, figure))
            yield gauge

    def _caps(self) -> Iterator[Metric]:
        """Yield the cap of each population, and the shares of it that are reserved and spent."""
        spent = self._ledger.projects.spent_of_caps()
        gauges = [
            GaugeMetricFamily(f"terrine_population_{figure}", meaning, labels=["population"])
            for figure, meaning in CAP_METRICS.items()
        ]
        for each in self._ledger.ensembles.list_populations():
            reserved, used = each.reserved / each.cap, spent.get(each.id, 0) / each.cap
            for gauge, value in zip(gauges, (each.epsilon, reserved, used), strict=True):
                gauge.add_metric([each.name], value)
        yield from gauges

    def _log(self) -> Iterator[Metric]:
        """Yield whether the ledger continues what was signed, the last checkpoint's size, and which
        witnesses cosigned it."""
        with suppress(LedgerRestored, LogNotSigned):
            self._history.check()
        for name, kind, meaning in (
            ("ledger_restored", LedgerRestored, "Whether it does not continue what was signed."),
            ("log_not_signed", LogNotSigned, "Whether no checkpoint could be signed for a minute."),
        ):
            failing = float(isinstance(self._history.found, kind))
            yield GaugeMetricFamily(f"terrine_{name}", meaning, failing)
        log = log_state(self._ledger.tree.checkpoint(), self._policy)
        entries = GaugeMetricFamily("terrine_log_entries", "Entries under the last checkpoint.")
        meaning = "Whether the witness cosigned the last checkpoint."
        cosigned = GaugeMetricFamily("terrine_log_cosigned", meaning, labels=["witness"])
        if log is not None:
            entries.add_metric([], log.size)
            for witness in (*log.cosigned, *log.missing):
                cosigned.add_metric([witness], float(witness in log.cosigned))
        yield entries
        yield cosigned


# Of the public account only: students see the same in `GET /budget`.
ACCOUNT_METRICS = {
    "epsilon": "The privacy budget's epsilon.",
    "epsilon_spent": "Epsilon spent so far, as shown to the project's students.",
    "charges": "Ledger entries so far.",
    "affordable": "Further queries that are certain to fit, at the worst-case price.",
}
CAP_METRICS = {
    "epsilon": "The epsilon of the cap that all projects on a population share.",
    "reserved_ratio": "The share of the cap that is carved out for projects, spent or not.",
    "spent_ratio": "The share of the cap that projects have spent.",
}
