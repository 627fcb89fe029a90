"""A service of a benchmark's own: teachers of digits, `terrine serve`, and its callers."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from commands import SERVE, free_port, served
from datasets import Material
from support.clients import npy
from support.data import DigitsEnsemble
from support.databases import SECRET_KEY
from support.servers import Owner, installed
from terrine_models.teachers.kinds import Heads, Networks
from terrine_models.teachers.training import train_ensemble
from terrine_server.ledger import Ledger
from terrine_server.settings import Settings

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
    home: Path, material: Material, teachers: int, config: Heads | Networks
) -> DigitsEnsemble:
    """Train teachers into a directory that does not exist; students ask about the test images."""
    home.mkdir()
    manifest = train_ensemble(
        material.private,
        home / "ensemble",
        name="bench",
        teachers=teachers,
        config=config,
        public=material.public if isinstance(config, Heads) else None,
    )
    images, labels = material.images, material.labels
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


def compared(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
