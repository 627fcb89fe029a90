"""Noisy counts over HTTP: paid like gnmax, told again as they were, and for noisy_votes alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from support.clients import Caller, npy, npz, slug
from support.forgeries import write
from support.ledgers import unguarded
from support.processes import Terrine
from support.servers import RunningServer
from support.wording import holds
from terrine_protocol import LabelResponse
from terrine_server.labeling.local_voters import LocalVoters
from terrine_server.ledger import connect
from terrine_server.ledger.verifying import verify_export
from terrine_server.privacy import VoteOutcome
from terrine_server.privacy.events import GaussianNoisyMax
from terrine_server.privacy.prices import price

Call = Callable[..., Caller]
COUNTED = {"name": "noisy_votes", "sigma": 4.0}
FALSE_ALARM = 1e-9
"""Of each side of the test of the noise's width; half the noise, or none, is found."""


def results(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()["results"]
    return found


def counts_of(found: list[dict[str, Any]]) -> NDArray[np.int64]:
    return np.array([result["counts"] for result in found])


def votes_on(server: RunningServer, inputs: NDArray[Any]) -> NDArray[np.int64]:
    """What the teachers really voted, which no student ever sees."""
    record = server.ledger.ensembles.get("digits")
    return LocalVoters(server.settings.data_dir).votes(record, inputs)


@pytest.mark.statistical
def test_counts_are_the_votes_with_noise_and_the_label_is_the_largest(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project(mechanism=COUNTED, epsilon=20.0)
    inputs = terrine_server.ensemble.public[:60]
    reply = call().label(inputs)
    told = LabelResponse.model_validate_json(reply.content)
    assert told.noise_sigma == 4.0
    counts = counts_of(results(reply))
    assert counts.shape == (60, 10)
    assert [result.label for result in told.results] == counts.argmax(axis=1).tolist()
    assert (counts < 0).any(), "they are not cut off"
    noise = counts - votes_on(terrine_server, inputs)
    # A row without noise comes of right code once in 10¹⁰ times, two of 60 once in 10¹⁶.
    assert (~noise.any(axis=1)).sum() <= 1
    spread = float((noise**2).sum()) / 4.0**2
    # Of 600 draws, half the noise is found with certainty.
    assert chi2.sf(spread, noise.size) > FALSE_ALARM / 2
    assert chi2.cdf(spread, noise.size) > FALSE_ALARM / 2


def test_counts_cost_what_the_whole_noise_reveals_and_labels_no_more(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project(mechanism=COUNTED)
    terrine_server.open_project("labels", {"name": "gnmax", "sigma": 4.0})
    inputs = terrine_server.ensemble.public[:5]
    counted, labelled = call().label(inputs), call(project="labels").label(inputs)
    paid, usual = counted.json()["budget"], labelled.json()["budget"]
    assert paid["spent"] > 0
    assert paid["affordable"] < usual["affordable"]
    of_counts, of_labels = (
        terrine_server.ledger.projects.get(name).terms for name in ("study", "labels")
    )
    whole = price(GaussianNoisyMax(4.0), of_counts.rule, of_counts.cap_rule)
    assert of_counts.prices == {VoteOutcome.ANSWERED: replace(whole, delta=1)}
    assert of_labels.prices[VoteOutcome.ANSWERED].cap_cost < whole.cap_cost


@pytest.mark.usefixtures("each_database_url")
def test_the_same_input_has_the_same_counts_for_ever(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project(mechanism=COUNTED)
    student, inputs = call(), terrine_server.ensemble.public[:4]
    first = student.label(inputs)
    paid = counts_of(results(first)).tolist()
    for again in (
        student.label(inputs),
        student.send(npy(inputs), "application/x-npy"),
        student.send(npz(inputs=inputs), "application/x-npz"),
        call().label(inputs[::-1]),
    ):
        found = results(again)
        counts = counts_of(found).tolist()
        assert counts in (paid, paid[::-1])
        assert again.json()["budget"] == first.json()["budget"]
        assert again.json()["noise_sigma"] == 4.0
    entries = terrine_server.ledger.entries.list("study")
    assert [list(entry.counts or ()) for entry in entries] == paid
    twice = results(student.label(np.concatenate([inputs[:1], inputs[:1]])))
    assert twice[0]["counts"] == twice[1]["counts"] == paid[0]


def test_a_query_that_is_refused_has_no_counts(terrine_server: RunningServer, call: Call) -> None:
    terrine_server.open_project(mechanism=COUNTED, epsilon=2.0)
    room = terrine_server.ledger.projects.get("study").affordable
    found = results(call().label(terrine_server.ensemble.public[: room + 3]))
    assert ["counts" in result for result in found] == [True] * room + [False] * 3
    assert [result["outcome"] for result in found[room:]] == ["refused"] * 3
    assert slug(call().label(terrine_server.ensemble.public[50:53])) == "budget-exhausted"


def test_no_other_mechanism_sends_counts(terrine_server: RunningServer, call: Call) -> None:
    """Not even null: its replies are what they were."""
    terrine_server.open_project()
    reply = call().label(terrine_server.ensemble.public[:2])
    assert set(reply.json()) == {"results", "budget"}
    for result in results(reply):
        assert set(result) == {"outcome", "label", "charge", "hash", "replayed"}


def test_counts_are_the_students_and_the_owners_alone(
    terrine_server: RunningServer, call: Call, tmp_path: Path
) -> None:
    """The ledger's pages and metrics show labels; an owner's export shows all that is hashed."""
    terrine_server.open_project(mechanism=COUNTED)
    found = results(call().label(terrine_server.ensemble.public[:3]))
    auditor = call("auditor").http
    page = auditor.get("/ledger/study").json()["items"]
    assert [item["label"] for item in page] == [result["label"] for result in found]
    assert all("counts" not in item for item in page)
    assert page[0]["event"] == {"event": "gaussian_noisy_counts", "sigma": 4.0}
    assert page[0]["mechanism"] == COUNTED
    header = auditor.get("/ledger/study", headers={"Accept": "text/csv"}).text.splitlines()[0]
    assert "counts" not in header
    assert auditor.get("/ledger/study/verify").json()["ok"]
    exported = tmp_path / "export.jsonl"
    lines = list(terrine_server.ledger.exports.export_project("study"))
    assert [line["counts"] for line in lines[1:]] == [result["counts"] for result in found]
    exported.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert verify_export(exported).ok


def test_edited_counts_are_ledger_corrupted(terrine_server: RunningServer, call: Call) -> None:
    terrine_server.open_project(mechanism=COUNTED)
    student, inputs = call(), terrine_server.ensemble.public[:3]
    counts = results(student.label(inputs))[1]["counts"]
    edited = json.dumps([counts[0] + 1, *counts[1:]], separators=(",", ":"))
    with unguarded(str(connect_url(terrine_server))) as connection:
        write(connection, 2, {"counts": edited})
    for refused in (student.label(inputs), student.label(inputs[1:2])):
        assert slug(refused) == "ledger-corrupted"
        assert edited not in refused.text
    results(student.label(inputs[:1]))
    verdict = call("auditor").http.get("/ledger/study/verify").json()
    assert not verdict["ok"]
    assert verdict["problems"][0].startswith("entry 2: altered")
    with unguarded(str(connect_url(terrine_server))) as connection:
        write(connection, 2, {"counts": json.dumps(counts, separators=(",", ":"))})
    assert results(student.label(inputs))[1]["counts"] == counts


def connect_url(server: RunningServer) -> str:
    return connect(server.settings.database).url.render_as_string(hide_password=False)


def test_the_owners_commands_know_it(
    terrine_server: RunningServer,
    call: Call,
    terrine: Terrine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in terrine_server.variables.items():
        monkeypatch.setenv(name, value)
    budget = ("--epsilon", "5", "--delta", "1e-5")
    opening = ("--ensemble", "digits", "--mechanism", "noisy_votes:sigma=4")
    holds(terrine("project", "open", "study", *opening, *budget).fine, "noisy_votes", "sigma", 4.0)
    refused = terrine(
        "project", "open", "other", *opening, *budget, "--accounting", "data_dependent"
    )
    holds(refused.refused, "noisy_votes", "worst_case")
    found = results(call().label(terrine_server.ensemble.public[:3]))
    assert "3 charges" in terrine("ledger", "verify", "study").fine
    shown = json.loads(terrine("--json", "ledger", "show", "study").fine)
    assert [e["counts"] for e in shown["last_charges"]] == [result["counts"] for result in found]
    file = tmp_path / "study.json"
    assert terrine("ledger", "export", "study", "--output", str(file)).fine
    assert json.dumps(found[0]["counts"]) in file.read_text()
    assert "intact" in terrine("ledger", "verify", "--file", str(tmp_path / "study.json")).fine
    books = terrine("audit", "ledger").fine
    holds(books, "price", "event")
