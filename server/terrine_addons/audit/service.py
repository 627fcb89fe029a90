"""Attack the whole service: HTTP, voting, mechanism, ledger and refusals.

Two worlds differ in one teacher. In each run a student with its own project queries one of them
until it is refused, and an adversary (`world.ADVERSARIES`) guesses the world from its transcript.
All that transcripts can tell is computed exactly (`transcripts`), which says how near the budget
this adversary comes, and which guess proves the most. The runs measure how often that guess is
right. That must not prove more than the budget, nor contradict the exact law in either direction:
noise that is too small can make a guess rarer as well.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial, reduce
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq

from terrine_addons.audit.evidence import (
    Floats,
    Promise,
    Sample,
    Votes,
    held_to_law,
    labels,
    limits,
    mass,
    passes,
)
from terrine_addons.audit.ledger import audit_ledger
from terrine_client import BudgetExhausted, Client
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.maps import PublicData, public_features
from terrine_models.storage.manifests import Partition, save_tensors, versions
from terrine_models.teachers import neighbours
from terrine_models.teachers.heads import HeadTeachers
from terrine_models.teachers.manifests import Manifest, save_manifest
from terrine_protocol import EnsembleRegister, Outcome, ProjectOpen, Role, TokenCreate
from terrine_server.app import serving
from terrine_server.findings import AuditFinding
from terrine_server.ledger import Ledger, connect, upgrade
from terrine_server.owner.operations import make_directories, open_project, register_ensemble
from terrine_server.owner.sign_in import Tokens, load_secret_key, load_token_key, make_secret_key
from terrine_server.privacy import Account, NeighbourCounts, Terms, VoteOutcome, gdp_squared, quote
from terrine_server.privacy.mechanisms.confident_gnmax import ConfidentGNMax
from terrine_server.privacy.numbers import COST_UNITS, DELTA_UNITS, SAMPLER_DELTA
from terrine_server.settings import Settings

Answer = tuple[int, str, int]
"""The query's kind, the outcome, and the label: −1 if there is none."""
Laws = Mapping[Answer, tuple[float, float]]
"""The probabilities of an answer to a query of its kind, in either world."""
Next = Callable[[int | None], Mapping[int, float]]
"""From the last label of earlier requests: how often the next query is of each kind."""
SCORE_STEPS = 64
"""To the unit of a score: weights are whole numbers of them, so that sums are exact."""
NEGLIGIBLE_PROBABILITY = 1e-24
"""What is less likely is not followed further."""


def outcomes(mechanism: ConfidentGNMax, votes: Votes) -> dict[tuple[str, int], float]:
    """Return the probability of each outcome and label."""
    answered, abstained = passes(max(votes) - mechanism.threshold, mechanism.sigma1)
    found = {(str(VoteOutcome.ABSTAINED), -1): abstained}
    for label, share in enumerate(labels(votes, mechanism.sigma2)):
        found[str(VoteOutcome.ANSWERED), label] = answered * float(share)
    return found


@dataclass(frozen=True)
class Guess:
    """The first world, if `first`, is guessed where the score for it is at least `least`.

    `right`, `wrong`: how often that is so where it is right and where it is wrong; exactly.
    """

    first: bool
    least: int
    right: float
    wrong: float

    def made(self, score: int) -> bool:
        """Whether the world is guessed for this score, which is for the first world."""
        return (score if self.first else -score) >= self.least


@dataclass(frozen=True)
class Masses:
    """Probabilities of scores from `low` on, in both worlds, float[2, S]."""

    low: int
    values: Floats

    def plus(self, other: Masses) -> Masses:
        """Return the sum, on all scores of either."""
        low = min(self.low, other.low)
        high = max(each.low + each.values.shape[1] for each in (self, other))
        found = np.zeros((2, high - low))
        for each in (self, other):
            found[:, each.low - low :][:, : each.values.shape[1]] += each.values
        return Masses(low, found)


