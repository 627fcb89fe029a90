"""Fixtures that every area shares."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import structlog
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

from support.databases import SECRET_KEY, SERVICE, Postgres, running_postgres
from support.processes import PATIENCE_SECONDS, Terrine, commands, seed_noise

if TYPE_CHECKING:  # heavy: imported by the fixtures that need it, when they do
    from support.data import DigitsEnsemble
    from support.servers import RunningServer

pytest_plugins = ["support.durations", "support.wording"]
REPOSITORY = Path(__file__).resolve().parent.parent

for size in ("COLUMNS", "LINES"):  # of the terminal that the tests are started from
    os.environ.pop(size, None)
# A machine that does much else may take longer than the five seconds that clients wait by default.
for limit in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, limit, PATIENCE_SECONDS)
# Each client reads the 140 authorities of the web, for a fiftieth of a second; no test asks them.
vars(httpx._transports.default)["create_ssl_context"] = cache(httpx.create_ssl_context)
# Each engine compiles each statement anew, which takes longer than to run it. The tests have many
# databases, but of two dialects.
_compiled = LRUCache[Any, Any](2000)
Engine._compiled_cache = property(lambda _: _compiled, lambda *_: None)  # type: ignore[assignment]
DefaultDialect.__hash__ = lambda own: hash(type(own))  # type: ignore[assignment, method-assign]
DefaultDialect.__eq__ = lambda own, other: type(own) is type(other)  # type: ignore[method-assign]
# A server in a test's process logs from threads of its own: on stdout, its lines would be among
# those of the command that the test runs meanwhile.
structlog.configure(logger_factory=structlog.stdlib.LoggerFactory())
# How long an example takes says more about the machine than about the code.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("exploring", untimed)
settings.register_profile("repeating", untimed, derandomize=True)
settings.load_profile("repeating")  # by day the same examples, so that no run fails by chance


# What is imported and collected lives to the end: looking through it for garbage, again and again,
# took a fifth of the time of collecting, and a tenth of that of quick tests.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on, only what tests make is looked through, and not for each 700 objects."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests recorded as `torture` or `walk`, from whichever process they ran in."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    properties = [pair for report in reports for pair in getattr(report, "user_properties", [])]
    shown = [(name, line) for name, line in properties if name in ("torture", "walk")]
    for name, line in dict.fromkeys(shown):
        terminalreporter.write_line(f"{name.upper()} {line}")


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
def each_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a fresh, empty database: once of SQLite and once of PostgreSQL.

    On PostgreSQL it is that of the role that a server has: `migrated` makes the tables as their
    owner, and grants it what `terrine init` grants. What an owner or a forger does takes the URL
    `as_owner`.

    For promises that a database keeps in a way of its own: dialects, triggers, roles, locks,
    crashes. A test whose fixtures take `database_url` asks for it by `usefixtures`.
    """
    with _database(request, tmp_path) as url:
        yield url


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a fresh, empty database, which is of SQLite unless the test says otherwise."""
    if "each_database_url" in request.fixturenames:
        yield request.getfixturevalue("each_database_url")
        return
    with _database(request, tmp_path) as url:
        yield url


@contextmanager
def _database(request: pytest.FixtureRequest, directory: Path) -> Iterator[str]:
    if getattr(request, "param", "sqlite") == "sqlite":
        yield f"sqlite:///{directory / 'terrine.sqlite'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    with server.database() as name:
        yield server.url(name, user=SERVICE)


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
def no_refill(monkeypatch: pytest.MonkeyPatch) -> None:
    """For rate limits, no time passes: a busy machine would grant more than a test expects."""
    from terrine_server.api.rate_limits import RateLimit

    use, now = RateLimit._use, time.monotonic()

    def stopped(limit: RateLimit, *given: Any, **named: Any) -> float:
        with monkeypatch.context() as patch:
            patch.setattr(limit, "_clock", lambda: now)
            return use(limit, *given, **named)

    monkeypatch.setattr(RateLimit, "_use", stopped)


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
    from support.data import train_digits

    return train_digits(tmp_path_factory.mktemp("ensembles") / "digits")


@pytest.fixture
def terrine_server(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    database_url: str,
    digits_ensemble: DigitsEnsemble,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[RunningServer]:
    """A real server on a real socket, with the digits registered.

    Its noise is repeated, except in a test that is marked `statistical`.
    """
    from support.servers import running_server

    if request.node.get_closest_marker("statistical") is None:
        seed_noise(monkeypatch)
    with running_server(tmp_path / "data", database_url, digits_ensemble) as server:
        yield server


@pytest.fixture
def terrine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Terrine:
    """Run a command as the shell would, in this process, on the data directory `data`."""
    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path / "data"))
    return commands(monkeypatch, capsys)
