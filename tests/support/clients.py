"""Clients: plain HTTP, raw bytes, a crowd that retries, and an auditor of what it was answered."""

from __future__ import annotations

import io
import json
import os
import random
import re
import select
import signal
import socket
import sqlite3
import ssl
import threading
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from multiprocessing import Pipe
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from support import processes
from support.data import DigitsEnsemble
from support.processes import PATIENCE_SECONDS
from support.servers import Replicas, RunningServer, running_server
from support.workers import answer_requests
from terrine_client import Client
from terrine_client.distill import Distilled, distill
from terrine_models.students.models import Training
from terrine_protocol.problems import PASSING_REASONS

Array = NDArray[np.generic]


class Caller:
    """Speaks HTTP as the holder of one token, or of none."""

    def __init__(self, server: RunningServer, token: str | None) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.http = httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_SECONDS)

    def label(self, inputs: Array, **more: Array) -> httpx.Response:
        """Ask in JSON."""
        body = {"inputs": inputs.tolist()} | {name: rows.tolist() for name, rows in more.items()}
        return self.http.post("/label", json=body)

    def send(self, content: bytes, kind: str) -> httpx.Response:
        """Ask with any bytes."""
        return self.http.post("/label", content=content, headers={"Content-Type": kind})


def npy(array: Array, *, allow_pickle: bool = False) -> bytes:
    """Return the bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def npz(**arrays: Array) -> bytes:
    """Return the bytes of a compressed .npz file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def slug(response: httpx.Response) -> str:
    """Return the problem's type; the body must be a complete problem document."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    problem = response.json()
    assert problem["status"] == response.status_code
    assert problem["title"]
    assert problem["detail"]
    assert problem["request_id"] == response.headers["x-request-id"]
    return str(problem["type"]).removeprefix("/problems/")


@dataclass(frozen=True)
class Reply:
    """One response as it was received."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def slug(self) -> str:
        """The problem's type; the body must be a complete problem document."""
        problem = self.json()
        assert self.headers["content-type"] == "application/problem+json"
        assert problem["status"] == self.status
        assert problem["request_id"] == self.headers["x-request-id"]
        return str(problem["type"]).removeprefix("/problems/")


class Wire:
    """One connection."""

    def __init__(self, server: RunningServer, timeout: float = PATIENCE_SECONDS) -> None:
        url = urlsplit(server.url)
        self.socket = socket.create_connection((url.hostname, url.port), timeout)
        self._read = b""

    def send(self, data: bytes) -> None:
        """Send these bytes; the server may have closed before it has read them all."""
        with suppress(ConnectionError):
            self.socket.sendall(data)

    def reply(self) -> Reply:
        """Read one response. Raises `EOFError` if the server closes without one."""
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        length = int(headers.get("content-length", 0))
        while len(self._read) < length:
            self._more()
        body, self._read = self._read[:length], self._read[length:]
        return Reply(int(status.split()[1]), headers, body)

    def rest(self) -> list[Reply]:
        """Read responses until the server closes."""
        replies = []
        with suppress(EOFError):
            while True:
                replies.append(self.reply())
        return replies

    def ends(self) -> bool:
        """Whether the server sends nothing more and closes."""
        return not self.rest()

    def silent(self) -> bool:
        """Whether the server has sent nothing unread and has not closed."""
        return not self._read and not select.select([self.socket], [], [], 0)[0]

    def close(self) -> None:
        self.socket.close()

    def _more(self) -> None:
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            raise EOFError("the server closed the connection")
        self._read += data