@dataclass(frozen=True)
class _Place:
    """Where a student is: its account, and place in a request.

    `decided` and `last`: the last label of the requests before, and of this one so far.
    """

    account: Account
    sent: int
    decided: int | None
    last: int | None


@dataclass(frozen=True)
class Transcripts:
    """Whole scores and their probabilities. `weights`: what each answer adds to the score."""

    masses: Masses
    weights: Mapping[Answer, int]

    @classmethod
    def of(cls, terms: Terms, laws: Laws, following: Next, at_once: int) -> Transcripts:
        """Return those of a student who sends `at_once` queries in each request."""
        weights = {
            answer: round(SCORE_STEPS * math.log(here / there))
            for answer, (here, there) in laws.items()
        }
        prices = {outcome: terms.price(VoteOutcome(outcome)) for _, outcome, _ in laws}
        ended = Masses(0, np.zeros((2, 1)))
        states = {_Place(terms.start, 0, None, None): Masses(0, np.ones((2, 1)))}
        while states:
            later: dict[_Place, Masses] = {}
            for place, masses in states.items():
                if not terms.admits(place.account):
                    ended = ended.plus(masses)
                    continue
                shares = following(place.decided)
                for answer, both in laws.items():
                    kind, outcome, label = answer
                    chance = np.array(both)[:, None] * shares.get(kind, 0.0)
                    moved = Masses(masses.low + weights[answer], masses.values * chance)
                    if moved.values.sum() < NEGLIGIBLE_PROBABILITY:
                        continue
                    account = place.account.plus(prices[outcome])
                    last = label if label >= 0 else place.last
                    if place.sent + 1 < at_once:
                        after = _Place(account, place.sent + 1, place.decided, last)
                    else:
                        after = _Place(account, 0, last, last)
                    later[after] = later[after].plus(moved) if after in later else moved
            states = later
        return cls(ended, weights)

    def score(self, answers: Sequence[Answer]) -> int:
        """Return how strongly answers indicate the first world. Unheard-of ones say nothing."""
        return sum(self.weights.get(answer, 0) for answer in answers)

    def guesses(self) -> list[Guess]:
        """Return all guesses, of either world."""
        values, low = self.masses.values, self.masses.low
        from_on = values[:, ::-1].cumsum(axis=1)[:, ::-1]
        up_to = values.cumsum(axis=1)
        found = []
        for at in range(1, values.shape[1]):
            here, there = (float(p) for p in from_on[:, at])
            found.append(Guess(True, low + at, here, there))
            here, there = (float(p) for p in up_to[:, at - 1])
            found.append(Guess(False, 1 - low - at, there, here))
        return found

    @property
    def advantage(self) -> float:
        """How much oftener the best guess is right than wrong: the total variation."""
        here, there = self.masses.values
        return float(np.abs(here - there).sum() / 2)

    def epsilon(self, delta: float) -> float:
        """Return the least ε with which the scores are (ε, `delta`)-indistinguishable."""
        here, there = self.masses.values

        def apart(epsilon: float) -> float:
            """The larger δ of both directions."""
            pairs = (here, there), (there, here)
            return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for p, q in pairs)

        if apart(0.0) <= delta:
            return 0.0
        return float(brentq(lambda epsilon: apart(epsilon) - delta, 0.0, 60.0, xtol=1e-6))


World = Literal["here", "there"]
Save = Callable[[Path, str], object]
WORLDS: tuple[World, World] = ("here", "there")

TEACHERS = 11
FIRM_BIAS = 10.0
"""A bias that no input can outweigh."""
THRESHOLDS = (0.45,) * 3 + (0.5,) * 4 + (0.55,) * 3
"""Of the ten teachers that both worlds share, in the unit of the first column."""
CAP_EPSILON, CAP_DELTA = 100.0, 0.05


