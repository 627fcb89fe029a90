"""Choose the rule and the prices under which a project is opened, before its first query.

Every rule that is considered is sound, and the choice follows from public parameters and a public
expectation of what a mechanism answers, so nothing depends on its being right: a wrong expectation
costs answers, not privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from terrine_server.planning.expected import expected_pass_rate
from terrine_server.privacy.budget import ConsideredRule, RuleChoice, Terms
from terrine_server.privacy.curves import rdp
from terrine_server.privacy.events import ConfidentMax, CostEvent, GaussianArgmax
from terrine_server.privacy.joint import (
    OutcomeCosts,
    costs_by_share,
    costs_up_to,
    counts_excess,
    release_cells,
    too_high,
)
from terrine_server.privacy.mechanisms.base import Mechanism, VoteOutcome
from terrine_server.privacy.mechanisms.neighbours import Neighbours
from terrine_server.privacy.mechanisms.registration import JointlyPriced
from terrine_server.privacy.parameters import MIN_ANSWER_SHARE, ParameterError, within
from terrine_server.privacy.quoting import cap_order, quote, split_delta
from terrine_server.privacy.rules import Rule, search_order

MAX_OUTCOME_COST = 3.0
"""The most that any outcome costs, in prices for all outcomes if an answer told all noisy counts.

