"""What a first project should buy, and by which way, foreseen from public records alone.

Stand-ins for the teachers, or for the units of neighbours, are some public records, as many to each
as it will have. They vote on others, with noise, and a plain student learns from that. The noise is
such that a share fitted to these rows has the noise that it would have, fitted to the whole pool.
Where labels are all that is told, rows are asked again until the pool has no more rows, or the
budget is spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from terrine_models.data.arrays import Dataset, distinct
from terrine_models.features.maps import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.selection import PLAIN, choose
from terrine_models.students.settings import Training
from terrine_models.students.task import Task
from terrine_models.teachers.heads import Heads
from terrine_models.teachers.preview import halves, stand_ins
from terrine_server.owner.stand_in_units import StandInUnits
from terrine_server.planning.first_project import FirstProject
from terrine_server.planning.forecast import Votes
from terrine_server.planning.grid import Grid
from terrine_server.planning.neighbour_plan import near_for, plan_neighbours, quieter
from terrine_server.planning.plan import plan
from terrine_server.planning.remaining import FEW
from terrine_server.planning.simulation import simulate
from terrine_server.privacy.noise import discrete_gaussian
from terrine_server.privacy.parameters import MIN_SIGMA, ParameterError

DRAWS = 3
MOST, MOST_ROWS = 400, 3_000
"""Stand-ins for teachers, and rows on which they vote. With fewer than in the project, each share
varies more and fewer rows fit the features, so a student is rather foreseen worse."""
USELESS = 0.1
"""Balanced accuracy above that of guessing, below which little was learned."""
MIN_GAIN_OVER_CHANCE = 0.02
"""Balanced accuracy, or AUC, by which students must be better than guesses for a project to be
worth its budget; and by two standard errors."""
TESTED = 4
"""One in so many of the rows that are voted on tests the student, which does not see it."""
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
    first: FirstProject, sample: Dataset, pool: PublicData, *, labelled: bool, people: bool
) -> ForecastChoice:
    """Choose how records are asked, from public ones. `first` is for trained teachers.

    `sample`: the records of `pool`; labels that are not `labelled` are not looked at. `people`:
    whether private records have groups. Teachers are trained where their students' balanced
    accuracy is better by two standard errors; else neighbours vote. For these the simulation is too
    hard: of a share f of the units, f·k are near a query, and a share of so few votes is uncertain
    by √(p(1 − p)/(f·k)), whatever the noise; that of teachers by √(p(1 − p)/(f·n)), and n is larger
    than k. Labels alone, where teachers mostly agree, are bought if their students are better by as
    much than those of either. Where nothing can be simulated, it is the way whose votes have less
    noise.
    """
    own, asked = halves(sample, seed=0)
    near = near_for(first.units, first.rows, first.epsilon, first.delta)
    placed = StandInUnits.placed(part(sample, own[:MOST_ROWS]), pool, near=near, units=first.units)
    neighbours = first.of_neighbours(
        plan_neighbours(
            placed.spent(_once(sample.inputs[asked[:MOST_ROWS]])[0]),
            units=first.units,
            near=near,
            queries=first.rows,
            epsilon=first.epsilon,
            delta=first.delta,
        )
    )
    found = None
    if labelled and (sample.groups is not None or not people):
        found = _simulate(sample, pool, first, neighbours)
    if found is None:
        calm = quieter(first.units, near, first.teachers)
        both = (neighbours, first) if calm else (first, neighbours)
        return ForecastChoice(tuple(ForecastOption(each, None) for each in both), None)
    best, *others = found.ways
    for each in others:
        if _clearly_better(each.students, best.students):
            best = each
    ways = [
        ForecastOption(
            each.first,
            _forecast(each.students),
            _clearly_better(best.students, each.students),
        )
        for each in sorted(found.ways, key=lambda each: (each is not best, -_balanced(each)))
    ]
    return ForecastChoice(tuple(ways), _forecast(found.truth))


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


@dataclass(frozen=True, eq=False)
class _Simulated:
    """All ways, in the order in which a later one must be clearly better to be chosen."""

    ways: Sequence[_Taught]
    truth: Sequence[_Tested]


@dataclass(frozen=True, eq=False)
class _Draw:
    """Public rows that are asked about; some of them test what was learned of the others."""

    sample: Dataset
    asked: NDArray[np.int64]
    task: Task
    seed: int

    @classmethod
    def of(cls, sample: Dataset, seed: int) -> _Draw | None:
        """Draw rows. None if they are too few."""
        asked = halves(sample, seed)[1][:MOST_ROWS]
        if len(asked) < TESTED * FEW * len(sample.classes):
            return None
        learned = asked[_learned(len(asked))]
        return cls(sample, asked, Task(sample.inputs[learned], sample.spec, sample.classes), seed)

    @property
    def learned(self) -> NDArray[np.int64]:
        return self.asked[_learned(len(self.asked))]

    def counts(self, poll: _Poll, first: FirstProject) -> Answers:
        """Return the votes with noise. Equal rows have one answer."""
        random = np.random.default_rng(self.seed)
        of, rows = max(1.0, poll.of), int(self.task.inputs.max()) + 1
        votes = poll.votes[_learned(len(self.asked))]
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
        votes = _in_full(poll.votes[_learned(len(self.asked))][place], first.teachers)
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
        student = choose(self.task, answers, Training(method=PLAIN)).student
        tested = self.asked[~_learned(len(self.asked))]
        said = student.predict(self.sample.inputs[tested])
        scores = None
        if len(self.sample.classes) == 2:
            scores = student.probabilities(self.sample.inputs[tested])[:, 1]
        return _Tested(said, self.sample.labels[tested], stand_ins, scores)


def _simulate(
    sample: Dataset, pool: PublicData, first: FirstProject, neighbours: FirstProject
) -> _Simulated | None:
    """Simulate a student of each way in each draw. None if there are too few records.

    In each draw all are asked, and tested on, the same rows.
    """
    by_units, trained = _Taught(neighbours, []), _Taught(first, [])
    confident, truth = None, list[_Tested]()
    for seed in range(DRAWS):
        draw, poll = _Draw.of(sample, seed), _trained(sample, first, seed)
        if draw is None or poll is None:
            return None
        trained.students.append(draw.taught(draw.counts(poll, first), poll.stand_ins))
        if seed == 0:
            confident = _confident(draw, poll, first)
        labels = None if confident is None else draw.labels(poll, confident.first)
        if confident is not None and labels is not None:
            confident.students.append(draw.taught(labels, poll.stand_ins))
        poll = _units(sample, pool, neighbours, draw.asked, seed)
        by_units.students.append(draw.taught(draw.counts(poll, neighbours), poll.stand_ins))
        true = Answers.of_labels(sample.labels[draw.learned], len(sample.classes))
        truth.append(draw.taught(true, stand_ins=0))
    ways = [by_units, trained]
    if confident is not None and len(confident.students) == DRAWS:
        ways.append(confident)
    return _Simulated(ways, truth)


def _confident(draw: _Draw, poll: _Poll, first: FirstProject) -> _Taught | None:
    """Return the confident answers that promise the most right ones; None if none is paid for."""
    votes = _in_full(poll.votes[_learned(len(draw.asked))][:TRIED], first.teachers)
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


def _trained(sample: Dataset, first: FirstProject, seed: int) -> _Poll | None:
    own = first.units / first.teachers
    records = max(1, round(own * len(sample) / _people(sample)))
    most = min(MOST, first.teachers)
    found = stand_ins(sample, records, Heads(), seed, most=most, most_rows=MOST_ROWS)
    if found is None:
        return None
    return _Poll(found.votes, found.teachers, found.teachers, found.matches_prior)


def _units(
    sample: Dataset, pool: PublicData, first: FirstProject, asked: NDArray[np.int64], seed: int
) -> _Poll:
    people = first.neighbours
    if people is None:
        raise ValueError("this way trains teachers")
    own = part(sample, halves(sample, seed)[0])
    stand_in = StandInUnits.placed(own, pool, near=people.near, units=first.units)
    rows, which = _once(sample.inputs[asked])
    allowance = round(people.allowance * stand_in.denser * len(rows) / people.queries)
    votes = stand_in.counts(rows, max(1, allowance))[0][which]
    return _Poll(votes, float(votes.sum(1).mean()), stand_in.units.count, matches_prior=True)


def _once(inputs: NDArray[np.generic]) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return the different rows of `inputs`, and which of them each one is."""
    which = distinct(inputs)
    return inputs[np.unique(which, return_index=True)[1]], which


