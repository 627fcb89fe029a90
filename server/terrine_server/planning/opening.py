"""Choose the rule and the prices under which a project is opened, before its first query.

Every rule that is considered is sound, and the choice follows from public parameters and a public
expectation of what a mechanism answers, so nothing depends on its being right: a wrong expectation
costs answers, not privacy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from terrine_server.planning.answer_share import (
    PASS_RATE_MARGIN,
    choose_answer_share,
    rough_cost,
)
from terrine_server.planning.expected import expected_pass_rate
from terrine_server.privacy.budget import ConsideredRule, RuleChoice, Terms
from terrine_server.privacy.mechanisms.base import Mechanism, VoteOutcome
from terrine_server.privacy.mechanisms.neighbours import Neighbours
from terrine_server.privacy.mechanisms.registration import JointlyPriced
from terrine_server.privacy.parameters import ParameterError, within
from terrine_server.privacy.quoting import cap_order, quote, split_delta
from terrine_server.privacy.rules import Rule, search_order

# The specification of a mechanism: its name and parameters.
Spec = Mapping[str, object]
# The same of what a project begins with: `privacy.releases.build_release`.
ReleaseSpec = Mapping[str, Any]


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
    if not mechanism.events():  # nothing but a release, which costs least in Gaussian DP
        return variants
    if isinstance(mechanism, Neighbours) or (cap_rule.order is None and given is None):
        return variants  # `quote` takes the better rule for accounts
    events = mechanism.events()
    conversion = split_delta(events.values(), delta).conversion
    if isinstance(mechanism, JointlyPriced):
        found, share = choose_answer_share(
            mechanism, epsilon, conversion, pass_rate, order=order, guessed=guessed
        )
        return [*variants, (mechanism.with_answer_share(share), Rule("rdp", found))]
    rates = dict.fromkeys(events, 1 - pass_rate) | {VoteOutcome.ANSWERED: pass_rate}

    def mean(order: float) -> float:
        return sum(rates[outcome] * rough_cost(events[outcome], order) for outcome in events)

    return [*variants, (mechanism, Rule("rdp", order or search_order(epsilon, conversion, mean)))]


# Answers per class below which a budget teaches a student little.
MIN_ANSWERS_PER_CLASS = 10


def small_budget_warning(terms: Terms, classes: int) -> str | None:
    """Return what is wrong with a budget that buys too few answers to learn from, or None."""
    if not terms.prices:
        return None
    choice = terms.choice
    answers = choice.considered[0].answers if choice else terms.affordable(terms.start)
    if answers >= MIN_ANSWERS_PER_CLASS * classes:
        return None
    return (
        f"About {answers:,} answers for {classes:,} classes teach a student little. At equal "
        "agreement an answer costs a quarter with twice the teachers, and less with more noise; "
        "`terrine plan` says what this budget can buy."
    )
