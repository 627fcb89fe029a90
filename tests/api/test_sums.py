"""A project of sums: one release, when it is opened, and every label follows from it, free."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
import safetensors.numpy

from support.browser import InProcess, Visitor
from support.clients import Caller, slug
from support.data import KEY, DigitsEnsemble, digits_of_people, names_of
from support.processes import Terrine, at_once, in_processes, killed_at, seed_noise
from support.servers import RunningServer, running_server
from support.wording import holds, refuses
from terrine_addons.onnx.students import export
from terrine_client import Client
from terrine_client.distill import DistillError, distill, verify_papers
from terrine_client.estimator import TerrineClassifier, buy
from terrine_models.data.arrays import DataError
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import StoreError
from terrine_models.students.models import Student, Training
from terrine_models.sums import ReleasedSums, SumMap
from terrine_models.teachers.ensemble import Ensemble, load
from terrine_models.teachers.people import name_digests
from terrine_models.teachers.shards import TrainingError
from terrine_protocol import EnsembleRegister, Outcome, ProjectStatus
from terrine_server.app import create_app, serving
from terrine_server.doctor import Severity, check_ensembles
from terrine_server.errors import Conflict, InvalidTerms
from terrine_server.owner import editions
from terrine_server.owner.operations import register_ensemble
from terrine_server.owner.sums import SumSettings, make_sums
from terrine_server.privacy import ParameterError
from terrine_server.settings import Settings

EPSILON, DELTA = 4.0, 1e-5
PEOPLE = 1200
SETTINGS = SumSettings(epsilon=EPSILON, delta=DELTA)
SPEC = {"name": "sums"}
MODEL = "teachers-00000.safetensors"
SCHEMA = json.dumps(
    {
        "columns": [
            {"name": "patient", "role": "group"},
            {"name": "dose", "role": "numeric", "low": 0, "high": 10},
            {"name": "ward", "role": "categorical", "values": ["A", "B"]},
            {"name": "ill", "role": "label", "values": ["no", "yes"]},
        ]
    }
)


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> DigitsEnsemble:
    """Sums of 1,200 people, each of whom has one digit."""
    out = tmp_path_factory.mktemp("sums") / "sums"
    public = PublicData.declare("digits from 1200 on", digits_ensemble.public)
    with pytest.MonkeyPatch.context() as patch:
        seed_noise(patch)
        private = digits_of_people(slice(PEOPLE))
        manifest = make_sums(private, public, out, SETTINGS, name="sums", key=KEY)
    return replace(digits_ensemble, directory=out, manifest=manifest)


@pytest.fixture
def server(tmp_path: Path, database_url: str, built: DigitsEnsemble) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", database_url, built) as running:
        running.open_project(mechanism=SPEC, epsilon=EPSILON, delta=DELTA)
        yield running


@pytest.mark.usefixtures("each_database_url")
def test_labels_follow_from_the_release_free_for_ever(
    server: RunningServer, built: DigitsEnsemble
) -> None:
    project = server.ledger.projects.get("study")
    [entry] = server.ledger.entries.list("study")
    assert (entry.outcome, project.charges) == (Outcome.RELEASED, 1)
    student = Caller(server, server.token())
    asked = built.public[:60], built.public[40:100]
    first, second = (student.label(x) for x in asked)
    said = [[each["label"] for each in reply.json()["results"]] for reply in (first, second)]
    assert said[0][40:] == said[1][:20]
    for each in (*first.json()["results"], *second.json()["results"]):
        assert (each["outcome"], each["source"]) == ("answered", "sums")
        assert (each["charge"], each["hash"], each["replayed"]) == (None, None, False)
    right = np.mean(
        np.array(said).ravel()
        == np.concatenate([built.public_labels[:60], built.public_labels[40:100]])
    )
    assert right > 0.8
    budget = student.http.get("/budget").json()
    assert budget == first.json()["budget"] == second.json()["budget"]
    assert (budget["charges"], budget["affordable"]) == (1, 0)
    assert 0.99 * EPSILON < budget["epsilon_spent"] <= EPSILON
    with serving(server.settings) as url:  # another server, which knows nothing yet
        other = Caller(replace(server, url=url), server.token())
        assert [each["label"] for each in other.label(asked[0]).json()["results"]] == said[0]
    with Client(server.url, server.token()) as client:
        labels = client.label(asked[1])
    assert labels.labels.tolist() == said[1]
    assert (labels.charges == -1).all()
    assert server.ledger.projects.get("study").head == project.head
    assert server.ledger.verifier.verify_project("study").problems == []
    own = Ensemble.load(built.directory, device="cpu")
    assert own.votes(asked[0]).argmax(axis=1).tolist() == said[0]


@pytest.mark.usefixtures("no_refill")
def test_it_answers_while_it_is_open_and_as_often_as_is_allowed(
    tmp_path: Path, database_url: str, built: DigitsEnsemble
) -> None:
    limits = {"replays_per_minute": 100}
    with running_server(tmp_path / "data", database_url, built, **limits) as server:
        server.open_project(mechanism=SPEC, epsilon=EPSILON, delta=DELTA)
        student, few = Caller(server, server.token()), built.public[:5]
        assert slug(student.label(few[:, :4])) == "invalid-query"
        assert slug(student.label(few, probabilities=np.full((5, 10), 0.1))) == "invalid-query"
        for status, problem in (
            (ProjectStatus.PAUSED, "project-paused"),
            (ProjectStatus.ACTIVE, None),
            (ProjectStatus.CLOSED, "project-closed"),
        ):
            server.ledger.projects.set_status("study", status)
            reply = student.label(few)
            assert (slug(reply) if reply.status_code != 200 else None) == problem
        assert student.http.get("/sums").status_code == 200  # it was paid for
        server.open_project("other", SPEC, epsilon=EPSILON, delta=DELTA)
        busy = Caller(server, server.token(project="other"))
        statuses = [busy.label(built.public[:60]).status_code for _ in range(4)]
        assert statuses[0] == 200
        assert statuses[-1] == 429
        assert server.ledger.projects.get("other").charges == 1


def test_what_was_released_is_there_for_its_students(
    server: RunningServer, built: DigitsEnsemble
) -> None:
    with Client(server.url, server.token()) as client:
        released = ReleasedSums.of_bytes(client.sums())
        facts = client.project().ensemble
    release = facts.release
    assert release is not None
    assert release.kind == "sums"
    assert (release.sigma, release.map_sha256) == (released.sigma, released.map.sha256)
    assert (facts.kind, facts.teachers, facts.units, released.units) == ("sums", 1, PEOPLE, PEOPLE)
    public = PublicData.declare("digits from 1200 on", built.public)
    known = SumMap.fit(facts.input, public, release.norm, released.errors[0, 0] ** 0.5)
    assert released.map.stretch == pytest.approx(known.stretch), "the norm is divided by the noise"
    student = Caller(server, server.token())
    assert slug(student.http.get("/pool")) == "not-found"
    assert slug(httpx.get(f"{server.url}/sums")) == "unauthorized"
    path = server.settings.ensembles_dir / "sums" / "sums.npz"
    path.write_bytes(path.read_bytes() + b" ")
    assert slug(student.http.get("/sums")) == "ensemble-unavailable"
    assert slug(student.label(built.public[:1])) == "ensemble-unavailable"


def test_a_project_of_votes_has_no_sums(
    terrine_server: RunningServer, digits_ensemble: DigitsEnsemble
) -> None:
    terrine_server.open_project()
    student = Caller(terrine_server, terrine_server.token())
    assert slug(student.http.get("/sums")) == "not-found"
    [result] = student.label(digits_ensemble.public[:1]).json()["results"]
    assert "source" not in result
    with refuses(InvalidTerms, "sums"):
        terrine_server.open_project("sums", SPEC)


@pytest.mark.usefixtures("each_database_url")
def test_only_a_budget_that_covers_the_release_opens_it(server: RunningServer) -> None:
    with refuses(InvalidTerms, "sums", 2):
        server.open_project("half", SPEC, epsilon=EPSILON / 2, delta=DELTA)
    with refuses(InvalidTerms, "gnmax", "sums"):
        server.open_project("votes", {"name": "gnmax", "sigma": 1.0}, epsilon=EPSILON)
    with refuses(InvalidTerms, "neighbours", "sums"):
        server.open_project("near", {"name": "neighbours", "sigma": 9.0, "queries": 5})

    def open_twice(_: int) -> object:
        try:
            return server.open_project("twice", SPEC, epsilon=EPSILON, delta=DELTA).head
        except Conflict as error:
            return error

    opened = at_once(2, open_twice)
    assert sorted(isinstance(each, Conflict) for each in opened) == [False, True]
    assert server.ledger.projects.get("twice").charges == 1
    assert server.ledger.verifier.verify_project("twice").problems == []


@pytest.mark.parametrize(
    ("rows", "settings", "kind", "held"),
    [
        (10, SETTINGS, DataError, ("10",)),
        (400, SumSettings(epsilon=0.0001), ParameterError, ("0.0001",)),
        (400, SumSettings(epsilon=1000), ParameterError, ("1000",)),
    ],
)
def test_a_pool_or_an_epsilon_that_is_too_small_leaves_nothing(
    rows: int,
    settings: SumSettings,
    kind: type[Exception],
    held: tuple[object, ...],
    tmp_path: Path,
    digits_ensemble: DigitsEnsemble,
) -> None:
    public = PublicData.declare("pool", digits_ensemble.public[:rows])
    private = digits_of_people(slice(300))
    with refuses(kind, *held):
        make_sums(private, public, tmp_path / "out", settings, name="out", key=KEY)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    with refuses(TrainingError, tmp_path / "out"):
        make_sums(private, public, tmp_path / "out", settings, name="out", key=KEY)


def test_who_leaves_takes_nothing_along_and_does_not_come_back(
    server: RunningServer, built: DigitsEnsemble
) -> None:
    ledger, settings = server.ledger, server.settings
    settings.records_key_path.write_bytes(KEY)
    settings.records_key_path.chmod(0o600)
    student = Caller(server, server.token())
    told = student.label(built.public[:20]).json(), student.http.get("/sums").content
    gone = name_digests(names_of([3, 5]), KEY)
    assert editions.forget(ledger, settings, None, gone)["sums"].people == 2
    assert not editions.forget(ledger, settings, None, gone)["sums"].new
    assert (student.label(built.public[:20]).json(), student.http.get("/sums").content) == told
    server.open_project("later", SPEC, epsilon=EPSILON, delta=DELTA)
    assert Caller(server, server.token(project="later")).http.get("/sums").content == told[1]
    with refuses(StoreError, "sums"):
        editions.add(ledger, settings, "sums", digits_of_people(slice(PEOPLE, PEOPLE + 5)))
    public = PublicData.declare("digits from 1200 on", built.public)
    for name, rows in (("with-them", slice(100)), ("without", slice(6, 100))):
        out = settings.ensembles_dir / name
        make_sums(digits_of_people(rows), public, out, SETTINGS, name=name, key=KEY)
    with refuses(Conflict, 2, "with-them"):
        register_ensemble(ledger, settings, EnsembleRegister(name="with-them"))
    register_ensemble(ledger, settings, EnsembleRegister(name="without"))
    for found in check_ensembles(ledger, settings):
        assert found.state is not Severity.PROBLEM, found


def _edit_sums(**changed: Any) -> Callable[[Path], bytes]:
    def edit(path: Path) -> bytes:
        return replace(ReleasedSums.of_bytes(path.read_bytes()), **changed).to_bytes()

    return edit


def _edit_model(**changed: Any) -> Callable[[Path], bytes]:
    def edit(path: Path) -> bytes:
        return safetensors.numpy.save(safetensors.numpy.load(path.read_bytes()) | changed)

    return edit


HOSTILE: dict[str, tuple[str, Callable[[Path], bytes]]] = {
    "more people": ("sums.npz", _edit_sums(units=PEOPLE + 1)),
    "less noise": ("sums.npz", _edit_sums(sigma=1.0)),
    "no archive": ("sums.npz", lambda path: b"PK"),
    "weights of another shape": (MODEL, _edit_model(weights=np.zeros((3, 10)))),
    "weights that are no numbers": (MODEL, _edit_model(biases=np.full(10, np.nan))),
    "weights of another type": (MODEL, _edit_model(biases=np.zeros(10, np.float32))),
    "something beside them": ("teachers-00001.safetensors", lambda path: b""),
}


@pytest.mark.parametrize("flaw", HOSTILE)
def test_files_that_are_no_sums_are_refused(
    flaw: str, tmp_path: Path, built: DigitsEnsemble
) -> None:
    file, edit = HOSTILE[flaw]
    out = tmp_path / "hostile"
    shutil.copytree(built.directory, out)
    made = edit(out / file)
    (out / file).write_bytes(made)
    manifest = json.loads((out / "manifest.json").read_bytes())
    manifest["files"][file] = hashlib.sha256(made).hexdigest()
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError):
        load(out, device="cpu")


def test_students_follow_from_what_was_released_with_any_public_rows(
    server: RunningServer, built: DigitsEnsemble, tmp_path: Path
) -> None:
    held_out = built.unseen, np.array(built.manifest.classes)[built.unseen_labels]
    head = server.ledger.projects.get("study").head
    made = {}
    with Client(server.url, server.token()) as client:
        for name, rows in (("without", None), ("own", built.public[:300])):
            made[name] = distill(client, rows, tmp_path / name, held_out=held_out)
            again = distill(client, rows, tmp_path / f"{name}-again", held_out=held_out)
            found = Student.load(tmp_path / f"{name}-again")
            assert np.array_equal(
                found.predict(built.unseen), made[name].student.predict(built.unseen)
            )
            assert (again.labels == -1).all()
            report = verify_papers(client, tmp_path / name)
            assert report.log is not None
            assert list(report.problems) == report.log.problems  # nothing is signed yet
            stated = report.statement
            assert (stated.epsilon, stated.delta, stated.charges) == (EPSILON, DELTA, 1)
            assert (stated.release, stated.receipts) == (client.project().ensemble.release, 0)
            assert f"ε = {EPSILON:g}" in (tmp_path / name / "README.md").read_text()
        for training, queries, held in ((Training("ridge"), None, "ridge"), (None, 5, "study")):
            with refuses(DistillError, held):
                distill(client, None, tmp_path / "no", training=training, queries=queries)
        with refuses(DistillError, "[5, 3]"):
            distill(client, np.zeros((5, 3), np.uint8), tmp_path / "no")
        for names, held in ((built.public_labels[:300], "pictures"), ("eleven", "'eleven'")):
            labels = built.public[:300], np.broadcast_to(names, 300)
            with refuses(DistillError, held):
                distill(client, None, tmp_path / "no", labels=labels)
        bought = buy(client, built.public[:100])
        classifier = TerrineClassifier(bought).fit(built.public[:300].reshape(300, 8, 8))
        assert classifier.choice_.chosen == "sums"
        assert classifier.score(built.unseen, held_out[1]) > 0.75
    assert not (tmp_path / "no").exists()
    for each in made.values():
        assert (each.report.outcomes, each.report.choice.chosen) == ({}, "sums")
        assert each.report.accuracy is not None
        assert each.report.accuracy > 0.75
        assert each.report.majority is not None
    assert server.ledger.projects.get("study").head == head
    written = tmp_path / "student.onnx"
    export(tmp_path / "without", written)
    assert written.stat().st_size > 0


def test_owners_pages_open_it_and_tell_that_it_is_free(server: RunningServer) -> None:
    with InProcess() as send:
        owner = Visitor(create_app(server.settings), send)
        assert owner.sign_in(server.token("admin")).status_code == 303
        for path in ("", "/projects/study", "/ensembles", "/open?ensemble=sums"):
            assert owner.get(f"/admin{path}").status_code == 200
        holds(owner.get("/admin").text, "free")
        asked = owner.get("/admin/open?ensemble=sums").text
        assert {"rows", "epsilon"} & {*re.findall(r'name="(\w+)"', asked)} == set()
        proposed = owner.post("/admin/open", ensemble="sums", action="suggest")
        assert proposed.status_code == 200
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', proposed.text))
        wanted = ("sums", f"{EPSILON:g}", f"{DELTA:g}")
        assert tuple(fields[name] for name in ("mechanism", "epsilon", "delta")) == wanted
        assert owner.post("/admin/open", **fields | {"name": "study"}).status_code == 409
        opened = owner.post("/admin/open", **fields | {"name": "paged"})
        assert opened.status_code == 303
    assert server.ledger.projects.get("paged").charges == 1


def test_an_owner_adds_up_a_table_and_a_student_learns_it(
    terrine: Terrine, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People have several rows; the pool has none of their columns but the features."""
    seed_noise(monkeypatch)
    place = {"TERRINE_DATABASE_URL": database_url}
    random = np.random.default_rng(5)
    tables = {"private": 1500, "pool": 400, "own": 300}
    for name, rows in tables.items():
        dose, ward = random.uniform(0, 10, rows), random.choice(["A", "B"], rows)
        ill = np.where(dose + 3 * (ward == "A") + random.normal(0, 0.5, rows) > 7, "yes", "no")
        table = pd.DataFrame({"dose": dose, "ward": ward})
        if name != "pool":
            table["ill"] = ill
        if name == "private":
            table.insert(0, "patient", [f"p{number // 3}" for number in range(rows)])
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "schema.json").write_text(SCHEMA)
    files = {name: tmp_path / f"{name}.csv" for name in tables}
    terrine("init", **place)
    train = ("ensemble", "train", files["private"], "--name", "wards")
    public = ("--public", files["pool"], "--schema", tmp_path / "schema.json")
    for kind, more, held in (
        ("sums", public, ("--kind", "epsilon")),
        ("sums:epsilon=3", public[2:], ("--public",)),
        ("sums:epsilon=3", (*public, "--teachers", 5), ("--teachers",)),
        ("sums:epsilon=0.00001", public, ("ε",)),
    ):
        refused = terrine(*train, "--kind", kind, *more, **place)
        assert refused.code == 1
        holds(refused.err, *held)
    adding = [
        *train,
        "--kind",
        "sums:epsilon=3.05",
        *public,
    ]  # of three digits, and the cap as well
    for function in ("add_up_records", "save_manifest"):
        killed = ("terrine_models.teachers.sums", function), True, [*map(str, adding)]
        own = {**os.environ, **place, "TERRINE_DATA_DIR": str(tmp_path / "data")}
        [process] = in_processes(killed_at, (tmp_path, *killed, own, str(tmp_path / "log")))
        assert process.exitcode == -signal.SIGKILL
        assert [each.name[0] for each in (tmp_path / "data" / "ensembles").iterdir()] in ([], ["."])
    said = terrine(*adding, **place).fine
    holds(said, "people", 500)
    words = next(line.split() for line in said.splitlines() if " register " in line)
    said = terrine(*words[words.index("terrine") + 1 :], **place).fine  # as it was told to
    holds(terrine("ensemble", "show", "wards", "--verify", **place).fine, "released")
    words = next(line.split() for line in said.splitlines() if " open " in line)
    assert [float(words[words.index(each) + 1]) for each in ("--epsilon", "--delta")] == [
        3.05,
        1e-4,
    ]
    holds(terrine(*words[words.index("terrine") + 1 :], **place).fine, "free")
    holds(terrine("ledger", "show", "wards", **place).fine, "free")
    holds(terrine("ensemble", "add", "wards", files["private"], **place).refused, "wards", "sums")
    settings = Settings(data_dir=tmp_path / "data", database_url=database_url)
    made = terrine("token", "create", "--role", "student", "--project", "wards", **place)
    [token] = re.findall(r"terrine_\w+", made.out)
    with serving(settings) as url:
        student = {**place, "TERRINE_URL": url, "TERRINE_TOKEN": token}
        holds(terrine("student", "budget", **student).fine, "free")
        learn = ("student", "train", "--held-out", files["own"], "--out", tmp_path / "student")
        holds(terrine(*learn, "--dry-run", **student).fine, "free")
        terrine(*learn, **student)
        with_own = ("student", "train", files["pool"], "--out", tmp_path / "own")
        holds(terrine(*with_own, **student).fine, "sums")
        labels = tmp_path / "labels.csv"
        terrine("student", "label", files["own"], "--out", labels, **student)
    own = pd.read_csv(files["own"])
    assert (pd.read_csv(labels)["label"] == own["ill"]).mean() > 0.85
    for name in ("student", "own"):
        said_by = Student.load(tmp_path / name).predict_frame(own).names
        assert (said_by == own["ill"]).mean() > 0.85
    assert terrine("doctor", **place).code == 0
    backup = tmp_path / "backup"
    terrine("backup", backup, **place)
    assert (backup / "ensembles" / "wards" / "sums.npz").read_bytes()
