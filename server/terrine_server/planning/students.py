"""Students that are simulated on public rows: who votes, what is learned, and how good that is.

Public records stand in for the private ones: as many for each teacher as it will have, or one for
each unit of neighbours. They vote on all records except their own, with noise, and a plain student
learns from that. It is tested on other records, which neither vote nor are asked about. The noise
is such that a share fitted to these rows has the noise that it would have, fitted to the whole
pool. Where labels are all that is released, rows are asked again until the pool has no more rows,
or the budget is spent. Of a table, rows that are designed from its schema and from margins of the
stand-ins are asked, too. Of sums, theirs have as much more noise as they are fewer than the units.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from terrine_models.data.arrays import Dataset, number_distinct_rows, row_digests
from terrine_models.features.public import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.models import Student, Task, Training
from terrine_models.students.selection import PLAIN_METHOD, choose
from terrine_models.students.sums import fit_sums
from terrine_models.sums import ReleasedSums, SumMap, add_up
from terrine_models.tables.designed import (
    DesignedPool,
    Margins,
    count_cells,
    design_pool,
    margin_questions,
)
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.neighbours import NeighbourEnsemble, NeighbourSettings, build
from terrine_models.teachers.shards import unit_count
from terrine_models.teachers.training import train_ensemble
from terrine_server.planning.first_project import (
    DesignedProject,
    FirstProject,
    NeighbourPlan,
    SumProject,
)
from terrine_server.planning.simulation import simulate
from terrine_server.privacy import Units
from terrine_server.privacy.mechanisms.neighbours import Neighbours as Mechanism
from terrine_server.privacy.noise import discrete_gaussian
from terrine_server.privacy.parameters import MIN_SIGMA

NAME = "stand-ins"
BLOCK_ROWS = 256
UNLIMITED = 2**32 - 1
DRAWS = 3
# Stand-ins for teachers, at least.
MIN_TEACHERS = 5
# The same, at most; twice as many of designed rows, on which all teach and vote.
MAX_TEACHERS = 400
# From which a student learns. With three in four of the rows, and noise that weighs as much,
# students were as good as with all of them.
MAX_LEARNED_ROWS = 2_000
MAX_TESTED_ROWS = 3_000
# Of rows of numbers that are added up, or whose sums are matched; of pictures and texts, whose
# features take time, those above.
MAX_ADDED_ROWS = 10_000
# Balanced accuracy and, of two classes, AUC above that of guessing, below which little was learned.
USELESS_GAIN = 0.1
# Balanced accuracy, or AUC, by which students must be better than guesses for a project to be worth
# its budget; and by two standard errors.
MIN_GAIN_OVER_CHANCE = 0.02
# One in so many public rows, or people, tests the student.
TESTED_ONE_IN = 4
# Ways to split them that are tried until both parts have rows of each class.
MAX_SPLITS = 10
# By which one option is ahead of another to be clearly better.
MIN_LEAD_STANDARD_ERRORS = 2.0
# Times that a row is asked at most, for labels: by then noise has little part in them.
MAX_PASSES = 10

# An estimate, and its variance.
Measure = tuple[float, float]
# The least and the most.
Range = tuple[float, float]


@dataclass(frozen=True, eq=False)
class PublicStandIns:
    """Units that vote, of public records."""

    ensemble: NeighbourEnsemble
    units: Units
    denser: float
    """How much larger a share of them is near a query than of the private units."""

    @classmethod
    def place_records(
        cls, sample: Dataset, pool: PublicData, *, near: int, units: int
    ) -> PublicStandIns:
        """Place `sample` as its private records would be, of whom `near` of `units` are near.

        With few stand-ins fewer are near, at least one: the radius is then larger.
        """
        count = unit_count(sample)
        settings = NeighbourSettings(near=max(1, round(near * count / units)))
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / NAME
            build(sample, out, name=NAME, public=pool, settings=settings)
            ensemble = NeighbourEnsemble.load(out)
        denser = settings.near / count * units / near
        return cls(ensemble, Units.of(ensemble.units, ensemble.labels, count), denser)

    def cast_votes(
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

    def mean_spending(self, asked: NDArray[np.generic]) -> NDArray[np.float64]:
        """Return ‖v‖² that a unit with the records of each casts on one of `asked`, on average.

        Without accounts, and as many near a query as of the private units.
        """
        return self.cast_votes(asked)[1] / (len(asked) * self.denser)

    def _weights(
        self, asked: NDArray[np.generic], excluded: NDArray[np.int64] | None, one_in: int
    ) -> Iterator[NDArray[np.uint8]]:
        for start in range(0, len(asked), BLOCK_ROWS):
            some = slice(start, start + BLOCK_ROWS)
            weights = self.ensemble.weights(asked[some])
            if excluded is not None:
                weights[self.ensemble.units == excluded[some, None]] = 0
            weights[:, self.ensemble.units % one_in > 0] = 0
            yield weights


@dataclass(frozen=True, eq=False)
class Poll:
    """Votes [K, m] of stand-ins on K rows, and what they are divided by for shares."""

    votes: NDArray[np.int64]
    divisor: float
    stand_ins: int
    matches_prior: bool


@dataclass(frozen=True, eq=False)
class MeasuredStudent:
    """What a student said of `labels` [T], which it had not seen."""

    said: NDArray[np.int64]
    labels: NDArray[np.int64]
    stand_ins: int
    scores: NDArray[np.float64] | None = None
    """Of two classes: how likely each row is of the second [T]."""

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether each was right [T]."""
        right: NDArray[np.bool_] = self.said == self.labels
        return right

    @property
    def weights(self) -> NDArray[np.float64]:
        """What each row counts in the balanced accuracy: on average 1."""
        seen = np.bincount(self.labels)
        weights: NDArray[np.float64] = len(self.labels) / ((seen > 0).sum() * seen[self.labels])
        return weights

    @property
    def accuracy(self) -> Measure:
        """The share that was right."""
        return _mean(self.right)

    @property
    def balanced(self) -> Measure:
        """The balanced accuracy, whose variance is large where few rows are of a class."""
        return _mean(self.right * self.weights)

    @property
    def chance(self) -> float:
        """The balanced accuracy of a constant answer."""
        return 1 / len(np.unique(self.labels))

    @property
    def is_ranked(self) -> bool:
        """Whether there are two classes that scores can tell apart."""
        return self.scores is not None and len(np.unique(self.labels)) == 2

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

    @property
    def auc(self) -> Measure:
        """The area under the ROC curve, if it is ranked."""
        return _mean_of_both(*self.placements)

    @property
    def auc_variance_of_guess(self) -> float:
        """The variance of the AUC of a guess (Mann and Whitney 1947)."""
        first, second = np.bincount(self.labels, minlength=2)
        return float((first + second + 1) / (12 * first * second))


