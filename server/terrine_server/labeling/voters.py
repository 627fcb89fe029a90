"""The interface for casting votes, and the check of every vote count."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from terrine_server.errors import EnsembleUnavailable
from terrine_server.ledger import SHARED, EnsembleRecord


class Voters(Protocol):
    """Turns batches of inputs into the vote counts of registered ensembles. Thread-safe.

    To add one, derive a class and let `any_voters.AnyVoters` choose it.
    """

    def check(self, record: EnsembleRecord) -> None:
        """Raise `EnsembleUnavailable` unless the registered ensemble can vote now."""

    def available(self, record: EnsembleRecord) -> bool:
        """Whether `check` passes."""
        try:
            self.check(record)
        except EnsembleUnavailable:
            return False
        return True

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        """Return the teachers' vote counts for canonical inputs `[B, …]` as int64 `[B, m]`.

        Of an ensemble of the kind `SHARED`, sums as uint32 `[B, m]`: counts modulo 2³², with the
        aggregator's noise. Raises `EnsembleUnavailable`.
        """

    def close(self) -> None:
        """Give back what outlives a vote, such as processes. Nothing is voted on after it."""
        return  # most have nothing


def checked_votes(voters: Voters, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
    """Return the vote counts for canonical inputs `[B, …]`: int64 `[B, m]`, checked.

    Raises `EnsembleUnavailable`, also if a row is not one vote per teacher: every price depends
    on that, but for that of sums (`SHARED`), which nobody can check.
    """
    counts = voters.votes(record, inputs)
    teachers, classes = record.facts.teachers, len(record.facts.classes)
    if record.facts.kind == SHARED:
        return counts
    if (
        counts.shape != (len(inputs), classes)
        or counts.dtype.kind != "i"
        or (counts < 0).any()
        or (counts.sum(axis=1) != teachers).any()
    ):
        raise EnsembleUnavailable(
            f"The ensemble {record.name} returned counts that do not add up to its teachers."
        )
    return counts
