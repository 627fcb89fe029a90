"""What a first project should buy, and by which way, foreseen from public records alone.

Stand-ins for the teachers, or for the units of neighbours, are public records, as many to each as
there will be. They vote on all but their own, with noise, and a plain student learns from that. It
is tested on other records, which neither vote nor are asked about. The noise is such that a share
fitted to these rows has the noise that it would have, fitted to the whole pool.
Where labels are all that is told, rows are asked again until the pool has no more rows, or the
budget is spent.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from terrine_models.data.arrays import Dataset, number_distinct_rows
from terrine_models.features.maps import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.models import Task
from terrine_models.students.selection import PLAIN_METHOD, choose
from terrine_models.students.settings import Training
from terrine_models.teachers.heads import Heads
from terrine_models.teachers.manifests import Manifest
from terrine_models.teachers.neighbours import (
    NeighbourEnsemble,
    NeighbourForecast,
    NeighbourSettings,
    build,
    foresee,
)
from terrine_models.teachers.preview import LEAST, halves, votes_of
from terrine_models.teachers.shards import unit_count
from terrine_server.planning.first_project import (
    FEATURES,
    TOO_NOISY,
    FirstProject,
    Setting,
    near_for,
    plan_neighbours,
    quieter,
)
from terrine_server.planning.forecast import Grid, Votes
from terrine_server.planning.opening import FEW, simulate
from terrine_server.planning.plan import plan
from terrine_server.privacy import Units
from terrine_server.privacy.mechanisms import Neighbours as Mechanism
from terrine_server.privacy.noise import discrete_gaussian
from terrine_server.privacy.parameters import MIN_SIGMA, ParameterError

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


_Figure = tuple[float, float]
"""A measure, and the variance of its estimate."""

DRAWS = 3
MOST, MOST_LEARNED, MOST_ROWS = 400, 2_000, 3_000
"""Stand-ins for teachers, rows from which a student learns, and rows that test it. With three in
four of the rows, and noise that weighs as much, students were as good as with all of them."""
USELESS = 0.1
"""Balanced accuracy above that of guessing, below which little was learned."""
MIN_GAIN_OVER_CHANCE = 0.02
"""Balanced accuracy, or AUC, by which students must be better than guesses for a project to be
worth its budget; and by two standard errors."""
TESTED = 4
"""One in so many public rows, or people, tests the student."""
DOUBT = 2.0
"""Standard errors by which one way is ahead of another to be clearly better."""
THRESHOLDS, TESTS, MAXIMA = (0.5, 0.7, 0.9), (0.25,), (0.06, 0.12, 0.2, 0.3)
"""Threshold, σ₁ and σ₂ of confident answers that are tried, as shares of the teachers. That of all
which promises the most right answers is simulated."""
TRIED = 500
"""Rows by whose votes they are tried."""
PASSES = 10
"""Times that a row is asked at most, for labels: by then noise has little part in them."""


@dataclass(frozen=True)
class StudentForecast:
    """Figures of plain students over a few draws of stand-ins, rows and noise.

    Each [least, most], and two standard errors of all tested rows further: few rows tell little.
    Of neighbours, the most is higher by what as many units as there are would add.
    """

    accuracy: tuple[float, float]
    balanced_accuracy: tuple[float, float]
    auc: tuple[float, float] | None
    """Of two classes: how often a row of the second is ranked above one of the first."""
    chance: float
    """The balanced accuracy of a guess, below which no range falls."""
    stand_ins: int
    useless: bool
    """Whether no student is much better than a constant answer."""
    above_chance: bool
    """Whether balanced accuracy, or AUC, is better than a guess by more than chance explains."""


@dataclass(frozen=True)
class ForecastOption:
    """A way to ask the records, and what its simulated students were."""

    first: FirstProject
    forecast: StudentForecast | None
    """None if there are no labelled public records, or too few."""
    worse: bool = False
    """Whether they were worse than those of the chosen way, by more than chance explains."""


@dataclass(frozen=True)
class ForecastChoice:
    """The ways: the chosen one, and then the others, the best first."""

    ways: tuple[ForecastOption, ...]
    truth: StudentForecast | None
    """Of the same students, taught by the true labels of the same public rows."""

    @property
    def first(self) -> FirstProject:
        """The project that was chosen."""
        return self.ways[0].first

    @property
    def forecast(self) -> StudentForecast | None:
        """The figures of the way that was chosen."""
        return self.ways[0].forecast


def choose_way(
    setting: Setting, sample: Dataset, pool: PublicData, *, labelled: bool, people: bool
) -> ForecastChoice:
    """Choose how records are asked, from public ones.

    `sample`: the records of `pool`; labels that are not `labelled` are not looked at. `people`:
    whether private records have groups. Of the ways whose students are better than a guess,
    neighbours vote, unless the students of trained teachers, or of labels alone where these mostly
    agree, are better by two standard errors: in AUC, of two classes, and else in balanced accuracy.
    Where nothing can be simulated, it is the way whose votes have the least noise. Raises
    `ParameterError` if that is too much, or none can be drawn.
    """
    trained, neighbours = _trained_ways(setting), _neighbours_way(setting, sample, pool)
    if not trained and neighbours is None:
        raise ParameterError(
            f"{setting.rows:,} rows need more noise for ε = {setting.epsilon:g} than can be drawn, "
            "by every way to ask. Ask fewer rows, or use a larger epsilon."
        )
    found = None
    if labelled and (sample.groups is not None or not people):
        found = _simulate(sample, pool, trained, neighbours)
    if found is None:
        ways = _by_noise(trained[-1:], neighbours)
        calmest = min(ways, key=lambda each: each.fitted_noise)
        if calmest.too_noisy:
            raise ParameterError(_too_small(calmest))
        return ForecastChoice(tuple(ForecastOption(each, None) for each in ways), None)
    able = [each for each in found.ways if _above_chance(each.students)]
    best, *others = able or sorted(found.ways, key=_merit, reverse=True)
    for each in others:
        if _clearly_better(each.students, best.students):
            best = each
    options = [
        ForecastOption(
            each.first,
            _forecast(each.students, each),
            _clearly_better(best.students, each.students),
        )
        for each in sorted(found.ways, key=lambda each: (each is not best, -_merit(each)))
    ]
    return ForecastChoice(tuple(options), _forecast(found.truth))


def _trained_ways(setting: Setting) -> list[FirstProject]:
    """Return projects of each number of teachers; none if their noise cannot be drawn."""
    try:
        return [setting.of_teachers(number) for number in setting.numbers_of_teachers]
    except ParameterError:
        return []


def _neighbours_way(setting: Setting, sample: Dataset, pool: PublicData) -> FirstProject | None:
    """Return the project of neighbours; None if its noise cannot be drawn."""
    own, asked = halves(sample, seed=0)
    near = near_for(setting.units, setting.rows, setting.epsilon, setting.delta)
    stand_ins = StandInUnits.placed(
        part(sample, own[:MOST_ROWS]), pool, near=near, units=setting.units
    )
    try:
        plan = plan_neighbours(
            stand_ins.spent(_once(sample.inputs[asked[:MOST_ROWS]])[0]),
            units=setting.units,
            near=near,
            queries=setting.rows,
            epsilon=setting.epsilon,
            delta=setting.delta,
        )
        return setting.of_neighbours(plan)
    except ParameterError:
        return None


def _by_noise(trained: list[FirstProject], neighbours: FirstProject | None) -> list[FirstProject]:
    """Return trained teachers and neighbours, those first whose votes should have less noise.

    Not by how many neighbours still take part in the end, of which few stand-ins tell too little.
    """
    if neighbours is None or neighbours.neighbours is None:
        return trained
    units, near = neighbours.units, neighbours.neighbours.near
    quiet = not trained or quieter(units, near, trained[-1].teachers)
    return [neighbours, *trained] if quiet else [*trained, neighbours]


def _too_small(best: FirstProject) -> str:
    """Say that noise would drown the votes of the best way, and what would do.

    Noise falls as the number of votes grows: of teachers with the units, of neighbours with their
    root.
    """
    times = best.fitted_noise * FEATURES**0.5 / TOO_NOISY
    more = best.units * times ** (1 if best.neighbours is None else 2)
    return (
        f"Too small: of {best.units:,} private units, at ε = {best.epsilon:g} noise would drown "
        f"their votes by every way to ask; by the best, {best.way}, it is {times:.1f} times what a "
        f"student can learn from. It needs about {_whole(more):,} units at this ε, or an ε of "
        f"about {float(f'{best.epsilon * times:.2g}'):g}."
    )


def _whole(number: float) -> int:
    """Round up to two digits."""
    step = int(10 ** max(0, math.floor(math.log10(number)) - 1))
    return math.ceil(number / step) * step


def part(sample: Dataset, rows: NDArray[np.int64]) -> Dataset:
    """Return some of the records, whose people are numbered anew."""
    groups = None
    if sample.groups is not None:
        groups = np.unique(sample.groups[rows], return_inverse=True)[1].astype(np.int64)
    return Dataset(
        sample.inputs[rows],
        sample.labels[rows],
        sample.classes,
        sample.spec,
        groups,
        name=sample.name,
    )


@dataclass(frozen=True, eq=False)
class _Poll:
    """Votes [K, m] of stand-ins on K rows, and what they are divided by for shares."""

    votes: NDArray[np.int64]
    of: float
    stand_ins: int
    matches_prior: bool


@dataclass(frozen=True, eq=False)
class _Tested:
    """What a student said of `labels` [T], which it had not seen."""

    said: NDArray[np.int64]
    labels: NDArray[np.int64]
    stand_ins: int
    scores: NDArray[np.float64] | None = None
    """Of two classes: how likely each row is of the second [T]."""

    @property
    def right(self) -> NDArray[np.bool_]:
        right: NDArray[np.bool_] = self.said == self.labels
        return right

    @property
    def weights(self) -> NDArray[np.float64]:
        """What each row counts in the balanced accuracy: on average 1."""
        seen = np.bincount(self.labels)
        weights: NDArray[np.float64] = len(self.labels) / ((seen > 0).sum() * seen[self.labels])
        return weights

    @property
    def balanced(self) -> float:
        """The balanced accuracy."""
        return float((self.right * self.weights).mean())

    @property
    def chance(self) -> float:
        """The balanced accuracy of a constant answer."""
        return 1 / len(np.unique(self.labels))

    @property
    def auc(self) -> float | None:
        """The area under the ROC curve. None if there are not two classes to be told apart."""
        first, second = self._class_sizes
        if self.scores is None or not first or not second:
            return None
        ranks = rankdata(self.scores)[self.labels == 1].sum()
        return float((ranks - second * (second + 1) / 2) / (first * second))

    @property
    def placements(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The share of the rows of the other class that each row is ranked rightly against.

        Of rows of the first class, and of the second. The mean of either is the AUC (DeLong, DeLong
        and Clarke-Pearson 1988).
        """
        if self.scores is None:
            raise ValueError("these are not two classes")
        second = self.labels == 1
        ranks = rankdata(self.scores)
        below = (ranks[second] - rankdata(self.scores[second])) / max(1, (~second).sum())
        above = 1 - (ranks[~second] - rankdata(self.scores[~second])) / max(1, second.sum())
        return above, below

    def accuracy_figure(self) -> _Figure:
        """The accuracy, and its variance."""
        return _mean(self.right)

    def balanced_figure(self) -> _Figure:
        """The balanced accuracy, and its variance: large where few rows are of a class."""
        return _mean(self.right * self.weights)

    def auc_figure(self) -> _Figure:
        """The AUC, and its variance."""
        by_class = [_mean(each) for each in self.placements]
        return by_class[0][0], sum(variance for _, variance in by_class)

    @property
    def auc_variance(self) -> float:
        """The variance of the AUC of a guess (Mann and Whitney 1947)."""
        first, second = self._class_sizes
        return (first + second + 1) / (12 * first * second)

    @property
    def _class_sizes(self) -> tuple[int, int]:
        second = int(np.count_nonzero(self.labels == 1))
        return len(self.labels) - second, second


