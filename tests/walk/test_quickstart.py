"""`terrine quickstart`: from files that nobody here has seen to a student, in two commands."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from sklearn.datasets import load_digits

from support.documents import ROOT, blocks
from support.processes import REPEATED, SEED, Terrine, in_processes, killed_at
from support.servers import Machine, serving_process
from support.wording import Wording, holds, says
from terrine_client import Client
from terrine_client._privacy import verify_papers
from terrine_models.features.fitting import public_features
from terrine_models.storage.manifests import FEATURES_FILE, IDENTITIES_FILE, POOL_FILE
from terrine_models.students.models import Student
from terrine_models.sums import ReleasedSums
from terrine_models.tables.designed import DesignedPool
from terrine_models.tables.loading import read_schema
from terrine_models.teachers.kinds import load_manifest
from terrine_models.teachers.sums import MODEL_FILE, SUMS_FILE
from terrine_models.teachers.training import PROGRESS_FILE
from terrine_protocol.files import directory_lock
from terrine_server.ledger import Ledger, connect
from terrine_server.owner.sign_in import load_secret_key
from terrine_server.planning import first_project, forecast
from terrine_server.planning.students import Students

EPSILON = 3
DIGITS = ("quickstart", "digits.npz", "--public", "pool.npz", "--classes", "10", "--epsilon", "3")
FEW = 150
"""Public rows on which no students are simulated, which takes longest."""
TABLE = ("quickstart", "visits.csv", "--public", "survey.csv", "--label", "ill", "--epsilon", "3")


def remembering(work: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which does the same work once."""
    known = dict[bytes, Any]()

    def remember(*given: Any, **named: Any) -> Any:
        key = sha256(pickle.dumps((given, named))).digest()
        if key not in known:
            known[key] = work(*given, **named)
        return known[key]

    return remember


@pytest.fixture(scope="module", autouse=True)
def take_the_longest_once() -> Iterator[None]:
    """Simulate students and compare public inputs once: many runs here ask for the same ones.

    Both are functions of their arguments (`tests/walk/test_dry_run.py`, `tests/models`).
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "_simulate", remembering(forecast._simulate))
        once = remembering(public_features)
        patch.setattr("terrine_models.teachers.neighbours.public_features", once)
        patch.setattr("terrine_models.students.models.public_features", once)
        yield


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terrine: Terrine) -> Machine:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SEED, "0")
    return Machine(tmp_path / "data", f"sqlite:///{tmp_path / 'data' / 'terrine.sqlite'}", terrine)


@pytest.fixture
def digits(machine: Machine) -> Machine:
    """1,200 digits, 400 labelled public ones, and 197 of a student's own."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images, labels = data.images.astype(np.uint8)[order], data.target[order].astype(np.int64)
    for name, rows in (
        ("digits", slice(1200)),
        ("pool", slice(1200, 1600)),
        ("own", slice(1600, None)),
    ):
        np.savez(f"{name}.npz", x=images[rows], y=labels[rows])
    return machine


@pytest.fixture
def table(machine: Machine) -> Machine:
    """2,000 visits of 500 people, of whom three in ten are ill; and 1,200 of others."""
    random = np.random.default_rng(0)

    def write(name: str, people: np.ndarray) -> None:
        ill = random.random(len(people)) < 0.3
        age = np.clip(random.normal(40 + 25 * ill, 10), 0, 100).round(1)
        weight = random.normal(70, 10, len(people)).round(5)
        ward = np.where(random.random(len(people)) < 0.8, np.where(ill, "A", "B"), "C")
        rows = zip(people, age, weight, ward, np.where(ill, "yes", "no"), strict=True)
        lines = ["patient,age,weight,ward,ill", *(",".join(map(str, row)) for row in rows)]
        Path(name).write_text("\n".join(lines) + "\n")

    write("visits.csv", np.repeat(np.arange(500), 4))
    write("survey.csv", np.arange(10_000, 10_800))
    write("own.csv", np.arange(20_000, 20_400))
    return machine


def ledger(machine: Machine) -> Ledger:
    return Ledger(connect(machine.database_url), load_secret_key(machine.data / "secret.key"))


def learned(machine: Machine, said: str, own: str) -> dict[str, Any]:
    """Do what the command says is left, on a free port, and return the student's report."""
    line = re.search(r"TERRINE_URL=\S+ TERRINE_TOKEN=(\S+) terrine (student train.*)", said)
    assert line is not None, said
    assert re.search(r"^  terrine .*serve$", said, re.MULTILINE)
    with serving_process(machine) as server:
        assert server.entries(f"{re.escape(server.url)}/admin")
        variables = {"TERRINE_URL": server.url, "TERRINE_TOKEN": line[1]}
        machine.run(*shlex.split(line[2]), "--held-out", own, **variables).fine  # noqa: B018
    report: dict[str, Any] = json.loads(Path("student/report.json").read_text())
    return report


def follow_the_readme(machine: Machine, token: str, x: np.ndarray) -> np.ndarray:
    """Do as a student who has read README.md, and return what is predicted for all of x."""
    (program,) = (text for _, text in blocks(ROOT / "README.md", "python"))
    names: dict[str, Any] = {"token": token, "x": x}
    program = program.replace('Path("student")', 'Path("by-the-readme")')
    with serving_process(machine) as server:
        exec(program.replace("https://labels.example.org", server.url), names)
    predicted: np.ndarray = names["predicted"]
    return predicted


