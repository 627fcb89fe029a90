"""Small real ensembles and students: of handwritten digits, of people who leave, and kept ones."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sqlalchemy import event

from support.databases import SECRET_KEY
from terrine_models.data.arrays import DIGITS, Dataset, InputSpec
from terrine_models.features.public import PublicData
from terrine_models.students.answers import Answers, Ints
from terrine_models.students.methods import METHODS
from terrine_models.students.models import Student, Task, Training
from terrine_models.students.selection import TrainedStudent, choose
from terrine_models.teachers.ensemble import load
from terrine_models.teachers.kinds import Forests, Heads
from terrine_models.teachers.manifests import Manifest
from terrine_models.teachers.neighbours import NeighbourEnsemble, NeighbourSettings, build
from terrine_models.teachers.people import name_digests
from terrine_models.teachers.training import train_ensemble
from terrine_server.ledger import Ledger, connect
from terrine_server.ledger.database import now
from terrine_server.owner import editions
from terrine_server.settings import Settings

TEACHERS = 40
PRIVATE, PUBLIC = 1200, 400


@dataclass(frozen=True)
class DigitsEnsemble:
    """Teachers trained on the first 1,200 digits; the next 400 are public, the last 197 unseen."""

    directory: Path
    manifest: Manifest
    public: NDArray[np.uint8]
    """[400, 8, 8]; the student's queries."""
    public_labels: NDArray[np.int64]
    """[400]; their true labels, for the tests only."""
    unseen: NDArray[np.uint8]
    unseen_labels: NDArray[np.int64]


def known_digits(rows: slice = slice(None)) -> Dataset:
    """Some of 1,797 images [8, 8] of digits, values 0 to 16."""
    data = load_digits()
    return Dataset(
        data.images[rows].astype(np.uint8),
        data.target[rows].astype(np.int64),
        DIGITS,
        InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16),
        name="digits",
    )


def digit_images() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All images of digits, and what they show."""
    known = known_digits()
    return np.asarray(known.inputs, np.uint8), known.labels


def build_people(directory: Path, digits: DigitsEnsemble) -> DigitsEnsemble:
    """Let each of the 1,200 private digits vote near it; `directory` must not exist."""
    from terrine_models.teachers.neighbours import NeighbourSettings, build

    private = known_digits(slice(PRIVATE))
    public = PublicData.declare("digits 1200-1599", digits.public)
    manifest = build(
        private, directory, name="people", public=public, settings=NeighbourSettings(near=40)
    )
    return replace(digits, directory=directory, manifest=manifest)


def train_digits(directory: Path) -> DigitsEnsemble:
    """Train the ensemble into `directory`, which must not exist."""
    known = known_digits()
    images, labels = np.asarray(known.inputs), known.labels
    public, unseen = slice(PRIVATE, PRIVATE + PUBLIC), slice(PRIVATE + PUBLIC, None)
    manifest = train_ensemble(
        known_digits(slice(PRIVATE)),
        directory,
        name="digits",
        teachers=TEACHERS,
        config=Heads(width=60, augmentations=4),
        public=PublicData.declare("digits 1200-1599", images[public]),
    )
    return DigitsEnsemble(
        directory, manifest, images[public], labels[public], images[unseen], labels[unseen]
    )


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """1,797 images [8, 8] of digits, values 0 to 16."""
    return known_digits()


@pytest.fixture(scope="session")
def plane() -> Dataset:
    """200 points [2] of three well-separated classes, from 40 people with uneven shares."""
    random = np.random.default_rng(1)
    labels = random.integers(0, 3, 200)
    centres = np.array([[0.2, 0.2], [0.8, 0.2], [0.5, 0.8]])
    points = np.clip(centres[labels] + random.normal(0, 0.08, (200, 2)), 0, 1)
    people = np.concatenate([np.arange(40), np.sort(random.integers(0, 10, 160))])
    return Dataset(
        points.astype(np.float32),
        labels,
        ("a", "b", "c"),
        InputSpec(shape=(2,), dtype="float32", low=0, high=1),
        groups=people,
        group_column="person",
        name="plane",
    )


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "ensemble"


def taught(
    method: str,
    x: NDArray[Any],
    labels: Ints,
    spec: InputSpec,
    classes: tuple[str, ...],
    seed: int = 0,
    training: Training | None = None,
) -> Student:
    """A student of one method, neither compared nor calibrated."""
    task, how = Task(x, spec, classes, seed=seed), training or Training(method)
    return METHODS[method](how).fit(task, Answers.of_labels(labels, len(classes)))


def chosen(
    method: str,
    x: NDArray[Any],
    labels: Ints,
    spec: InputSpec,
    classes: tuple[str, ...],
    training: Training | None = None,
) -> TrainedStudent:
    """A student as it is returned."""
    answers = Answers.of_labels(labels, len(classes))
    return choose(Task(x, spec, classes), answers, training or Training(method))


KEY = b"key of the records" * 3
PEOPLE, PAIRS = 300, 200
LEAVING_SPEC = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=255)
WRITES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}


def digits_of_people(rows: slice | list[int]) -> Dataset:
    """Digits, each of which is a person, whose name is `digit` and its number."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images, labels = found.images.astype(np.uint8), found.target.astype(np.int64)
    numbers = np.arange(len(images))[rows] if isinstance(rows, slice) else np.array(rows)
    return Dataset(
        images[rows],
        labels[rows],
        DIGITS,
        LEAVING_SPEC,
        name="digits",
        groups=np.arange(len(numbers)),
        group_column="group",
        people=names_of(numbers),
    )


