"""Fixtures that every area shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import Terrine, commands
from hypothesis import HealthCheck, settings
from migrated import SECRET_KEY
from postgres import Postgres, running_postgres

if TYPE_CHECKING:  # heavy: imported by the fixtures that need it, when they do
    from digits import DigitsEnsemble
    from server import RunningServer

WHOLE_SERVICES = {
    "audit",
    "demo",
    "docker",
    "fuzz",
    "operating",
    "experiments",
    "simulation",
    "student",
    "torture",
    "walk",
}
"""Directories whose tests run whole services, trainings or many draws."""
SLOW_FILES = {
    "admin/test_access",
    "admin/test_issuer",
    "client/test_estimator",
    "api/test_commands",
    "api/test_queueing",
    "api/test_exhaustion",
    "api/test_abuse",
    "api/test_paging",
    "api/test_rendering",
    "ledger/test_concurrency",
    "ledger/test_crash",
    "ledger/test_ledger_cli",
    "ledger/test_model",
    "ledger/test_publishing",
    "ledger/test_parts",
    "models/test_backbones",
    "models/test_discriminant",
    "models/test_ensemble",
    "models/test_ensemble_cli",
    "models/test_forests",
    "models/test_onnx",
    "models/test_preview",
    "models/test_teachers",
    "plan/test_comparison",
    "plan/test_plan",
    "plan/test_plan_commands",
    "plan/test_planning_documentation",
    "packaging/test_distribution",
    "privacy_data_dependent/test_cost_properties",
    "privacy_data_dependent/test_smoothness_brute_force",
}
"""Files most of whose tests take seconds."""
SERVERS = {"postgresql", "postgres", "mortal", "servers", "terrine_server", "served"}
"""A test that is given this parameter, or one of these fixtures, needs a running server."""
REPOSITORY = Path(__file__).resolve().parent.parent

for size in ("COLUMNS", "LINES"):  # of the terminal that the tests are started from
    os.environ.pop(size, None)
# With threads of their own, the small matrix products of one test wait, spinning, for a processor
# that another test has: on two cores that two processes share, planning took ten times as long, and
# so did the training of students.
for library in ("OMP", "OPENBLAS"):  # torch's threads, and numpy's
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
# How long an example takes says more about the machine than about the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long tests first where several processes share them, and mark what is slow.

    `make test-fast` runs what is not marked `slow`. A test is slow if it takes more than about two
    seconds on an idle machine, which its file says with a mark of its own, or if it is of
    `WHOLE_SERVICES` or `SLOW_FILES`, or needs one of `SERVERS`: those are marked here.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        if isinstance(item, pytest.Function) and _is_slow(item):
            item.add_marker(pytest.mark.slow)


def _is_slow(item: pytest.Function) -> bool:
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {value for value in given if isinstance(value, str)}.union(item.fixturenames)
    room, file = item.path.parent.name, f"{item.path.parent.name}/{item.path.stem}"
    return room in WHOLE_SERVICES or file in SLOW_FILES or not named.isdisjoint(SERVERS)


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


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """URL of a fresh, empty SQLite database: for what does not depend on the database."""
    return f"sqlite:///{tmp_path / 'terrine.sqlite'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def each_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The same, once of each kind: where dialects, triggers, roles, locks or crashes differ."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'terrine.sqlite'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    with server.database() as name:
        yield server.url(name)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two workers compute side by side, as in a server: for tests of just that."""
    import torch

    from terrine_models.data import workers

    usual = torch.get_num_threads()
    workers._workers.cache_clear()
    torch.set_num_threads(2)
    yield
    workers._workers.cache_clear()
    torch.set_num_threads(usual)


@pytest.fixture
def secret_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the key that the tests' ledgers are sealed with, which the settings then name."""
    path = tmp_path / "secret.key"
    path.write_bytes(SECRET_KEY)
    path.chmod(0o600)
    monkeypatch.setenv("TERRINE_SECRET_KEY_FILE", str(path))
    return path


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
