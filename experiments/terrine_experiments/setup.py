"""What an experiment is: a protocol, a mechanism and a budget, on a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from terrine_experiments.sources import Source
from terrine_models.features.maps import PublicData

Protocol = Literal["folds", "last-1000"]
Selling = Literal["noisy_votes", "neighbours"]
Ints = NDArray[np.int64]

LAST = 1000
FOLDS = 5


@dataclass(frozen=True)
class Setup:
    """The choices of one experiment."""

    protocol: Protocol
    mechanism: Selling
    epsilon: float
    delta: float
    runs: int

    def label(self, kind: str, teachers: int) -> str:
        """A name for its directory: lower-case letters, digits, dots and hyphens."""
        which = f"{self.mechanism.replace('_', '-')}-{numbered(kind, teachers)}"
        return f"{self.protocol}-{which}-epsilon-{self.epsilon:g}-delta-{self.delta:g}"


@dataclass(frozen=True, eq=False)
class Part:
    """What one student is trained and tested on."""

    seen: Ints
    """Rows of the pool whose inputs and answers the student has."""
    tested: Ints
    """Rows of the test set that measure it, none of them seen."""


def numbered(kind: str, teachers: int) -> str:
    """The number of teachers, with their kind if it is not the usual."""
    return str(teachers) if kind == "heads" else f"{kind}-{teachers}"


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
    if protocol != "folds":
        return [Part(rows[:pool], rows[pool:])]
    fold = np.random.default_rng(0).permutation(len(rows)) % FOLDS
    return [Part(rows[fold != k], rows[fold == k]) for k in range(FOLDS)]
