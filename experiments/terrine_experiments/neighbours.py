"""An experiment in which every private record votes, with an account, and nothing is trained."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine_experiments.experiment import Experiment, Run
from terrine_experiments.setup import Setup
from terrine_models.teachers.manifests import Manifest
from terrine_models.teachers.neighbours import (
    NeighbourEnsemble,
    NeighbourSettings,
    build,
    forecast_from_public,
)
from terrine_server.planning.first_project import plan_neighbours

IMAGES = ((0.1, 960), (0.3, 240), (math.inf, 120))
NEAR: dict[str, tuple[tuple[float, int], ...]] = {
    "mnist": IMAGES,
    "fashion": IMAGES,
    "glyph": ((math.inf, 600),),
    "adult": ((0.1, 600), (0.3, 300), (math.inf, 100)),
}
"""Units near a query, up to an ε: the more noise, the more of them."""
BLOCK = 256


class NeighbourExperiment(Experiment):
    """See `Experiment`. A run has noise of its own, and the records are the same.

    Noise and accounts are planned as by `terrine plan neighbours`, by public rows alone.
    """

    def directory(self, number: int) -> Path:
        """The records are the same in all runs."""
        units = near(self.source.name, self.setup.epsilon)
        return self.out / "ensembles" / f"{self.source.name}-neighbours-{units}"

    def _manifest(self, number: int) -> Manifest:
        directory = self.directory(number)
        if not directory.exists():
            build(
                self.source.private,
                directory,
                name=f"{self.source.name}-neighbours",
                public=self.public,
                settings=NeighbourSettings(near=near(self.source.name, self.setup.epsilon)),
            )
        return self.ensemble.manifest

    @cached_property
    def ensemble(self) -> NeighbourEnsemble:
        """The records."""
        return NeighbourEnsemble.load(self.directory(0))

    def _specification(self, setup: Setup, manifest: Manifest) -> dict[str, Any]:
        by = forecast_from_public(self.ensemble)
        plan = plan_neighbours(
            by.spent,
            units=by.units,
            near=by.near,
            queries=len(self.pool),
            epsilon=setup.epsilon,
            delta=setup.delta,
        )
        return {"name": "neighbours", "sigma": plan.sigma, "queries": plan.queries}

    def _plurality(self, run: Run, tested: NDArray[np.int64]) -> float:
        """Accuracy of the plurality of all votes, without accounts. A look at private votes."""
        labels, truth = self.ensemble.labels, self.source.test.labels
        one_hot = np.eye(len(self.ensemble.manifest.classes), dtype=np.float32)[labels]
        right = [
            (self.ensemble.weights(self.x[rows]) @ one_hot).argmax(1) == truth[rows]
            for rows in np.array_split(tested, -(-len(tested) // BLOCK))
        ]
        return float(np.concatenate(right).mean())


def near(name: str, epsilon: float) -> int:
    """Return how many units are near a query of a data set."""
    return next(units for most, units in NEAR[name] if epsilon <= most)
