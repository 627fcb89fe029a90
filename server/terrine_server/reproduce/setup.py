"""What an experiment is: a protocol, a mechanism and a budget, on a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from terrine_models.features import PublicData
from terrine_server.demo.folds import FOLDS, deal_folds
from terrine_server.planning.counts import sigma_for_rows
from terrine_server.reproduce.sources import Source

Protocol = Literal["folds", "last-1000"]
Selling = Literal["noisy_votes", "confident_gnmax"]
Ints = NDArray[np.int64]

LAST = 1000
THRESHOLD, SIGMA1, SIGMA2 = 0.8, 0.2, 0.15
"""Of confident_gnmax, as shares of the teachers: as in `terrine demo`."""


@dataclass(frozen=True)
class Setup:
    """The choices of one experiment."""

    protocol: Protocol
    mechanism: Selling
    epsilon: float
    delta: float
    seeds: int

    def label(self, teachers: int) -> str:
        """A name for its directory: lower-case letters, digits, dots and hyphens."""
        how = self.mechanism.replace("_", "-")
        return f"{self.protocol}-{how}-{teachers}-epsilon-{self.epsilon:g}-delta-{self.delta:g}"

    def specification(self, rows: int, teachers: int, classes: int) -> dict[str, Any]:
        """The mechanism that is opened for `rows` public inputs. Raises ParameterError."""
        if self.mechanism == "noisy_votes":
            sigma = sigma_for_rows(rows, teachers, classes, self.epsilon, self.delta)
            return {"name": "noisy_votes", "sigma": sigma}
        return {
            "name": "confident_gnmax",
            "threshold": round(THRESHOLD * teachers),
            "sigma1": SIGMA1 * teachers,
            "sigma2": SIGMA2 * teachers,
        }


@dataclass(frozen=True, eq=False)
class Part:
    """What one student is trained and tested on."""

    seen: Ints
    """Rows of the pool whose inputs and answers the student has."""
    tested: Ints
    """Rows of the test set that measure it, none of them seen."""


def pool_size(protocol: Protocol, source: Source) -> int:
    """How many of the first test inputs are public and may be asked."""
    rows = len(source.test)
    return rows if protocol == "folds" else rows - min(LAST, rows // 10)


def public_part(source: Source) -> PublicData:
    """The test inputs that teachers' feature maps may be fitted on: the pool of `last-1000`."""
    pool = pool_size("last-1000", source)
    name = f"{source.title}, test inputs 0 to {pool - 1}, without labels"
    return PublicData.declare(name, source.test.inputs[:pool])


def parts(protocol: Protocol, source: Source) -> list[Part]:
    """Return the students' parts.

    `folds`: the answers to all test inputs are bought in one study; each fold is judged by a
    student that has seen the inputs and answers of the other four. `last-1000`, as in P18: the
    student sees all of the test set but its last thousand, which measure it (of a smaller test set,
    the last tenth).
    """
    rows, pool = np.arange(len(source.test)), pool_size(protocol, source)
    if protocol == "last-1000":
        return [Part(rows[:pool], rows[pool:])]
    fold = deal_folds(len(rows))
    return [Part(rows[fold != k], rows[fold == k]) for k in range(FOLDS)]
