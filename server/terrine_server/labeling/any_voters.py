"""Voters for every kind of ensemble: in this process, or at their owners."""

from __future__ import annotations

import numpy as np

from terrine_server.labeling.local_voters import LocalVoters
from terrine_server.labeling.remote_voters import RemoteVoters
from terrine_server.labeling.shared_voters import SharedVoters
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import SHARED, EnsembleRecord
from terrine_server.settings import Settings

REMOTE = "remote"
"""The kind of an ensemble whose teachers are with their owners."""


class AnyVoters(Voters):
    """Passes each ensemble on to the voters of its kind."""

    def __init__(self, settings: Settings) -> None:
        self._local: Voters = LocalVoters(settings.data_dir, settings.device)
        self._remote: Voters = RemoteVoters(settings.data_dir)
        self._shared: Voters = SharedVoters(settings.data_dir)

    def check(self, record: EnsembleRecord) -> None:
        """Raise `EnsembleUnavailable` unless the registered ensemble can vote now."""
        self._of(record).check(record)

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        """Return the teachers' vote counts for canonical inputs `[B, …]` as int64 `[B, m]`.

        Raises `EnsembleUnavailable`.
        """
        return self._of(record).votes(record, inputs)

    def _of(self, record: EnsembleRecord) -> Voters:
        if record.info["kind"] == SHARED:
            return self._shared
        return self._remote if record.info["kind"] == REMOTE else self._local
