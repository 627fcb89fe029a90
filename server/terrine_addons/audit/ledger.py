"""Checks what the ledger recorded: terms, prices and charges are recomputed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from terrine_addons.audit.evidence import (
    format_votes,
    needed_by_answer,
    needed_share,
)
from terrine_addons.audit.findings import AuditFinding
from terrine_protocol import Outcome
from terrine_server.ledger import Ledger, ProjectRecord
from terrine_server.ledger.records import events_of
from terrine_server.owner.operations import verify_project
from terrine_server.privacy import (
    Account,
    ConfidentMax,
    GaussianArgmax,
    Mechanism,
    ParameterError,
    Price,
    Rule,
    Terms,
    VoteOutcome,
    build_mechanism,
    event_from_json,
    price,
    quote,
)

# How many problems of one project are reported; the first one is the one to look at.
MAX_PROBLEMS = 3


def audit_ledger(ledger: Ledger) -> Iterator[AuditFinding]:
    """Yield one finding for each project with problems, and one for all sound projects together."""
    sound = charges = 0
    for name in ledger.projects.list_names():
        verified = verify_project(ledger, name)
        problems = [*verified.problems]
        if verified.ok:  # else there is nothing to price
            problems += check_project(ledger, ledger.projects.get(name))
        if problems:
            listed = "; ".join(problems[:MAX_PROBLEMS])
            more = (
                f"; and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
            )
            yield AuditFinding("ledger", f"ledger of {name}", "exceeded", listed + more)
        else:
            sound, charges = sound + 1, charges + verified.charges
    yield AuditFinding(
        "ledger",
        "ledger",
        "holds",
        f"{sound:,} projects with {charges:,} charges: complete, every price matches its event",
    )


def check_project(ledger: Ledger, project: ProjectRecord) -> Iterator[str]:
    """Yield the problems with the prices of a project whose ledger is intact."""
    try:
        yield from _check_terms(project)
        yield from _check_charges(ledger, project)
    except ParameterError as error:
        yield f"it cannot be re-priced: {error}"


def _check_terms(project: ProjectRecord) -> Iterator[str]:
    facts, terms = project.ensemble.facts, project.terms
    mechanism = build_mechanism(
        project.mechanism, teachers=facts.teachers, classes=len(facts.classes)
    )
    if dict(project.events) != json.loads(json.dumps(events_of(mechanism))):
        yield "its cost events are not those of its mechanism"
    schedule = terms.schedule
    quoted = quote(
        mechanism,
        terms.epsilon,
        terms.delta,
        cap_rule=project.ensemble.population.rule,
        # Any rule that is fixed beforehand is sound. Where none was chosen, only one was quoted.
        rule=None if terms.choice is None else terms.rule,
        publishing=None if schedule is None else (schedule.publication, schedule.counts),
        release=project.ensemble.release_spec,
    )
    if (terms.release and terms.release.spec) != (quoted.release and quoted.release.spec):
        yield "it does not begin with what its ensemble was made of"
    if set(terms.prices) != set(quoted.prices):
        yield "its price list has other outcomes than its mechanism"
    if terms.rule != quoted.rule:
        yield f"its rule is {_rule(terms.rule)}, but {_rule(quoted.rule)} is quoted for it"
        return
    if (terms.allowance is None) != (quoted.allowance is None):
        yield "its terms and its mechanism disagree on whether units have accounts"
    elif terms.allowance != quoted.allowance:
        yield f"its allowance is {terms.allowance}, but {quoted.allowance} is quoted for it"
    yield from _check_prices(mechanism, terms)
    for name in ("budget", "delta_budget"):
        if getattr(terms, name) > getattr(quoted, name):
            yield (
                f"its {name} is {getattr(terms, name)}, but ε = {terms.epsilon:g}, "
                f"δ = {terms.delta:g} allow {getattr(quoted, name)}"
            )


def _check_prices(mechanism: Mechanism, terms: Terms) -> Iterator[str]:
    """Yield a problem if votes can be found that need more than the price list charges."""
    answer, order = mechanism.events().get(VoteOutcome.ANSWERED), terms.rule.order
    if order is None:
        return
    if isinstance(answer, GaussianArgmax):
        size = mechanism.teachers, mechanism.classes
        needed, votes = needed_by_answer(answer, terms.prices[VoteOutcome.ANSWERED], order, *size)
        if needed > 1:
            yield f"its price is too low: {format_votes(votes)} votes need {needed:.1%} of it"
    if not isinstance(answer, ConfidentMax):
        return
    for baseline in terms.baselines:
        paid = {o: terms.price(o, baseline) for o in terms.prices}
        charged = paid[VoteOutcome.ANSWERED], paid[VoteOutcome.ABSTAINED]
        event = replace(answer, baseline=baseline)
        needed, votes = needed_share(event, *charged, order)
        if needed > 1:
            what = f" with a baseline of {baseline}" if baseline else ""
            cast = format_votes(votes)
            yield f"its prices{what} are too low: {cast} votes need {needed:.1%} of them"


def _check_charges(ledger: Ledger, project: ProjectRecord) -> Iterator[str]:
    terms, account = project.terms, Account()  # not their start: what they begin with is priced
    for charge in ledger.entries.stream(project.name):
        due = _price(json.dumps(dict(charge.event), sort_keys=True), terms.rule, terms.cap_rule)
        if terms.allowance is not None:
            # Not this query is bounded, but what all of them tell of one unit: the balance counts.
            due = replace(due, cost=terms.worst.cost)
        for name, paid, owed in [
            ("cost", charge.cost, due.cost),
            ("delta", charge.delta, due.delta),
            ("cap_cost", charge.cap_cost, due.cap_cost),
        ]:
            if paid < owed:
                yield f"entry {charge.seq} paid a {name} of {paid}; its event costs {owed}"
        if charge.outcome is Outcome.RELEASED:
            account = account.plus_release(due)
            continue
        if charge.figure is None:
            account = terms.capped(account.plus(due))
            continue
        try:
            account = terms.after_publishing(account, charge.figure)
        except ValueError as error:
            yield f"entry {charge.seq}: {error}"
    for name, total, budget in [
        ("costs", account.spent, terms.budget),
        ("deltas", account.delta_spent, terms.delta_budget),
        ("cap costs", account.cap_spent, terms.cap_budget),
    ]:
        if total > budget:
            yield f"the {name} of its events add up to {total}, above its budget of {budget}"


@lru_cache(maxsize=1024)
def _price(event: str, rule: Rule, cap_rule: Rule) -> Price:
    return price(event_from_json(json.loads(event)), rule, cap_rule)


def _rule(rule: Rule) -> str:
    return rule.name if rule.order is None else f"{rule.name} at order {rule.order:g}"
