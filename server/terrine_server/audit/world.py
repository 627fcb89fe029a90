"""Two worlds that differ in one teacher, each behind the whole service, and who attacks them.

Eleven real teachers are heads on a table of two columns. One was trained on different data in the
other world and always votes the other way. The ten others vote for class 1 if the first column
exceeds their threshold. These come in three groups, as of teachers that saw like data: so on most
queries they agree, and a query can divide them between groups only. Some of the ten may be an
adversary's (`Adversary`). The cap of an ensemble allows a few dozen projects, so every world is
registered several times under different names.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
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
Save = Callable[[Path, str], object]
WORLDS: tuple[World, World] = ("here", "there")

TEACHERS = 11
FIRM = 10.0
"""A bias that no input can outweigh."""
THRESHOLDS = (0.45,) * 3 + (0.5,) * 4 + (0.55,) * 3
"""Of the ten teachers that both worlds share, in the unit of the first column."""
CAP_EPSILON, CAP_DELTA = 100.0, 0.05
START_SECONDS = 120


@dataclass(frozen=True)
class Region:
    """Inputs on which the ten teachers give the same number of `votes` to class 1."""

    votes: int
    first: tuple[float, float]
    second: tuple[float, float]
    """The columns' intervals."""

    @property
    def share(self) -> float:
        """Of all queries that come by themselves: uniform in the unit square."""
        return (self.first[1] - self.first[0]) * (self.second[1] - self.second[0])

    def draw(self, choice: np.random.Generator) -> NDArray[np.float32]:
        """Return an input [2], not so near an edge that rounding matters."""
        columns = (
            low + (high - low) * choice.uniform(0.1, 0.9) for low, high in (self.first, self.second)
        )
        return np.array([*columns], dtype=np.float32)


@dataclass(frozen=True)
class Adversary:
    """An adversary of *Auditing Private Prediction* (Chadha et al., ICML 2024, arXiv 2402.09403).

    `poisoned`: how many of the ten teachers it trained. `chooses`: whether it chooses the queries,
    and so tells its teachers by the second column how many of them vote for class 1. Otherwise
    queries come by themselves, and its teachers vote against what most others think.
    """

    name: str
    title: str
    poisoned: int
    chooses: bool

    @property
    def honest(self) -> tuple[float, ...]:
        """The thresholds of the teachers that are not the adversary's."""
        return THRESHOLDS[: len(THRESHOLDS) - self.poisoned]

    def teacher(self, own: int) -> tuple[tuple[float, float], float]:
        """Return weights [2] and bias, on columns, of the score for class 1 of one of its own."""
        return ((0.0, 1.0), -self._edges[own + 1]) if self.chooses else ((-1.0, 0.0), 0.5)

    @property
    def _edges(self) -> list[float]:
        """Where votes by the second column change, if it is used."""
        return [own / (self.poisoned + 1) for own in range(self.poisoned + 2)]

    def regions(self) -> list[Region]:
        """Return the parts of the unit square on which votes are the same."""
        edges = sorted({0.0, 0.5, 1.0, *self.honest})
        seconds = [*pairwise(self._edges)] if self.chooses else [(0.0, 1.0)]
        return [
            Region(
                sum(threshold <= first[0] for threshold in self.honest)
                + (own if self.chooses else self.poisoned * (first[1] <= 0.5)),
                first,
                second,
            )
            for first in pairwise(edges)
            for own, second in enumerate(seconds)
        ]


ADVERSARIES = (
    Adversary("queries", "control of the queries", 0, chooses=True),
    Adversary("shards", "3 of 10 shards poisoned", 3, chooses=False),
    Adversary("both", "both", 3, chooses=True),
)


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

    def open_many(
        self, prefix: str, count: int, save: Save, terms: Mapping[str, object]
    ) -> list[str]:
        """Open projects on the terms, and return their tokens.

        `save`: saves an ensemble in a directory, under a name. There are as many as caps require.
        Their rule is Gaussian DP, whose parameter is what a guess of the world is held against.
        """
        tokens: list[str] = []
        ensemble, room = "", 0
        for number in range(count):
            if not room:
                ensemble = f"{prefix}-{number}"
                save(self.settings.ensembles_dir / ensemble, ensemble)
                register_ensemble(
                    self.ledger,
                    self.settings,
                    EnsembleRegister(
                        name=ensemble,
                        population=ensemble,
                        disjoint=True,
                        epsilon=CAP_EPSILON,
                        delta=CAP_DELTA,
                        rule="gdp",
                    ),
                )
            name = f"{prefix}-project-{number}"
            wanted = {"name": name, "ensemble": ensemble, **terms}
            tokens.append(self.open(ProjectOpen.model_validate(wanted)))
            if not room:
                record = self.ledger.project(name)
                room = record.ensemble.population.cap // record.terms.cap_budget
            room -= 1
        return tokens


def save_world(adversary: Adversary, world: World, directory: Path, name: str) -> None:
    """Save the ensemble of a world as `terrine ensemble train` would."""
    spec = InputSpec(shape=(2,), dtype="float32", low=0, high=1)
    weights = torch.zeros(TEACHERS, 2, 2)
    biases = torch.zeros(TEACHERS, 2)
    teachers = [((1.0, 0.0), -threshold) for threshold in adversary.honest]
    teachers += [adversary.teacher(own) for own in range(adversary.poisoned)]
    for row, (slope, bias) in enumerate(teachers, start=1):  # features are 2x − 1
        weights[row, 1] = torch.tensor(slope)
        biases[row, 1] = sum(slope) + 2 * bias
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
