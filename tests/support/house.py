"""A service in the test's own process, and its owner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from caller import npy
from digits import DigitsEnsemble
from fastapi import FastAPI
from in_process import InProcess
from migrated import SECRET_KEY
from server import Owner, installed
from visitor import Visitor

from terrine_protocol import Role
from terrine_server.app import create_app
from terrine_server.ledger import Ledger

CONFIDENT = {"name": "confident_gnmax", "threshold": 24, "sigma1": 12.0, "sigma2": 4.0}


@dataclass
class House(Owner):
    """A service in this process, and its owner."""

    app: FastAPI
    ledger: Ledger
    send: InProcess
    ensemble: DigitsEnsemble
    asked: int = field(default=0)

    def ask(self, token: str, count: int) -> None:
        """Ask new queries."""
        inputs = self.ensemble.public[self.asked : self.asked + count]
        self.asked += count
        headers = {"Content-Type": "application/x-npy"}
        reply = self.send(
            self.app, "POST", "/label", token, content=npy(np.asarray(inputs)), headers=headers
        )
        assert reply.status_code == 200, reply.text

    def visitor(self, role: str = "admin") -> Visitor:
        made = Visitor(self.app, self.send)
        assert made.sign_in(self.token(role)).status_code == 303
        return made

    @property
    def last_logged(self) -> tuple[str, str, str]:
        (entry,) = self.ledger.log(limit=1, newest=True)
        return entry.action, entry.subject, entry.actor


@pytest.fixture(scope="session")
def house(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[House]:
    """One service for all tests of a process; each opens studies of its own."""
    directory = tmp_path_factory.mktemp("house")
    url = f"sqlite:///{directory / 'terrine.sqlite'}"
    settings, engine = installed(
        directory / "data", url, digits_ensemble, requests_per_minute=100_000
    )
    with InProcess() as send:
        made = House(create_app(settings), Ledger(engine, SECRET_KEY), send, digits_ensemble)
        made.open_project("study", CONFIDENT, epsilon=20.0)
        made.ask(made.token(Role.STUDENT, "study"), 12)
        yield made
    engine.dispose()


@pytest.fixture(autouse=True)
def nobody_has_failed(house: House) -> None:
    """Tests share a service and an address, of which one test uses up the failed sign-ins."""
    house.app.state.services.failed_logins._buckets.clear()


@pytest.fixture
def admin(house: House) -> Visitor:
    return house.visitor()


@pytest.fixture
def auditor(house: House) -> Visitor:
    return house.visitor("auditor")
