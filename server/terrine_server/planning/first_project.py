"""What a first project is opened with by default: chosen from public numbers alone.

    setting = Setting.of(units=32_561, rows=13_000, classes=2, epsilon=1)
    first = setting.of_teachers(setting.numbers_of_teachers[0])
    first.teachers, first.sigma, first.delta, first.cap
    first.of_confident(spec, pass_rate=0.7)
    setting.of_neighbours(plan)
    setting.of_designed(cells=(43, 5, 2), schema_sha256=digest)
    setting.of_sums(norm=1024, features=105, map_sha256=digest)

Noisy counts for the whole public pool, from trained teachers or from neighbours: of all mechanisms,
those whose student depends least on how far teachers agree (docs/results.md). Or labels alone,
from teachers that mostly agree. Or noisy counts for rows that are designed from a schema. Or no
counts at all, but sums of public features, once.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from terrine_server.planning.opening import MIN_ANSWERS_PER_CLASS, Spec, choose
from terrine_server.privacy.allowance import find_allowance
from terrine_server.privacy.budget import Terms
from terrine_server.privacy.curves import gdp_budget, gdp_squared
from terrine_server.privacy.events import NeighbourCounts
from terrine_server.privacy.mechanisms import build_mechanism
from terrine_server.privacy.mechanisms.base import Mechanism
from terrine_server.privacy.mechanisms.noisy_votes import NoisyVotes
from terrine_server.privacy.mechanisms.sums import SumAnswers
from terrine_server.privacy.parameters import (
    MAX_EPSILON,
    MAX_SIGMA,
    MIN_SIGMA,
    ParameterError,
    check_epsilon,
)
from terrine_server.privacy.quoting import Cap, cap, cap_order, quote, split_delta
from terrine_server.privacy.releases import Histograms, Release, Sums

# Noise with three digits: enough to choose from, and easy to type.
SIGMAS = tuple(
    sigma
    for exponent in range(-3, 5)
    for digits in range(100, 1000)
    if MIN_SIGMA <= (sigma := float(f"{digits}e{exponent}")) <= MAX_SIGMA
)


def sigma_for_rows(
    rows: int,
    teachers: int,
    classes: int,
    epsilon: float,
    delta: float,
    release: Histograms | None = None,
) -> float:
    """Return the least σ, in votes and with three digits, at which ε certainly pays for `rows`.

    About √(2·rows/μ²), with μ² the budget in Gaussian DP, less what the `release` costs. Raises
    `ParameterError` if it would be more than can be drawn.
    """
    begun = None if release is None else release.spec

    def pays(sigma: float) -> bool:
        try:
            terms = quote(NoisyVotes(teachers, classes, sigma), epsilon, delta, release=begun)
        except ParameterError:
            return False  # not for a single query
        return terms.affordable(terms.start) >= rows

    left = gdp_budget(epsilon, delta) - (0.0 if release is None else gdp_squared(release.event))
    about = math.sqrt(2 * rows / left)
    return _least_sigma(pays, f"{rows:,} rows", epsilon, about)


def _least_sigma(
    pays: Callable[[float], bool], asked: str, epsilon: float, about: float = 0.0
) -> float:
    place = bisect_left(SIGMAS, about)
    enough = place == len(SIGMAS) or pays(SIGMAS[place])
    # If `about` is right, two tables of noise are computed, and otherwise a dozen.
    if not enough or (place > 0 and pays(SIGMAS[place - 1])):
        place = bisect_left(SIGMAS, True, key=pays)
    if place == len(SIGMAS):
        raise ParameterError(
            f"{asked} need more noise than can be drawn, σ = {MAX_SIGMA:,.0f}, for "
            f"ε = {epsilon:g}. Ask fewer, or use a larger epsilon."
        )
    return SIGMAS[place]


def fitted_noise(rows: int, votes: float, sigma: float, features: int) -> float:
    """Return the standard deviation of a share that least squares fits, on average over the rows.

    σ/n·√(d/rows), which is √(2d/(n²μ²)) at `sigma_for_rows`, whatever the number of rows. `votes`:
    n, those that are cast on a query. It is noise alone: what d features cannot describe comes on
    top.
    """
    return sigma / max(votes, 1e-9) * math.sqrt(min(features, rows) / rows)


# Of a model so small that it says little, but something, of most tables.
FITTED_FEATURES = 30
# Noise of a share of the votes, fitted to so few features, above which little is learned. At this
# noise, students of 120 teachers of digits are right on about 7 of 10.
MAX_FITTED_NOISE = 0.25


# Share of the stand-ins that vote until the last query. That the others are exhausted before costs
# nothing: those that are near most queries are first (docs/privacy/neighbours.md).
LASTING_SHARE = 0.5
# Noise of one answer as a share of its votes, if nobody is exhausted, for which no more units are
# asked. On Adult at ε = 1, any number of units from 60 to 200 near a query led to students within
# half a point.
TOLERATED_NOISE = 0.4
# Units near a query.
MIN_NEAR, MAX_NEAR = 100, 960
# The same of rows with texts, of which many are about as near to a query as the nearest. In
# simulations with 6,000 descriptions of packages students were right on 66.0 % with 100 near each,
# and on 66.6 % with 400, and hardly anybody was exhausted before the end.
MIN_NEAR_OF_TEXTS = 400
# At most one unit in so many is near a query.
MIN_UNITS_PER_NEAR = 30


@dataclass(frozen=True)
class NeighbourPlan:
    """What a project of `neighbours` is opened with, and what public rows forecast for it."""

    near: int
    """Units within a query's radius."""
    sigma: float
    queries: int
    allowance: int
    """A, in units of ‖v‖²."""
    retired: float
    """The share of the units that cannot pay for another vote after all queries."""
    votes: float
    """Units that vote on a query, on average over all of them."""

    @property
    def noise(self) -> float:
        """σ, as a share of the votes that are cast on a query."""
        return self.sigma / max(self.votes, 1e-9)


