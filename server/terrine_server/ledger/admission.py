"""Who in a batch is replayed, paid or refused. Pure: no database, no clock, no votes.

A refusal depends on nothing but the balances and the worst price, which the student knows too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from terrine_client.protocol import Outcome
from terrine_server.ledger.records import Proposal, Result
from terrine_server.privacy import Price, Terms

REFUSED = Result(Outcome.REFUSED, label=None, seq=None, replayed=False)


@dataclass(frozen=True)
class Balance:
    """What a project has spent, and over how many charges."""

    spent: int
    delta_spent: int
    cap_spent: int
    charges: int

    def plus(self, price: Price) -> Balance:
        """Return the balance after one more charge at this price."""
        return Balance(
            self.spent + price.cost,
            self.delta_spent + price.delta,
            self.cap_spent + price.cap_cost,
            self.charges + 1,
        )


@dataclass(frozen=True)
class Recorded:
    """Earlier charges that answer queries of a batch, by query and by input digest."""

    queries: Mapping[bytes, Result]
    answered_inputs: Mapping[bytes, Result]
    """Charges that were answered with the teachers' label: it holds for any later query of the
    same input, whatever else the student sent along."""

    def find(self, query_digest: bytes, input_digest: bytes) -> Result | None:
        """Return the charge that answers this query for free. The identical query comes first."""
        return self.queries.get(query_digest) or self.answered_inputs.get(input_digest)


@dataclass(frozen=True)
class Paid:
    """A query that becomes the charge numbered `seq`."""

    seq: int
    proposal: Proposal
    outcome: Outcome
    price: Price


@dataclass(frozen=True)
class Admission:
    """What becomes of a batch: its results in order, the new charges, the balance after them."""

    results: Sequence[Result]
    paid: Sequence[Paid]
    balance: Balance


def admit(
    terms: Terms, balance: Balance, recorded: Recorded, proposals: Sequence[Proposal]
) -> Admission:
    """Decide a batch in its order.

    A query that is recorded, or that came earlier in this batch, is replayed. A new one is paid as
    long as one more at the worst price is certain to fit; from the first that is not, or that was
    not voted on, every further new one is refused. Raises ValueError for an outcome that is not on
    the price list: nothing unpriced is ever released.
    """
    queries, answered_inputs = dict(recorded.queries), dict(recorded.answered_inputs)
    known = Recorded(queries, answered_inputs)
    results: list[Result] = []
    paid: list[Paid] = []
    refusing = False
    for proposal in proposals:
        earlier = known.find(proposal.query_digest, proposal.input_digest)
        if earlier is not None:
            results.append(replace(earlier, replayed=True))
            continue
        refusing = (
            refusing
            or proposal.outcome is None
            or terms.affordable(balance.spent, balance.delta_spent) < 1
        )
        if refusing or proposal.outcome is None:
            results.append(REFUSED)
            continue
        if proposal.outcome not in terms.prices:
            raise ValueError(f"{proposal.outcome!r} is not on the project's price list")
        outcome, price = Outcome(proposal.outcome), terms.prices[proposal.outcome]
        balance = balance.plus(price)
        result = Result(outcome, proposal.label, balance.charges, replayed=False)
        queries[proposal.query_digest] = result
        if outcome is Outcome.ANSWERED:
            answered_inputs[proposal.input_digest] = result
        results.append(result)
        paid.append(Paid(balance.charges, proposal, outcome, price))
    return Admission(results, paid, balance)
