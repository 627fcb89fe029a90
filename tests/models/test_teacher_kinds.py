"""A kind of teacher is one class in one file: nothing else knows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from support.processes import Terrine
from support.wording import holds, refuses
from terrine_models.data.arrays import Dataset
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import SETTINGS_CONFIG, FeatureSpec, StoreError
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import load_manifest
from terrine_models.teachers.manifests import (
    KINDS,
    ShardTeachers,
    StoredEnsemble,
    TeacherSettings,
    Trained,
    Voting,
    VotingLimits,
    teacher_kind,
)
from terrine_models.teachers.shards import Shards


@dataclass(frozen=True, config=SETTINGS_CONFIG)
class Centroids(TeacherSettings):
    """The nearest class mean."""

    shrink: Annotated[float, Field(ge=0, le=1, description="Towards the mean of all.")] = 0.0
    kind = "centroids"

    def teacher(
        self, data: Dataset, features: FeatureSpec | None, public: PublicData | None
    ) -> CentroidTeachers:
        return CentroidTeachers(shrink=self.shrink)


class CentroidTeachers(ShardTeachers):
    kind: Literal["centroids"] = "centroids"
    features: None = None
    shrink: float
    settings = Centroids

    def train(self, shards: Shards, run: range) -> Trained:
        made = []
        for teacher in run:
            x, y = shards.records_of(teacher)
            flat, mean = x.flatten(1), x.flatten(1).mean(0)
            own = [flat[y == c] for c in range(len(shards.data.classes))]
            rows = [each.mean(0) if len(each) else mean for each in own]
            made.append((1 - self.shrink) * torch.stack(rows) + self.shrink * mean)
        return {"means": torch.stack(made)}

    def voting(self, stored: StoredEnsemble, limits: VotingLimits, device: str) -> Voting:
        spec, classes = stored.manifest.input, len(stored.manifest.classes)
        size = int(np.prod(spec.shape))
        means = stored.stacked({"means": (classes, size)})["means"]

        def choose(x: torch.Tensor) -> torch.Tensor:
            return torch.cdist(x.float().flatten(1), means).argmin(2).T

        return Voting(choose, limits.block(1000, 16), "cpu")


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    teacher_kind(CentroidTeachers)
    yield
    del KINDS["centroids"]


def test_a_kind_in_this_file_is_trained_shown_verified_registered_and_votes(
    terrine: Terrine, tmp_path: Path, digits: Dataset
) -> None:
    x, y = digits.inputs[:600], digits.labels[:600]
    np.savez(tmp_path / "private.npz", x=x, y=y, classes=digits.classes)
    train = ("ensemble", "train", tmp_path / "private.npz", "--name", "d", "--teachers", 5)
    assert "shrink" in terrine("parameters", "centroids").fine
    assert "5 (centroids)" in terrine(*train, "--kind", "centroids:shrink=0.1").fine
    holds(terrine("ensemble", "show", "d", "--verify").fine, 1, "file")
    directory = tmp_path / "data" / "ensembles" / "d"
    assert load_manifest(directory).teacher == CentroidTeachers(shrink=0.1)
    votes = Ensemble.load(directory).votes(digits.inputs[600:])
    assert (votes.sum(1) == 5).all()
    assert (votes.argmax(1) == digits.labels[600:]).mean() > 0.8
    assert terrine("init").fine
    assert terrine("ensemble", "register", "d", "--epsilon", 4, "--delta", 1e-4).fine
    del KINDS["centroids"]
    with refuses(StoreError, "'centroids'"):
        load_manifest(directory)
    teacher_kind(CentroidTeachers)
