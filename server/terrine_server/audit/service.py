"""Attack the whole service: HTTP, voting, mechanism, ledger and refusals.

Two worlds differ in one teacher. In each run a student with its own project queries one of them
until it is refused, always with the input that best distinguishes the worlds given its last answer.
From a third of the runs the attacker learns which answers indicate which world, and a threshold.
The other runs measure how often the resulting guess is right.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from terrine_client import BudgetExhausted, Client
from terrine_protocol import ProjectOpen
from terrine_server.audit.evidence import Promise, Sample, limits
from terrine_server.audit.findings import AuditFinding
from terrine_server.audit.ledger import audit_books
from terrine_server.audit.world import WORLDS, Service, World, input_with, running_service
from terrine_server.privacy.accounting.units import COST_UNITS, DELTA_UNITS

MECHANISM = {"name": "confident_gnmax", "threshold": 3, "sigma1": 4.0, "sigma2": 1.0}
EPSILON, DELTA = 14.0, 1e-5
"""A budget of a few, very revealing answers, which proves the most in a few seconds of work."""
SPLIT = 5
"""Common votes for class 1 at which the one differing teacher decides the winner."""
STUDENTS = 4
"""Students that send queries at the same time."""

Answer = tuple[int, str, int]
"""The query (its common votes for class 1), the outcome, and the label."""


@dataclass(frozen=True)
class Attack:
    """One student's whole interaction, up to its refusal."""

    world: World
    answers: tuple[Answer, ...]


def audit_service(runs: int, level: float, choice: np.random.Generator) -> Iterator[AuditFinding]:
    """Yield the measured loss and its budget, and whether the attacked service's books are sound.

    `runs`: students in each world. `level`: the probability of convicting a service that keeps its
    budget. `choice` picks inputs, never noise.
    """
    with (
        tempfile.TemporaryDirectory(prefix="terrine-audit-") as directory,
        running_service(Path(directory)) as service,
    ):
        promise, seen = attack(service, runs, choice)
        yield _judge(promise, seen, level)
        yield from audit_books(service.ledger, "service")


def attack(
    service: Service, runs: int, choice: np.random.Generator
) -> tuple[Promise, list[Attack]]:
    """Let `runs` students in each world send queries until they are refused."""
    opened: list[tuple[World, str, np.random.Generator]] = []
    for world in WORLDS:
        ensemble, room = "", 0
        for number in range(runs):
            if not room:
                ensemble = f"{world}-{number}"
                service.register(world, ensemble)
            project = ProjectOpen.model_validate(
                {
                    "name": f"{world}-project-{number}",
                    "ensemble": ensemble,
                    "mechanism": MECHANISM,
                    "epsilon": EPSILON,
                    "delta": DELTA,
                }
            )
            token = service.open(project)
            if not room:
                record = service.ledger.project(project.name)
                room = record.ensemble.cap // record.terms.cap_budget
            room -= 1
            opened.append((world, token, np.random.default_rng(choice.integers(2**63))))
    terms = record.terms
    with ThreadPoolExecutor(STUDENTS) as pool:
        seen = list(
            pool.map(lambda student: Attack(student[0], _ask(service.url, *student[1:])), opened)
        )
    mu = math.sqrt(terms.budget / COST_UNITS)
    return Promise("μ", mu, terms.delta_budget / DELTA_UNITS), seen


def _ask(url: str, token: str, choice: np.random.Generator) -> tuple[Answer, ...]:
    """Query where the worlds differ most; after a label, where only the other one is a surprise."""
    answers: list[Answer] = []
    votes = SPLIT
    with Client(url, token) as client:
        while True:
            try:
                labels = client.label(input_with(votes, choice))
            except BudgetExhausted:
                return tuple(answers)
            label = int(labels.labels[0])
            answers.append((votes, str(labels.outcomes[0]), label))
            if label >= 0:
                votes = SPLIT + (1 if label else -1)


def _judge(promise: Promise, seen: Sequence[Attack], level: float) -> AuditFinding:
    """Learn from every third run and measure on the rest."""
    lessons = seen[::3]
    trial = [run for number, run in enumerate(seen) if number % 3]
    weights = _weights(lessons)
    guess = max(
        (
            Guess(world, score)
            for world in WORLDS
            for score in {_score(weights, run, world) for run in lessons}
        ),
        key=lambda guess: _proven(promise, lessons, weights, guess, level)[0],
    )
    measured, p, q = _proven(promise, trial, weights, guess, level)
    queries = np.array([len(run.answers) for run in seen])
    epsilon = max(0.0, math.log(max(p - DELTA, q) / q))
    return AuditFinding.of_loss(
        "service",
        "confident_gnmax over HTTP, until refused",
        f"{len(seen)} students sent {queries.sum():,} queries, {queries.min()} to {queries.max()} "
        f"each; the attacker guesses “{guess.world}” in ≥ {p:.3g} of runs where that is right and "
        f"≤ {q:.3g} where it is wrong ({len(trial) // 2} runs each); at δ = {DELTA:g}: "
        f"ε ≥ {epsilon:.3g}, budget {EPSILON:g}",
        promise.unit,
        measured,
        promise.limit,
    )


@dataclass(frozen=True)
class Guess:
    """The attacker guesses `world` for runs that score at least `score` for it."""

    world: World
    score: float


Weights = dict[Answer, float]
"""How strongly an answer indicates "here", as the logarithm of a likelihood ratio."""


def _weights(lessons: Sequence[Attack]) -> Weights:
    """Return the weight of each answer, from its frequency in each world for the same query."""
    seen: dict[World, Counter[Answer]] = {"here": Counter(), "there": Counter()}
    for run in lessons:
        seen[run.world].update(run.answers)
    kinds = sorted({answer for counter in seen.values() for answer in counter}, key=repr)

    def share(world: World, answer: Answer) -> float:
        queries = sum(count for other, count in seen[world].items() if other[0] == answer[0])
        possible = sum(other[0] == answer[0] for other in kinds)
        return (seen[world][answer] + 0.5) / (queries + 0.5 * possible)

    return {answer: math.log(share("here", answer) / share("there", answer)) for answer in kinds}


def _score(weights: Weights, run: Attack, world: World) -> float:
    """Return how strongly a run indicates `world`."""
    score = sum(weights.get(answer, 0.0) for answer in run.answers)
    return score if world == "here" else -score


def _proven(
    promise: Promise, runs: Sequence[Attack], weights: Weights, guess: Guess, level: float
) -> tuple[float, float, float]:
    """Return the loss that the guess proves, and its limits when right and when wrong."""
    guesses = {True: Counter[Hashable](), False: Counter[Hashable]()}
    for run in runs:
        guesses[run.world == guess.world][_score(weights, run, guess.world) >= guess.score] += 1
    right, wrong = Sample(guesses[True]), Sample(guesses[False])
    found = limits(right, wrong, (True,), level)
    return promise.loss(found.p, found.q), found.p, found.q
