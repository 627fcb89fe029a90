"""`POST /label`: paid before sent, paid only once, refused exactly where the prices say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.clients import Caller, npy, npz, slug
from support.servers import RunningServer
from support.wording import refuses
from terrine_protocol import ProjectInfo
from terrine_server.errors import DatabaseUnavailable
from terrine_server.labeling.local_voters import LocalVoters
from terrine_server.labeling.pipeline import Labeling
from terrine_server.ledger import ChargedBatch
from terrine_server.metrics import Metrics
from terrine_server.privacy import Account, build_mechanism, quote

Call = Callable[..., Caller]
CONFIDENT = {"name": "confident_gnmax", "threshold": 25, "sigma1": 8.0, "sigma2": 4.0}
INTERACTIVE = CONFIDENT | {"name": "interactive_gnmax", "confidence": 0.9}


def test_the_same_input_in_json_npy_and_npz_is_the_same_query(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project()
    student, inputs = call(), terrine_server.ensemble.public[:4]
    first = student.label(inputs)
    assert first.status_code == 200, first.text
    for again in (
        student.send(npy(inputs), "application/x-npy"),
        student.send(npy(np.asfortranarray(inputs.astype(">f4"))), "application/x-npy"),
        student.send(npz(inputs=inputs), "application/x-npz"),
        student.label(inputs),
    ):
        assert again.status_code == 200, again.text
        assert [r["label"] for r in again.json()["results"]] == [
            r["label"] for r in first.json()["results"]
        ]
        assert all(r["replayed"] for r in again.json()["results"])
        assert again.json()["budget"] == first.json()["budget"]


@pytest.mark.usefixtures("each_database_url")
def test_the_budget_ends_exactly_where_the_price_list_says(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project(epsilon=2.0)
    student, inputs = call(), terrine_server.ensemble.public
    terms = ProjectInfo.model_validate_json(student.http.get("/project").content)
    before = student.http.get("/budget").json()
    exactly = before["budget"] // terms.prices["answered"].cost  # type: ignore[index]
    assert before["affordable"] == exactly

    reply = student.label(inputs[: exactly + 5]).json()
    assert [r["outcome"] for r in reply["results"]] == ["answered"] * exactly + ["refused"] * 5
    assert reply["budget"]["affordable"] == 0
    assert slug(student.label(inputs[exactly:])) == "budget-exhausted"
    again = student.label(inputs[: exactly + 5]).json()
    assert again["results"][:exactly] == [
        r | {"replayed": True} for r in reply["results"][:exactly]
    ]
    assert again["budget"] == reply["budget"]
    assert student.http.get("/budget").json()["charges"] == exactly


SPECS: list[dict[str, Any]] = [
    {"name": "gnmax", "sigma": 40.0},
    {"name": "confident_gnmax", "threshold": 200, "sigma1": 75.0, "sigma2": 25.0},
    {"name": "stable", "sigma": 8.0, "delta_per_query": 1e-9},
    {"name": "lnmax", "gamma": 0.05},
]


@given(
    st.sampled_from(SPECS),
    st.sampled_from([0.9, 3.0, 8.0]),
    st.lists(st.integers(0, 1), max_size=60),
    st.integers(0, 60),
)
def test_every_query_that_the_gate_admits_is_voted_on(
    spec: dict[str, Any], epsilon: float, outcomes: list[int], earlier: int
) -> None:
    """Whatever the outcomes, the gate never admits more than the first `possible` queries."""
    mechanism = build_mechanism(spec, teachers=250, classes=10)
    terms = quote(mechanism, epsilon, 1e-5)
    prices = sorted(terms.prices.values(), key=lambda price: price.cost)
    account, admitted = Account(), 0
    for _ in range(min(earlier, terms.affordable(account))):
        account = account.plus(prices[-1])
    most = terms.most_admitted(account)
    for choice in [*outcomes, *[0] * 10_000]:
        if not terms.admits(account):
            break
        account, admitted = account.plus(prices[choice % len(prices)]), admitted + 1
    assert admitted <= most
    if not any(outcomes) and admitted < 10_000:
        assert admitted == most


def test_interactive_reinforces_right_predictions_and_corrects_wrong_ones(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project(mechanism=INTERACTIVE | {"threshold": 15}, epsilon=20.0)
    student, ensemble = call(), terrine_server.ensemble
    inputs, truth = ensemble.public[:6], ensemble.public_labels[:6]
    sure = np.full((6, 10), 0.0)
    sure[np.arange(6), truth] = 1.0
    first = student.send(npz(inputs=inputs, probabilities=sure), "application/x-npz").json()
    assert {r["outcome"] for r in first["results"]} <= {"reinforced", "answered"}
    confirmed = [i for i, r in enumerate(first["results"]) if r["outcome"] == "reinforced"]
    assert confirmed
    assert all(first["results"][i]["label"] == truth[i] for i in confirmed)

    wrong = np.roll(sure, 1, axis=1)
    second = student.label(inputs, probabilities=wrong).json()["results"]
    for i, result in enumerate(second):
        if first["results"][i]["outcome"] == "answered":
            assert result == first["results"][i] | {"replayed": True}
    assert "answered" in {result["outcome"] for result in second}


def test_every_mechanism_can_be_served(terrine_server: RunningServer, call: Call) -> None:
    fitting: list[dict[str, Any]] = [
        {"name": "lnmax", "gamma": 0.4},
        {"name": "gnmax", "sigma": 4.0},
        CONFIDENT,
        {"name": "immutable", "c": 1, "gamma": 0.3},
        {"name": "immutable", "c": 1, "sigma": 6.0},
        {"name": "stable", "sigma": 3.0, "delta_per_query": 1e-6},
    ]
    for number, spec in enumerate(fitting):
        name = f"p{number}"
        terrine_server.open_project(name, spec, epsilon=10.0, delta=1e-4)
        reply = call("student", name).label(terrine_server.ensemble.public[:3])
        assert reply.status_code == 200, reply.text
        assert {r["outcome"] for r in reply.json()["results"]} <= {"answered", "abstained"}
        assert terrine_server.ledger.verifier.verify_project(name).ok


def test_an_input_with_two_baselines_counts_as_one_input(
    terrine_server: RunningServer, call: Call
) -> None:
    # Teachers almost surely differ from these predictions, and all outcomes cost about the same.
    always = INTERACTIVE | {"threshold": 0, "sigma1": 2.0, "sigma2": 1000.0}
    terrine_server.open_project(mechanism=always, epsilon=3.0)
    assert terrine_server.ledger.projects.get("study").affordable == 2
    label = terrine_server.ensemble.public_labels[0]
    twice, uniform = np.eye(10)[[label - 1, label - 2]] * 0.5 + 0.05, np.full((1, 10), 0.1)
    inputs = terrine_server.ensemble.public[[0, 0, 1]]
    said = call().label(inputs, probabilities=np.concatenate([twice, uniform])).json()["results"]
    assert [r["outcome"] for r in said] == ["answered", "answered", "answered"]
    assert [r["replayed"] for r in said] == [False, True, False]


def test_a_request_checked_for_another_ledgers_project_is_not_answered(
    terrine_server: RunningServer,
) -> None:
    terrine_server.open_project()
    settings = terrine_server.settings
    service = Labeling(
        terrine_server.ledger, LocalVoters(settings.data_dir), Metrics(), settings.max_batch
    )
    ask = service.check("study", terrine_server.ensemble.public[:2])
    with refuses(DatabaseUnavailable, "replaced"):
        service.answer("study", [ask, replace(ask, genesis="00" * 32)])
    assert terrine_server.ledger.projects.get("study").charges == 0
    ask = service.check("study", terrine_server.ensemble.public[:2])
    (receipt,) = service.answer("study", [ask])
    assert isinstance(receipt, ChargedBatch)
    assert terrine_server.ledger.projects.get("study").charges == 2
