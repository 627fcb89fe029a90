"""Public records in place of private ones, as units of `neighbours`.

    stand_ins = StandInUnits.placed(sample, pool, near=120, units=60_000)
    stand_ins.spent(asked)

They are placed by the product's own build.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import Dataset
from terrine_models.features.maps import PublicData
from terrine_models.teachers.manifests import Manifest
from terrine_models.teachers.neighbours import (
    NeighbourEnsemble,
    NeighbourForecast,
    NeighbourSettings,
    build,
    foresee,
)
from terrine_models.teachers.shards import unit_count
from terrine_server.privacy import Units
from terrine_server.privacy.mechanisms.neighbours import Neighbours as Mechanism

NAME = "stand-ins"
BLOCK = 256
UNLIMITED = 2**32 - 1


@dataclass(frozen=True, eq=False)
class StandInUnits:
    """Units that vote, of public records."""

    ensemble: NeighbourEnsemble
    units: Units
    denser: float
    """How much larger a share of them is near a query than of the private units."""

    @classmethod
    def placed(cls, sample: Dataset, pool: PublicData, *, near: int, units: int) -> StandInUnits:
        """Place `sample` as its private records would be, of whom `near` of `units` are near.

        With few stand-ins fewer are near, at least one: the radius is then larger.
        """
        count = unit_count(sample)
        settings = NeighbourSettings(near=max(1, round(near * count / units)))
        denser = settings.near / count * units / near
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / NAME
            build(sample, out, name=NAME, public=pool, settings=settings)
            ensemble = NeighbourEnsemble.load(out)
        return cls(ensemble, Units.of(ensemble.units, ensemble.labels, count), denser)

    def counts(
        self,
        asked: NDArray[np.generic],
        allowance: int = UNLIMITED,
        excluded: NDArray[np.int64] | None = None,
        one_in: int = 1,
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return what units cast on `asked`, int64[B, m], and what each has spent, uint32[U].

        `excluded`: int64[B], the unit that does not vote on each, as the row is its own. `one_in`:
        of so many units only one votes.
        """
        accounts = np.zeros(self.units.count, np.uint32)
        classes = len(self.ensemble.manifest.classes)
        # Noise and number of queries play no part in casting.
        mechanism = Mechanism(self.units.count, classes, sigma=1.0, queries=1)
        cast = []
        for weights in self._weights(asked, excluded, one_in):
            counts, accounts = mechanism.cast(weights, self.units, accounts, allowance)
            cast.append(counts)
        return np.concatenate(cast), accounts

    def spent(self, asked: NDArray[np.generic]) -> NDArray[np.float64]:
        """Return ‖v‖² that a unit with the records of each casts on one of `asked`, on average.

        Without accounts, and as many near a query as of the private units.
        """
        return self.counts(asked)[1] / (len(asked) * self.denser)

    def _weights(
        self, asked: NDArray[np.generic], excluded: NDArray[np.int64] | None, one_in: int
    ) -> Iterator[NDArray[np.uint8]]:
        for start in range(0, len(asked), BLOCK):
            some = slice(start, start + BLOCK)
            weights = self.ensemble.weights(asked[some])
            if excluded is not None:
                weights[self.ensemble.units == excluded[some, None]] = 0
            weights[:, self.ensemble.units % one_in > 0] = 0
            yield weights


def neighbours_of(directory: Path, norm: int = 1) -> tuple[Manifest, NeighbourForecast]:
    """Return what public rows foretell of an ensemble; `norm`: see `foresee`. Raises StoreError."""
    ensemble = NeighbourEnsemble.load(directory)
    return ensemble.manifest, foresee(ensemble, norm)