@dataclass(frozen=True)
class Region:
    """Inputs on which the ten teachers give the same number of `votes` to class 1."""

    votes: int
    first: tuple[float, float]
    second: tuple[float, float]
    """The columns' intervals."""

    @property
    def share(self) -> float:
        """Of all queries that come by themselves: uniform in the unit square."""
        return (self.first[1] - self.first[0]) * (self.second[1] - self.second[0])

    def draw(self, choice: np.random.Generator) -> NDArray[np.float32]:
        """Return an input [2], not so near an edge that rounding matters."""
        columns = (
            low + (high - low) * choice.uniform(0.1, 0.9) for low, high in (self.first, self.second)
        )
        return np.array([*columns], dtype=np.float32)


@dataclass(frozen=True)
class Adversary:
    """An adversary of *Auditing Private Prediction* (Chadha et al., ICML 2024, arXiv 2402.09403).

    `poisoned`: how many of the ten teachers it trained. `chooses`: whether it chooses the queries,
    and so tells its teachers by the second column how many of them vote for class 1. Otherwise
    queries come by themselves, and its teachers vote against what most others think.
    """

    name: str
    title: str
    poisoned: int
    chooses: bool

    @property
    def honest(self) -> tuple[float, ...]:
        """The thresholds of the teachers that are not the adversary's."""
        return THRESHOLDS[: len(THRESHOLDS) - self.poisoned]

    def teacher(self, own: int) -> tuple[tuple[float, float], float]:
        """Return weights [2] and bias, on columns, of the score for class 1 of one of its own."""
        return ((0.0, 1.0), -self._edges[own + 1]) if self.chooses else ((-1.0, 0.0), 0.5)

    @property
    def _edges(self) -> list[float]:
        """Where votes by the second column change, if it is used."""
        return [own / (self.poisoned + 1) for own in range(self.poisoned + 2)]

    def regions(self) -> list[Region]:
        """Return the parts of the unit square on which votes are the same."""
        edges = sorted({0.0, 0.5, 1.0, *self.honest})
        seconds = [*pairwise(self._edges)] if self.chooses else [(0.0, 1.0)]
        return [
            Region(
                sum(threshold <= first[0] for threshold in self.honest)
                + (own if self.chooses else self.poisoned * (first[1] <= 0.5)),
                first,
                second,
            )
            for first in pairwise(edges)
            for own, second in enumerate(seconds)
        ]


ADVERSARIES = (
    Adversary("queries", "control of the queries", 0, chooses=True),
    Adversary("shards", "3 of 10 shards poisoned", 3, chooses=False),
    Adversary("both", "both", 3, chooses=True),
)


@dataclass(frozen=True)
class Service:
    """A running service: its URL, and what its owner can do on the machine."""

    url: str
    settings: Settings
    ledger: Ledger

    def open(self, project: ProjectOpen) -> str:
        """Open a project and return a student token for it."""
        open_project(self.ledger, project)
        tokens = Tokens(self.ledger, load_token_key(self.settings))
        request = TokenCreate(role=Role.STUDENT, project=project.name, expires_in_days=1)
        return tokens.create(request).token

    def open_many(
        self, prefix: str, count: int, save: Save, terms: Mapping[str, object]
    ) -> list[str]:
        """Open projects on the terms, and return their tokens.

        `save`: saves an ensemble in a directory, under a name. There are as many as caps require.
        Their rule is Gaussian DP, whose parameter is what a guess of the world is compared with.
        """
        tokens: list[str] = []
        ensemble, room = "", 0
        for number in range(count):
            if not room:
                ensemble = f"{prefix}-{number}"
                save(self.settings.ensembles_dir / ensemble, ensemble)
                register_ensemble(
                    self.ledger,
                    self.settings,
                    EnsembleRegister(
                        name=ensemble,
                        population=ensemble,
                        disjoint=True,
                        epsilon=CAP_EPSILON,
                        delta=CAP_DELTA,
                        rule="gdp",
                    ),
                )
            name = f"{prefix}-project-{number}"
            wanted = {"name": name, "ensemble": ensemble, **terms}
            tokens.append(self.open(ProjectOpen.model_validate(wanted)))
            if not room:
                record = self.ledger.project(name)
                room = record.ensemble.population.cap // record.terms.cap_budget
            room -= 1
        return tokens


