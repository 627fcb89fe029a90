"""Attacks on the whole service, over HTTP: voting, mechanism, ledger and refusals.

Two worlds differ in one teacher, or in one person's records. In each, students with projects of
their own ask a running service, and guess the world from all of its answers. How often the guess is
right follows from the definitions of the mechanisms: `law`. It must prove no more than is
paid, and the students that are run must not contradict it in either direction: noise that is too
small can make a guess rarer as well.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support.databases import SECRET_KEY, migrated
from support.laws import mutated
from terrine_addons.audit.evidence import Floats, Promise, Sample, labels, limits, mass, passes
from terrine_addons.audit.ledger import audit_ledger
from terrine_client import BudgetExhausted, Client
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.fitting import public_features
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import Partition, save_tensors, versions
from terrine_models.teachers.heads import HeadTeachers
from terrine_models.teachers.manifests import Manifest, save_manifest
from terrine_models.teachers.neighbours import NeighbourSettings, build
from terrine_protocol import EnsembleRegister, Outcome, ProjectOpen, Role, TokenCreate
from terrine_server.app import serving
from terrine_server.errors import CapExceeded
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.voters import Neighbourhood
from terrine_server.ledger import Ledger, accounts
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.owner.sign_in import Tokens
from terrine_server.privacy import NeighbourCounts, Neighbours, VoteOutcome, gdp_squared, quote
from terrine_server.privacy.mechanisms.confident_gnmax import ConfidentGNMax
from terrine_server.privacy.noise import NoiseTable
from terrine_server.privacy.numbers import COST_UNITS, DELTA_UNITS, SAMPLER_DELTA
from terrine_server.settings import Settings

pytestmark = [pytest.mark.statistical, pytest.mark.slow, pytest.mark.timeout(900)]
LEVEL = 1e-9
"""Probability that one attack convicts what is sound."""
SUSPICION = 1e-3
"""The same where a planted defect must be found: fewer students prove it."""
CONCURRENT_STUDENTS = 4
WORLDS = ("here", "there")
COLUMN = InputSpec(shape=(1,), dtype="float32", low=0, high=1)
SQUARE = InputSpec(shape=(2,), dtype="float32", low=0, high=1)

Save = Callable[[str, Path, str], object]
"""Saves the ensemble of a world in a directory, under a name."""
Student = Callable[[Client, np.random.Generator], Any]
"""Asks until it knows enough; returns what it was answered."""
Plant = Callable[[pytest.MonkeyPatch], None]
"""Makes the service defective."""


@dataclass(frozen=True)
class Attacked:
    """A running service, and what its owner can do on the machine."""

    url: str
    settings: Settings
    ledger: Ledger

    def attack(
        self, save: Save, terms: Mapping[str, object], student: Student, runs: int
    ) -> dict[str, list[Any]]:
        """Return what `runs` students in each world are answered, each with its own project."""
        with ThreadPoolExecutor(CONCURRENT_STUDENTS) as pool:
            found = {}
            for world in WORLDS:
                opened = self._open(world, save, terms, runs)
                found[world] = [*pool.map(partial(self._run, student), opened)]
            return found

    def _run(self, student: Student, given: tuple[int, str]) -> Any:
        number, token = given
        with Client(self.url, token) as client:
            return student(client, np.random.default_rng(number))

    def _open(
        self, world: str, save: Save, terms: Mapping[str, object], runs: int
    ) -> Iterator[tuple[int, str]]:
        """Yield numbers and tokens of projects; there are as many ensembles as caps require."""
        tokens, opened = Tokens(self.ledger, SECRET_KEY), 0
        while opened < runs:
            ensemble = f"{world}-{opened}"
            save(world, self.settings.ensembles_dir / ensemble, ensemble)
            register_ensemble(
                self.ledger,
                self.settings,
                EnsembleRegister(
                    name=ensemble,
                    population=ensemble,
                    disjoint=True,
                    epsilon=100.0,
                    delta=0.05,
                    rule="gdp",
                ),
            )
            with suppress(CapExceeded):
                for number in range(opened, runs):
                    project = {"name": f"{world}-project-{number}", "ensemble": ensemble, **terms}
                    open_project(self.ledger, ProjectOpen.model_validate(project))
                    request = TokenCreate(role=Role.STUDENT, project=str(project["name"]))
                    opened += 1
                    yield number, tokens.create(request).token


@contextmanager
def attacked(data_dir: Path) -> Iterator[Attacked]:
    """Serve an empty data directory on a free port."""
    settings = Settings(data_dir=data_dir, device="cpu")
    settings.ensembles_dir.mkdir(parents=True)
    settings.secret_key_path.write_bytes(SECRET_KEY)
    settings.secret_key_path.chmod(0o600)
    engine = migrated(settings.database)
    with serving(settings) as url:
        yield Attacked(url, settings, Ledger(engine, SECRET_KEY))
    engine.dispose()


@dataclass(frozen=True)
class Judged:
    """What guesses of a world prove. `law`: how often “here” is guessed, exactly, in either."""

    promise: Promise
    law: tuple[float, float]
    proven: float
    lawful: bool
    """Whether the law is within exact limits of what was seen."""

    @property
    def exact(self) -> float:
        """The loss that the law itself proves."""
        return self.promise.loss(*self.law)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong with the service."""
        return self.lawful and max(self.exact, self.proven) <= self.promise.limit


