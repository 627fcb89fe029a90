"""Answers from sums that the project began with: no query costs anything."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from terrine_server.privacy.events import CostEvent
from terrine_server.privacy.mechanisms.base import Probabilities, Released, VoteOutcome
from terrine_server.privacy.mechanisms.registration import AuditCase, Grid
from terrine_server.privacy.noise import Entropy
from terrine_server.privacy.numbers import Counts
from terrine_server.privacy.parameters import ParameterError, check_ensemble


@dataclass(frozen=True)
class SumAnswers:
    """Labels that follow from sums with noise (`releases.Sums`), for which the project has paid.

    Whatever is computed of a release tells no more than it, so queries are free, and there is no
    vote (docs/privacy/sums.md). `teachers`: how many people the sums are of.
    """

    teachers: int
    classes: int

    name: ClassVar[str] = "sums"
    needs_probabilities: ClassVar[bool] = False
    audit_cases: ClassVar[Sequence[AuditCase]] = ()

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)

    def events(self) -> Mapping[VoteOutcome, CostEvent]:
        """Nothing that is paid for."""
        return {}

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Raise ValueError: there are no votes to release anything of."""
        raise ValueError("sums are released when a project is opened, and not for a query")

    @staticmethod
    def plan_grid(teachers: int, delta: float) -> Grid:
        """Raise `ParameterError`: it is planned from public rows (`planning.forecast`)."""
        raise ParameterError(
            "sums have no votes to plan for: one release, once, costs the whole budget. "
            "`terrine quickstart --dry-run` says what it buys. See docs/privacy/sums.md."
        )
