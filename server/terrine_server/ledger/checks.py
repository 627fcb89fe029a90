"""What a project's terms require of its entries and its balance: of rows alone.

Each check yields what is wrong, in words for an auditor.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from terrine_protocol import Outcome
from terrine_server.ledger.chain import check_counts, counts_from_text, genesis, sigma_of_counts
from terrine_server.ledger.records import entry_event
from terrine_server.ledger.seals import READ_ERRORS
from terrine_server.privacy import Account, Price, Terms, VoteOutcome

Raw = Mapping[str, Any]
# Outcomes of entries that answer no query.
NO_QUERIES = (Outcome.PUBLISHED, Outcome.RELEASED)


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


class TermsChecker:
    """What the terms require of each entry; computes the account from entry to entry."""

    def __init__(self, terms: Terms, events: Mapping[str, Any]) -> None:
        self.terms = terms
        self.prices = {str(outcome): price for outcome, price in terms.prices.items()}
        self.events = dict(events)
        self.counted = sigma_of_counts(events).keys()
        self.account = Account()
        self.published: list[tuple[int, int]] = []
        self.outcomes: Counter[str] = Counter()
        if terms.release is not None:
            self.prices[Outcome.RELEASED] = terms.release.price
            self.events[Outcome.RELEASED] = terms.release.event.to_json()
        if terms.schedule is not None:
            self.prices[Outcome.PUBLISHED] = terms.schedule.price
            self.events[Outcome.PUBLISHED] = terms.schedule.publication.event.to_json()

    @property
    def steady(self) -> bool:
        """Whether no entry depends on earlier ones, as the publications of a schedule do."""
        return self.terms.schedule is None

    def add(self, entry: Raw, times: int) -> None:
        """Add equal entries, `times` of them, to the account of a `steady` checker."""
        self.outcomes[entry["outcome"]] += times
        released = times if entry["outcome"] == Outcome.RELEASED else 0
        added = replace(
            self.account,
            spent=self.account.spent + times * int_or_zero(entry["cost"]),
            delta_spent=self.account.delta_spent + times * int_or_zero(entry["delta"]),
            cap_spent=self.account.cap_spent + times * int_or_zero(entry["cap_cost"]),
            queries=self.account.queries + times - released,
            released=self.account.released + released,
            fresh=True,
        )
        self.account = self.terms.capped(added)

    def baseline(self, entry: Raw) -> int:
        """Return the baseline that an entry says it was priced at, if any is priced; otherwise 0.

        The query's own is not recorded, but its digest covers it.
        """
        event = _parse(entry["event"])
        stated = event.get("baseline") if isinstance(event, dict) else None
        return stated if type(stated) is int and stated in self.terms.baselines else 0

    def apply(self, entry: Raw) -> Iterator[str]:
        """Yield what contradicts the schedule, and add the entry to the account."""
        due = self.terms.due(self.account)
        paid = Price(*(int_or_zero(entry[name]) for name in ("cost", "delta", "cap_cost")))
        self.outcomes[entry["outcome"]] += 1
        if entry["outcome"] == Outcome.RELEASED:
            self.account = self.account.plus_release(paid)
            return
        if entry["outcome"] != Outcome.PUBLISHED:
            if due:
                yield "a publication was due before it"
            self.account = self.terms.capped(self.account.plus(paid))
            return
        figure = int_or_zero(entry["figure"])
        self.published.append((entry["seq"], figure))
        if not due:
            yield "published when nothing was due"
        try:
            self.account = self.terms.after_publishing(self.account, figure)
        except ValueError:
            yield f"figure {figure} is not between 0 and what the queries are known to have cost"


def check_balance(
    project: Raw,
    checker: TermsChecker,
    last: int,
    head: bytes,
    published: Sequence[tuple[int, ...]],
) -> Iterator[str]:
    """Check that the account follows from its entries and is within its budget.

    `last` and `head`: number and hash of the last entry.
    """
    if head != project["head"]:
        yield f"head: the project's last hash is not that of its last entry, {last}"
    if list(published) != checker.published:
        yield "balance: the figures that the project shows are not those of its entries"
    for name in ("charges", "spent", "delta_spent", "cap_spent"):
        recomputed = getattr(checker.account, name)
        if project[name] != recomputed:
            yield f"balance: {name} is {project[name]}, but the entries make {recomputed}"
    for name in ("spent", "delta_spent", "cap_spent"):
        budget = name.replace("spent", "budget")
        if project[name] > project[budget]:
            yield f"balance: {name} {project[name]} exceeds {budget} {project[budget]}"


def check_entry(project: Raw, checker: TermsChecker, classes: int, entry: Raw) -> Iterator[str]:
    """Check that the terms allow an entry, by its `chain.KIND_FIELDS`."""
    outcome, label = entry["outcome"], entry["label"]
    price = checker.prices.get(outcome)
    if price is None:
        yield f"outcome {outcome!r} is not on the project's price list"
        return
    baseline = checker.baseline(entry)
    if outcome not in NO_QUERIES:
        price = checker.terms.price(VoteOutcome(outcome), baseline)
    what = repr(outcome) + (f" with a baseline of {baseline}" if baseline else "")
    if (entry["cost"], entry["delta"], entry["cap_cost"]) != (
        price.cost,
        price.delta,
        price.cap_cost,
    ):
        yield f"not the price of {what} on the project's price list"
    if outcome in (Outcome.ABSTAINED, *NO_QUERIES):
        if label is not None:
            yield f"{outcome}, yet has label {label}"
    elif not isinstance(label, int) or not 0 <= label < classes:
        yield f"label {label} is not one of the {classes} classes"
    if outcome != Outcome.PUBLISHED and entry["figure"] is not None:
        yield f"{outcome}, yet has a figure"
    if entry["mechanism"] != project["mechanism"]:
        yield "mechanism is not the project's"
    if _parse(entry["event"]) != entry_event(checker.events, outcome, baseline):
        yield f"cost event is not that of {what}"


def check_counted(
    checker: TermsChecker, classes: int, entry: Raw, counts: str | None
) -> Iterator[str]:
    """An entry has noisy counts if it was charged for them, and its label is that of the largest.

    `entry`: its `chain.KIND_FIELDS`.
    """
    due = classes if entry["outcome"] in checker.counted else None
    try:
        check_counts(counts_from_text(counts), entry["label"], due)
    except READ_ERRORS as error:
        yield f"its noisy counts are not what was answered ({error})"


def int_or_zero(value: object) -> int:
    """Return a whole number as it is, and 0 for anything else, which is never written."""
    return value if isinstance(value, int) else 0


@lru_cache(maxsize=1024)
def _parse(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
