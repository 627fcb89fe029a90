"""Fixtures that every area shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import Terrine, commands
from postgres import Postgres, running_postgres

if TYPE_CHECKING:  # heavy: imported by the fixtures that need it, when they do
    from digits import DigitsEnsemble
    from server import RunningServer

REPOSITORY = Path(__file__).resolve().parent.parent

for size in ("COLUMNS", "LINES"):  # of the terminal that the tests are started from
    os.environ.pop(size, None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests are spread over processes, the long ones come first: none is left to wait for."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests recorded under the name `torture`, from whichever process they ran in."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    properties = [pair for report in reports for pair in getattr(report, "user_properties", [])]
    for line in dict.fromkeys(line for name, line in properties if name == "torture"):
        terminalreporter.write_line(f"TORTURE {line}")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Directory of data sets too large for the repository (MNIST, Adult, recorded votes)."""
    directory = Path(os.environ.get("TERRINE_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
    if not directory.is_dir():
        pytest.skip(
            f"NO SHARED DATA at {directory}: this promise is not checked here. "
            "Set TERRINE_SHARED_DATA to the directory that holds mnist/ and adult/."
        )
    return directory


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One real PostgreSQL server for the session."""
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a fresh, empty database: each test runs on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'terrine.sqlite'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    with server.database() as name:
        yield server.url(name)


@pytest.fixture(scope="session")
def digits_ensemble(tmp_path_factory: pytest.TempPathFactory) -> DigitsEnsemble:
    """Forty real teachers of handwritten digits. Shared by the session: do not alter its files."""
    from digits import train_digits

    return train_digits(tmp_path_factory.mktemp("ensembles") / "digits")


@pytest.fixture
def terrine_server(
    tmp_path: Path, database_url: str, digits_ensemble: DigitsEnsemble
) -> Iterator[RunningServer]:
    """A real server on a real socket, with the digits registered; once on each database."""
    from server import running_server

    with running_server(tmp_path / "data", database_url, digits_ensemble) as server:
        yield server


@pytest.fixture
def terrine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Terrine:
    """Run a command as the shell would, in this process, on the data directory `data`."""
    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path / "data"))
    return commands(monkeypatch, capsys)