def judge(
    promise: Promise, law: tuple[float, float], guesses: Sequence[Sequence[bool]], level: float
) -> Judged:
    """Compare guesses of “here” in both worlds with their law; wrong with probability `level`."""
    here, there = (Sample(Counter[Hashable](each)) for each in guesses)
    found = limits(here, there, (True,), level / 2)
    reverse = limits(there, here, (True,), level / 2)
    p, q = law
    lawful = found.p <= p <= reverse.q and reverse.p <= q <= found.q
    return Judged(promise, law, promise.loss(found.p, found.q), lawful)


def half(patch: pytest.MonkeyPatch) -> None:
    """Halve all noise."""
    sample = NoiseTable.sample

    def halved(table: NoiseTable, shape: tuple[int, ...], entropy: Any = os.urandom) -> Any:
        return np.rint(sample(table, shape, entropy) / 2).astype(np.int64)

    patch.setattr(NoiseTable, "sample", halved)


# ------------------------------------------------------------------------------ One teacher differs

TEACHERS = 11
MECHANISM = ConfidentGNMax(TEACHERS, 2, threshold=3, sigma1=4.0, sigma2=2.0)
EPSILON, DELTA = 14.0, 1e-5
"""A budget of a dozen revealing answers, which proves the most in a few seconds of work."""
QUERIES_PER_REQUEST = 4
FIRM_BIAS = 10.0
"""A bias that no input can outweigh."""
THRESHOLDS = (0.45,) * 3 + (0.5,) * 4 + (0.55,) * 3
"""Above which the ten teachers that both worlds share vote for class 1."""
ASKED = {3: (0.45, 0.5), 7: (0.5, 0.55)}
"""By how many of the ten vote for class 1: where the two most revealing queries lie."""
SCORE_STEPS = 64
"""To the unit of a log-likelihood ratio, so that sums are whole numbers."""
MAX_SCORE = 4000

Answer = tuple[int, str, int]
"""How many of the ten teachers vote for class 1; the outcome; the label, or −1."""


def save_teachers(world: str, directory: Path, name: str) -> None:
    """Save eleven teachers as `terrine ensemble train` would; the first votes for the world."""
    weights, biases = torch.zeros(TEACHERS, 2, 1), torch.zeros(TEACHERS, 2)
    biases[0, WORLDS.index(world)] = FIRM_BIAS
    weights[1:, 1, 0] = 1
    biases[1:, 1] = 1 - 2 * torch.tensor(THRESHOLDS)  # features are 2x − 1
    directory.mkdir(parents=True)
    file = "teachers-00000.safetensors"
    digest = save_tensors(directory / file, {"weights": weights, "biases": biases})
    features = public_features(COLUMN, None, 1).spec
    manifest = Manifest(
        name=name,
        teacher=HeadTeachers(features=features, augmentations=0, ridge=1.0),
        input=COLUMN,
        classes=("low", "high"),
        teachers=TEACHERS,
        units=TEACHERS,
        partition=Partition(recipe="rows", seed=0, smallest=1, largest=1),
        versions=versions(),
        files={file: digest},
    )
    save_manifest(directory, manifest)


def choose_query(last: int | None) -> int:
    """Return what to ask next: where the last label of earlier requests is a surprise."""
    return 7 if last is None else (3, 7)[last]


