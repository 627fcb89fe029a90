"""Metrics of the real endpoint, read by Prometheus's own parser."""

from __future__ import annotations

import asyncio
import platform
import re
from collections import Counter
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import make_url

from support.browser import SCREENS, InProcess, Visitor
from support.clients import Caller, slug
from support.data import DigitsEnsemble
from support.databases import as_owner, database_gone
from support.processes import until
from support.servers import CAP_EPSILON, RunningServer, running_server
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.public import PublicData
from terrine_models.teachers.neighbours import NeighbourSettings, build
from terrine_protocol import PROBLEMS, ProjectStatus
from terrine_protocol.transparency import Checkpoint, Note
from terrine_server.api import health, services, shared
from terrine_server.app import create_app
from terrine_server.owner import sign_in
from terrine_server.owner.backup import BackupError, back_up
from terrine_server.owner.checkpoints import load_checkpoint_key, make_checkpoint_key
from terrine_server.settings import LOW_DISK_BYTES

REPOSITORY = Path(__file__).resolve().parents[2]

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics are built when they are asked for: a second each would add up."""
    monkeypatch.setattr(shared, "LOOKUP_SECONDS", 0.0)


def scrape(server: RunningServer, role: str = "auditor") -> Series:
    return read(Caller(server, server.token(role)))


def read(auditor: Caller) -> Series:
    reply = auditor.http.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: Series = {}
    for family in text_string_to_metric_families(reply.text):
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, frozenset(labels.items())]


PUBLIC = {"/healthz", "/readyz", "/checkpoint", "/tile/{path}", "/problems", "/problems/{slug}"}


def test_a_token_for_metrics_opens_metrics_and_nothing_else(terrine_server: RunningServer) -> None:
    terrine_server.open_project()
    anybody = Caller(terrine_server, None).http
    scraper = Caller(terrine_server, terrine_server.token("metrics")).http
    opened, asked = set(), set()
    for path, methods in anybody.get("/openapi.json").json()["paths"].items():
        for method in methods:
            filled = re.sub(r"{[a-z_]+}", "study", path)
            without, replied = (http.request(method, filled) for http in (anybody, scraper))
            asked.add(path)
            if path in PUBLIC:
                assert replied.status_code == without.status_code, path
                continue
            assert slug(without) == "unauthorized", (method, path)
            if replied.status_code == 200:
                opened.add((method, path))
            else:
                assert slug(replied) == "forbidden", (method, path)
    assert opened == {("get", "/metrics")}
    assert len(asked) > len(PUBLIC) + 15
    assert scrape(terrine_server, "metrics").keys() == scrape(terrine_server, "admin").keys()


def test_metrics_are_built_once_for_all_who_ask_meanwhile(
    terrine_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_together() -> None:
        app = create_app(terrine_server.settings)
        built, text, end = list[bool](), health.build_metrics, asyncio.Event()

        async def build(made: services.Services) -> bytes:
            built.append(end.is_set())
            await end.wait()
            return await text(made)

        patched.setattr(health, "build_metrics", build)
        ask = app.state.services.scrape
        waiting = [asyncio.create_task(ask())]
        while not built:
            await asyncio.sleep(0)
        waiting += [asyncio.create_task(ask()) for _ in range(20)]
        await asyncio.sleep(0)
        end.set()
        assert all(await asyncio.gather(*waiting))
        assert built == [False, True], "those who asked later have what came later"

    with monkeypatch.context() as patched:
        asyncio.run(ask_together())
    asked = list[int]()

    async def own(made: shared.SharedScrape) -> bytes:
        asked.append(1)
        return b""

    monkeypatch.setattr(shared.SharedScrape, "__call__", own)
    scrape(terrine_server)
    assert asked == [1], "by the route, too"


def test_requests_and_problems_are_counted_by_route_and_type(terrine_server: RunningServer) -> None:
    terrine_server.open_project("hush-hush")
    student = Caller(terrine_server, terrine_server.token("student", "hush-hush"))
    student.label(terrine_server.ensemble.public[:2])
    student.label(terrine_server.ensemble.public[:2] + 100)
    student.http.get("/projects/hush-hush")
    student.http.get("/nowhere")
    student.http.post("/label", headers={"Content-Encoding": "gzip"})
    seen = scrape(terrine_server)

    def requests(method: str, route: str, status: str) -> float:
        return value(seen, "terrine_requests_total", method=method, route=route, status=status)

    assert requests("POST", "/label", "200") == 1
    assert requests("POST", "/label", "422") == 1
    assert requests("GET", "/projects/{name}", "200") == 1
    assert value(seen, "terrine_request_seconds_count", method="POST", route="/label") == 2
    for problem in ("invalid-query", "not-found", "unsupported-media-type"):
        assert value(seen, "terrine_problems_total", problem=problem) == 1
    for problem in PROBLEMS.keys() - {"invalid-query", "not-found", "unsupported-media-type"}:
        assert value(seen, "terrine_problems_total", problem=problem) == 0, "from zero on"
    assert all(
        dict(labels).get("route") in (None, "(none)") or "hush" not in dict(labels)["route"]
        for _, labels in seen
    )


def test_metrics_of_projects_match_the_accounts_that_students_see(
    terrine_server: RunningServer,
) -> None:
    for name in ("busy", "idle", "closed"):
        terrine_server.open_project(name, epsilon=2.0)
    terrine_server.ledger.projects.set_status("closed", ProjectStatus.CLOSED)
    student = Caller(terrine_server, terrine_server.token("student", "busy"))
    student.label(terrine_server.ensemble.public[:5])
    seen = scrape(terrine_server)
    assert {dict(labels)["project"] for _, labels in seen if "project" in dict(labels)} == {
        "busy", "idle",
    }  # fmt: skip
    for name in ("busy", "idle"):
        token = terrine_server.token("student", name)
        account = Caller(terrine_server, token).http.get("/budget").json()
        for figure in ("epsilon", "epsilon_spent", "charges", "affordable"):
            assert value(seen, f"terrine_project_{figure}", project=name) == account[figure]
    assert value(seen, "terrine_project_charges", project="busy") > 0


def test_every_stage_of_a_label_is_timed_and_every_outcome_counted(
    terrine_server: RunningServer,
) -> None:
    terrine_server.open_project()
    student = Caller(terrine_server, terrine_server.token())
    outcomes = Counter[str]()
    for inputs in (terrine_server.ensemble.public[:3], terrine_server.ensemble.public[:5]):
        for result in student.label(inputs).json()["results"]:
            outcomes[f"{result['outcome']} {str(result['replayed']).lower()}"] += 1
    student.label(terrine_server.ensemble.public[:3])  # all of it is recorded: no vote
    outcomes["answered true"] += 3
    student.label(terrine_server.ensemble.public[:3] + 100)  # refused before anything is looked up
    seen = scrape(terrine_server)
    for stage, times in {"decode": 4, "replay": 3, "vote": 2, "release": 2, "charge": 3}.items():
        assert value(seen, "terrine_stage_seconds_count", stage=stage) == times, stage
    total = value(seen, "terrine_request_seconds_sum", method="POST", route="/label")
    stages = sum(v for (name, _), v in seen.items() if name == "terrine_stage_seconds_sum")
    assert 0 < stages < total
    assert outcomes == {
        f"{dict(labels)['outcome']} {dict(labels)['replayed']}": count
        for (name, labels), count in seen.items()
        if name == "terrine_queries_total"
    }


def test_the_handbook_lists_exactly_the_metrics_that_exist(terrine_server: RunningServer) -> None:
    terrine_server.open_project()
    Caller(terrine_server, terrine_server.token()).label(terrine_server.ensemble.public[:2])
    handbook = (REPOSITORY / "docs" / "operating.md").read_text()
    listed = re.findall(r"^\| `(terrine_\w+)` \| (\w+) \| ([\w, ]*)\|", handbook, re.MULTILINE)
    text = Caller(terrine_server, terrine_server.token("auditor")).http.get("/metrics").text
    exported = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    own = [each for each in exported if not each[0].startswith("process_")]
    assert [(name, kind) for name, kind, _ in listed] == own
    labels = {name: labels.strip() for name, _, labels in listed}
    of_projects = [each for name, each in labels.items() if name.startswith("terrine_project_")]
    assert set(of_projects) == {"project"}, "no outcomes of one project"
    assert not re.search("vote_|votes_|label|input", " ".join(labels))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = next((each for each in (sample.name, family.name) if each in labels), None)
            if name is not None:
                assert sorted(set(sample.labels) - {"le"}) == sorted(
                    filter(None, labels[name].split(", "))
                ), name
    besides = set(re.findall(r"`((?:process|python)_\w+)`", handbook))
    assert besides == {name for name, _ in exported if name.startswith("process_")}


def test_caps_are_shared_by_projects_and_told_as_the_owner_sees_them(
    terrine_server: RunningServer,
) -> None:
    ledger = terrine_server.ledger
    for name in ("study", "closed"):
        terrine_server.open_project(name, epsilon=5.0)
    student = Caller(terrine_server, terrine_server.token())
    student.label(terrine_server.ensemble.public[:5])
    (account,) = (
        Caller(terrine_server, terrine_server.token("auditor")).http.get("/ensembles").json()
    )

    def told(figure: str) -> float:
        return value(scrape(terrine_server), f"terrine_population_{figure}", population="people")

    assert told("epsilon") == account["epsilon"] == CAP_EPSILON
    assert told("reserved_ratio") == account["reserved"] / account["cap"]
    spent = ledger.projects.get("study").cap_spent
    assert 0 < told("spent_ratio") == spent / account["cap"] < told("reserved_ratio")
    ledger.projects.set_status("closed", ProjectStatus.CLOSED)
    (left,) = ledger.ensembles.list_populations()
    assert told("reserved_ratio") == left.reserved / left.cap < account["reserved"] / account["cap"]


@pytest.mark.usefixtures("each_database_url")
def test_a_server_says_what_it_is_made_of_and_whether_it_is_ready(
    terrine_server: RunningServer,
) -> None:
    seen = scrape(terrine_server)
    ((name, labels),) = [key for key in seen if key[0] == "terrine_build_info"]
    assert dict(labels) == {
        "version": version("terrine"),
        "python": platform.python_version(),
        "database": make_url(terrine_server.settings.database).get_backend_name(),
        "schema": max((REPOSITORY / "migrations" / "versions").glob("*.py")).stem.split("_")[0],
    }
    assert seen[name, labels] == value(seen, "terrine_ready") == 1
    assert value(seen, "terrine_data_disk_low") == 0
    assert value(seen, "process_open_fds") > 0
    weights = next(terrine_server.settings.ensembles_dir.glob("*/*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    until(lambda: value(scrape(terrine_server), "terrine_ready") == 0)


def read_all(server: RunningServer) -> dict[str, str]:
    """What each role reads at every address and page, except for metrics, times and random ids."""
    found = {}
    with InProcess() as send:
        app = create_app(server.settings)
        for role in ("student", "auditor", "admin"):
            token = server.token(role)
            caller, visitor = Caller(server, token).http, Visitor(app, send)
            for path, methods in caller.get("/openapi.json").json()["paths"].items():
                if "get" in methods and path != "/metrics":
                    found[f"{role} {path}"] = caller.get(re.sub(r"{\w+}", "study", path)).text
            visitor.sign_in(token)
            for page in SCREENS:
                text = visitor.get(f"/admin{page.replace('digits', 'people')}").text
                found[f"{role} /admin{page}"] = text
    changing = re.compile(r"[0-9a-f]{6}…|[0-9a-f]{16,}|\d{4}-\d\d-\d\d[ T0-9:.Z]*")
    return {address: changing.sub("?", text) for address, text in found.items()}


def test_what_a_service_shows_is_the_same_whatever_the_private_records(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    """In the second world a person has 20,000 records more, and everybody has another label."""
    random = np.random.default_rng(5)
    own, asked = (random.random((count, 2)).astype(np.float32) for count in (300, 400))
    public, near = PublicData.declare("rows", asked), NeighbourSettings(100)
    worlds, pages = [], list[dict[str, str]]()
    for label, more in ((0, 0), (1, 20_000)):
        people = Dataset(
            np.concatenate([own, np.full((more, 2), 0.5, np.float32)]),
            np.full(300 + more, label),
            ("no", "yes"),
            InputSpec(shape=(2,), dtype="float32", low=0, high=1),
            groups=np.concatenate([np.arange(300), np.zeros(more, np.int64)]),
            group_column="person",
        )
        files, data = tmp_path / f"{label}", tmp_path / f"data {label}"
        manifest = build(people, files, name="people", public=public, settings=near)
        ensemble = replace(digits_ensemble, directory=files, manifest=manifest)
        with running_server(data, f"sqlite:///{data / 'ledger.sqlite'}", ensemble) as server:
            server.open_project(mechanism={"name": "neighbours", "sigma": 30.0, "queries": 100})
            student = Caller(server, server.token())
            told = read_all(server)
            labels = [each["label"] for each in student.label(asked[:40]).json()["results"]]
            assert labels.count(label) > 20, "the answers differ"
            worlds.append(scrape(server, "metrics"))
            pages.append(told)
    changing = re.compile(r"\w+_seconds_(bucket|sum)|process_(start_time_seconds|open_fds)")
    first, second = (
        {key: value for key, value in world.items() if not changing.fullmatch(key[0])}
        for world in worlds
    )
    assert first == second
    assert worlds[0].keys() == worlds[1].keys()
    assert pages[0] == pages[1]


@pytest.mark.usefixtures("each_database_url")
def test_without_its_database_a_server_says_that_it_is_not_ready(
    terrine_server: RunningServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To those whose token for metrics the database has confirmed, for a day; to nobody else."""
    tokens = {role: terrine_server.token(role) for role in ("metrics", "auditor", "admin")}
    confirmed = {role: Caller(terrine_server, token) for role, token in tokens.items()}
    unseen, revoked = (terrine_server.token("metrics") for _ in range(2))
    for caller in (*confirmed.values(), Caller(terrine_server, revoked)):
        assert value(read(caller), "terrine_ready") == 1
    terrine_server.ledger.tokens.revoke(revoked.split("_")[1])
    assert slug(Caller(terrine_server, revoked).http.get("/metrics")) == "unauthorized"
    with database_gone(database_url):
        seen = read(confirmed["metrics"])
        assert value(seen, "terrine_ready") == 0
        assert value(seen, "terrine_problems_total", problem="database-unavailable") >= 0
        assert not [name for name, _ in seen if name.startswith("terrine_population")]
        assert slug(confirmed["metrics"].http.get("/log")) == "database-unavailable"
        others = (confirmed["auditor"], confirmed["admin"])
        for caller in (*others, *(Caller(terrine_server, each) for each in (unseen, revoked))):
            assert slug(caller.http.get("/metrics")) == "database-unavailable"
        monkeypatch.setattr(sign_in, "MAX_SCRAPER_AGE_SECONDS", 0.0)
        assert slug(confirmed["metrics"].http.get("/metrics")) == "database-unavailable"
    assert value(read(confirmed["metrics"]), "terrine_ready") == 1