def save_world(adversary: Adversary, world: World, directory: Path, name: str) -> None:
    """Save the ensemble of a world as `terrine ensemble train` would."""
    spec = InputSpec(shape=(2,), dtype="float32", low=0, high=1)
    weights = torch.zeros(TEACHERS, 2, 2)
    biases = torch.zeros(TEACHERS, 2)
    teachers = [((1.0, 0.0), -threshold) for threshold in adversary.honest]
    teachers += [adversary.teacher(own) for own in range(adversary.poisoned)]
    for row, (slope, bias) in enumerate(teachers, start=1):  # features are 2x − 1
        weights[row, 1] = torch.tensor(slope)
        biases[row, 1] = sum(slope) + 2 * bias
    biases[0, 0 if world == "here" else 1] = FIRM_BIAS
    directory.mkdir(parents=True)
    file = "teachers-00000.safetensors"
    digest = save_tensors(directory / file, {"weights": weights, "biases": biases})
    manifest = Manifest(
        name=name,
        teacher=HeadTeachers(
            features=public_features(spec, None, 2).spec, augmentations=0, ridge=1.0
        ),
        input=spec,
        classes=("low", "high"),
        teachers=TEACHERS,
        units=TEACHERS,
        partition=Partition(recipe="rows", seed=0, smallest=1, largest=1),
        versions=versions(),
        files={file: digest},
    )
    save_manifest(directory, manifest)


@contextmanager
def running_service(data_dir: Path) -> Iterator[Service]:
    """Serve an empty data directory on a free port, as `terrine init` and `serve` would."""
    settings = Settings(
        data_dir=data_dir,
        database_url=f"sqlite:///{data_dir / 'terrine.sqlite'}",
        secret_key_file=data_dir / "secret.key",
        device="cpu",
    )
    make_directories(settings)
    make_secret_key(settings.secret_key_path)
    engine = connect(settings.database)
    key = load_secret_key(settings.secret_key_path)
    upgrade(engine, key)
    with serving(settings) as url:
        yield Service(url, settings, Ledger(engine, key))
    engine.dispose()


MECHANISM = ConfidentGNMax(TEACHERS, 2, threshold=3, sigma1=4.0, sigma2=2.0)
EPSILON, DELTA = 14.0, 1e-5
"""A budget of a dozen revealing answers, which proves the most in a few seconds of work."""
QUERIES_PER_REQUEST = 4
"""Queries of a request."""
CONCURRENT_STUDENTS = 4
"""Students that send queries at the same time."""


@dataclass(frozen=True)
class Attack:
    """One student's whole interaction, up to its refusal."""

    world: World
    answers: tuple[Answer, ...]


class Strategy:
    """What an adversary asks: the queries that come, or those at which it learns most."""

    def __init__(self, adversary: Adversary) -> None:
        self.adversary, self._by_votes = adversary, defaultdict[int, list[Region]](list)
        for region in adversary.regions():
            self._by_votes[region.votes].append(region)
        self.laws = {
            (votes, *answer): (here, there)
            for votes in self._by_votes
            for (answer, here), there in zip(
                outcomes(MECHANISM, _votes(votes, "here")).items(),
                outcomes(MECHANISM, _votes(votes, "there")).values(),
                strict=True,
            )
        }

        def apart(votes: int) -> float:
            return sum(abs(p - q) for (kind, *_), (p, q) in self.laws.items() if kind == votes)

        self._best = sorted(self._by_votes, key=apart)[-2:]
        """The queries at which the worlds differ most, the most revealing one last."""

    def following(self, last: int | None) -> Mapping[int, float]:
        """Return how often the next query has so many votes, after a label of earlier requests.

        If it chooses: of the two best, the one at which that label is a surprise.
        """
        if not self.adversary.chooses:
            return {
                votes: sum(region.share for region in regions)
                for votes, regions in self._by_votes.items()
            }
        votes = self._best[-1] if last is None else sorted(self._best)[last]
        return {votes: 1.0}

    def ask(self, last: int | None, choice: np.random.Generator) -> list[Region]:
        """Return where the queries of the next request lie."""
        shares = self.following(last)
        votes = choice.choice([*shares], size=QUERIES_PER_REQUEST, p=[*shares.values()])
        found = []
        for each in votes:
            regions = self._by_votes[int(each)]
            sizes = np.array([region.share for region in regions])
            found.append(regions[int(choice.choice(len(regions), p=sizes / sizes.sum()))])
        return found


