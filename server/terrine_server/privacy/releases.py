"""What a project may begin with: one release, which its first ledger entry pays for.

    release = build_release({"kind": "histograms", "sigma": 80.0, "cells": [43, 5, 2], …})
    release.event
    release.add_noise(histograms)

Everything a release says of itself is public. Its price comes first out of the project's own budget
(`budget.Terms`), so that all that is released under a project is (ε, δ)-DP as it was asked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from terrine_server.privacy.events import ReleasedCounts
from terrine_server.privacy.noise import Entropy, add_noise, discrete_gaussian
from terrine_server.privacy.parameters import ParameterError, check_sigma, integer

# Numbers in one release. So many draws are within 2⁻²¹⁵ of the ideal in total variation, which,
# multiplied by 1 + e¹⁰⁰, is below the unit of δ that an entry pays for the sampler.
MAX_RELEASED = 1_000_000


@dataclass(frozen=True)
class Histograms:
    """Of one row of each unit, for each column, how many lie in which cell, with noise on each.

    `cells`: how many each histogram has. `schema_sha256`: of the schema that they follow from.
    Replacing a unit moves one unit of each histogram from one cell to another: of Q histograms,
    2·Q numbers move by 1 (docs/privacy/margins.md).
    """

    kind: ClassVar[str] = "histograms"
    sigma: float
    cells: Sequence[int]
    schema_sha256: str

    def __post_init__(self) -> None:
        check_sigma("sigma", self.sigma)
        object.__setattr__(self, "cells", tuple(self.cells))
        if not self.cells or any(type(each) is not int or each < 2 for each in self.cells):
            raise ParameterError("Each histogram has at least two cells, and there is one or more.")
        if sum(self.cells) > MAX_RELEASED:
            raise ParameterError(
                f"The histograms have {sum(self.cells):,} cells in all; at most {MAX_RELEASED:,} "
                "can be released. Use fewer columns, or list fewer categories."
            )

    @property
    def event(self) -> ReleasedCounts:
        """What it costs, as a cost event."""
        return ReleasedCounts(self.sigma, squared=2 * len(self.cells))

    @property
    def spec(self) -> dict[str, Any]:
        """Its kind and parameters, as JSON."""
        fields = {"sigma": self.sigma, "cells": list(self.cells)}
        return {"kind": self.kind, **fields, "schema_sha256": self.schema_sha256}

    def add_noise(
        self, histograms: Sequence[NDArray[np.int64]], entropy: Entropy = os.urandom
    ) -> list[NDArray[np.int64]]:
        """Return the histograms, int64[C] each, with noise. Raises ValueError for other shapes."""
        if [each.shape for each in histograms] != [(cells,) for cells in self.cells]:
            raise ValueError("these are not histograms of these cells")
        whole = add_noise(np.concatenate(histograms), discrete_gaussian(self.sigma), entropy)
        return np.split(whole, np.cumsum(self.cells)[:-1])


# Of a person's features. A greater one only adds digits.
MAX_NORM = 1 << 20

# Of two classes, by how much the difference of their sums is released larger than their total.
DIFFERENCE = 2


@dataclass(frozen=True)
class Sums:
    """Sums over all units of public features, for each class, with noise on each number.

    `norm`: a whole number c, at most which each unit's features are long. A constant feature is
    among them, whose sums are the class counts. `features`: d, without it. `map_sha256`: of the
    public map that makes features of an input. Of two classes, it is twice the sums of the second
    less those of the first, and the sums of both. Replacing a unit moves the (d + 1)·m numbers by a
    vector whose length is at most 2c, of two classes 2c·√5 (docs/privacy/sums.md).
    """

    kind: ClassVar[str] = "sums"
    sigma: float
    norm: int
    features: int
    classes: int
    map_sha256: str

    def __post_init__(self) -> None:
        check_sigma("sigma", self.sigma)
        integer("norm", self.norm, 1, MAX_NORM, "it bounds what one unit adds to the sums")
        integer("features", self.features, 1, MAX_RELEASED, "there is a sum of each")
        integer("classes", self.classes, 2, MAX_RELEASED, "a label needs at least two classes")
        if (count := (self.features + 1) * self.classes) > MAX_RELEASED:
            raise ParameterError(
                f"These are {count:,} sums; at most {MAX_RELEASED:,} can be released. Use fewer "
                "features, or fewer classes."
            )

    @property
    def event(self) -> ReleasedCounts:
        """What it costs, as a cost event."""
        code = 1 + DIFFERENCE**2 if self.classes == 2 else 1
        return ReleasedCounts(self.sigma, squared=4 * self.norm**2 * code)

    @property
    def class_noise(self) -> float:
        """Standard deviation of the noise by which sums of two classes differ, over √2."""
        return self.sigma / (DIFFERENCE * math.sqrt(2)) if self.classes == 2 else self.sigma

    @property
    def spec(self) -> dict[str, Any]:
        """Its kind and parameters, as JSON."""
        return {"kind": self.kind, **vars(self)}

    def add_noise(
        self, sums: NDArray[np.int64], entropy: Entropy = os.urandom
    ) -> NDArray[np.int64]:
        """Return the sums, int64[d + 1, m], with noise. Raises ValueError for other shapes."""
        shape = (self.features + 1, self.classes)
        if sums.shape != shape or sums.dtype != np.int64:
            raise ValueError("these are not sums of these features")
        return add_noise(sums.ravel(), discrete_gaussian(self.sigma), entropy).reshape(shape)


Release = Histograms | Sums

# The kinds of release, by name.
RELEASES: Mapping[str, Callable[..., Release]] = {
    Histograms.kind: Histograms,
    Sums.kind: Sums,
}


def build_release(spec: Mapping[str, Any]) -> Release:
    """Return the release that `spec` describes by its "kind" and parameters.

    Raises `ParameterError` for anything else.
    """
    parameters = dict(spec)
    kind = parameters.pop("kind", None)
    if kind not in RELEASES:
        raise ParameterError(f"No release is of the kind {kind!r}. Use {', '.join(RELEASES)}.")
    try:
        return RELEASES[str(kind)](**parameters)
    except TypeError as error:
        raise ParameterError(f"The parameters of {kind} are not {sorted(parameters)}.") from error