def default_near(
    units: int, queries: int, epsilon: float, delta: float, *, texts: bool = False
) -> int:
    """Return how many units to have near a query: the more noise there is, the more.

    With k units near each of Q queries, an account spends about Qk/N, and the noise is about
    √(2Q/(N·k))/μ of the votes.
    """
    wanted = 2 * queries / (units * gdp_budget(epsilon, delta) * TOLERATED_NOISE**2)
    most = max(1, min(MAX_NEAR, units // MIN_UNITS_PER_NEAR))
    return min(most, max(MIN_NEAR_OF_TEXTS if texts else MIN_NEAR, math.ceil(wanted)))


def has_less_noise(units: int, near: int, teachers: int) -> bool:
    """Return whether the votes of units have less noise than those of so many trained teachers.

    About √(2Q/(N·k))/μ of the votes against √(2Q)/(n·μ), for whatever Q and μ.
    """
    return math.sqrt(units * near) > teachers


def plan_neighbours(
    spent: NDArray[np.float64],
    *,
    units: int,
    near: float,
    queries: int,
    epsilon: float,
    delta: float,
) -> NeighbourPlan:
    """Choose noise and allowance for `queries`. `spent`: float[S], ‖v‖² of a stand-in in a query.

    On average over queries like those that will be asked; no vote has a larger ‖v‖ than 1. Raises
    `ParameterError` if no noise that can be drawn lets enough units vote to the end.
    """

    def allowed(sigma: float) -> int:
        conversion = split_delta([NeighbourCounts(sigma, norm=1)], delta).conversion
        try:
            return find_allowance(sigma, 1, queries, epsilon, conversion)[1].most
        except ParameterError:
            return 0  # not a single vote

    in_all = spent * queries
    wanted = max(1, int(np.quantile(in_all, LASTING_SHARE)))
    sigma = _least_sigma(lambda sigma: allowed(sigma) >= wanted, f"{queries:,} queries", epsilon)
    most = allowed(sigma)
    return NeighbourPlan(
        near=max(1, round(near)),
        sigma=sigma,
        queries=queries,
        allowance=most,
        retired=float((in_all > most - 1).mean()),
        votes=float(np.minimum(in_all, most).mean() / queries * units),
    )


# On Adult at ε = 1, 500 to 1,400 teachers differ by less than 0.3 points.
USUAL_TEACHERS = 1_000
# Where each still has many units.
MANY_TEACHERS = 2_000
# Where noise is large. 8,000 train on Adult in 12 seconds of a processor.
MAX_TEACHERS = 16_000
MIN_UNITS_PER_TEACHER = 4
MANY_UNITS_PER_TEACHER = 30
# Noise of a share of the teachers, fitted to `FITTED_FEATURES`, above which more and smaller ones
# are better: on Adult, where a teacher of four rows knows little, at ε = 0.1 8,000 of four rows
# were better than 2,000 of sixteen, and at ε = 1 no better than 1,000.
TOLERATED_SHARE_NOISE = 0.04
# Times the usual number, beyond which a number of teachers in between is tried, too.
MAX_STEP_BETWEEN_TEACHERS = 4
# The cap's ε, in those of the first project.
CAP_IN_EPSILONS = 3.0


def default_teachers(units: int, classes: int, mu: float = math.inf) -> int:
    """Return how many teachers to train on so many units, at most one for every few of them.

    Noise falls with their number, as long as a teacher knows something: so up to 1,000 of four
    units each, or one for each class; up to 2,000 where each still has thirty; and, of four units
    each, as many as hold the noise at μ (Gaussian DP) down.
    """
    few = units // max(MIN_UNITS_PER_TEACHER, classes)
    many = units // max(MANY_UNITS_PER_TEACHER, classes)
    quiet = math.ceil(math.sqrt(2 * FITTED_FEATURES) / (mu * TOLERATED_SHARE_NOISE))
    return max(1, min(USUAL_TEACHERS, few), min(MANY_TEACHERS, many), min(quiet, MAX_TEACHERS, few))


def default_delta(units: int) -> float:
    """Return the largest power of ten that is at most 1/(10·units)."""
    return float(f"1e-{len(str(10 * units - 1))}")


# Of the teachers, that have to agree on a label, where nothing is known of how far they agree.
THRESHOLD_SHARE = 0.6
# Of the teachers, by which their votes have to exceed the student's, likewise.
CONTRADICTION_SHARE = 0.3
# σ₁ then, as a share of the teachers.
TEST_NOISE_SHARE = 0.2
# σ₂ then, likewise.
MAXIMUM_NOISE_SHARE = 0.12


def label_mechanisms(teachers: int) -> list[dict[str, Any]]:
    """Return specifications of mechanisms that answer with labels alone, to begin with."""
    noise = {
        "sigma1": float(f"{TEST_NOISE_SHARE * teachers:.3g}"),
        "sigma2": float(f"{MAXIMUM_NOISE_SHARE * teachers:.3g}"),
    }
    agree, contradict = (round(s * teachers) for s in (THRESHOLD_SHARE, CONTRADICTION_SHARE))
    return [
        {"name": "confident_gnmax", "threshold": agree, **noise},
        {"name": "interactive_gnmax", "threshold": contradict, **noise, "confidence": 0.9},
    ]


def max_guess_accuracy(epsilon: float, delta: float) -> float:
    """Return how often a guess between two equally likely versions of a unit is right, at most."""
    return (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))


def max_detection_rate(epsilon: float, delta: float, accused: float = 0.01) -> float:
    """Return the largest share of true suspicions that can be confirmed by one who may be wrong.

    `accused`: the share of those for whom it is false who may be accused. The trade-off function of
    (ε, δ)-DP (Dong, Roth and Su 2022, Prop. 2.5), attained by the worst data and the best attacker.
    """
    upper = math.exp(epsilon) * accused + delta
    return min(1.0, upper, 1 - math.exp(-epsilon) * (1 - accused - delta))


# How many rows are designed: fewer where more would need more noise than can be drawn. That costs
# little, as noise grows as information does.
DESIGNED_ROWS = (8_000, 4_000, 2_000, 1_000)
# Of the budget in Gaussian DP, μ², for histograms: on Adult, 2 to 10 % made students as good.
MARGIN_SHARE = 0.05


def plan_histograms(
    cells: Sequence[int], schema_sha256: str, epsilon: float, delta: float
) -> Histograms:
    """Return histograms with the least noise, of three digits, at which they take their share.

    `cells`: how many each has. Raises `ParameterError` if no noise that can be drawn is enough.
    """
    most = MARGIN_SHARE * gdp_budget(epsilon, delta)

    def fits(sigma: float) -> bool:
        return gdp_squared(Histograms(sigma, cells, schema_sha256).event) <= most

    try:
        sigma = _least_sigma(fits, "histograms", epsilon, math.sqrt(2 * len(cells) / most))
    except ParameterError:
        raise ParameterError(
            f"ε = {epsilon:g} is too small: {MARGIN_SHARE:.0%} of its μ² pays for no histograms of "
            f"{len(cells):,} columns. A larger one would do, or fewer columns."
        ) from None
    return Histograms(sigma, cells, schema_sha256)


# Of the whole numbers that features are written as. A longer one only adds digits. Of a shorter one
# rounding leaves little: of 8, on Adult and nassCDS, AUC is within half a point of 256.
MAX_SUM_NORM, MIN_SUM_NORM = 1024, 8
# Of a map that is not fitted yet.
NO_MAP = "0" * 64


def plan_norm(epsilon: float, delta: float, classes: int) -> int:
    """Return the greatest norm of features, up to `MAX_SUM_NORM`, whose sums a project can release.

    It is even, and their noise can be drawn. Raises `ParameterError` if it is too small.
    """

    def norm(epsilon: float) -> int:
        # A little less than what fits, for noise has three digits.
        per_unit = _sigma_of_norm(1, classes, epsilon, delta)
        return min(MAX_SUM_NORM, 2 * int(MAX_SIGMA / per_unit * 0.99 / 2))

    if norm(epsilon) >= MIN_SUM_NORM:
        return norm(epsilon)
    wanted = epsilon
    while norm(wanted) < MIN_SUM_NORM:
        wanted *= 1.1
    raise ParameterError(
        f"ε = {epsilon:g} is too small for sums: they would need more noise than can be drawn. An "
        f"ε of {float(f'{wanted * 1.05:.2g}'):g} would do."
    )


def plan_sums(
    norm: int, features: int, classes: int, map_sha256: str, epsilon: float, delta: float
) -> Sums:
    """Return sums with the least noise, of three digits, for which (ε, δ) pays; of a `plan_norm`.

    Raises `ParameterError` if there are too many, or no noise that can be drawn is enough.
    """
    given = norm, features, classes, map_sha256

    def fits(sigma: float) -> bool:
        release = Sums(sigma, *given)
        try:
            quote(SumAnswers(1, classes), epsilon, delta, release=release.spec)
        except ParameterError:
            return False
        return True

    Sums(MAX_SIGMA, *given)  # raises for too many
    about = _sigma_of_norm(norm, classes, epsilon, delta)
    return Sums(_least_sigma(fits, "sums", epsilon, about), *given)


def _sigma_of_norm(norm: int, classes: int, epsilon: float, delta: float) -> float:
    """How much noise sums of so long features have, about, for (ε, δ) to pay."""
    most = gdp_budget(epsilon, split_delta([], delta).conversion)
    return math.sqrt(Sums(1.0, norm, 1, classes, NO_MAP).event.squared / most)


def plan_map(epsilon: float, delta: float, classes: int, units: int) -> tuple[int, float]:
    """Return the norm of a map of features, and for what noise it is fitted.

    How much there is follows from the norm, whatever the features are. Raises `ParameterError` as
    `plan_norm` does.
    """
    norm = plan_norm(epsilon, delta, classes)
    release = plan_sums(norm, 1, classes, NO_MAP, epsilon, delta)
    return norm, release.class_noise / (norm * units)


def _check_rows(rows: int, classes: int, least: int) -> None:
    if rows < least:
        raise ParameterError(
            f"Too small: {rows:,} different public rows for {classes:,} classes teach a student "
            f"nothing. At least {least:,} are needed, and thousands are better."
        )


@dataclass(frozen=True)
class Setting:
    """What a first project has to start from: public numbers alone."""

    units: int
    rows: int
    """Public rows of which no two are equal: equal ones have one answer, paid for once."""
    classes: int
    epsilon: float
    delta: float
    cap: Cap
    joins: bool
    """Whether the cap is there already, and is to be shared."""

    @classmethod
    def of(
        cls,
        *,
        units: int,
        rows: int | None = None,
        classes: int,
        epsilon: float,
        joined: Cap | None = None,
    ) -> Setting:
        """Return that of private units (records or people), and different public rows, all asked.

        `rows`: how many; None if they are designed. `joined`: the cap of the population that these
        units are of, if it is fixed already. Raises `ParameterError` for fewer rows than
        classes, from which nothing is learned.
        """
        epsilon = check_epsilon(epsilon)
        rows = DESIGNED_ROWS[0] if rows is None else rows
        _check_rows(rows, classes, classes)
        delta = default_delta(units)
        limit = (
            cap(min(CAP_IN_EPSILONS * epsilon, MAX_EPSILON), delta) if joined is None else joined
        )
        return cls(units, rows, classes, epsilon, delta, limit, joined is not None)

    def check_answers(self) -> None:
        """Raise `ParameterError` for too few rows to learn from votes on each, whoever votes."""
        _check_rows(self.rows, self.classes, MIN_ANSWERS_PER_CLASS * self.classes)

    @property
    def numbers_of_teachers(self) -> tuple[int, ...]:
        """How many teachers are worth a try: as usual, as many as noise asks for, and between."""
        usual = default_teachers(self.units, self.classes)
        mu = math.sqrt(gdp_budget(self.epsilon, self.delta))
        many = default_teachers(self.units, self.classes, mu)
        far = many > MAX_STEP_BETWEEN_TEACHERS * usual
        return tuple(sorted({usual, *([round(math.sqrt(usual * many))] if far else []), many}))

    def of_teachers(self, teachers: int) -> FirstProject:
        """Return a project of so many trained teachers, with noisy counts of their votes.

        Raises `ParameterError` for too few rows, or if their noise cannot be drawn.
        """
        self.check_answers()
        sigma = sigma_for_rows(self.rows, teachers, self.classes, self.epsilon, self.delta)
        return FirstProject(**vars(self), teachers=teachers, sigma=sigma).reserving()

    def of_neighbours(self, plan: NeighbourPlan) -> NeighbourProject:
        """Return a project of units that vote themselves. Raises `ParameterError` likewise."""
        self.check_answers()
        given = vars(self) | {"teachers": self.units, "sigma": plan.sigma}
        return NeighbourProject(**given, neighbours=plan).reserving()

    def of_sums(self, *, norm: int, features: int, map_sha256: str) -> SumProject:
        """Return a project that is told sums of so many features once, and nothing else.

        Raises `ParameterError` if their noise cannot be drawn.
        """
        budget = self.epsilon, self.delta
        release = plan_sums(norm, features, self.classes, map_sha256, *budget)
        given = vars(self) | {"teachers": 1, "sigma": release.sigma}
        return SumProject(**given, release=release).reserving()

    def of_designed(self, *, cells: Sequence[int], schema_sha256: str) -> DesignedProject:
        """Return a project of teachers that are asked rows designed from a schema, not public ones.

        It begins with histograms of so many cells each, which take a share of its budget. There
        are as many rows as noise that can be drawn pays for. Raises `ParameterError` likewise.
        """
        budget = self.epsilon, self.delta
        release = plan_histograms(cells, schema_sha256, *budget)
        teachers = self.numbers_of_teachers[-1]
        for rows in DESIGNED_ROWS:
            try:
                sigma = sigma_for_rows(rows, teachers, self.classes, *budget, release)
                given = vars(self) | {"rows": rows, "teachers": teachers, "sigma": sigma}
                return DesignedProject(**given, release=release).reserving()
            except ParameterError as error:
                why = error
        raise why


@dataclass(frozen=True, kw_only=True)
class FirstProject(Setting):
    """A project and its ensemble's cap: of trained teachers, with noisy counts on public rows."""

    option: ClassVar[str] = "trained teachers"
    """How the records are asked."""
    teachers: int
    """Of neighbours, the units."""
    sigma: float
    pass_rate: float | None = None
    """The share of queries that are expected to get a label, by which prices are divided."""
    share: float = 0
    """Of the cap, that the project reserves."""

    @property
    def spec(self) -> dict[str, object]:
        """The specification of the mechanism that the project is opened with."""
        return {"name": "noisy_votes", "sigma": self.sigma}

    @property
    def mechanism(self) -> Mechanism:
        """That mechanism."""
        return build_mechanism(self.spec, teachers=self.teachers, classes=self.classes)

    @property
    def terms(self) -> Terms:
        """What the project is opened under."""
        return self._terms_with(None)

    def reserving(self) -> Self:
        """Return it with its share. Raises `ParameterError` if the budget pays for no query."""
        terms, limit = self.terms, self.cap
        share = max(terms.cap_budget / limit.budget, terms.delta_budget / limit.delta_budget)
        return replace(self, share=share)

    def price(self, epsilon: float) -> Terms:
        """Return the terms with another ε. Raises `ParameterError` if it pays for nothing."""
        return replace(self, epsilon=epsilon).terms

    @property
    def votes(self) -> float:
        """Votes on a query, of each teacher or of the units that are near and not exhausted."""
        return self.teachers

    @property
    def fitted_noise(self) -> float:
        """The noise of a fitted share for each √feature, whatever the rows."""
        return fitted_noise(self.rows, self.votes, self.sigma, features=1)

    @property
    def too_noisy(self) -> bool:
        """Whether so much noise is left, fitted to few features, that little is learned."""
        noise = fitted_noise(self.rows, self.votes, self.sigma, FITTED_FEATURES)
        return noise > MAX_FITTED_NOISE

    def of_confident(self, spec: Spec, pass_rate: float) -> ConfidentProject:
        """Return the same of teachers that answer, with labels alone, where they mostly agree.

        A new cap is in Rényi DP, where a test and its maximum are priced together. Prices are
        divided by the share of queries that a simulation answered, unless without it each row is
        certain to be paid for. Raises `ParameterError` if the budget pays for no query.
        """
        limit = self.cap
        if not self.joins:
            limit = cap(limit.epsilon, self.delta, cap_order(limit.epsilon, self.delta))
        given = vars(self) | {"cap": limit, "pass_rate": None, "confident": spec}
        first = ConfidentProject(**given)
        if first.terms.affordable(first.terms.start) < first.rows:
            first = replace(first, pass_rate=pass_rate)
        return first.reserving()

    def _terms_with(self, release: Release | None) -> Terms:
        return choose(
            self.mechanism,
            self.epsilon,
            self.delta,
            cap_rule=self.cap.rule,
            pass_rate=self.pass_rate,
            release=None if release is None else release.spec,
        ).terms


@dataclass(frozen=True, kw_only=True)
class NeighbourProject(FirstProject):
    """The same of units that vote themselves, each on what is near."""

    option: ClassVar[str] = "neighbours"
    neighbours: NeighbourPlan

    @property
    def spec(self) -> dict[str, object]:
        """See `FirstProject`."""
        return {"name": "neighbours", "sigma": self.sigma, "queries": self.neighbours.queries}

    @property
    def votes(self) -> float:
        """See `FirstProject`."""
        return self.neighbours.votes


@dataclass(frozen=True, kw_only=True)
class ConfidentProject(FirstProject):
    """The same of trained teachers that answer with labels alone, where they mostly agree."""

    option: ClassVar[str] = "confident answers"
    confident: Spec

    @property
    def spec(self) -> dict[str, object]:
        """See `FirstProject`."""
        return dict(self.confident)


@dataclass(frozen=True, kw_only=True)
class DesignedProject(FirstProject):
    """The same of trained teachers that are asked rows designed from a schema."""

    option: ClassVar[str] = "designed rows"
    release: Histograms
    """What it begins with, and of what the rows are designed."""

    @property
    def terms(self) -> Terms:
        """See `FirstProject`."""
        return self._terms_with(self.release)

    def price(self, epsilon: float) -> Terms:
        """See `FirstProject`. Its histograms take the same share of another ε."""
        known = self.release
        release = plan_histograms(known.cells, known.schema_sha256, epsilon, self.delta)
        return replace(self, epsilon=epsilon, release=release).terms


@dataclass(frozen=True, kw_only=True)
class SumProject(FirstProject):
    """The same of sums of public features by class, with noise, of which a model is made."""

    option: ClassVar[str] = "sums"
    release: Sums
    """What it begins with, and all that it costs."""

    @property
    def spec(self) -> dict[str, object]:
        """See `FirstProject`."""
        return {"name": SumAnswers.name}

    @property
    def terms(self) -> Terms:
        """See `FirstProject`."""
        return self._terms_with(self.release)

    def price(self, epsilon: float) -> Terms:
        """See `FirstProject`. Its sums have another norm and noise then."""
        known = self.release
        norm = plan_norm(epsilon, self.delta, known.classes)
        given = norm, known.features, known.classes, known.map_sha256
        release = plan_sums(*given, epsilon, self.delta)
        return replace(self, epsilon=epsilon, release=release).terms

    @property
    def votes(self) -> float:
        """The length of the sums, in the unit of their noise, if all units are alike."""
        return self.release.norm * self.units

    @property
    def map_noise(self) -> float:
        """For what noise its map is fitted (`plan_map`)."""
        return self.release.class_noise / self.votes

    @property
    def fitted_noise(self) -> float:
        """The same of few features that share a length of 1: each is as much smaller."""
        return self.map_noise * math.sqrt(FITTED_FEATURES)

    @property
    def too_noisy(self) -> bool:
        """See `FirstProject`."""
        return self.fitted_noise * math.sqrt(FITTED_FEATURES) > MAX_FITTED_NOISE
