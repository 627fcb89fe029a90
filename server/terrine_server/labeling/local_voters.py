"""Ensembles in this process: found through the ledger, verified, loaded on first use.

An ensemble votes only while its files are exactly those that were registered. The manifest's digest
must match the ledger, and every file's digest the manifest. Both are checked again when a file on
disk changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import EnsembleRecord

if TYPE_CHECKING:
    from terrine_models.ensemble import Ensemble
    from terrine_models.store import Manifest

FileStamp = tuple[tuple[int, int, int], ...]
"""Inode, size and change time (ctime, which cannot be set) of an ensemble's files."""


@dataclass
class _Slot:
    """One ensemble."""

    loading: Lock = field(default_factory=Lock)
    stamp: FileStamp = ()
    ensemble: Ensemble | None = None


class LocalVoters(Voters):
    """Turns batches of inputs into vote counts, for any registered ensemble."""

    def __init__(self, data_dir: Path, device: str | None = None) -> None:
        self._data_dir = data_dir
        self._device = device
        self._slots: dict[tuple[str, str], _Slot] = {}
        self._lock = Lock()

    def check(self, record: EnsembleRecord) -> None:
        """Load and verify the ensemble if necessary. Raises `EnsembleUnavailable`."""
        self._verified(record)

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        """Return the teachers' vote counts for canonical inputs `[B, …]` as int64 `[B, m]`.

        Raises `EnsembleUnavailable`.
        """
        return self._verified(record).votes(inputs)

    def _slot(self, record: EnsembleRecord) -> _Slot:
        with self._lock:
            return self._slots.setdefault((record.name, record.manifest_sha256), _Slot())

    def _verified(self, record: EnsembleRecord) -> Ensemble:
        from terrine_models.store import StoreError

        slot = self._slot(record)
        directory = self._data_dir / record.path
        with slot.loading:
            try:
                if slot.ensemble is None or slot.stamp != _stamp(directory, slot.ensemble.manifest):
                    slot.ensemble = None
                    slot.stamp, slot.ensemble = self._load(record, directory)
            except (StoreError, OSError) as error:
                raise EnsembleUnavailable(str(error)) from error
            return slot.ensemble

    def _load(self, record: EnsembleRecord, directory: Path) -> tuple[FileStamp, Ensemble]:
        from terrine_models.ensemble import Ensemble
        from terrine_models.store import load_manifest, manifest_digest

        # The stamp is taken before reading, so that a change in between is noticed later.
        stamp = _stamp(directory, load_manifest(directory))

        def check_manifest() -> None:
            if manifest_digest(directory) != record.manifest_sha256:
                raise EnsembleUnavailable(
                    f"The manifest in {directory} is not the one that was registered as "
                    f"{record.name}. Restore it from a backup."
                )

        check_manifest()  # before native code parses files that nobody checked
        ensemble = Ensemble.load(directory, device=self._device)
        check_manifest()  # it is the one that was loaded
        ensemble.fastest()  # measured now, so that the first student does not wait
        return stamp, ensemble


def _stamp(directory: Path, manifest: Manifest) -> FileStamp:
    paths = (directory / name for name in ("manifest.json", *manifest.files))
    return tuple((s.st_ino, s.st_size, s.st_ctime_ns) for s in (path.stat() for path in paths))
