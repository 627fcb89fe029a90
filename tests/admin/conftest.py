"""The service with a study that has charges, and visitors who are signed in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from digits import DigitsEnsemble
from house import CONFIDENT, House
from in_process import InProcess
from migrated import SECRET_KEY
from server import installed
from visitor import Visitor

from terrine_protocol import Role
from terrine_server.app import create_app
from terrine_server.ledger import Ledger


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