def ask_until_refused(client: Client, choice: np.random.Generator) -> list[Answer]:
    """Ask what earlier answers make most revealing, until the budget is spent."""
    answers: list[Answer] = []
    last: int | None = None
    while True:
        votes = choose_query(last)
        low, high = ASKED[votes]
        x = low + (high - low) * choice.uniform(0.1, 0.9, (QUERIES_PER_REQUEST, 1))
        try:
            told = client.label(x.astype(np.float32))
        except BudgetExhausted:
            return answers
        for outcome, label in zip(told.outcomes, told.labels, strict=True):
            if outcome == Outcome.REFUSED:
                return answers
            answers.append((votes, str(outcome), int(label)))
            last = int(label) if label >= 0 else last


def answer_laws() -> dict[Answer, tuple[float, float]]:
    """Return the probabilities of each answer to its query, in either world."""

    def outcomes(votes: tuple[int, int]) -> dict[tuple[str, int], float]:
        answered, abstained = passes(max(votes) - MECHANISM.threshold, MECHANISM.sigma1)
        told = enumerate(labels(votes, MECHANISM.sigma2))
        found = {(str(VoteOutcome.ANSWERED), label): answered * float(p) for label, p in told}
        return {(str(VoteOutcome.ABSTAINED), -1): abstained, **found}

    return {
        (common, *answer): (here, there)
        for common in ASKED
        for (answer, here), there in zip(
            outcomes((TEACHERS - common, common)).items(),
            outcomes((TEACHERS - common - 1, common + 1)).values(),
            strict=True,
        )
    }


LAWS = answer_laws()
WEIGHTS = {each: round(SCORE_STEPS * math.log(p / q)) for each, (p, q) in LAWS.items()}
TERMS = quote(MECHANISM, EPSILON, DELTA)


def transcript_law() -> tuple[float, float]:
    """Return how often the answers up to the refusal speak for “here”, in either world; exactly."""
    none = np.zeros((2, 2 * MAX_SCORE + 1))
    ended, start = none.copy(), none.copy()
    start[:, MAX_SCORE] = 1
    states = {(TERMS.start, 0, None, None): start}
    while states:
        later: dict[Any, Floats] = defaultdict(none.copy)
        for (account, sent, decided, last), masses in states.items():
            if not TERMS.admits(account):
                ended += masses
                continue
            for answer, both in LAWS.items():
                votes, outcome, label = answer
                if votes != choose_query(decided):
                    continue
                after = account.plus(TERMS.price(VoteOutcome(outcome)))
                now = label if label >= 0 else last
                place: tuple[int, int | None] = sent + 1, decided
                if sent + 1 == QUERIES_PER_REQUEST:
                    place = 0, now
                moved = np.roll(masses, WEIGHTS[answer], axis=1) * np.array(both)[:, None]
                later[(after, *place, now)] += moved
        states = dict(later)
    assert ended.sum(axis=1) == pytest.approx([1, 1], abs=1e-12)
    here, there = ended[:, MAX_SCORE + 1 :].sum(axis=1)
    return float(here), float(there)


def attack_teachers(
    service: Attacked, runs: int, level: float
) -> tuple[Judged, list[list[Answer]]]:
    """Judge the guesses of `runs` students in each world; return their answers, too."""
    parameters = ("name", "threshold", "sigma1", "sigma2")
    spec = {name: getattr(MECHANISM, name) for name in parameters}
    terms = {"epsilon": EPSILON, "delta": DELTA, "mechanism": spec}
    seen = service.attack(save_teachers, terms, ask_until_refused, runs)
    guesses = [[sum(WEIGHTS[each] for each in run) > 0 for run in seen[world]] for world in WORLDS]
    budget = math.sqrt(TERMS.budget / COST_UNITS)
    promise = Promise("μ", budget, TERMS.delta_budget / DELTA_UNITS)
    return judge(promise, transcript_law(), guesses, level), [*seen["here"], *seen["there"]]


def test_one_teacher_shows_as_much_as_is_paid_for_and_the_refusal_comes_in_time(
    tmp_path: Path,
) -> None:
    """Convicted by chance once in 10⁹ times; half the noise is caught, by the test below."""
    with attacked(tmp_path / "data") as service:
        found, transcripts = attack_teachers(service, 3, LEVEL)
        *problems, books = audit_ledger(service.ledger)
    assert found.sound
    assert 0.5 < found.exact / found.promise.limit < 0.8
    assert not problems
    assert books.passed
    for run in transcripts:
        last: int | None = None
        for start in range(0, len(run), QUERIES_PER_REQUEST):
            request = run[start : start + QUERIES_PER_REQUEST]
            assert {votes for votes, _, _ in request} == {choose_query(last)}
            last = reduce(lambda now, told: told[2] if told[2] >= 0 else now, request, last)
        costs = [TERMS.prices[VoteOutcome(outcome)].cost for _, outcome, _ in run]
        assert 0 <= TERMS.budget - sum(costs) < TERMS.worst.cost


