"""The dashboard and the alerts: they ask for what a server exports, and say what is wrong.

Prometheus's own programs are used where they are on this machine.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.clients import Caller
from support.data import DigitsEnsemble
from support.processes import PATIENCE_SECONDS, held_port, run_program, until
from support.servers import LOG, RunningServer, running_server, witness_key

REPOSITORY = Path(__file__).resolve().parents[2]
MONITORING = REPOSITORY / "charts" / "terrine" / "files" / "monitoring"
ALERTS: list[dict[str, Any]] = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"][
    0
]["rules"]
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
OF_PROMETHEUS = {"job", "instance", "namespace", "alertname", "alertstate", "severity"}
"""Labels that Prometheus adds, and those of its own metrics."""


@dataclass(frozen=True)
class Question:
    """An expression of the dashboard or of an alert, and the labels that its text names."""

    where: str
    text: str
    shown: frozenset[str]


def questions() -> Iterator[Question]:
    for alert in ALERTS:
        text = " ".join(alert["annotations"].values())
        labels = frozenset(re.findall(r"\$labels\.(\w+)", text))
        yield Question(alert["alert"], alert["expr"], labels)
    for panel in PANELS:
        for target in panel.get("targets", []):
            labels = frozenset(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            yield Question(panel["title"], target["expr"], labels)


QUESTIONS = list(questions())


@pytest.fixture
def watched(
    tmp_path: Path, database_url: str, digits_ensemble: DigitsEnsemble
) -> Iterator[RunningServer]:
    """A server that has answered and refused, backed up, and whose witness cosigns nothing."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "checkpoint.key").write_text(LOG.secret)
    witness = f"witness w {witness_key('w').verifier} http://127.0.0.1:1"
    (data / "policy").write_text(f"log {LOG.verifier}\n{witness}\nquorum w\n")
    with running_server(data, database_url, digits_ensemble, checkpoint_seconds=0.1) as server:
        server.open_project()
        student = Caller(server, server.token())
        student.label(server.ensemble.public[:3])
        student.http.get("/nowhere")
        until(lambda: server.ledger.tree.checkpoint() is not None)
        server.settings.last_backup_path.touch()
        yield server


def samples(server: RunningServer) -> dict[str, list[dict[str, str]]]:
    """The labels of every sample, by its name."""
    found: dict[str, list[dict[str, str]]] = {}
    reply = Caller(server, server.token("auditor")).http.get("/metrics")
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def test_every_question_is_about_what_a_server_exports(watched: RunningServer) -> None:
    """Its metrics, the labels by which it sums up or that it shows, and the values it chooses."""
    exported = samples(watched)
    for question in QUESTIONS:
        names = set(re.findall(r"\b(?:terrine|process)_\w+", question.text))
        assert names <= exported.keys(), question.where
        there = {pair for name in names for labels in exported[name] for pair in labels.items()}
        for label, values in re.findall(r'(\w+)=~?"([^"$]+)"', question.text):
            asked = {(label, value) for value in values.split("|")}
            assert label in OF_PROMETHEUS or asked <= there, question.where
        by = {
            each
            for found in re.findall(r"by \(([^)]+)\)", question.text)
            for each in found.split(", ")
        }
        known = {label for label, _ in there} | OF_PROMETHEUS
        assert by <= known, question.where
        assert question.shown <= (by or known), question.where


def test_each_alert_says_how_bad_it_is_what_happened_and_what_to_do() -> None:
    names = [alert["alert"] for alert in ALERTS]
    assert len(set(names)) == len(names)
    handbook = (REPOSITORY / "docs" / "operating.md").read_text()
    assert re.findall(r"^\| `(Terrine\w+)` \|", handbook, re.MULTILINE) == names
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert alert["annotations"].keys() == {"summary", "description"}


