"""Whatever a hand edits in the database: no defect, no wrong answer, and nothing charged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from digits import DigitsEnsemble
from edits import DEEP, Hand, edited_json, other_values
from fastapi import FastAPI
from in_process import InProcess
from migrated import SECRET_KEY
from server import RunningServer, installed
from sqlalchemy import text

from terrine_server.app import create_app
from terrine_server.labeling.local_voters import LocalVoters
from terrine_server.ledger import Ledger
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store.rows import KnownProjects
from terrine_server.ledger.store.tables import metadata

KEY = {"Idempotency-Key": "k"}


class Office:
    """A service on a database with a hand in it.

    `study` has answered three queries, under a key, and `other`, on the same ensemble, one.
    """

    def __init__(
        self,
        data: Path,
        url: str,
        ensemble: DigitsEnsemble,
        send: InProcess,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.settings, self.engine = installed(data, url, ensemble, requests_per_minute=10**9)
        voters = LocalVoters(self.settings.data_dir)  # so that they are loaded once
        monkeypatch.setattr("terrine_server.app.AnyVoters", lambda *_: voters)
        owner = RunningServer("", self.settings, Ledger(self.engine, SECRET_KEY), ensemble)
        for name in ("study", "other"):
            owner.open_project(name)
        self.tokens = {role: owner.token(role) for role in ("student", "auditor", "admin")}
        self.other = owner.token("student", "other")
        self._send = send
        self._inputs = ensemble.public
        self.running, self._starting = create_app(self.settings), create_app(self.settings)
        self.answers = self.label(self.running, 0, 3, KEY).json()["results"]
        assert [answer["replayed"] for answer in self.answers] == [False] * 3
        assert self.send(self.running, "POST", "/label", self.other, json=self.asked(0, 1))
        more = {"title": "More", "purpose": "To go on.", "epsilon": 2}
        made = self.send(self.running, "POST", "/requests", self.tokens["student"], json=more)
        assert made.status_code == 201
        self.price = self.books()[0][0][3:6]
        self.hand = Hand(self.engine, url)
        self.keep()
        self.shown = {path: self.look(self.started(), path) for path in PAGES}
        for path, reply in self.shown.items():
            assert reply.status_code == 200, (path, reply.text)

    def started(self) -> FastAPI:
        """A server that has read nothing yet. Making a new one each time would take longest."""
        self._starting.state.services.ledger._accounts = KnownProjects(Seals(SECRET_KEY))
        return self._starting

    def keep(self) -> None:
        """Take all as it is now for what edits are taken back to."""
        self.hand.keep()

    def asked(self, start: int, end: int) -> dict[str, Any]:
        return {"inputs": self._inputs[start:end].tolist()}

    def send(
        self, app: FastAPI, method: str, path: str, token: str, **request: Any
    ) -> httpx.Response:
        reply = self._send(app, method, path, token, **request)
        assert reply.status_code != 500, (path, reply.text)
        return reply

    def label(
        self, app: FastAPI, start: int, end: int, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Ask about these inputs as the student."""
        asked = {"json": self.asked(start, end), "headers": headers or {}}
        return self.send(app, "POST", "/label", self.tokens["student"], **asked)

    def look(self, app: FastAPI, path: str) -> httpx.Response:
        role = PAGES[path]
        if path == "/label/estimate":
            return self.send(app, "POST", path, self.tokens[role], json={"queries": 2})
        return self.send(app, "GET", path, self.tokens.get(role, ""))

    def books(self) -> list[Any]:
        """All that a charge changes."""
        with self.engine.connect() as connection:
            return [
                connection.execute(text(query)).all()
                for query in (
                    "SELECT project_id, seq, label, cost, delta, cap_cost, hash FROM charges "
                    "ORDER BY project_id, seq",
                    "SELECT id, spent, delta_spent, cap_spent, charges, head FROM projects "
                    "ORDER BY id",
                )
            ]

    def ask_everything(self, app: FastAPI, new: int = 10) -> list[httpx.Response]:
        """Retry, repeat and ask the `new` query; return the replies.

        Each is what it would have been without any edit, or a refusal. Nothing is charged but what
        is new, at its price.
        """
        before = self.books()
        retried, replayed = self.label(app, 0, 3, KEY), self.label(app, 0, 3)
        if retried.status_code == 200:
            answers = retried.json()["results"]
            assert answers in (self.answers, self.answers_from_charges), "of the key, or without"
        if replayed.status_code == 200:
            assert replayed.json()["results"] == self.answers_from_charges
        assert self.books() == before, "a repetition is free"
        asked = self.label(app, new, new + 1)
        if asked.status_code == 200:
            self.check_charged(asked.json()["results"], before)
        else:
            assert self.books() == before, "refused, and yet charged"
        return [retried, replayed, asked]

    @property
    def answers_from_charges(self) -> list[Any]:
        return [answer | {"replayed": True} for answer in self.answers]

    def check_charged(self, results: list[Any], before: list[Any]) -> None:
        """One query was charged as every one is, and answered with a label of the ensemble's."""
        added = [charge for charge in self.books()[0] if charge not in before[0]]
        assert len(added) == 1
        assert added[0][3:6] == self.price
        assert [(r["label"], r["replayed"]) for r in results] == [(added[0][2], False)]
        assert 0 <= results[0]["label"] < 10