def _votes(common: int, world: World) -> tuple[int, int]:
    """Return the votes of all teachers, if `common` of those of both worlds are for class 1."""
    ones = common + (world == "there")
    return TEACHERS - ones, ones


def audit_service(
    runs: int,
    level: float,
    choice: np.random.Generator,
    adversaries: Sequence[Adversary] = ADVERSARIES,
) -> Iterator[AuditFinding]:
    """Yield the loss to each adversary and its budget, and whether the service's ledger is sound.

    `runs`: students in each world, of each adversary. `level`: the probability of convicting a
    service that keeps its budget. `choice` picks inputs, never noise.
    """
    with (
        tempfile.TemporaryDirectory(prefix="terrine-audit-") as directory,
        running_service(Path(directory)) as service,
    ):
        for adversary in adversaries:
            strategy = Strategy(adversary)
            seen = attack(service, strategy, runs, choice)
            yield _judge(strategy, seen, level / len(adversaries))
        yield from audit_ledger(service.ledger, "service")


def attack(
    service: Service, strategy: Strategy, runs: int, choice: np.random.Generator
) -> list[Attack]:
    """Let `runs` students in each world send queries until they are refused."""
    adversary = strategy.adversary
    terms = {
        "mechanism": {
            "name": MECHANISM.name,
            "threshold": MECHANISM.threshold,
            "sigma1": MECHANISM.sigma1,
            "sigma2": MECHANISM.sigma2,
        },
        "epsilon": EPSILON,
        "delta": DELTA,
    }
    opened = [
        (world, token, np.random.default_rng(choice.integers(2**63)))
        for world in WORLDS
        for token in service.open_many(
            f"{adversary.name}-{world}", runs, partial(save_world, adversary, world), terms
        )
    ]
    with ThreadPoolExecutor(CONCURRENT_STUDENTS) as pool:
        return list(
            pool.map(
                lambda student: Attack(student[0], _ask(service.url, strategy, *student[1:])),
                opened,
            )
        )


def _ask(
    url: str, strategy: Strategy, token: str, choice: np.random.Generator
) -> tuple[Answer, ...]:
    """Query until refused."""
    answers: list[Answer] = []
    last: int | None = None
    with Client(url, token) as client:
        while True:
            regions = strategy.ask(last, choice)
            try:
                told = client.label(np.stack([region.draw(choice) for region in regions]))
            except BudgetExhausted:
                return tuple(answers)
            for region, outcome, label in zip(regions, told.outcomes, told.labels, strict=True):
                if outcome == Outcome.REFUSED:
                    return tuple(answers)
                answers.append((region.votes, str(outcome), int(label)))
                last = int(label) if label >= 0 else last


def _terms() -> Terms:
    return quote(MECHANISM, EPSILON, DELTA)


