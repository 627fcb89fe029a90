"""What an audit reports: findings, each a measured loss beside its price, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from terrine_server.audit.evidence import Unit

Part = Literal["noise", "mechanisms", "service", "ledger"]
Verdict = Literal["holds", "exceeded", "claim refuted", "claim not refuted", "nothing there"]


@dataclass(frozen=True)
class AuditFinding:
    """One thing that was checked.

    `measured` is a lower confidence bound on the privacy loss and `price` what is charged for it,
    both in `unit`; all three are None where what was checked is no loss. A price that is only
    claimed, and known to be too low, must be refuted: an audit that cannot see it sees nothing.
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
        """Whether this is as it should be."""
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
class Report:
    """All findings of a run. `confidence`: that no sound part was found wanting by chance."""

    confidence: float
    seed: int
    seconds: float
    findings: Sequence[AuditFinding]

    @property
    def passed(self) -> bool:
        """Whether every finding is as it should be."""
        return all(finding.passed for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "passed": self.passed,
            "confidence": self.confidence,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "findings": [
                {**asdict(finding), "passed": finding.passed} for finding in self.findings
            ],
        }
