"""What `label` returns: the answers, as arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from terrine_protocol import Budget, LabelResult, Outcome


@dataclass(frozen=True, eq=False)
class Labels:
    """The answers to B inputs, in their order, and the project's account after them.

    outcomes: [B] strings, one of `Outcome` each, none "published".
    labels: [B] int64, the class index; -1 where there is none.
    charges: [B] int64, number of the ledger entry that paid for the answer; -1 where refused.
    replayed: [B] bool, True where an earlier answer was repeated, at no cost.
    """

    outcomes: npt.NDArray[np.str_]
    labels: npt.NDArray[np.int64]
    charges: npt.NDArray[np.int64]
    replayed: npt.NDArray[np.bool_]
    budget: Budget

    @classmethod
    def gather(cls, results: Sequence[LabelResult], budget: Budget) -> Labels:
        """Collect the server's results, one per input."""
        return cls(
            outcomes=np.array([result.outcome.value for result in results], dtype=np.str_),
            labels=_integers([result.label for result in results]),
            charges=_integers([result.charge for result in results]),
            replayed=np.array([result.replayed for result in results], dtype=np.bool_),
            budget=budget,
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """[B] bool: where there is a label to learn from, `answered` or `reinforced`."""
        return self.labels >= 0

    @property
    def counts(self) -> dict[Outcome, int]:
        """Number of inputs with each outcome."""
        tally: Counter[Any] = Counter(self.outcomes.tolist())
        outcomes = (outcome for outcome in Outcome if outcome is not Outcome.PUBLISHED)
        return {outcome: tally[outcome.value] for outcome in outcomes}

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items() if count)
        return f"<Labels of {len(self)} inputs: {counts}>"


def _integers(values: Sequence[int | None]) -> npt.NDArray[np.int64]:
    return np.array([-1 if value is None else value for value in values], dtype=np.int64)