@dataclass(frozen=True, eq=False)
class Students:
    """What plain students of one way to ask were, over a few draws of stand-ins, rows and noise.

    Each measure is [least, most], wider by two standard errors: few rows, and few draws, tell
    little. Of neighbours, the most is higher by what as many units as there are would add.
    """

    tested: Sequence[MeasuredStudent]
    """One of each draw."""
    of_half: Sequence[MeasuredStudent] = ()
    """Of those who learn more from more stand-ins: students of half of them."""
    units: int = 0
    """How many there will be in place of the stand-ins then."""

    @property
    def accuracy(self) -> Range:
        """The share of rows that they are right on."""
        return self._range("accuracy", self.chance)

    @property
    def balanced_accuracy(self) -> Range:
        """The same on average over the classes."""
        return self._range("balanced", self.chance)

    @property
    def auc(self) -> Range | None:
        """Of two classes: how often a row of the second is ranked above one of the first."""
        return self._range("auc", 0.5) if self._are_ranked else None

    @property
    def chance(self) -> float:
        """The balanced accuracy of a guess, below which no range falls."""
        return float(np.mean([each.chance for each in self.tested]))

    @property
    def stand_ins(self) -> int:
        """How many voted."""
        return self.tested[0].stand_ins

    @property
    def useless(self) -> bool:
        """Whether no student is much better than a guess, in accuracy or in ranking."""
        ranked = self.auc is not None and self.auc[1] >= 0.5 + USELESS_GAIN
        return self.balanced_accuracy[1] < self.chance + USELESS_GAIN and not ranked

    @property
    def above_chance(self) -> bool:
        """Whether they are better than a guess by two standard errors and by two points.

        In balanced accuracy or, of two classes, in AUC: who ranks well may cut elsewhere.
        """
        gains = [_mean(each.right * each.weights - each.chance) for each in self.tested]
        if _exceeds(gains, MIN_GAIN_OVER_CHANCE):
            return True
        ranked = [
            (each.auc[0] - 0.5, each.auc_variance_of_guess)
            for each in self.tested
            if each.is_ranked
        ]
        return bool(ranked) and _exceeds(ranked, MIN_GAIN_OVER_CHANCE)

    @property
    def merit(self) -> float:
        """The AUC, of two classes, and else the balanced accuracy, on average over the draws."""
        return float(np.mean(_merits(self.tested)))

    @property
    def figures(self) -> dict[str, object]:
        """All measures, by name."""
        names = ("accuracy", "balanced_accuracy", "auc", "chance", "stand_ins", "useless")
        return {name: getattr(self, name) for name in (*names, "above_chance")}

    def is_clearly_better(self, other: Students, *, grown: bool = False) -> bool:
        """Return whether they are better than others by more than chance explains.

        Of two classes in AUC: where one is rare, few rows lie near the threshold that cuts them,
        and balanced accuracy tells little. Else in balanced accuracy. In each draw both were tested
        on the same rows. `grown`: with what all units in place of the stand-ins would add to each.
        """
        pairs = list(zip(self.tested, other.tested, strict=True))
        if self._are_ranked and other._are_ranked:
            leads = [auc_lead(a, b) for a, b in pairs]
        else:
            leads = [_mean((a.right.astype(np.float64) - b.right) * a.weights) for a, b in pairs]
        if grown:
            added = self._added - other._added
            leads = [(lead + more, error) for (lead, error), more in zip(leads, added, strict=True)]
        return _exceeds(leads, 0)

    def is_beyond(self, other: Students) -> bool:
        """Return whether their range, of AUC or balanced accuracy, is above that of others."""
        ranges = (each.auc or each.balanced_accuracy for each in (self, other))
        (least, _), (_, most) = ranges
        return least > most

    @property
    def _are_ranked(self) -> bool:
        return all(each.is_ranked for each in self.tested)

    @property
    def growth(self) -> float:
        """How many times the gain from half of the stand-ins to all is that to all private units.

        If what a student lacks falls with the root of their number: on eleven tables, public rows
        being a fifth as many as private ones, accuracy grew by 1.36 times the gain, where this is
        1.30.
        """
        share = min(1.0, self.stand_ins / self.units) if self.units else 1.0
        return float((1 - share**0.5) / (2**0.5 - 1))

    @property
    def _added(self) -> NDArray[np.float64]:
        """By how much more units would raise the merit in each draw; on average not below 0."""
        gains = _merits(self.tested) - _merits(self.of_half or self.tested)
        return np.asarray(gains * self.growth if gains.mean() > 0 else 0 * gains)

    def _range(self, name: str, least: float) -> Range:
        measures: list[Measure] = [getattr(each, name) for each in self.tested]
        values = [value for value, _ in measures]
        mean, error = _mean_of_draws(measures)
        gain = 0.0
        if self.of_half:
            before = np.mean([getattr(each, name)[0] for each in self.of_half])
            gain = max(0.0, mean - before) * self.growth
        margin = MIN_LEAD_STANDARD_ERRORS * error
        low, high = min(values) - margin, max(values) + gain + margin
        return max(least, float(low)), max(least, min(1.0, float(high)))


