"""Published figures, to stand beside one's own."""

from __future__ import annotations

from dataclasses import dataclass


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
    def safe(self) -> bool:
        """Whether ε may be published: it tells nothing of the private votes."""
        return self.how == WORST_CASE


P17 = "Papernot et al. 2017, Table 2"
P18 = "Papernot et al. 2018, Table 1"
TB21 = "Tramèr and Boneh 2021, Table 1"
DATA_DEPENDENT = "data-dependent, not safe to publish"
WORST_CASE = "worst case"

PAPERS: dict[str, tuple[Published, ...]] = {
    "mnist": (
        Published(P17, "LNMax", 2.04, 1e-5, 0.980, 0.9918, 100, DATA_DEPENDENT),
        Published(P18, "Confident-GNMax", 1.97, 1e-5, 0.985, 0.992, 286, DATA_DEPENDENT),
    ),
    "fashion": (
        Published(TB21, "DP-SGD on scattering features", 3.0, 1e-5, 0.897, None, None, WORST_CASE),
    ),
    "adult": (
        Published(P17, "LNMax", 2.66, 1e-5, 0.830, 0.850, 500, DATA_DEPENDENT),
        Published(P18, "Confident-GNMax", 1.90, 1e-5, 0.837, 0.850, 524, DATA_DEPENDENT),
    ),
    "glyph": (
        Published(P18, "Interactive-GNMax", 0.837, 1e-8, 0.732, 0.822, None, DATA_DEPENDENT),
    ),
}
"""Of each data set, in the order of the papers."""
