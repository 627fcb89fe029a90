"""A student's queries and their answers on disk, in `answers.npz`."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from terrine_client._labels import NO_COUNT, Labels
from terrine_client.errors import ConfigurationError
from terrine_protocol import ProjectInfo
from terrine_protocol.files import replacing

FILE_NAME = "answers.npz"


@dataclass(eq=False)
class AnswerFile:
    """A row for each of N public inputs, saved before every request and after every reply."""

    path: Path
    about: str
    """Digest of the project and of the public inputs."""
    outcomes: npt.NDArray[np.str_]
    """[N], empty where there is no answer yet."""
    labels: npt.NDArray[np.int64]
    """[N], -1 where there is none."""
    planned: npt.NDArray[np.bool_]
    """[N], True where the input was about to be sent when this was saved."""
    probabilities: npt.NDArray[np.float64]
    """[N, m], probabilities sent with the inputs, for interactive projects. Saved so that a query
    that is sent again is the same query."""
    spending: npt.NDArray[np.float64]
    """[K, 2], queries that the project had paid for, and its ε spent, after each reply."""
    rounds: str = "[]"
    """The rounds so far, as JSON."""
    noisy_counts: npt.NDArray[np.int64] | None = None
    """[N, m], for `noisy_votes`, once there is an answer; `NO_COUNT` in rows without one."""
    noise_sigma: float | None = None
    """The standard deviation of their noise, in votes."""

    @classmethod
    def open(cls, directory: Path, project: ProjectInfo, public: npt.NDArray[Any]) -> AnswerFile:
        """Open the file in `directory`, or start a new one. Raises ConfigurationError."""
        digest = hashlib.sha256(f"{project.name} {project.ensemble.manifest_sha256} ".encode())
        digest.update(f"{project.opened_at.isoformat()} {public.dtype.str}{public.shape}".encode())
        digest.update(np.ascontiguousarray(public).tobytes())
        about = digest.hexdigest()
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / FILE_NAME
        if not path.exists():
            rows, classes = len(public), len(project.ensemble.classes)
            return cls(
                path,
                about,
                np.full(rows, "", dtype="U16"),
                np.full(rows, -1, dtype=np.int64),
                np.zeros(rows, dtype=bool),
                np.zeros((rows, classes)),
                np.zeros((0, 2)),
            )
        try:
            with np.load(path, allow_pickle=False) as file:
                fields = {name: file[name] for name in file.files}
                kept = cls(path, probabilities=fields.pop("beliefs"), **fields)
                kept.about, kept.rounds = str(kept.about), str(kept.rounds)
                if kept.noise_sigma is not None:
                    kept.noise_sigma = float(kept.noise_sigma)
        except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigurationError(
                f"{path} is damaged ({error}). Remove it: sending the inputs again is free."
            ) from None
        if kept.about != about:
            raise ConfigurationError(
                f"{path} holds answers for other inputs or for another project. "
                "Choose another directory."
            )
        return kept

    @property
    def asked(self) -> npt.NDArray[np.bool_]:
        """[N] bool: where there is an answer, abstentions included."""
        asked: npt.NDArray[np.bool_] = self.outcomes != ""
        return asked

    def save_planned(
        self, rows: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64] | None
    ) -> None:
        """Save what is about to be sent."""
        self.planned[:] = False
        self.planned[rows] = True
        if probabilities is not None:
            self.probabilities[rows] = probabilities
        self._save()

    def save_answers(self, rows: npt.NDArray[np.int64], answers: Labels) -> None:
        """Save the answers for `rows`. Refused ones stay without an answer."""
        settled = answers.outcomes != "refused"
        self.outcomes[rows[settled]] = answers.outcomes[settled]
        self.labels[rows[settled]] = answers.labels[settled]
        if answers.noisy_counts is not None:
            if self.noisy_counts is None:
                shape = len(self.labels), answers.noisy_counts.shape[1]
                self.noisy_counts = np.full(shape, NO_COUNT, dtype=np.int64)
            self.noisy_counts[rows[settled]] = answers.noisy_counts[settled]
            self.noise_sigma = answers.noise_sigma
        self.planned[rows] = False
        after = (answers.budget.charges, answers.budget.epsilon_spent)
        self.spending = np.vstack([self.spending, after])
        self._save()

    def save_rounds(self, rounds: str) -> None:
        """Save the rounds so far."""
        self.rounds = rounds
        self._save()

    def _save(self) -> None:
        counted: dict[str, Any] = {}
        if self.noisy_counts is not None:
            counted = {"noisy_counts": self.noisy_counts, "noise_sigma": self.noise_sigma}
        with replacing(self.path) as file:
            np.savez_compressed(
                file,
                about=self.about,
                outcomes=self.outcomes,
                labels=self.labels,
                planned=self.planned,
                beliefs=self.probabilities,
                spending=self.spending,
                rounds=self.rounds,
                **counted,
            )
