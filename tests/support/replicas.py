"""Whole servers, `terrine serve` each in a process of its own, made to be killed often.

What a server imports takes seconds, so one process imports it and then forks: from there on, a
server is the same command with the same settings, and listens after a fraction of a second.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from books import terms
from digits import DigitsEnsemble

from terrine_client.protocol import Role, TokenCreate
from terrine_server.auth import Tokens, load_secret_key, make_secret_key
from terrine_server.ledger import Ledger, connect, upgrade
from terrine_server.operations import register_ensemble
from terrine_server.settings import Settings

PATIENCE_SECONDS = 60
NOISY = {"name": "gnmax", "sigma": 400.0}
"""Among 40 teachers the noise decides: a label drawn twice is most likely two labels."""


class Replicas:
    """Servers of one data directory and one database, each on a port that it keeps."""

    def __init__(self, settings: Settings, environment: Mapping[str, str], count: int) -> None:
        self.database_url = settings.database
        self.engine = connect(settings.database)
        self.ledger = Ledger(self.engine)
        self.log = settings.data_dir / "log"
        self.ports = [_free_port() for _ in range(count)]
        self._settings = settings
        self._environment = dict(environment)
        self._lock = threading.Lock()
        spawn = multiprocessing.get_context("spawn")
        self._orders, theirs = spawn.Pipe()
        self._nursery = spawn.Process(target=_nursery, args=(theirs,))
        self._nursery.start()
        theirs.close()

    def __len__(self) -> int:
        return len(self.ports)

    def url(self, replica: int) -> str:
        return f"http://127.0.0.1:{self.ports[replica]}"

    def start(self, replica: int) -> None:
        """Run `terrine serve` on the replica's port; do not wait for it."""
        self._order("start", replica, self.ports[replica], self._environment, str(self.log))

    def kill(self, replica: int) -> None:
        """SIGKILL it."""
        self._order("kill", replica)

    def stop(self, replica: int) -> None:
        """SIGTERM it, and wait for its end."""
        self._order("stop", replica)

    def wait_until_ready(self, replica: int) -> None:
        """Wait until it listens, which it does once its ensembles are loaded."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.ports[replica], timeout=9)
                connection.request("GET", "/healthz")
                if connection.getresponse().status == 200:
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"no server came up: {self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def start_all(self) -> None:
        for replica in range(len(self)):
            self.start(replica)
        for replica in range(len(self)):
            self.wait_until_ready(replica)

    def open_project(self, name: str, queries: int) -> str:
        """Open a project that affords exactly so many queries; return a token for it."""
        self.ledger.open_project(name, "digits", NOISY, terms(queries, NOISY))
        tokens = Tokens(self.ledger, load_secret_key(self._settings.secret_key_path))
        return tokens.create(TokenCreate(role=Role.STUDENT, project=name)).token

    def close(self) -> None:
        self._orders.close()
        self._nursery.join()

    def _order(self, *order: Any) -> None:
        with self._lock:
            self._orders.send(order)
            self._orders.recv()


@contextmanager
def replicas(
    data_dir: Path, database_url: str, ensemble: DigitsEnsemble, count: int, **settings: Any
) -> Iterator[Replicas]:
    """Prepare a data directory and a database with the digits; start `count` servers on them."""
    limits = {"requests_per_minute": 10_000_000, "log_level": "warning", **settings}
    made = Settings(data_dir=data_dir, database_url=database_url)
    shutil.copytree(ensemble.directory, made.ensembles_dir / "digits")
    make_secret_key(made.secret_key_path)
    engine = connect(database_url)
    upgrade(engine)
    register_ensemble(Ledger(engine), made, "digits", 50.0, 5e-4)
    engine.dispose()
    environment = {"TERRINE_DATA_DIR": str(data_dir), "TERRINE_DATABASE_URL": database_url}
    environment |= {f"TERRINE_{name.upper()}": str(value) for name, value in limits.items()}
    started = Replicas(made, environment, count)
    try:
        started.start_all()
        yield started
    finally:
        started.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _nursery(orders: Connection) -> None:
    """Start and end servers as told, until nobody is there to tell.

    One that ends by itself, because its database is away, is started again as a supervisor would.
    """
    import uvicorn  # noqa: F401

    fork = multiprocessing.get_context("fork")
    running: dict[int, BaseProcess] = {}
    launch: dict[int, Callable[[], BaseProcess]] = {}

    def start(replica: int) -> None:
        running[replica] = launch[replica]()
        running[replica].start()

    try:
        while True:
            if not orders.poll(0.05):
                for replica, process in list(running.items()):
                    if process.exitcode is not None:
                        start(replica)
                continue
            order, replica, *arguments = orders.recv()
            if order == "start":
                launch[replica] = partial(fork.Process, target=_serve, args=arguments)
                start(replica)
            else:
                process = running.pop(replica)
                process.kill() if order == "kill" else process.terminate()
                process.join()
            orders.send(None)
    except EOFError:
        for process in running.values():
            process.kill()


def _serve(port: int, environment: Mapping[str, str], log: str) -> None:
    from terrine_server.cli import main

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    sys.argv = ["terrine", "serve", "--port", str(port)]
    main()
