"""What a first project should buy, and by which way, foreseen from public records alone.

Stand-ins for the teachers, or for the units of neighbours, are some public records, as many to each
as it will have. They vote on others, with noise, and a plain student learns from that. The noise is
such that a share fitted to these rows has the noise that it would have, fitted to the whole pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
from terrine_server.planning.lasting import lasting, near_for, quieter
from terrine_server.planning.remaining import FEW
from terrine_server.privacy.noise import discrete_gaussian
from terrine_server.privacy.parameters import MIN_SIGMA

DRAWS = 3
MOST, MOST_ROWS = 400, 3_000
"""Stand-ins for teachers, and rows on which they vote. With fewer than in the project, each share
varies more and fewer rows fit the features, so a student is rather foreseen worse."""
USELESS = 0.1
"""Balanced accuracy above that of guessing, without which nothing was learned."""
TESTED = 4
"""One in so many of the rows that are voted on tests the student, which does not see it."""
DOUBT = 2.0
"""Standard errors by which one way is ahead of another to be clearly better."""


@dataclass(frozen=True)
class Foreseen:
    """Figures of plain students over a few draws of stand-ins, rows and noise.

    Each [least, most], and two standard errors of all tested rows further: few rows tell little.
    """

    accuracy: tuple[float, float]
    balanced_accuracy: tuple[float, float]
    stand_ins: int
    useless: bool
    """Whether no student is much better than a constant answer."""


@dataclass(frozen=True)
class Chosen:
    """The way that was chosen, and why."""

    first: FirstProject
    other: FirstProject
    trained: Foreseen | None
    """None, as the next, if there are no labelled public records, or too few."""
    neighbours: Foreseen | None
    clear: bool
    """Whether its simulated students were better by more than chance explains."""

    @property
    def foreseen(self) -> Foreseen | None:
        """The figures of the way that was chosen."""
        return self.trained if self.first.neighbours is None else self.neighbours


def choose_way(
    first: FirstProject, sample: Dataset, pool: PublicData, *, labelled: bool, people: bool
) -> Chosen:
    """Choose between trained teachers, for which `first` is, and neighbours, from public records.

    `sample`: the records of `pool`; labels that are not `labelled` are not looked at. `people`:
    whether private records have groups. Teachers are trained where their students' balanced
    accuracy is better by two standard errors; else neighbours vote. For these the simulation is too
    hard: of a share f of the units, f·k are near a query, and a share of so few votes is uncertain
    by √(p(1 − p)/(f·k)), whatever the noise; that of teachers by √(p(1 − p)/(f·n)), and n is larger
    than k. Where nothing can be simulated, it is the way whose votes have less noise.
    """
    own, asked = halves(sample, seed=0)
    near = near_for(first.units, first.rows, first.epsilon, first.delta)
    placed = StandInUnits.placed(part(sample, own[:MOST_ROWS]), pool, near=near, units=first.units)
    neighbours = first.of_neighbours(
        lasting(
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
        return Chosen(*both, None, None, clear=False)
    trained, by_units = found
    lead, error = _lead(by_units, trained)
    clear, classes = abs(lead) > DOUBT * error, len(sample.classes)
    both = (first, neighbours) if clear and lead < 0 else (neighbours, first)
    return Chosen(*both, _foreseen(trained, classes), _foreseen(by_units, classes), clear)


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


def _simulate(
    sample: Dataset, pool: PublicData, first: FirstProject, neighbours: FirstProject
) -> tuple[Sequence[_Tested], Sequence[_Tested]] | None:
    """Simulate a student of either way in each draw. None if there are too few records.

    In each draw both are asked, and tested on, the same rows.
    """
    trained, by_units = list[_Tested](), list[_Tested]()
    for seed in range(DRAWS):
        asked = halves(sample, seed)[1][:MOST_ROWS]
        if len(asked) < TESTED * FEW * len(sample.classes):
            return None
        poll = _trained(sample, first, seed)
        if poll is None:
            return None
        learned = asked[np.arange(len(asked)) % TESTED > 0]
        task = Task(sample.inputs[learned], sample.spec, sample.classes)
        trained.append(_student(task, sample, asked, poll, first, seed))
        poll = _units(sample, pool, neighbours, asked, seed)
        by_units.append(_student(task, sample, asked, poll, neighbours, seed))
    return trained, by_units


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
    foretold = first.neighbours
    if foretold is None:
        raise ValueError("this way trains teachers")
    own = part(sample, halves(sample, seed)[0])
    stand_in = StandInUnits.placed(own, pool, near=foretold.near, units=first.units)
    rows, which = _once(sample.inputs[asked])
    allowance = round(foretold.allowance * stand_in.denser * len(rows) / foretold.queries)
    votes = stand_in.counts(rows, max(1, allowance))[0][which]
    return _Poll(votes, float(votes.sum(1).mean()), stand_in.units.count, matches_prior=True)


def _once(inputs: NDArray[np.generic]) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return the different rows of `inputs`, and which of them each one is."""
    which = distinct(inputs)
    return inputs[np.unique(which, return_index=True)[1]], which


def _people(sample: Dataset) -> int:
    return len(sample) if sample.groups is None else int(sample.groups.max()) + 1


def _student(
    task: Task,
    sample: Dataset,
    asked: NDArray[np.int64],
    poll: _Poll,
    first: FirstProject,
    seed: int,
) -> _Tested:
    random = np.random.default_rng(seed)
    learned = np.arange(len(asked)) % TESTED > 0
    of = max(1.0, poll.of)
    votes, rows = poll.votes[learned], int(task.inputs.max()) + 1
    sigma = max(MIN_SIGMA, first.fitted_noise * of * rows**0.5)
    noise = discrete_gaussian(sigma).sample((rows, votes.shape[1]), random.bytes)
    noisy = votes + noise[task.inputs]
    answers = Answers.of_counts(
        noisy, teachers=max(1, round(of)), sigma=sigma, matches_prior=poll.matches_prior
    )
    student = choose(task, answers, Training(method=PLAIN)).student
    tested = asked[~learned]
    return _Tested(student.predict(sample.inputs[tested]), sample.labels[tested], poll.stand_ins)


def _foreseen(found: Sequence[_Tested], classes: int) -> Foreseen:
    tested = sum(len(each.labels) for each in found)
    balanced = [float((each.right * each.weights).mean()) for each in found]
    return Foreseen(
        _range([float(each.right.mean()) for each in found], tested),
        _range(balanced, tested),
        found[0].stand_ins,
        useless=max(balanced) < 1 / classes + USELESS,
    )


def _range(values: Sequence[float], tested: int) -> tuple[float, float]:
    least, most = min(values), max(values)
    error = 2 * float(np.sqrt(np.mean(values) * (1 - np.mean(values)) / tested))
    return max(0.0, least - error), min(1.0, most + error)


def _lead(one: Sequence[_Tested], other: Sequence[_Tested]) -> tuple[float, float]:
    """Return by how much balanced accuracy is larger, with its standard error.

    In each draw both were tested on the same rows.
    """
    gains = np.concatenate(
        [
            (a.right.astype(np.float64) - b.right) * a.weights
            for a, b in zip(one, other, strict=True)
        ]
    )
    return float(gains.mean()), float(gains.std() / np.sqrt(len(gains)))
