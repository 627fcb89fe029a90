"""Attack students: can it be told from what one says which record it was made with?

    material = Material.of(load_digits(), epsilon=1.0, seed=0)
    for finding in audit_students(material, students=160, level=1e-3):
        ...

Some places of the private records have two versions of a record. In each world a coin decides for
each place which version is there; the project answers with its noise, a student learns from the
answers, and an attacker, who knows all else and both versions, guesses the coins from the student's
probabilities. Replacing a record in place is what (ε, δ) is promised for, so no attacker is right
more often than `max_guess_accuracy`, whatever else is there.

The attack is the likelihood-ratio attack with models of both versions (Carlini, Chien, Nasr, Song,
Terzis and Tramèr, IEEE S&P 2022): half of the students show the attacker how each version moves a
student, the other half are attacked. What is learned on some students is judged on others.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta, rankdata, t

from terrine_addons.audit.findings import AttackFigures, AuditFinding
from terrine_models.data.arrays import (
    DIGITS,
    DataError,
    Dataset,
    InputSpec,
    number_distinct_rows,
    row_digests,
)
from terrine_models.data.workers import side_by_side
from terrine_models.features.public import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.methods import METHODS
from terrine_models.students.models import Student, Task, Training
from terrine_models.students.selection import PLAIN_METHOD
from terrine_models.students.sums import fit_sums
from terrine_models.sums import ReleasedSums, SumMap, add_up
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.neighbours import NeighbourEnsemble, NeighbourSettings, build
from terrine_models.teachers.shards import teacher_of
from terrine_models.teachers.training import train_ensemble
from terrine_server.planning.first_project import (
    FirstProject,
    NeighbourPlan,
    NeighbourProject,
    Setting,
    SumProject,
    max_detection_rate,
    max_guess_accuracy,
)
from terrine_server.planning.forecast import compare_options
from terrine_server.planning.simulation import simulate
from terrine_server.privacy import Units
from terrine_server.privacy.mechanisms.neighbours import Neighbours
from terrine_server.privacy.noise import Entropy
from terrine_server.privacy.parameters import ParameterError
from terrine_server.privacy.releases import Sums
from terrine_tables.columns import Progress, ignore_progress

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

NAME = "attacked"
# Records that are used, drawn at random from those given. More take longer, and hide better.
MAX_RECORDS = 6_000
# Of the records, that students ask about.
POOL_SHARE = 0.3
# Of the records, that say how good the students are.
TESTED_SHARE = 0.1
# Of usual records, and as many of mislabelled ones. With 100, coins of places near by hid each:
# without noise, guesses about digits were right on 70 % in place of 90 %.
MAX_PLACES = 20
MIN_PLACES = 10
# At most one place in so many is attacked, of either sort.
PLACES_ONE_IN = 10
# Share of those for whom it is false who may be accused.
ACCUSED = 0.01
# Of the limits that are printed beside figures; verdicts have that of the whole audit.
FIGURES_CONFIDENCE = 0.95
RESAMPLES = 500
MIN_STUDENTS = 16
# Of the students, as many more learn the true labels: on those, attacks succeed with few.
TRUE_LABELS_ONE_IN = 4
# That attacks on students of the true labels must exceed.
MAX_CLAIMED_EPSILON = 1.0
# Of the students, that the attacker learns from.
LEARN_ONE_IN = 2
MIN_PROBABILITY = 1e-9


def digits() -> Dataset:
    """Return the 1,797 digits of 8 x 8 pixels that come with scikit-learn."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images, labels = bundle.images.astype(np.uint8), bundle.target.astype(np.int64)
    spec = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
    return Dataset(images, labels, DIGITS, spec, name="scikit-learn's digits")