@dataclass(frozen=True, eq=False)
class Draw:
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
    def of(cls, sample: Dataset, seed: int) -> Draw:
        """Draw rows, of each class among both parts if one of a few splits has that.

        Where a class is not tested, no AUC is known, and a constant answer looks good.
        """
        seeds = range(seed, seed + MAX_SPLITS * DRAWS, DRAWS)
        splits = [split_records(sample, each, TESTED_ONE_IN) for each in seeds]
        tested, own = max(
            splits,
            key=lambda parts: sum(len(np.unique(sample.labels[part])) for part in parts),
        )
        learned = own[:MAX_LEARNED_ROWS]
        task = Task(sample.inputs[learned], sample.spec, sample.classes)
        return cls(sample, own, learned, tested[:MAX_TESTED_ROWS], task, seed)

    def learn_counts(self, poll: Poll, first: FirstProject) -> MeasuredStudent:
        """Return a student of the votes with noise. Equal rows have one answer."""
        random = np.random.default_rng(self.seed)
        divisor, rows = max(1.0, poll.divisor), int(self.task.inputs.max()) + 1
        votes = poll.votes
        sigma = max(MIN_SIGMA, first.fitted_noise * divisor * rows**0.5)
        noise = discrete_gaussian(sigma).sample((rows, votes.shape[1]), random.bytes)
        answers = Answers.of_counts(
            votes + noise[self.task.inputs],
            teachers=max(1, round(divisor)),
            sigma=sigma,
            matches_prior=poll.matches_prior,
            voting=min(1.0, divisor / poll.stand_ins),
        )
        return self.learn(answers, poll.stand_ins)

    def learn_labels(self, poll: Poll, first: FirstProject) -> MeasuredStudent | None:
        """Return a student of labels that the project's budget pays for. None if all abstain.

        A row is known if the first query for it is answered, and has the shares of the labels that
        all queries for it got.
        """
        random = np.random.default_rng(self.seed)
        _, place, which = np.unique(self.task.inputs, return_index=True, return_inverse=True)
        votes = scale_votes(poll.votes[place], first.teachers)
        rows = np.arange(min(first.rows, MAX_PASSES * len(votes))) % len(votes)
        found = simulate(
            votes[rows],
            first.mechanism,
            first.epsilon,
            first.delta,
            cap_rule=first.cap.rule,
            pass_rate=first.pass_rate,
            entropy=random.bytes,
        )
        given = found.labels >= 0
        labels = np.zeros(votes.shape)
        np.add.at(labels, (rows[given], found.labels[given]), 1)
        known = given[: len(votes)]
        if not known.any():
            return None
        shares = labels * known[:, None] / np.maximum(1, labels.sum(axis=1))[:, None]
        return self.learn(Answers(shares[which], known[which]), poll.stand_ins)

    def learn_sums(self, known: SumMap, first: SumProject, one_in: int = 1) -> MeasuredStudent:
        """Return a student of the sums of the stand-ins, or of one in so many of them.

        On the rows of whom they are: that so many more private units are alike, and others than
        the public rows, about makes up for each other.
        """
        sample, random = self.sample, np.random.default_rng(self.seed)
        plain = len(sample.spec.shape) == 1 and sample.spec.texts is None
        asked = self.own[: MAX_ADDED_ROWS if plain else MAX_LEARNED_ROWS]
        own = select_records(sample, asked[: max(1, len(asked) // one_in)])
        if unit_count(own) > first.units:  # whose noise might be more than can be drawn
            people = np.arange(len(own)) if own.groups is None else own.groups
            own = select_records(own, np.flatnonzero(people < first.units))
        units = unit_count(own)
        sigma = max(MIN_SIGMA, first.sigma * units / first.units)
        exact = add_up(
            known(own.inputs), own.labels, own.groups, len(sample.classes), first.release.norm
        )
        noise = discrete_gaussian(sigma).sample(exact.shape, random.bytes)
        released = ReleasedSums(known, exact + noise, sigma, units, sample.inputs[:1])
        task = Task(sample.inputs[asked], sample.spec, sample.classes)
        return self._measure(fit_sums(released, task), units)

    def learn(self, answers: Answers, stand_ins: int) -> MeasuredStudent:
        """Return what a plain student says of the rows that test it."""
        student = choose(self.task, answers, Training(method=PLAIN_METHOD)).student
        return self._measure(student, stand_ins)

    def _measure(self, student: Student, stand_ins: int) -> MeasuredStudent:
        tested = self.tested
        said = student.predict_indices(self.sample.inputs[tested])
        scores = None
        if len(self.sample.classes) == 2:
            scores = student.probabilities(self.sample.inputs[tested])[:, 1]
        return MeasuredStudent(said, self.sample.labels[tested], stand_ins, scores)


def ask_teachers(draw: Draw, first: FirstProject) -> Poll | None:
    """Let teachers of one half of the rows vote on the other, and the other way round.

    So every row is asked about, by teachers that have not seen it, and whose feature map is fitted
    on rows that differ from theirs. None if there are none, or too few rows for five teachers.
    """
    sample = select_records(draw.sample, draw.own)
    records = max(1, round(first.units / first.teachers * len(sample) / unit_count(sample)))
    both = split_records(sample, draw.seed)
    teachers = min(MAX_TEACHERS, first.teachers, min(map(len, both)) // records)
    if teachers < MIN_TEACHERS:
        return None
    votes, matches_prior = np.zeros((len(sample), len(sample.classes)), np.int64), False
    for half, asked in (both, both[::-1]):
        own = select_records(sample, half[: teachers * records])
        inputs = sample.inputs[asked]
        fresh = asked[~np.isin(row_digests(inputs), row_digests(own.inputs))]
        if not len(fresh):
            return None
        public = PublicData.declare(NAME, sample.inputs[fresh], labels=sample.labels[fresh])
        votes[asked], matches_prior = _cast_votes(own, inputs, teachers, public, draw.seed)
    return Poll(votes[: len(draw.learned)], teachers, teachers, matches_prior)


def _cast_votes(
    own: Dataset,
    asked: NDArray[np.generic],
    teachers: int,
    public: PublicData | DesignedPool,
    seed: int,
) -> tuple[NDArray[np.int64], bool]:
    """Return what teachers of these records say, and whether they match their prior."""
    designed = public if isinstance(public, DesignedPool) else None
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / NAME
        train_ensemble(
            replace(own, groups=None),  # dealt out whosever they are
            out,
            name=NAME,
            teachers=teachers,
            public=None if isinstance(public, DesignedPool) else public,
            pool=designed,
            seed=seed,
        )
        ensemble = Ensemble.load(out, device="cpu")
        return ensemble.votes(asked), ensemble.manifest.teacher.matches_prior


def ask_designed(draw: Draw, first: DesignedProject) -> tuple[Draw, Poll] | None:
    """Release histograms of the stand-ins, and let their teachers vote on rows designed from these.

    All teach, as none of the rows is one of theirs; counts are as high as private ones would be.
    Returns the draw with these rows to learn from; None if there are too few for five teachers.
    """
    own, schema = select_records(draw.sample, draw.own), draw.sample.encoding
    records = max(1, round(first.units / first.teachers * len(own) / unit_count(own)))
    teachers = min(2 * MAX_TEACHERS, first.teachers, len(own) // records)
    if schema is None or teachers < MIN_TEACHERS:
        return None
    questions = margin_questions(schema)
    random = np.random.default_rng(draw.seed)
    seen = count_cells(questions, own)
    scaled = [each * first.units // unit_count(own) for each in seen]
    counts = first.release.add_noise(scaled, random.bytes)
    margins = Margins.of_counts(questions, counts, sigma=first.release.sigma, units=first.units)
    pool = design_pool(schema, margins, first.rows, draw.seed, own.inputs.astype(np.float32))
    asked = pool.rows[:MAX_LEARNED_ROWS]
    votes, matches_prior = _cast_votes(own, asked, teachers, pool, draw.seed)
    task = Task(asked, draw.sample.spec, draw.sample.classes, designed=pool)
    return replace(draw, task=task), Poll(votes, teachers, teachers, matches_prior)


def ask_units(draw: Draw, pool: PublicData, plan: NeighbourPlan, units: int) -> tuple[Poll, Poll]:
    """Let each row, or person, vote on all other rows; and then only every second of them.

    As many are near one as of so many private `units` by their plan.
    """
    own = select_records(draw.sample, draw.own)
    stand_ins = PublicStandIns.place_records(own, pool, near=plan.near, units=units)
    rows, which = drop_repeated(own.inputs[: len(draw.learned)])
    owners = np.arange(len(own)) if own.groups is None else own.groups
    excluded = owners[np.unique(which, return_index=True)[1]]
    allowance = max(1, round(plan.allowance * stand_ins.denser * len(rows) / plan.queries))

    def poll(one_in: int) -> Poll:
        votes = stand_ins.cast_votes(rows, allowance, excluded, one_in)[0][which]
        mean = float(votes.sum(1).mean())
        return Poll(votes, mean, stand_ins.units.count, matches_prior=True)

    return poll(1), poll(2)


def select_records(sample: Dataset, rows: NDArray[np.int64]) -> Dataset:
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


def split_records(
    sample: Dataset, seed: int, one_in: int = 2
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of one in so many records, and of the others: all of a person's in one."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(sample))
    if sample.groups is None:
        return order[: len(sample) // one_in], order[len(sample) // one_in :]
    people = unit_count(sample)
    first = random.permutation(people) < people // one_in
    return order[first[sample.groups[order]]], order[~first[sample.groups[order]]]


def drop_repeated(inputs: NDArray[np.generic]) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return the different rows of `inputs`, and which of them each one is."""
    which = number_distinct_rows(inputs)
    return inputs[np.unique(which, return_index=True)[1]], which


def scale_votes(votes: NDArray[np.int64], teachers: int) -> NDArray[np.int64]:
    """Return votes [K, m] as if all `teachers` had cast them as the stand-ins did."""
    full: NDArray[np.int64] = votes * teachers // votes.sum(axis=1, keepdims=True)
    full[np.arange(len(full)), votes.argmax(axis=1)] += teachers - full.sum(axis=1)
    return full


def _merits(tested: Sequence[MeasuredStudent]) -> NDArray[np.float64]:
    """Return the AUC of each, if all are ranked, and else the balanced accuracy."""
    ranked = all(each.is_ranked for each in tested)
    return np.array([(each.auc if ranked else each.balanced)[0] for each in tested])


def _exceeds(gains: Sequence[Measure], least: float) -> bool:
    """Return whether the mean of the draws' gains is larger, and above 0 by two standard errors."""
    gain, error = _mean_of_draws(gains)
    return gain > max(least, MIN_LEAD_STANDARD_ERRORS * error)


def _mean_of_draws(measures: Sequence[Measure]) -> tuple[float, float]:
    """Return the mean, and its standard error: by the tested rows, or by the draws if that is more.

    Draws differ in the noise and in who stands in, too, which weighs most where ε is small.
    """
    values, variances = np.transpose(measures)
    variance = max(variances.mean(), values.var(ddof=len(values) > 1))
    return float(values.mean()), float(np.sqrt(variance / len(values)))


def auc_lead(one: MeasuredStudent, other: MeasuredStudent) -> Measure:
    """Return by how much an AUC is larger, and the variance of that (DeLong and others 1988)."""
    first, second = (a - b for a, b in zip(one.placements, other.placements, strict=True))
    return _mean_of_both(first, second)


def _mean_of_both(first: NDArray[np.float64], second: NDArray[np.float64]) -> Measure:
    """Return the mean of either, which is the same, and its variance by both."""
    (mean, variance), (_, other) = _mean(first), _mean(second)
    return mean, variance + other


def _mean(values: NDArray[np.float64] | NDArray[np.bool_]) -> Measure:
    return float(values.mean()), float(values.var() / len(values))
