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
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from terrine_client import BudgetExhausted, Client
from terrine_protocol import Outcome
from terrine_server.audit.evidence import Promise, Sample, held_to_law, limits
from terrine_server.audit.ledger import audit_books
from terrine_server.audit.transcripts import Answer, Transcripts, outcomes
from terrine_server.audit.world import (
    ADVERSARIES,
    TEACHERS,
    WORLDS,
    Adversary,
    Region,
    Service,
    World,
    running_service,
    save_world,
)
from terrine_server.findings import AuditFinding
from terrine_server.privacy import Terms, quote
from terrine_server.privacy.accounting.units import COST_UNITS, DELTA_UNITS
from terrine_server.privacy.mechanisms.confident_gnmax import ConfidentGNMax

MECHANISM = ConfidentGNMax(TEACHERS, 2, threshold=3, sigma1=4.0, sigma2=2.0)
EPSILON, DELTA = 14.0, 1e-5
"""A budget of a dozen revealing answers, which proves the most in a few seconds of work."""
AT_ONCE = 4
"""Queries of a request."""
STUDENTS = 4
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
        votes = choice.choice([*shares], size=AT_ONCE, p=[*shares.values()])
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
    """Yield the loss to each adversary and its budget, and whether the service's books are sound.

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
        yield from audit_books(service.ledger, "service")


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
    with ThreadPoolExecutor(STUDENTS) as pool:
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
    transcripts = Transcripts.of(terms, strategy.laws, strategy.following, AT_ONCE)
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
    return finding if lawful else finding.not_of_its_law()
