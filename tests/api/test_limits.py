"""Rate limits: requests per token and the work that they make, and failed logins per address."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from support.clients import Caller, raw_request, slug
from support.data import DigitsEnsemble
from support.databases import SECRET_KEY, migrated
from support.servers import running_server
from support.tables import open_counted
from support.wording import holds
from terrine_models.tables.loading import load_table
from terrine_protocol import Column, TableSchema
from terrine_server.api import decoding
from terrine_server.api.rate_limits import RateLimit
from terrine_server.app import serving
from terrine_server.ledger import Ledger, connect
from terrine_server.serving.connections import Connection
from terrine_server.settings import Settings


@pytest.mark.usefixtures("no_refill")
def test_requests_are_limited_by_token_and_failures_by_address(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    url = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    limits = {"requests_per_minute": 5, "failed_logins_per_minute": 3}
    with running_server(tmp_path / "data", url, digits_ensemble, **limits) as server:
        server.open_project()
        busy, calm = Caller(server, server.token()), Caller(server, server.token())
        stranger = Caller(server, "terrine_guess")

        assert [busy.http.get("/budget").status_code for _ in range(5)] == [200] * 5
        refused = busy.label(server.ensemble.public[:1])
        assert slug(refused) == "rate-limited"
        assert int(refused.headers["Retry-After"]) == refused.json()["retry_after"] > 0
        assert server.ledger.projects.get("study").charges == 0

        guesses = [slug(stranger.http.get("/budget")) for _ in range(5)]
        assert guesses == ["unauthorized"] * 3 + ["rate-limited"] * 2
        assert calm.http.get("/budget").status_code == 200  # same address, valid token


@pytest.mark.usefixtures("no_refill")
def test_free_answers_have_a_rate_of_their_own(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """Replayed queries are counted, not requests; new ones, and other tokens, are not concerned."""
    url = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    with running_server(tmp_path / "data", url, digits_ensemble, replays_per_minute=15) as server:
        server.open_project()
        student, other = Caller(server, server.token()), Caller(server, server.token())
        inputs = server.ensemble.public[:10]
        assert student.label(inputs).status_code == 200
        assert student.label(inputs).json()["results"][0]["replayed"]
        assert student.label(inputs).status_code == 200
        refused = student.label(inputs[:1])
        assert slug(refused) == "rate-limited"
        holds(refused.json()["detail"], "replayed")
        assert int(refused.headers["Retry-After"]) > 10
        assert student.http.get("/budget").status_code == 200
        assert other.label(inputs).status_code == 200
        assert server.ledger.projects.get("study").charges == 10


TEXTS = ["fever cough", "sun", "snow warm", "cold", "word1 word2"]


@dataclass(frozen=True)
class Texts:
    """A server with two projects of texts, and which rows it decoded."""

    url: str
    tokens: dict[str, str]
    settings: Settings
    decoded: list[str]
    before: list[Callable[[], object]]
    """Called before a row is decoded."""

    def ask(self, texts: Sequence[str], project: str = "a") -> httpx.Response:
        body = {"rows": [{"text": text} for text in texts]}
        headers = {"Authorization": f"Bearer {self.tokens[project]}"}
        return httpx.post(f"{self.url}/label", json=body, headers=headers, timeout=60)

    def charges(self, project: str = "a") -> int:
        with closing_ledger(self.settings) as ledger:
            return ledger.projects.get(project).charges


@contextmanager
def closing_ledger(settings: Settings) -> Iterator[Ledger]:
    engine = connect(settings.database)
    yield Ledger(engine, SECRET_KEY)
    engine.dispose()


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Texts]:
    text = Column(name="text", role="text", width=256)
    label = Column(name="label", role="label", values=("a", "b"))
    schema = TableSchema(columns=(text, label))
    url = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    made = Settings(data_dir=tmp_path, database_url=url, requests_per_minute=30)
    made.secret_key_path.write_bytes(SECRET_KEY)
    made.secret_key_path.chmod(0o600)
    random = np.random.default_rng(0)
    rows = [f"{text},{'ab'[k % 2]}" for k, text in enumerate(random.choice(TEXTS, 400))]
    (tmp_path / "private.csv").write_text("\n".join(["text,label", *rows, ""]))
    data = load_table(tmp_path / "private.csv", schema, lambda sentence: None)
    engine = migrated(url)
    ledger = Ledger(engine, SECRET_KEY)
    tokens = {name: open_counted(ledger, made, name, data) for name in ("a", "b")}
    engine.dispose()
    decoded, before, decode_row = list[str](), list[Callable[[], object]](), decoding._decode_row

    def counted(index: int, text: bytes) -> dict[str, Any]:
        for each in before:
            each()
        row = decode_row(index, text)
        decoded.append(row["text"])
        return row

    monkeypatch.setattr(decoding, "_decode_row", counted)
    with serving(made) as address:
        yield Texts(address, tokens, made, decoded, before)


@pytest.mark.usefixtures("no_refill")
def test_a_request_that_takes_work_counts_as_several(
    texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a second of 1.5, and those who wait for their turn are told before any work."""
    ticks, arrived = count(), threading.Event()
    monkeypatch.setattr("terrine_server.api.students.time.thread_time", lambda: float(next(ticks)))
    done = texts.ask(TEXTS[:1])
    assert done.headers["RateLimit"] == '"requests";r=9'
    texts.before.append(lambda: arrived.wait(60))
    taken, take = list[int](), RateLimit.take

    def counted(limit: RateLimit, key: str) -> int:
        left = take(limit, key)
        taken.append(left)
        if taken.count(5) == 1 and limit.per_minute == 30:
            arrived.set()
        return left

    monkeypatch.setattr(RateLimit, "take", counted)
    with ThreadPoolExecutor(4) as students:
        asked = [students.submit(texts.ask, [text]) for text in TEXTS[1:]]
        replies = [each.result() for each in asked]
    assert sorted(each.status_code for each in replies) == [200, 429, 429, 429]
    assert len(texts.decoded) == texts.charges() == 2
    refused = texts.ask(TEXTS[:1])
    assert slug(refused) == "rate-limited"
    assert int(refused.headers["Retry-After"]) == refused.json()["retry_after"] > 20
    assert texts.ask(TEXTS[:1], "b").status_code == 200


def test_who_hangs_up_is_not_worked_for(texts: Texts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the rest of what is being decoded, nor for what waits for its turn."""
    begun, gone, lost, seen = threading.Event(), threading.Event(), Connection.connection_lost, 0

    def leave(connection: Connection, error: Exception | None) -> None:
        nonlocal seen
        lost(connection, error)
        seen += 1
        if seen == 3:
            gone.set()

    def wait() -> None:
        begun.set()
        gone.wait(60)

    monkeypatch.setattr(Connection, "connection_lost", leave)
    texts.before.append(wait)
    port, token = int(texts.url.rpartition(":")[2]), texts.tokens["a"]
    students = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    body = json.dumps({"rows": [{"text": text} for text in TEXTS]}).encode()
    head = (
        f"Authorization: Bearer {token}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    for student in students:
        student.sendall(raw_request("POST", "/label", *head, body=body))
    assert begun.wait(60)
    for student in students:
        student.close()
    assert gone.wait(60)
    texts.before.clear()
    assert texts.ask(TEXTS[-1:]).status_code == 200
    assert texts.decoded == [TEXTS[0], TEXTS[-1]]
    assert texts.charges() == 1
