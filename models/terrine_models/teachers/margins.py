"""Margins: every person answers in which cell of each column one of their rows lies.

    save_margin_voters(private, Path("ensembles/adult-margins"), name="adult-margins")
    Ensemble.load(Path("ensembles/adult-margins")).votes(np.array([[0], [1]], np.uint8))

An input is the number of a question (`tables.designed.margin_questions`), and each person is a
teacher, who has one vote on it. So the counts of a question are the histogram of a column, and
replacing one person moves one vote: what the mechanism `noisy_votes` prices.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from terrine_models.data.arrays import DataError, Dataset, InputSpec
from terrine_models.storage.manifests import (
    IDENTITIES_FILE,
    Partition,
    StoreError,
    save_tensors,
    versions,
)
from terrine_models.tables.designed import Question, find_cells, margin_questions
from terrine_models.teachers.manifests import (
    Choose,
    EnsemblePlan,
    Manifest,
    StoredEnsemble,
    TeacherKind,
    Trained,
    Voting,
    VotingLimits,
    check_shapes,
    save_manifest,
    teacher_kind,
)
from terrine_models.teachers.people import People
from terrine_models.teachers.shards import check_encoding, check_new, unit_count
from terrine_protocol.files import new_directory
from terrine_protocol.tables import TableSchema

ANSWERS_FILE = "teachers-00000.safetensors"


@teacher_kind
class MarginTeachers(TeacherKind):
    """People who answer in which cells they are, as the manifest describes them."""

    kind: Literal["margins"] = "margins"
    cells: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=2)]
    """How many answers each question has."""
    schema_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Of the schema by which they answered (`digest_schema`)."""

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


def digest_schema(schema: TableSchema) -> str:
    """Return the SHA-256 of a schema, as hex."""
    return hashlib.sha256(schema.model_dump_json(exclude_defaults=True).encode()).hexdigest()


def save_margin_voters(
    data: Dataset, out: Path, *, name: str, seed: int = 0, key: bytes | None = None
) -> tuple[Manifest, tuple[Question, ...]]:
    """Save in directory `out` what the people of a table answer; return their questions too.

    The directory is as private as the records. `key`: as for `training.train_ensemble`. Raises
    TrainingError (`out` exists) and DataError (no table, or columns that cannot be released).
    """
    if data.encoding is None:
        raise DataError(
            f"{data.name} is not a table: only a schema says which rows can be asked. Pictures and "
            "arrays need a public pool."
        )
    check_new(out)
    check_encoding(data)
    questions, units = margin_questions(data.encoding), unit_count(data)
    if units < 2:
        raise DataError(f"{data.name} has one unit; margins of one person are that person.")
    cells = torch.from_numpy(find_cells(questions, data, seed)).to(torch.int16)
    grouped = data.groups is not None
    partition = Partition(
        recipe="groups" if grouped else "rows",
        seed=seed,
        group_column=data.group_column,
        smallest=1,
        largest=1,
    )
    with new_directory(out) as work:
        files = {ANSWERS_FILE: save_tensors(work / ANSWERS_FILE, {"cells": cells})}
        if key is not None and grouped:
            files[IDENTITIES_FILE] = People.of(data, key).save(work, key)
        widest = max(each.cells for each in questions)
        manifest = Manifest(
            name=name,
            teacher=MarginTeachers(
                cells=tuple(each.cells for each in questions),
                schema_sha256=digest_schema(data.encoding),
            ),
            input=InputSpec(shape=(1,), dtype="uint8", low=0, high=len(questions) - 1),
            classes=tuple(map(str, range(widest))),
            teachers=units,
            units=units,
            partition=partition,
            versions=versions(),
            files=dict(sorted(files.items())),
        )
        save_manifest(work, manifest)
    return manifest, questions
