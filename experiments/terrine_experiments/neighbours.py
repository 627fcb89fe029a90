"""An experiment in which every private record votes, with an account, and nothing is trained.

No server is asked: the records weigh in, the service's mechanism casts their votes within their
accounts and adds its noise, and the product's student learns from the counts. Radius, allowance and
noise are chosen by public inputs alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from terrine_experiments.experiment import Experiment, Run
from terrine_experiments.lesson import Bought
from terrine_experiments.setup import Setup
from terrine_experiments.sources import Source
from terrine_models.students.answers import Answers
from terrine_models.teachers.manifests import Manifest
from terrine_models.teachers.neighbours import NeighbourEnsemble, NeighbourSettings, build
from terrine_server.privacy import Units
from terrine_server.privacy.budget import Allowance, Rule, allowance
from terrine_server.privacy.mechanisms import Neighbours as Mechanism
from terrine_server.privacy.parameters import ParameterError

LASTING = 0.5
"""Share of the public inputs that, as private ones, would still take part in the last query."""
IMAGES = ((0.1, 960), (0.3, 240), (math.inf, 120))
NEAR: dict[str, tuple[tuple[float, int], ...]] = {
    "mnist": IMAGES,
    "fashion": IMAGES,
    "glyph": ((math.inf, 600),),
    "adult": ((0.1, 600), (0.3, 300), (math.inf, 100)),
}
"""Units near a query, up to an ε: the more noise, the more of them."""
BLOCK = 256
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ProjectForecast:
    """A project as forecast from public inputs in place of private ones. It is public."""

    rule: Rule
    allowance: Allowance
    votes: float
    """Units that take part in a query, on average over all of them."""


class NeighbourExperiment(Experiment):
    """See `Experiment`. A run has noise of its own, and the records are the same."""

    def __init__(
        self, source: Source, setups: Sequence[Setup], out: Path, console: Console
    ) -> None:
        super().__init__(source, setups, out, console)
        self.near = near(source.name, setups[0].epsilon)

    def directory(self, number: int) -> Path:
        """The records are the same in all runs."""
        return self.out / "ensembles" / f"{self.source.name}-neighbours-{self.near}"

    def _manifest(self, number: int) -> Manifest:
        directory = self.directory(number)
        if not directory.exists():
            build(
                self.source.private,
                directory,
                name=f"{self.source.name}-neighbours",
                public=self.public,
                settings=NeighbourSettings(near=self.near),
            )
        return self.ensemble.manifest

    @cached_property
    def ensemble(self) -> NeighbourEnsemble:
        """The records."""
        return NeighbourEnsemble.load(self.directory(0))

    def weights(self) -> Iterator[NDArray[np.uint8]]:
        """Of all inputs of the pool, in order, some at a time."""
        for start in range(0, len(self.pool), BLOCK):
            yield self.ensemble.weights(self.pool[start : start + BLOCK])

    @cached_property
    def appearances(self) -> Ints:
        """How many of the public inputs each of them is near, itself left out."""
        public = self.ensemble.public
        stand_ins = replace_records(self.ensemble, public)
        near_to = np.zeros(len(public), np.int64)
        for start in range(0, len(public), BLOCK):
            near_to += stand_ins.near(public[start : start + BLOCK]).sum(0, dtype=np.int64)
        return np.maximum(near_to - 1, 0)

    def forecast(self, setup: Setup) -> ProjectForecast:
        """Choose A so that half of the public inputs would last, and the least noise for it."""
        public, near_to = self.ensemble.public, self.appearances
        queries = len(self.pool)
        near_to = np.rint(near_to * (queries / len(public))).astype(np.int64)
        wanted = max(1, int(np.quantile(near_to, LASTING)))
        low, high = 0.5, 10_000.0
        while high / low > 1 + 1e-6:
            sigma = (low * high) ** 0.5
            low, high = (low, sigma) if _most(sigma, queries, setup) >= wanted else (sigma, high)
        rule, found = allowance(round(high, 4), 1, queries, setup.epsilon, setup.delta)
        kept = float(np.minimum(near_to, found.most).mean() / queries)
        return ProjectForecast(rule, found, kept * self.ensemble.manifest.units)

    def _bought(self, setup: Setup, run: Run, specification: dict[str, Any]) -> Bought:
        """Cast and release the counts of every input of the pool, once; or look them up."""
        forecast = self.forecast(setup)
        found, ensemble = forecast.allowance, self.ensemble
        classes = len(ensemble.manifest.classes)
        home = self._home(setup, run)
        home.mkdir(parents=True, exist_ok=True)
        file = home / f"counts-{found.most}-{found.sigma:g}.npy"
        if not file.exists():
            mechanism = Mechanism(
                teachers=ensemble.manifest.teachers,
                classes=classes,
                sigma=found.sigma,
                queries=found.queries,
            )
            units = Units.of(ensemble.units, ensemble.labels, ensemble.manifest.teachers)
            accounts = np.zeros(units.count, np.uint32)
            made = []
            for weights in self.weights():
                counts, accounts = mechanism.cast(weights, units, accounts, found.most)
                released = mechanism.release(counts).counts
                if released is not None:
                    made.append(released)
            retired = float((accounts >= found.most).mean())
            self._say(f"{retired:.0%} of the private records took part until they had retired.")
            np.save(file, np.concatenate(made))
        noisy = np.load(file)
        self._say(
            f"Run {run.number + 1}, ε = {setup.epsilon:g}: A = {found.most}, σ = {found.sigma:g}, "
            f"{forecast.votes:.0f} votes a query by public inputs."
        )
        return Bought(
            answers=Answers.of_counts(
                noisy,
                teachers=max(1, round(forecast.votes)),
                sigma=found.sigma,
                matches_prior=ensemble.manifest.teacher.matches_prior,
            ),
            outcomes={"answered": len(noisy)},
            epsilon_spent=setup.epsilon,
            rule=f"{forecast.rule}, an account for each record",
        )

    def _specification(self, setup: Setup, manifest: Manifest) -> dict[str, Any]:
        found = self.forecast(setup).allowance
        return {
            "name": "neighbours",
            "sigma": found.sigma,
            "queries": found.queries,
            "near": self.near,
            "allowance": found.most,
        }

    def _plurality(self, run: Run, tested: Ints) -> float:
        """Accuracy of the plurality of all votes, without accounts. A look at private votes."""
        labels, truth = self.ensemble.labels, self.source.test.labels
        one_hot = np.eye(len(self.ensemble.manifest.classes), dtype=np.float32)[labels]
        right = [
            (self.ensemble.weights(self.x[rows]) @ one_hot).argmax(1) == truth[rows]
            for rows in np.array_split(tested, -(-len(tested) // BLOCK))
        ]
        return float(np.concatenate(right).mean())

    def _papers_epsilon(
        self, setup: Setup, specification: dict[str, Any], bought: Bought, teachers: int
    ) -> float | None:
        """None: the papers have no accounts."""
        return None


def near(name: str, epsilon: float) -> int:
    """Return how many units are near a query of a data set."""
    return next(units for most, units in NEAR[name] if epsilon <= most)


def replace_records(ensemble: NeighbourEnsemble, points: NDArray[np.int16]) -> NeighbourEnsemble:
    """The same ensemble with other records, of one class."""
    return NeighbourEnsemble(
        ensemble.manifest,
        ensemble.features,
        ensemble.public,
        points,
        np.zeros(len(points), np.int16),
        np.arange(len(points), dtype=np.int32),
    )


def _most(sigma: float, queries: int, setup: Setup) -> int:
    try:
        return allowance(sigma, 1, queries, setup.epsilon, setup.delta)[1].most
    except ParameterError:
        return 0