def test_a_student_of_pictures_is_as_good_as_was_forecast(
    digits: Machine, wording: Wording
) -> None:
    said = digits.run(*DIGITS, "--yes").fine
    promise = re.findall(r"^(?:Protects|How much|It uses) .*", said, re.MULTILINE)
    wording("The promise of quickstart", {" ".join(DIGITS): "\n".join(promise)})
    holds(promise[1], "95.3%")
    holds(said, 40, "similar")
    assert re.search(r"stops voting in it when that is exhausted: [3-7]\d% of them", said), said
    # 400 public rows are too few to test students of ten classes on.
    holds(said, "few", "trial")
    holds(said, "noise", "teachers")
    assert load_manifest(digits.data / "ensembles" / "digits").teacher.kind == "neighbours"
    assert learned(digits, said, "own.npz")["accuracy"] > 0.8
    token = re.search(r"TERRINE_TOKEN=(\S+)", said)
    assert token is not None
    with np.load("pool.npz") as pool:
        predicted = follow_the_readme(digits, token[1], pool["x"])
        assert (predicted == pool["y"].astype(str)).mean() > 0.85
        trained = Student.load(Path("student")).predict(pool["x"])
        assert (predicted == trained).mean() > 0.99, "`student train` is better than README"


# By day tests/models/test_colours.py shows that students learn colours.
@pytest.mark.nightly
@pytest.mark.parametrize("shape", [(16, 16, 3), (3, 3, 4)])
def test_a_student_of_pictures_whose_class_is_their_colour_is_right_nearly_always(
    machine: Machine, shape: tuple[int, int, int]
) -> None:
    random = np.random.default_rng(0)
    colours = random.permuted(np.linspace(50, 205, 3 * shape[2])).reshape(3, -1)
    for name, rows in (("private", 3000), ("pool", 300), ("own", 100)):
        y = random.integers(3, size=rows)
        x = colours[y][:, None, None] + random.normal(0, 15, (rows, *shape))
        x = x.clip(0, 255).astype(np.uint8)
        if name == "pool":
            np.savez("pool.npz", x=x)
        else:
            np.savez(f"{name}.npz", x=x, y=y)
    options = ("--public", "pool.npz", "--classes", "3", "--epsilon", "3")
    said = machine.run("quickstart", "private.npz", *options, "--yes").fine
    assert learned(machine, said, "own.npz")["accuracy"] > 0.97


def test_a_student_of_a_table_of_people_is_as_good_as_was_forecast(
    table: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Students, "is_clearly_better", lambda *_, **__: False)  # noisy counts
    monkeypatch.setattr(forecast, "_find_sum_project", lambda *_: None)
    header, *rows = Path("survey.csv").read_text().splitlines()
    Path("survey.csv").write_text("\n".join([header, *rows, *rows]) + "\n")
    said = table.run(*TABLE, "--group", "patient", "--yes", "--anyway", "--verbose").fine
    holds(said, "patient", 500)  # people, not rows
    holds(said, "votes", 800, "different")  # each is paid for once
    holds(said, "true", "labels")  # all ways were simulated
    promised = re.search(r"right on ([\d.]+)% to ([\d.]+)%, AUC [\d.]+ to [\d.]+, balanced", said)
    assert promised is not None, said
    report = learned(table, said, "own.csv")
    chance = 2 * (0.05 / 400) ** 0.5  # two standard errors of 400 rows
    assert report["accuracy"] > max(float(promised[1]) / 100 - chance, 0.8)
    assert load_manifest(table.data / "ensembles" / "visits").units == 500
    answered, exhausted = (report["outcomes"].get(each, 0) for each in ("answered", "exhausted"))
    assert answered + exhausted == 1600
    assert exhausted < 160, "few are used up"
    assert report["charges"] == answered / 2 == 800 - exhausted / 2, "each row stands there twice"
    assert report["queries_left"] < 20 + exhausted / 2, "no noise for rows that are not there"
    assert report["epsilon_spent"] <= EPSILON


# By day tests/plan/test_forecast.py shows when they are chosen.
@pytest.mark.nightly
def test_confident_answers_are_opened_where_they_are_clearly_better(
    table: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Students, "is_clearly_better", lambda *_, **__: True)
    monkeypatch.setattr(forecast, "_find_designed_project", lambda *_: None)
    said = table.run(*TABLE, "--yes", "--verbose").fine
    assert "--rule rdp" in said
    assert "--mechanism confident_gnmax:" in said
    certain = re.search(r"for certain, ([\d,]+) of 800 different public rows are asked", said)
    assert certain is not None, said
    terms = ledger(table).projects.get("visits").terms
    assert terms.affordable(terms.start) >= int(certain[1].replace(",", ""))
    assert learned(table, said, "own.csv")["outcomes"]["answered"] > 20


def test_designed_rows_are_opened_where_they_are_clearly_better(
    table: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Students, "is_clearly_better", lambda *_, **__: True)
    given = (*TABLE, "--group", "patient")
    forecast_said = table.run(*given, "--yes", "--dry-run").fine
    holds(forecast_said, "designed", "histograms", "0.54", "AUC")
    holds(forecast_said, "8,000", "designed", "trials")
    assert re.search(r"^How much  ε = 3,", forecast_said, re.MULTILINE), "all that is released"
    replies = [True, False]
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", lambda _: replies.pop(0))
    holds(table.run(*given).err, "Nothing", "done")
    assert not ledger(table).ensembles.list()
    # Another ε would be another release: this one is not told until it is paid for.
    holds(table.run(*given[:-3], "4", "--group", "patient", "--yes").err, "histograms", "--epsilon")
    said = table.run(*given, "--yes").fine
    holds(said, "trials", "public")
    report = learned(table, said, "own.csv")
    assert report["outcomes"] == {"answered": 8_000}
    assert report["accuracy"] > 0.8
    books = ledger(table)
    assert [each.name for each in books.ensembles.list()] == ["visits"]
    record = books.projects.get("visits")
    assert (record.terms.epsilon, record.charges) == (EPSILON, 8_001)
    assert record.ensemble.units == 500, "people, not rows"
    pool = DesignedPool.of_bytes((table.data / "ensembles" / "visits" / POOL_FILE).read_bytes())
    assert len(pool.natural) == 800, "the public rows, and none that are drawn"
    holds(table.run(*given, "--yes").fine, "open", "already", "3")
    holds(table.run(*given[:-3], "4", "--group", "patient", "--yes").err, "3", "--epsilon")


