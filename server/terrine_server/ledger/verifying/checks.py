"""The checks of a project's ledger. Each yields what is wrong.

They find any altered, missing, swapped, added or re-priced charge, altered terms, and any balance,
number, hash or reservation that does not follow from the charges. Two things cannot be found in the
ledger alone: that charges were removed from its end, and balance, count and head were set back to
match, as in an older backup; and that the chain was rewritten from some entry to its end. A
checkpoint that was kept elsewhere finds both.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, case, func, select

from terrine_protocol import Outcome
from terrine_server.errors import LedgerCorrupted
from terrine_server.ledger.chain import genesis
from terrine_server.ledger.charging import (
    shadow_accounts,
    tallies,
    unit_accounts,
)
from terrine_server.ledger.counts import check_counts, counted_outcomes, counts_of
from terrine_server.ledger.records import entry_event
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import rows
from terrine_server.ledger.store.soundness import UNREADABLE
from terrine_server.ledger.store.tables import ensembles, payments, populations, projects
from terrine_server.privacy import Account, Price, Terms, VoteOutcome

Raw = Mapping[str, Any]


def check_terms(project: Raw, terms: Terms) -> Iterator[str]:
    """Check that the terms are those that the project was opened with."""
    try:
        start = genesis(project)
    except (TypeError, ValueError):
        start = None  # a value of a type that is never written
    if start != project["genesis"]:
        yield "terms: their hash is not the one the project was opened with"
    stated = (terms.budget, terms.delta_budget, terms.cap_budget)
    if stated != tuple(project[name] for name in ("budget", "delta_budget", "cap_budget")):
        yield "terms: the project's budgets are not those of its terms"


class Rules:
    """What the terms require of each entry; computes the account from entry to entry."""

    def __init__(self, terms: Terms, events: Mapping[str, Any]) -> None:
        self.terms = terms
        self.prices = {str(outcome): price for outcome, price in terms.prices.items()}
        self.events = dict(events)
        self.counted = counted_outcomes(events)
        self.account = Account()
        self.published: list[tuple[int, int]] = []
        self.outcomes: Counter[str] = Counter()
        if terms.schedule is not None:
            self.prices[Outcome.PUBLISHED] = terms.schedule.price
            self.events[Outcome.PUBLISHED] = terms.schedule.publication.event.to_json()

    @property
    def steady(self) -> bool:
        """Whether no entry depends on earlier ones, as the publications of a schedule do."""
        return self.terms.schedule is None

    def add(self, entry: Raw, times: int) -> None:
        """Add equal entries, `times` of them, to the account of `steady` rules."""
        self.outcomes[entry["outcome"]] += times
        added = replace(
            self.account,
            spent=self.account.spent + times * whole(entry["cost"]),
            delta_spent=self.account.delta_spent + times * whole(entry["delta"]),
            cap_spent=self.account.cap_spent + times * whole(entry["cap_cost"]),
            queries=self.account.queries + times,
            fresh=True,
        )
        self.account = self.terms.capped(added)

    def baseline(self, entry: Raw) -> int:
        """Return the baseline that an entry says it was priced at, if any is priced; otherwise 0.

        The query's own is not recorded, but its digest covers it.
        """
        event = _parsed(entry["event"])
        stated = event.get("baseline") if isinstance(event, dict) else None
        return stated if type(stated) is int and stated in self.terms.baselines else 0

    def follow(self, entry: Raw) -> Iterator[str]:
        """Yield what contradicts the schedule, and add the entry to the account."""
        due = self.terms.due(self.account)
        paid = Price(*(whole(entry[name]) for name in ("cost", "delta", "cap_cost")))
        self.outcomes[entry["outcome"]] += 1
        if entry["outcome"] != Outcome.PUBLISHED:
            if due:
                yield "a publication was due before it"
            self.account = self.terms.capped(self.account.plus(paid))
            return
        figure = whole(entry["figure"])
        self.published.append((entry["seq"], figure))
        if not due:
            yield "published when nothing was due"
        try:
            self.account = self.terms.after_publishing(self.account, figure)
        except ValueError:
            yield f"figure {figure} is not between 0 and what the queries are known to have cost"


def check_balance(
    project: Raw, rules: Rules, last: int, head: bytes, published: Sequence[tuple[int, ...]]
) -> Iterator[str]:
    """Check that the account follows from its entries and is within its budget.

    `last` and `head`: number and hash of the last entry.
    """
    if head != project["head"]:
        yield f"head: the project's last hash is not that of its last entry, {last}"
    if list(published) != rules.published:
        yield "balance: the figures that the project shows are not those of its entries"
    for name, recomputed in [
        ("charges", rules.account.charges),
        ("spent", rules.account.spent),
        ("delta_spent", rules.account.delta_spent),
        ("cap_spent", rules.account.cap_spent),
    ]:
        if project[name] != recomputed:
            yield f"balance: {name} is {project[name]}, but the entries make {recomputed}"
    for name, budget in [
        ("spent", "budget"),
        ("delta_spent", "delta_budget"),
        ("cap_spent", "cap_budget"),
    ]:
        if project[name] > project[budget]:
            yield f"balance: {name} {project[name]} exceeds {budget} {project[budget]}"


def check_entry(project: Raw, rules: Rules, classes: int, entry: Raw) -> Iterator[str]:
    """Check that the terms allow an entry, by its `chain.KIND_FIELDS`."""
    outcome, label = entry["outcome"], entry["label"]
    price = rules.prices.get(outcome)
    if price is None:
        yield f"outcome {outcome!r} is not on the project's price list"
        return
    baseline = rules.baseline(entry)
    if outcome != Outcome.PUBLISHED:
        price = rules.terms.price(VoteOutcome(outcome), baseline)
    what = repr(outcome) + (f" with a baseline of {baseline}" if baseline else "")
    if (entry["cost"], entry["delta"], entry["cap_cost"]) != (
        price.cost,
        price.delta,
        price.cap_cost,
    ):
        yield f"not the price of {what} on the project's price list"
    if outcome in (Outcome.ABSTAINED, Outcome.PUBLISHED):
        if label is not None:
            yield f"{outcome}, yet has label {label}"
    elif not isinstance(label, int) or not 0 <= label < classes:
        yield f"label {label} is not one of the {classes} classes"
    if outcome != Outcome.PUBLISHED and entry["figure"] is not None:
        yield f"{outcome}, yet has a figure"
    if entry["mechanism"] != project["mechanism"]:
        yield "mechanism is not the project's"
    if _parsed(entry["event"]) != entry_event(rules.events, outcome, baseline):
        yield f"cost event is not that of {what}"


def check_counted(rules: Rules, classes: int, entry: Raw, counts: str | None) -> Iterator[str]:
    """An entry has noisy counts if it was charged for them, and its label is that of the largest.

    `entry`: its `chain.KIND_FIELDS`.
    """
    due = classes if entry["outcome"] in rules.counted else None
    try:
        check_counts(counts_of(counts), entry["label"], due)
    except UNREADABLE as error:
        yield f"its noisy counts are not what was answered ({error})"


def check_tally(connection: Connection, seals: Seals, project: Raw, rules: Rules) -> Iterator[str]:
    """Check that the tally counts as many queries as were charged; their votes are not stored."""
    if rules.terms.schedule is None:
        return
    try:
        record = rows.fetch_project(connection, seals, "at all", id=project["id"])
    except LedgerCorrupted:
        return  # the account itself is wrong, which another check reports
    try:
        tally = tallies.load_tally(connection, seals, record)
    except LedgerCorrupted as error:
        yield f"tally: {error.found}"
        return
    outcomes = {VoteOutcome(o): n for o, n in rules.outcomes.items() if o != Outcome.PUBLISHED}
    if tally is not None and not tally.counts(outcomes):
        yield "tally: it does not count as many queries as were charged"


def check_accounts(
    connection: Connection, seals: Seals, project: Raw, rules: Rules
) -> Iterator[str]:
    """Check that the accounts of a project's units are those of its last charge, and possible."""
    if rules.terms.allowance is None:
        return
    try:
        record = rows.fetch_project(connection, seals, "at all", id=project["id"])
    except LedgerCorrupted:
        return  # the account itself is wrong, which another check reports
    try:
        unit_accounts.load(connection, seals, record)
    except LedgerCorrupted as error:
        yield f"accounts: {error.found}"
    try:
        shadow_accounts.load(connection, seals, record)
    except LedgerCorrupted as error:
        yield f"shadows: {error.found}"


