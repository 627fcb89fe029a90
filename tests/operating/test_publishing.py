"""A data-dependent project from opening to exhaustion: real teachers, commands, HTTP."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from support.clients import slug
from support.processes import SEED, Terrine
from support.servers import Machine, Serving, serving_process
from support.wording import holds
from terrine_client import BudgetExhausted, Client
from terrine_protocol import Outcome, SecretSpend

pytestmark = pytest.mark.slow

CLASSES, WORST_CASE = 4, 171
"""Queries that ε = 2 and δ = 1e-6 pay for at σ = 50 in the worst case (Gaussian DP)."""
MECHANISM = ("--mechanism", "gnmax:sigma=50", "--epsilon", "2", "--delta", "1e-6")
OPEN = ("project", "open", "study", "--ensemble", "blobs", *MECHANISM)
PUBLISHING = ("--accounting", "data_dependent", "--consensus", "0.95:9,0.6:1")


def blobs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points around four centres, so far apart that teachers agree."""
    source = np.random.default_rng(seed)
    labels = source.integers(0, CLASSES, count)
    centres = np.random.default_rng(0).normal(size=(CLASSES, 6)) * 3
    points = np.clip(centres[labels] + source.normal(size=(count, 6)), -15, 15)
    return points.astype(np.float32), labels


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("blobs")
    points, labels = blobs(16_000, seed=1)
    np.savez(directory / "private.npz", x=points, y=labels, low=-15.0, high=15.0)
    np.save(directory / "pool.npy", blobs(2_000, seed=2)[0])
    return directory


@pytest.fixture
def thousand(machine: Machine, private: Path) -> Machine:
    """A thousand teachers, trained once, and registered with a Rényi order."""
    machine.run("init").fine  # noqa: B018 - asserts
    kept, own = private / "blobs", machine.data / "ensembles" / "blobs"
    if kept.exists():
        shutil.copytree(kept, own)
    else:
        given = ("ensemble", "train", private / "private.npz", "--public", private / "pool.npy")
        how = ("--name", "blobs", "--teachers", 1000, "--classes", CLASSES)
        machine.run(*given, *how).fine  # noqa: B018 - asserts
        shutil.copytree(own, kept)
    cap = ("--epsilon", "6", "--delta", "2e-5", "--rule", "rdp:12")
    holds(machine.run("ensemble", "register", "blobs", *cap).fine, "order", 12)
    return machine


