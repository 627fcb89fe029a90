"""The forecast: what a first project would buy, and how best to ask, by simulation on public rows.

Public records stand in for the private ones: as many for each teacher as it will have, or one for
each unit of neighbours. They vote on all records except their own, with noise, and a plain student
learns from that. It is tested on other records, which neither vote nor are asked about. The noise
is such that a share fitted to these rows has the noise that it would have, fitted to the whole
pool. Where labels are all that is released, rows are asked again until the pool has no more rows,
or the budget is spent. Of a table, rows that are designed from its schema and from margins of the
stand-ins are asked, too.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from terrine_models.data.arrays import DataError, Dataset, number_distinct_rows, row_digests
from terrine_models.features.maps import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.models import Task, Training
from terrine_models.students.selection import PLAIN_METHOD, choose
from terrine_models.tables.designed import (
    DesignedPool,
    Margins,
    count_cells,
    design_pool,
    digest_schema,
    margin_questions,
)
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.neighbours import NeighbourEnsemble, NeighbourSettings, build
from terrine_models.teachers.shards import unit_count
from terrine_models.teachers.training import train_ensemble
from terrine_protocol.schema import TableSchema
from terrine_server.planning.expected import Votes
from terrine_server.planning.first_project import (
    FITTED_FEATURES,
    MAX_FITTED_NOISE,
    FirstProject,
    Setting,
    default_near,
    has_less_noise,
    plan_neighbours,
)
from terrine_server.planning.opening import MIN_ANSWERS_PER_CLASS
from terrine_server.planning.plan import plan
from terrine_server.planning.simulation import simulate
from terrine_server.privacy import Units
from terrine_server.privacy.mechanisms.neighbours import Neighbours as Mechanism
from terrine_server.privacy.mechanisms.registration import Grid
from terrine_server.privacy.noise import discrete_gaussian
from terrine_server.privacy.parameters import MIN_SIGMA, ParameterError

NAME = "stand-ins"
BLOCK_ROWS = 256
UNLIMITED = 2**32 - 1


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


_Measure = tuple[float, float]
"""An estimate, and its variance."""

DRAWS = 3
MIN_TEACHERS, MAX_TEACHERS = 5, 400
"""Stand-ins for teachers."""
MAX_LEARNED_ROWS = 2_000
"""From which a student learns. With three in four of the rows, and noise that weighs as much,
students were as good as with all of them."""
MAX_TESTED_ROWS = 3_000
USELESS_GAIN = 0.1
"""Balanced accuracy above that of guessing, below which little was learned."""
MIN_GAIN_OVER_CHANCE = 0.02
"""Balanced accuracy, or AUC, by which students must be better than guesses for a project to be
worth its budget; and by two standard errors."""
TESTED_ONE_IN = 4
"""One in so many public rows, or people, tests the student."""
MIN_LEAD_STANDARD_ERRORS = 2.0
"""By which one option is ahead of another to be clearly better."""
THRESHOLD_SHARES, TEST_NOISE_SHARES = (0.5, 0.7, 0.9), (0.25,)
MAXIMUM_NOISE_SHARES = (0.06, 0.12, 0.2, 0.3)
"""Threshold, σ₁ and σ₂ of confident answers that are tried, as shares of the teachers. The one that
promises the most right answers is simulated."""
TRIED_ROWS = 500
"""By whose votes they are tried."""
MAX_PASSES = 10
"""Times that a row is asked at most, for labels: by then noise has little part in them."""


@dataclass(frozen=True)
class StudentForecast:
    """Measures of plain students over a few draws of stand-ins, rows and noise.

    Each is [least, most], wider by two standard errors: few rows, and few draws, tell little. Of
    neighbours, the most is higher by what as many units as there are would add.
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
class Option:
    """A way to ask the records, and what its simulated students were."""

    first: FirstProject
    forecast: StudentForecast | None
    """None if there are no labelled public records, or too few."""
    worse: bool = False
    """Whether they were worse than those of the chosen option, by more than chance explains."""