def check_payments(connection: Connection, seals: Seals, project: Raw) -> Iterator[str]:
    """Check that who paid is as it was written, of entries that are there, each by one at most."""
    of = select(payments).where(payments.c.project_id == project["id"])
    in_order = of.order_by(payments.c.first_seq)
    last = 0
    for row in connection.execute(in_order, execution_options={"yield_per": 1000}):
        try:
            paid = rows.payment(row, seals)
        except LedgerCorrupted as error:
            yield f"payments: {error.found}"
            continue
        if paid.first <= last:
            yield f"payments: two of entry {paid.first}"
        if paid.last > whole(project["charges"]):
            yield f"payments: one of entry {paid.last}, which is not there"
        last = paid.last


def whole(value: object) -> int:
    """Return a whole number as it is, and 0 for anything else, which is never written."""
    return value if isinstance(value, int) else 0


def check_reservation(connection: Connection, project: Raw) -> Iterator[str]:
    """Check what is reserved of the cap: budgets of open projects, the spend of closed ones.

    Of all ensembles of the population. That these are the right ones is for the log to say.
    """
    of = select(ensembles.c.population_id).where(ensembles.c.id == project["ensemble_id"])
    id = connection.execute(of).scalar()
    cap = connection.execute(select(populations).where(populations.c.id == id)).mappings().first()
    if cap is None:
        yield f"ensemble {project['ensemble__name']}: the population whose cap it has is gone"
        return
    closed = projects.c.status == "closed"
    of_it = select(ensembles.c.id).where(ensembles.c.population_id == id)
    cost, delta = connection.execute(
        select(
            func.sum(case((closed, projects.c.cap_spent), else_=projects.c.cap_budget)),
            func.sum(case((closed, projects.c.delta_spent), else_=projects.c.delta_budget)),
        ).where(projects.c.ensemble_id.in_(of_it))
    ).one()
    for name, recomputed in [("reserved", cost), ("delta_reserved", delta)]:
        if cap[name] != recomputed:
            yield (
                f"population {cap['name']}: {name} is {cap[name]}, but its projects make "
                f"{recomputed}"
            )
    for reserved, most in [("reserved", "cap"), ("delta_reserved", "delta_cap")]:
        if cap[reserved] > cap[most]:
            yield f"population {cap['name']}: {reserved} exceeds {most}"


@lru_cache(maxsize=1024)
def _parsed(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
