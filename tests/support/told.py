"""Labeling on a real ledger, with teachers that vote as they are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from books import CLASSES, TEACHERS, open_ledger, terms

from terrine_server.errors import (
    EnsembleUnavailable,
    ServiceError,
)
from terrine_server.labeling.pipeline import CheckedRequest, Labeling
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import ChargedBatch, EnsembleRecord, Ledger, NewProject
from terrine_server.metrics import Metrics

CONFIDENT = {"name": "confident_gnmax", "threshold": 200, "sigma1": 8.0, "sigma2": 5.0}
INTERACTIVE = {**CONFIDENT, "name": "interactive_gnmax", "threshold": 60, "confidence": 0.9}
SHARP = {"name": "gnmax", "sigma": 8.0}
"""So little noise that an agreement is answered with its label."""
MOST = 20


class Told(Voters):
    """Teachers that agree on the class in the first pixel, or split in halves if it is 99."""

    def __init__(self, teachers: int = TEACHERS) -> None:
        self.teachers = teachers
        self.asked: list[list[int]] = []
        self.missing = False
        self.meanwhile: Callable[[], object] | None = None

    def check(self, record: EnsembleRecord) -> None:
        assert record.facts.teachers == self.teachers
        if self.missing:
            raise EnsembleUnavailable("The teachers are away.")

    def available(self, record: EnsembleRecord) -> bool:
        return not self.missing

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        assert record.facts.teachers == self.teachers
        self.asked.append(inputs[:, 0, 1].tolist())
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return cast_votes(inputs, self.teachers)


def cast_votes(inputs: np.ndarray, teachers: int) -> np.ndarray:
    counts = np.zeros((len(inputs), CLASSES), dtype=np.int64)
    for row, label in enumerate(inputs[:, 0, 0]):
        if label == 99:
            counts[row, :2] = teachers // 2
        else:
            counts[row, label] = teachers
    return counts


def images(*pairs: tuple[int, int]) -> np.ndarray:
    """Inputs with these classes to be voted for, and a number in the second pixel."""
    inputs = np.zeros((len(pairs), 28, 28), dtype=np.uint8)
    inputs[:, 0, :2] = pairs
    return inputs


def study(path: Path, mechanism: Mapping[str, Any], queries: int) -> tuple[Labeling, Told, Ledger]:
    """A project whose budget pays for exactly so many queries at the worst price."""
    ledger = open_ledger(f"sqlite:///{path / 'terrine.sqlite'}", epsilon=90.0)
    ledger.open_project(
        NewProject("study", "mnist", mechanism, terms(queries, mechanism, epsilon=80.0))
    )
    voters = Told()
    return Labeling(ledger, voters, Metrics(), MOST), voters, ledger


def labels(answer: ChargedBatch | ServiceError) -> list[int | None]:
    assert isinstance(answer, ChargedBatch), answer
    return [result.label for result in answer.results]


def seqs(answer: ChargedBatch | ServiceError) -> list[int | None]:
    assert isinstance(answer, ChargedBatch), answer
    return [result.seq for result in answer.results]


def one(service: Labeling, ask: CheckedRequest) -> ChargedBatch | ServiceError:
    (answer,) = service.answer("study", [ask])
    return answer