@dataclass(frozen=True, eq=False)
class _Taught:
    """A way, and its students, one of each draw."""

    first: FirstProject
    students: list[_Tested]
    of_half: list[_Tested] = field(default_factory=list)
    """Of neighbours: students of half of the stand-ins."""

    @property
    def growth(self) -> float:
        """How many times the gain from half of the stand-ins to all is that to all private units.

        If what a student lacks falls with the root of their number: on eleven tables, public rows
        being a fifth as many as private ones, accuracy grew by 1.36 times the gain, where this is
        1.30.
        """
        share = min(1.0, self.students[0].stand_ins / self.first.units)
        return float((1 - share**0.5) / (2**0.5 - 1))


@dataclass(frozen=True, eq=False)
class _Simulated:
    """All ways, in the order in which a later one must be clearly better to be chosen."""

    ways: Sequence[_Taught]
    truth: Sequence[_Tested]


@dataclass(frozen=True, eq=False)
class _Draw:
    """Public rows that stand in for private ones and are asked about, and others that test."""

    sample: Dataset
    own: NDArray[np.int64]
    """Rows of which the stand-ins are made."""
    learned: NDArray[np.int64]
    """Those of them that are asked about."""
    tested: NDArray[np.int64]
    task: Task
    seed: int

    @classmethod
    def of(cls, sample: Dataset, seed: int) -> _Draw | None:
        """Draw rows. None if they are too few."""
        tested, own = halves(sample, seed, TESTED)
        if len(sample) < 2 * TESTED * FEW * len(sample.classes):
            return None
        learned = own[:MOST_LEARNED]
        task = Task(sample.inputs[learned], sample.spec, sample.classes)
        return cls(sample, own, learned, tested[:MOST_ROWS], task, seed)

    def counts(self, poll: _Poll, first: FirstProject) -> Answers:
        """Return the votes with noise. Equal rows have one answer."""
        random = np.random.default_rng(self.seed)
        of, rows = max(1.0, poll.of), int(self.task.inputs.max()) + 1
        votes = poll.votes
        sigma = max(MIN_SIGMA, first.fitted_noise * of * rows**0.5)
        noise = discrete_gaussian(sigma).sample((rows, votes.shape[1]), random.bytes)
        return Answers.of_counts(
            votes + noise[self.task.inputs],
            teachers=max(1, round(of)),
            sigma=sigma,
            matches_prior=poll.matches_prior,
            voting=min(1.0, of / poll.stand_ins),
        )

    def labels(self, poll: _Poll, first: FirstProject) -> Answers | None:
        """Return labels that the project's budget pays for. None if all abstain.

        A row is known if the first query for it is answered, and has the shares of the labels that
        all queries for it got.
        """
        random = np.random.default_rng(self.seed)
        _, place, which = np.unique(self.task.inputs, return_index=True, return_inverse=True)
        votes = _in_full(poll.votes[place], first.teachers)
        rows = np.arange(min(first.rows, PASSES * len(votes))) % len(votes)
        found = simulate(
            votes[rows],
            first.mechanism,
            first.epsilon,
            first.delta,
            cap_rule=first.cap.rule,
            entropy=random.bytes,
        )
        given = found.labels >= 0
        labels = np.zeros(votes.shape)
        np.add.at(labels, (rows[given], found.labels[given]), 1)
        known = given[: len(votes)]
        if not known.any():
            return None
        shares = labels * known[:, None] / np.maximum(1, labels.sum(axis=1))[:, None]
        return Answers(shares[which], known[which])

    def taught(self, answers: Answers, stand_ins: int) -> _Tested:
        """Return what a plain student says of the rows that test it."""
        student = choose(self.task, answers, Training(method=PLAIN_METHOD)).student
        tested = self.tested
        said = student.predict(self.sample.inputs[tested])
        scores = None
        if len(self.sample.classes) == 2:
            scores = student.probabilities(self.sample.inputs[tested])[:, 1]
        return _Tested(said, self.sample.labels[tested], stand_ins, scores)


