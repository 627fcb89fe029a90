"""A project with a joint price: opened, charged by outcome, refused and verified over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from caller import Caller, slug
from server import RunningServer

from terrine_client import BudgetExhausted, Client
from terrine_protocol import Outcome, ProjectInfo

Call = Callable[..., Caller]
CONFIDENT: dict[str, Any] = {
    "name": "confident_gnmax",
    "threshold": 24,
    "sigma1": 8.0,
    "sigma2": 6.0,
}
TERMS = {
    "name": "study",
    "ensemble": "digits",
    "mechanism": CONFIDENT,
    "epsilon": 5.0,
    "delta": 1e-5,
    "expected_pass_rate": 0.8,
}


def test_the_reply_says_what_was_chosen_and_what_was_not(call: Call) -> None:
    opened = call("admin").http.post("/projects", json=TERMS)
    assert opened.status_code == 201
    info = ProjectInfo.model_validate_json(opened.content)
    assert info.choice is not None
    best, apart = info.choice.considered
    assert (info.choice.pass_rate, info.rule) == (0.8, best.rule)
    assert best.answers > apart.answers
    assert info.mechanism.model_dump()["answer_share"] == best.answer_share
    assert json.loads(opened.content)["choice"]["considered"][1]["rule"]["name"] == "gdp"


def test_outcomes_are_charged_at_the_prices_of_the_terms_until_they_do_not_fit(
    terrine_server: RunningServer, call: Call
) -> None:
    info = ProjectInfo.model_validate_json(call("admin").http.post("/projects", json=TERMS).content)
    images = terrine_server.ensemble.public
    with Client(terrine_server.url, terrine_server.token()) as student:
        asked = 0
        while student.budget().affordable:
            student.label(images[asked : asked + 4])
            asked += 4
        with pytest.raises(BudgetExhausted):
            student.label(images[asked : asked + 1])
        budget = student.budget()
    with Client(terrine_server.url, terrine_server.token("auditor")) as auditor:
        entries = list(auditor.charges("study"))
        assert auditor.verify("study").ok
    assert {entry.outcome for entry in entries} <= {Outcome.ANSWERED, Outcome.ABSTAINED}
    spent = 0
    for entry in entries:
        assert entry.cost == info.prices[entry.outcome].cost
        assert entry.event["event"] == "confident_max"
        assert entry.event["answered"] == (entry.outcome is Outcome.ANSWERED)
        spent += entry.cost
    dearest = max(price.cost for price in info.prices.values())
    assert spent == budget.spent <= budget.budget < spent + dearest
    assert 0 < budget.epsilon_spent <= 5.0
    assert terrine_server.ledger.project("study").terms.choice is not None


@pytest.mark.parametrize("rate", [0, -1, 1.01, "often", None])
def test_an_impossible_expectation_opens_nothing(
    terrine_server: RunningServer, call: Call, rate: object
) -> None:
    admin = call("admin")
    refused = admin.http.post("/projects", json=TERMS | {"expected_pass_rate": rate})
    if rate is None:  # not given: the default expectation
        assert refused.status_code == 201
        return
    assert slug(refused) == "invalid-request"
    assert "expected_pass_rate" in refused.text
    both = TERMS | {"accounting": "data_dependent"}
    assert "goes with accounting" in admin.http.post("/projects", json=both).text
    assert terrine_server.ledger.projects(None, 10) == []
