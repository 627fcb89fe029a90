"""What a mechanism says of itself to forecasts, plans and audits. No price rests on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from terrine_server.privacy.mechanisms.base import Mechanism, Probabilities
from terrine_server.privacy.numbers import Counts
from terrine_server.privacy.parameters import MAX_GAMMA, MAX_SIGMA, MIN_GAMMA, MIN_SIGMA

# Values of each parameter.
Grid = Mapping[str, Sequence[float]]


@dataclass(frozen=True, eq=False)
class NoisyTest:
    """A query passes if `statistic`, int64[B], plus N_Z(0, sigma²) is at least `threshold`."""

    statistic: NDArray[np.int64]
    threshold: int
    sigma: float


@dataclass(frozen=True, eq=False)
class OutcomeLaw:
    """What the outcomes of queries with known votes are drawn from.

    A query that passes `test`, by default every one, is answered with the largest of the counts,
    each with N_Z(0, sigma²) or Laplace noise of scale 1/gamma, by default with none. `boost`: votes
    added to the winner before. `confirmed`: bool[B], where a failed test confirms the student's
    label.
    """

    sigma: float | None = None
    gamma: float | None = None
    boost: int = 0
    test: NoisyTest | None = None
    confirmed: NDArray[np.bool_] | None = None


@runtime_checkable
class Forecastable(Protocol):
    """A mechanism of which forecasts can be made."""

    def outcome_law(self, counts: Counts, probabilities: Probabilities | None = None) -> OutcomeLaw:
        """Return the law of the outcomes on votes, int64[B, m], that are public or assumed.

        `probabilities`: the student's, float[B, m]. Raises `ParameterError` if they are missing.
        """


@runtime_checkable
class JointlyPriced(Mechanism, Protocol):
    """A mechanism that may price its test and its maximum as one release (`ConfidentMax`).

    `answer_share`: what an answer costs of one price for both; None if each is priced by itself.
    """

    @property
    def answer_share(self) -> float | None:
        """See `ConfidentMax`."""

    def __hash__(self) -> int:
        """Prices are computed once for each."""

    def with_answer_share(self, answer_share: float) -> JointlyPriced:
        """Return the mechanism, with test and maximum priced as one release."""


# Noise as shares of the teachers. Less is expensive, more drowns the vote.
NOISE_SHARES = (0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3)

# The same for a test of the largest count, which is one number.
TEST_NOISE_SHARES = (0.1, 0.2, 0.3, 0.6)


def plan_sigmas(teachers: int, skip: int = 0) -> list[float]:
    """Return Gaussian noise of `NOISE_SHARES` of the teachers, without the least `skip`."""
    return _clip_sigmas(teachers * share for share in NOISE_SHARES[skip:])


def plan_test_sigmas(teachers: int) -> list[float]:
    """Return Gaussian noise for a test of the largest count."""
    return _clip_sigmas(teachers * share for share in TEST_NOISE_SHARES)


def _clip_sigmas(sigmas: Iterable[float]) -> list[float]:
    return three_digits(min(max(sigma, MIN_SIGMA), MAX_SIGMA) for sigma in sigmas)


def plan_gammas(teachers: int) -> list[float]:
    """Return Laplace noise of `NOISE_SHARES` of the teachers."""
    scales = (1 / (teachers * share) for share in NOISE_SHARES)
    return three_digits(min(max(gamma, MIN_GAMMA), MAX_GAMMA) for gamma in scales)


def plan_thresholds(teachers: int, shares: Iterable[float]) -> list[int]:
    """Return thresholds of these shares of the teachers."""
    return sorted({round(share * teachers) for share in shares})


def three_digits(values: Iterable[float]) -> list[float]:
    """Round to three digits, which are enough to choose from and easy to type."""
    return sorted({float(f"{value:.3g}") for value in values})


# Of one query, for each class.
Votes = tuple[int, ...]
# The votes on the queries of one request, in order.
Request = tuple[Votes, ...]


@dataclass(frozen=True)
class AuditCase:
    """Neighbouring requests on which an audit compares what is released with its price.

    `worst`: the pairs that are known to tell most. `student`: the student's class probabilities, if
    the mechanism needs them. `claim`: a pure ε that a paper claims and that is known to be false,
    so that the audit must refute it. `allowance`: of people with accounts, one of whom is replaced.
    """

    title: str
    spec: Mapping[str, Any]
    teachers: int
    worst: tuple[tuple[Request, Request], ...]
    student: tuple[float, ...] | None = None
    claim: float | None = None
    allowance: int | None = None


def single_query(one: Votes, other: Votes) -> tuple[Request, Request]:
    """Return neighbouring requests of a single query."""
    return (one,), (other,)


def two_class_path(teachers: int) -> tuple[tuple[Request, Request], ...]:
    """Return votes of two classes, from a clear defeat to a unanimous win of the first."""
    votes = [(won, teachers - won) for won in range(teachers // 2 - 6, teachers + 1)]
    return tuple(single_query(*pair) for pair in pairwise(votes))


class MechanismKind(Protocol):
    """A class of mechanisms, with all that is known of it outside its own module."""

    @property
    def name(self) -> str:
        """The name in specifications."""

    @property
    def needs_probabilities(self) -> bool:
        """Whether it compares votes with the student's class probabilities."""

    @property
    def audit_cases(self) -> Sequence[AuditCase]:
        """What `terrine audit mechanisms` tries."""

    def plan_grid(self, teachers: int, delta: float) -> Grid:
        """Return the values of each parameter that `terrine plan` tries by default.

        Raises `ParameterError` for a mechanism that cannot be planned from a number of teachers.
        """

    def __call__(self, *args: Any, **parameters: Any) -> Mechanism:
        """Return the mechanism with these parameters, or raise `ParameterError`."""