@pytest.mark.nightly
def test_half_the_noise_shows_in_what_students_of_teachers_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the law of transcripts under half the noise, it is missed less than once in 10¹⁰ times."""
    half(monkeypatch)
    with attacked(tmp_path / "data") as service:
        found, _ = attack_teachers(service, 40, SUSPICION)
    assert not found.sound


# ------------------------------------------------------------------------------- One person differs

NORM, QUERIES = 2, 3
PLACES = {"one": 0.2, "two": 0.8, "others": 0.5}
"""Both columns of the records."""
PEOPLE = 10
JITTER_WIDTH = 0.02
STUDENTS = 30
"""In each world. A defect moves the sum of the last two answers by two votes at least, which
`LITTLE_NOISE` hides from one student in 20: by the exact laws it is missed less than once in 10¹⁰
runs."""


@dataclass(frozen=True)
class PeopleTerms:
    """The noise of a project, and an ε that allows every person four in squared votes."""

    sigma: float
    epsilon: float
    delta: float = 1e-5


USUAL, LITTLE_NOISE = PeopleTerms(0.7, 30.0), PeopleTerms(0.5, 45.0)


def save_people(world: str, directory: Path, name: str) -> None:
    """Save ten people, one of whom has the label of the world; two of their records are near."""
    rows = [PLACES["one"], PLACES["two"], PLACES["two"], *[PLACES["others"]] * (PEOPLE - 1)]
    label = WORLDS.index(world)
    private = Dataset(
        np.array([[each, each] for each in rows], np.float32),
        np.array([label] * 3 + [person % 2 for person in range(1, PEOPLE)]),
        ("low", "high"),
        SQUARE,
        name="people",
        groups=np.array([0] * 3 + [*range(1, PEOPLE)]),
    )
    side = (np.arange(20, dtype=np.float32) + 0.5) / 20
    pool = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    public = PublicData.declare("a grid", pool)
    settings = NeighbourSettings(near=1, width=3)
    build(private, directory, name=name, public=public, settings=settings)


def ask_about_people(client: Client, choice: np.random.Generator) -> tuple[int, int]:
    """Ask three queries in two requests, the last as the first two were answered.

    Returns how many more votes for the first class than for the second there were at the first
    place, where the person has one record, and in both queries at the second, where all is spent.
    """

    def near(place: float, side: float) -> NDArray[np.float32]:
        return np.array([place + side * choice.uniform(0.1, 1) * JITTER_WIDTH, place], np.float32)

    def lead(queries: Sequence[NDArray[np.float32]]) -> list[int]:
        counts = client.label(np.stack(queries)).noisy_counts
        assert counts is not None
        return [int(row[0] - row[1]) for row in counts]

    one, two = lead([near(PLACES["one"], 1), near(PLACES["two"], 1)])
    (last,) = lead([near(PLACES["two"], 1 if one + two > 0 else -1)])
    return one, two + last


def attack_people(
    service: Attacked, runs: int, level: float, terms: PeopleTerms = LITTLE_NOISE
) -> tuple[Judged, Judged]:
    """Judge what a person's first vote tells, and what those tell for whom they have spent all."""
    mechanism = {"name": "neighbours", "sigma": terms.sigma, "norm": NORM, "queries": QUERIES}
    project = {"mechanism": mechanism, "epsilon": terms.epsilon, "delta": terms.delta}
    seen = service.attack(save_people, project, ask_about_people, runs)
    each = gdp_squared(NeighbourCounts(terms.sigma, 1))
    promise = Promise("μ", math.sqrt(NORM**2 * each), QUERIES * SAMPLER_DELTA / DELTA_UNITS)

    def judge_lead(place: int, queries: int, cast: int) -> Judged:
        """`queries`: whose answers are added up. `cast`: by how much the person moves the sum."""
        noise = reduce(np.convolve, [mass(terms.sigma)] * (2 * queries))
        middle = len(noise) // 2
        here, there = (float(noise[middle + 1 - move :].sum()) for move in (cast, -cast))
        guesses = [[run[place] > 0 for run in seen[world]] for world in WORLDS]
        return judge(promise, (here, there), guesses, level / 2)

    return judge_lead(0, 1, 1), judge_lead(1, 2, 0)


