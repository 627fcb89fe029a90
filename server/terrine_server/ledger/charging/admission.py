"""Decides which queries are replayed, paid, exhausted or refused. Pure: no I/O, clock or votes.

A refusal depends only on the account and the worst price, which the student knows, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from terrine_protocol import Outcome
from terrine_server.ledger.records import Proposal, RecordedCharges, Result
from terrine_server.privacy import Account, Price, Terms

REFUSED = Result(Outcome.REFUSED, label=None, seq=None, replayed=False)
EXHAUSTED = Result(Outcome.EXHAUSTED, label=None, seq=None, replayed=False)


@dataclass(frozen=True)
class NewEntry:
    """A new entry, numbered `seq`: the charge for a query's `proposal`, or a published `figure`.

    `baseline`: that of its price list.
    """

    seq: int
    outcome: Outcome
    price: Price
    proposal: Proposal | None = None
    figure: int | None = None
    baseline: int = 0


@dataclass(frozen=True)
class Admission:
    """The decision on a batch: results in order, new entries, and the account after them."""

    results: Sequence[Result]
    entries: Sequence[NewEntry]
    account: Account


class SecretBudget(Protocol):
    """A project's secret spend, as `admit` uses it."""

    def add(self, places: tuple[int, ...]) -> None:
        """Count one paid query."""

    def publish(self, bound: int) -> int:
        """Draw a figure from the spend (except with a probability that δ covers) up to `bound`."""


def admit(
    terms: Terms,
    account: Account,
    recorded: RecordedCharges,
    proposals: Sequence[Proposal],
    secret: SecretBudget | None = None,
) -> Admission:
    """Decide on each query of a batch, in order.

    A query that is on record, or that came earlier in this batch, is replayed. A new one is paid as
    long as one more with its baseline is certain to fit, at the worst price. From the first new one
    that does not fit, or that was not voted on, all new ones are refused. One that is exhausted
    costs nothing, and is so while another could be paid for. For a data-dependent
    project, a figure of its `secret` spend is published wherever the terms say. Raises ValueError
    for an outcome that is not on the price list: nothing unpriced is ever released.
    """
    queries, answered_inputs = dict(recorded.queries), dict(recorded.answered_inputs)
    known = RecordedCharges(queries, answered_inputs)
    results: list[Result] = []
    entries: list[NewEntry] = []
    refusing = False
    for proposal in proposals:
        earlier = known.find(proposal.query_digest, proposal.input_digest)
        if earlier is not None:
            results.append(replace(earlier, replayed=True))
            continue
        baseline = terms.priced_baseline(proposal.baseline)
        fits = terms.admits(account, baseline)
        if proposal.exhausted and fits:
            results.append(EXHAUSTED)
            continue
        refusing = refusing or proposal.outcome is None or not fits
        if refusing or proposal.outcome is None:
            results.append(REFUSED)
            continue
        if proposal.outcome not in terms.prices:
            raise ValueError(f"{proposal.outcome!r} is not on the project's price list")
        outcome, price = Outcome(proposal.outcome), terms.price(proposal.outcome, baseline)
        account = terms.capped(account.plus(price))
        result = Result(outcome, proposal.label, account.charges, False, proposal.counts)
        queries[proposal.query_digest] = result
        if outcome is Outcome.ANSWERED:
            answered_inputs[proposal.input_digest] = result
        results.append(result)
        entries.append(
            NewEntry(
                account.charges,
                outcome,
                price,
                proposal=proposal,
                baseline=baseline,
            )
        )
        if secret is not None:
            secret.add(proposal.places)
            if terms.schedule is not None and terms.due(account):
                figure = secret.publish(terms.bound(account))
                account = terms.after_publishing(account, figure)
                price = terms.schedule.price
                entries.append(NewEntry(account.charges, Outcome.PUBLISHED, price, figure=figure))
    return Admission(results, entries, account)