def raw_request(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    """Return an HTTP/1.1 request with exactly these headers and `Host`."""
    head = "\r\n".join([f"{method} {target} HTTP/1.1", "Host: terrine", *headers, "", ""])
    return head.encode("latin-1") + body


def label(token: str, body: bytes, *more: str) -> bytes:
    """Return a request to label the .npy file `body`; its length is only in `more`, if at all."""
    headers = (f"Authorization: Bearer {token}", "Content-Type: application/x-npy", *more)
    return raw_request("POST", "/label", *headers, body=body)


Body = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """One request, as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        kind = self.headers["Content-Type"]
        if kind == "application/json":
            return {name: np.array(values) for name, values in json.loads(self.body).items()}
        loaded = np.load(io.BytesIO(self.body), allow_pickle=False)
        return {"inputs": loaded} if kind == "application/x-npy" else dict(loaded)


@dataclass
class FaultyServer:
    """Each request takes the next of `faults`; when there are none left, the server works."""

    url: str = ""
    capacity: int = 1_000_000
    max_rows: int = 1_000_000
    counted: bool = False
    """Whether answers come with three noisy counts."""
    faults: deque[Fault] = field(default_factory=deque)
    seen: list[Seen] = field(default_factory=list)
    book: dict[bytes, int] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)
    closing: Event = field(default_factory=Event)

    def work(self, seen: Seen) -> tuple[int, Body]:
        if seen.path.partition("?")[0].endswith("/budget"):
            return 200, self.budget()
        inputs = seen.arrays["inputs"]
        if len(inputs) > self.max_rows:
            return problem(413, "payload-too-large", limit=self.max_rows)
        results = [self._result(row) for row in inputs]
        if all(result["outcome"] == "refused" for result in results):
            return problem(403, "budget-exhausted")
        body = {"results": results, "budget": self.budget()}
        return 200, body | ({"noise_sigma": 2.5} if self.counted else {})

    def _result(self, row: np.ndarray) -> Body:
        known = row.tobytes() in self.book
        if not known and len(self.book) >= self.capacity:
            return {"outcome": "refused"}
        seq = self.book.setdefault(row.tobytes(), len(self.book) + 1)
        first = int(row.flat[0])
        if first == 0:
            return {"outcome": "abstained", "charge": seq, "replayed": known}
        counts = {"counts": [-first, first, 7]} if self.counted else {}
        named = {"label": first, "label_name": f"class {first}"}
        return {"outcome": "answered", **named, "charge": seq, "replayed": known} | counts

    def budget(self) -> Body:
        return {
            "project": "study",
            "status": "active",
            "epsilon": 1.0,
            "delta": 1e-5,
            "rule": {"name": "gdp"},
            "budget": self.capacity,
            "spent": len(self.book),
            "delta_budget": 0,
            "delta_spent": 0,
            "epsilon_spent": 0.5,
            "protects": "one record, 100 of them",
            "charges": len(self.book),
            "affordable": max(0, self.capacity - len(self.book)),
        }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faulty: FaultyServer

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        seen = Seen(self.command, self.path, dict(self.headers.items()), body)
        with self.faulty.lock:
            self.faulty.seen.append(seen)
            fault = self.faulty.faults.popleft() if self.faulty.faults else works
        fault(self, seen)

    do_GET = do_POST = do_PATCH = do_DELETE = handle_any  # noqa: N815 - http.server's names

    def answer(self, status: int, body: bytes, headers: Mapping[str, str], promised: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(promised))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


Fault = Callable[[Handler, Seen], None]


def works(handler: Handler, seen: Seen) -> None:
    with handler.faulty.lock:
        status, body = handler.faulty.work(seen)
    text = json.dumps(body).encode()
    handler.answer(status, text, {"Content-Type": "application/json"}, len(text))


def hangs_up(handler: Handler, seen: Seen) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def works_but_hangs_up(handler: Handler, seen: Seen) -> None:
    """The charge is committed, and the response is lost."""
    with handler.faulty.lock:
        handler.faulty.work(seen)
    hangs_up(handler, seen)


def cuts_off(handler: Handler, seen: Seen) -> None:
    handler.answer(200, b'{"results": [', {"Content-Type": "application/json"}, 5000)
    hangs_up(handler, seen)


def stalls(handler: Handler, seen: Seen) -> None:
    """Say nothing for as long as the test lasts."""
    handler.faulty.closing.wait()
    hangs_up(handler, seen)


def replies(status: int, body: bytes | Body = b"", **headers: str) -> Fault:
    def fault(handler: Handler, seen: Seen) -> None:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        handler.answer(status, text, named, len(text))

    return fault


def problem(status: int, slug: str, **extras: Any) -> tuple[int, Body]:
    return status, {
        "type": f"/problems/{slug}",
        "title": "A title",
        "status": status,
        "detail": "What is wrong and what to do.",
        **extras,
    }


@contextmanager
def running_faulty_server() -> Iterator[FaultyServer]:
    faulty = FaultyServer()
    handler = type("BoundHandler", (Handler,), {"faulty": faulty})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    faulty.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield faulty
    finally:
        faulty.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


SECONDS = 1
"""Time that the impatient server allows for a head, and for a body."""
PATIENT = {"keep_alive_seconds": 600, "body_seconds": 600}
"""Settings of a server that closes no connection during a test."""
QUESTIONS = count()
"""Seeds of questions that nobody has asked yet."""
IMPATIENT_GNMAX = {"name": "gnmax", "sigma": 100.0}


@contextmanager
def impatient(
    directory: Path, ensemble: DigitsEnsemble, **settings: Any
) -> Iterator[RunningServer]:
    """Run a server with the project "study" that waits one second for heads and bodies."""
    url = f"sqlite:///{directory / 'terrine.sqlite'}"
    short = {"keep_alive_seconds": SECONDS, "body_seconds": SECONDS} | settings
    with running_server(directory / "data", url, ensemble, **short) as server:
        server.open_project("study", IMPATIENT_GNMAX)
        yield server


def charges(server: RunningServer, project: str = "study") -> int:
    return server.ledger.projects.get(project).charges


def question() -> bytes:
    """Return a .npy file with a new input."""
    return npy(np.random.default_rng(next(QUESTIONS)).integers(0, 17, (1, 8, 8), np.uint8))


def answers(server: RunningServer, count: int = 1) -> None:
    """Check that the server answers another student."""
    caller = Caller(server, server.token())
    assert caller.label(server.ensemble.public[:count]).status_code == 200


DOCUMENTED, BODIES = 1_400, 8_000
"""Requests of each kind, at night: generated from the OpenAPI document, and with any bodies."""
SHARES = pytest.mark.parametrize("share", [32, pytest.param(1, marks=pytest.mark.nightly)])
"""By day one request in thirty-two is sent."""
NO_LIMIT = 10**9
FUZZED_GNMAX = {"name": "gnmax", "sigma": 500.0}
"""Noise so large that the budget lasts for thousands of valid queries."""
COUNTED = re.compile(r'^terrine_requests_total\{.*status="(\d+)"\} (\S+)$', re.MULTILINE)


def examples(count: int) -> settings:
    """Hypothesis settings for `count` requests, without a deadline."""
    return settings(
        max_examples=count,
        derandomize=True,  # the same inputs each time, so that failures repeat
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


@contextmanager
def tireless_server(
    directory: Path, database_url: str, ensemble: DigitsEnsemble
) -> Iterator[RunningServer]:
    """Serve without rate limits; fail at the end if any response had status 500 or above."""
    with running_server(
        directory,
        database_url,
        ensemble,
        requests_per_minute=NO_LIMIT,
        failed_logins_per_minute=NO_LIMIT,
        max_body_bytes=1 << 20,
    ) as server:
        server.open_project("study", FUZZED_GNMAX, epsilon=20.0)
        yield server
        assert not [status for status in answered(server) if status >= 500]


def answered(server: RunningServer) -> Counter[int]:
    """Return how many requests of each status the server has counted."""
    counts: Counter[int] = Counter()
    auditor = {"Authorization": f"Bearer {server.token('auditor')}"}
    for status, number in COUNTED.findall(httpx.get(f"{server.url}/metrics", headers=auditor).text):
        counts[int(status)] += int(float(number))
    return counts


def tell(counts: Counter[int]) -> None:
    """Print how many requests were sent (seen with `pytest -s`)."""
    print(f"{counts.total()} requests, by status {dict(sorted(counts.items()))}")  # noqa: T201


class Lost(Exception):  # noqa: N818 - what happened to the request
    """No answer came, or only a 503: whether the request was paid is unknown."""


@dataclass(frozen=True)
class Answer:
    """The answer to one query."""

    query: int
    outcome: str
    label: int | None
    charge: int | None
    replayed: bool
    counts: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Exchange:
    """One request and its answers; None if all of it was refused because the budget is spent."""

    project: str
    key: str
    """Names the request, and its repetitions; the service is not told."""
    queries: tuple[int, ...]
    answers: tuple[Answer, ...] | None


Ask = Callable[[str, str, Sequence[int]], tuple[Answer, ...] | None]
"""From project, key and queries to the answers. Raises `Lost`."""


def until_answered(
    ask: Ask, project: str, key: str, queries: tuple[int, ...], lost: list[Lost]
) -> Exchange:
    """Retry a request until it is answered; append the failures on the way to `lost`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return Exchange(project, key, queries, ask(project, key, queries))
        except Lost as reason:
            lost.append(reason)
            if time.monotonic() > deadline:
                raise AssertionError("the service did not come back") from reason
            time.sleep(0.05)


@dataclass
class Crowd:
    """Clients of one or more projects. Half of their queries are shared with other clients."""

    seed: int
    clients: Sequence[tuple[str, Ask]]
    """Each client's project, and how it sends requests."""
    exchanges: list[Exchange] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _asked: int = 0

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Let all clients send requests during the block, and wait for their last answers."""
        with ThreadPoolExecutor(len(self.clients)) as pool:
            lives = [pool.submit(self._live, i, *c) for i, c in enumerate(self.clients)]
            try:
                yield
            finally:
                self._stop.set()
                for life in lives:
                    life.result()

    def wait_for_answers(self, count: int) -> None:
        """Wait until `count` more requests have been answered."""
        enough = len(self.exchanges) + count
        self.wait_until(lambda: len(self.exchanges) >= enough, "the service answers nobody")

    def wait_until(self, so: Callable[[], bool], otherwise: str) -> None:
        """Wait until `so()` is true; fail with the message `otherwise` if it takes too long."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not so():
            assert not self._stop.is_set(), "a client failed"
            assert time.monotonic() < deadline, otherwise
            time.sleep(0.001)

    def _live(self, client: int, project: str, ask: Ask) -> None:
        rng = random.Random(f"{self.seed} {client}")
        mine: list[Exchange] = []
        try:
            while not self._stop.is_set():
                key, queries = self._request(rng, client, mine)
                exchange = until_answered(ask, project, key, queries, self.lost)
                self.exchanges.append(exchange)
                if exchange.answers is None:
                    time.sleep(0.01)
                else:
                    mine.append(exchange)
        finally:
            self._stop.set()

    def _request(
        self, rng: random.Random, client: int, mine: Sequence[Exchange]
    ) -> tuple[str, tuple[int, ...]]:
        earlier = rng.choice(mine) if mine else None
        if earlier and rng.random() < 0.15:
            return earlier.key, earlier.queries
        queries = [self._new_query(rng) for _ in range(rng.randint(1, 4))]
        if earlier and rng.random() < 0.2:
            queries += earlier.queries
        return f"{client}-{rng.getrandbits(64):x}", tuple(queries)

    def _new_query(self, rng: random.Random) -> int:
        """Return a number of this client alone, or one that others send at about the same time."""
        self._asked += 1
        return rng.getrandbits(48) if rng.random() < 0.5 else self._asked // 6


Answers = tuple[Answer, ...] | None


class Worker:
    """Sends requests to a separate process that charges them; restarts it if it is killed."""

    def __init__(self, url: str, projects: Mapping[str, int], flaw: str | None = None) -> None:
        self._url = url
        self._projects = projects
        self._flaw = flaw
        self._killed: int | None = None
        self._start()

    def __call__(self, project: str, key: str, queries: Sequence[int]) -> Answers:
        try:
            self._pipe.send((self._projects[project], queries, project == "people"))
            results = self._pipe.recv()
        except (EOFError, OSError) as error:
            self.process.join()
            self._start()
            raise Lost from error
        if isinstance(results, str):
            assert results == "database-unavailable", results
            raise Lost(results)
        if results is None:
            return None
        return to_answers(queries, results)

    def kill(self) -> None:
        """SIGKILL the process, whatever it is doing: a live one, never the same one twice."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (pid := self.process.pid) == self._killed or pid is None:
            assert time.monotonic() < deadline, "no client has noticed the previous kill"
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        self._killed = pid

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self._pipe.close()

    def _start(self) -> None:
        self._pipe, theirs = Pipe()
        self.process = processes.start(answer_requests, self._url, theirs, self._flaw)
        theirs.close()


_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # making one per client is slow


class Student:
    """Sends each request to a random server over HTTP, with the token of one project."""

    def __init__(self, servers: Replicas, token: str, seed: object = None) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(
            headers=headers, timeout=PATIENCE_SECONDS, verify=_NO_TLS, trust_env=False
        )
        self._servers = servers
        self._rng = random.Random(str(seed))

    def __call__(self, project: str, key: str, queries: Sequence[int]) -> Answers:
        server = self._servers.url(self._rng.randrange(len(self._servers)))
        try:
            response = self._http.post(f"{server}/label", json=label_body(queries))
        except httpx.TransportError as error:
            raise Lost from error
        return read(response, queries)

    def stop(self) -> None:
        self._http.close()


def to_answers(queries: Sequence[int], results: Sequence[tuple[Any, ...]]) -> tuple[Answer, ...]:
    """Convert the results of a process of `ledger_workers` into answers."""
    return tuple(Answer(q, *result) for q, result in zip(queries, results, strict=True))


def label_body(queries: Sequence[int]) -> dict[str, object]:
    """Return the body of `POST /label`: each number stands for a different image."""
    return {"inputs": [image(query).tolist() for query in queries]}


def image(query: int) -> np.ndarray:
    return np.random.default_rng(query).integers(0, 17, (8, 8), dtype=np.uint8)


def read(response: httpx.Response, queries: Sequence[int]) -> Answers:
    """Return the answers, or None if the budget is spent. Raises `Lost` for a well-formed 503."""
    if response.status_code == 503:
        assert response.headers["content-type"] == "application/problem+json", response.text
        passes = response.json().get("reason", "unreachable") in PASSING_REASONS
        assert ("retry-after" in response.headers) == passes
        raise Lost(response.json()["type"])
    if response.status_code == 403:
        assert response.json()["type"] == "/problems/budget-exhausted", response.text
        return None
    assert response.status_code == 200, response.text
    return tuple(
        Answer(
            query,
            result["outcome"],
            result["label"],
            result["charge"],
            result["replayed"],
            _counts(result),
        )
        for query, result in zip(queries, response.json()["results"], strict=True)
    )


def _counts(result: Mapping[str, Any]) -> tuple[int, ...] | None:
    return tuple(result["counts"]) if "counts" in result else None


_ACCOUNT = (
    "SELECT id, budget, spent, delta_budget, delta_spent, cap_budget, cap_spent, charges"
    " FROM projects WHERE name = '{}'"
)
_ENTRIES = (
    "SELECT seq, outcome, label, cost, delta, cap_cost, query_digest, counts"
    " FROM charges WHERE project_id = {} ORDER BY seq"
)


def discrepancies(url: str, project: str, exchanges: Iterable[Exchange]) -> list[str]:
    """Return what is wrong with a project's books, in words; an empty list if nothing is."""
    with closing(_open(url)) as database:
        [account] = database.execute(_ACCOUNT.format(project)).fetchall()
        entries = database.execute(_ENTRIES.format(account[0])).fetchall()
    mine = [exchange for exchange in exchanges if exchange.project == project]
    return [*_books(account, entries), *_answers(entries, mine)]


def _open(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    return psycopg.connect(url.replace("+psycopg", ""))


def _books(account: Any, entries: list[Any]) -> Iterator[str]:
    _, *money, charges = account
    if [entry[0] for entry in entries] != list(range(1, charges + 1)):
        yield f"{charges} charges are not numbered from 1 without gaps"
    if len({bytes(entry[6]) for entry in entries}) != len(entries):
        yield "a query was charged twice"
    for column, (budget, spent) in enumerate(zip(money[::2], money[1::2], strict=True), start=3):
        paid = sum(entry[column] for entry in entries)
        if not paid == spent <= budget:
            yield f"paid {paid}, recorded {spent}, budget {budget}"


def _answers(entries: list[Any], exchanges: list[Exchange]) -> Iterator[str]:
    book = {entry[0]: (entry[1], entry[2], _stored_counts(entry[7])) for entry in entries}
    charge_of: dict[int, set[int]] = defaultdict(set)
    query_of: dict[int, set[int]] = defaultdict(set)
    payers: dict[int, set[str]] = defaultdict(set)
    replies: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
    for exchange in exchanges:
        if exchange.answers is None:
            continue
        replies[exchange.key].add(tuple((a.charge, a.label) for a in exchange.answers))
        if tuple(answer.query for answer in exchange.answers) != exchange.queries:
            yield f"request {exchange.key} got other answers than it asked for"
        for answer in exchange.answers:
            if answer.charge is None:
                if answer.outcome != "refused" or answer.label is not None:
                    yield f"answered without a charge: {answer}"
                continue
            if book.get(answer.charge) != (answer.outcome, answer.label, answer.counts):
                yield f"answered {answer}, but the books say {book.get(answer.charge)}"
            charge_of[answer.query].add(answer.charge)
            query_of[answer.charge].add(answer.query)
            if not answer.replayed:
                payers[answer.charge].add(exchange.key)
    yield from (f"query {q} was paid by {c}" for q, c in charge_of.items() if len(c) > 1)
    yield from (f"charge {c} paid for {q}" for c, q in query_of.items() if len(q) > 1)
    yield from (f"charge {c} was paid by {k}" for c, k in payers.items() if len(k) > 1)
    yield from (f"request {k} was answered {a}" for k, a in replies.items() if len(a) > 1)
    if unsent := book.keys() - query_of.keys():
        yield f"paid, but never sent to anybody: {sorted(unsent)}"


def _stored_counts(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else tuple(json.loads(text))


class Witness:
    """Records its answers, and retries requests that were not answered."""

    def __init__(self, servers: Replicas) -> None:
        self.servers = servers
        self.exchanges: list[Exchange] = []
        self.project = f"study-{uuid.uuid4().hex[:8]}"
        self._student = Student(servers, servers.open_project(self.project, 5000))
        self._asked = 0

    def ask(self) -> None:
        """Send a new query. Raises `Lost` on a 503; the next call then retries the request."""
        key, queries = f"request-{self._asked}", (self._asked,)
        answers = self._student(self.project, key, queries)
        self.exchanges.append(Exchange(self.project, key, queries, answers))
        self._asked += 1

    def ask_again(self, earlier: Exchange) -> None:
        """Repeat a request that was answered; the answers must be the same."""
        again = self._student(self.project, earlier.key, earlier.queries)
        told = [(a.charge, a.label, a.counts) for a in earlier.answers or ()]
        assert [(a.charge, a.label, a.counts) for a in again or ()] == told

    def ask_until_lost(self, most: int) -> None:
        with suppress(Lost):
            for _ in range(most):
                self.ask()
            pytest.fail("the fault had no effect")

    def ask_until_answered(self) -> None:
        """Ask until the service has recovered; only the test's own time limit ends it."""
        while True:
            with suppress(Lost):
                return self.ask()
            time.sleep(0.1)

    def alive(self) -> bool:
        return httpx.get(f"{self.servers.url(0)}/healthz").status_code == 200

    def judge(self) -> None:
        assert discrepancies(self.servers.database_url, self.project, self.exchanges) == []
        assert self.servers.ledger.verifier.verify_project(self.project).ok


QUICK = Training(method="ridge")
CONFIDENT = {"name": "confident_gnmax", "threshold": 24, "sigma1": 8.0, "sigma2": 4.0}
# Pays for 79 queries of CONFIDENT, whatever their outcomes.
AMPLE = 15.0
INTERACTIVE = {**CONFIDENT, "name": "interactive_gnmax", "threshold": 20, "confidence": 0.9}


def study(
    server: RunningServer, client: Client, out: Path, training: Training = QUICK, **options: Any
) -> Distilled:
    digits = server.ensemble
    own = (digits.unseen, digits.unseen_labels)
    return distill(client, digits.public, out, held_out=own, training=training, **options)
