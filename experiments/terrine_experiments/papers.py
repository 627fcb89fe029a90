"""Published figures, to stand beside one's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


NOT_PRIVATE = "without privacy"
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
