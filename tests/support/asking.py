"""Two ways for a client of the crowd to send queries: a worker process, and HTTP."""

from __future__ import annotations

import os
import random
import signal
import ssl
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from typing import Any

import httpx
import numpy as np
import processes
from crowd import Answer, Lost
from ledger_workers import answer_requests
from patience import PATIENCE_SECONDS
from replicas import Replicas

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
        return answers(queries, results)

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
            response = self._http.post(f"{server}/label", json=request(queries))
        except httpx.TransportError as error:
            raise Lost from error
        return read(response, queries)

    def stop(self) -> None:
        self._http.close()


def answers(queries: Sequence[int], results: Sequence[tuple[Any, ...]]) -> tuple[Answer, ...]:
    """Convert the results of a process of `ledger_workers` into answers."""
    return tuple(Answer(q, *result) for q, result in zip(queries, results, strict=True))


def request(queries: Sequence[int]) -> dict[str, object]:
    """Return the body of `POST /label`: each number stands for a different image."""
    return {"inputs": [image(query).tolist() for query in queries]}


def image(query: int) -> np.ndarray:
    return np.random.default_rng(query).integers(0, 17, (8, 8), dtype=np.uint8)


def read(response: httpx.Response, queries: Sequence[int]) -> Answers:
    """Return the answers, or None if the budget is spent. Raises `Lost` for a well-formed 503."""
    if response.status_code == 503:
        assert response.headers["content-type"] == "application/problem+json", response.text
        assert int(response.headers["retry-after"]) > 0
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