@dataclass(frozen=True, eq=False)
class Material:
    """Public records, of which some play the private ones, and what a project on these would be."""

    first: Dataset
    """[N], private records, with the first version in every place."""
    second: Dataset
    """[N], with the second version in those `places` that are attacked."""
    places: Ints
    """[S], those that are attacked, in order."""
    mislabelled: Bools
    """[S], whether the first version is the second one's input with a wrong label."""
    pool: Dataset
    """What students ask about, no two rows equal. They do not see its labels."""
    tested: Dataset
    """Others, to say how good students are."""
    project: FirstProject
    """As `terrine quickstart` would open it."""

    @classmethod
    def of(cls, data: Dataset, *, epsilon: float, seed: int) -> Material:
        """Divide public records. Raises DataError or ParameterError if there are too few."""
        random = np.random.default_rng(seed)
        # Their schema may be made of them, as they are public.
        data = replace(data, groups=None, group_column=None, people=None, sha256=None)
        order = random.permutation(len(data))[:MAX_RECORDS]
        pooled, tested = round(POOL_SHARE * len(order)), round(TESTED_SHARE * len(order))
        pool = _distinct(_select(data, order[:pooled]))
        held_out, rest = order[pooled : pooled + tested], order[pooled + tested :]
        # No record that is in the pool, or twice: attackers could not tell which one is meant.
        fresh = ~np.isin(row_digests(data.inputs[rest]), row_digests(pool.inputs))
        rest = rest[fresh]
        _, once = np.unique(number_distinct_rows(data.inputs[rest]), return_index=True)
        rest = rest[np.sort(once)]
        each = min(MAX_PLACES, len(rest) // PLACES_ONE_IN)
        if each < MIN_PLACES:
            raise DataError(
                f"{data.name}: {len(rest):,} records, without those for the student and repeated "
                f"ones, are too few to attack; at least {MIN_PLACES * PLACES_ONE_IN} are needed."
            )
        spare, kept = rest[:each], rest[each:]
        setting = Setting.of(
            units=len(kept), rows=len(pool), classes=len(data.classes), epsilon=epsilon
        )
        public = _public(pool)
        project = compare_options(setting, pool, public, labelled=True, people=False).first
        return cls._with_places(data, kept, spare, pool, _select(data, held_out), project, random)

    @classmethod
    def _with_places(
        cls,
        data: Dataset,
        kept: Ints,
        spare: Ints,
        pool: Dataset,
        tested: Dataset,
        project: FirstProject,
        random: np.random.Generator,
    ) -> Material:
        """Choose the places by chance, at most one of a teacher."""
        true = _select(data, kept)
        wrong = _list_wrong_labels(true, pool)
        taken = set[int]()
        owner = np.arange(len(kept))
        if not isinstance(project, NeighbourProject | SumProject):
            owner = teacher_of(len(kept), project.teachers, seed=0)

        def take(candidates: Ints, most: int) -> list[int]:
            found = list[int]()
            for place in candidates.tolist():
                if len(found) < most and (teacher := int(owner[place])) not in taken:
                    taken.add(teacher)
                    found.append(place)
            return found

        each = min(len(spare), len(np.unique(owner)) // 2)
        order = random.permutation(len(kept))
        changed, usual = take(order, each), take(order, each)
        places = np.array(sorted(changed + usual), dtype=np.int64)
        mislabelled = np.isin(places, changed)
        labels, inputs = true.labels.copy(), true.inputs.copy()
        labels[changed] = wrong[changed]
        second_labels, second = true.labels.copy(), inputs.copy()
        second[usual], second_labels[usual] = (
            data.inputs[spare[: len(usual)]],
            data.labels[spare[: len(usual)]],
        )
        return cls(
            replace(true, labels=labels),
            replace(true, inputs=second, labels=second_labels),
            places,
            mislabelled,
            pool,
            tested,
            project,
        )

    def toss(self, worlds: int, random: np.random.Generator) -> Bools:
        """Return where the first version is in each world, bool[W, S]."""
        return random.random((worlds, len(self.places))) < 0.5

    def world(self, first: Bools) -> Dataset:
        """Return the private records with the first version where `first` [S], else the second."""
        inputs, labels = self.second.inputs.copy(), self.second.labels.copy()
        there = self.places[first]
        inputs[there], labels[there] = self.first.inputs[there], self.first.labels[there]
        return replace(self.second, inputs=inputs, labels=labels)

    def examine(self, student: Student) -> tuple[Floats, float]:
        """Return log-odds that a student gives to both versions' labels on their inputs [2, S].

        And how often it is right on the records that test it.
        """
        versions = [_select(each, self.places) for each in (self.first, self.second)]
        shown = np.concatenate([*(each.inputs for each in versions), self.tested.inputs])
        said = student.probabilities(shown)
        own = said[np.arange(2 * len(self.places)), np.concatenate([v.labels for v in versions])]
        rest = np.maximum(said.sum(1)[: len(own)] - own, MIN_PROBABILITY)
        odds: Floats = np.log(np.maximum(own, MIN_PROBABILITY)) - np.log(rest)
        right = student.labels(said[len(own) :]) == self.tested.labels
        return odds.reshape(2, -1), float(right.mean())


def _select(data: Dataset, rows: Ints) -> Dataset:
    return replace(data, inputs=data.inputs[rows], labels=data.labels[rows])


def _distinct(data: Dataset) -> Dataset:
    _, first = np.unique(number_distinct_rows(data.inputs), return_index=True)
    return _select(data, np.sort(first))


def _public(pool: Dataset) -> PublicData:
    return PublicData.declare(NAME, pool.inputs, labels=pool.labels)


def _list_wrong_labels(data: Dataset, pool: Dataset) -> Ints:
    """Return for each record [N] the label that a student of the pool's true labels least expects.

    The rarer a record is, the more it moves: and no record is rarer than one with such a label.
    """
    answers = Answers.of_labels(pool.labels, len(pool.classes))
    student = _learn(Task(pool.inputs, pool.spec, pool.classes, pool.encoding), answers)
    said = student.probabilities(data.inputs)
    said[np.arange(len(said)), data.labels] = np.inf
    wrong: Ints = said.argmin(1)
    return wrong


def _learn(task: Task, answers: Answers) -> Student:
    """Return the plain student, with which every other is compared."""
    return METHODS[PLAIN_METHOD](Training()).fit(task.with_best_view(answers), answers)


class Voters(Protocol):
    """What answers for the private records of a world."""

    @property
    def matches_prior(self) -> bool:
        """Whether teachers choose each of two classes as often as their records have it."""

    def votes(self, first: Bools) -> Ints:
        """Return votes [Q, m] on the pool, with the first version where `first` [S]."""


@dataclass(frozen=True, eq=False)
class _Units:
    """Neighbours: each record votes itself. What it adds to a query depends on it alone."""

    ensemble: NeighbourEnsemble
    mechanism: Neighbours
    allowance: int
    places: Ints
    labels: tuple[NDArray[np.int16], NDArray[np.int16]]
    """Of the records' first versions, and of their second ones."""
    weights: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    """What each adds to its class [Q, N]."""
    matches_prior: bool = True

    @classmethod
    def of(cls, material: Material, plan: NeighbourPlan) -> _Units:
        labels, weights = [], []
        for version in (material.first, material.second):
            with tempfile.TemporaryDirectory() as scratch:
                out = Path(scratch) / NAME
                settings = NeighbourSettings(near=plan.near)
                build(version, out, name=NAME, public=_public(material.pool), settings=settings)
                ensemble = NeighbourEnsemble.load(out)
            if len(ensemble.units) != len(version):
                raise DataError(f"{version.name} has records that no features can be made of.")
            labels.append(ensemble.labels)
            weights.append(ensemble.weights(material.pool.inputs))
        (first, second), (weight, other), mechanism = labels, weights, material.project.mechanism
        if not isinstance(mechanism, Neighbours):
            raise TypeError(f"{mechanism.name} is not for neighbours")
        return cls(
            ensemble,
            mechanism,
            plan.allowance,
            material.places,
            (first, second),
            (weight, other),
        )

    def votes(self, first: Bools) -> Ints:
        there = self.places[first]
        labels, weights = self.labels[1].copy(), self.weights[1].copy()
        labels[there], weights[:, there] = self.labels[0][there], self.weights[0][:, there]
        units = Units.of(self.ensemble.units, labels, len(labels))
        accounts = np.zeros(len(labels), np.uint32)
        return self.mechanism.cast(weights, units, accounts, self.allowance)[0]


@dataclass(frozen=True, eq=False)
class _Teachers:
    """Trained teachers: each depends on its own shard alone, which has one such place at most."""

    choices: tuple[Ints, Ints]
    """Classes [Q, n] that each teacher votes for, if its place has the first version or second."""
    owners: Ints
    """[S], whose shard each place is in."""
    classes: int
    matches_prior: bool

    @classmethod
    def of(cls, material: Material) -> _Teachers:
        choices, teachers, pool = [], material.project.teachers, material.pool
        for version in (material.first, material.second):
            with tempfile.TemporaryDirectory() as scratch:
                out = Path(scratch) / NAME
                train_ensemble(
                    version, out, name=NAME, teachers=teachers, public=_public(pool), seed=0
                )
                ensemble = Ensemble.load(out, device="cpu")
            choices.append(_choices(ensemble, pool.inputs))
        owners = teacher_of(len(material.first), teachers, seed=0)[material.places]
        matches_prior = ensemble.manifest.teacher.matches_prior
        first, second = choices
        return cls((first, second), owners, len(pool.classes), matches_prior)

    def votes(self, first: Bools) -> Ints:
        chosen = self.choices[1].copy()
        there = self.owners[first]
        chosen[:, there] = self.choices[0][:, there]
        return np.array([np.bincount(row, minlength=self.classes) for row in chosen])


def _choices(ensemble: Ensemble, inputs: NDArray[np.generic]) -> Ints:
    """Return the class that each teacher chooses [Q, n]."""
    voting, found = ensemble.voting, []
    for start in range(0, len(inputs), voting.block):
        rows = inputs[start : start + voting.block]
        block = np.zeros((voting.block, *rows.shape[1:]), dtype=rows.dtype)
        block[: len(rows)] = rows
        with torch.inference_mode():
            found.append(voting.choose(torch.from_numpy(block))[: len(rows)].numpy())
    return np.concatenate(found).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Students:
    """What students said: `scores` [W, 2, S], as `Material.examine` returns; `first` [W, S]."""

    scores: Floats
    first: Bools
    accuracy: Floats
    """[W], on records that they have not seen."""


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of public features of records, released once, by which students are made."""

    known: SumMap
    release: Sums
    places: Ints
    points: tuple[Ints, Ints]
    """[N, d], features of the records' first versions, and of their second ones."""
    labels: tuple[Ints, Ints]
    task: Task

    @classmethod
    def of(cls, material: Material, project: SumProject) -> _Sums:
        pool, release = material.pool, project.release
        known = SumMap.fit(pool.spec, _public(pool), release.norm, project.map_noise)
        if known.sha256 != release.map_sha256:
            raise DataError(f"{pool.name} has another map of features than the project.")
        first, second = material.first, material.second
        return cls(
            known,
            release,
            material.places,
            (known(first.inputs), known(second.inputs)),
            (first.labels, second.labels),
            _task(pool),
        )

    def add_up(self, first: Bools) -> Ints:
        """Return the exact sums [d + 1, m], with the first version where `first` [S]."""
        there = self.places[first]
        points, labels = self.points[1].copy(), self.labels[1].copy()
        points[there], labels[there] = self.points[0][there], self.labels[0][there]
        return add_up(points, labels, None, self.release.classes, self.known.norm)

    def told(self, first: Bools, entropy: Entropy) -> ReleasedSums:
        """Return what a project on such records tells."""
        noisy = self.release.add_noise(self.add_up(first), entropy)
        units = len(self.labels[0])
        return ReleasedSums(self.known, noisy, self.release.sigma, units, self.task.x)


def sums_of(material: Material) -> _Sums | None:
    """Return what is added up of the records of a world; None for projects of votes."""
    project = material.project
    return _Sums.of(material, project) if isinstance(project, SumProject) else None


def voters_of(material: Material) -> Voters:
    """Return what votes for the records of a world, by the kind of the project."""
    project = material.project
    if isinstance(project, NeighbourProject):
        return _Units.of(material, project.neighbours)
    return _Teachers.of(material)


def teach_students(
    material: Material,
    count: int,
    random: np.random.Generator,
    entropy: Entropy = os.urandom,
    on_student: Callable[[], None] = lambda: None,
) -> Students:
    """Teach `count` students, each in a world of its own, by what the project tells with noise.

    Raises ParameterError if the project answers nothing.
    """
    first, sums = material.toss(count, random), sums_of(material)
    if sums is not None:
        told = [sums.told(each, entropy) for each in first]
        made = [partial(fit_sums, each, sums.task) for each in told]
        return _teach(material, first, made, on_student)
    voters, task = voters_of(material), _task(material.pool)
    answers = [_answer(material.project, voters, each, entropy) for each in first]
    return _teach(material, first, [partial(_learn, task, each) for each in answers], on_student)


def _task(world: Dataset) -> Task:
    return Task(world.inputs, world.spec, world.classes, world.encoding)


def teach_true_labels(
    material: Material,
    count: int,
    random: np.random.Generator,
    on_student: Callable[[], None] = lambda: None,
) -> Students:
    """Teach students by the labels of the private records themselves, as if nothing were promised.

    Where records are not mislabelled, there is always the second version.
    """
    first = material.toss(count, random) & material.mislabelled
    labels = (material.world(each).labels for each in first)
    answers = [Answers.of_labels(each, len(material.first.classes)) for each in labels]
    task = _task(material.second)
    return _teach(material, first, [partial(_learn, task, each) for each in answers], on_student)


def _teach(
    material: Material,
    first: Bools,
    students: Sequence[Callable[[], Student]],
    on_student: Callable[[], None],
) -> Students:
    def teach(student: Callable[[], Student]) -> tuple[Floats, float]:
        found = material.examine(student())
        on_student()
        return found

    # What all students have in common is computed by the first one.
    found = [teach(students[0]), *side_by_side(teach, students[1:])]
    scores, accuracy = zip(*found, strict=True)
    return Students(np.array(scores), first, np.array(accuracy))


def _answer(project: FirstProject, voters: Voters, first: Bools, entropy: Entropy) -> Answers:
    """Return what the project answers on the pool. Raises ParameterError if that is nothing."""
    votes = voters.votes(first)
    if not isinstance(project, NeighbourProject):
        found = simulate(
            votes,
            project.mechanism,
            project.epsilon,
            project.delta,
            cap_rule=project.cap.rule,
            entropy=entropy,
        )
        counts, labels = found.counts, found.labels
    else:
        released = project.mechanism.release(votes, entropy=entropy)
        counts, labels = released.counts, released.labels
    if not (labels >= 0).any():
        raise ParameterError(
            f"At ε = {project.epsilon:g} the project answers nothing, so there is no student to "
            "attack. Use a larger epsilon, or more records."
        )
    if counts is None:
        return Answers.of_labels(labels, votes.shape[1])
    return Answers.of_counts(
        counts,
        teachers=max(1, round(project.votes)),
        sigma=project.sigma,
        known=labels >= 0,
        matches_prior=voters.matches_prior,
        voting=min(1.0, project.votes / project.teachers),
    )


@dataclass(frozen=True, eq=False)
class Guesses:
    """How strongly an attacker believes in the first versions [T, S], and where these are."""

    beliefs: Floats
    """Above 0, it guesses the first."""
    first: Bools

    def figures(self, epsilon: float, delta: float) -> AttackFigures:
        """Return how good the guesses are, with limits of 95 % confidence."""
        low, high = self.right_limits((1 - FIGURES_CONFIDENCE) / 2)
        caught_low, caught_high = self._caught_limits()
        return AttackFigures(
            students=len(self.first),
            guesses=self.first.size,
            right=float(self._right.mean()),
            right_limits=(low, high),
            right_allowed=max_guess_accuracy(epsilon, delta),
            caught=_caught(self.beliefs, self.first),
            caught_limits=(caught_low, caught_high),
            caught_allowed=max_detection_rate(epsilon, delta, ACCUSED),
            auc=self._auc(),
        )

    def loss(self, level: float, delta: float) -> float:
        """Return the ε that guesses which are right so often prove, with confidence 1 − `level`."""
        right = self.right_limits(level)[0]
        return max(0.0, math.log(max(right - delta, 0.5) / (1 - right))) if right < 1 else math.inf

    @property
    def _right(self) -> Floats:
        """The share of the guesses about each student that are right [T]."""
        right: Floats = ((self.beliefs > 0) == self.first).mean(1)
        return right

    def right_limits(self, level: float) -> tuple[float, float]:
        """Return limits of the chance to be right, each wrong with probability `level`.

        Guesses about one student share its noise, and students are independent: so by Student's t
        over them, and by Clopper and Pearson over guesses, whichever is wider.
        """
        shares, total = self._right, self.first.size
        mean = float(shares.mean())
        reach = float(t.isf(level, len(shares) - 1) * shares.std(ddof=1) / math.sqrt(len(shares)))
        hits = round(mean * total)
        low = float(beta.ppf(level, hits, total - hits + 1)) if hits else 0.0
        high = float(beta.isf(level, hits + 1, total - hits)) if hits < total else 1.0
        return max(0.0, min(low, mean - reach)), min(1.0, max(high, mean + reach))

    def _caught_limits(self) -> tuple[float, float]:
        """Return a bootstrap interval over students."""
        random, count = np.random.default_rng(0), len(self.first)
        draws = random.integers(count, size=(RESAMPLES, count))
        found = [_caught(self.beliefs[rows], self.first[rows]) for rows in draws]
        low, high = np.quantile(found, [(1 - FIGURES_CONFIDENCE) / 2, (1 + FIGURES_CONFIDENCE) / 2])
        return float(low), float(high)

    def _auc(self) -> float:
        ranks, first = rankdata(self.beliefs), self.first.ravel()
        there = int(first.sum())
        below = ranks[first].sum() - there * (there + 1) / 2
        return float(below / max(1, there * (len(first) - there)))


def _caught(beliefs: Floats, first: Bools) -> float:
    """Return the share of first versions that is believed in more than all but 1 % of second."""
    return float((beliefs[first] > np.quantile(beliefs[~first], 1 - ACCUSED)).mean())


def guess_by_likelihood(students: Students, mislabelled: bool) -> Guesses:
    """Return guesses of the likelihood-ratio attack about the second half of the students.

    A normal law is fitted to the scores with either version in a place, of the same variance. Two
    versions with one input say the same: the first is looked at.
    """
    learned = len(students.first) // LEARN_ONE_IN
    first = students.first[:learned]
    beliefs = np.zeros(students.first[learned:].shape)
    for version in range(1 if mislabelled else 2):
        scores = students.scores[:, version]
        known, asked = scores[:learned], scores[learned:]
        means = [(known * there).sum(0) / np.maximum(1, there.sum(0)) for there in (first, ~first)]
        variance = ((known - np.where(first, *means)) ** 2).sum(0) / max(1, learned - 2)
        beliefs += ((asked - means[1]) ** 2 - (asked - means[0]) ** 2) / (
            2 * np.maximum(variance, MIN_PROBABILITY)
        )
    seen = first.any(0) & ~first.all(0)  # else nothing was learned about the place
    return Guesses(beliefs * seen, students.first[learned:])


def guess_by_calibrated_loss(students: Students, mislabelled: bool) -> Guesses:
    """Return guesses by how far a score is from its mean, whichever version was there.

    So a record that every student finds hard does not count as one that is there (difficulty
    calibration: Watson, Guo, Cormode and Sablayrolles, ICLR 2022). All places are taken to move
    scores alike.
    """
    learned = len(students.first) // LEARN_ONE_IN
    scores = students.scores[:, 0] - (0 if mislabelled else students.scores[:, 1])
    known, asked = scores[:learned], scores[learned:]
    return Guesses(
        (asked - known.mean(0)) / np.maximum(known.std(0), MIN_PROBABILITY),
        students.first[learned:],
    )


def guess_by_loss(students: Students, mislabelled: bool) -> Guesses:
    """Return guesses by one threshold for all: the first, if a student finds it likelier.

    The threshold is the best for the first half of the students.
    """
    scores = students.scores[:, 0] - (0 if mislabelled else students.scores[:, 1])
    learned = len(scores) // LEARN_ONE_IN
    known, first = scores[:learned].ravel(), students.first[:learned].ravel()
    order = np.argsort(known)
    # Right, if all above the k-th score are guessed to be the first version.
    right = np.cumsum(~first[order]) + first.sum() - np.cumsum(first[order])
    threshold = known[order][int(right.argmax())]
    return Guesses(scores[learned:] - threshold, students.first[learned:])


ATTACKS = {
    "likelihood ratio": guess_by_likelihood,
    "calibrated loss": guess_by_calibrated_loss,
    "loss": guess_by_loss,
}


def audit_students(
    material: Material,
    count: int,
    level: float,
    random: np.random.Generator,
    *,
    entropy: Entropy = os.urandom,
    on_student: Progress = ignore_progress,
) -> Iterator[AuditFinding]:
    """Yield what each attack finds of students, and of ones that were taught without noise.

    A sound project is convicted by chance with probability `level` at most, in all attacks.
    `on_student` is called with how many there are, and how many there will be.
    """
    project = material.project
    bare = max(MIN_STUDENTS, count // TRUE_LABELS_ONE_IN)
    done, total = iter(range(1, count + bare + 1)), count + bare

    def tick() -> None:
        on_student(next(done), total)

    students = teach_students(material, count, random, entropy, tick)
    usual = f"{count} students, of {project.option}, σ = {project.sigma:g}"
    yield AuditFinding(
        "student",
        f"{material.first.name}: {project.units:,} records, {len(material.pool):,} public rows",
        "holds",
        f"ε = {project.epsilon:g}, δ = {project.delta:g}; {usual}, are right on "
        f"{students.accuracy.mean():.1%} of {len(material.tested):,} other records",
    )
    yield from _attack(material, students, level, "", claimed=False)
    true = teach_true_labels(material, bare, random, tick)
    yield from _attack(material, true, level, ", true labels without noise", claimed=True)


def _attack(
    material: Material, students: Students, level: float, how: str, *, claimed: bool
) -> Iterator[AuditFinding]:
    """Yield what attacks find. `claimed`: whether they must succeed, else they are too weak."""
    project = material.project
    epsilon = min(project.epsilon, MAX_CLAIMED_EPSILON) if claimed else project.epsilon
    for mislabelled in (True,) if claimed else (True, False):
        kind = material.mislabelled == mislabelled
        some = replace(students, scores=students.scores[:, :, kind], first=students.first[:, kind])
        for name, attack in ATTACKS.items():
            if claimed and attack is not guess_by_likelihood:
                continue
            guesses = attack(some, mislabelled)
            figures = guesses.figures(epsilon, project.delta)
            found = AuditFinding.of_loss(
                "student",
                f"{'mislabelled records' if mislabelled else 'usual records'}, {name}{how}",
                figures.in_words(),
                "ε",
                guesses.loss(level / (2 * len(ATTACKS)), project.delta),
                epsilon,
                claimed=claimed,
            )
            yield replace(found, attack=figures)
