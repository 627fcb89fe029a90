"""A complete audit: which parts, with which effort and which confidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Literal

import numpy as np

from terrine_server.audit.ledger import audit_books
from terrine_server.audit.mechanisms import audit_mechanisms
from terrine_server.audit.noise import audit_noise
from terrine_server.audit.worst_votes import audit_prices
from terrine_server.findings import AuditFinding, AuditReport
from terrine_server.ledger import Ledger

Subject = Literal["mechanisms", "service", "ledger"]
STATISTICAL = 3
"""The noise, the mechanisms and the service share the probability of a false alarm."""


@dataclass(frozen=True)
class SampleSizes:
    """Sample sizes: the larger they are, the smaller the excess that is detected."""

    draws: int
    """Releases for each vote vector, in each half."""
    noise: int
    """Draws of each kind of noise."""
    students: int
    """Students of the attacked service, in each world, of each adversary."""


FULL = SampleSizes(draws=500_000, noise=10_000_000, students=200)
QUICK = SampleSizes(draws=60_000, noise=1_000_000, students=40)


def audit(
    subjects: Collection[Subject],
    effort: SampleSizes,
    confidence: float,
    seed: int,
    ledger: Ledger | None,
    on_finding: Callable[[AuditFinding], None] = lambda finding: None,
) -> AuditReport:
    """Audit the subjects; pass each finding to `on_finding` as it comes.

    `confidence`: the probability that nothing sound is convicted by chance, in all parts together.
    `seed` picks vote vectors and inputs, never noise. `ledger` is None if there is none to audit.
    """
    start = time.monotonic()
    findings = []
    for finding in _findings(subjects, effort, (1 - confidence) / STATISTICAL, seed, ledger):
        findings.append(finding)
        on_finding(finding)
    return AuditReport(
        datetime.now(UTC), version("terrine"), confidence, seed, time.monotonic() - start, findings
    )


def _findings(
    subjects: Collection[Subject],
    effort: SampleSizes,
    level: float,
    seed: int,
    ledger: Ledger | None,
) -> Iterator[AuditFinding]:
    choice = np.random.default_rng(seed)
    if "mechanisms" in subjects:
        yield from audit_noise(effort.noise, level)
        yield from audit_mechanisms(effort.draws, level, choice)
        yield from audit_prices()
    if "service" in subjects:
        # It brings PyTorch and the web framework, which an auditor of the rest need not install.
        from terrine_server.audit.people import audit_people
        from terrine_server.audit.service import audit_service

        yield from audit_service(effort.students, level / 2, choice)
        yield from audit_people(effort.students, level / 2, choice)
    if "ledger" in subjects and ledger is not None:
        yield from audit_books(ledger)
    elif "ledger" in subjects:
        yield AuditFinding(
            "ledger", "books", "nothing there", "no service was set up on this machine"
        )
