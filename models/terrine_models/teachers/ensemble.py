"""n teachers that vote: inputs [B, …] to vote counts [B, m], as fast as the device allows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.data.workers import side_by_side
from terrine_models.teachers.kinds import StoredEnsemble, load_manifest
from terrine_models.teachers.manifests import VOTING_SECONDS, Manifest, Voting, VotingLimits
from terrine_models.teachers.neighbours import NeighbourEnsemble, NeighbourTeachers

VOTING_MEMORY_BYTES = 256 * 2**20


class Ensemble:
    """Trained teachers. Make one with `load`; threads may share it."""

    def __init__(self, manifest: Manifest, voting: Voting) -> None:
        self.manifest = manifest
        self.voting = voting
        """How its teachers vote. It follows from public facts alone, as time and rounding may
        depend on the weights."""
        self._voting = threading.Lock()  # one batch at a time: several would share its memory

    @classmethod
    def load(
        cls,
        directory: Path,
        device: str | None = None,
        *,
        memory: int = VOTING_MEMORY_BYTES,
        seconds: float = VOTING_SECONDS,
        files: Sequence[str] | None = None,
    ) -> Ensemble:
        """Load an ensemble; every byte is verified against the manifest. Raises StoreError.

        `device` is a torch device; None takes CUDA if there is one. Forests and ONNX models vote on
        the CPU, whatever it is. `memory` bounds the bytes that voting uses beyond the weights, the
        result and the buffers of the libraries (some 20 MiB), as long as one input fits. Imported
        teachers vote in a process of their own, which may take `seconds` for a block of inputs and
        limited memory. Only the teachers in `files` are loaded, and vote; without it, all.
        """
        stored = StoredEnsemble.open(directory, files)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        limits = VotingLimits(memory, seconds)
        return cls(stored.manifest, stored.manifest.teacher.voting(stored, limits, device))

    def votes(self, x: NDArray[np.generic]) -> NDArray[np.int64]:
        """Vote counts [B, m] on inputs [B, *shape]; each row sums to the number of teachers.

        A teacher votes for its highest score, and for the lowest index among equal ones. Raises
        ValueError when shape or dtype do not match the manifest, and VotingError when imported
        teachers do not keep to their limits.
        """
        spec, voting = self.manifest.input, self.voting
        if x.shape[1:] != spec.shape or x.dtype != spec.dtype:
            raise ValueError(
                f"Inputs are {x.dtype} {list(x.shape)}, expected {spec.dtype} "
                f"[B, {', '.join(map(str, spec.shape))}]."
            )
        counts = np.empty((len(x), len(self.manifest.classes)), dtype=np.int64)

        def vote(start: int) -> None:
            rows = x[start : start + voting.block]
            block = rows
            if voting.padded:
                block = np.zeros((voting.block, *spec.shape), dtype=spec.dtype)
                block[: len(rows)] = rows
            with torch.inference_mode():
                choices = voting.choose(torch.from_numpy(block).to(voting.device))
            counts[start : start + len(rows)] = _count(choices, counts.shape[1])[: len(rows)]

        starts = range(0, len(x), voting.block)
        if voting.device == "cpu":
            side_by_side(vote, starts)
        else:
            with self._voting:
                for start in starts:
                    vote(start)
        return counts


def load(
    directory: Path,
    device: str | None = None,
    *,
    memory: int = VOTING_MEMORY_BYTES,
    seconds: float = VOTING_SECONDS,
    files: Sequence[str] | None = None,
) -> Ensemble | NeighbourEnsemble:
    """Load an ensemble of any kind: see `Ensemble.load`. Raises StoreError."""
    if isinstance(load_manifest(directory).teacher, NeighbourTeachers):
        return NeighbourEnsemble.load(directory)
    return Ensemble.load(directory, device, memory=memory, seconds=seconds, files=files)


def _count(choices: torch.Tensor, classes: int) -> NDArray[np.int64]:
    """Choices [b, n] to counts [b, m]: one vote of each teacher in its own row, whatever it chose.

    What is no class counts as the nearest: an error would tell of one teacher's choice.
    """
    rows = len(choices)
    offsets = torch.arange(rows, device=choices.device).unsqueeze(1) * classes
    chosen = choices.clamp(0, classes - 1) + offsets
    counts = torch.bincount(chosen.flatten(), minlength=rows * classes)
    array: NDArray[np.int64] = counts.view(rows, classes).cpu().numpy()
    return array
