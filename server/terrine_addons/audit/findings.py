"""What an audit reports: findings, each with a measured loss, its price and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

Unit = Literal["μ", "ε", "D₂"]
Part = Literal["noise", "mechanisms", "student", "ledger"]
Verdict = Literal["holds", "exceeded", "claim refuted", "claim not refuted", "nothing there"]


@dataclass(frozen=True)
class AttackFigures:
    """How often an attack on students told which of two versions of a record was there.

    Limits have 95 % confidence; what is allowed is what (ε, δ) leaves to the best attack.
    """

    students: int
    """That were attacked, beside those from which the attacker learned."""
    guesses: int
    right: float
    """The share of guesses that were right, of toss-ups."""
    right_limits: tuple[float, float]
    right_allowed: float
    caught: float
    """Of the first versions, where one in a hundred second ones is taken for a first."""
    caught_limits: tuple[float, float]
    caught_allowed: float
    auc: float

    def in_words(self) -> str:
        """Return the figures as a sentence."""
        right, caught = self.right_limits, self.caught_limits
        return (
            f"{self.guesses:,} guesses about {self.students} students: right on {self.right:.1%} "
            f"({right[0]:.1%} to {right[1]:.1%}), allowed {self.right_allowed:.1%}; caught at 1 "
            f"false accusation in 100: {self.caught:.1%} ({caught[0]:.1%} to {caught[1]:.1%}), "
            f"allowed {self.caught_allowed:.1%}; AUC {self.auc:.3f}"
        )


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
    attack: AttackFigures | None = None
    """Of an attack on students."""

    @property
    def passed(self) -> bool:
        """Return whether the verdict is what it should be."""
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
        claimed: bool,
    ) -> AuditFinding:
        """Judge a measured loss against the price."""
        exceeded = measured > price
        verdict: Verdict = "exceeded" if exceeded else "holds"
        if claimed:
            verdict = "claim refuted" if exceeded else "claim not refuted"
        return cls(part, subject, verdict, evidence, unit, measured, price)


@dataclass(frozen=True)
class AuditReport:
    """All findings of a run. `confidence`: the probability that no sound part fails by chance."""

    made_at: datetime
    version: str
    """Of Terrine."""
    confidence: float
    seed: int
    seconds: float
    findings: Sequence[AuditFinding]

    @property
    def passed(self) -> bool:
        """Return whether every finding passed."""
        return all(finding.passed for finding in self.findings)

    @property
    def best_attack(self) -> AttackFigures | None:
        """The figures of the best attack on students of a project; None if none were attacked."""
        tried = (each for each in self.findings if not each.verdict.startswith("claim"))
        found = (each.attack for each in tried if each.attack is not None)
        return max(found, key=lambda attack: attack.right, default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "made_at": self.made_at.isoformat(),
            "version": self.version,
            "passed": self.passed,
            "confidence": self.confidence,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "findings": [
                {**asdict(finding), "passed": finding.passed} for finding in self.findings
            ],
        }
