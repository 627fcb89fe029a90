"""Voters for every kind of ensemble: in this process, or as an add-on has them."""

from __future__ import annotations

from threading import Lock

import numpy as np

from terrine_models.addons import added_as
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.voters import Neighbourhood, Voters
from terrine_server.ledger import EnsembleRecord
from terrine_server.settings import Settings, VotersKind


class AnyVoters(Voters):
    """Passes each ensemble, in its newest edition, on to the voters of its kind."""

    def __init__(self, settings: Settings, kind: VotersKind = VotersKind.HERE) -> None:
        """`kind`: who votes for ensembles that are here."""
        self._settings = settings
        self._kind = kind
        self._voters: dict[str, Voters] = {}
        self._lock = Lock()

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
        with self._lock:
            for voters in self._voters.values():
                voters.close()

    def _of(self, record: EnsembleRecord) -> Voters:
        kind = record.facts.kind
        with self._lock:
            elsewhere = added_as("voters", kind)
            name = kind if elsewhere is not None else "local"
            if name not in self._voters:
                self._voters[name] = (elsewhere or self._local)(self._settings)
            return self._voters[name]

    def _local(self, settings: Settings) -> Voters:
        """Import PyTorch, as large as all else, once an ensemble that is here must vote."""
        if self._kind is not VotersKind.HERE:
            made = added_as("local_voters", self._kind)
            if made is None:
                raise EnsembleUnavailable(
                    f"TERRINE_VOTERS={self._kind} needs the add-on `{self._kind}`, which this "
                    "installation of Terrine lacks."
                )
            voters: Voters = made(settings)
            return voters
        from terrine_server.labeling.local_voters import LocalVoters

        return LocalVoters(settings.data_dir, settings.device, seconds=settings.voting_seconds)
