"""People near a query answer over HTTP, each with an account, from their records to the ledger."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console
from sqlalchemy import select, update

from support.clients import Caller, slug
from support.data import DigitsEnsemble, build_people
from support.processes import Terrine, seed_noise
from support.servers import RunningServer, running_server
from support.wording import holds, refuses
from terrine_client import Client
from terrine_client.distill import distill
from terrine_models.teachers.neighbours import NeighbourEnsemble
from terrine_protocol import LabelResponse, Outcome
from terrine_server.cli.student import summarize
from terrine_server.labeling import voters
from terrine_server.ledger import accounts as accounts_of
from terrine_server.ledger import connect
from terrine_server.ledger.schema import unit_accounts
from terrine_server.ledger.verifying import verify_export
from terrine_server.privacy import Neighbours as Mechanism
from terrine_server.privacy import Units

PRIVATE = 1200
SIGMA = 33.0
"""At which 300 queries leave nobody's surroundings exhausted; at 20 some are."""
SPEC = {"name": "neighbours", "sigma": SIGMA, "queries": 300}


@dataclass(frozen=True)
class People:
    """The ensemble of people that the server has, and its own copy of their records."""

    server: RunningServer
    ensemble: NeighbourEnsemble
    queries: NDArray[np.uint8]
    labels: NDArray[np.int64]
    url: str

    def ask(self, rows: NDArray[np.uint8]) -> Any:
        reply = Caller(self.server, self.server.token()).label(rows)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def stored(self) -> NDArray[np.uint32]:
        with connect(self.url).connect() as connection:
            return np.frombuffer(connection.execute(select(unit_accounts)).one().accounts, "<u4")

    def expected(self, rows: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """What people cast on these rows, asked one after the other, and their accounts."""
        units = Units.of(self.ensemble.units, self.ensemble.labels, PRIVATE)
        allowance = self.server.ledger.projects.get("study").terms.allowance
        assert allowance is not None
        mechanism = Mechanism(PRIVATE, 10, SIGMA, 300)
        weights = self.ensemble.weights(rows)
        return mechanism.cast(weights, units, np.zeros(PRIVATE, np.uint32), allowance.most)


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> DigitsEnsemble:
    return build_people(tmp_path_factory.mktemp("neighbours") / "people", digits_ensemble)


@pytest.fixture
def people(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    database_url: str,
    built: DigitsEnsemble,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[People]:
    """The noise is repeated, except in a test that is marked `statistical`."""
    if request.node.get_closest_marker("statistical") is None:
        seed_noise(monkeypatch)
    with running_server(tmp_path / "data", database_url, built) as server:
        server.open_project(mechanism=SPEC, epsilon=0.5)
        ensemble = NeighbourEnsemble.load(built.directory)
        yield People(server, ensemble, built.public, built.public_labels, database_url)


@pytest.mark.statistical
def test_people_answer_with_noise_and_pay_for_what_they_cast(people: People) -> None:
    told = [people.ask(people.queries[:50]), people.ask(people.queries[50:120])]
    cast, accounts = people.expected(people.queries[:120])
    assert people.stored().tolist() == accounts.tolist()
    allowance = people.server.ledger.projects.get("study").terms.allowance
    assert allowance is not None
    assert accounts.max() == allowance.most > 4
    results = [result for each in told for result in each["results"]]
    counts = np.array([result["counts"] for result in results])
    assert counts.argmax(axis=1).tolist() == [result["label"] for result in results]
    assert LabelResponse.model_validate(told[0]).noise_sigma == SIGMA
    # 1,200 draws of N_Z(0, 33²): their mean square is further than 8 of its deviations of √(2/1200)
    # from 1 less than once in 10⁹ times. Half the noise, a mean square of a quarter, is found.
    spread = float(((counts - cast) ** 2).mean()) / SIGMA**2
    assert abs(spread - 1) < 8 * (2 / 1200) ** 0.5
    again = people.ask(people.queries[:120])
    assert [result["counts"] for result in again["results"]] == counts.tolist()
    assert people.stored().tolist() == accounts.tolist()
    assert people.server.ledger.verifier.verify_project("study").problems == []


@pytest.mark.nightly
def test_a_student_learns_from_people_what_it_learns_from_their_votes(
    people: People, tmp_path: Path
) -> None:
    """Shares are of the people who voted, not of all: few are near any query."""
    people.server.open_project("class", SPEC | {"sigma": 12.0}, epsilon=5.0)
    asked, truth = people.queries[:300], people.labels[:300]
    with Client(people.server.url, people.server.token(project="class")) as client:
        made = distill(client, asked, tmp_path / "student")
    voted = people.ensemble.weights(asked) @ np.eye(10)[people.ensemble.labels]
    assert (voted.argmax(1) == truth).mean() > 0.9
    right = made.student.predict_indices(people.queries[300:]) == people.labels[300:]
    alone = np.asarray(made.labels[:300]) == truth
    # The noise is seeded: one answer by itself is right for 67 %, the student for 90 %.
    assert right.mean() > 0.85 > alone.mean()
    certain = made.student.probabilities(people.queries[300:]).max(axis=1)
    assert certain.mean() > 0.5, "probabilities are of the scale of shares of those who voted"


def test_the_300th_query_is_the_last_and_nothing_told_it_before(people: People) -> None:
    balances = set()
    for start in range(0, 300, 75):
        budget = people.ask(people.queries[start : start + 75])["budget"]
        balances.add((budget["spent"], budget["affordable"]))
    terms = people.server.ledger.projects.get("study").terms
    price = terms.worst.cost
    assert {left for _, left in balances} == {225, 150, 75, 0}
    assert terms.budget == 300 * price
    refused = Caller(people.server, people.server.token()).label(people.queries[300:])
    assert (refused.status_code, slug(refused)) == (403, "budget-exhausted")
    holds(refused.json()["detail"], 300, "new")
    assert people.stored().tolist() == people.expected(people.queries[:300])[1].tolist()


def test_a_batch_in_blocks_is_answered_up_to_the_last_query(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A block for each query, as of millions of records.
    monkeypatch.setattr(voters, "BLOCK_BYTES", 1)
    people.server.open_project("short", SPEC | {"queries": 3}, epsilon=0.5)
    caller = Caller(people.server, people.server.token(project="short"))
    results = caller.label(people.queries[:5]).json()["results"]
    assert [each["outcome"] for each in results] == ["answered"] * 3 + ["refused"] * 2


def test_nothing_that_a_student_or_an_auditor_reads_has_an_account_in_it(
    people: People, tmp_path: Path, terrine: Terrine
) -> None:
    """Accounts can be of anything: what is read is the same, but for times."""
    people.ask(people.queries[:20])
    student = Caller(people.server, people.server.token())
    auditor = Caller(people.server, people.server.token("auditor"))
    read_by = [(student, "/budget"), (student, "/project"), (student, "/readyz")]
    read_by += [(auditor, "/ledger/study"), (auditor, "/ledger"), (auditor, "/log")]

    def read() -> list[str]:
        refusal = student.label(people.queries[:1, :4]).json()["detail"]
        return [refusal, *(caller.http.get(path).text for caller, path in read_by)]

    before = read()
    ledger = people.server.ledger
    with connect(people.url).begin() as connection:
        row = dict(connection.execute(select(unit_accounts)).one()._mapping)
        row["accounts"] = np.full(PRIVATE, 5, "<u4").tobytes()
        row["seal"] = ledger._access.seals.of("unit_accounts", row)
        connection.execute(update(unit_accounts).values(row))
    assert read() == before
    assert ledger.verifier.verify_project("study").problems == []
    export = tmp_path / "export.json"
    export.write_text(
        "".join(json.dumps(line) + "\n" for line in ledger.exports.export_project("study"))
    )
    assert verify_export(export).problems == []


def test_a_server_that_dies_between_the_vote_and_the_answer_leaves_no_account_behind(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = accounts_of.save_unit_accounts
    people.ask(people.queries[:5])
    for before in (True, False):

        def die(*given: Any, before: bool = before) -> None:
            if not before:
                usual(*given)
            raise RuntimeError("killed")

        monkeypatch.setattr(accounts_of, "save_unit_accounts", die)
        reply = Caller(people.server, people.server.token()).label(people.queries[5:10])
        assert reply.status_code == 500
        assert people.server.ledger.projects.get("study").charges == 5
        assert people.stored().tolist() == people.expected(people.queries[:5])[1].tolist()
    monkeypatch.setattr(accounts_of, "save_unit_accounts", usual)
    people.ask(people.queries[5:10])
    assert people.stored().tolist() == people.expected(people.queries[:10])[1].tolist()


def test_units_vote_where_there_are_units_and_nowhere_else(
    people: People, terrine_server: RunningServer
) -> None:
    from terrine_server.errors import InvalidTerms

    with refuses(InvalidTerms, "neighbours"):
        people.server.open_project("teachers", {"name": "noisy_votes", "sigma": 30.0})
    with refuses(InvalidTerms, "neighbours"):
        terrine_server.open_project("units", SPEC)


def test_an_owner_opens_one_by_command_and_makes_a_restored_ledger_safe(
    people: People, terrine: Terrine
) -> None:
    opened = terrine(
        *("project", "open", "second", "--ensemble", "people", "--epsilon", 1),
        *("--mechanism", "neighbours:sigma=90,queries=1000", "--delta", "1e-6"),
        **people.server.variables,
    )
    assert opened.code == 0, opened.err
    people.ask(people.queries[:5])
    done = terrine("ledger", "restored", **people.server.variables)
    assert done.code == 0, done.err
    holds(done.out, "second", "study")
    refused = Caller(people.server, people.server.token()).label(people.queries[:5])
    assert slug(refused) == "project-paused"
    closed = terrine("project", "close", "study", "--yes", **people.server.variables)
    assert closed.code != 0
    holds(closed.err, "paused")
    assert terrine("ledger", "verify", "all", **people.server.variables).code == 0


def test_the_owner_s_other_commands_know_such_a_project(people: People, terrine: Terrine) -> None:
    people.ask(people.queries[:30])
    audited = terrine("audit", "ledger", **people.server.variables)
    assert audited.code == 0, audited.out
    shown = terrine("ledger", "show", "study", **people.server.variables)
    assert shown.code == 0, shown.err
    estimated = Caller(people.server, people.server.token()).http.get("/budget").json()
    assert 0 < estimated["epsilon_spent"] <= 0.5
    assert estimated["affordable"] == 270
    assert estimated["used_up"] == 0, "30 queries leave everybody room"
    planned = terrine("plan", "neighbours", "--teachers", 1000, "--epsilon", 1)
    assert "--ensemble" in planned.err
    planned = terrine(
        "plan", "neighbours", *("--ensemble", "people", "--rows", 300), **people.server.variables
    )
    assert planned.code == 0, planned.err
    holds(planned.out, "units", 300)
    assert re.search(r"--mechanism neighbours:sigma=[\d.]+,queries=300 --epsilon 1", planned.out)


def test_students_learn_for_free_where_people_are_used_up(people: People) -> None:
    """What public rows near an input have left, by accounts kept apart from those of people."""
    rows, ensemble = people.queries[:300], people.ensemble
    allowance = people.server.ledger.projects.get("study").terms.allowance
    assert allowance is not None
    with Client(people.server.url, people.server.token(), batch_size=128) as client:
        assert not client.used_up(rows).any()
        before = people.stored()
        client.label(rows[:200])
        client.label(rows[100:300])
        charged = people.stored()
        used = client.used_up(rows)
        assert client.budget().charges == 300
        share = client.budget().used_up
    public = ensemble.public_neighbours(ensemble.to_points(rows))
    spent = np.zeros(ensemble.shadows, np.int64)
    for near in public.weights:
        spent += (spent < allowance.most) * near
    gone = spent >= allowance.most
    assert gone.any()
    assert share == pytest.approx(gone.mean())
    assert (public.near_wider.sum(1) >= 20).all(), "by so many rows at least"
    expected = (public.near_wider * gone).sum(1) / public.near_wider.sum(1)
    np.testing.assert_allclose(used, expected)
    assert not before.any()
    assert (people.stored() == charged).all(), "to ask is free, and looks at nobody's account"


def test_exhausted_inputs_are_told_apart_free_and_left_out_of_training(
    people: People, tmp_path: Path
) -> None:
    people.server.open_project("drained", SPEC | {"sigma": 20.0}, epsilon=0.5)
    rows = people.queries[:300]
    with Client(people.server.url, people.server.token(project="drained")) as client:
        made = distill(client, rows, tmp_path / "student")
        used = client.used_up(rows)
        labels = client.label(rows)
        again = client.label(rows)
        budget = client.budget()
    gone = labels.outcomes == Outcome.EXHAUSTED
    assert 20 < gone.sum() < 100
    assert (made.outcomes == labels.outcomes).all()
    assert (again.outcomes == labels.outcomes).all()
    assert (used[gone] >= 0.95).all()
    assert (labels.charges[gone] == -1).all()
    assert (labels.labels[gone] == -1).all()
    assert budget.charges == 300 - gone.sum() == labels.counts[Outcome.ANSWERED]
    assert budget.affordable == gone.sum()
    assert (made.answers.known == ~gone).all()
    holds(f"{labels!r}", gone.sum(), "exhausted")
    shown = Console(width=200, record=True, file=io.StringIO())
    shown.print(summarize(made.report, tmp_path))
    holds(shown.export_text(), "exhausted", gone.sum(), "free")
    assert people.server.ledger.verifier.verify_project("drained").problems == []


def test_other_projects_have_nobody_who_is_used_up(terrine_server: RunningServer) -> None:
    terrine_server.open_project()
    one = {"inputs": np.zeros((1, 8, 8), int).tolist()}
    caller = Caller(terrine_server, terrine_server.token())
    reply = caller.http.post("/label/used-up", json=one)
    assert slug(reply) == "invalid-query"
    assert "neighbours" in reply.json()["detail"]


def test_accounts_are_recomputed_from_the_records_and_the_pool(
    people: People, tmp_path: Path, terrine: Terrine
) -> None:
    pool, part = tmp_path / "pool.npy", tmp_path / "part.npy"
    np.save(pool, people.queries)
    np.save(part, people.queries[:30])
    people.ask(people.queries[20:60])
    people.ask(people.queries[40:70])
    verify = "ledger", "verify", "study", "--accounts"
    found = terrine(*verify, pool, **people.server.variables)
    assert found.code == 0, found.err
    holds(found.out, 50, "queries")
    partly = terrine(*verify, part, **people.server.variables)
    assert partly.code == 1
    holds(partly.out, 40, 50, "queries")
    with connect(people.url).begin() as connection:
        row = dict(connection.execute(select(unit_accounts)).one()._mapping)
        less = np.frombuffer(row["accounts"], "<u4").copy()
        less[less.argmax()] -= 1
        row["accounts"] = less.tobytes()
        row["seal"] = people.server.ledger._access.seals.of("unit_accounts", row)
        connection.execute(update(unit_accounts).values(row))
    edited = terrine(*verify, pool, **people.server.variables)
    assert edited.code == 1
    holds(edited.out, "study", "NOT", "INTACT")