def test_each_panel_has_a_place_of_its_own_and_asks_the_prometheus_that_was_chosen() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken = set[tuple[int, int]]()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
        for asked in [panel, *panel.get("targets", [])] if panel["type"] != "row" else []:
            assert asked["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def program(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"NO {name.upper()} on this machine: alerts and dashboard are only parsed.")
    return found


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [program("promtool"), *map(str, arguments)]
    return run_program(*command)


HEALTHY = {
    'up{job="terrine",instance="a"}': "1",
    'up{job="terrine",instance="b"}': "1",
    'terrine_ready{job="terrine",instance="a"}': "1",
    'terrine_ledger_restored{job="terrine",instance="a"}': "0",
    'terrine_signing{job="terrine",instance="a"}': "1",
    'terrine_signing{job="terrine",instance="b"}': "0",
    'terrine_signed_timestamp_seconds{job="terrine",instance="a"}': "0+60",
    'terrine_log_cosigned{job="terrine",instance="a",witness="w"}': "1",
    'terrine_data_disk_low{job="terrine",instance="a"}': "0",
    'terrine_backup_timestamp_seconds{job="terrine",instance="a"}': "0+60",
    'terrine_project_epsilon{job="terrine",instance="a",project="p"}': "1",
    'terrine_project_epsilon_spent{job="terrine",instance="a",project="p"}': "0.89",
    'terrine_project_charges{job="terrine",instance="a",project="p"}': "2",
    **{
        f'terrine_problems_total{{job="terrine",instance="a",problem="{problem}"}}': "0"
        for problem in ("internal", "overloaded", "database-unavailable", "not-found")
    },
    **{
        f'terrine_stage_seconds_bucket{{job="terrine",stage="{stage}",le="{le}"}}': "0+100"
        for stage in ("charge", "vote")
        for le in ("1", "10", "30", "+Inf")
    },
}
"""Series of a service in which nothing is wrong: a value, or `start+step` by the minute."""


def of(name: str, **labels: str) -> str:
    """The series of HEALTHY with this name and these labels."""
    (found,) = (
        series
        for series in HEALTHY
        if series.startswith(name + "{")
        and all(f'{key}="{value}"' in series for key, value in labels.items())
    )
    return found


PROBLEMS = "terrine_problems_total"
BUCKETS = "terrine_stage_seconds_bucket"
WRONG: dict[str, tuple[dict[str, str], list[str]]] = {
    "nothing": ({}, []),
    "a server down": ({of("up", instance="b"): "0"}, ["TerrineServerDown"]),
    "all servers down": (
        {of("up", instance=each): "0" for each in "ab"},
        ["TerrineServerDown", "TerrineServerDown", "TerrineUnreachable"],
    ),
    "no server found": ({of("up", instance=each): "" for each in "ab"}, ["TerrineUnreachable"]),
    "not ready": ({of("terrine_ready"): "0"}, ["TerrineNotReady"]),
    "not ready, and slow to say so": (
        {of("terrine_ready"): " ".join(["0 _"] * 120)},
        ["TerrineNotReady"],
    ),
    "restored": ({of("terrine_ledger_restored"): "1"}, ["TerrineLedgerRestored"]),
    "a defect": ({of(PROBLEMS, problem="internal"): "0+1"}, ["TerrineErrors"]),
    "no database": (
        {of(PROBLEMS, problem="database-unavailable"): "0+1"},
        ["TerrineDatabaseUnavailable"],
    ),
    "mistakes of students": ({of(PROBLEMS, problem="not-found"): "0+1000"}, []),
    "too much asked": ({of(PROBLEMS, problem="overloaded"): "0+60"}, ["TerrineOverloaded"]),
    "slow charges": ({of(BUCKETS, stage="charge", le="1"): "0+90"}, ["TerrineDatabaseSlow"]),
    "slow votes": (
        {of(BUCKETS, stage="vote", le=le): "0+90" for le in ("1", "10")},
        ["TerrineVotesSlow"],
    ),
    "no key": (
        {of("terrine_signing", instance="a"): "0", of("terrine_signed_timestamp_seconds"): "0"},
        ["TerrineNothingSigned"],
    ),
    "signing hangs": ({of("terrine_signed_timestamp_seconds"): "60"}, ["TerrineNothingSigned"]),
    "no cosignature": ({of("terrine_log_cosigned"): "0"}, ["TerrineNotCosigned"]),
    "an old backup": ({of("terrine_backup_timestamp_seconds"): "-172801"}, ["TerrineBackupOld"]),
    "a full disk": ({of("terrine_data_disk_low"): "1"}, ["TerrineDiskNearlyFull"]),
    "nearly spent": ({of("terrine_project_epsilon_spent"): "0.9"}, ["TerrineBudgetNearlySpent"]),
    "spent by its first charge, and free": (
        {of("terrine_project_epsilon_spent"): "1", of("terrine_project_charges"): "1"},
        [],
    ),
}
"""What is different when something is wrong, and which alerts fire then."""


def scenario(name: str, changed: dict[str, str], expected: list[str]) -> dict[str, Any]:
    """What promtool is to see fire, in its own words."""
    hours = 3
    series = [
        {"series": name, "values": value if " " in value else f"{value}x{60 * hours + 60}"}
        for name, given in (HEALTHY | changed).items()
        if (value := given if "+" in given or not given.isdigit() else f"{given}+0")
    ]
    samples = [
        {"labels": f'{{alertname="{alert}"}}', "value": len(list(alerts))}
        for alert, alerts in groupby(sorted(expected))
    ]
    asked = 'count by (alertname) (ALERTS{alertstate="firing"})'
    firing = {"expr": asked, "eval_time": f"{hours}h", "exp_samples": samples}
    return {"name": name, "interval": "1m", "input_series": series, "promql_expr_test": [firing]}


def test_each_alert_fires_when_it_should_and_no_other_does(tmp_path: Path) -> None:
    tests = [scenario(name, *wrong) for name, wrong in WRONG.items()]
    asked = {"rule_files": [str(MONITORING / "alerts.yaml")], "evaluation_interval": "5m"}
    test = tmp_path / "test.yaml"
    test.write_text(yaml.safe_dump({**asked, "tests": tests}))
    done = promtool("test", "rules", test)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_was_seen_to_fire() -> None:
    assert set.union(*(set(names) for _, names in WRONG.values())) == {
        alert["alert"] for alert in ALERTS
    }


def ready(http: httpx.Client) -> bool:
    try:
        return http.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def prometheus(directory: Path, server: RunningServer) -> Iterator[httpx.Client]:
    """Run Prometheus as the profile `monitoring` does, but for where the server is."""
    config = yaml.safe_load((REPOSITORY / "docker" / "monitoring" / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(config["global"], "1s")
    config["rule_files"] = [str(MONITORING / name) for name in config["rule_files"]]
    (scraped,) = config["scrape_configs"]
    assert scraped.pop("dns_sd_configs")[0]["names"][0] == "server"
    scraped["static_configs"] = [{"targets": [server.url.removeprefix("http://")]}]
    token = directory / "token"
    token.write_text(server.token("auditor") + "\n")
    scraped["authorization"]["credentials_file"] = str(token)
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    checked = promtool("check", "config", file)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    held = held_port()
    address = f"127.0.0.1:{held.getsockname()[1]}"
    command = [
        program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'series'}",
        f"--web.listen-address={address}",
    ]
    with held, (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://{address}", timeout=PATIENCE_SECONDS) as http:
                until(lambda: ready(http))
                yield http
        finally:
            process.kill()
            process.wait()


def test_a_real_prometheus_answers_every_panel(watched: RunningServer, tmp_path: Path) -> None:
    student = Caller(watched, watched.token())

    with prometheus(tmp_path, watched) as http:
        panels = {each for each in QUESTIONS if each.where in {p["title"] for p in PANELS}}
        for question in panels:

            def answer(question: Question = question) -> list[Any]:
                student.http.get("/nowhere")
                student.label(watched.ensemble.public[:3])
                text = question.text.replace("$__rate_interval", "5m").replace("$namespace", ".*")
                asked = {"query": text}
                reply = http.get("/api/v1/query", params=asked).json()
                assert reply["status"] == "success", (question.where, reply)
                found: list[Any] = reply["data"]["result"]
                return found

            until(answer)
        rules = http.get("/api/v1/rules").json()["data"]["groups"][0]["rules"]
        assert {rule["name"]: rule["health"] for rule in rules} == {
            alert["alert"]: "ok" for alert in ALERTS
        }
