"""The real service on a real socket, with real teachers behind it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from digits import DigitsEnsemble
from migrated import SECRET_KEY, migrated
from sqlalchemy import Engine

from terrine_protocol import EnsembleRegister, ProjectOpen, Role, TokenCreate
from terrine_server.app import serving
from terrine_server.ledger import Ledger, ProjectRecord
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.owner.sign_in import Tokens
from terrine_server.settings import Settings

CAP_EPSILON, CAP_DELTA = 50.0, 5e-4
GNMAX = {"name": "gnmax", "sigma": 4.0}
"""Of 40 votes."""
INTERACTIVE = {
    "name": "interactive_gnmax",
    "threshold": 25,
    "sigma1": 8.0,
    "sigma2": 4.0,
    "confidence": 0.9,
}


class Owner:
    """What the owner of a service with the digits does on its machine, without HTTP."""

    ledger: Ledger
    ensemble: DigitsEnsemble

    def open_project(
        self,
        name: str = "study",
        mechanism: Mapping[str, Any] = GNMAX,
        *,
        epsilon: float = 5.0,
        delta: float = 1e-5,
    ) -> ProjectRecord:
        """Open a project on the digits."""
        terms = {
            "name": name,
            "ensemble": self.ensemble.manifest.name,
            "mechanism": mechanism,
            "epsilon": epsilon,
            "delta": delta,
        }
        return open_project(self.ledger, ProjectOpen.model_validate(terms))

    def token(self, role: str = "student", project: str | None = None, **more: Any) -> str:
        """Create a token; `more` is as in the API. A student's is of "study" by default."""
        if role == Role.STUDENT and project is None:
            project = "study"
        wanted = {"role": role, "project": project, "expires_in_days": 400, **more}
        return Tokens(self.ledger, SECRET_KEY).create(TokenCreate.model_validate(wanted)).token


@dataclass(frozen=True)
class RunningServer(Owner):
    """A server that listens at `url`, and its owner."""

    url: str
    settings: Settings
    ledger: Ledger
    ensemble: DigitsEnsemble


def installed(
    data_dir: Path, database_url: str, ensemble: DigitsEnsemble, **settings: Any
) -> tuple[Settings, Engine]:
    """Prepare a server's tables and key, and register the digits with a cap of (50, 5e-4).

    The ensemble's files are copied: a test may alter them. `settings` override the defaults.
    """
    made = Settings(data_dir=data_dir, database_url=database_url, **settings)
    made.ensembles_dir.mkdir(parents=True, exist_ok=True)
    made.secret_key_path.write_bytes(SECRET_KEY)
    made.secret_key_path.chmod(0o600)
    engine = migrated(database_url)
    register(made, Ledger(engine, SECRET_KEY), ensemble)
    return made, engine


def register(settings: Settings, ledger: Ledger, ensemble: DigitsEnsemble) -> None:
    """Copy an ensemble's files to a server, and register it."""
    name = ensemble.manifest.name
    shutil.copytree(ensemble.directory, settings.ensembles_dir / name)
    wanted = EnsembleRegister(name=name, epsilon=CAP_EPSILON, delta=CAP_DELTA)
    register_ensemble(ledger, settings, wanted)


@contextmanager
def running_server(
    data_dir: Path, database_url: str, ensemble: DigitsEnsemble, **settings: Any
) -> Iterator[RunningServer]:
    """Serve the digits from `data_dir` on a free port, in a thread; see `installed`."""
    made, engine = installed(data_dir, database_url, ensemble, **settings)
    with serving(made) as url:
        yield RunningServer(url, made, Ledger(engine, SECRET_KEY), ensemble)
    engine.dispose()
