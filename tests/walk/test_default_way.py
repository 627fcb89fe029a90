"""The default way, by commands alone: from private records to labels, and on after a restart.

Each walk is of one kind of data, one way to ask it and one database; on PostgreSQL, everything but
`init` has the rights of the service. By day each way meets each database, by night all three meet.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from support.durations import processor_seconds
from support.processes import SEED, in_own_processes
from support.servers import Machine, serving_process
from support.wording import holds, says
from terrine_client import Client, Labels
from terrine_models.data.images import load_images
from terrine_models.teachers.kinds import load_manifest
from terrine_tables.encoding import encode_table

SIZES = {"private": 600, "pool": 100, "own": 40, "later": 4}
"""Records of the owner's two files, and of the two of which a student asks."""
CLASSES = {"heads": 2, "neighbours": 6, "sums": 4}
"""What quickstart makes of so many classes. For so few public rows it simulates no students, but
takes sums or, of pictures, the way whose votes have less noise; and of more classes fewer teachers
can be trained."""


def points(seed: int, count: int, classes: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return points [count, 4] in the unit cube, near one corner of it for each class [count]."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    corners = (labels[:, None] >> np.arange(4)) & 1
    return (0.2 + 0.6 * corners + random.uniform(-0.2, 0.2, corners.shape)).round(4), labels


def write_tables(classes: int, *, labelled: bool = True, people: bool = False) -> None:
    """Write tables; of private people, each second one has two records."""
    for seed, (name, count) in enumerate((*SIZES.items(), ("invented", 30))):
        x, labels = points(seed, count, classes)
        if name in ("pool", "invented"):
            x[:2] = [[0], [1]]  # the least and the greatest number that can occur
        columns = dict(zip(("age", "weight", "pulse", "pain"), x.T, strict=True))
        if people and name in ("private", "pool"):
            columns["patient"] = np.arange(count) + 1000 * seed
        if name in ("private", "invented") or (labelled and name == "pool"):
            columns["illness"] = np.array([f"illness {label}" for label in labels])
        rows = list(zip(*columns.values(), strict=True))
        with Path(f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
            if people and name == "private":
                csv.writer(file).writerows(rows[::2])


def write_pictures(classes: int, *, colours: bool) -> None:
    """Write digits of 8 × 8 pixels: a folder for each class, and flat ones for the student."""
    data = load_digits(n_class=classes)
    random = np.random.default_rng(0)
    order = np.resize(random.permutation(len(data.target)), sum(SIZES.values()))
    names = np.repeat(list(SIZES), list(SIZES.values()))
    for place, (row, name) in enumerate(zip(order, names, strict=True)):
        labelled = name in ("private", "pool")
        folder = Path(name, f"digit {data.target[row]}") if labelled else Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = 12 * data.images[row] + random.integers(0, 60, (8, 8))
        if colours:
            pixels = pixels[..., None] * random.uniform(0.3, 1, 3)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{place}.png")


def write_features(classes: int) -> None:
    for seed, (name, count) in enumerate(SIZES.items()):
        x, labels = points(seed, count, classes)
        np.savez(f"{name}.npz", x=x.astype(np.float32), y=labels, low=0.0, high=1.0)


def labelled_tables(machine: Machine, classes: int) -> list[str]:
    write_tables(classes)
    return ["private.csv", "--public", "pool.csv", "--label", "illness"]


def unlabelled_tables(machine: Machine, classes: int) -> list[str]:
    """The classes of a table without labels are declared: they are not taken from private rows."""
    write_tables(classes, labelled=False)
    told = ["private.csv", "--public", "pool.csv", "--label", "illness"]
    without = machine.run("quickstart", *told, "--yes")
    assert without.code == 1
    holds(without.err, "pool.csv", "illness", "--classes")
    assert not Path("private-schema.json").exists()
    names = ",".join(f"illness {label}" for label in range(classes))
    return [*told, "--classes", names]


def tables_with_a_schema(machine: Machine, classes: int) -> list[str]:
    """The schema of a table without labels can be that of an invented one."""
    write_tables(classes, labelled=False)
    proposed = ("ensemble", "schema", "invented.csv", "--label", "illness")
    machine.run(*proposed, "--out", "private-schema.json").fine  # noqa: B018 - asserts
    return ["private.csv", "--public", "pool.csv"]


def tables_of_people(machine: Machine, classes: int) -> list[str]:
    write_tables(classes, people=True)
    return ["private.csv", "--public", "pool.csv", "--label", "illness", "--group", "patient"]


def grey_pictures(machine: Machine, classes: int) -> list[str]:
    write_pictures(classes, colours=False)
    return ["private", "--public", "pool", "--images", "8x8:grey"]


def colour_pictures(machine: Machine, classes: int) -> list[str]:
    write_pictures(classes, colours=True)
    return ["private", "--public", "pool", "--images", "8x8"]


def features(machine: Machine, classes: int) -> list[str]:
    write_features(classes)
    names = ",".join(f"class {label}" for label in range(classes))
    return ["private.npz", "--public", "pool.npz", "--classes", names]


Write = Callable[[Machine, int], list[str]]
PICTURES = (grey_pictures, colour_pictures)
BY_DAY: dict[Write, tuple[str, str] | None] = {
    labelled_tables: None,
    unlabelled_tables: ("sums", "postgresql"),
    tables_with_a_schema: None,
    tables_of_people: ("sums", "sqlite"),
    grey_pictures: ("neighbours", "postgresql"),
    colour_pictures: ("heads", "sqlite"),
    features: None,
}
"""What writes each kind of data and returns what `quickstart` is told of it; and what answers by
day, on which database; by night, all that can do on either."""
KINDS, WAYS, DATABASES = list(BY_DAY), list(CLASSES), ["sqlite", "postgresql"]
WALKS = [
    pytest.param(
        write,
        way,
        database,
        id=f"{write.__name__}-{way}-{database}",
        marks=[] if BY_DAY[write] == (way, database) else pytest.mark.nightly,
    )
    for write, way, database in itertools.product(KINDS, WAYS, DATABASES)
    if (way == "sums") != (write in PICTURES)
]


def test_by_day_every_way_is_walked_and_every_database() -> None:
    ways, databases = zip(*filter(None, BY_DAY.values()), strict=True)
    assert (set(ways), set(databases)) == (set(WAYS), set(DATABASES))


@pytest.fixture
def machine(tmp_path: Path, each_database_url: str, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose commands, and server, are processes with the rights of the service."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SEED, "0")
    data = tmp_path / "data"
    own = {"TERRINE_DATA_DIR": str(data), "TERRINE_DATABASE_URL": each_database_url}
    return Machine(data, each_database_url, in_own_processes(tmp_path, {**os.environ, **own}))


@pytest.fixture
def timed(
    machine: Machine, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Iterator[None]:
    """Report how long the walk took on that machine: no promise, but growth is seen."""
    began, used = time.monotonic(), processor_seconds()
    yield
    took, of_processor = time.monotonic() - began, processor_seconds() - used
    line = f"{took:5.1f} s, {of_processor:4.1f} of a processor: {request.node.callspec.id}"
    record_property("walk", line)


@pytest.mark.parametrize(
    ("write", "way", "each_database_url"), WALKS, indirect=["each_database_url"]
)
@pytest.mark.usefixtures("timed")
def test_the_default_way_goes_on_after_its_first_request_and_a_restart(
    write: Write, way: str, machine: Machine
) -> None:
    if machine.database_url.startswith("postgresql"):  # whose tables the service may not make
        machine.init().fine  # noqa: B018 - asserts
    told = write(machine, CLASSES[way])
    said = machine.run("quickstart", *told, "--epsilon", 8, "--yes").fine
    made = load_manifest(machine.data / "ensembles" / "private")
    assert (made.teacher.kind, len(made.classes)) == (way, CLASSES[way])
    own, later, pool = (Path(told[0]).with_stem(name) for name in ("own", "later", "pool"))
    left = re.search(rf"TERRINE_TOKEN=(\S+) terrine student train {pool}$", said, re.MULTILINE)
    assert left is not None, said
    assert says(said, "flat", "folder") == pool.is_dir()
    token = left[1]
    with serving_process(machine) as server:
        with Client(server.url, token) as student:
            x = inputs(student, own)
            first = pay(student, x[:3])
            pay(student, x[3:6])
            before = student.budget()
            again = student.label(x[:3])
            assert again.replayed.all() == (way != "sums")
            for what in ("labels", "noisy_counts", "charges"):
                assert np.array_equal(getattr(again, what), getattr(first, what))
            assert student.budget() == before
        variables = {"TERRINE_URL": server.url, "TERRINE_TOKEN": token}
        machine.run("student", "train", own, **variables).fine  # noqa: B018 - asserts
        if way != "sums":
            report = json.loads(Path("student/report.json").read_text())
            assert report["outcomes"]["answered"] > 6
        check(machine)
        assert server.stop() in (0, -signal.SIGTERM)
    with serving_process(machine) as server, Client(server.url, token) as student:
        pay(student, inputs(student, later))
        assert student.label(x[:3]).charges.tolist() == first.charges.tolist()
        check(machine)


def inputs(student: Client, path: Path) -> NDArray[np.generic]:
    """Read a student's file as the service says that its inputs are made."""
    ensemble = student.project().ensemble
    if ensemble.encoding is not None:
        return encode_table(path, ensemble.encoding)
    if ensemble.image is not None:
        return load_images(path, ensemble.image)
    with np.load(path) as file:
        x: NDArray[np.generic] = file["x"]
        return x


def pay(student: Client, x: NDArray[np.generic]) -> Labels:
    """Ask what nobody has asked: it is answered, and each answer is paid for.

    Of sums, all was paid for when the project was opened.
    """
    paid = student.budget().charges
    labels = student.label(x)
    assert labels.answered.all()
    assert not labels.replayed.any()
    if student.project().ensemble.kind == "sums":
        assert student.budget().charges == paid == 1
        assert (labels.charges == -1).all()
        return labels
    assert labels.charges.tolist() == [*range(paid + 1, paid + 1 + len(x))]
    assert student.budget().charges == paid + len(x)
    return labels


def check(machine: Machine) -> None:
    assert "intact" in machine.run("ledger", "verify", "all").fine
    assert machine.wrong() == []
