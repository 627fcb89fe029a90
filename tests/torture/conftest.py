"""Fixtures of the torture tests: a seed that can be given, and databases to break."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.databases import Database, Postgres, running_postgres

if TYPE_CHECKING:  # heavy: imported by the fixtures that need it, when they do
    from support.clients import Witness
    from support.data import DigitsEnsemble
    from support.servers import Replicas

KILLS, AT_NIGHT = 20, 200
"""Kills under load in a run, unless `--kills` says how many; `make torture` uses 1,000."""


def whole(text: str) -> int:
    """Parse `--kills`. Raises the error that argparse prints."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of kills: give 1 or more")
    return int(text)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torture")
    group.addoption(
        "--kills", type=whole, help=f"kills under load (default: {KILLS}, then {AT_NIGHT} at night)"
    )
    group.addoption("--seed", type=int, help="repeat the schedule of an earlier run")


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Adds a line to the end of the report."""
    return partial(record_property, "torture")


@pytest.fixture
def seed(request: pytest.FixtureRequest, testrun_uid: str, tally: Callable[[str], None]) -> int:
    """The seed: as given, or drawn once for all processes of a run."""
    # Absent if pytest loaded these options only after it had parsed the command line.
    given: int | None = request.config.getoption("seed", default=None)
    seed = int(testrun_uid, 16) % 10**6 if given is None else given
    tally(f"again with: make torture ARGS='--seed {seed}'")
    return seed


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kills" in metafunc.fixturenames:
        # Absent if pytest loaded these options only after it had parsed the command line.
        given: int | None = metafunc.config.getoption("kills", default=None)
        by_day = metafunc.definition.get_closest_marker("nightly") is None
        at_night = pytest.param(AT_NIGHT, marks=pytest.mark.nightly)
        usual = [KILLS, at_night] if by_day else [at_night]
        metafunc.parametrize("kills", [given] if given else usual, indirect=True)


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> Callable[[float], int]:
    """Returns a test's share of all kills: at least one."""
    total: int = request.param
    return lambda share: max(1, round(total * share))


@pytest.fixture(scope="session")
def mortal() -> Iterator[Postgres]:
    """A PostgreSQL server that these tests may kill, if they start it again."""
    with running_postgres() as server:
        yield server


@contextmanager
def fresh(request: pytest.FixtureRequest, directory: Path) -> Iterator[Database]:
    """An empty database of the kind that the fixture is parametrized with."""
    if request.param == "sqlite":
        yield Database(f"sqlite:///{directory / 'terrine.sqlite'}")
        return
    server: Postgres = request.getfixturevalue("mortal")
    with server.database() as name:
        yield Database(server.url(name), name, server)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database on a server that may be killed; each test runs on both kinds."""
    with fresh(request, tmp_path) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def fresh_database(
    request: pytest.FixtureRequest,
) -> Callable[[Path], AbstractContextManager[Database]]:
    """Makes empty databases of one kind; those of SQLite in the given directory."""
    return partial(fresh, request)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def servers(
    request: pytest.FixtureRequest,
    digits_ensemble: DigitsEnsemble,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Replicas]:
    """Servers for all tests of a file: as many as its `REPLICAS` says, or one."""
    from support.servers import replicas

    directory = tmp_path_factory.mktemp("servers")
    count = getattr(request.module, "REPLICAS", 1)
    with (
        fresh(request, directory) as database,
        replicas(directory / "data", database.url, digits_ensemble, count) as started,
    ):
        yield started


@pytest.fixture
def witness(servers: Replicas) -> Witness:
    from support.clients import Witness

    return Witness(servers)