def _judge(strategy: Strategy, seen: Sequence[Attack], level: float) -> AuditFinding:
    """Compare how often the most revealing guess was right with the budget and the exact law."""
    terms = _terms()
    promise = Promise("μ", math.sqrt(terms.budget / COST_UNITS), terms.delta_budget / DELTA_UNITS)
    transcripts = Transcripts.of(terms, strategy.laws, strategy.following, QUERIES_PER_REQUEST)
    runs = len(seen) // len(WORLDS)

    @cache  # of thousands of guesses, many are expected to be right as often
    def expected(right: int, wrong: int) -> tuple[float, float]:
        """What so many runs prove if all is as it should be: the loss, and how far apart."""
        one, other = (Sample(Counter({True: n, False: runs - n})) for n in (right, wrong))
        found = limits(one, other, (True,), level)
        return promise.loss(found.p, found.q), found.p - found.q

    guess = max(
        transcripts.guesses(),
        key=lambda guess: expected(round(guess.right * runs), round(guess.wrong * runs)),
    )
    guesses = {
        world: Counter[Hashable](
            guess.made(transcripts.score(run.answers)) for run in seen if run.world == world
        )
        for world in WORLDS
    }
    here, there = (Sample(guesses[world]) for world in WORLDS)
    right, wrong = (here, there) if guess.first else (there, here)
    found, lawful = held_to_law(right, wrong, (True,), (guess.right, guess.wrong), level)
    queries = np.array([len(run.answers) for run in seen])
    epsilon = transcripts.epsilon(DELTA)
    evidence = (
        f"{len(seen)} students sent {queries.sum():,} queries, {queries.min()} to {queries.max()} "
        f"each; the best guess is “{WORLDS[not guess.first]}” in ≥ {found.p:.3g} of runs where "
        f"that is right (exactly {guess.right:.3g}) and ≤ {found.q:.3g} where it is wrong (exactly "
        f"{guess.wrong:.3g}; {runs} runs each); exactly, all that is released is worth "
        f"ε = {epsilon:.3g} at δ = {DELTA:g}, budget {EPSILON:g}"
    )
    finding = AuditFinding.of_loss(
        "service",
        f"{MECHANISM.name} over HTTP, until refused: {strategy.adversary.title}",
        evidence,
        promise.unit,
        promise.loss(found.p, found.q),
        promise.limit,
        exact=max(promise.loss(each.right, each.wrong) for each in transcripts.guesses()),
    )
    return finding if lawful else finding.with_wrong_distribution()


SIGMA, NORM, QUERIES = 0.7, 2, 3
PEOPLE_EPSILON, PEOPLE_DELTA = 30.0, 1e-5
"""A budget that allows every person four in squared votes."""
PLACES = {"one": 0.2, "two": 0.8, "others": 0.5}
"""Both columns of the records."""
PEOPLE = 10
JITTER_WIDTH = 0.02


@dataclass(frozen=True)
class PeopleTranscript:
    """How many more votes for the first class than for the second each query was answered."""

    world: World
    one: int
    two: int
    """The sum of both queries at the second place."""


def audit_people(runs: int, level: float, choice: np.random.Generator) -> Iterator[AuditFinding]:
    """Yield what the answers tell of one person, and whether the service's ledger is sound.

    `runs`: students in each world. `level`: the probability of convicting a service that keeps
    its promise. `choice` picks inputs, never noise.
    """
    with (
        tempfile.TemporaryDirectory(prefix="terrine-audit-") as directory,
        running_service(Path(directory)) as service,
    ):
        seen = _attack(service, runs, choice)
        yield _judge_people("one person's first vote", seen, lambda run: run.one, 1, 1, level / 2)
        yield _judge_people("a person who has spent it", seen, lambda run: run.two, 2, 0, level / 2)
        yield from audit_ledger(service.ledger, "service")