def test_little_space_is_told_and_not_how_much(
    terrine_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for free, low in ((LOW_DISK_BYTES, 0), (LOW_DISK_BYTES - 1, 1)):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr("terrine_server.api.health.disk_usage", lambda _, usage=usage: usage)
        assert value(scrape(terrine_server), "terrine_data_disk_low") == low


def test_the_last_good_backup_is_told(terrine_server: RunningServer, tmp_path: Path) -> None:
    told = "terrine_backup_timestamp_seconds"
    assert not any(name == told for name, _ in scrape(terrine_server)), "there is none yet"
    settings = terrine_server.settings
    settings = settings.model_copy(update={"database_url": as_owner(settings.database)})
    back_up(settings, tmp_path / "backup")
    seen = value(scrape(terrine_server), told)
    assert seen == settings.last_backup_path.stat().st_mtime
    with pytest.raises(BackupError):
        back_up(settings, tmp_path / "backup")
    assert value(scrape(terrine_server), told) == seen, "that one was no good one"


def test_signing_is_told_until_it_fails(
    tmp_path: Path, database_url: str, digits_ensemble: DigitsEnsemble
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    make_checkpoint_key(data / "checkpoint.key")
    with running_server(data, database_url, digits_ensemble, checkpoint_seconds=0.1) as server:
        auditor = Caller(server, server.token("auditor"))
        seen = until(lambda: read(auditor), lambda seen: value(seen, "terrine_signing") == 1)
        first = value(seen, "terrine_signed_timestamp_seconds")
        assert first > value(seen, "process_start_time_seconds")
        until(lambda: value(read(auditor), "terrine_signed_timestamp_seconds") > first)
        key = load_checkpoint_key(data / "checkpoint.key")
        assert key is not None
        newer = Checkpoint(key.name, 10**6, bytes(32)).text
        note = Note(newer, (key.sign(newer),))

        def after_it_went_back() -> Series:
            server.settings.signed_checkpoint_path.write_text(str(note))
            return read(auditor)

        seen = until(after_it_went_back, lambda seen: value(seen, "terrine_signing") == 0)
        last = value(seen, "terrine_signed_timestamp_seconds")
        assert first < last == value(read(auditor), "terrine_signed_timestamp_seconds")


def test_a_server_without_the_logs_key_says_that_it_does_not_sign(
    terrine_server: RunningServer,
) -> None:
    assert not terrine_server.settings.checkpoint_key_path.exists()
    seen = scrape(terrine_server)
    assert value(seen, "terrine_signing") == value(seen, "terrine_signed_timestamp_seconds") == 0
