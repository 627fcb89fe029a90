"""The forecast: what a first project would buy, and how best to ask, by simulation on public rows.

found = compare_options(setting, sample, pool, labelled=True, people=False)
found.first                       # the project of the way that is taken
found.students.accuracy           # of its simulated students, from and to
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from terrine_models.data.arrays import DataError, Dataset
from terrine_models.features.public import PublicData
from terrine_models.students.answers import Answers
from terrine_models.sums import SumMap
from terrine_models.tables.designed import digest_schema, margin_questions
from terrine_models.teachers.sums import MIN_PUBLIC_ROWS
from terrine_protocol.schema import TableSchema
from terrine_server.planning.expected import Votes
from terrine_server.planning.first_project import (
    FITTED_FEATURES,
    MAX_FITTED_NOISE,
    ConfidentProject,
    DesignedProject,
    FirstProject,
    NeighbourProject,
    Setting,
    SumProject,
    default_near,
    has_less_noise,
    plan_map,
    plan_neighbours,
)
from terrine_server.planning.opening import MIN_ANSWERS_PER_CLASS
from terrine_server.planning.own_labels import OwnLabels, measure_own_labels
from terrine_server.planning.plan import plan
from terrine_server.planning.students import (
    DRAWS,
    MAX_TESTED_ROWS,
    TESTED_ONE_IN,
    Draw,
    Poll,
    PublicStandIns,
    Students,
    ask_designed,
    ask_teachers,
    ask_units,
    drop_repeated,
    scale_votes,
    select_records,
    split_records,
)
from terrine_server.privacy.mechanisms.registration import Grid
from terrine_server.privacy.parameters import ParameterError

# Thresholds of confident answers that are tried, as shares of the teachers. Of these, and of what
# follows, the one that promises the most right answers is simulated.
THRESHOLD_SHARES = (0.5, 0.7, 0.9)
# σ₁, likewise.
TEST_NOISE_SHARES = (0.25,)
# σ₂, likewise.
MAXIMUM_NOISE_SHARES = (0.06, 0.12, 0.2, 0.3)
# By whose votes they are tried.
TRIED_ROWS = 500


@dataclass(frozen=True)
class Option:
    """A way to ask the records, and what its simulated students were."""

    first: FirstProject
    students: Students | None
    """None if there are no labelled public records, or too few."""
    worse: bool = False
    """Whether they were worse than those of the chosen option, by more than chance explains."""


@dataclass(frozen=True)
class Forecast:
    """What each option would come to."""

    options: tuple[Option, ...]
    """The chosen one, and then the others, the best first."""
    truth: Students | None
    """Of the same students, taught by the true labels of the same public rows."""
    own: OwnLabels | None = None
    """What labelled public rows are by themselves; None if there are none, or too few."""

    @property
    def first(self) -> FirstProject:
        """The project of the chosen option."""
        return self.options[0].first

    @property
    def students(self) -> Students | None:
        """Those of the chosen option."""
        return self.options[0].students

    @property
    def beaten(self) -> bool:
        """Whether they are not clearly better than the owner's own labels alone."""
        if self.students is None or self.own is None:
            return False
        return not self.students.is_clearly_better(self.own.students, grown=True)


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
    whether private records have groups. Of the options whose students are better than a guess, it
    is sums, which take least time, unless the students of neighbours, or of trained teachers, or of
    labels alone where these mostly agree, or of rows designed from a table's schema, are better by
    two standard errors: in AUC, of two classes, and else in balanced accuracy. Of pictures it is
    neighbours unless the range of others is above theirs. Where nothing can be simulated, it is
    sums of rows of numbers or texts and, of pictures, the option whose votes have the least noise.
    Raises `ParameterError` if noise is too much, or none can be drawn.
    """
    from threadpoolctl import threadpool_limits  # which a student's machine lacks

    # Matrices are small: threads of one product would wait for each other, above all where others
    # compute, too.
    with threadpool_limits(1, user_api="blas"):
        return _compare_options(setting, sample, pool, labelled=labelled, people=people)


def _compare_options(
    setting: Setting, sample: Dataset, pool: PublicData, *, labelled: bool, people: bool
) -> Forecast:
    added = _find_sum_project(setting, sample, pool)
    trained = _list_teacher_projects(setting)
    neighbours = _find_neighbour_project(setting, sample, pool)
    draws, simulated, own = _draw(sample) if labelled else [], None, None
    if draws:
        own = measure_own_labels(draws)
    if draws and (sample.groups is not None or not people):
        designed = _find_designed_project(setting, sample.encoding)
        simulated = _simulate(draws, pool, added, trained, neighbours, designed)
    if simulated is None:
        options = _sort_by_noise(trained[-1:], neighbours)
        if added is not None:
            first = not _is_picture(sample) and not added.project.too_noisy
            options = [added.project, *options] if first else [*options, added.project]
        if not options:
            setting.check_answers()
            raise ParameterError(
                f"{setting.rows:,} rows need more noise for ε = {setting.epsilon:g} than can be "
                "drawn, however the records are asked. Ask fewer rows, or use a larger epsilon."
            )
        quietest = min(options, key=lambda each: each.fitted_noise)
        if quietest.too_noisy:
            raise ParameterError(_suggest_larger(quietest))
        return Forecast(tuple(Option(each, None) for each in options), None, own)
    taught, truth = simulated
    able = [each for each in taught if each.students.above_chance]
    best, *others = able or sorted(taught, key=_merit, reverse=True)
    for each in others:
        picture, students = _is_picture(sample), each.students
        if (students.is_beyond if picture else students.is_clearly_better)(best.students):
            best = each
    ranked = [
        Option(each.first, each.students, best.students.is_clearly_better(each.students))
        for each in sorted(taught, key=lambda each: (each is not best, -_merit(each)))
    ]
    return Forecast(tuple(ranked), truth, own)


def _is_picture(sample: Dataset) -> bool:
    return len(sample.spec.shape) > 1


class _Taught(NamedTuple):
    first: FirstProject
    students: Students


def _merit(taught: _Taught) -> float:
    return taught.students.merit


def _list_teacher_projects(setting: Setting) -> list[FirstProject]:
    """Return projects of each number of teachers; none if their noise cannot be drawn."""
    try:
        return [setting.of_teachers(number) for number in setting.numbers_of_teachers]
    except ParameterError:
        return []


class _Added(NamedTuple):
    map: SumMap
    project: SumProject


def _find_sum_project(setting: Setting, sample: Dataset, pool: PublicData) -> _Added | None:
    """Return the project of sums, and their map; None if it cannot be made, or noise be drawn."""
    if len(pool.inputs) < MIN_PUBLIC_ROWS:
        return None
    try:
        norm, noise = plan_map(setting.epsilon, setting.delta, setting.classes, setting.units)
        known = SumMap.fit(sample.spec, pool, norm, noise)
        first = setting.of_sums(norm=norm, features=known.width, map_sha256=known.sha256)
        return _Added(known, first)
    except ParameterError:
        return None


def _find_neighbour_project(
    setting: Setting, sample: Dataset, pool: PublicData
) -> NeighbourProject | None:
    """Return the project of neighbours; None if its noise cannot be drawn."""
    own, asked = split_records(sample, seed=0)
    near = default_near(
        setting.units,
        setting.rows,
        setting.epsilon,
        setting.delta,
        texts=sample.spec.texts is not None,
    )
    stand_ins = PublicStandIns.place_records(
        select_records(sample, own[:MAX_TESTED_ROWS]), pool, near=near, units=setting.units
    )
    try:
        planned = plan_neighbours(
            stand_ins.mean_spending(drop_repeated(sample.inputs[asked[:MAX_TESTED_ROWS]])[0]),
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


def _find_designed_project(setting: Setting, schema: TableSchema | None) -> DesignedProject | None:
    """Return the project of rows designed from a schema; None without one, or if it cannot be."""
    try:
        return None if schema is None else _design(setting, schema)
    except (DataError, ParameterError):
        return None


def _design(setting: Setting, schema: TableSchema) -> DesignedProject:
    cells = [each.cells for each in margin_questions(schema)]
    return setting.of_designed(cells=cells, schema_sha256=digest_schema(schema))


def _sort_by_noise(
    trained: list[FirstProject], neighbours: NeighbourProject | None
) -> list[FirstProject]:
    """Return trained teachers and neighbours, those first whose votes should have less noise.

    Not by how many neighbours still vote in the end, of which few stand-ins tell too little.
    """
    if neighbours is None:
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
    more = best.units * times ** (2 if isinstance(best, NeighbourProject) else 1)
    step = 10 ** max(0, math.floor(math.log10(more)) - 1)
    return (
        f"Too small: of {best.units:,} private units, at ε = {best.epsilon:g} noise would "
        f"drown their votes however they are asked; with the best option, {best.option}, it is "
        f"{times:.1f} times what a student can learn from. It needs about "
        f"{math.ceil(more / step) * step:,} units at this ε, or an ε of about "
        f"{float(f'{best.epsilon * times:.2g}'):g}."
    )


def _draw(sample: Dataset) -> list[Draw]:
    """Draw who stands in, and what tests students. Nothing if there are too few records."""
    if len(sample) < 2 * TESTED_ONE_IN * MIN_ANSWERS_PER_CLASS * len(sample.classes):
        return []
    return [Draw.of(sample, seed) for seed in range(DRAWS)]


def _simulate(
    draws: Sequence[Draw],
    pool: PublicData,
    added: _Added | None,
    trained: Sequence[FirstProject],
    neighbours: NeighbourProject | None,
    designed: DesignedProject | None,
) -> tuple[list[_Taught], Students] | None:
    """Simulate a student of each option in each draw. None if there are too few stand-ins.

    In each draw all are asked, and tested on, the same rows. Options are in the order in which a
    later one must be clearly better to be chosen; beside them are students of the true labels. Of
    pictures neighbours are the first, and others must be beyond them: by as many records as there
    are, few of which stand in, they gain more than trials show. At ε = 0.3 of MNIST, they were
    right on 98.8 % and sums on 97.5 %, where trials said 96.7 to 98.4 and 97.1 to 98.9.
    """
    options, by_teachers, polls = list[_Taught](), list[_Taught](), list[Poll | None]()
    if added is not None:
        units, given = added.project.units, (added.map, added.project)
        every, half = ([draw.learn_sums(*given, one_in) for draw in draws] for one_in in (1, 2))
        options.append(_Taught(added.project, Students(every, half, units)))
    if neighbours is not None:
        units, near = neighbours.units, neighbours.neighbours
        asked = [ask_units(draw, pool, near, units) for draw in draws]
        every, half = (
            [draw.learn_counts(poll, neighbours) for draw, poll in zip(draws, by, strict=True)]
            for by in zip(*asked, strict=True)
        )
        options.append(_Taught(neighbours, Students(every, half, units)))
        if _is_picture(draws[0].sample):
            options.reverse()
    for first in trained:
        polls = [ask_teachers(draw, first) for draw in draws]
        found = [
            draw.learn_counts(poll, first) for draw, poll in zip(draws, polls, strict=True) if poll
        ]
        if len(found) == DRAWS:
            by_teachers.append(_Taught(first, Students(found)))
    if trained and not by_teachers and added is None:
        return None
    options += sorted(by_teachers, key=_merit)[-1:]
    if polls and polls[0] and (confident := _choose_confident(draws[0], polls[0], trained[-1])):
        answered = [
            student
            for draw, poll in zip(draws, polls, strict=True)
            if poll and (student := draw.learn_labels(poll, confident))
        ]
        if len(answered) == DRAWS:
            options.append(_Taught(confident, Students(answered)))
    if designed is not None:
        of_rows = [ask_designed(draw, designed) for draw in draws]
        taught = [draw.learn_counts(poll, designed) for draw, poll in filter(None, of_rows)]
        if len(taught) == DRAWS:
            options.append(_Taught(designed, Students(taught)))
    if not options:
        return None
    sample = draws[0].sample
    true = [Answers.of_labels(sample.labels[draw.learned], len(sample.classes)) for draw in draws]
    return options, Students([draw.learn(each, 0) for draw, each in zip(draws, true, strict=True)])


def _choose_confident(draw: Draw, poll: Poll, first: FirstProject) -> ConfidentProject | None:
    """Return the confident answers that promise the most right ones; None if none is paid for."""
    votes = scale_votes(poll.votes[:TRIED_ROWS], first.teachers)
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