def _simulate(
    sample: Dataset,
    pool: PublicData,
    trained: Sequence[FirstProject],
    neighbours: FirstProject | None,
) -> _Simulated | None:
    """Simulate a student of each way in each draw. None if there are too few records.

    In each draw all are asked, and tested on, the same rows.
    """
    by_units = None if neighbours is None else _Taught(neighbours, [])
    by_teachers, confident = [_Taught(each, []) for each in trained], None
    truth = list[_Tested]()
    for seed in range(DRAWS):
        draw = _Draw.of(sample, seed)
        if draw is None:
            return None
        polls = [_trained(draw, each) for each in trained]
        for way, poll in zip(by_teachers, polls, strict=True):
            if poll is not None:
                way.students.append(draw.taught(draw.counts(poll, way.first), poll.stand_ins))
        if polls and polls[-1] is not None:
            if seed == 0:
                confident = _confident(draw, polls[-1], trained[-1])
            labels = None if confident is None else draw.labels(polls[-1], confident.first)
            if confident is not None and labels is not None:
                confident.students.append(draw.taught(labels, polls[-1].stand_ins))
        if by_units is not None:
            poll = _units(draw, pool, by_units.first)
            taught = draw.taught(draw.counts(poll, by_units.first), poll.stand_ins)
            by_units.students.append(taught)
            poll = _units(draw, pool, by_units.first, one_in=2)
            taught = draw.taught(draw.counts(poll, by_units.first), poll.stand_ins)
            by_units.of_half.append(taught)
        true = Answers.of_labels(sample.labels[draw.learned], len(sample.classes))
        truth.append(draw.taught(true, stand_ins=0))
    simulated = [way for way in by_teachers if len(way.students) == DRAWS]
    if trained and not simulated:
        return None
    ways = [*([by_units] if by_units else []), *sorted(simulated, key=_merit)[-1:]]
    if confident is not None and len(confident.students) == DRAWS:
        ways.append(confident)
    return _Simulated(ways, truth) if ways else None