@dataclass(frozen=True)
class Forecast:
    """What each option would come to."""

    options: tuple[Option, ...]
    """The chosen one, and then the others, the best first."""
    truth: StudentForecast | None
    """Of the same students, taught by the true labels of the same public rows."""

    @property
    def first(self) -> FirstProject:
        """The project of the chosen option."""
        return self.options[0].first

    @property
    def students(self) -> StudentForecast | None:
        """Those of the chosen option."""
        return self.options[0].forecast


def compare_options(
    setting: Setting,
    sample: Dataset,
    pool: PublicData,
    *,
    labelled: bool,
    people: bool,
) -> Forecast:
    """Choose how records are asked, from public ones.

    `sample`: the records of `pool`; labels that are not `labelled` are not looked at. `people`:
    whether private records have groups. Of the options whose students are better than a guess,
    neighbours vote, unless the students of trained teachers, or of labels alone where these mostly
    agree, or of rows designed from a table's schema, are better by two standard errors: in AUC, of
    two classes, and else in balanced accuracy. Where nothing can be simulated, it is the option
    whose votes have the least noise. Raises `ParameterError` if noise is too much, or none can be
    drawn.
    """
    trained = _list_teacher_projects(setting)
    neighbours = _find_neighbour_project(setting, sample, pool)
    simulated = None
    if labelled and (sample.groups is not None or not people):
        designed = _find_designed_project(setting, sample.encoding)
        simulated = _simulate(sample, pool, trained, neighbours, designed)
    if simulated is None:
        options = _sort_by_noise(trained[-1:], neighbours)
        if not options:
            raise ParameterError(
                f"{setting.rows:,} rows need more noise for ε = {setting.epsilon:g} than can be "
                "drawn, however the records are asked. Ask fewer rows, or use a larger epsilon."
            )
        quietest = min(options, key=lambda each: each.fitted_noise)
        if quietest.too_noisy:
            raise ParameterError(_suggest_larger(quietest))
        return Forecast(tuple(Option(each, None) for each in options), None)
    taught, truth = simulated
    able = [each for each in taught if _is_above_chance(each.students)]
    best, *others = able or sorted(taught, key=_merit, reverse=True)
    for each in others:
        if _is_clearly_better(each.students, best.students):
            best = each
    return Forecast(
        tuple(
            Option(
                each.first,
                _summarize(each.students, each),
                _is_clearly_better(best.students, each.students),
            )
            for each in sorted(taught, key=lambda each: (each is not best, -_merit(each)))
        ),
        _summarize(truth),
    )


def _list_teacher_projects(setting: Setting) -> list[FirstProject]:
    """Return projects of each number of teachers; none if their noise cannot be drawn."""
    try:
        return [setting.of_teachers(number) for number in setting.numbers_of_teachers]
    except ParameterError:
        return []


def _find_neighbour_project(
    setting: Setting, sample: Dataset, pool: PublicData
) -> FirstProject | None:
    """Return the project of neighbours; None if its noise cannot be drawn."""
    own, asked = _split(sample, seed=0)
    near = default_near(
        setting.units,
        setting.rows,
        setting.epsilon,
        setting.delta,
        texts=sample.spec.texts is not None,
    )
    stand_ins = PublicStandIns.place_records(
        _select(sample, own[:MAX_TESTED_ROWS]), pool, near=near, units=setting.units
    )
    try:
        planned = plan_neighbours(
            stand_ins.mean_spending(_drop_repeated(sample.inputs[asked[:MAX_TESTED_ROWS]])[0]),
            units=setting.units,
            near=near,
            queries=setting.rows,
            epsilon=setting.epsilon,
            delta=setting.delta,
        )
        return setting.of_neighbours(planned)
    except ParameterError:
        return None


def forecast_design(setting: Setting, schema: TableSchema) -> Forecast:
    """Return what rows designed from a schema come to, where no public rows can try them out.

    Raises DataError for columns that cannot be released, and `ParameterError` if noise is too much.
    """
    first = _design(setting, schema)
    if first.too_noisy:
        raise ParameterError(_suggest_larger(first))
    return Forecast((Option(first, None),), None)