def test_a_schema_is_enough_and_with_public_rows_it_is_the_one_that_is_taken(
    table: Machine,
) -> None:
    proposing = ("ensemble", "schema", "survey.csv", "--label", "ill", "--ignore", "patient")
    table.run(*proposing, "--out", "stated.json").fine  # noqa: B018 - asserts
    stated = ("quickstart", "visits.csv", "--schema", "stated.json", "--epsilon", "3")
    holds(table.run(*stated, "--label", "ill", "--yes").err, "--schema")
    holds(table.run(*stated, "--anyway", "--yes").err, "--anyway")
    assert not table.data.exists()
    both = table.run(*stated, "--public", "survey.csv", "--dry-run", "--anyway").fine
    holds(both, "trials", "public")
    assert "--public survey.csv --schema stated.json" in both
    assert not Path("visits-schema.json").exists(), "none was proposed"
    forecast_said = table.run(*stated, "--dry-run").fine
    holds(forecast_said, "2,000", '"group"', "stated.json")
    holds(forecast_said, "8,000", "designed", "cannot")
    of_units = table.run("quickstart", "--dry-run", "--units", 2_000, *stated[2:]).fine
    assert of_units.splitlines()[1:5] == forecast_said.splitlines()[1:5]
    said = table.run(*stated, "--yes").fine
    assert said.splitlines()[:5] == forecast_said.splitlines()[:5]
    assert re.search(r"terrine student train$", said, re.MULTILINE), "it needs no file"
    holds(table.run(*stated, "--yes").fine, "open", "already", "3")


def test_idx_files_are_asked_as_the_student_reads_them(machine: Machine) -> None:
    data = load_digits()
    for name, rows in (("idx", slice(700)), ("pool", slice(700, 900))):
        Path(name).mkdir()
        for what, array in (("images", data.images[rows]), ("labels", data.target[rows])):
            dimensions = np.array(array.shape, dtype=">u4").tobytes()
            head = bytes([0, 0, 8, array.ndim]) + dimensions
            (Path(name) / f"train-{what}").write_bytes(head + array.astype(np.uint8).tobytes())
    said = machine.run("quickstart", "idx", "--public", "pool", "--epsilon", EPSILON, "--yes").fine
    assert "terrine student train pool/train-images" in said


def test_what_is_made_of_the_same_people_shares_their_cap(digits: Machine) -> None:
    assert digits.run(*DIGITS, "--yes").code == 0
    again = (*DIGITS[:6], "--epsilon", 2, "--yes")
    said = digits.run(*again, "--name", "again", "--verbose").fine
    holds(said, "population", "people", "free")
    assert "terrine ensemble register again\n" in said.replace(f" --data-dir {digits.data}", "")
    ensembles = digits.data / "ensembles"
    too_much = (*DIGITS[:6], "--epsilon", 9, "--yes", "--name", "third")
    holds(digits.run(*too_much).err, "people", "room", "would")
    holds(digits.run(*too_much, "--population", "others").err, "others", "--disjoint")
    for name, people, count in (("named.csv", 90, 900), ("public.csv", FEW, FEW)):
        values = np.random.default_rng(people).random(count)
        rows = (f"p{n % people},{value:.6f},{int(value > 0.5)}" for n, value in enumerate(values))
        Path(name).write_text("\n".join(["who,x,y", *rows]) + "\n")
    table = ("quickstart", "named.csv", "--public", "public.csv", "--label", "y", "--yes")
    holds(digits.run(*table, "--group", "who", "--epsilon", 20).err, "person", "record")
    assert sorted(path.name for path in ensembles.iterdir()) == ["again", "digits"], "none is made"
    apart = ("--population", "others", "--disjoint", "--verbose")
    said = digits.run(*too_much, *apart).fine
    assert "--population others --disjoint --epsilon 27" in said
    found = {each.name: each.population.name for each in ledger(digits).ensembles.list()}
    assert found == {"again": "people", "digits": "people", "third": "others"}
    assert digits.run(*too_much).code == 0, "it is open already"


OPERATIONS = "terrine_server.owner.operations"
STEPS = [
    (("terrine_server.owner.sign_in", "make_secret_key"), True),
    (("terrine_models.teachers.neighbours", "save_tensors"), True),
    (("terrine_models.teachers.neighbours", "save_manifest"), False),
    ((OPERATIONS, "register_ensemble"), False),
    ((OPERATIONS, "register_ensemble"), True),
    ((OPERATIONS, "open_project"), True),
]
"""Where it is killed, in the order of the run."""