@pytest.fixture
def served(thousand: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """With the same noise each time."""
    monkeypatch.setenv(SEED, "0")
    holds(thousand.run(*OPEN, *PUBLISHING).fine, "bounds", "published")
    with serving_process(thousand) as server:
        yield server


def token(machine: Machine, role: str) -> str:
    of = ("--project", "study") if role == "student" else ()
    made = json.loads(machine.run("--json", "token", "create", "--role", role, *of).fine)
    return str(made["token"])


def visible_text(url: str, tokens: list[str], server: Serving) -> str:
    """Return everything that students, auditors and readers of the log can see."""
    paths = ["/budget", "/ledger", "/ledger/study", "/projects/study", "/metrics"]
    paths += ["/ensembles", "/healthz", "/readyz", "/openapi.json"]
    replies = [
        httpx.get(url + path, headers={"Authorization": f"Bearer {each}"})
        for each in tokens
        for path in paths
    ]
    return "".join(str(reply.headers) + reply.text for reply in replies) + "".join(server.lines)


def test_more_queries_are_answered_and_the_secret_spend_stays_with_the_owner(
    thousand: Machine, served: Serving
) -> None:
    student, auditor, admin = (token(thousand, role) for role in ("student", "auditor", "admin"))
    inputs, truth = blobs(1_500, seed=3)
    with Client(served.url, student) as client:
        terms = client.project().publishing
        assert terms is not None
        assert terms.order == 12
        assert client.budget().publications == []
        labels = client.label(inputs)
        budget = client.budget()
        with pytest.raises(BudgetExhausted):
            client.label(blobs(1, seed=4)[0])
        again = client.label(inputs[:100])
    paid = labels.outcomes == Outcome.ANSWERED
    assert paid.sum() > 1.3 * WORST_CASE
    assert (labels.labels[paid] == truth[paid]).mean() > 0.95
    assert again.replayed.all()

    # Figures were published at their counts, in the public record and nowhere else.
    assert [p.queries for p in budget.publications] == terms.schedule[: len(budget.publications)]
    assert budget.charges == paid.sum() + len(budget.publications)
    with Client(served.url, auditor) as client:
        entries = list(client.charges("study"))
        published = [entry for entry in entries if entry.outcome is Outcome.PUBLISHED]
        assert [(e.seq, e.figure) for e in published] == [
            (p.charge, p.figure) for p in budget.publications
        ]
        assert list(client.charges("study", outcome=Outcome.PUBLISHED)) == published
        assert client.verify("study").ok
    header = {"Authorization": f"Bearer {auditor}", "Accept": "text/csv"}
    text = httpx.get(f"{served.url}/ledger/study", headers=header).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [int(row["figure"]) for row in rows if row["figure"]] == [e.figure for e in published]

    # Only the owner may see the actual cost, and it is stored nowhere else.
    path = f"{served.url}/projects/study/secret-spend"
    reply = httpx.get(path, headers={"Authorization": f"Bearer {admin}"})
    assert slug(reply) == "not-found", "a token does not give access to it"
    shown = thousand.run("--json", "project", "show", "study", "--secret-spend")
    assert shown.err.startswith("SECRET: ")
    secret = SecretSpend.model_validate_json(shown.out)
    assert secret.secret
    assert secret.queries == paid.sum()
    assert secret.cost * 1e12 < budget.publications[-1].figure
    seen = visible_text(served.url, [student, auditor], served)
    for figure in (secret.cost, secret.smooth_sensitivity):
        assert str(figure)[:8] not in seen
    assert "secret-spend" not in seen
    assert thousand.run("ledger", "verify").code == 0
    assert "≤" in thousand.run("ledger", "show", "study", "--last", "1000").fine
    assert thousand.run("audit", "ledger").code == 0


def test_impossible_terms_are_refused_with_an_alternative(thousand: Machine) -> None:
    run: Terrine = thousand.run
    wasteful = ("--mechanism", "gnmax:sigma=400", "--epsilon", "2", "--delta", "1e-6")
    said = run(*OPEN[:5], *wasteful, *PUBLISHING).refused
    holds(said, "Publishing")
    assert 'accounting "worst_case"' in said
    holds(run(*OPEN, "--consensus", "0.9").refused, "accounting")
    holds(run(*OPEN, *PUBLISHING[:3], "high").refused, "0.9")
    assert "agreement" in run(*OPEN, *PUBLISHING[:3], "1.5").refused
    counts = ("--mechanism", "noisy_votes:sigma=40", "--epsilon", "2", "--delta", "1e-6")
    holds(run(*OPEN[:5], *counts, *PUBLISHING).refused, "data-dependent")

    # None of this reserved anything, and the worst case still works on the same ensemble.
    assert json.loads(run("--json", "ensemble", "show").fine)[0]["reserved"] == 0
    holds(run(*OPEN).fine, "worst", "case")
    holds(run("project", "show", "study", "--secret-spend").refused, "worst", "case")


@pytest.mark.parametrize("served_machine", ["gdp"], indirect=True)
def test_data_dependent_projects_need_a_cap_with_an_order(served_machine: Machine) -> None:
    run: Terrine = served_machine.run
    digits = ("project", "open", "more", "--ensemble", "digits", "--mechanism", "gnmax:sigma=4")
    budget = ("--epsilon", "2", "--delta", "1e-6")
    said = run(*digits, *budget, *PUBLISHING).refused
    holds(said, "rdp")
    cap = ("--epsilon", "6", "--delta", "2e-5")
    assert "order" in run("ensemble", "register", "digits", *cap, "--rule", "rdp:1").refused
