"""What a student has asked and been told, on disk: `answers.npz`."""

from __future__ import annotations

import hashlib
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from terrine_client._labels import Labels
from terrine_client.errors import ConfigurationError
from terrine_client.protocol import ProjectInfo

FILE = "answers.npz"


@dataclass(eq=False)
class Notebook:
    """One row for each of N public inputs. Written down before asking and after every answer."""

    path: Path
    about: str
    """Digest of the project and of the public inputs."""
    outcomes: npt.NDArray[np.str_]
    """[N], empty where nothing was asked."""
    labels: npt.NDArray[np.int64]
    """[N], -1 where there is none."""
    turn: npt.NDArray[np.int64]
    """[N], place in the order of asking; -1 where not planned."""
    beliefs: npt.NDArray[np.float64]
    """[N, m], probabilities sent along, for interactive projects. Kept so that a question asked
    again is the same question."""

    @classmethod
    def open(cls, directory: Path, project: ProjectInfo, public: npt.NDArray[Any]) -> Notebook:
        """Go on with the notebook in `directory`, or begin one. Raises ConfigurationError."""
        digest = hashlib.sha256(f"{project.name} {project.ensemble.manifest_sha256} ".encode())
        digest.update(f"{project.opened_at.isoformat()} {public.dtype.str}{public.shape}".encode())
        digest.update(np.ascontiguousarray(public).tobytes())
        about = digest.hexdigest()
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / FILE
        if not path.exists():
            rows, classes = len(public), len(project.ensemble.classes)
            return cls(
                path,
                about,
                np.full(rows, "", dtype="U16"),
                np.full(rows, -1, dtype=np.int64),
                np.full(rows, -1, dtype=np.int64),
                np.zeros((rows, classes)),
            )
        try:
            with np.load(path, allow_pickle=False) as file:
                kept = cls(path, **{name: file[name] for name in file.files})
                kept.about = str(kept.about)
        except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigurationError(
                f"{path} is damaged ({error}). Remove it: asking again is free"
            ) from None
        if kept.about != about:
            raise ConfigurationError(
                f"{path} holds answers about other inputs or of another project. "
                "Choose another directory"
            )
        return kept

    @property
    def asked(self) -> npt.NDArray[np.bool_]:
        """[N] bool: where the service has answered, abstentions included."""
        return self.outcomes != ""

    @property
    def pending(self) -> npt.NDArray[np.bool_]:
        """[N] bool: what is planned and not yet answered."""
        return (self.turn >= 0) & ~self.asked

    def plan(self, rows: npt.NDArray[np.int64], beliefs: npt.NDArray[np.float64] | None) -> None:
        """Write down what will be asked next, in order."""
        self.turn[rows] = int(self.turn.max()) + 1 + np.arange(len(rows))
        if beliefs is not None:
            self.beliefs[rows] = beliefs
        self._save()

    def drop_plan(self) -> None:
        """What was not answered is not asked any more."""
        self.turn[self.pending] = -1
        self._save()

    def record(self, rows: npt.NDArray[np.int64], answers: Labels) -> None:
        """Write down what the service said of `rows`. Refused ones stay unasked."""
        told = answers.outcomes != "refused"
        self.outcomes[rows[told]] = answers.outcomes[told]
        self.labels[rows[told]] = answers.labels[told]
        self._save()

    def _save(self) -> None:
        scratch = self.path.with_name(f".{FILE}.{os.getpid()}.tmp")
        try:
            with scratch.open("wb") as file:
                np.savez_compressed(
                    file,
                    about=self.about,
                    outcomes=self.outcomes,
                    labels=self.labels,
                    turn=self.turn,
                    beliefs=self.beliefs,
                )
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self.path)
        finally:
            scratch.unlink(missing_ok=True)