# By day what begins with a release is killed, below.
@pytest.mark.nightly
def test_killed_at_any_step_the_same_command_continues(digits: Machine, tmp_path: Path) -> None:
    variables = {**os.environ, **REPEATED, "TERRINE_DATA_DIR": str(digits.data)}
    trained = digits.data / "ensembles" / "digits" / "manifest.json"
    first = None
    for place, after in STEPS:
        log = tmp_path / f"{place[1]}.log"
        run = ((*DIGITS, "--yes"), variables, str(log))
        [process] = in_processes(killed_at, (tmp_path, place, after, *run))
        assert process.exitcode == -signal.SIGKILL, (place, log.read_text())
        if trained.exists():
            first = first or trained.stat()
    said = digits.run(*DIGITS, "--yes").fine
    holds(said, "open", "already")
    assert "TERRINE_TOKEN=terrine_" in said, "the token is made once the project is open"
    assert first is not None
    assert trained.stat().st_mtime_ns == first.st_mtime_ns, "it was not made again"
    again = digits.run(*DIGITS, "--yes").fine
    assert "terrine_" not in again.replace("terrine_student", ""), "it is shown once"
    assert "terrine token create --role student --project digits" in again
    books = ledger(digits)
    assert [each.name for each in books.ensembles.list()] == ["digits"]
    assert [each.name for each in books.projects.list(None, 10)] == ["digits"]
    assert len(books.tokens.list()) == 1
    actions = [line.get("action") for line in books.exports.export_log()]
    made = ["population-declared", "ensemble-registered", "project-opened", "token-created"]
    assert actions[2:] == made


SUM_STEPS = [
    (("terrine_models.teachers.sums", "save_manifest"), False),
    ((OPERATIONS, "register_ensemble"), False),
    ((OPERATIONS, "open_project"), False),
    ((OPERATIONS, "open_project"), True),
]


def test_killed_at_any_step_sums_are_released_once_and_taught(
    table: Machine, tmp_path: Path
) -> None:
    """A pool of other people, whose labels nobody knows: that is what they are for."""
    rows = Path("survey.csv").read_text().splitlines()
    Path("survey.csv").write_text("\n".join(row.rpartition(",")[0] for row in rows) + "\n")
    given = (*TABLE, "--group", "patient", "--classes", "no,yes", "--yes")
    variables = {**os.environ, **REPEATED, "TERRINE_DATA_DIR": str(table.data)}
    kept, ensembles = list[bytes](), table.data / "ensembles"
    (living := ensembles / ".visits.living.partial").mkdir(parents=True)
    with directory_lock(living):
        for number, (place, after) in enumerate(SUM_STEPS, start=1):
            variables[SEED] = str(number)  # other noise each time
            log = tmp_path / f"{place[1]}.log"
            run = given, variables, str(log)
            [process] = in_processes(killed_at, (tmp_path, place, after, *run))
            assert process.exitcode == -signal.SIGKILL, (place, log.read_text())
            left = {*ensembles.glob(".*")} - {living}
            assert len(left) == (number == 1), "the next removes what a killed one left"
            for directory in left:
                files = {path.name for path in directory.iterdir()}
                assert files == {SUMS_FILE, MODEL_FILE, IDENTITIES_FILE}, "of records, nothing else"
                begun = ReleasedSums.of_bytes((directory / SUMS_FILE).read_bytes())
                wrong = [each[1:] for each in table.wrong() if each[0] == "ensembles"]
                ((state, found, fix),) = wrong
                assert state == "warning"
                assert str(directory) in found
                assert f"rm -r '{directory}'" in fix
            kept += [path.read_bytes() for path in ensembles.glob(f"visits/{SUMS_FILE}")]
    said = table.run(*given).fine
    kept.append((table.data / "ensembles" / "visits" / SUMS_FILE).read_bytes())
    assert len(kept) == len(SUM_STEPS)
    assert len({*kept}) == 1, "drawn once"
    assert (ReleasedSums.of_bytes(kept[0]).sums != begun.sums).any(), "with noise from the first"
    report = learned(table, said, "own.csv")
    assert report["accuracy"] > 0.8
    assert 0.99 * EPSILON < report["epsilon_spent"] <= EPSILON
    books = ledger(table)
    assert [each.outcome for each in books.entries.list("visits")] == ["released"]
    assert books.projects.get("visits").ensemble.units == 500, "people, not rows"
    assert not books.verifier.verify_project("visits").problems