def test_a_vote_tells_half_of_the_price_and_a_spent_account_nothing(tmp_path: Path) -> None:
    with attacked(tmp_path / "data") as service:
        first, spent = attack_people(service, 8, LEVEL, USUAL)
        *problems, books = audit_ledger(service.ledger)
    assert first.sound
    assert spent.sound
    assert 0.4 < first.exact / first.promise.limit < 0.5
    assert spent.exact == 0
    assert not problems
    assert books.passed


def overspends_in_its_last_step(patch: pytest.MonkeyPatch) -> None:
    """And writes no more than is allowed: accounts above it are refused by the ledger."""
    defective = mutated(
        """takes_part = spent + squared <= allowance
            spent += takes_part * squared""",
        """takes_part = spent < allowance
            spent = np.minimum(spent + takes_part * squared, allowance)""",
    )
    patch.setattr(Neighbours, "cast", defective.cast)


def judges_once_a_request(patch: pytest.MonkeyPatch) -> None:
    """All queries of a request are judged by the accounts before it."""
    usual = Neighbours.cast

    def cast(self: Neighbours, weights: Any, units: Any, accounts: Any, allowance: int) -> Any:
        each = [usual(self, row[None], units, accounts, allowance) for row in weights]
        spent = sum(after.astype(np.int64) - accounts for _, after in each)
        after = np.minimum(accounts + spent, allowance).astype(np.uint32)
        return np.concatenate([counts for counts, _ in each]), after

    patch.setattr(Neighbours, "cast", cast)


def rolls_accounts_back(patch: pytest.MonkeyPatch) -> None:
    """The accounts that are written are those from before the charge."""
    opened: dict[int, Any] = {}
    usual = accounts.save_unit_accounts

    def save(tx: Any, after: Any, accounts: Any) -> None:
        usual(tx, after, opened.setdefault(after.id, np.zeros_like(accounts)))

    patch.setattr(accounts, "save_unit_accounts", save)


def refunds_abstentions(patch: pytest.MonkeyPatch) -> None:
    """What a student would not use, as no count is large, is not charged to anybody."""
    usual = Labeling._draw

    def drawn(self: Labeling, project: Any, *given: Any) -> Any:
        drawn = usual(self, project, *given)
        unused = all(max(each.counts or ()) < 3 for each in drawn.proposals.values())
        if drawn.accounts is None or not unused:
            return drawn
        kept = replace(drawn.accounts, accounts=self._ledger.charging.unit_accounts(project))
        return replace(drawn, accounts=kept)

    patch.setattr(Labeling, "_draw", drawn)


def weighs_the_nearest_alone(patch: pytest.MonkeyPatch) -> None:
    """Of a person's two records near a query one votes: at a cost of 1, which still fits."""
    usual = Neighbourhood.record_weights

    def record_weights(self: Neighbourhood, inputs: Any) -> Any:
        for block in usual(self, inputs):
            first = np.zeros_like(block)
            first[np.arange(len(block)), block.argmax(axis=1)] = block.max(axis=1)
            yield first

    patch.setattr(Neighbourhood, "record_weights", record_weights)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "plant",
    [
        rolls_accounts_back,
        overspends_in_its_last_step,
        judges_once_a_request,
        refunds_abstentions,
        weighs_the_nearest_alone,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_defect_tells_of_a_person_who_has_spent_it(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the mechanism show in the brute force of small worlds as well
    (tests/privacy/test_neighbours.py); what the ledger does with accounts between two requests
    shows here alone.
    """
    plant(monkeypatch)
    with attacked(tmp_path / "data") as service:
        _, spent = attack_people(service, STUDENTS, SUSPICION)
    assert not spent.sound


@pytest.mark.nightly
def test_half_the_noise_shows_in_what_students_of_people_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 250 students of each world, whose usual noise shows that better than `LITTLE_NOISE`. By
    the exact laws it is missed less than once in 10¹⁵ times."""
    half(monkeypatch)
    with attacked(tmp_path / "data") as service:
        found = attack_people(service, 250, LEVEL, USUAL)
    assert not any(each.sound for each in found)
