"""Prometheus metrics of one process: requests, durations, outcomes, and what it signed.

Whoever sent a request knows what is counted of it already: its route, duration, outcomes and
refusals. A stage's duration is a part of the response time and depends on the same things: on the
number of queries, never on their votes. No vote count, margin or label is used here. Nor is what
the process takes of its machine: its memory and processor time grow with the private records, whose
number is secret where people have several. Operators read that from the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Literal, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import Collector

from terrine_protocol import PROBLEMS

# Stages of `POST /label`: reading the body; looking up earlier answers; teachers voting; noise and
# outcome; charging.
Stage = Literal["decode", "replay", "vote", "release", "charge"]
disable_created_metrics()  # type: ignore[no-untyped-call]
M = TypeVar("M", Counter, Histogram)
# What prometheus-client tells of a process and private records do not move.
PUBLIC_PROCESS_METRICS = {"process_start_time_seconds", "process_open_fds", "process_max_fds"}
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Counters and durations of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = _by_labels(
            Counter(
                "terrine_requests_total",
                "Requests answered.",
                ["method", "route", "status"],
                registry=registry,
            )
        )
        self.seconds = _by_labels(
            Histogram(
                "terrine_request_seconds",
                "Duration of requests.",
                ["method", "route"],
                registry=registry,
                buckets=_SECONDS,
            )
        )
        self._stages = _by_labels(
            Histogram(
                "terrine_stage_seconds",
                "Duration of the stages of POST /label, by stage, failed ones included.",
                ["stage"],
                registry=registry,
                buckets=_SECONDS,
            )
        )
        self.queries = _by_labels(
            Counter(
                "terrine_queries_total",
                "Queries by the outcome returned; those answered from the record are replayed.",
                ["outcome", "replayed"],
                registry=registry,
            )
        )
        self.waiting = Gauge(
            "terrine_waiting_queries",
            "Queries that wait for their group.",
            registry=registry,
        )
        self.groups = Histogram(
            "terrine_group_requests",
            "Requests that shared one vote and one commit.",
            registry=registry,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
        )
        self.problems = _by_labels(
            Counter(
                "terrine_problems_total",
                "Requests answered with a problem, by its type.",
                ["problem"],
                registry=registry,
            )
        )
        for problem in PROBLEMS:
            self.problems(
                problem
            )  # zero from the start, or the first one would not count as an increase
        self.signing = Gauge(
            "terrine_signing",
            "Whether this server signs the transparency log: 1 after a round that succeeded.",
            registry=registry,
        )
        self.signed = Gauge(
            "terrine_signed_timestamp_seconds",
            "When this server last found the whole ledger signed; 0 before it did. Unix time.",
            registry=registry,
        )
        _PublicProcessCollector(registry=registry)

    def stage(self, stage: Stage) -> AbstractContextManager[object]:
        """Time one stage of a label request, failed or not."""
        return self._stages(stage).time()

    def text(self, *more: Collector) -> bytes:
        """Return all metrics, and those that `more` collects now, in Prometheus's text format."""
        collected = CollectorRegistry()
        for collector in more:
            collected.register(collector)
        return generate_latest(self.registry) + generate_latest(collected)


class _PublicProcessCollector(ProcessCollector):
    def collect(self) -> Iterator[Metric]:
        return (each for each in super().collect() if each.name in PUBLIC_PROCESS_METRICS)


def _by_labels(metric: M) -> Callable[..., M]:
    """Return a cached look-up of a metric by the values of its labels, which are few."""
    return lru_cache(maxsize=1024)(metric.labels)
