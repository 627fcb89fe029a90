"""People who leave and come: a small ensemble, its owner's commands, and processes that die."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from digits import DigitsEnsemble
from migrated import SECRET_KEY
from numpy.typing import NDArray
from sqlalchemy import event

from terrine_models.data.arrays import DIGITS, Dataset, InputSpec
from terrine_models.features.maps import PublicData
from terrine_models.teachers.neighbours import NeighbourSettings, build
from terrine_models.teachers.people import name_digests
from terrine_server.ledger import Ledger, connect
from terrine_server.ledger.ledger import now
from terrine_server.owner import editions
from terrine_server.settings import Settings

KEY = b"key of the records" * 3
PEOPLE, PAIRS = 300, 200
SPEC = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=255)
WRITES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}


def digits(rows: slice | list[int]) -> Dataset:
    """Digits, each of which is a person, whose name is `digit` and its number."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images, labels = found.images.astype(np.uint8), found.target.astype(np.int64)
    numbers = np.arange(len(images))[rows] if isinstance(rows, slice) else np.array(rows)
    return Dataset(
        images[rows],
        labels[rows],
        DIGITS,
        SPEC,
        name="digits",
        groups=np.arange(len(numbers)),
        group_column="group",
        people=names_of(numbers),
    )


def names_of(numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(f"digit {number}" for number in numbers)


def build_people(out: Path, ensemble: DigitsEnsemble) -> DigitsEnsemble:
    """An ensemble of `PEOPLE` people, each of whom is one digit."""
    public = PublicData.declare("digits from 1200 on", ensemble.public)
    manifest = build(
        digits(slice(PEOPLE)),
        out,
        name="people",
        public=public,
        settings=NeighbourSettings(near=20),
        key=KEY,
    )
    return replace(ensemble, directory=out, manifest=manifest)


def save(path: Path, data: Dataset) -> Path:
    """The file that an owner gives."""
    assert data.people is not None
    group, classes = np.array(data.people)[data.groups], np.array(data.classes)
    np.savez(path, x=data.inputs, y=data.labels, group=group, classes=classes)
    return path


def points(directory: Path) -> NDArray[np.int16]:
    """Where the people of an edition are, as their records hold it."""
    from terrine_models.storage.manifests import load_tensors
    from terrine_models.teachers.kinds import load_manifest
    from terrine_models.teachers.neighbours import RECORDS_FILE

    digest = load_manifest(directory).files[RECORDS_FILE]
    found: NDArray[np.int16] = load_tensors(directory, RECORDS_FILE, digest)["points"].numpy()
    return found


def holding(directory: Path, *texts: bytes) -> list[str]:
    """The files below a directory that have any of these bytes in them."""
    return [
        str(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and any(text in path.read_bytes() for text in texts)
    ]


def pairs(shift: int = 0) -> Dataset:
    """Two digits of each of `PAIRS` people. `shift`: so many classes on, and nobody else's."""
    found = digits(slice(2 * PAIRS))
    names = tuple(f"person {n}" for n in range(PAIRS))
    groups = np.repeat(np.arange(PAIRS), 2)
    labels = (found.labels + shift) % 10
    return replace(found, labels=labels, groups=groups, group_column="group", people=names)


def next_but_die(data_dir: str, url: str, leaving: list[int], coming: list[int], step: int) -> None:
    """Forget people or add others, and be killed just before what one step writes."""
    make_next(leaving, coming, *dying(data_dir, url, step))


def forget_taught_but_die(data_dir: str, url: str, name: str, step: int) -> None:
    """Forget somebody in trained teachers, and be killed just before what one step writes."""
    who, given = name_digests([name], KEY), {"taught": editions.Retraining(pairs())}
    editions.forget(*dying(data_dir, url, step), None, who, given)


def in_one_month(patch: pytest.MonkeyPatch) -> None:
    """Let no month begin while the patch lasts: how many people there are is published then."""
    began = now()

    def clock() -> datetime:
        found = now()
        return found if (found.year, found.month) == (began.year, began.month) else began

    patch.setattr("terrine_server.ledger.ledger.now", clock)


def reads(mode: object) -> bool:
    return str(mode).startswith("r") and "+" not in str(mode)


def dying(data_dir: str, url: str, step: int) -> tuple[Ledger, Settings]:
    """What this process works with, which is killed just before what one step writes.

    On PostgreSQL, only before statements and COMMITs: files are the same on both.
    """
    engine = connect(url)
    seen = 0

    def count() -> None:
        nonlocal seen
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    def audit(name: str, given: tuple[Any, ...]) -> None:
        if name in WRITES or (name == "open" and data_dir in str(given[0]) and not reads(given[1])):
            count()

    if engine.dialect.name == "sqlite":
        sys.addaudithook(audit)
    event.listen(engine, "before_cursor_execute", lambda *_: count())
    event.listen(engine, "commit", lambda *_: count())
    return Ledger(engine, SECRET_KEY), Settings(data_dir=Path(data_dir))


def make_next(
    leaving: list[int], coming: list[int], ledger: Ledger, settings: Settings
) -> editions.EditionChange:
    if leaving:
        who = name_digests(names_of(leaving), KEY)
        return editions.forget(ledger, settings, None, who)["people"]
    return editions.add(ledger, settings, "people", digits(coming))
