"""What an audit reports: findings, each with a measured loss, its price and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Any, Literal

from terrine_server.audit.evidence import Unit

Part = Literal["noise", "mechanisms", "service", "ledger"]
Verdict = Literal["holds", "exceeded", "claim refuted", "claim not refuted", "nothing there"]


@dataclass(frozen=True)
class AuditFinding:
    """One thing that was checked.

    `measured` is a lower confidence bound on the privacy loss and `price` is what is charged for
    it, both in `unit`. All three are None if the check does not measure a loss. A price that is
    only claimed, and known to be too low, must be refuted: otherwise the audit has no power.
    """

    part: Part
    subject: str
    verdict: Verdict
    evidence: str
    unit: Unit | None = None
    measured: float | None = None
    price: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the verdict is what it should be."""
        return self.verdict in ("holds", "claim refuted", "nothing there")

    @classmethod
    def of_loss(
        cls,
        part: Part,
        subject: str,
        evidence: str,
        unit: Unit,
        measured: float,
        price: float,
        claimed: bool = False,
    ) -> AuditFinding:
        """Judge a measured loss against its price."""
        verdict: Verdict = "exceeded" if measured > price else "holds"
        if claimed:
            verdict = "claim refuted" if measured > price else "claim not refuted"
        return cls(part, subject, verdict, evidence, unit, measured, price)


@dataclass(frozen=True)
class AuditReport:
    """All findings of a run. `confidence`: the probability that no sound part fails by chance."""

    made_at: datetime
    confidence: float
    seed: int
    seconds: float
    findings: Sequence[AuditFinding]

    @property
    def passed(self) -> bool:
        """Whether every finding passed."""
        return all(finding.passed for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "made_at": self.made_at.isoformat(),
            "version": version("terrine"),
            "passed": self.passed,
            "confidence": self.confidence,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "findings": [
                {**asdict(finding), "passed": finding.passed} for finding in self.findings
            ],
        }