def test_two_questions_and_no_is_an_answer(
    digits: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answers(*replies: bool) -> None:
        left = list(replies)

        def confirm(question: str) -> bool:
            asked.append(question)
            return left.pop(0)

        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr(typer, "confirm", confirm)

    answers(False)
    holds(digits.run(*DIGITS).err, "Run", "command")
    assert not (digits.data / "ensembles" / "digits").exists()
    answers(True, False)
    holds(digits.run(*DIGITS).err, "Nothing", "done")
    assert (digits.data / "ensembles" / "digits").exists()
    assert ledger(digits).ensembles.list() == []
    answers(True)
    digits.run(*DIGITS).fine  # noqa: B018 - asserts
    assert len(asked) == 4
    holds(asked[-1], "changed")


def test_nobody_to_ask_and_bad_input_are_said_before_anything_is_made(
    table: Machine, digits: Machine
) -> None:
    assert "Add --yes" in digits.run(*DIGITS).refused
    missing = ("quickstart", "nowhere.csv", "--public", "pool.npz", "--yes")
    holds(digits.run(*missing).refused, "nowhere.csv")
    assert "epsilon" in digits.run(*DIGITS, "--epsilon", 0, "--yes").refused
    assert "name" in digits.run(*DIGITS, "--name", "No!", "--yes").refused
    assert not digits.data.exists()
    for wrong, said in (
        ((*DIGITS, "--label", "y"), "tables"),
        ((*TABLE[:4], "--yes"), "--label"),
        ((*TABLE, "--classes", "2"), "'yes' --classes"),
        ((*TABLE, "--images", "8x8"), "table schema"),
        ((*TABLE[:-3], "dead", "--epsilon", "3"), "dead --classes"),
        ((*TABLE, "--group", "nobody"), "nobody"),
        (("quickstart", "digits.npz", "--public", "digits.npz", "--classes", "10"), "private"),
    ):
        done = digits.run(*wrong, "--yes")
        assert done.code == 1
        holds(done.err, *said.split())
    assert not list((digits.data / "ensembles").iterdir())
    assert ledger(digits).ensembles.list() == []


def test_too_small_is_said_before_it_trains_and_before_a_cap_is_fixed(digits: Machine) -> None:
    with np.load("digits.npz") as full:
        np.savez("few.npz", x=full["x"][:341], y=full["y"][:341])
    done = digits.run("quickstart", "few.npz", "--public", "pool.npz", "--classes", "10", "--yes")
    assert done.code == 1
    holds(done.err, "small")
    assert not list((digits.data / "ensembles").iterdir())
    assert ledger(digits).ensembles.list() == []


def test_a_project_whose_students_are_at_chance_is_opened_only_anyway(table: Machine) -> None:
    for name in ("visits.csv", "survey.csv"):
        header, *rows = Path(name).read_text().splitlines()
        ill = np.random.default_rng(1).permutation([row.rpartition(",")[2] for row in rows])
        lines = [f"{row.rpartition(',')[0]},{value}" for row, value in zip(rows, ill, strict=True)]
        Path(name).write_text("\n".join([header, *lines]) + "\n")
    stopped = table.run(*TABLE, "--group", "patient", "--yes")
    assert stopped.code == 1
    ignored = (*TABLE, "--group", "patient", "--yes", "--ignore", "weight")
    holds(table.run(*ignored).err, "visits-schema.json", "--ignore")
    Path("visits-schema.json").unlink()
    assert table.run(*ignored).code == 1
    roles = json.loads(Path("visits-schema.json").read_text())["columns"]
    assert [each["name"] for each in roles if each["role"] == "ignored"] == ["weight"]
    Path("visits-schema.json").unlink()
    holds(stopped.err, "chance", "--anyway", 500, "ε", "visits-schema.json", "teachers")
    holds(stopped.err, "true", "labels")  # which teach no more
    assert not list((table.data / "ensembles").iterdir())
    assert ledger(table).ensembles.list() == []
    said = table.run(*TABLE, "--group", "patient", "--yes", "--anyway").fine
    holds(said, "visits", "open")
    assert said.startswith("Protects"), "the five lines come first"
    assert sum(1 + len(line) // 100 for line in said.splitlines()) <= 40, said
    low = re.search(r"balanced accuracy ([\d.]+)% to", said)
    assert low is not None, said
    assert float(low[1]) == 50
    assert table.run(*TABLE, "--yes").code == 0, "it is open already"


def test_a_project_of_what_own_labels_teach_already_is_opened_only_anyway(table: Machine) -> None:
    given = (*TABLE, "--group", "patient", "--ignore", "weight")
    for words in ((*given, "--yes"), (*given, "--dry-run")):
        done = table.run(*words)
        assert done.code == 1
        holds(done.err, 800, "labels", "AUC", "--anyway")
        asked, purchase = (
            next(line for line in done.out.splitlines() if line.startswith(heading))
            for heading in ("By what", "It buys")
        )
        holds(asked, 2, 3, "columns", "age", "ward", "not", "weight")
        holds(purchase, 800, "alone", "AUC", "largest", "class")
    assert not list((table.data / "ensembles").iterdir())
    assert ledger(table).ensembles.list() == []
    # Of people whose labels say nothing of the private ones, there is nothing to compare with.
    rows = Path("survey.csv").read_text().splitlines()
    Path("survey.csv").write_text("\n".join(row.rpartition(",")[0] for row in rows) + "\n")
    Path("visits-schema.json").unlink()
    said = table.run(*given, "--classes", "no,yes", "--yes").fine
    assert not says(said, "labelled", "alone")
    assert ledger(table).projects.get("visits").terms.epsilon == EPSILON


def renamed(names: dict[str, str]) -> None:
    """Give the columns of files, by the name of the file, these names."""
    for file, header in names.items():
        _, *rows = Path(file).read_text().splitlines()
        Path(file).write_text("\n".join([header, *rows]) + "\n")


def test_whom_a_column_in_doubt_protects_is_asked_and_never_guessed(
    table: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, *rows = Path("survey.csv").read_text().splitlines()
    Path("survey.csv").write_text("\n".join([header, *rows[: FEW // 2] * 2]) + "\n")
    renamed(dict.fromkeys(("visits.csv", "survey.csv"), "nr,age,weight,ward,ill"))
    schema = Path("visits-schema.json")
    asked: list[str] = []

    def confirm(question: str) -> bool:
        asked.append(question)
        return len(asked) == 1

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", confirm)
    declined = table.run(*TABLE)
    assert declined.code == 1
    holds(asked[0], "nr", "person")
    holds(declined.out, "Protects", "nr", 500)
    assert [json.loads(schema.read_text())["columns"][0][key] for key in ("name", "role")] == [
        "nr",
        "group",
    ]
    holds(table.run(*TABLE, "--group", "ward").err, "visits-schema.json", "--group", "ward")
    holds(table.run(*TABLE[:5], "ward").err, "visits-schema.json", "--label", "ward")
    schema.unlink()
    said = table.run(*TABLE, "--yes", "--verbose").fine
    assert len(asked) == 2, "one of the questions before it makes anything"
    holds(said, "Protects", "2,000", "nr", 4, "--group", "visits-schema.json")
    assert load_manifest(table.data / "ensembles" / "visits").units == 2000
    assert json.loads(schema.read_text())["columns"][0]["role"] == "ignored"
    assert "--ignore nr" in said.partition("By hand, this was:")[2], "by hand it is the same"
    manifest = (table.data / "ensembles" / "visits" / "manifest.json").read_text()
    assert '"nr"' in manifest
    assert "rows a person" not in manifest + schema.read_text(), "it is said to the owner alone"


def test_people_whom_only_the_private_rows_name_are_protected(table: Machine) -> None:
    renamed({"visits.csv": "Personalnummer,age,weight,ward,ill"})
    for name in ("survey.csv", "own.csv"):
        rows = [line.partition(",")[2] for line in Path(name).read_text().splitlines()]
        Path(name).write_text("\n".join(rows) + "\n")
    said = table.run(*TABLE, "--yes", "--anyway", "--name", "rows").fine
    holds(said, "Protects", "2,000", "Personalnummer", 4, "--group")
    given = (*TABLE, "--group", "Personalnummer", "--yes", "--population", "named", "--disjoint")
    said = table.run(*given, "--anyway", "--verbose").fine
    holds(said, "Protects", "Personalnummer", 500)
    assert re.search(r"balanced accuracy ([\d.]+)%", said), "its students were simulated"
    assert load_manifest(table.data / "ensembles" / "visits").units == 500
    assert learned(table, said, "own.csv")["accuracy"] > 0.8
    proposing = ("ensemble", "schema", "survey.csv", "--label", "ill", "--group", "Personalnummer")
    table.run(*proposing, "--out", "by-hand.json").fine  # noqa: B018 - asserts
    assert Path("by-hand.json").read_text() == Path("visits-schema.json").read_text()
    near = ("ensemble", "train", "visits.csv", "--public", "survey.csv", "--name", "near")
    table.run(*near, "--kind", "neighbours", "--schema", "visits-schema.json").fine  # noqa: B018 - asserts
    assert load_manifest(table.data / "ensembles" / "near").units == 500
    rehearsed = ("quickstart", "--dry-run", "--anyway", *TABLE[2:], "--group", "Personalnummer")
    holds(table.run(*rehearsed, "--units", 500).fine, "Protects", "Personalnummer")


def test_a_quantity_is_cut_into_classes_in_all_files(machine: Machine) -> None:
    random = np.random.default_rng(0)
    for name, rows in (("flats", 2000), ("offers", FEW), ("own", 300)):
        area = random.uniform(20, 180, rows).round(5)
        rent = (8 * area + random.normal(0, 60, rows)).round(2)
        lines = [f"{a},{r},{'abc'[i % 3]}" for i, (a, r) in enumerate(zip(area, rent, strict=True))]
        Path(f"{name}.csv").write_text("\n".join(["area,rent,ort", *lines]) + "\n")
    given: tuple[object, ...] = ("quickstart", "flats.csv", "--public", "offers.csv")
    given = (*given, "--label", "rent", "--yes")
    holds(machine.run(*given).err, "rent", "--bins")
    for wrong in ("1000,500", "500,500", "nan", "500,", "", "low", "1_000"):
        holds(machine.run(*given, "--bins", wrong).err, "--bins", 100)
    holds(machine.run(*given, "--bins", "500", "--classes", "2").err, "--bins", "--classes")
    words = (*given[:5], "ort", "--bins", "500", "--yes")
    holds(machine.run(*words).err, "ort", "'a'", "--bins")
    assert not Path("flats-schema.json").exists()
    given = (*given, "--bins", "500,1000", "--epsilon", 3)
    said = machine.run(*given, "--verbose").fine
    assert "--bins 500,1000" in said.partition("By hand, this was:")[2]
    manifest = load_manifest(machine.data / "ensembles" / "flats")
    assert manifest.classes == ("under 500", "500 to 1000", "1000 and more")
    report = learned(machine, said, "own.csv")
    assert report["accuracy"] > 0.75
    other = machine.run(*given[:-4], "--bins", "600", "--name", "other").fine
    holds(other, "other", "open")
    again = (*given[:-4], "--name", "third", "--yes", "--bins")
    Path("third-schema.json").write_text(Path("flats-schema.json").read_text())
    holds(machine.run(*again, "600").err, "third-schema.json", "--bins", 600)
    rehearsed = ("quickstart", "--dry-run", *given[2:5], "rent", "--bins", "500,1000")
    holds(machine.run(*rehearsed, "--units", 2000).fine, "quickstart", "--bins", "500,1000")


def test_what_was_done_of_unlabelled_rows_can_be_done_by_hand(
    table: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Path("survey.csv").read_text().splitlines()
    Path("survey.csv").write_text("\n".join(row.rpartition(",")[0] for row in rows) + "\n")
    asked: list[str] = []

    def answer(question: str, *_: object, **named: object) -> str:
        asked.append(question)
        return "yes,no"

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", lambda _: len(asked) > 1)
    monkeypatch.setattr(typer, "prompt", answer)
    assert table.run(*TABLE, "--group", "patient").code == 1, "the answer was no"
    holds(asked[0], "survey.csv", "ill", "public")
    said = table.run(*TABLE, "--group", "patient", "--yes", "--verbose").fine
    assert len(asked) == 1, "the schema has the classes by now"
    schema = json.loads(Path("visits-schema.json").read_text())
    assert schema["columns"][-1]["values"] == ["yes", "no"]
    told = said.partition("By hand, this was:")[2].partition("\nNow serve")[0]
    lines = [line for line in told.splitlines() if line.startswith("  terrine ")]
    commands = [shlex.split(line)[1:] for line in lines]
    assert len(commands) == 6
    assert commands[1][-4:-2] == ["--classes", "yes,no"], commands
    other = table.data.with_name("other")
    database = f"sqlite:///{other / 'terrine.sqlite'}"
    own = {"TERRINE_DATA_DIR": str(other), "TERRINE_DATABASE_URL": database}
    for command in commands:
        words = [each.replace(str(table.data), str(other)) for each in command]
        words = ["by-hand.json" if "schema.json" in each else each for each in words]
        table.run(*words, **own).fine  # noqa: B018 - asserts
    assert json.loads(Path("by-hand.json").read_text()) == schema


def test_labels_alone_are_offered_of_trained_teachers_while_the_cap_pays_for_them(
    table: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Path("survey.csv").read_text().splitlines()
    Path("survey.csv").write_text("\n".join(row.rpartition(",")[0] for row in rows) + "\n")
    given = (*TABLE, "--group", "patient", "--classes", "no,yes", "--yes")

    def offered() -> list[list[str]]:
        said = table.run(*given).fine
        found = re.findall(r"^  terrine (.*project open .*)$", said, re.MULTILINE)
        return [shlex.split(line) for line in found]

    monkeypatch.setattr(forecast, "_find_sum_project", lambda *_: None)
    monkeypatch.setattr(forecast, "has_less_noise", lambda *_, **__: False)
    confident, interactive = offered()
    assert confident[-5].startswith("confident_gnmax:threshold=")
    assert interactive[-5].startswith("interactive_gnmax:threshold=")
    opened = 0
    while offers := offered():
        opened += 1
        name = f"labels-{opened}"
        words = [name if each == "visits-labels" else each for each in offers[opened % len(offers)]]
        table.run(*words).fine  # noqa: B018 - asserts
    assert 2 <= opened <= 8, "the cap of three times ε holds so many, and no more"


def test_a_name_stays_with_its_data_and_its_budget(digits: Machine) -> None:
    digits.run(*DIGITS, "--yes").fine  # noqa: B018 - asserts
    other = digits.run(*DIGITS[:-1], "2", "--yes")
    holds(other.err, 3)
    with np.load("digits.npz") as full:
        np.savez("fewer.npz", x=full["x"][:1000], y=full["y"][:1000])
    (digits.data / "ensembles" / "fewer").mkdir()
    wrong = ("quickstart", "fewer.npz", *DIGITS[2:], "--yes")
    assert digits.run(*wrong).code == 1, "a directory that is no ensemble"
    (digits.data / "ensembles" / "fewer").rmdir()
    (digits.data / "ensembles" / "digits").rename(digits.data / "ensembles" / "fewer")
    holds(digits.run(*wrong).err, "units")


DESIGNED = ("quickstart", "visits.csv", "--schema", "schema.json", "--epsilon", "3")
DESIGNED_STEPS = [
    (("terrine_models.tables.designed", "design_pool"), True),
    (("terrine_models.teachers.training", "save_tensors"), True),
    (("terrine_models.teachers.training", "train_ensemble"), True),
    ((OPERATIONS, "register_ensemble"), True),
    ((OPERATIONS, "open_project"), False),
    ((OPERATIONS, "open_project"), True),
]


@pytest.fixture
def schema_alone(table: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The visits, and a schema that somebody wrote who knows the forms and not the visits."""
    monkeypatch.setattr(first_project, "DESIGNED_ROWS", (1000,))  # of 8,000, for time's sake
    columns = [
        {"name": "patient", "role": "group"},
        {"name": "age", "role": "numeric", "low": 0, "high": 100},
        {"name": "weight", "role": "numeric", "low": 30, "high": 150},
        {"name": "ward", "role": "categorical", "values": ["A", "B", "C"]},
        {"name": "ill", "role": "label", "values": ["no", "yes"]},
    ]
    Path("schema.json").write_text(json.dumps({"columns": columns}))
    Path("survey.csv").rename("own.csv")
    return table


def test_a_schema_alone_is_enough(schema_alone: Machine) -> None:
    said = schema_alone.run(*DESIGNED, "--yes").fine
    holds(said, "95.3%")
    holds(said, "4", "histograms", "0.54")
    holds(said, "rows", "designed", "schema")
    books = ledger(schema_alone)
    [ensemble] = books.ensembles.list()
    record = books.projects.get("visits")
    assert (record.terms.epsilon, record.terms.delta) == (3, 1e-4)
    [first] = books.entries.list("visits")
    assert first.outcome == "released"
    assert record.terms.epsilon_spent(record.spent) == pytest.approx(0.543, abs=0.001)
    assert ensemble.population.reserved == record.terms.cap_budget
    page = schema_alone.run("dossier").fine
    holds(page, "Released", 1, "released")
    holds(page, 4, "histograms")
    assert re.search(r"Budget</dt><dd>ε = 3 at δ = 0\.0001", page)
    assert re.search(r"Spent</dt><dd>ε = 0\.54", page), "what the histograms cost by themselves"
    report = learned(schema_alone, said, "own.csv")
    assert report["outcomes"] == {"answered": 1000}
    assert report["accuracy"] > 0.8, "the larger class is 70 %"
    recalls = [each["recall"] for each in report["by_class"]]
    assert min(recalls) > 0.7, "its threshold is where classes are as common as the margin says"
    token = re.search(r"TERRINE_TOKEN=(\S+)", said)
    assert token is not None
    with serving_process(schema_alone) as server, Client(server.url, token[1]) as student:
        pool = DesignedPool.of_bytes(student.pool())
        assert student.label(pool.rows[:3]).budget.charges == 1001, "they were paid for"
        stated = json.loads(Path("student/privacy.json").read_text())
        assert (stated["epsilon"], stated["delta"]) == (3, 1e-4)
        assert "margins" not in stated
        card = Path("student/README.md").read_text()
        assert "ε = 3, δ = 0.0001" in card
        holds(card, 4, "histograms", f"{stated['release']['sigma']:g}")
        assert verify_papers(student, Path("student")).problems == ()
    holds(schema_alone.run(*DESIGNED, "--yes").fine, "open", "already")
    Path("leaves.csv").write_text("patient\n7\n")
    leave = ("ensemble", "forget", "--who", "leaves.csv", "--yes")
    holds(schema_alone.run(*leave).err, "--records", "visits=FILE")
    schema_alone.run(*leave, "--records", "visits=visits.csv").fine  # noqa: B018 - asserts
    edition = books.ensembles.get("visits").edition
    assert edition is not None
    assert edition.number == 2
    kept = [path.read_bytes() for path in schema_alone.data.rglob(POOL_FILE)]
    assert {*kept} == {pool.to_bytes()}, "nothing is released anew"
    assert [each.outcome for each in books.entries.list("visits", outcome=first.outcome)] == [
        "released"
    ]
    assert not books.verifier.verify_project("visits").problems


@pytest.mark.parametrize(
    "steps",
    [DESIGNED_STEPS[1::2], pytest.param(DESIGNED_STEPS, marks=pytest.mark.nightly)],
    ids=["some steps", "all steps"],
)
def test_killed_at_any_step_what_it_begins_with_is_paid_for_once(
    steps: list[tuple[tuple[str, str], bool]], schema_alone: Machine, tmp_path: Path
) -> None:
    variables = {**os.environ, **REPEATED, "TERRINE_DATA_DIR": str(schema_alone.data)}
    pools = list[bytes]()
    for number, (place, after) in enumerate(steps, start=1):
        variables[SEED] = str(number)  # other noise each time
        log = tmp_path / f"{place[1]}.log"
        run = ((*DESIGNED, "--yes"), variables, str(log))
        [process] = in_processes(killed_at, (tmp_path, place, after, *run))
        assert process.exitcode == -signal.SIGKILL, (place, log.read_text())
        pools += [path.read_bytes() for path in schema_alone.data.rglob(POOL_FILE)]
        left = schema_alone.data.glob("ensembles/*.partial/*")
        shared = {POOL_FILE, FEATURES_FILE, IDENTITIES_FILE, PROGRESS_FILE}
        assert {f.name for f in left if not f.name.startswith("teachers-")} <= shared
    schema_alone.run(*DESIGNED, "--yes").fine  # noqa: B018 - asserts
    pools += [path.read_bytes() for path in schema_alone.data.rglob(POOL_FILE)]
    assert len(pools) > 1
    assert len({*pools}) == 1, "drawn once"
    books = ledger(schema_alone)
    assert [each.outcome for each in books.entries.list("visits")] == ["released"]
    assert [each.name for each in books.ensembles.list()] == ["visits"]
    assert not books.verifier.verify_project("visits").problems


@pytest.mark.parametrize(
    ("column", "changed"),
    [
        (3, {"values": ["A", "B", "C", "D"]}),
        pytest.param(1, {"high": 120}, marks=pytest.mark.nightly),
    ],
    ids=["a category more", "another range"],
)
def test_a_schema_that_changed_after_its_histograms_is_refused(
    schema_alone: Machine,
    monkeypatch: pytest.MonkeyPatch,
    column: int,
    changed: dict[str, object],
) -> None:
    replies = [True, False]
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", lambda _: replies.pop(0))
    holds(schema_alone.run(*DESIGNED).err, "Nothing", "done")
    schema = json.loads(Path("schema.json").read_text())
    schema["columns"][column] |= changed
    Path("schema.json").write_text(json.dumps(schema))
    holds(schema_alone.run(*DESIGNED, "--yes").err, "schema", "--name")
    assert not ledger(schema_alone).ensembles.list()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param((), "--public --schema", id="nothing to ask"),
        pytest.param(("--schema", "none.json"), "none.json", id="no such schema"),
        pytest.param(("--schema", "own.csv"), "own.csv schema", id="not a schema"),
        pytest.param(
            ("--schema", "schema.json", "--label", "ill"), "--schema leave edit", id="said twice"
        ),
        pytest.param(
            ("--schema", "schema.json", "--epsilon", "0.0001"), "small", id="next to nothing"
        ),
    ],
)
def test_what_a_schema_alone_cannot_do_is_refused_before_anything_is_made(
    schema_alone: Machine, options: tuple[str, ...], said: str
) -> None:
    refused = schema_alone.run("quickstart", "visits.csv", "--yes", *options)
    assert refused.code == 1
    holds(refused.err, *said.split())
    assert not (schema_alone.data / "ensembles").exists() or not [
        *(schema_alone.data / "ensembles").iterdir()
    ]


def test_a_schema_is_declared_column_by_column_and_gone_on_with(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*replies: str) -> None:
        left = list(replies)

        def prompt(question: str, *_: object, **named: object) -> str:
            if not left:
                raise KeyboardInterrupt
            return left.pop(0)

        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr(typer, "prompt", prompt)
        monkeypatch.setattr(typer, "confirm", lambda question: False)

    declare = ("ensemble", "schema", "--declare", "--out", "own.json")
    answer(
        "age",
        "number",
        "90",
        "17",
        "number",
        "17",
        "90",
        "age",
        "job",
        "thing",
        "category",
        "",
        " ",
        "a,b",
        "",
    )
    refused = machine.run(*declare)
    holds(refused.err, "label", "command")
    lines = (refused.out + refused.err).splitlines()
    assert sum("needs" in line for line in lines) == 2, "one for each empty answer"
    answer(
        "ill", "label", "no,yes", "born", "date", "day-month-year", "1900-01-01", "2020-01-01", ""
    )
    said = machine.run(*declare).fine
    holds(said, "age", "job")
    holds(said, "quickstart", "own.json")
    found = read_schema(Path("own.json"))
    assert [(each.name, each.role) for each in found.columns] == [
        ("age", "numeric"),
        ("job", "categorical"),
        ("ill", "label"),
        ("born", "date"),
    ]
    assert (found.columns[0].low, found.columns[0].high) == (17, 90)
    assert found.columns[3].high == 43829
    holds(machine.run(*declare, "--label", "ill").err, "--declare", "--out")
