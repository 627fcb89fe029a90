"""Recomputing a project's books from its charges, and naming what does not agree.

What this finds: any altered, missing, swapped, added or re-priced charge, altered terms, and any
balance, number, hash or reservation that does not follow from the charges. What no look at the
database alone can find: a tail of charges removed together with a balance, count and head that
were all set back to match, or a chain rewritten from some entry on to its end. Keep the head that
`verify` reports somewhere else, and compare.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row, case, func, select

from terrine_client.protocol import Outcome
from terrine_server.errors import BrokenBooks, NotFound
from terrine_server.ledger import rows, secrets
from terrine_server.ledger.chain import charge_hash, genesis
from terrine_server.ledger.events import Epochs, entry_event
from terrine_server.ledger.records import Verification
from terrine_server.ledger.tables import projects
from terrine_server.privacy import Account, Price, Terms
from terrine_server.privacy import Outcome as PaidOutcome

MOST_PROBLEMS = 100
"""A report names this many findings; the first is the one to look at."""
_ROWS = 1000

Raw = Mapping[str, Any]


def verify_project(connection: Connection, name: str) -> Verification:
    """See `Ledger.verify`. The connection's transaction must read one snapshot throughout."""
    row = connection.execute(rows.select_projects().where(projects.c.name == name)).one_or_none()
    if row is None:
        raise NotFound(f"There is no project called {name}.")
    project = dict(row._mapping)
    entries = connection.execute(
        rows.select_charges(project["id"]).execution_options(yield_per=_ROWS)
    )
    found: list[str] = []
    try:
        for problem in islice(_findings(connection, project, map(_raw, entries)), MOST_PROBLEMS):
            found.append(problem)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        found.append(f"account: a value is not of the kind that was written ({error})")
    head = project["head"]
    return Verification(
        name, project["charges"], head.hex() if isinstance(head, bytes) else str(head), found
    )


def _findings(connection: Connection, project: Raw, entries: Iterable[Raw]) -> Iterator[str]:
    try:
        terms = Terms.from_json(json.loads(project["terms"]))
        rules = _Rules(terms, json.loads(project["events"]))
        published = [tuple(pair) for pair in json.loads(project["published"])]
    except (ValueError, TypeError, KeyError, AttributeError):
        yield "terms: they cannot be read"
        return
    yield from _check_terms(project, terms)
    yield from _check_entries(project, rules, published, entries)
    yield from _check_tally(connection, project, rules)
    yield from _check_reservation(connection, project)


def _check_terms(project: Raw, terms: Terms) -> Iterator[str]:
    if _hash(genesis, project) != project["genesis"]:
        yield "terms: their hash is not the one the project was opened with"
    stated = (terms.guarantee, terms.budget, terms.delta_budget, terms.cap_budget)
    if stated != tuple(
        project[name] for name in ("guarantee", "budget", "delta_budget", "cap_budget")
    ):
        yield "terms: the project's guarantee or budgets are not those of its terms"


class _Rules:
    """What the terms say an entry must be; follows the account from entry to entry."""

    def __init__(self, terms: Terms, events: Mapping[str, Any]) -> None:
        self.terms = terms
        self.prices = {str(outcome): price for outcome, price in terms.prices.items()}
        self.events = dict(events)
        self.epochs = Epochs(events)
        self.account = Account()
        self.published: list[tuple[int, int]] = []
        self.outcomes: Counter[str] = Counter()
        if terms.schedule is not None:
            self.prices[Outcome.PUBLISHED] = terms.schedule.price
            self.events[Outcome.PUBLISHED] = terms.schedule.publication.event.to_json()

    def opens(self, entry: Raw) -> bool:
        """Whether an entry must pay for opening an epoch, or says that it does."""
        if self.terms.opening is None or entry["outcome"] not in self.prices:
            return False
        opened = entry_event(self.events, entry["outcome"], opens=True)
        return self.epochs.must_open(entry) or _parsed(entry["event"]) == opened

    def follow(self, entry: Raw) -> Iterator[str]:
        """Yield what contradicts the schedule; then move the account on by the entry."""
        due = self.terms.due(self.account)
        paid = Price(*(_whole(entry[name]) for name in ("cost", "delta", "cap_cost")))
        self.outcomes[entry["outcome"]] += 1
        self.epochs.follow(entry, self.opens(entry))
        if entry["outcome"] != Outcome.PUBLISHED:
            if due:
                yield "a publication was due before it"
            self.account = self.account.plus(paid)
            return
        figure = _whole(entry["figure"])
        self.published.append((entry["seq"], figure))
        if not due:
            yield "published when nothing was due"
        try:
            self.account = self.terms.after_publishing(self.account, figure)
        except ValueError:
            yield f"figure {figure} is not between 0 and what the queries are known to have cost"


