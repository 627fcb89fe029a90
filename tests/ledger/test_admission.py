"""The decision about a batch, on any batch: against a reckoning that is too simple to be wrong."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from support.ledgers import CONFIDENT, GNMAX, STABLE, abstained, answered, digest, terms
from support.wording import refuses
from terrine_protocol import Outcome
from terrine_server.ledger import RecordedCharges
from terrine_server.ledger.charging import admit
from terrine_server.ledger.records import Proposal
from terrine_server.privacy import Account, Price, Terms, VoteOutcome
from terrine_server.privacy.budget import BaselinePrices

PRICED = terms(1, CONFIDENT)


@st.composite
def proposals(draw: st.DrawFn) -> list[Proposal]:
    def proposal(query: int, given_input: int, kind: int) -> Proposal:
        outcome = [None, VoteOutcome.ABSTAINED, VoteOutcome.ANSWERED][kind]
        label = query % 10 if outcome is VoteOutcome.ANSWERED else None
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
    admission = admit(offered, Account(), RecordedCharges({}, {}), batch)

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
def test_refusals_do_not_depend_on_votes_beyond_the_results(
    batch: list[Proposal], queries: int
) -> None:
    """Change the outcome of the query at the first refusal: all results stay the same."""
    offered = replace(PRICED, budget=queries * PRICED.worst.cost)
    results = admit(offered, Account(), RecordedCharges({}, {}), batch).results
    refused = [i for i, result in enumerate(results) if result.outcome is Outcome.REFUSED]
    for i in refused:
        if batch[i].outcome is not None:
            other = replace(batch[i], outcome=VoteOutcome.ABSTAINED, label=None)
            changed = [*batch[:i], other, *batch[i + 1 :]]
            again = admit(offered, Account(), RecordedCharges({}, {}), changed).results
            assert again == results


@given(batch=proposals())
def test_asking_a_batch_again_is_free(batch: list[Proposal]) -> None:
    offered = replace(PRICED, budget=100 * PRICED.worst.cost)
    first = admit(offered, Account(), RecordedCharges({}, {}), batch)
    asked = [(p, entry.outcome) for entry in first.entries if (p := entry.proposal)]
    paid = {p.query_digest: first.results[batch.index(p)] for p, _ in asked}
    inputs = {
        p.input_digest: paid[p.query_digest] for p, outcome in asked if outcome is Outcome.ANSWERED
    }
    again = admit(offered, first.account, RecordedCharges(paid, inputs), batch)
    assert not again.entries
    assert again.account == first.account


def test_a_budget_is_spent_to_the_last_unit_and_no_further() -> None:
    """Both axes: the cost, and the additive δ of the stability test."""
    offered = terms(3, STABLE)
    worst = offered.worst
    batch = [Proposal(digest(i), digest(i), VoteOutcome.ANSWERED, 1) for i in range(4)]
    for short in (
        replace(offered, budget=3 * worst.cost - 1),
        replace(offered, delta_budget=3 * worst.delta - 1),
    ):
        assert len(admit(short, Account(), RecordedCharges({}, {}), batch).entries) == 2
    exact = replace(offered, budget=3 * worst.cost, delta_budget=3 * worst.delta)
    admission = admit(exact, Account(), RecordedCharges({}, {}), batch)
    assert (admission.account.spent, admission.account.delta_spent) == (
        exact.budget,
        exact.delta_budget,
    )


def by_baseline(queries: int) -> Terms:
    """Terms with half the price from a baseline of 10 votes, and a fifth from 25."""
    cheaper = tuple(
        BaselinePrices(
            baseline,
            {
                outcome: Price(price.cost // part, price.delta, price.cap_cost // part)
                for outcome, price in PRICED.prices.items()
            },
        )
        for baseline, part in ((10, 2), (25, 5))
    )
    return replace(PRICED, budget=queries * PRICED.worst.cost, by_baseline=cheaper)


@given(
    batch=st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=30),
    queries=st.integers(0, 5),
)
def test_a_query_is_admitted_and_paid_at_the_price_of_its_baseline(
    batch: list[tuple[int, bool]], queries: int
) -> None:
    offered = by_baseline(queries)
    proposals = [
        replace(answered(number) if passed else abstained(number), baseline=baseline)
        for number, (baseline, passed) in enumerate(batch)
    ]
    admission = admit(offered, Account(), RecordedCharges({}, {}), proposals)
    spent, paid = 0, list(admission.entries)
    for (baseline, passed), result in zip(batch, admission.results, strict=True):
        part = 5 if baseline >= 25 else 2 if baseline >= 10 else 1
        if result.outcome is Outcome.REFUSED:
            assert spent + offered.worst.cost // part > offered.budget
            break
        entry = paid.pop(0)
        outcome = VoteOutcome.ANSWERED if passed else VoteOutcome.ABSTAINED
        assert entry.price.cost == PRICED.prices[outcome].cost // part
        assert entry.baseline == {1: 0, 2: 10, 5: 25}[part]
        spent += entry.price.cost
    assert not paid
    assert spent == admission.account.spent <= offered.budget
    assert len(admission.entries) <= offered.most_admitted(Account())


def test_nothing_is_released_that_has_no_price() -> None:
    with refuses(ValueError, "price", "abstained"):
        admit(terms(3, GNMAX), Account(), RecordedCharges({}, {}), [abstained(1)])
