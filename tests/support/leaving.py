"""People who leave and come: a small ensemble, its owner's commands, and processes that die."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from digits import DigitsEnsemble
from migrated import SECRET_KEY
from numpy.typing import NDArray
from sqlalchemy import event

from terrine_models.data.arrays import DIGITS, Dataset, InputSpec
from terrine_models.features.maps import PublicData
from terrine_models.teachers.neighbours import Neighbours, build
from terrine_models.teachers.people import record_digests
from terrine_server.ledger import Ledger, connect
from terrine_server.owner import editions
from terrine_server.settings import Settings

KEY = b"key of the records" * 3
PEOPLE = 300
SPEC = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=255)
WRITES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}


def digits(rows: slice | list[int]) -> Dataset:
    from sklearn.datasets import load_digits

    found = load_digits()
    images, labels = found.images.astype(np.uint8), found.target.astype(np.int64)
    return Dataset(images[rows], labels[rows], DIGITS, SPEC, name="digits")


def build_people(out: Path, ensemble: DigitsEnsemble) -> DigitsEnsemble:
    """An ensemble of `PEOPLE` people, each of whom is one digit."""
    public = PublicData.declare("digits from 1200 on", ensemble.public)
    manifest = build(
        digits(slice(PEOPLE)),
        out,
        name="people",
        public=public,
        settings=Neighbours(near=20),
        key=KEY,
    )
    return replace(ensemble, directory=out, manifest=manifest)


def save(path: Path, data: Dataset, **more: Any) -> Path:
    """The file that an owner gives."""
    np.savez(path, x=data.inputs, y=data.labels, classes=np.array(data.classes), **more)
    return path


def points(directory: Path) -> NDArray[np.int16]:
    """Where the people of an edition are, as their records hold it."""
    from terrine_models.storage.manifests import load_tensors
    from terrine_models.teachers.kinds import load_manifest
    from terrine_models.teachers.neighbours import RECORDS

    digest = load_manifest(directory).files[RECORDS]
    found: NDArray[np.int16] = load_tensors(directory, RECORDS, digest)["points"].numpy()
    return found


def holding(directory: Path, *texts: bytes) -> list[str]:
    """The files below a directory that have any of these bytes in them."""
    return [
        str(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and any(text in path.read_bytes() for text in texts)
    ]


def next_but_die(data_dir: str, url: str, leaving: list[int], coming: list[int], step: int) -> None:
    """Forget people or add others, and be killed just before what one step writes.

    On PostgreSQL, only before statements and COMMITs: files are the same on both.
    """
    engine = connect(url)
    ledger, settings = Ledger(engine, SECRET_KEY), Settings(data_dir=Path(data_dir))
    work = leaving, coming, ledger, settings
    seen = 0

    def count() -> None:
        nonlocal seen
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    def audit(name: str, given: tuple[Any, ...]) -> None:
        if name in WRITES or (name == "open" and data_dir in str(given[0]) and given[1] != "r"):
            count()

    if engine.dialect.name == "sqlite":
        sys.addaudithook(audit)
    event.listen(engine, "before_cursor_execute", lambda *_: count())
    event.listen(engine, "commit", lambda *_: count())
    make_next(*work)


def make_next(
    leaving: list[int], coming: list[int], ledger: Ledger, settings: Settings
) -> editions.Made:
    if leaving:
        who = record_digests(digits(leaving), KEY)
        return editions.forget(ledger, settings, "people", who)
    return editions.add(ledger, settings, "people", digits(coming))