def _check_entries(
    project: Raw, rules: _Rules, published: list[tuple[int, int]], entries: Iterable[Raw]
) -> Iterator[str]:
    head, last, count = project["genesis"], 0, 0
    classes = len(json.loads(project["ensemble__info"])["classes"])
    for entry in entries:
        seq = entry["seq"]
        if seq <= last:
            yield f"entry {seq}: entries are numbered from 1"
        elif seq == last + 2:
            yield f"entry {last + 1}: missing"
        elif seq > last + 2:
            yield f"entries {last + 1} to {seq - 1}: missing"
        if _hash(lambda fields, before=head: charge_hash(before, fields), entry) != entry["hash"]:
            yield f"entry {seq}: altered, or not the one that followed the entry before it"
        for problem in _check_entry(project, rules, classes, entry):
            yield f"entry {seq}: {problem}"
        for problem in rules.follow(entry):
            yield f"entry {seq}: {problem}"
        head, last, count = entry["hash"], seq, count + 1
    if head != project["head"]:
        yield f"head: the project's last hash is not that of its last entry, {last}"
    if published != rules.published:
        yield "balance: the figures that the project shows are not those of its entries"
    for name, recomputed in [
        ("charges", count),
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


def _check_entry(project: Raw, rules: _Rules, classes: int, entry: Raw) -> Iterator[str]:
    outcome, label = entry["outcome"], entry["label"]
    price = rules.prices.get(outcome)
    if price is None:
        yield f"outcome {outcome!r} is not on the project's price list"
        return
    opens = rules.opens(entry)
    if opens and rules.terms.opening is not None:
        price += rules.terms.opening
    what = f"{outcome!r}, opening an epoch," if opens else repr(outcome)
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
    if entry["guarantee"] != project["guarantee"] or entry["mechanism"] != project["mechanism"]:
        yield "guarantee or mechanism is not the project's"
    if _parsed(entry["event"]) != entry_event(rules.events, outcome, opens):
        yield f"cost event is not that of {what}"


def _check_tally(connection: Connection, project: Raw, rules: _Rules) -> Iterator[str]:
    """The secret tally counts as many queries as were charged; which ones, nobody can recompute."""
    if rules.terms.schedule is None:
        return
    record = rows.fetch_project(connection, projects.c.id == project["id"], "at all")
    try:
        tally = secrets.load_tally(connection, record)
    except BrokenBooks as error:
        yield f"tally: {error}"
        return
    outcomes = {PaidOutcome(o): n for o, n in rules.outcomes.items() if o != Outcome.PUBLISHED}
    if tally is not None and not tally.counts(outcomes):
        yield "tally: it does not count as many queries as were charged"


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _check_reservation(connection: Connection, project: Raw) -> Iterator[str]:
    """What the ensemble has reserved: whole budgets of open projects, the spend of closed ones."""
    closed = projects.c.status == "closed"
    cost, delta = connection.execute(
        select(
            func.sum(case((closed, projects.c.cap_spent), else_=projects.c.cap_budget)),
            func.sum(case((closed, projects.c.delta_spent), else_=projects.c.delta_budget)),
        ).where(projects.c.ensemble_id == project["ensemble_id"])
    ).one()
    for name, recomputed in [("reserved", cost), ("delta_reserved", delta)]:
        recorded = project[f"ensemble__{name}"]
        if recorded != recomputed:
            yield (
                f"ensemble {project['ensemble__name']}: {name} is {recorded}, "
                f"but its projects make {recomputed}"
            )
    for reserved, cap in [("reserved", "cap"), ("delta_reserved", "delta_cap")]:
        if project[f"ensemble__{reserved}"] > project[f"ensemble__{cap}"]:
            yield f"ensemble {project['ensemble__name']}: {reserved} exceeds {cap}"


def _raw(row: Row[Any]) -> Raw:
    return dict(row._mapping)


def _hash(function: Any, fields: Raw) -> bytes | None:
    try:
        hashed: bytes = function(fields)
    except (TypeError, ValueError):
        return None  # a value of a type that was never written
    return hashed


def _parsed(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
