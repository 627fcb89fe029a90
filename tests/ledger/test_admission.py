"""The decision about a batch, on any batch: against a reckoning that is too simple to be wrong."""

from __future__ import annotations

from dataclasses import replace

from books import CONFIDENT, STABLE, digest, terms
from hypothesis import given
from hypothesis import strategies as st

from terrine_client.protocol import Outcome
from terrine_server.ledger.admission import Recorded, admit
from terrine_server.ledger.records import Proposal
from terrine_server.privacy import Account
from terrine_server.privacy import Outcome as PaidOutcome

PRICED = terms(1, CONFIDENT)


@st.composite
def proposals(draw: st.DrawFn) -> list[Proposal]:
    def proposal(query: int, given_input: int, kind: int) -> Proposal:
        outcome = [None, PaidOutcome.ABSTAINED, PaidOutcome.ANSWERED][kind]
        label = query % 10 if outcome is PaidOutcome.ANSWERED else None
        # A query determines its input.
        return Proposal(digest((query, given_input)), digest(given_input), outcome, label)

    kinds = st.sampled_from([0, 1, 1, 2, 2, 2])
    return draw(
        st.lists(st.builds(proposal, st.integers(0, 3), st.integers(0, 6), kinds), max_size=30)
    )


@given(batch=proposals(), queries=st.integers(0, 12), extra=st.integers(0, 10**9))
def test_a_batch_is_decided_by_balances_alone(
    batch: list[Proposal], queries: int, extra: int
) -> None:
    worst = PRICED.worst
    budget = queries * worst.cost + extra
    offered = replace(PRICED, budget=budget, cap_budget=budget)
    admission = admit(offered, Account(), Recorded({}, {}), batch)

    assert len(admission.results) == len(batch)
    assert admission.account.spent <= budget
    assert [paid.seq for paid in admission.entries] == list(range(1, len(admission.entries) + 1))
    assert admission.account.spent == sum(paid.price.cost for paid in admission.entries)
    digests = [p.query_digest for entry in admission.entries if (p := entry.proposal)]
    assert len(set(digests)) == len(digests), "no query is paid twice"

    spent, refusing = 0, False
    by_seq = {entry.seq: entry for entry in admission.entries}
    for proposal, result in zip(batch, admission.results, strict=True):
        if result.seq is None:
            assert result.outcome is Outcome.REFUSED
            assert refusing or proposal.outcome is None or spent + worst.cost > budget
            refusing = True
        elif result.replayed:
            source = by_seq[result.seq]
            assert source.proposal is not None
            same = source.proposal.query_digest == proposal.query_digest
            same_input = source.proposal.input_digest == proposal.input_digest
            assert same or (same_input and result.outcome is Outcome.ANSWERED)
            assert (result.outcome, result.label) == (source.outcome, source.proposal.label)
        else:
            assert not refusing, "nothing new is paid after a refusal"
            assert spent + worst.cost <= budget, "admitted at the worst price"
            spent += by_seq[result.seq].price.cost
            assert proposal.outcome is not None
            assert result.outcome is Outcome(proposal.outcome)
            assert result.label == proposal.label


@given(batch=proposals(), queries=st.integers(0, 8))
def test_what_is_refused_does_not_depend_on_votes_beyond_what_was_told(
    batch: list[Proposal], queries: int
) -> None:
    """Change the outcome of the query at the first refusal: everything said stays the same."""
    offered = replace(PRICED, budget=queries * PRICED.worst.cost)
    told = admit(offered, Account(), Recorded({}, {}), batch).results
    refused = [i for i, result in enumerate(told) if result.outcome is Outcome.REFUSED]
    for i in refused:
        if batch[i].outcome is not None:
            other = replace(batch[i], outcome=PaidOutcome.ABSTAINED, label=None)
            changed = [*batch[:i], other, *batch[i + 1 :]]
            again = admit(offered, Account(), Recorded({}, {}), changed).results
            assert again == told


@given(batch=proposals())
def test_asking_a_batch_again_is_free(batch: list[Proposal]) -> None:
    offered = replace(PRICED, budget=100 * PRICED.worst.cost)
    first = admit(offered, Account(), Recorded({}, {}), batch)
    asked = [(p, entry.outcome) for entry in first.entries if (p := entry.proposal)]
    paid = {p.query_digest: first.results[batch.index(p)] for p, _ in asked}
    inputs = {
        p.input_digest: paid[p.query_digest] for p, outcome in asked if outcome is Outcome.ANSWERED
    }
    again = admit(offered, first.account, Recorded(paid, inputs), batch)
    assert not again.entries
    assert again.account == first.account


def test_a_budget_is_spent_to_the_last_unit_and_no_further() -> None:
    """Both axes: the cost, and the additive δ of the stability test."""
    offered = terms(3, STABLE)
    worst = offered.worst
    batch = [Proposal(digest(i), digest(i), PaidOutcome.ANSWERED, 1) for i in range(4)]
    for short in (
        replace(offered, budget=3 * worst.cost - 1),
        replace(offered, delta_budget=3 * worst.delta - 1),
    ):
        assert len(admit(short, Account(), Recorded({}, {}), batch).entries) == 2
    exact = replace(offered, budget=3 * worst.cost, delta_budget=3 * worst.delta)
    admission = admit(exact, Account(), Recorded({}, {}), batch)
    assert (admission.account.spent, admission.account.delta_spent) == (
        exact.budget,
        exact.delta_budget,
    )
