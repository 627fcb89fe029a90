"""A project with epochs, over HTTP: opened, queried, overtaken, exhausted, replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from caller import Caller, slug
from server import RunningServer

from terrine_protocol import Budget, LabelResponse, Outcome, ProjectInfo
from terrine_server.labeling.local_voters import LocalVoters, RegisteredEnsemble
from terrine_server.labeling.pipeline import Labeling
from terrine_server.ledger import ChargedBatch
from terrine_server.metrics import Metrics

Call = Callable[..., Caller]
MECHANISM = {
    "name": "stable_svt",
    "epsilon_per_epoch": 3.0,
    "delta_per_query": 1e-6,
    "answers_per_epoch": 4,
}
TERMS = {
    "name": "study",
    "ensemble": "digits",
    "mechanism": MECHANISM,
    "epsilon": 9.1,
    "delta": 2.5e-4,
}
EPOCHS = 3


def of_epochs(results: list[Any]) -> list[bool]:
    """Return whether each paid result of one request opens an epoch, from the outcomes alone."""
    left, opens = 0, []
    for result in results:
        if result.charge is not None and not result.replayed:
            opens.append(left == 0)
            left = (4 if left == 0 else left) - 1
            left = left if result.outcome is Outcome.ANSWERED else 0
    return opens


def test_epochs_are_paid_when_they_open_until_no_more_fit(
    terrine_server: RunningServer, call: Call
) -> None:
    opened = call("admin").http.post("/projects", json=TERMS)
    assert opened.status_code == 201, opened.text
    info = ProjectInfo.model_validate_json(opened.content)
    assert info.mechanism.model_dump() == MECHANISM
    assert info.opening is not None
    assert {price.cost for price in info.prices.values()} == {0}
    student, inputs = call(), terrine_server.ensemble.public
    account = Budget.model_validate(student.http.get("/budget").json())
    assert account.affordable == EPOCHS, "certain, however they are sent"

    replies = []
    for start in range(0, 100, 6):
        reply = student.label(inputs[start : start + 6])
        if reply.status_code != 200:
            assert slug(reply) == "budget-exhausted"
            break
        replies.append(LabelResponse.model_validate_json(reply.content))
    else:
        pytest.fail("the budget never ended")
    assert sum(sum(of_epochs(reply.results)) for reply in replies) == EPOCHS
    charged = [result for reply in replies for result in reply.results if result.charge]
    assert EPOCHS <= len(charged) <= EPOCHS * 5
    account = replies[-1].budget
    assert account.spent == EPOCHS * info.opening.cost <= account.budget
    assert account.affordable == 0
    assert account.epsilon_spent <= account.epsilon

    events = [entry.event["event"] for entry in terrine_server.ledger.charges("study")]
    opens = [first for reply in replies for first in of_epochs(reply.results)]
    assert events == ["composition" if first else "within_epoch" for first in opens]
    assert terrine_server.ledger.verify("study").ok

    again = LabelResponse.model_validate_json(student.label(inputs[:6]).content)
    assert again.budget == account, "answers are replayed at no cost"
    pairs = zip(again.results, replies[0].results, strict=True)
    for result, before in pairs:
        if before.charge is not None:
            assert result.replayed
            assert (result.outcome, result.label) == (before.outcome, before.label)


class Overtaking(LocalVoters):
    """While a request is voted on, another request with one of its queries is answered."""

    overtake: Callable[[], ChargedBatch] | None = None

    def votes(self, record: RegisteredEnsemble, inputs: np.ndarray) -> np.ndarray:
        overtake, self.overtake = self.overtake, None
        if overtake is not None:
            overtake()
        return super().votes(record, inputs)


@pytest.mark.usefixtures("each_database_url")
def test_a_request_that_is_overtaken_is_drawn_again(terrine_server: RunningServer) -> None:
    terrine_server.open_project(mechanism=MECHANISM, epsilon=13.0, delta=4e-4)
    settings, ledger = terrine_server.settings, terrine_server.ledger
    voters = Overtaking(settings.data_dir)
    service = Labeling(ledger, voters, Metrics(), settings.max_batch)
    inputs = terrine_server.ensemble.public[:3]

    def ask(inputs: np.ndarray) -> ChargedBatch:
        (receipt,) = service.answer("study", [service.check("study", inputs)])
        assert isinstance(receipt, ChargedBatch)
        return receipt

    voters.overtake = lambda: ask(inputs[1:2])
    receipt = ask(inputs)
    assert [result.replayed for result in receipt.results] == [False, True, False]
    assert [result.seq for result in receipt.results] == [2, 1, 3]
    entries = ledger.charges("study")
    assert [entry.event["event"] for entry in entries[:2]] == ["composition", "composition"]
    assert ledger.verify("study").ok

    # A retry may overtake a request, too: both get the same answers.
    more = terrine_server.ensemble.public[3:4]
    first: list[ChargedBatch] = []

    def repeat() -> ChargedBatch:
        first.append(ask(more))
        return first[0]

    voters.overtake = repeat
    assert ask(more).results == [replace(r, replayed=True) for r in first[0].results]
    paid = [result for result in first[0].results if result.seq is not None]
    assert ledger.project("study").charges == 3 + len(paid) > 3
    assert ledger.verify("study").ok
