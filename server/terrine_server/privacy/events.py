"""Cost events: frozen records of what a mechanism did, independent of what it costs.

`prices.price` prices events. The ledger stores them as JSON, so that a better analysis can
re-price old entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from terrine_server.privacy.parameters import ParameterError


class _Json:
    """Writes events as JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON, with the kind of event under "event"."""
        return {"event": _NAMES[type(self)], **{k: _plain(v) for k, v in vars(self).items()}}


@dataclass(frozen=True)
class GaussianNoisyMax(_Json):
    """argmax(counts + N_Z(0, sigma²)); between neighbours two counts move by ≤ `shift` votes."""

    sigma: float
    shift: int = 1


@dataclass(frozen=True)
class GaussianArgmax(_Json):
    """As `GaussianNoisyMax` where one vote moves, priced by the answer and not the noisy counts."""

    sigma: float

    @property
    def counts(self) -> GaussianNoisyMax:
        """The same release, priced by the noisy counts."""
        return GaussianNoisyMax(self.sigma)


@dataclass(frozen=True)
class GaussianNoisyCounts(_Json):
    """counts + N_Z(0, sigma²), all of them; between neighbours two counts move by ≤ 1 vote.

    It costs what `GaussianNoisyMax` costs, whose proof releases all counts. What is known of the
    winner alone, such as its data-dependent cost, does not hold for it.
    """

    sigma: float


@dataclass(frozen=True)
class NeighbourCounts(_Json):
    """The votes of all units that take part + N_Z(0, sigma²); any unit's have ‖v‖ ≤ `norm`.

    Between neighbours one unit's votes v are replaced by others v', neither of them negative, so
    the counts move by ‖v − v'‖² ≤ 2·norm². That is its price by itself. What all queries of a
    project cost together, a unit's account bounds: `allowance.find_allowance`.
    """

    sigma: float
    norm: int


@dataclass(frozen=True)
class GaussianThreshold(_Json):
    """The bit [v + N_Z(0, sigma²) ≥ threshold] for an integer v in [low, high]; v moves by ≤ 1."""

    sigma: float
    threshold: int
    low: int
    high: int


@dataclass(frozen=True)
class StabilityTest(_Json):
    """The bit [d + N_Z(0, sigma²) ≥ threshold], d in [0, high], and on success the exact winner.

    `delta` bounds the probability that a winner that a neighbour could change passes the test.
    """

    sigma: float
    threshold: int
    high: int
    delta: float


@dataclass(frozen=True)
class LaplaceNoisyMax(_Json):
    """argmax(counts + discrete Laplace of scale 1/gamma); two counts move by ≤ `shift` votes."""

    gamma: float
    shift: int = 1


@dataclass(frozen=True)
class LaplaceArgmax(_Json):
    """As `LaplaceNoisyMax` where one vote moves, priced by the answer and not the noisy counts."""

    gamma: float


@dataclass(frozen=True)
class ConfidentMax(_Json):
    """A threshold test and, if it passes, the noisy maximum: one release, priced as a whole.

    The statistic max_j(n_j − b_j) ≥ `low`, with public integers b_j ≥ `baseline`, plus
    N_Z(0, sigma1²), is compared with `threshold`; `answered`: it passed, and argmax(counts +
    N_Z(0, sigma2²)) was released. The `teachers` cast one vote each. An answer costs `answer_share`
    times what every query would cost at one price for both outcomes; an abstention costs what that
    leaves (`joint.Cells`).
    """

    teachers: int
    classes: int
    threshold: int
    sigma1: float
    sigma2: float
    low: int
    baseline: int
    answer_share: float
    answered: bool

    @property
    def parts(self) -> Composition:
        """The same test and maximum, as two releases."""
        test = GaussianThreshold(self.sigma1, self.threshold, self.low, self.teachers)
        return Composition((test, GaussianNoisyMax(self.sigma2)) if self.answered else (test,))


@dataclass(frozen=True)
class PublishedBound(_Json):
    """A published bound on a secret spend (see `published.BoundRelease`), not a query."""

    order: float
    beta: float
    sigma: float
    z: float


@dataclass(frozen=True)
class ReleasedCounts(_Json):
    """Whole numbers + N_Z(0, sigma²), released once when a project begins, not for a query.

    Between neighbours they move by a vector of whole numbers with ‖·‖² ≤ `squared`.
    """

    sigma: float
    squared: int


@dataclass(frozen=True)
class Composition(_Json):
    """Several events of one query, in sequence."""

    events: tuple[CostEvent, ...]


CostEvent = (
    GaussianNoisyMax
    | GaussianArgmax
    | GaussianNoisyCounts
    | NeighbourCounts
    | GaussianThreshold
    | StabilityTest
    | LaplaceNoisyMax
    | LaplaceArgmax
    | ConfidentMax
    | Composition
)
# What a ledger entry records: a query's event, a publication, or what the project begins with.
LedgerEvent = CostEvent | PublishedBound | ReleasedCounts

_KINDS: dict[str, type[LedgerEvent]] = {
    "gaussian_noisy_max": GaussianNoisyMax,
    "gaussian_argmax": GaussianArgmax,
    "gaussian_noisy_counts": GaussianNoisyCounts,
    "neighbour_counts": NeighbourCounts,
    "gaussian_threshold": GaussianThreshold,
    "stability_test": StabilityTest,
    "laplace_noisy_max": LaplaceNoisyMax,
    "laplace_argmax": LaplaceArgmax,
    "confident_max": ConfidentMax,
    "published_figure": PublishedBound,
    "released_counts": ReleasedCounts,
    "composition": Composition,
}
_NAMES: dict[type[_Json], str] = {kind: name for name, kind in _KINDS.items()}


def _plain(value: object) -> object:
    return [part.to_json() for part in value] if isinstance(value, tuple) else value


def event_from_json(data: Mapping[str, Any]) -> LedgerEvent:
    """Return the event that `to_json` wrote; raises `ParameterError` on anything else."""
    fields = dict(data)
    try:
        kind = _KINDS[fields.pop("event")]
        if kind is Composition:
            fields["events"] = tuple(event_from_json(part) for part in fields["events"])
        return kind(**fields)
    except (KeyError, TypeError) as error:
        raise ParameterError(f"Not a cost event: {data!r}.") from error
