"""A project with a joint price: opened, charged by outcome, refused and verified over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.clients import Caller, npz, slug
from support.forgeries import Hand
from support.servers import RunningServer
from support.wording import holds
from terrine_client import BudgetExhausted, Client
from terrine_protocol import Outcome, ProjectInfo
from terrine_server.ledger import connect

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
    worst = max(price.cost for price in info.prices.values())
    assert spent == budget.spent <= budget.budget < spent + worst
    assert 0 < budget.epsilon_spent <= 5.0
    assert terrine_server.ledger.projects.get("study").terms.choice is not None


def test_queries_with_even_probabilities_pay_less_and_are_free_when_repeated(
    terrine_server: RunningServer, call: Call, database_url: str
) -> None:
    interactive = {"name": "interactive_gnmax", "threshold": 20, "sigma1": 8.0, "sigma2": 4.0}
    mechanism = interactive | {"confidence": 0.9}
    terms = TERMS | {"mechanism": mechanism, "epsilon": 20.0}
    opened = call("admin").http.post("/projects", json=terms)
    info = ProjectInfo.model_validate_json(opened.content)
    assert info.by_baseline is not None
    assert [each.baseline for each in info.by_baseline] == [2, 4]
    half, even = ({o: p.cost for o, p in each.prices.items()} for each in info.by_baseline)
    full = {outcome: price.cost for outcome, price in info.prices.items()}
    assert max(even.values()) < max(half.values()) < max(full.values())

    images = terrine_server.ensemble.public
    rows = np.full((3, 10), 0.1)
    rows[1, :2], rows[1, 2:] = 0.3, 0.05  # two votes of 40
    rows[2, :5], rows[2, 5:] = 0.2, 0.0
    body = npz(inputs=images[:3], probabilities=rows)
    first = call().send(body, "application/x-npz").json()
    outcomes = [Outcome(result["outcome"]) for result in first["results"]]
    expected = [
        prices[outcome] for prices, outcome in zip((even, half, full), outcomes, strict=True)
    ]
    again = call().send(body, "application/x-npz").json()
    assert all(result["replayed"] for result in again["results"])
    assert again["budget"]["spent"] == sum(expected)
    with Client(terrine_server.url, terrine_server.token("auditor")) as auditor:
        entries = sorted(auditor.charges("study"), key=lambda entry: entry.seq)
        assert auditor.verify("study").ok
    assert [entry.cost for entry in entries] == expected
    assert [entry.event["baseline"] for entry in entries] == [4, 2, 0]
    hand = Hand(connect(database_url), database_url)
    with hand.set("charges", 0, "cost", full[outcomes[0]]) as done:
        assert done
        found = terrine_server.ledger.verifier.verify_project("study").problems
        holds(found, "price", f"{str(outcomes[0])!r}", "baseline", 4)
    audit = pytest.importorskip("terrine_addons.audit.ledger")
    project = terrine_server.ledger.projects.get("study")
    assert list(audit.check_project(terrine_server.ledger, project)) == []


def test_an_impossible_expectation_opens_nothing(terrine_server: RunningServer, call: Call) -> None:
    admin = call("admin")
    for rate in (0, -1, 1.01, "often"):
        refused = admin.http.post("/projects", json=TERMS | {"expected_pass_rate": rate})
        assert slug(refused) == "invalid-request"
        assert "expected_pass_rate" in refused.text
    both = TERMS | {"accounting": "data_dependent", "expected_pass_rate": 0.5}
    assert slug(admin.http.post("/projects", json=both)) == "invalid-request"
    assert terrine_server.ledger.projects.list(None, 10) == []
    not_given = admin.http.post("/projects", json=TERMS | {"expected_pass_rate": None})
    assert not_given.status_code == 201, "the default expectation"
