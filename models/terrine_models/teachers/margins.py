"""People who answer in which cell of each column one of their rows lies, of earlier versions.

An input is the number of a question (`tables.designed.margin_questions`), and each person is a
teacher, who has one vote on it. None are made any more: histograms are what a project begins with,
and nothing of the people is kept. Those that are there still vote, and people can leave them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from terrine_models.storage.manifests import StoreError
from terrine_models.teachers.manifests import (
    Choose,
    EnsemblePlan,
    StoredEnsemble,
    TeacherKind,
    Trained,
    Voting,
    VotingLimits,
    check_shapes,
    teacher_kind,
)

ANSWERS_FILE = "teachers-00000.safetensors"


@teacher_kind
class MarginTeachers(TeacherKind):
    """People who answer in which cells they are, as the manifest describes them."""

    kind: Literal["margins"] = "margins"
    cells: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=2)]
    """How many answers each question has."""
    schema_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Of the schema by which they answered."""

    def check(self, plan: EnsemblePlan) -> None:
        """Raise ValueError unless each unit is a teacher."""
        super().check(plan)
        if plan.teachers != plan.units:
            raise ValueError("of margins, each unit is a teacher")
        if len(plan.classes) != max(self.cells):
            raise ValueError("of margins, there is a class for each cell")

    def voting(self, stored: StoredEnsemble, limits: VotingLimits, device: str) -> Voting:
        """Look the answers up. Raises StoreError."""
        where = str(stored.directory / ANSWERS_FILE)
        found = stored.tensors(ANSWERS_FILE)
        shape = (stored.manifest.units, len(self.cells))
        check_shapes(where, found, {"cells": shape})
        cells = found["cells"]
        most = torch.tensor(self.cells)
        if cells.dtype != torch.int16 or (cells < 0).any() or (cells >= most).any():
            raise StoreError(f"{where} holds answers that no question has.")
        return Voting(_look_up(cells.T.contiguous().long()), block=1, device="cpu")

    def described(self) -> dict[str, str]:
        """How many questions."""
        return {"questions": f"{len(self.cells)}, of up to {max(self.cells):,} cells"}


def _look_up(cells: torch.Tensor) -> Choose:
    def choose(x: torch.Tensor) -> torch.Tensor:
        return cells[x[:, 0].long()]

    return choose


def forget_answers(stored: StoredEnsemble, slots: NDArray[np.int64]) -> Trained:
    """Return the tensors in which those in the slots answer the first cell of every question.

    As if their records were blank: how many people there were is public, and stays. Raises
    StoreError.
    """
    cells = stored.tensors(ANSWERS_FILE)["cells"].clone()
    cells[torch.from_numpy(slots)] = 0
    return {"cells": cells}
