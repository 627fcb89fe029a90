"""Attack a service in which people vote (`neighbours`): real records, real accounts, over HTTP.

One of ten people differs between the worlds: all their records have the other class. The allowance
is four. Near one place the person has one record, near another two, which cast a vote of squared
norm four. A student asks about the first place, and about the second in the same request; then it
chooses by these answers on which side of the second it asks a last time. The person takes part in
the first query alone, after which four more do not fit. So the first answer may tell of them what
one vote does. The last two must tell nothing at all: whatever they tell, accounts were overspent,
judged once a request, not kept, or given back.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from terrine_client import Client
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.maps import PublicData
from terrine_models.teachers import neighbours
from terrine_server.audit.evidence import Promise, Sample, held_to_law
from terrine_server.audit.laws import mass
from terrine_server.audit.ledger import audit_books
from terrine_server.audit.world import WORLDS, Service, World, running_service
from terrine_server.findings import AuditFinding
from terrine_server.privacy import NeighbourCounts, gdp_squared
from terrine_server.privacy.accounting.units import DELTA_UNITS, SAMPLER_DELTA

SIGMA, NORM, QUERIES = 0.7, 2, 3
EPSILON, DELTA = 30.0, 1e-5
"""A budget that allows every person four in squared votes."""
PLACES = {"one": 0.2, "two": 0.8, "others": 0.5}
"""Both columns of the records."""
PEOPLE = 10
JITTER = 0.02
STUDENTS = 4


@dataclass(frozen=True)
class PeopleTranscript:
    """How many more votes for the first class than for the second each query was answered."""

    world: World
    one: int
    two: int
    """The sum of both queries at the second place."""


def audit_people(runs: int, level: float, choice: np.random.Generator) -> Iterator[AuditFinding]:
    """Yield what the answers tell of one person, and whether the service's books are sound.

    `runs`: students in each world. `level`: the probability of convicting a service that keeps
    its promise. `choice` picks inputs, never noise.
    """
    with (
        tempfile.TemporaryDirectory(prefix="terrine-audit-") as directory,
        running_service(Path(directory)) as service,
    ):
        seen = _attack(service, runs, choice)
        yield _judge("one person's first vote", seen, lambda run: run.one, 1, 1, level / 2)
        yield _judge("a person who has spent it", seen, lambda run: run.two, 2, 0, level / 2)
        yield from audit_books(service.ledger, "service")


def save_people(world: World, directory: Path, name: str) -> None:
    """Save the people of a world as `terrine neighbours build --group` would."""
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
        "epsilon": EPSILON,
        "delta": DELTA,
    }
    opened = [
        (world, token, np.random.default_rng(choice.integers(2**63)))
        for world in WORLDS
        for token in service.open_many(f"people-{world}", runs, partial(save_people, world), terms)
    ]
    with ThreadPoolExecutor(STUDENTS) as pool:
        return list(pool.map(lambda student: _ask(service.url, *student), opened))


def _ask(url: str, world: World, token: str, choice: np.random.Generator) -> PeopleTranscript:
    """Ask three queries in two requests, the last as the first two were answered."""

    def near(place: float, side: float) -> NDArray[np.float32]:
        return np.array([place + side * choice.uniform(0.1, 1) * JITTER, place], np.float32)

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


def _judge(
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
    return finding if lawful else finding.not_of_its_law()
