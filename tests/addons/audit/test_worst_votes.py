"""The attack on joint prices finds votes that need nearly all of them, and lower ones fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.wording import holds
from terrine_addons.audit import evidence
from terrine_addons.audit.evidence import EXAMPLE, audit_prices, needed_by_answer, needed_share
from terrine_server.privacy import GaussianArgmax, Price, Rule, VoteOutcome, build_mechanism, price

SHARES = (1.0, 0.5, 0.05)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(
    ("teachers", "threshold", "sigma1", "sigma2", "order"),
    [
        (2000, 1600, 400.0, 300.0, 17.71),
        (250, 200, 50.0, 37.5, 17.8),
        (1000, 500, 248.0, 174.0, 17),
    ],
)
def test_the_worst_votes_found_need_most_of_a_price_and_never_more(
    teachers: int, threshold: int, sigma1: float, sigma2: float, order: float, share: float
) -> None:
    spec = EXAMPLE | {"threshold": threshold, "sigma1": sigma1, "sigma2": sigma2}
    mechanism = build_mechanism(spec | {"answer_share": share}, teachers=teachers, classes=10)
    events = mechanism.events()
    answer, abstention = (
        price(events[outcome], Rule("rdp", order))
        for outcome in (VoteOutcome.ANSWERED, VoteOutcome.ABSTAINED)
    )
    needed, _ = needed_share(events[VoteOutcome.ANSWERED], answer, abstention, order)
    assert needed <= 1
    if teachers == 2000:  # near a tie, where the others are worst, the price has no room for less
        assert needed > 0.95


@pytest.mark.parametrize(
    ("sigma", "order", "teachers", "least"),
    [(40.0, 17.71, 2000, 0.99), (20.0, 10.0, 100, 0.98), (300.0, 8.0, 4000, 0.99)],
)
def test_the_worst_votes_found_need_most_of_the_price_of_an_answer(
    sigma: float, order: float, teachers: int, least: float
) -> None:
    event = GaussianArgmax(sigma)
    charged = price(event, Rule("rdp", order))
    needed, _ = needed_by_answer(event, charged, order, teachers, 10)
    assert least < needed <= 1


@pytest.mark.parametrize(
    ("levels", "joint_share", "poisoned_share"),
    [(14, "99.2%", "37.4%"), pytest.param(40, "99.6%", "37.8%", marks=pytest.mark.nightly)],
    ids=["few levels", "as it is run"],
)
def test_each_adversary_is_held_to_its_worst_votes_and_too_low_a_price_is_exceeded(
    levels: int, joint_share: str, poisoned_share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "TOP_COUNTS_TRIED", levels)
    joint, joint_poisoned, answer, poisoned = audit_prices()
    assert all(each.verdict == "holds" for each in (joint, joint_poisoned, answer, poisoned))
    holds(joint.evidence, joint_share)
    holds(answer.evidence, "99.3%")
    # A test against a threshold tells much of queries as they come; a clear maximum nothing.
    holds(joint_poisoned.evidence, "90.9%", "0%")
    needed = f"need 0.0% with 0%, 0.0% with 10%, 0.0% with 30%, {poisoned_share} with 45%"
    assert needed in poisoned.evidence

    def cheaper(*args: Any) -> Price:
        whole = price(*args)
        return replace(whole, cost=whole.cost * 9 // 10)

    monkeypatch.setattr(evidence, "price", cheaper)
    monkeypatch.setattr(evidence, "TOP_COUNTS_TRIED", 14)  # enough to exceed it
    joint, joint_poisoned, answer, poisoned = audit_prices()
    assert joint.verdict == joint_poisoned.verdict == answer.verdict == "exceeded"
    assert "need 110." in answer.evidence
    assert poisoned.verdict == "holds", "with less than half of the shards"