PAGES = {
    **dict.fromkeys(["/budget", "/label/estimate", "/project"], "student"),
    **dict.fromkeys(["/ledger", "/ledger/study", "/ledger/study/verify", "/metrics"], "auditor"),
    **dict.fromkeys(["/projects", "/ensembles", "/requests"], "admin"),
}
"""What is looked at, and as whom. Not `/readyz`: with the guards off, no server is ready."""
PAGES_ALIKE = ("/label/estimate", "/project", "/ledger", "/projects")
"""Made of records that other pages read, too."""


@pytest.fixture
def office(
    tmp_path: Path,
    database_url: str,
    digits_ensemble: DigitsEnsemble,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Office]:
    with InProcess() as send:
        office = Office(tmp_path / "data", database_url, digits_ensemble, send, monkeypatch)
        yield office
        office.engine.dispose()


def lowered(price: str) -> str:
    terms = json.loads(price)
    terms["prices"]["answered"]["cost"] = 1
    return json.dumps(terms, sort_keys=True, separators=(",", ":"))


def without_classes(info: str) -> str:
    return json.dumps({k: v for k, v in json.loads(info).items() if k != "classes"})


def slug(reply: httpx.Response) -> str:
    assert reply.headers["content-type"] == "application/problem+json", reply.text
    return str(reply.json()["type"]).removeprefix("/problems/")


@pytest.mark.usefixtures("each_database_url")
def test_a_cut_end_is_ledger_corrupted_for_whoever_retries(office: Office) -> None:
    """Balance, count and head were set back to match, so that the shorter books are consistent."""
    hand = office.hand
    keep = hand.value("charges", 0, "hash")
    cost = hand.value("charges", 0, "cost")
    delta = hand.value("charges", 0, "delta")
    cap_cost = hand.value("charges", 0, "cap_cost")
    with hand.edited("DELETE FROM charges WHERE project_id = 1 AND seq > 1") as done:
        assert done
        with office.engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE projects SET charges = 1, head = :head, spent = :cost, "
                    "delta_spent = :delta, cap_spent = :cap_cost WHERE id = 1"
                ),
                {"head": keep, "cost": cost, "delta": delta, "cap_cost": cap_cost},
            )
        app = office.started()
        before = office.books()
        refused = office.label(app, 0, 3, KEY)
        assert slug(refused) == "ledger-corrupted"
        assert "terrine ledger verify study" in refused.json()["detail"]
        assert office.books() == before


RECORDS = (
    "",
    "{",
    "null",
    "{}",
    '"a"',
    "5",
    "[]",
    "[1]",
    "[1,2]",
    "[1,2,3,1]",
    "[[1],2,3]",
    DEEP,
    "[1,2,true]",
    "[1,2,null]",
    '[1,2,"3"]',
    "[1,2,3.0]",
    "[1,2,1e999]",
    "[1,2,9]",
    "[1,2,-9]",
    '{"before":0}',
    '{"before":0,"last":2}',
    '{"before":0,"last":4}',
    '{"before":9,"last":9}',
    "[2,1,3]",
    "[1,1,1]",
    "[3,2,1]",
    "[-2,-1,-3]",
    "[1,2,4]",
    "[0,0,0]",
    "[1,0,3]",
    "[1,2,0]",
)
"""What is kept of the request with the key, edited: that it paid charges 1 to 3. Entry 4 is another
query's."""