def _people(sample: Dataset) -> int:
    return len(sample) if sample.groups is None else int(sample.groups.max()) + 1


def _learned(asked: int) -> NDArray[np.bool_]:
    """Return which of the rows that are asked about are learned from [K]."""
    learned: NDArray[np.bool_] = np.arange(asked) % TESTED > 0
    return learned


def _in_full(votes: NDArray[np.int64], teachers: int) -> NDArray[np.int64]:
    """Return votes [K, m] as if all `teachers` had cast them as the stand-ins did."""
    full: NDArray[np.int64] = votes * teachers // votes.sum(axis=1, keepdims=True)
    full[np.arange(len(full)), votes.argmax(axis=1)] += teachers - full.sum(axis=1)
    return full


def _forecast(found: Sequence[_Tested]) -> StudentForecast:
    tested = sum(len(each.labels) for each in found)
    balanced = [each.balanced for each in found]
    chance = float(np.mean([each.chance for each in found]))
    ranked = [each.auc for each in found if each.auc is not None]
    return StudentForecast(
        _range([float(each.right.mean()) for each in found], tested, chance),
        _range(balanced, tested, chance),
        _range(ranked, tested, 0.5) if ranked else None,
        chance,
        found[0].stand_ins,
        useless=max(balanced) < chance + USELESS,
        above_chance=_above_chance(found),
    )


def _range(values: Sequence[float], tested: int, chance: float) -> tuple[float, float]:
    least, most = min(values), max(values)
    error = 2 * float(np.sqrt(np.mean(values) * (1 - np.mean(values)) / tested))
    return max(chance, least - error), max(chance, min(1.0, most + error))


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


def _balanced(way: _Taught) -> float:
    return float(np.mean([each.balanced for each in way.students]))


def _clearly_better(one: Sequence[_Tested], other: Sequence[_Tested]) -> bool:
    """Whether balanced accuracy is larger by more than chance explains.

    In each draw both were tested on the same rows.
    """
    gains = np.concatenate(
        [
            (a.right.astype(np.float64) - b.right) * a.weights
            for a, b in zip(one, other, strict=True)
        ]
    )
    return float(gains.mean()) > DOUBT * float(gains.std() / np.sqrt(len(gains)))