def _find_designed_project(setting: Setting, schema: TableSchema | None) -> FirstProject | None:
    """Return the project of rows designed from a schema; None without one, or if it cannot be."""
    try:
        return None if schema is None else _design(setting, schema)
    except (DataError, ParameterError):
        return None


def _design(setting: Setting, schema: TableSchema) -> FirstProject:
    cells = [each.cells for each in margin_questions(schema)]
    return setting.of_designed(cells=cells, schema_sha256=digest_schema(schema))


def _sort_by_noise(
    trained: list[FirstProject], neighbours: FirstProject | None
) -> list[FirstProject]:
    """Return trained teachers and neighbours, those first whose votes should have less noise.

    Not by how many neighbours still vote in the end, of which few stand-ins tell too little.
    """
    if neighbours is None or neighbours.neighbours is None:
        return trained
    units, near = neighbours.units, neighbours.neighbours.near
    quiet = not trained or has_less_noise(units, near, trained[-1].teachers)
    return [neighbours, *trained] if quiet else [*trained, neighbours]


def _suggest_larger(best: FirstProject) -> str:
    """Say that noise would drown the votes of the best option, and what would do.

    Noise falls as the number of votes grows: of teachers with the units, of neighbours with their
    root.
    """
    times = best.fitted_noise * FITTED_FEATURES**0.5 / MAX_FITTED_NOISE
    more = best.units * times ** (1 if best.neighbours is None else 2)
    step = 10 ** max(0, math.floor(math.log10(more)) - 1)
    return (
        f"Too small: of {best.units:,} private units, at ε = {best.epsilon:g} noise would "
        f"drown their votes however they are asked; with the best option, {best.option}, it is "
        f"{times:.1f} times what a student can learn from. It needs about "
        f"{math.ceil(more / step) * step:,} units at this ε, or an ε of about "
        f"{float(f'{best.epsilon * times:.2g}'):g}."
    )


def _select(sample: Dataset, rows: NDArray[np.int64]) -> Dataset:
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