def _confident(draw: _Draw, poll: _Poll, first: FirstProject) -> _Taught | None:
    """Return the confident answers that promise the most right ones; None if none is paid for."""
    votes = _in_full(poll.votes[:TRIED], first.teachers)
    known = Votes.observed(votes, draw.sample.labels[draw.learned[:TRIED]], teachers=first.teachers)
    grid: Grid = {
        "threshold": [round(share * first.teachers) for share in THRESHOLDS],
        "sigma1": [share * first.teachers for share in TESTS],
        "sigma2": [share * first.teachers for share in MAXIMA],
    }
    try:
        found = plan(
            "confident_gnmax",
            [known],
            epsilon=first.epsilon,
            delta=first.delta,
            grid=lambda _: grid,
            data_dependent=False,
        )
        best = max(
            found.candidates,
            key=lambda each: min(each.answers, first.rows * each.answered) * each.accuracy,
        )
        return _Taught(first.of_confident(best.spec), [])
    except ParameterError:
        return None


def _trained(draw: _Draw, first: FirstProject) -> _Poll | None:
    """Let teachers of one half of the rows vote on the other, and the other way round.

    So every row is asked about, by teachers who have not seen it. None if there are too few rows
    for five.
    """
    sample = part(draw.sample, draw.own)
    records = max(1, round(first.units / first.teachers * len(sample) / _people(sample)))
    both = halves(sample, draw.seed)
    teachers = min(MOST, first.teachers, min(map(len, both)) // records)
    if teachers < LEAST:
        return None
    votes, matches_prior = np.zeros((len(sample), len(sample.classes)), np.int64), False
    for own, asked in (both, both[::-1]):
        found = votes_of(sample, own[: teachers * records], asked, teachers, Heads(), draw.seed)
        if found is None:
            return None
        votes[asked], matches_prior = found.votes, found.matches_prior
    return _Poll(votes[: len(draw.learned)], teachers, teachers, matches_prior)


def _units(draw: _Draw, pool: PublicData, first: FirstProject, one_in: int = 1) -> _Poll:
    """Let each row, or person, vote on all other rows; or one in so many of them."""
    plan = first.neighbours
    if plan is None:
        raise ValueError("this way trains teachers")
    own = part(draw.sample, draw.own)
    stand_in = StandInUnits.placed(own, pool, near=plan.near, units=first.units)
    rows, which = _once(own.inputs[: len(draw.learned)])
    units = np.arange(len(own)) if own.groups is None else own.groups
    asked = np.unique(which, return_index=True)[1]
    allowance = round(plan.allowance * stand_in.denser * len(rows) / plan.queries)
    votes = stand_in.counts(rows, max(1, allowance), excluded=units[asked], one_in=one_in)[0][which]
    return _Poll(votes, float(votes.sum(1).mean()), stand_in.units.count, matches_prior=True)


def _once(inputs: NDArray[np.generic]) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return the different rows of `inputs`, and which of them each one is."""
    which = number_distinct_rows(inputs)
    return inputs[np.unique(which, return_index=True)[1]], which


def _people(sample: Dataset) -> int:
    return len(sample) if sample.groups is None else int(sample.groups.max()) + 1


def _in_full(votes: NDArray[np.int64], teachers: int) -> NDArray[np.int64]:
    """Return votes [K, m] as if all `teachers` had cast them as the stand-ins did."""
    full: NDArray[np.int64] = votes * teachers // votes.sum(axis=1, keepdims=True)
    full[np.arange(len(full)), votes.argmax(axis=1)] += teachers - full.sum(axis=1)
    return full


def _forecast(found: Sequence[_Tested], way: _Taught | None = None) -> StudentForecast:
    chance = float(np.mean([each.chance for each in found]))
    fewer, growth = ([], 0.0) if way is None else (way.of_half, way.growth)

    def between(measure: Callable[[_Tested], _Figure], least: float) -> tuple[float, float]:
        values, variances = np.transpose([measure(each) for each in found])
        gain = 0.0
        if fewer:
            gain = max(0.0, values.mean() - np.mean([measure(each)[0] for each in fewer])) * growth
        error = DOUBT * np.sqrt(variances.mean() / len(found))
        low, high = values.min() - error, values.max() + gain + error
        return max(least, float(low)), max(least, min(1.0, float(high)))

    ranked = all(each.auc is not None for each in found)
    balanced = between(_Tested.balanced_figure, chance)
    return StudentForecast(
        between(_Tested.accuracy_figure, chance),
        balanced,
        between(_Tested.auc_figure, 0.5) if ranked else None,
        chance,
        found[0].stand_ins,
        useless=balanced[1] < chance + USELESS,
        above_chance=_above_chance(found),
    )


def _above_chance(found: Sequence[_Tested]) -> bool:
    """Whether students are better than a guess by two standard errors and by two points.

    In balanced accuracy or, of two classes, in AUC: who ranks well may cut elsewhere.
    """
    gains = np.concatenate([each.right * each.weights - each.chance for each in found])
    error = float(gains.std() / np.sqrt(len(gains)))
    if float(gains.mean()) > max(MIN_GAIN_OVER_CHANCE, DOUBT * error):
        return True
    ranked = [(each.auc - 0.5, each.auc_variance) for each in found if each.auc is not None]
    if not ranked:
        return False
    gain, variance = np.mean(ranked, axis=0)
    return float(gain) > max(MIN_GAIN_OVER_CHANCE, DOUBT * float(np.sqrt(variance / len(ranked))))


def _merit(way: _Taught) -> float:
    """The AUC, of two classes, and else the balanced accuracy, on average over the draws."""
    ranked = [each.auc for each in way.students if each.auc is not None]
    if len(ranked) == len(way.students):
        return float(np.mean(ranked))
    return float(np.mean([each.balanced for each in way.students]))


def _clearly_better(one: Sequence[_Tested], other: Sequence[_Tested]) -> bool:
    """Whether students are better by more than chance explains.

    Of two classes in AUC: where one is rare, few rows lie near the threshold that cuts them, and
    balanced accuracy tells little. Else in balanced accuracy. In each draw both were tested on the
    same rows.
    """
    pairs = list(zip(one, other, strict=True))
    if all(a.auc is not None and b.auc is not None for a, b in pairs):
        leads = [_auc_lead(a, b) for a, b in pairs]
    else:
        leads = [_mean((a.right.astype(np.float64) - b.right) * a.weights) for a, b in pairs]
    gain, variance = np.mean(leads, axis=0)
    return float(gain) > DOUBT * float(np.sqrt(variance / len(leads)))


def _auc_lead(one: _Tested, other: _Tested) -> _Figure:
    """By how much an AUC is larger, and the variance of that (DeLong and others 1988)."""
    by_class = [_mean(a - b) for a, b in zip(one.placements, other.placements, strict=True)]
    return by_class[0][0], sum(variance for _, variance in by_class)


def _mean(values: NDArray[np.float64] | NDArray[np.bool_]) -> _Figure:
    """The mean, and its variance."""
    return float(values.mean()), float(values.var() / len(values))