def names_of(numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(f"digit {number}" for number in numbers)


def build_leaving_people(out: Path, ensemble: DigitsEnsemble) -> DigitsEnsemble:
    """An ensemble of `PEOPLE` people, each of whom is one digit."""
    public = PublicData.declare("digits from 1200 on", ensemble.public)
    manifest = build(
        digits_of_people(slice(PEOPLE)),
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
    found = digits_of_people(slice(2 * PAIRS))
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

    patch.setattr("terrine_server.ledger.database.now", clock)


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
    return editions.add(ledger, settings, "people", digits_of_people(coming))


KEPT = Path(__file__).resolve().parents[1] / "fixtures" / "ensembles-1.0.0"
ANSWERS = KEPT / "answers.json"
RECORDS_KEY = b"r" * 64
KEPT_SPEC = InputSpec(shape=(4,), dtype="float32", low=0, high=1)
LOCAL = ("forests", "heads", "people")
"""Those whose teachers are here; the fourth, `owners`, has them elsewhere."""


def make_kept_rows(count: int, seed: int) -> NDArray[np.float32]:
    """Public or private rows [count, 4], and what is asked."""
    drawn = np.random.default_rng(seed).random((count, 4), dtype=np.float32)
    return np.round(drawn, 3)


def records(count: int, people: int) -> Dataset:
    """Records of a few people in two classes, which the first column decides."""
    inputs = make_kept_rows(count, 1)
    return Dataset(
        inputs,
        (inputs[:, 0] > 0.5).astype(np.int64),
        ("low", "high"),
        KEPT_SPEC,
        groups=np.arange(count) % people,
        group_column="person",
        people=tuple(f"person {number}" for number in range(people)),
        name="private rows",
    )


def answers(directory: Path) -> Any:
    """What an ensemble says of a few inputs: votes, or how near each record is."""
    asked, found = make_kept_rows(6, 3), load(directory, device="cpu")
    if isinstance(found, NeighbourEnsemble):
        return found.near(found.to_points(asked)).tolist()
    return found.votes(asked).tolist()


def main() -> None:
    """Write the ensembles, and what they answer."""
    from terrine_addons.federation.federations import Federation, Owner, save_federation

    KEPT.mkdir()
    data, public = records(48, people=12), PublicData.declare("public rows", make_kept_rows(40, 2))
    train_ensemble(data, KEPT / "heads", name="heads", teachers=4, config=Heads(), public=public)
    train_ensemble(data, KEPT / "forests", name="forests", teachers=2, config=Forests(trees=2))
    near = NeighbourSettings(near=3)
    build(data, KEPT / "people", name="people", public=public, settings=near, key=RECORDS_KEY)
    owners = (Owner(name=name, url=f"https://{name}.example", model="m") for name in ("st-a", "b"))
    federation = Federation(
        name="owners",
        input=KEPT_SPEC,
        classes=("low", "high"),
        owners=tuple(owners),
        units=48,
        disjoint_by="each treats another district",
        quorum=2,
        salt="5a" * 32,
    )
    (KEPT / "owners").mkdir()
    save_federation(KEPT / "owners", federation)
    found = {name: answers(KEPT / name) for name in LOCAL}
    ANSWERS.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
