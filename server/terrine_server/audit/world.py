"""Two worlds that differ in one teacher, each behind the whole service.

Eleven real teachers (heads on a table of two columns) vote for class 1 if the first column exceeds
their own threshold; the second column only makes inputs distinct. One teacher was trained on
different data in the other world and always votes the other way. The cap of an ensemble allows a
few dozen projects, so every world is registered several times under different names.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import uvicorn
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.features.maps import public_features
from terrine_models.storage.manifests import Partition, save_tensors, versions
from terrine_models.teachers.heads import HeadTeachers
from terrine_models.teachers.manifests import Manifest, save_manifest
from terrine_protocol import EnsembleRegister, ProjectOpen, Role, TokenCreate
from terrine_server.app import create_app
from terrine_server.ledger import Ledger, connect, upgrade
from terrine_server.owner.operations import make_directories, open_project, register_ensemble
from terrine_server.owner.tokens import Tokens, load_secret_key, make_secret_key
from terrine_server.serving.connection import options
from terrine_server.settings import Settings

World = Literal["here", "there"]
WORLDS: tuple[World, World] = ("here", "there")

TEACHERS = 11
FIRM = 10.0
"""A bias that no input can outweigh."""
THRESHOLDS = np.arange(TEACHERS - 1) / 10 + 0.05
"""Thresholds of the ten teachers that both worlds share, in the unit of the first column."""
CAP_EPSILON, CAP_DELTA = 100.0, 0.05
START_SECONDS = 120


@dataclass(frozen=True)
class Service:
    """A running service: its URL, and what its owner can do on the machine."""

    url: str
    settings: Settings
    ledger: Ledger

    def open(self, project: ProjectOpen) -> str:
        """Open a project and return a student token for it."""
        open_project(self.ledger, project)
        tokens = Tokens(self.ledger, load_secret_key(self.settings.secret_key_path))
        request = TokenCreate(role=Role.STUDENT, project=project.name, expires_in_days=1)
        return tokens.create(request).token

    def register(self, world: World, name: str) -> None:
        """Save a world's ensemble in the data directory and register it in the ledger."""
        save_world(self.settings.ensembles_dir / name, world, name)
        register_ensemble(
            self.ledger,
            self.settings,
            EnsembleRegister(name=name, epsilon=CAP_EPSILON, delta=CAP_DELTA),
        )


def save_world(directory: Path, world: World, name: str) -> None:
    """Save the ensemble of a world as `terrine ensemble train` would."""
    spec = InputSpec(shape=(2,), dtype="float32", low=0, high=1)
    weights = torch.zeros(TEACHERS, 2, 2)
    biases = torch.zeros(TEACHERS, 2)
    weights[1:, 1, 0] = 1.0
    biases[1:, 1] = torch.from_numpy(1 - 2 * THRESHOLDS).float()  # features are 2x − 1
    biases[0, 0 if world == "here" else 1] = FIRM
    directory.mkdir(parents=True)
    file = "teachers-00000.safetensors"
    digest = save_tensors(directory / file, {"weights": weights, "biases": biases})
    manifest = Manifest(
        name=name,
        teacher=HeadTeachers(
            features=public_features(spec, None, 2).spec, augmentations=0, ridge=1.0
        ),
        input=spec,
        classes=("low", "high"),
        teachers=TEACHERS,
        units=TEACHERS,
        partition=Partition(recipe="rows", seed=0, smallest=1, largest=1),
        versions=versions(),
        files={file: digest},
    )
    save_manifest(directory, manifest)


def input_with(votes: int, choice: np.random.Generator) -> NDArray[np.float32]:
    """Return an input [1, 2] for which `votes` of the ten shared teachers vote for class 1."""
    first = (votes + choice.uniform(-0.4, 0.4)) / 10
    return np.array([[np.clip(first, 0, 1), choice.random()]], dtype=np.float32)


@contextmanager
def running_service(data_dir: Path) -> Iterator[Service]:
    """Serve an empty data directory on a free port, as `terrine init` and `serve` would."""
    settings = Settings(
        data_dir=data_dir,
        database_url=f"sqlite:///{data_dir / 'terrine.sqlite'}",
        secret_key_file=data_dir / "secret.key",
        device="cpu",
    )
    make_directories(settings)
    make_secret_key(settings.secret_key_path)
    engine = connect(settings.database)
    key = load_secret_key(settings.secret_key_path)
    upgrade(engine, key)
    with serving(settings) as url:
        yield Service(url, settings, Ledger(engine, key))
    engine.dispose()


@contextmanager
def serving(settings: Settings) -> Iterator[str]:
    """Serve on a free port as `terrine serve` would, but in a thread; yield the URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    limits = replace(settings.limits, shutdown_seconds=5)
    config = uvicorn.Config(create_app(settings), **options(limits, settings.forwarded_allow_ips))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="terrine-server")
    thread.start()
    try:
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the server did not start; see its log")
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
