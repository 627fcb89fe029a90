"""Voters for every kind of ensemble: in this process, on a cluster, or at their owners."""

from __future__ import annotations

from threading import Lock

import numpy as np

from terrine_server.labeling.remote_voters import RemoteVoters, SharedVoters
from terrine_server.labeling.voters import Neighbourhood, Voters
from terrine_server.ledger import SHARED, EnsembleRecord
from terrine_server.settings import Settings, VotersKind

REMOTE = "remote"
"""The kind of an ensemble whose teachers are with their owners."""


class AnyVoters(Voters):
    """Passes each ensemble, in its newest edition, on to the voters of its kind."""

    def __init__(self, settings: Settings, kind: VotersKind = VotersKind.HERE) -> None:
        """`kind`: who votes for ensembles that are here."""
        self._settings = settings
        self._kind = kind
        self._local: Voters | None = None
        self._lock = Lock()
        self._remote = RemoteVoters(settings.data_dir)
        self._shared = SharedVoters(settings.data_dir)

    def check(self, record: EnsembleRecord) -> None:
        """Raise `EnsembleUnavailable` unless the registered ensemble can vote now."""
        self._of(record).check(record.current)

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        """Return the teachers' vote counts for canonical inputs `[B, …]` as int64 `[B, m]`.

        Raises `EnsembleUnavailable`.
        """
        return self._of(record).votes(record.current, inputs)

    def neighbourhood(self, record: EnsembleRecord) -> Neighbourhood:
        """Return the records of an ensemble whose units vote. Raises `EnsembleUnavailable`."""
        return self._of(record).neighbourhood(record.current)

    def close(self) -> None:
        """Give back what outlives a vote."""
        if self._local is not None:
            self._local.close()

    def _of(self, record: EnsembleRecord) -> Voters:
        if record.facts.kind == SHARED:
            return self._shared
        if record.facts.kind == REMOTE:
            return self._remote
        with self._lock:
            if self._local is None:
                self._local = _local(self._settings, self._kind)
            return self._local


def _local(settings: Settings, kind: VotersKind) -> Voters:
    """Import PyTorch, which is as large as all else, once an ensemble that is here must vote."""
    from terrine_server.labeling.local_voters import LocalVoters
    from terrine_server.labeling.ray_voters import RayVoters

    if kind is VotersKind.HERE:
        return LocalVoters(settings.data_dir, settings.device, seconds=settings.voting_seconds)
    return RayVoters(
        settings.data_dir, settings.ray_address, settings.ray_actors, settings.voting_seconds
    )