def test_an_edited_record_of_a_key_is_ledger_corrupted_for_that_request_alone(
    office: Office,
) -> None:
    app = office.started()
    assert office.label(app, 5, 6).json()["results"][0]["charge"] == 4
    office.keep()
    for record in RECORDS:
        with office.hand.set("idempotency", 0, "results", record):
            refused, replayed, new = office.ask_everything(app)
            assert slug(refused) == "ledger-corrupted", record
            assert "Retry-After" not in refused.headers
            assert (replayed.status_code, new.status_code) == (200, 200)


def test_a_lowered_price_charges_nothing(office: Office) -> None:
    terms = lowered(office.hand.value("projects", 0, "terms"))
    with office.hand.set("projects", 0, "terms", terms):
        for reply in office.ask_everything(office.started()):
            assert slug(reply) == "ledger-corrupted"


def test_an_ensemble_without_classes_answers_nothing(office: Office) -> None:
    info = without_classes(office.hand.value("ensembles", 0, "info"))
    with office.hand.set("ensembles", 0, "info", info):
        app = office.started()
        for reply in office.ask_everything(app):
            assert slug(reply) == "ledger-corrupted"
        for path in ("/budget", "/project", "/projects", "/ensembles", "/ledger", "/metrics"):
            assert slug(office.look(app, path)) == "ledger-corrupted", path
        verdict = office.look(app, "/ledger/study/verify").json()
        assert not verdict["ok"]


LOST = {("projects", "id"), ("projects", "name")}
"""What leaves the students' tokens without their project, so that they are refused."""
ACCOUNTS = ("ensembles", "projects")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("table", [table.name for table in metadata.sorted_tables])
def test_an_edit_of_any_column_answers_nothing_wrong(office: Office, table: str) -> None:
    """One value after the other of the rows that `study` stands on, by a server that starts then,
    and by one that has read the row before."""
    if table == "secret_spends":
        pytest.skip("only data-dependent projects have one: tests/ledger/test_edits.py")
    row, edits = (1 if table == "charges" else 0), 0  # an entry that another one follows
    for column in [column.name for column in metadata.tables[table].c]:
        for value in other_values(column, office.hand.value(table, row, column)):
            with office.hand.set(table, row, column, value) as done:
                if not done or value == office.hand.value(table, row, column):
                    continue
                edits += 1
                what = f"{table}.{column} = {str(value)[:40]!r}"
                try:
                    check_edited(office, table, column)
                except Exception as error:
                    raise AssertionError(what) from error
    assert edits >= 7
    for reply in office.ask_everything(office.started()):
        assert reply.status_code == 200, "all is as it was"


def check_edited(office: Office, table: str, column: str) -> None:
    fresh = office.started()
    refused = False
    for path, before in office.shown.items():
        if path in PAGES_ALIKE and office.engine.dialect.name == "postgresql":
            continue  # they differ in nothing that the database has to do with
        reply = office.look(fresh, path)
        if reply.status_code == 200:
            same = content(path, reply) == content(path, before)
            assert same or path.endswith("/verify"), path
        elif slug(reply) == "ledger-corrupted":
            refused = True
            assert "terrine ledger verify" in reply.json()["detail"]
    asked = office.ask_everything(fresh)
    if table in ACCOUNTS:
        expected = "unauthorized" if (table, column) in LOST else "ledger-corrupted"
        assert [slug(reply) for reply in asked] == [expected] * 3
    if refused and table in (*ACCOUNTS, "charges"):
        verdict = office.look(fresh, "/ledger/study/verify")
        assert verdict.status_code != 200 or not verdict.json()["ok"], "verify names it"
    if table in ACCOUNTS:  # which a running server remembers in part
        office.ask_everything(office.running, new=11)


def content(path: str, reply: httpx.Response) -> Any:
    """What a page says of the projects."""
    if path == "/metrics":
        return [line for line in reply.text.splitlines() if line.startswith("terrine_project_")]
    return reply.json()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("projects", "terms"),
        ("projects", "events"),
        ("projects", "mechanism"),
        ("ensembles", "info"),
    ],
)
def test_an_edit_of_any_part_of_what_was_fixed_answers_nothing(
    office: Office, table: str, column: str
) -> None:
    before = office.books()
    for edited in edited_json(json.loads(office.hand.value(table, 0, column))):
        with office.hand.set(table, 0, column, edited):
            started = office.started()
            assert slug(office.look(started, "/budget")) == "ledger-corrupted", edited
            assert slug(office.label(started, 10, 11)) == "ledger-corrupted", edited
            assert not office.look(started, "/ledger/study/verify").json()["ok"]
            assert office.books() == before
