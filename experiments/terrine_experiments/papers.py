"""Published figures, to stand beside one's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Name = Literal["mnist", "fashion", "svhn", "adult", "diabetes", "glyph"]
"""A data set of the papers, or one that stands beside them."""


@dataclass(frozen=True)
class Published:
    """A result as a paper states it. Accuracies are shares of one."""

    source: str
    method: str
    epsilon: float
    delta: float
    accuracy: float
    baseline: float | None
    """Of the same model without privacy, if the paper states it."""
    labels: int | None
    """Answered queries, for a student of PATE."""
    how: str
    """What kind of number ε is."""

    @property
    def row(self) -> str:
        """The row, as short as it can be."""
        answers = f"{self.labels:,} answers, " if self.labels else ""
        return f"{answers}ε {self.epsilon:g}: {100 * self.accuracy:.1f} %"

    @property
    def safe(self) -> bool:
        """Whether ε may be published: it tells nothing of the private votes."""
        return self.how == WORST_CASE


P17 = "Papernot et al. 2017, Table 2"
P18 = "Papernot et al. 2018, Table 1"
TB21 = "Tramèr and Boneh 2021, Table 1"
DATA_DEPENDENT = "data-dependent, not safe to publish"
WORST_CASE = "worst case"


def _pate(
    method: str,
    epsilon: float,
    delta: float,
    accuracy: float,
    baseline: float,
    labels: int | None,
) -> Published:
    source = P18 if "GNMax" in method or delta == 1e-8 else P17
    return Published(source, method, epsilon, delta, accuracy, baseline, labels, DATA_DEPENDENT)


LNMAX, CONFIDENT, INTERACTIVE = "LNMax", "Confident-GNMax", "Interactive-GNMax, two rounds"
PAPERS: dict[Name, tuple[Published, ...]] = {
    "mnist": (
        _pate(LNMAX, 2.04, 1e-5, 0.980, 0.9918, 100),
        _pate(LNMAX, 8.03, 1e-5, 0.981, 0.9918, 1_000),
        _pate(CONFIDENT, 1.97, 1e-5, 0.985, 0.992, 286),
    ),
    "fashion": (
        Published(TB21, "DP-SGD on scattering features", 3.0, 1e-5, 0.897, None, None, WORST_CASE),
    ),
    "svhn": (
        _pate(LNMAX, 5.04, 1e-6, 0.827, 0.928, 500),
        _pate(LNMAX, 8.19, 1e-6, 0.907, 0.928, 1_000),
        _pate(CONFIDENT, 4.96, 1e-6, 0.916, 0.928, 3_098),
    ),
    "adult": (
        _pate(LNMAX, 2.66, 1e-5, 0.830, 0.850, 500),
        _pate(CONFIDENT, 1.90, 1e-5, 0.837, 0.850, 524),
    ),
    "diabetes": (_pate(LNMAX, 1.44, 1e-5, 0.9394, 0.9381, None),),
    "glyph": (
        _pate(LNMAX, 4.3, 1e-8, 0.724, 0.822, 4_000),
        _pate(CONFIDENT, 2.03, 1e-8, 0.755, 0.822, 10_762),
        _pate(INTERACTIVE, 0.837, 1e-8, 0.732, 0.822, 4_341),
    ),
}
"""Of each data set, in the order of the papers."""


@dataclass(frozen=True)
class Selective:
    """The test and the noise of Confident-GNMax or of a round of Interactive-GNMax, as in P18.

    Order, β, σ and ε of what it would publish are of its Table 2.
    """

    threshold: int
    sigma1: float
    sigma2: float
    queries: int = 0
    order: float = 0
    beta: float = 0
    sigma_ss: float = 0
    sanitised: float = 0
    own: tuple[float, float, float] | None = None
    """Order, β and σ of what we would publish, chosen on other queries."""

    @property
    def orders(self) -> NDArray[np.float64]:
        """The order alone."""
        return np.array([float(self.order)])


MNIST_ROW = Selective(200, 150, 40, 640, 14, 0.0329, 6.23, 2.52, (8, 0.2 / 8, 4.28))
ADULT_ROW = Selective(300, 200, 40, 1_500, 15.5, 0.031, 7.92, 2.09, (8, 0.25 / 8, 6.27))
GLYPH_ROW = Selective(1_000, 500, 100, 12_000, 20.5, 0.0205, 11.9, 2.29, (14, 0.2 / 14, 9.49))
ROUNDS = (
    Selective(3_500, 1_500, 100, 0, 50, 0.009, 26.4),
    Selective(3_500, 2_000, 200, 0, 50, 0.008, 38.7),
)
"""Of Interactive-GNMax on Glyph. What each would publish is not known to us."""
OWN_ROUNDS = 2 * (Selective(2_000, 750, 200, 0, 50, 0.009, 26.4),)
"""Of teachers of our letters, who agree less: their largest count is 2,000 of 5,000 on average."""
MODERATE, AGGRESSIVE = Selective(3_500, 1_500, 100), Selective(5_000, 1_500, 100)
"""Of Figure 5. The Laplace noise beside them has scale 50."""

NEAR_ZERO: dict[tuple[int, str], float] = {
    (100, LNMAX): 0.635,
    (1_000, LNMAX): 0.898,
    (5_000, LNMAX): 0.941,
    (9_000, LNMAX): 0.934,
    (9_000, "immutable"): 0.951,
    (9_000, "clean votes"): 0.945,
    (9_000, "immutable, 5 teachers"): 0.978,
    (9_000, "clean votes, 5 teachers"): 0.975,
    (9_000, "ground truth"): 0.981,
}
"""Students on MNIST by the near-zero-cost paper's Table 1: after how many answers, and of which."""
NEAR_ZERO_LABELS = {LNMAX: 0.9302, "immutable": 0.9433, "clean votes": 0.9437}
"""Its Table 2: how many labels of 250 teachers on MNIST are right."""