The cheaper answers are, the more expensive abstentions, and the fewer queries are certain if all of
them abstain: at least a third of those that one price for all, at that of all noisy counts, would
buy. It is not a multiple of what is charged: then a better bound on what a label tells, by which
every pair of prices that was sound remains so, would forbid some of them, and buy fewer answers.
"""

ANSWER_SHARES = tuple(
    float(f"{share:.3g}") for share in np.geomspace(MAX_OUTCOME_COST, MIN_ANSWER_SHARE, 36)
)

PASS_RATES = tuple(float(f"{rate:.3g}") for rate in np.linspace(0.1, 0.95, 18))
"""What may come, if nobody says what is expected: a project is then opened at the prices whose mean
cost is, at the worst of these rates, the least multiple of the best for that rate."""

MAX_PRICE_RATIO = 4.0
"""What an outcome then costs at most, in those of the other. Prices that suit a guess could make an
abstention four hundred times as expensive as an answer, and a wrong guess cost ten times as many
queries."""

PASS_RATE_MARGIN = 0.1
"""How far the share of queries that are answered may lie below an expected one (0.1: ten points).
Of answers, so many are counted on as the expected share lets expect, but at most twice as many as
are left at the lower share; prices for an expected share are such that this is the most."""

TYPICAL_SIGMA = 5.0
"""Noise at which the price of an answer is quick to compute, and like that of more noise."""

Spec = Mapping[str, object]
"""The specification of a mechanism: its name and parameters."""
ReleaseSpec = Mapping[str, Any]
"""The same of what a project begins with: `privacy.releases.build_release`."""
CostsByShare = Callable[[ConfidentMax, Sequence[float], float], list[OutcomeCosts | None]]


@dataclass(frozen=True)
class Quote:
    """A mechanism with the terms that it can be opened under.

    `answers`: how many are expected. `fewer`: how many are left at a lower pass rate (`cautious`).
    """

    mechanism: Mechanism
    terms: Terms
    answers: float
    fewer: float | None = None

    def cautious(self, pass_rate: float) -> Quote:
        """Return it with the answers that are counted on at this rate, as PASS_RATE_MARGIN says.

        Of a mechanism that never abstains, that is what is certain.
        """
        answers = fewer = expected_answers(self.terms, pass_rate)
        if VoteOutcome.ABSTAINED in self.terms.prices:
            fewer = expected_answers(self.terms, max(0.0, pass_rate - PASS_RATE_MARGIN))
        return replace(self, answers=min(answers, 2 * fewer), fewer=fewer)

    @property
    def answer_share(self) -> float | None:
        """See `ConfidentMax`; None if each release is charged by itself."""
        mechanism = self.mechanism
        return mechanism.answer_share if isinstance(mechanism, JointlyPriced) else None

    @property
    def considered(self) -> ConsideredRule:
        """What is kept of the quote."""
        certain = self.terms.affordable(self.terms.start)
        return ConsideredRule(self.terms.rule, self.answer_share, int(self.answers), certain)

    def specification(self, spec: Spec) -> dict[str, object]:
        """Return the specification of the mechanism that is opened: as given, with its share."""
        share = self.answer_share
        return dict(spec) if share is None else {**spec, "answer_share": share}


def choose(
    mechanism: Mechanism,
    epsilon: float,
    delta: float,
    *,
    cap_rule: Rule,
    pass_rate: float | None = None,
    release: ReleaseSpec | None = None,
) -> Quote:
    """Return the best of the `quotes`, with all of them in its terms.

    `pass_rate`: without one, prices suit any of `PASS_RATES`, and what they are expected to buy is
    by what `DEFAULT_CONSENSUS` makes of the mechanism. `release`: what the project begins with.
    """
    if pass_rate is not None:
        why = "it is the share of queries that are expected to be answered"
        pass_rate = within("expected_pass_rate", pass_rate, 1e-6, 1, why)
    rate = expected_pass_rate(mechanism) if pass_rate is None else pass_rate
    found = quotes(
        mechanism,
        epsilon,
        delta,
        cap_rule=cap_rule,
        pass_rate=rate,
        guessed=pass_rate is None,
        release=release,
    )
    choice = RuleChoice(rate, tuple(quoted.considered for quoted in found))
    return replace(found[0], terms=replace(found[0].terms, choice=choice))


def quotes(
    mechanism: Mechanism,
    epsilon: float,
    delta: float,
    *,
    cap_rule: Rule,
    pass_rate: float,
    order: float | None = None,
    guessed: bool = False,
    release: ReleaseSpec | None = None,
) -> list[Quote]:
    """Return the sound ways to open a project, the most expected answers first.

    `pass_rate`: the share of queries that are expected to be answered, a public guess. `order`: the
    order of rules in Rényi DP; by default the best is searched for. `guessed`: whether the rate is
    nobody's expectation, so that joint prices suit any of `PASS_RATES`. Raises `ParameterError` if
    the budget does not pay for a single query.
    """
    found, problem = [], ParameterError("There is no rule to open this project under.")
    for variant, rule in _list_variants(
        mechanism, epsilon, delta, cap_rule, pass_rate, order, guessed
    ):
        try:
            terms = quote(variant, epsilon, delta, cap_rule=cap_rule, rule=rule, release=release)
        except ParameterError as error:
            problem = error
        else:
            found.append(Quote(variant, terms, expected_answers(terms, pass_rate)))
    if not found:
        raise problem
    # With as many answers, the one that is certain of more queries; then the first.
    return sorted(
        found, key=lambda each: (-int(each.answers), -each.terms.affordable(each.terms.start))
    )


def expected_answers(terms: Terms, pass_rate: float) -> float:
    """Return how many answers are expected if this share of queries is answered.

    A query is admitted while the most expensive outcome fits, so a remainder may be left.
    """
    others = [p.cost for outcome, p in terms.prices.items() if outcome != VoteOutcome.ANSWERED]
    if not others:
        return terms.affordable(terms.start)
    mean = pass_rate * terms.prices[VoteOutcome.ANSWERED].cost + (1 - pass_rate) * max(others)
    left = terms.budget - terms.start.spent
    delta_left = terms.delta_budget - terms.start.delta_spent
    queries = (left - terms.worst.cost) / mean + 1
    return pass_rate * min(queries, delta_left // terms.worst.delta)


def quick_quote(
    mechanism: Mechanism, epsilon: float, delta: float, pass_rate: float, *, guessed: bool = True
) -> Quote:
    """Return the best quote at one order alone, which suits any Gaussian noise, for comparisons.

    By a rate that is `guessed`, no price is divided.
    """
    order = _quick_order(epsilon, delta)
    return quotes(
        mechanism,
        epsilon,
        delta,
        cap_rule=Rule("rdp", order),
        pass_rate=pass_rate,
        order=order,
        guessed=guessed,
    )[0]


@lru_cache(maxsize=1024)
def _quick_order(epsilon: float, delta: float) -> float:
    return cap_order(epsilon, delta)


def _list_variants(
    mechanism: Mechanism,
    epsilon: float,
    delta: float,
    cap_rule: Rule,
    pass_rate: float,
    order: float | None,
    guessed: bool,
) -> list[tuple[Mechanism, Rule | None]]:
    """Return each way to price the mechanism, with its rule; None: what `quote` chooses.

    Under a cap in Gaussian DP it is that alone: what one project gained in Rényi DP, the cap would
    charge in full.
    """
    given = mechanism.answer_share if isinstance(mechanism, JointlyPriced) else None
    variants: list[tuple[Mechanism, Rule | None]] = [(mechanism, None)] if given is None else []
    if isinstance(mechanism, Neighbours) or (cap_rule.order is None and given is None):
        return variants  # `quote` takes the better rule for accounts
    events = mechanism.events()
    conversion = split_delta(events.values(), delta).conversion
    if isinstance(mechanism, JointlyPriced):
        shares = ANSWER_SHARES if given is None else (given,)
        found = order or search_order(
            epsilon,
            conversion,
            lambda a: _find_best_share(mechanism, a, pass_rate, shares, _rough_costs, guessed)[0],
        )
        if guessed and given is None:
            share = _robust_share(mechanism, found)
        else:
            _, share = _find_best_share(
                mechanism, found, pass_rate, shares, costs_by_share, guessed
            )
        return [*variants, (mechanism.with_answer_share(share), Rule("rdp", found))]
    rates = dict.fromkeys(events, 1 - pass_rate) | {VoteOutcome.ANSWERED: pass_rate}

    def mean(order: float) -> float:
        return sum(rates[outcome] * _rough_cost(events[outcome], order) for outcome in events)

    return [*variants, (mechanism, Rule("rdp", order or search_order(epsilon, conversion, mean)))]


@lru_cache(maxsize=1024)  # each share of an answer asks for the same
def _rough_cost(event: CostEvent, order: float) -> float:
    """Return about what an event costs, to search for an order.

    Of the price of the noisy counts, an answer costs a share that follows from α(α−1)/sigma² but
    for about a hundredth. It takes less time to compute for little noise.
    """
    if not isinstance(event, GaussianArgmax) or event.sigma <= TYPICAL_SIGMA:
        return float(rdp(event, order))
    exponent = order * (order - 1) / event.sigma**2
    alike = 0.5 + math.sqrt(0.25 + exponent * TYPICAL_SIGMA**2)
    below = math.floor(2 * alike) / 2
    least, most = _label_share_of_counts(below), _label_share_of_counts(below + 0.5)
    share = least + 2 * (alike - below) * (most - least)
    return float(share * rdp(event.counts, order))


@lru_cache
def _label_share_of_counts(order: float) -> float:
    """Return the share at a multiple of one half, which changes slowly: between, a line will do."""
    typical, order = GaussianArgmax(TYPICAL_SIGMA), max(order, 1.01)
    return float(rdp(typical, order) / rdp(typical.counts, order))


def _rough_costs(
    event: ConfidentMax, shares: Sequence[float], order: float
) -> list[OutcomeCosts | None]:
    """Return about what both outcomes cost at each share of an answer, to search for an order."""
    if too_high(event, order):
        return [None] * len(shares)
    told = (order - 1) * _rough_cost(GaussianArgmax(event.sigma2), order)
    return costs_up_to(event, shares, order, math.expm1(told))


@lru_cache(maxsize=1024)
def _find_best_share(
    mechanism: JointlyPriced,
    order: float,
    pass_rate: float,
    shares: Sequence[float],
    costs_of: CostsByShare,
    guessed: bool,
) -> tuple[float, float]:
    """Return the least that an answer costs at an order, and the share of an answer that does it.

    That is the mean cost of the queries for it. Of a rate that is not `guessed`, only so many
    answers are counted on as PASS_RATE_MARGIN says.
    """
    found = _allowed_costs(mechanism, order, shares, costs_of)
    lower = 0.0 if guessed else max(0.0, pass_rate - PASS_RATE_MARGIN)

    def cost_of_answer(costs: OutcomeCosts) -> float:
        expected = _mean_cost(costs, pass_rate) / pass_rate
        return max(expected, _mean_cost(costs, lower) / (2 * lower)) if lower else expected

    ranked = ((cost_of_answer(costs), share) for share, costs in found.items())
    return min(ranked, default=(math.inf, 1.0))


@lru_cache(maxsize=1024)
def _robust_share(mechanism: JointlyPriced, order: float) -> float:
    """Return the share of an answer by which the wrong pass rate costs least: `PASS_RATES`."""
    found = _allowed_costs(mechanism, order, ANSWER_SHARES, costs_by_share)
    if not found:
        return 1.0
    best = {rate: min(_mean_cost(each, rate) for each in found.values()) for rate in PASS_RATES}

    def regret(share: float) -> tuple[bool, float]:
        costs = found[share]
        higher, lower = sorted((costs.abstention, costs.answer), reverse=True)
        worst = max(_mean_cost(costs, rate) / best[rate] for rate in PASS_RATES)
        return higher > MAX_PRICE_RATIO * lower, worst

    return min(found, key=regret)


def _allowed_costs(
    mechanism: JointlyPriced,
    order: float,
    shares: Sequence[float],
    costs_of: CostsByShare,
) -> dict[float, OutcomeCosts]:
    """Return what both outcomes cost, by share of an answer, where neither costs too much."""
    event = _choose_priced_release(mechanism)
    costs = zip(shares, costs_of(event, shares, order), strict=True)
    found = {share: both for share, both in costs if both is not None}
    if len(shares) == 1 or not found:
        return found
    most = _max_outcome_cost(event, order)
    return {s: both for s, both in found.items() if max(both.abstention, both.answer) <= most}


def _mean_cost(costs: OutcomeCosts, pass_rate: float) -> float:
    return pass_rate * costs.answer + (1 - pass_rate) * costs.abstention


@lru_cache(maxsize=1024)
def _max_outcome_cost(event: ConfidentMax, order: float) -> float:
    """Return the most that an outcome may cost at an order: see `MAX_OUTCOME_COST`."""
    return MAX_OUTCOME_COST * release_cells(event, order, counts_excess(event.sigma2, order)).flat()


def _choose_priced_release(mechanism: JointlyPriced) -> ConfidentMax:
    """Return what an answer is charged for at one price for both outcomes."""
    event = mechanism.with_answer_share(1.0).events()[VoteOutcome.ANSWERED]
    if not isinstance(event, ConfidentMax):
        raise TypeError(f"{mechanism.name} has no joint price.")
    return event


MIN_ANSWERS_PER_CLASS = 10
"""Answers per class below which a budget teaches a student little."""


def small_budget_warning(terms: Terms, classes: int) -> str | None:
    """Return what is wrong with a budget that buys too few answers to learn from, or None."""
    choice = terms.choice
    answers = choice.considered[0].answers if choice else terms.affordable(terms.start)
    if answers >= MIN_ANSWERS_PER_CLASS * classes:
        return None
    return (
        f"About {answers:,} answers for {classes:,} classes teach a student little. At equal "
        "agreement an answer costs a quarter with twice the teachers, and less with more noise; "
        "`terrine plan` says what this budget can buy."
    )
