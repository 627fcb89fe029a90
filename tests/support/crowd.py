"""Clients that keep sending requests, retry each until it is answered, and record the answers.

They know nothing of the product: a query is a number, and `Ask` turns a request into its answers.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from patience import PATIENCE_SECONDS


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
