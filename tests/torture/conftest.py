"""What all torture needs: a seed that can be given, and databases that may be broken."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mortal_postgres import Database, MortalPostgres, mortal_postgres

if TYPE_CHECKING:  # heavy: imported by the fixtures that need it, when they do
    from digits import DigitsEnsemble
    from replicas import Replicas
    from witness import Witness

KILLS = 200
"""Kills of a run unless told; `make torture` asks for 1,000."""
TALLY = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torture")
    group.addoption("--kills", type=int, help=f"kills in all (default {KILLS})")
    group.addoption("--seed", type=int, help="repeat the schedule of an earlier run")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash.get(TALLY, []):
        terminalreporter.write_line(f"TORTURE {line}")


@pytest.fixture(scope="session")
def tally(request: pytest.FixtureRequest) -> list[str]:
    """Lines for the end of the report: what was done to whom."""
    return request.config.stash.setdefault(TALLY, [])


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest, tally: list[str]) -> int:
    # Absent where pytest learnt of these options only after it had read the command line.
    given: int | None = request.config.getoption("seed", default=None)
    drawn = random.SystemRandom().randrange(10**6) if given is None else given
    tally.append(f"again with: make torture ARGS='--seed {drawn}'")
    return drawn


@pytest.fixture(scope="session")
def kills(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("kills", default=None) or KILLS


@pytest.fixture(scope="session")
def mortal() -> Iterator[MortalPostgres]:
    """A PostgreSQL server that tests may kill, if they start it again."""
    with mortal_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """A fresh database on a server that may be killed: each test runs on both kinds."""
    if request.param == "sqlite":
        return Database(f"sqlite:///{tmp_path / 'terrine.sqlite'}", None)
    server: MortalPostgres = request.getfixturevalue("mortal")
    return Database(server.url(server.make_database()), server)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(
    request: pytest.FixtureRequest,
    digits_ensemble: DigitsEnsemble,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Replicas]:
    """One server, for all tests of a file."""
    from replicas import replicas

    directory = tmp_path_factory.mktemp("server")
    url = f"sqlite:///{directory / 'terrine.sqlite'}"
    if request.param == "postgresql":
        postgres: MortalPostgres = request.getfixturevalue("mortal")
        url = postgres.url(postgres.make_database())
    with replicas(directory / "data", url, digits_ensemble, 1) as servers:
        yield servers


@pytest.fixture
def witness(server: Replicas) -> Witness:
    from witness import Witness

    return Witness(server)
