"""Whole servers, `terrine serve` each in a process of its own, made to be killed often."""

from __future__ import annotations

import http.client
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import processes
from books import terms
from digits import DigitsEnsemble
from migrated import SECRET_KEY
from patience import PATIENCE_SECONDS
from server import installed, register
from sqlalchemy import Engine

from terrine_protocol import Role, TokenCreate
from terrine_server.ledger import Ledger, NewProject
from terrine_server.owner.sign_in import Tokens, load_secret_key
from terrine_server.planning.opening import choose
from terrine_server.privacy import build_mechanism
from terrine_server.settings import Settings

NOISY = {"name": "gnmax", "sigma": 400.0}
"""Among 40 teachers the noise decides: a label drawn twice is most likely two labels."""
PEOPLE = {"name": "neighbours", "sigma": 400.0}


class Replicas:
    """Servers of one data directory and one database, each on a port that it keeps."""

    def __init__(self, settings: Settings, engine: Engine, count: int) -> None:
        self.engine = engine
        self.ledger = Ledger(engine, SECRET_KEY)
        self.database_url = settings.database
        self._held = [_held_port() for _ in range(count)]
        self.ports = [each.getsockname()[1] for each in self._held]
        self._settings = settings
        self._log = settings.data_dir / "log"
        self._running = [self._launch(port) for port in self.ports]

    def __len__(self) -> int:
        return len(self.ports)

    def url(self, replica: int) -> str:
        return f"http://127.0.0.1:{self.ports[replica]}"

    def start(self, replica: int) -> None:
        """Run `terrine serve` on the replica's port; do not wait for it."""
        self._running[replica] = self._launch(self.ports[replica])

    def kill(self, replica: int) -> None:
        """SIGKILL it."""
        self._running[replica].kill()
        self._running[replica].join()

    def refusal(self, replica: int) -> str:
        """What it said last, when it ended by itself instead of serving."""
        self._running[replica].join(PATIENCE_SECONDS)
        assert self._running[replica].exitcode, "it ought to have refused to serve"
        return self._log.read_text().splitlines()[-1]

    def stop(self, replica: int) -> None:
        """SIGTERM it, and wait for its end."""
        self._running[replica].terminate()
        self._running[replica].join()

    def listens(self, replica: int) -> bool:
        """Whether it does now."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[replica])):
            return True
        return False

    def wait_until_ready(self, replica: int) -> None:
        """Wait until it listens, which it does once its ensembles are loaded.

        A server that exits by itself, because its database is down, is restarted, as a supervisor
        would do.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.ports[replica], timeout=9)
                connection.request("GET", "/healthz")
                if connection.getresponse().status == 200:
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"no server started: {self._log.read_text()[-3000:]}")
            if self._running[replica].exitcode is not None:
                self.start(replica)
            time.sleep(0.02)

    def open_project(self, name: str, queries: int) -> str:
        """Open a project whose budget pays for exactly `queries`; return a token for it.

        In one called "people", people vote: see `register`.
        """
        if name == "people":
            spec = PEOPLE | {"queries": queries}
            facts, rule = (
                self.ledger.ensemble(name).facts,
                self.ledger.ensemble(name).population.rule,
            )
            mechanism = build_mechanism(spec, teachers=facts.teachers, classes=len(facts.classes))
            agreed = choose(mechanism, 8.0, 1e-6, cap_rule=rule).terms
            self.ledger.open_project(NewProject(name, name, spec, agreed))
        else:
            agreed = terms(queries, NOISY, self.ledger.ensemble("digits").population.rule)
            self.ledger.open_project(NewProject(name, "digits", NOISY, agreed))
        tokens = Tokens(self.ledger, load_secret_key(self._settings.secret_key_path))
        return tokens.create(TokenCreate(role=Role.STUDENT, project=name)).token

    def register(self, ensemble: DigitsEnsemble) -> None:
        """Register another ensemble, while the servers run."""
        register(self._settings, self.ledger, ensemble)

    def close(self) -> None:
        for replica in range(len(self)):
            self.kill(replica)
        for each in self._held:
            each.close()
        self.engine.dispose()

    def _launch(self, port: int) -> BaseProcess:
        environment = os.environ | {
            "TERRINE_DATA_DIR": str(self._settings.data_dir),
            "TERRINE_DATABASE_URL": self.database_url,
            "TERRINE_REQUESTS_PER_MINUTE": "10000000",
            "TERRINE_LOG_LEVEL": "warning",
        }
        serve = ("serve", "--port", str(port))
        return processes.start(processes.command, serve, environment, str(self._log))


@contextmanager
def replicas(
    data_dir: Path, database_url: str, ensemble: DigitsEnsemble, count: int
) -> Iterator[Replicas]:
    """Prepare a data directory and a database with the digits; start `count` servers on them."""
    started = Replicas(*installed(data_dir, database_url, ensemble), count)
    try:
        for replica in range(count):
            started.wait_until_ready(replica)
        yield started
    finally:
        started.close()


def _held_port() -> socket.socket:
    """A port that no other process is given, also while no server listens on it."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", 0))
    return made
