"""The whole service, attacked: HTTP, voting, mechanism, ledger and refusals in between.

Two worlds differ in one teacher. In each run a student opens an account in one of them, asks what
tells the worlds apart best - what it asks next depends on what it was told - and goes on until it
is refused. A third of the runs teaches the attacker which answers speak for which world, and where
to draw the line; the others count how often that line is right.
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
"""A budget of a few answers that tell much each: so one run of a few seconds' work proves most."""
SPLIT = 5
"""Common votes for class 1 where the one teacher decides who wins."""
STUDENTS = 4
"""Students that ask at the same time."""

Told = tuple[int, str, int]
"""What the student asked about (common votes for class 1), the outcome, and the label."""


@dataclass(frozen=True)
class Run:
    """One student's whole interaction, up to its refusal."""

    world: World
    told: tuple[Told, ...]


def audit_service(runs: int, level: float, choice: np.random.Generator) -> Iterator[AuditFinding]:
    """Yield the loss found beside the budget, and whether the attacked service's books are whole.

    `runs`: students in each world. `level`: chance of convicting a service that keeps its budget.
    `choice` picks inputs, never noise.
    """
    with (
        tempfile.TemporaryDirectory(prefix="terrine-audit-") as directory,
        running_service(Path(directory)) as service,
    ):
        promise, seen = attack(service, runs, choice)
        yield _judge(promise, seen, level)
        yield from audit_books(service.ledger, "service")


def attack(service: Service, runs: int, choice: np.random.Generator) -> tuple[Promise, list[Run]]:
    """Let `runs` students in each world ask until they are refused."""
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
            pool.map(lambda student: Run(student[0], _ask(service.url, *student[1:])), opened)
        )
    mu = math.sqrt(terms.budget / COST_UNITS)
    return Promise("μ", mu, terms.delta_budget / DELTA_UNITS), seen


def _ask(url: str, token: str, choice: np.random.Generator) -> tuple[Told, ...]:
    """Ask where the worlds differ most; after an answer, where only the other would surprise."""
    told: list[Told] = []
    votes = SPLIT
    with Client(url, token) as client:
        while True:
            try:
                labels = client.label(input_with(votes, choice))
            except BudgetExhausted:
                return tuple(told)
            label = int(labels.labels[0])
            told.append((votes, str(labels.outcomes[0]), label))
            if label >= 0:
                votes = SPLIT + (1 if label else -1)


def _judge(promise: Promise, seen: Sequence[Run], level: float) -> AuditFinding:
    """Learn from every third run, and measure on the rest."""
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
    asked = np.array([len(run.told) for run in seen])
    epsilon = max(0.0, math.log(max(p - DELTA, q) / q))
    return AuditFinding.of_loss(
        "service",
        "confident_gnmax over HTTP, until refused",
        f"{len(seen)} students asked {asked.sum():,} queries, {asked.min()} to {asked.max()} each; "
        f"“{guess.world}” is said in ≥ {p:.3g} of cases where it is so and ≤ {q:.3g} where not "
        f"({len(trial) // 2} each); at δ = {DELTA:g}: ε ≥ {epsilon:.3g}, budget {EPSILON:g}",
        promise.unit,
        measured,
        promise.limit,
    )


@dataclass(frozen=True)
class Guess:
    """The attacker says `world` to runs that score at least `score` for it."""

    world: World
    score: float


Weights = dict[Told, float]
"""How much an answer speaks for "here", as the logarithm of a likelihood ratio."""


def _weights(lessons: Sequence[Run]) -> Weights:
    """Return what each answer says, from how often it came in each world to the same question."""
    seen: dict[World, Counter[Told]] = {"here": Counter(), "there": Counter()}
    for run in lessons:
        seen[run.world].update(run.told)
    kinds = sorted({told for counter in seen.values() for told in counter}, key=repr)

    def share(world: World, told: Told) -> float:
        asked = sum(count for other, count in seen[world].items() if other[0] == told[0])
        answers = sum(other[0] == told[0] for other in kinds)
        return (seen[world][told] + 0.5) / (asked + 0.5 * answers)

    return {told: math.log(share("here", told) / share("there", told)) for told in kinds}


def _score(weights: Weights, run: Run, world: World) -> float:
    """Return how much a run speaks for `world`."""
    score = sum(weights.get(told, 0.0) for told in run.told)
    return score if world == "here" else -score


def _proven(
    promise: Promise, runs: Sequence[Run], weights: Weights, guess: Guess, level: float
) -> tuple[float, float, float]:
    """Return the loss that the guess proves, and its limits when right and when wrong."""
    said = {True: Counter[Hashable](), False: Counter[Hashable]()}
    for run in runs:
        said[run.world == guess.world][_score(weights, run, guess.world) >= guess.score] += 1
    right, wrong = Sample(said[True]), Sample(said[False])
    found = limits(right, wrong, (True,), level)
    return promise.loss(found.p, found.q), found.p, found.q