def _split(
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


@dataclass(frozen=True, eq=False)
class _Poll:
    """Votes [K, m] of stand-ins on K rows, and what they are divided by for shares."""

    votes: NDArray[np.int64]
    divisor: float
    stand_ins: int
    matches_prior: bool


@dataclass(frozen=True, eq=False)
class _TestedStudent:
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
    def accuracy(self) -> _Measure:
        return _mean(self.right)

    @property
    def balanced(self) -> _Measure:
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
    def auc(self) -> _Measure:
        """The area under the ROC curve, if it is ranked."""
        return _mean_of_both(*self.placements)

    @property
    def auc_variance_of_guess(self) -> float:
        """The variance of the AUC of a guess (Mann and Whitney 1947)."""
        first, second = np.bincount(self.labels, minlength=2)
        return float((first + second + 1) / (12 * first * second))


@dataclass(frozen=True, eq=False)
class _Taught:
    """An option, and its students, one of each draw."""

    first: FirstProject
    students: list[_TestedStudent]
    of_half: list[_TestedStudent] = field(default_factory=list)
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
    def of(cls, sample: Dataset, seed: int) -> _Draw:
        """Draw rows."""
        tested, own = _split(sample, seed, TESTED_ONE_IN)
        learned = own[:MAX_LEARNED_ROWS]
        task = Task(sample.inputs[learned], sample.spec, sample.classes)
        return cls(sample, own, learned, tested[:MAX_TESTED_ROWS], task, seed)

    def learn_counts(self, poll: _Poll, first: FirstProject) -> _TestedStudent:
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

    def learn_labels(self, poll: _Poll, first: FirstProject) -> _TestedStudent | None:
        """Return a student of labels that the project's budget pays for. None if all abstain.

        A row is known if the first query for it is answered, and has the shares of the labels that
        all queries for it got.
        """
        random = np.random.default_rng(self.seed)
        _, place, which = np.unique(self.task.inputs, return_index=True, return_inverse=True)
        votes = _scale_votes(poll.votes[place], first.teachers)
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

    def learn(self, answers: Answers, stand_ins: int) -> _TestedStudent:
        """Return what a plain student says of the rows that test it."""
        student = choose(self.task, answers, Training(method=PLAIN_METHOD)).student
        tested = self.tested
        said = student.predict_indices(self.sample.inputs[tested])
        scores = None
        if len(self.sample.classes) == 2:
            scores = student.probabilities(self.sample.inputs[tested])[:, 1]
        return _TestedStudent(said, self.sample.labels[tested], stand_ins, scores)


def _simulate(
    sample: Dataset,
    pool: PublicData,
    trained: Sequence[FirstProject],
    neighbours: FirstProject | None,
    designed: FirstProject | None,
) -> tuple[Sequence[_Taught], Sequence[_TestedStudent]] | None:
    """Simulate a student of each option in each draw. None if there are too few records.

    In each draw all are asked, and tested on, the same rows. Options are in the order in which a
    later one must be clearly better to be chosen; beside them are students of the true labels.
    """
    if len(sample) < 2 * TESTED_ONE_IN * MIN_ANSWERS_PER_CLASS * len(sample.classes):
        return None
    draws = [_Draw.of(sample, seed) for seed in range(DRAWS)]
    options, by_teachers, polls = list[_Taught](), list[_Taught](), list[_Poll | None]()
    if neighbours is not None:
        asked = [_ask_units(draw, pool, neighbours) for draw in draws]
        every, half = (
            [draw.learn_counts(poll, neighbours) for draw, poll in zip(draws, by, strict=True)]
            for by in zip(*asked, strict=True)
        )
        options.append(_Taught(neighbours, every, half))
    for first in trained:
        polls = [_ask_teachers(draw, first) for draw in draws]
        found = [
            draw.learn_counts(poll, first) for draw, poll in zip(draws, polls, strict=True) if poll
        ]
        if len(found) == DRAWS:
            by_teachers.append(_Taught(first, found))
    if trained and not by_teachers:
        return None
    options += sorted(by_teachers, key=_merit)[-1:]
    if polls and polls[0] and (confident := _choose_confident(draws[0], polls[0], trained[-1])):
        answered = [
            student
            for draw, poll in zip(draws, polls, strict=True)
            if poll and (student := draw.learn_labels(poll, confident))
        ]
        if len(answered) == DRAWS:
            options.append(_Taught(confident, answered))
    if designed is not None:
        of_rows = [_ask_designed(draw, designed) for draw in draws]
        taught = [draw.learn_counts(poll, designed) for draw, poll in filter(None, of_rows)]
        if len(taught) == DRAWS:
            options.append(_Taught(designed, taught))
    if not options:
        return None
    true = [Answers.of_labels(sample.labels[draw.learned], len(sample.classes)) for draw in draws]
    return options, [draw.learn(each, 0) for draw, each in zip(draws, true, strict=True)]


def _choose_confident(draw: _Draw, poll: _Poll, first: FirstProject) -> FirstProject | None:
    """Return the confident answers that promise the most right ones; None if none is paid for."""
    votes = _scale_votes(poll.votes[:TRIED_ROWS], first.teachers)
    labels = draw.sample.labels[draw.learned[:TRIED_ROWS]]
    known = Votes.observed(votes, labels, teachers=first.teachers)
    grid: Grid = {
        "threshold": [round(share * first.teachers) for share in THRESHOLD_SHARES],
        "sigma1": [share * first.teachers for share in TEST_NOISE_SHARES],
        "sigma2": [share * first.teachers for share in MAXIMUM_NOISE_SHARES],
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
        return first.of_confident(best.spec, float(f"{best.answered:.3g}"))
    except ParameterError:
        return None


def _ask_teachers(draw: _Draw, first: FirstProject) -> _Poll | None:
    """Let teachers of one half of the rows vote on the other, and the other way round.

    So every row is asked about, by teachers that have not seen it, and whose feature map is fitted
    on rows that differ from theirs. None if there are none, or too few rows for five teachers.
    """
    sample = _select(draw.sample, draw.own)
    records = max(1, round(first.units / first.teachers * len(sample) / unit_count(sample)))
    both = _split(sample, draw.seed)
    teachers = min(MAX_TEACHERS, first.teachers, min(map(len, both)) // records)
    if teachers < MIN_TEACHERS:
        return None
    votes, matches_prior = np.zeros((len(sample), len(sample.classes)), np.int64), False
    for half, asked in (both, both[::-1]):
        own = _select(sample, half[: teachers * records])
        inputs = sample.inputs[asked]
        fresh = asked[~np.isin(row_digests(inputs), row_digests(own.inputs))]
        if not len(fresh):
            return None
        public = PublicData.declare(NAME, sample.inputs[fresh], labels=sample.labels[fresh])
        votes[asked], matches_prior = _cast_votes(own, inputs, teachers, public, draw.seed)
    return _Poll(votes[: len(draw.learned)], teachers, teachers, matches_prior)


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


def _ask_designed(draw: _Draw, first: FirstProject) -> tuple[_Draw, _Poll] | None:
    """Release histograms of the stand-ins, and let their teachers vote on rows designed from these.

    All teach, as none of the rows is one of theirs; counts are as high as private ones would be.
    Returns the draw with these rows to learn from; None if there are too few for five teachers.
    """
    own, schema = _select(draw.sample, draw.own), draw.sample.encoding
    records = max(1, round(first.units / first.teachers * len(own) / unit_count(own)))
    teachers = min(2 * MAX_TEACHERS, first.teachers, len(own) // records)
    if schema is None or first.release is None or teachers < MIN_TEACHERS:
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
    return replace(draw, task=task), _Poll(votes, teachers, teachers, matches_prior)


def _ask_units(draw: _Draw, pool: PublicData, first: FirstProject) -> tuple[_Poll, _Poll]:
    """Let each row, or person, vote on all other rows; and then only every second of them."""
    neighbours = first.neighbours
    if neighbours is None:
        raise ValueError("this option trains teachers")
    own = _select(draw.sample, draw.own)
    stand_ins = PublicStandIns.place_records(own, pool, near=neighbours.near, units=first.units)
    rows, which = _drop_repeated(own.inputs[: len(draw.learned)])
    units = np.arange(len(own)) if own.groups is None else own.groups
    excluded = units[np.unique(which, return_index=True)[1]]
    allowance = max(
        1, round(neighbours.allowance * stand_ins.denser * len(rows) / neighbours.queries)
    )

    def poll(one_in: int) -> _Poll:
        votes = stand_ins.cast_votes(rows, allowance, excluded, one_in)[0][which]
        mean = float(votes.sum(1).mean())
        return _Poll(votes, mean, stand_ins.units.count, matches_prior=True)

    return poll(1), poll(2)


def _drop_repeated(inputs: NDArray[np.generic]) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return the different rows of `inputs`, and which of them each one is."""
    which = number_distinct_rows(inputs)
    return inputs[np.unique(which, return_index=True)[1]], which


def _scale_votes(votes: NDArray[np.int64], teachers: int) -> NDArray[np.int64]:
    """Return votes [K, m] as if all `teachers` had cast them as the stand-ins did."""
    full: NDArray[np.int64] = votes * teachers // votes.sum(axis=1, keepdims=True)
    full[np.arange(len(full)), votes.argmax(axis=1)] += teachers - full.sum(axis=1)
    return full


def _summarize(found: Sequence[_TestedStudent], option: _Taught | None = None) -> StudentForecast:
    chance = float(np.mean([each.chance for each in found]))
    fewer, growth = ([], 0.0) if option is None else (option.of_half, option.growth)

    def between(name: str, least: float) -> tuple[float, float]:
        measures: list[_Measure] = [getattr(each, name) for each in found]
        values = [value for value, _ in measures]
        mean, error = _mean_of_draws(measures)
        gain = 0.0
        if fewer:
            before = np.mean([getattr(each, name)[0] for each in fewer])
            gain = max(0.0, mean - before) * growth
        margin = MIN_LEAD_STANDARD_ERRORS * error
        low, high = min(values) - margin, max(values) + gain + margin
        return max(least, float(low)), max(least, min(1.0, float(high)))

    balanced = between("balanced", chance)
    return StudentForecast(
        between("accuracy", chance),
        balanced,
        between("auc", 0.5) if all(each.is_ranked for each in found) else None,
        chance,
        found[0].stand_ins,
        useless=balanced[1] < chance + USELESS_GAIN,
        above_chance=_is_above_chance(found),
    )


def _is_above_chance(found: Sequence[_TestedStudent]) -> bool:
    """Return whether students are better than a guess by two standard errors and by two points.

    In balanced accuracy or, of two classes, in AUC: who ranks well may cut elsewhere.
    """
    gains = [_mean(each.right * each.weights - each.chance) for each in found]
    if _exceeds(gains, MIN_GAIN_OVER_CHANCE):
        return True
    ranked = [(each.auc[0] - 0.5, each.auc_variance_of_guess) for each in found if each.is_ranked]
    return bool(ranked) and _exceeds(ranked, MIN_GAIN_OVER_CHANCE)


def _merit(option: _Taught) -> float:
    """Return the AUC, of two classes, and else the balanced accuracy, on average over the draws."""
    ranked = all(each.is_ranked for each in option.students)
    measures = [each.auc if ranked else each.balanced for each in option.students]
    return float(np.mean([value for value, _ in measures]))


def _is_clearly_better(one: Sequence[_TestedStudent], other: Sequence[_TestedStudent]) -> bool:
    """Return whether students are better by more than chance explains.

    Of two classes in AUC: where one is rare, few rows lie near the threshold that cuts them, and
    balanced accuracy tells little. Else in balanced accuracy. In each draw both were tested on the
    same rows.
    """
    pairs = list(zip(one, other, strict=True))
    if all(a.is_ranked and b.is_ranked for a, b in pairs):
        leads = [_auc_lead(a, b) for a, b in pairs]
    else:
        leads = [_mean((a.right.astype(np.float64) - b.right) * a.weights) for a, b in pairs]
    return _exceeds(leads, 0)


def _exceeds(gains: Sequence[_Measure], least: float) -> bool:
    """Return whether the mean of the draws' gains is larger, and above 0 by two standard errors."""
    gain, error = _mean_of_draws(gains)
    return gain > max(least, MIN_LEAD_STANDARD_ERRORS * error)


def _mean_of_draws(measures: Sequence[_Measure]) -> tuple[float, float]:
    """Return the mean, and its standard error: by the tested rows, or by the draws if that is more.

    Draws differ in the noise and in who stands in, too, which weighs most where ε is small.
    """
    values, variances = np.transpose(measures)
    variance = max(variances.mean(), values.var(ddof=len(values) > 1))
    return float(values.mean()), float(np.sqrt(variance / len(values)))


def _auc_lead(one: _TestedStudent, other: _TestedStudent) -> _Measure:
    """Return by how much an AUC is larger, and the variance of that (DeLong and others 1988)."""
    first, second = (a - b for a, b in zip(one.placements, other.placements, strict=True))
    return _mean_of_both(first, second)


def _mean_of_both(first: NDArray[np.float64], second: NDArray[np.float64]) -> _Measure:
    """Return the mean of either, which is the same, and its variance by both."""
    (mean, variance), (_, other) = _mean(first), _mean(second)
    return mean, variance + other


def _mean(values: NDArray[np.float64] | NDArray[np.bool_]) -> _Measure:
    return float(values.mean()), float(values.var() / len(values))
