"""Compare what `release` really does, with real randomness, with its price.

For every mechanism and every pair of neighbouring votes the production code runs many times. The
first half of the draws picks the most revealing pairs and events, the second half judges them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from terrine_addons.audit.evidence import ConfidenceLimits, Promise, Sample, events, limits
from terrine_addons.audit.findings import AuditFinding
from terrine_server.privacy import (
    GaussianArgmax,
    GaussianNoisyCounts,
    Histograms,
    LaplaceArgmax,
    Mechanism,
    NeighbourCounts,
    Neighbours,
    Released,
    Rule,
    Sums,
    Units,
    VoteOutcome,
    build_mechanism,
    gdp_squared,
    quote,
    rdp,
)
from terrine_server.privacy.mechanisms import MECHANISMS
from terrine_server.privacy.mechanisms.registration import AuditCase, Request, Votes, single_query
from terrine_server.privacy.noise import NoiseTable, discrete_gaussian, discrete_laplace
from terrine_server.privacy.numbers import COST_UNITS, DELTA_UNITS, SAMPLER_DELTA
from terrine_server.privacy.releases import MAX_RELEASED

# The mass that a table may omit on one side, bounded by the density at its end.
OMITTED_MASS = 2.0**-180
DRAWS_AT_A_TIME = 1_000_000


@dataclass(frozen=True)
class NoiseAudit:
    """A distribution: the production sampler, and its unnormalised definition.

    `draw` returns so many draws, or a few more, int64; None: those of the sampler.
    """

    title: str
    table: Callable[[], NoiseTable]
    weight: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    draw: Callable[[int], NDArray[np.int64]] | None = None


# Votes whose noisy counts are released, to see the noise in them.
EXAMPLE_COUNTS = (20, 10, 7, 3, 0)


def _draw_counts(draws: int) -> NDArray[np.int64]:
    """Return what `noisy_votes` adds to the votes of every class."""
    spec = {"name": "noisy_votes", "sigma": 4.0}
    mechanism = build_mechanism(spec, teachers=sum(EXAMPLE_COUNTS), classes=len(EXAMPLE_COUNTS))
    votes = np.tile(np.array(EXAMPLE_COUNTS), (-(-draws // len(EXAMPLE_COUNTS)), 1))
    counts = mechanism.release(votes).counts
    if counts is None:
        raise TypeError("`noisy_votes` released no counts")
    return np.asarray(counts - votes).ravel()


def _draw_histograms(draws: int) -> NDArray[np.int64]:
    """Return what is added to every cell of the histograms that a project begins with."""
    cells = (len(EXAMPLE_COUNTS),) * -(-min(draws, MAX_RELEASED) // len(EXAMPLE_COUNTS))
    release = Histograms(4.0, cells, schema_sha256="00" * 32)
    histograms = [np.array(EXAMPLE_COUNTS)] * len(cells)
    told = [release.add_noise(histograms) for _ in range(-(-draws // sum(cells)))]
    return np.asarray(np.array(told, np.int64) - np.array(EXAMPLE_COUNTS)).ravel()


def _draw_sums(draws: int) -> NDArray[np.int64]:
    """Return what is added to every sum of features that a project begins with."""
    features = 9  # so few that the class counts are a tenth of all
    release = Sums(4.0, 100, features, len(EXAMPLE_COUNTS), map_sha256="00" * 32)
    sums = np.tile(np.array(EXAMPLE_COUNTS, np.int64), (features + 1, 1))
    told = [release.add_noise(sums) for _ in range(-(-draws // sums.size))]
    return np.asarray(np.array(told) - sums).ravel()


NOISES = (
    NoiseAudit(
        "discrete Gaussian, σ = 4",
        lambda: discrete_gaussian(4.0),
        lambda k: np.exp(-(k**2) / (2 * 4.0**2)),
    ),
    NoiseAudit(
        "discrete Laplace, γ = 0.5",
        lambda: discrete_laplace(0.5),
        lambda k: np.exp(-0.5 * np.abs(k)),
    ),
    NoiseAudit(
        "counts of `noisy_votes` less the votes, σ = 4",
        lambda: discrete_gaussian(4.0),
        lambda k: np.exp(-(k**2) / (2 * 4.0**2)),
        _draw_counts,
    ),
    NoiseAudit(
        "histograms that a project begins with less the cells, σ = 4",
        lambda: discrete_gaussian(4.0),
        lambda k: np.exp(-(k**2) / (2 * 4.0**2)),
        _draw_histograms,
    ),
    NoiseAudit(
        "sums of features that a project begins with less the sums, σ = 4",
        lambda: discrete_gaussian(4.0),
        lambda k: np.exp(-(k**2) / (2 * 4.0**2)),
        _draw_sums,
    ),
)


def audit_noise(draws: int, level: float) -> Iterator[AuditFinding]:
    """Yield a finding for each kind of noise; each is a false alarm with probability ≤ level/2."""
    for noise in NOISES:
        problems = [*_ends(noise), *_tails(noise, draws, level / len(NOISES))]
        yield AuditFinding(
            "noise",
            noise.title,
            "exceeded" if problems else "holds",
            "; ".join(problems) or f"{draws:,} draws: all tails as defined, to the table's end",
        )


def _ends(noise: NoiseAudit) -> Iterator[str]:
    table = noise.table()
    lowest, highest = (int(table.sample((1,), entropy)[0]) for entropy in (_zeros, _ones))
    if (lowest, highest) != (-table.reach, table.reach):
        yield f"the ends of the table are never drawn: the extremes are {lowest} and {highest}"
    mass = float(noise.weight(np.array([float(table.reach)]))[0])
    if mass > OMITTED_MASS:
        yield f"the table ends at {table.reach}, where a mass of 2^{math.log2(mass):.0f} is missing"


def _zeros(count: int) -> bytes:
    return b"\x00" * count


def _ones(count: int) -> bytes:
    return b"\xff" * count


def _tails(noise: NoiseAudit, draws: int, level: float) -> Iterator[str]:
    """Compare the tails of both sides with their definition; yield one misfit per side at most."""
    reach = noise.table().reach
    weights = noise.weight(np.arange(-reach, reach + 1, dtype=np.float64))
    exact = np.cumsum(weights / weights.sum())[:reach]  # Pr[Y ≤ −reach], …, Pr[Y ≤ −1]
    seen = np.zeros(2 * reach + 1, dtype=np.int64)
    for start in range(0, draws, DRAWS_AT_A_TIME):
        size = min(DRAWS_AT_A_TIME, draws - start)
        drawn = noise.table().sample((size,)) if noise.draw is None else noise.draw(size)[:size]
        # Draws beyond the table are counted at its ends: they are too far out for any tail.
        seen += np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=2 * reach + 1)
    each = level / (2 * reach)
    for sign, side in (("≤ −", seen), ("≥ ", seen[::-1])):
        hits = np.cumsum(side)[:reach]
        low = np.where(hits > 0, beta.ppf(each / 2, hits, draws - hits + 1), 0.0)
        high = np.asarray(beta.isf(each / 2, hits + 1, draws - hits))
        misfits = np.flatnonzero((exact < low) | (exact > high))
        if len(misfits):
            k = int(misfits[-1])
            yield (
                f"Pr[Y {sign}{reach - k}] is {exact[k]:.3g} by definition, but between "
                f"{low[k]:.3g} and {high[k]:.3g} in {draws:,} draws"
            )


RANDOM_PAIRS = 4
# How many queries people are asked beyond what they may answer. More would hide what they do.
EXTRA_QUERIES = 1


class Case(AuditCase):
    """What a mechanism wants to be tried on, with the mechanism and random pairs."""

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.worst[0][0][0]) if self.worst else 2

    def build(self) -> Mechanism:
        """Return the mechanism, built as for a project."""
        return build_mechanism(self.spec, teachers=self.teachers, classes=self.classes)

    def neighbours(self, choice: np.random.Generator) -> list[tuple[Request, Request]]:
        """Return the pairs to try: the worst known pairs, and some drawn by `choice`."""
        pairs = list(self.worst)
        if self.allowance is not None:
            return [*pairs, *_replace_person(self.build(), self.allowance)]
        for _ in range(RANDOM_PAIRS if self.classes > 2 else 0):
            votes = choice.multinomial(self.teachers - 1, [1 / self.classes] * self.classes)
            one, other = choice.choice(self.classes, size=2, replace=False)
            pairs.append(single_query(_plus_one(votes, one), _plus_one(votes, other)))
        return pairs


def _plus_one(votes: np.ndarray, winner: int) -> Votes:
    return tuple(int(count) + (j == winner) for j, count in enumerate(votes))


def _replace_person(
    mechanism: Mechanism, allowance: int
) -> tuple[tuple[Request, Request], tuple[Request, Request]]:
    """Return what two people cast on more queries than are allowed, if one is replaced.

    By somebody of the other class, and by nobody. The mechanism itself decides who takes part.
    """
    if not isinstance(mechanism, Neighbours):
        raise TypeError(f"nobody has an account in {mechanism.name}")

    def cast(labels: Sequence[int]) -> Request:
        units = np.arange(len(labels), dtype=np.int32)
        layout = Units.of(units, np.array(labels, np.int16), mechanism.teachers)
        near = np.ones((allowance + EXTRA_QUERIES, len(labels)), np.uint8)
        accounts = np.zeros(mechanism.teachers, np.uint32)
        counts, _ = mechanism.cast(near, layout, accounts, allowance)
        return tuple((int(one), int(other)) for one, other in counts)

    return (cast([0, 0]), cast([0, 1])), (cast([0, 0]), cast([0]))


CASES = tuple(Case(**vars(case)) for kind in MECHANISMS.values() for case in kind.audit_cases)

# How many events reach the second half. With more, each would have less of the confidence.
FINALIST_EVENTS = 3
# Of hundreds of events, a more lenient level would now and then prefer rare ones, which were seen
# by luck and of which the second half proves nothing. It is not part of the audit's own level.
RANKING_LEVEL = 1e-12
# The Rényi divergence at this order is the pure ε.
INFINITE = 1e12
# How many queries one call releases.
QUERIES_AT_A_TIME = 250_000

# The outcome and label of each query of a request; −1 if there is no label. Where noisy counts of
# two classes are released, in place of the label twice the first less the second, plus the label.
Seen = tuple[tuple[str, int], ...]
# A set of what is seen.
Event = tuple[Hashable, ...]


@dataclass(frozen=True)
class Aspect:
    """Something that the mechanism reveals, and what is charged for it."""

    title: str
    promise: Promise
    view: Callable[[Seen], Hashable]
    """The part of an outcome that belongs to this aspect."""
    events: Callable[[Iterable[Hashable]], Iterator[Event]] = events
    """The events to try, given what was seen."""
    named: Callable[[Event], str] = field(
        default=lambda event: " or ".join(map(_name_outcome, event))
    )


@dataclass(frozen=True)
class SuspectEvent:
    """An event that may be likelier on `one`, compared with `other`, than its price allows."""

    one: Request
    other: Request
    event: Event


def counted_events(seen: Iterable[Hashable]) -> Iterator[Event]:
    """Yield, for noisy counts, every set of differences up to one and from one on; and each label.

    By Neyman and Pearson, no other events of the counts tell neighbours better apart. A label that
    is not that of the counts would tell more.
    """
    known = sorted(set(cast("Iterable[int]", seen)))
    for k in range(1, len(known)):
        yield tuple(known[:k])
        yield tuple(known[k:])
    for label in (0, 1):
        if with_label := tuple(number for number in known if number % 2 == label):
            yield with_label


def aspects(mechanism: Mechanism) -> list[Aspect]:
    """Return what each price on the mechanism's price list covers.

    The price of the most expensive outcome covers everything that a query reveals. If an outcome
    costs less, its price must cover the bit that distinguishes it from an answer.
    """
    terms = quote(mechanism, epsilon=100.0, delta=0.5)  # the prices do not depend on the budget
    kinds = mechanism.events().values()
    if any(isinstance(event, LaplaceArgmax) for event in kinds):
        return [Aspect("", _divergence(mechanism), lambda seen: seen)]
    if terms.rule.name == "rdp":
        epsilon = max(float(rdp(event, INFINITE)) for event in kinds)
        return [Aspect("", Promise("ε", epsilon), lambda seen: seen)]

    def promise(outcome: VoteOutcome) -> Promise:
        price = terms.prices[outcome]
        return Promise("μ", math.sqrt(price.cost / COST_UNITS), price.delta / DELTA_UNITS)

    if any(isinstance(event, GaussianNoisyCounts) for event in kinds):
        every = promise(VoteOutcome.ANSWERED)
        return [Aspect("", every, lambda seen: seen[0][1], counted_events, _name_counts)]
    covered = [Aspect("", promise(VoteOutcome.ANSWERED), lambda seen: seen)]
    cheaper = [o for o, price in terms.prices.items() if price.cost < terms.worst.cost]
    if cheaper:
        cheapest = min(cheaper, key=lambda outcome: terms.prices[outcome].cost)
        covered.append(
            Aspect(": whether it answers", promise(cheapest), lambda seen: seen[0][0] == "answered")
        )
    if any(isinstance(event, GaussianArgmax) for event in kinds):
        covered.append(Aspect(" in Rényi DP", _divergence(mechanism), lambda seen: seen))
    return covered


def _divergence(mechanism: Mechanism) -> Promise:
    terms = quote(mechanism, 100.0, 0.5, rule=Rule("rdp", 2.0))
    return Promise("D₂", terms.worst.cost / COST_UNITS)


def audit_mechanisms(
    draws: int, level: float, choice: np.random.Generator, cases: Sequence[Case] = CASES
) -> Iterator[AuditFinding]:
    """Yield a finding for every aspect of every case.

    `draws`: releases for each vote vector in each half. `level`: the probability that any finding
    convicts a mechanism that keeps its price. `choice` picks votes, never noise.
    """
    plan = [(case, _aspects_of(case)) for case in cases]
    each = level / sum(len(parts) for _, parts in plan)
    for case, parts in plan:
        yield from _audit(case, parts, draws, each, choice)


def _aspects_of(case: Case) -> list[Aspect]:
    if case.allowance is not None:
        return [_of_person(case.build(), case.allowance)]
    if case.claim is not None:
        return [Aspect("", Promise("ε", case.claim), lambda seen: seen)]
    return aspects(case.build())


def _of_person(mechanism: Mechanism, allowance: int) -> Aspect:
    """Return what all queries together may reveal of one person, whom another replaces.

    Each query that they take part in moves the difference of the counts the same way, so nothing
    tells more of them than the sum of all.
    """
    (event,) = mechanism.events().values()
    if not isinstance(event, NeighbourCounts):
        raise TypeError(f"nobody has an account in {mechanism.name}")
    each = gdp_squared(replace(event, norm=1))
    queries = allowance + EXTRA_QUERIES
    promise = Promise("μ", math.sqrt(allowance * each), queries * SAMPLER_DELTA / DELTA_UNITS)

    def view(seen: Seen) -> int:
        return 2 * sum(number // 2 for _, number in seen) + seen[0][1] % 2

    return Aspect("", promise, view, counted_events, _name_counts)


def _audit(
    case: Case, parts: Sequence[Aspect], draws: int, level: float, choice: np.random.Generator
) -> Iterator[AuditFinding]:
    mechanism, pairs = case.build(), case.neighbours(choice)
    first = {votes: observe(mechanism, case, votes, draws) for pair in pairs for votes in pair}
    second: dict[Request, Counter[Seen]] = {}
    for aspect in parts:
        suspects = _suspect(aspect, pairs, first)
        for votes in {v for suspect in suspects for v in (suspect.one, suspect.other)}:
            if votes not in second:
                second[votes] = observe(mechanism, case, votes, draws)
        yield _judge(case, aspect, suspects, second, level)


def observe(mechanism: Mechanism, case: Case, request: Request, draws: int) -> Counter[Seen]:
    """Count the outcomes of `draws` requests with the same votes and fresh system randomness.

    One call releases many requests in sequence; the first `draws` of them are counted.
    """
    length = len(request)
    size = min(draws, QUERIES_AT_A_TIME // length)
    votes = np.tile(np.array(request), (size, 1))
    student = None if case.student is None else np.tile(case.student, (len(votes), 1))
    possible = list(mechanism.events())
    seen: Counter[Seen] = Counter()
    while (missing := draws - seen.total()) > 0:
        released = mechanism.release(votes, student)
        shown = _encode_released(released)
        low = int(shown.min())
        values = int(shown.max()) - low + 1
        width = len(possible) * values
        kinds = np.zeros_like(shown)
        for i, kind in enumerate(possible[1:], start=1):
            kinds[released.outcomes == kind] = i
        codes = (kinds * values + shown - low).reshape(size, length)
        _, first, counts = np.unique(
            (codes @ width ** np.arange(length))[:missing], return_index=True, return_counts=True
        )
        for start, count in zip(first * length, counts, strict=True):
            rows = range(start, start + length)
            outcome = tuple((str(released.outcomes[r]), int(shown[r])) for r in rows)
            seen[outcome] += int(count)
    return seen


def _encode_released(released: Released) -> NDArray[np.int64]:
    """Return the whole number of `Seen` for each row, int64[B]."""
    if released.counts is None:
        return released.labels
    return np.asarray(2 * (released.counts[:, 0] - released.counts[:, 1]) + released.labels)


def _suspect(
    aspect: Aspect,
    pairs: Sequence[tuple[Request, Request]],
    seen: dict[Request, Counter[Seen]],
) -> list[SuspectEvent]:
    """Return the events for which these draws prove the largest loss, at `RANKING_LEVEL`."""
    views = {votes: _view_sample(aspect, counter) for votes, counter in seen.items()}
    suspicions = [
        SuspectEvent(one, other, event)
        for pair in pairs
        for one, other in (pair, pair[::-1])
        for event in aspect.events(views[one].seen | views[other].seen)
    ]

    def strength(suspect: SuspectEvent) -> float:
        one, other = views[suspect.one], views[suspect.other]
        found = limits(one, other, suspect.event, RANKING_LEVEL)
        return aspect.promise.loss(found.p, found.q)

    return nlargest(FINALIST_EVENTS, suspicions, key=strength)


def _judge(
    case: Case,
    aspect: Aspect,
    suspects: Sequence[SuspectEvent],
    seen: dict[Request, Counter[Seen]],
    level: float,
) -> AuditFinding:
    def proven(suspect: SuspectEvent) -> tuple[float, SuspectEvent, ConfidenceLimits]:
        one, other = (
            _view_sample(aspect, seen[suspect.one]),
            _view_sample(aspect, seen[suspect.other]),
        )
        found = limits(one, other, suspect.event, level / len(suspects))
        return aspect.promise.loss(found.p, found.q), suspect, found

    if not suspects:  # the same outcome everywhere
        measured, evidence = 0.0, "always the same outcome"
    else:
        measured, suspect, found = max(map(proven, suspects), key=lambda item: item[0])
        evidence = _evidence(aspect, suspect, found)
    return AuditFinding.of_loss(
        "mechanisms",
        case.title + aspect.title,
        evidence,
        aspect.promise.unit,
        measured,
        aspect.promise.limit,
        claimed=case.claim is not None,
    )


def _view_sample(aspect: Aspect, counter: Counter[Seen]) -> Sample:
    viewed: Counter[Hashable] = Counter()
    for outcome, count in counter.items():
        viewed[aspect.view(outcome)] += count
    return Sample(viewed)


def _evidence(aspect: Aspect, suspect: SuspectEvent, found: ConfidenceLimits) -> str:
    promise, event = aspect.promise, aspect.named(suspect.event)
    one, other = (
        ", ".join("-".join(map(str, votes)) for votes in request)
        for request in (suspect.one, suspect.other)
    )
    frequencies = f"{event}: ≥ {found.p:.4g} on {one}, ≤ {found.q:.4g} on {other}"
    epsilon, measured, promised = promise.epsilon_delta(found.p, found.q)
    if promised == measured == 0:  # pure DP, and it holds, or Rényi DP
        return frequencies
    return f"{frequencies}; at ε = {epsilon:.3g}: δ ≥ {measured:.3g}, promised {promised:.3g}"


def _name_outcome(outcome: Hashable) -> str:
    if isinstance(outcome, bool):
        return "answered" if outcome else "not answered"
    queries = cast("Seen", outcome)
    return ", ".join(name if label < 0 else f"{name} {label}" for name, label in queries)


def _name_counts(event: Event) -> str:
    numbers = cast("tuple[int, ...]", event)
    labels = " or ".join(map(str, sorted({number % 2 for number in numbers})))
    return f"answered {labels}, counts {min(numbers) // 2} to {max(numbers) // 2} apart"
