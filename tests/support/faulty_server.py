"""A small HTTP server on a real socket that fails as networks do, and then works.

It has a minimal ledger: an input is identified by its bytes, its label is its first number, and at
most `capacity` inputs are answered.
"""

from __future__ import annotations

import io
import json
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

import numpy as np

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
