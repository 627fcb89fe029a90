"""What benchmarks of the server share: a service of their own, its callers, and measuring in turn.

Who imports it can import `support` of the tests, too.
"""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from commands import SERVE, free_port, served
from support.clients import npy
from support.data import DigitsEnsemble
from support.databases import SECRET_KEY
from support.servers import Owner, installed
from terrine_models.data.arrays import Dataset
from terrine_models.features.public import PublicData
from terrine_models.teachers.kinds import Heads, Networks
from terrine_models.teachers.training import train_ensemble
from terrine_server.ledger import Ledger
from terrine_server.settings import Settings

Found = TypeVar("Found")
CHEAP = {"name": "gnmax", "sigma": 9000.0}
"""So much noise that no benchmark spends a budget."""


@dataclass(frozen=True)
class Service(Owner):
    """What is installed in a directory, and may be served there several times at once."""

    settings: Settings
    ledger: Ledger
    ensemble: DigitsEnsemble

    @contextmanager
    def serve(
        self, name: str = "server", command: Sequence[str] = SERVE, **settings: object
    ) -> Iterator[str]:
        """Serve it with other settings, if any; yields the address."""
        port = free_port()
        given = {
            "data_dir": self.settings.data_dir,
            "database_url": self.settings.database,
            "requests_per_minute": self.settings.requests_per_minute,
            "port": port,
            **settings,
        }
        variables = {f"TERRINE_{key.upper()}": str(value) for key, value in given.items()}
        url = f"http://127.0.0.1:{port}"
        with served(self.settings.data_dir / f"{name}.log", url, variables, command):
            yield url


def install(
    home: Path, ensemble: DigitsEnsemble, database_url: str | None = None, **settings: object
) -> Service:
    """Prepare a service of some teachers, on SQLite unless a database is given."""
    url = database_url or f"sqlite:///{home / 'terrine.sqlite'}"
    made, engine = installed(home / "data", url, ensemble, **settings)
    return Service(made, Ledger(engine, SECRET_KEY), ensemble)


def train(
    home: Path, private: Dataset, public: Dataset, teachers: int, config: Heads | Networks
) -> DigitsEnsemble:
    """Train teachers into a directory that does not exist; students ask about the public inputs."""
    home.mkdir()
    images, labels = public.inputs.astype(np.uint8), public.labels
    manifest = train_ensemble(
        private,
        home / "ensemble",
        name="bench",
        teachers=teachers,
        config=config,
        public=PublicData.declare("public", images) if isinstance(config, Heads) else None,
    )
    return DigitsEnsemble(home / "ensemble", manifest, images, labels, images, labels)


class LabelConnection:
    """One client that keeps its connection."""

    def __init__(self, url: str, token: str) -> None:
        self.http = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-npy"}

    def label(self, images: NDArray[np.uint8]) -> None:
        self.http.request("POST", "/label", npy(images), self.headers)
        reply = self.http.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise SystemExit(f"the service answered {reply.status}: {text[:300]!r}")


def in_turn(lines: Mapping[str, Callable[[], Found]], rounds: int) -> dict[str, list[Found]]:
    """Measure each line once in each round: the speed of a machine varies, and slows all."""
    found: dict[str, list[Found]] = {what: [] for what in lines}
    for _ in range(rounds):
        for what, measure in lines.items():
            found[what].append(measure())
    return found


def ratios(found: Sequence[float], peer: Sequence[float]) -> str:
    """The median of what each is of its peer's in the same round, and the range."""
    each = [one / other for one, other in zip(found, peer, strict=True)]
    return f"{median(each):.2f} ({min(each):.2f} to {max(each):.2f})"


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
