"""Metrics of the real endpoint, read by Prometheus's own parser."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from caller import Caller, slug
from prometheus_client.parser import text_string_to_metric_families
from server import RunningServer

from terrine_protocol import ProjectStatus

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(server: RunningServer, role: str = "auditor") -> Series:
    reply = Caller(server, server.token(role)).http.get("/metrics")
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


def test_metrics_are_for_auditors_and_admins(terrine_server: RunningServer) -> None:
    terrine_server.open_project()
    assert slug(Caller(terrine_server, None).http.get("/metrics")) == "unauthorized"
    student = Caller(terrine_server, terrine_server.token())
    assert slug(student.http.get("/metrics")) == "forbidden"
    assert scrape(terrine_server, "auditor")
    assert scrape(terrine_server, "admin")


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


def test_requests_and_problems_are_counted_by_route_and_type(
    terrine_server: RunningServer,
) -> None:
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
    assert all(
        dict(labels).get("route") in (None, "(none)") or "hush" not in dict(labels)["route"]
        for _, labels in seen
    )


def test_metrics_of_projects_match_the_accounts_that_students_see(
    terrine_server: RunningServer,
) -> None:
    for name in ("busy", "idle", "closed"):
        terrine_server.open_project(name, epsilon=2.0)
    terrine_server.ledger.set_status("closed", ProjectStatus.CLOSED)
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
    handbook = (Path(__file__).resolve().parents[2] / "docs" / "operating.md").read_text()
    listed = re.findall(r"^\| `(terrine_\w+)` \|", handbook, re.MULTILINE)
    http = Caller(terrine_server, terrine_server.token("auditor")).http
    assert listed == [
        family.name for family in text_string_to_metric_families(http.get("/metrics").text)
    ]


def test_metrics_hold_no_votes_outcomes_of_a_project_or_secrets(
    terrine_server: RunningServer,
) -> None:
    terrine_server.open_project()
    student = Caller(terrine_server, terrine_server.token())
    student.label(terrine_server.ensemble.public[:20])
    known = {
        "terrine_requests_total": {"method", "route", "status"},
        "terrine_request_seconds": {"method", "route"},
        "terrine_stage_seconds": {"stage"},
        "terrine_queries_total": {"outcome", "replayed"},
        "terrine_waiting_queries": set(),
        "terrine_group_requests": set(),
        "terrine_problems_total": {"problem"},
        "terrine_project_": {"project"},
    }
    for name, labels in scrape(terrine_server):
        (kind,) = [known[start] for start in known if name.startswith(start.removesuffix("_total"))]
        assert set(dict(labels)) - {"le"} == kind, name