def save_people(world: World, directory: Path, name: str) -> None:
    """Save the people of a world of a group as `ensemble train --kind neighbours` would."""
    rows = [PLACES["one"], PLACES["two"], PLACES["two"], *[PLACES["others"]] * (PEOPLE - 1)]
    label = WORLDS.index(world)
    private = Dataset(
        np.array([[each, each] for each in rows], np.float32),
        np.array([label] * 3 + [person % 2 for person in range(1, PEOPLE)]),
        ("low", "high"),
        InputSpec(shape=(2,), dtype="float32", low=0, high=1),
        name="people",
        groups=np.array([0] * 3 + [*range(1, PEOPLE)]),
    )
    side = (np.arange(20, dtype=np.float32) + 0.5) / 20
    pool = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    neighbours.build(
        private,
        directory,
        name=name,
        public=PublicData.declare("a grid", pool),
        settings=neighbours.NeighbourSettings(near=1, width=3),
    )


def _attack(service: Service, runs: int, choice: np.random.Generator) -> list[PeopleTranscript]:
    terms = {
        "mechanism": {"name": "neighbours", "sigma": SIGMA, "norm": NORM, "queries": QUERIES},
        "epsilon": PEOPLE_EPSILON,
        "delta": PEOPLE_DELTA,
    }
    opened = [
        (world, token, np.random.default_rng(choice.integers(2**63)))
        for world in WORLDS
        for token in service.open_many(f"people-{world}", runs, partial(save_people, world), terms)
    ]
    with ThreadPoolExecutor(CONCURRENT_STUDENTS) as pool:
        return list(pool.map(lambda student: _ask_about_people(service.url, *student), opened))


def _ask_about_people(
    url: str, world: World, token: str, choice: np.random.Generator
) -> PeopleTranscript:
    """Ask three queries in two requests, the last as the first two were answered."""

    def near(place: float, side: float) -> NDArray[np.float32]:
        return np.array([place + side * choice.uniform(0.1, 1) * JITTER_WIDTH, place], np.float32)

    with Client(url, token) as client:
        one, two = _apart(
            client.label(np.stack([near(PLACES["one"], 1), near(PLACES["two"], 1)])).noisy_counts
        )
        (last,) = _apart(
            client.label(near(PLACES["two"], 1 if one + two > 0 else -1)[None]).noisy_counts
        )
    return PeopleTranscript(world, one, two + last)


def _apart(counts: NDArray[np.int64] | None) -> list[int]:
    if counts is None:
        raise ValueError("people are answered with noisy counts")
    return [int(row[0] - row[1]) for row in counts]


def _judge_people(
    subject: str,
    seen: Sequence[PeopleTranscript],
    told: Callable[[PeopleTranscript], int],
    queries: int,
    cast: int,
    level: float,
) -> AuditFinding:
    """Compare how often more votes were told for the first class with the exact law of that.

    `queries`: whose answers are added up. `cast`: by how much the person moves the sum.
    """
    allowance = NORM**2
    each = gdp_squared(NeighbourCounts(SIGMA, 1))
    delta = QUERIES * SAMPLER_DELTA / DELTA_UNITS
    promise = Promise("μ", math.sqrt(allowance * each), delta)
    noise = reduce(np.convolve, [mass(SIGMA)] * (2 * queries))
    law = tuple(float(noise[len(noise) // 2 + 1 - move :].sum()) for move in (cast, -cast))
    here, there = (
        Sample(Counter(told(run) > 0 for run in seen if run.world == world)) for world in WORLDS
    )
    found, lawful = held_to_law(here, there, (True,), (law[0], law[1]), level)
    finding = AuditFinding.of_loss(
        "service",
        f"neighbours over HTTP: {subject}",
        f"{len(seen)} students sent {QUERIES} queries each, one of two requests after the other; "
        f"more for “low”: ≥ {found.p:.3g} where the person is (exactly {law[0]:.3g}), ≤ "
        f"{found.q:.3g} where another is (exactly {law[1]:.3g}; {here.size} runs each)",
        promise.unit,
        promise.loss(found.p, found.q),
        promise.limit,
        exact=promise.loss(*law),
    )
    return finding if lawful else finding.with_wrong_distribution()
