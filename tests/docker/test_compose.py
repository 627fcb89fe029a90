"""A real `docker compose up`: build, serve on PostgreSQL, answer, restart, replicate."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from support.documents import ROOT
from support.processes import run_program, until
from support.servers import REPOSITORY, SECRETS, Composition, composed, docker
from support.wording import holds, says

COMMAND = re.compile(r"^  ((?:docker compose|tar|TERRINE_URL=\S+) .*?)\s*$", re.MULTILINE)
"""A line to be typed, as commands print it."""
pytestmark = [pytest.mark.docker, pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def fresh(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composition]:
    with composed(tmp_path_factory.mktemp("compose")) as composition:
        yield composition


@pytest.fixture(scope="module")
def first_start(fresh: Composition) -> subprocess.CompletedProcess[str]:
    """What a newcomer's first `docker compose up` printed."""
    return fresh("up", "--detach", "--wait")


@pytest.fixture(scope="module")
def compose(fresh: Composition, first_start: subprocess.CompletedProcess[str]) -> Composition:
    """The composition, up and healthy."""
    assert first_start.returncode == 0, first_start.stdout + first_start.stderr
    assert httpx.get(f"{fresh.url}/readyz").json()["status"] == "ready", "at once"
    return fresh


@pytest.fixture(scope="module")
def digits(compose: Composition, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return compose.with_teachers(tmp_path_factory.mktemp("private"))


def student(compose: Composition, project: str) -> httpx.Client:
    return compose.student(project, "digits")


def auditor(compose: Composition) -> httpx.Client:
    token = compose.terrine("token", "create", "--role", "auditor").strip()
    return httpx.Client(base_url=compose.url, headers={"Authorization": f"Bearer {token}"})


def test_without_secrets_it_says_what_to_run(engine: None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SECRETS_DIR"}
    asked = run_program(
        "docker",
        "compose",
        "--env-file",
        os.devnull,
        "up",
        "--detach",
        cwd=REPOSITORY,
        env=environment,
    )
    assert asked.returncode != 0
    assert "first run `make secrets`" in asked.stderr


def test_the_first_start_builds_each_image_once_and_looks_for_none_elsewhere(
    compose: Composition, first_start: subprocess.CompletedProcess[str]
) -> None:
    said = first_start.stdout + first_start.stderr
    assert not says(said, "pull", "denied")
    assert "Warning" not in said
    exported = re.findall(r"^#\d+ (?:\[(\w+)\] )?exporting to image$", said, re.MULTILINE)
    assert sorted(exported) == ["migrate", "proxy"]
    assert "Built" not in compose("up", "--detach", "--wait").stderr


def test_a_query_is_answered_charged_and_replayed_after_a_restart(
    compose: Composition, digits: np.ndarray
) -> None:
    question = {"inputs": digits[:5].tolist()}
    with student(compose, "study") as http:
        first = http.post("/label", json=question)
        assert first.status_code == 200, first.text
        assert [result["outcome"] for result in first.json()["results"]] == ["answered"] * 5
        assert first.json()["budget"]["charges"] == 5

        compose.succeed("restart", "server")
        compose.start_again()
        again = http.post("/label", json=question)
        assert again.status_code == 200, again.text

    labels = [[result["label"] for result in said.json()["results"]] for said in (first, again)]
    assert labels[0] == labels[1]
    assert all(result["replayed"] for result in again.json()["results"])
    assert again.json()["budget"]["spent"] == first.json()["budget"]["spent"] > 0

    with auditor(compose) as http:
        charges = http.get("/ledger/study").json()["items"]
        assert [charge["seq"] for charge in charges] == [1, 2, 3, 4, 5]
        assert http.get("/ledger/study/verify").json()["ok"] is True
        accounts = http.get("/ledger").json()["items"]
        (account,) = (each for each in accounts if each["project"] == "study")
        assert account["spent"] == first.json()["budget"]["spent"]


def test_the_doctor_finds_no_problem_in_a_container(compose: Composition) -> None:
    report = compose.terrine("doctor")
    holds(report, "problems", "found")
    holds(report, "terrine_service", "add", "not")


@pytest.mark.usefixtures("digits")  # first: without a population's name they are of the only one
def test_what_is_printed_inside_is_typed_outside(compose: Composition, tmp_path: Path) -> None:
    """Quickstart to a student: each command as the one before printed it, and none by hand."""
    run_program(sys.executable, str(ROOT / "docs/tutorials/stays.py"), cwd=tmp_path, check=True)
    for file, count in (("export.csv", 3_000), ("published.csv", 800)):  # which is quicker
        rows = (tmp_path / file).read_text().splitlines(keepends=True)
        (tmp_path / file).write_text("".join(rows[: count + 1]))
    send = "tar --create export.csv published.csv | docker compose run --rm --no-TTY with-files"
    asked = "quickstart export.csv --public published.csv --label readmitted --group patient_id"
    asked += " --population patients --disjoint"  # there are digits, of records, already
    asked += " --anyway"  # their own labels do as well
    rehearsed = compose.type_in(f"{send} {asked} --epsilon 8 --name stays --dry-run", tmp_path)
    (opens,) = COMMAND.findall(rehearsed)
    said = compose.type_in(f"{opens} --name stays --verbose", tmp_path)
    init, proposes, trains, registers, opening, token, serves, learns = COMMAND.findall(said)
    holds(compose.type_in(init, tmp_path), "ledger", "ready")
    for once in (proposes, trains):  # of what is there by now, another
        compose.type_in(re.sub(r"stays(?=-schema|\s)", "again", once), tmp_path)
    for once in (registers, opening):  # done by now, and only once
        assert once.split()[:5] == ["docker", "compose", "exec", "server", "terrine"]
    assert re.search(r"terrine_[0-9a-f]{16}_", compose.type_in(token, tmp_path))
    compose.type_in(serves, tmp_path)
    assert f"TERRINE_URL={compose.url} " in learns
    here = learns.replace(" terrine ", f" {sys.executable} -m terrine_server ")
    compose.type_in(f"{here} --out student", tmp_path)


def test_the_server_has_only_the_rights_that_it_needs(compose: Composition) -> None:
    look = "id -u; touch /opt/x || echo read-only; grep CapEff /proc/self/status"
    said = compose.succeed("exec", "--no-TTY", "server", "sh", "-c", look)
    user, root_fs, capabilities = said.split("\n")[:3]
    assert (user, root_fs) == ("10001", "read-only")
    assert int(capabilities.split()[1], 16) == 0


def test_the_image_has_no_compiler_and_no_cuda(compose: Composition) -> None:
    compose.succeed(
        "exec",
        "--no-TTY",
        "server",
        "sh",
        "-c",
        "! command -v gcc && ! command -v cc && ! command -v g++ && ! command -v curl",
    )
    cuda = "import torch; print(torch.version.cuda)"
    assert compose.succeed("exec", "--no-TTY", "server", "python", "-c", cuda).strip() == "None"


def test_the_image_is_as_large_as_the_documentation_says(compose: Composition) -> None:
    page = (REPOSITORY / "docs" / "deploying.md").read_text()
    stated = re.search(r"adds ([\d.]+) GB, of which PyTorch is ([\d.]*\d)", page)
    assert stated is not None
    image = compose.environment["COMPOSE_PROJECT_NAME"]
    layers = docker("history", "--no-trunc", "--human=false", "--format", "{{json .}}", image)
    ours = [
        layer for layer in map(json.loads, layers.splitlines()) if "terrine" in layer["CreatedBy"]
    ]
    assert sum(int(layer["Size"]) for layer in ours) == pytest.approx(
        1e9 * float(stated[1]), rel=0.03
    )
    measure = "import torch; print(torch.__path__[0])"
    (torch,) = compose.succeed("exec", "--no-TTY", "server", "python", "-c", measure).split()
    size = compose.succeed("exec", "--no-TTY", "server", "du", "--summarize", "--bytes", torch)
    assert int(size.split()[0]) == pytest.approx(1e9 * float(stated[2]), rel=0.03)


def test_no_secret_is_in_the_environment(compose: Composition) -> None:
    containers = compose.succeed("ps", "--all", "--quiet").split()
    inspected = docker("inspect", *containers)
    for name in SECRETS:
        assert (compose.files[1].parent / name).read_text() not in inspected


def test_the_server_stops_on_request(compose: Composition) -> None:
    compose.succeed("stop", "server")
    code = compose.succeed("ps", "--all", "--format", "{{.ExitCode}}", "server").strip()
    assert code in ("0", "143"), "137 would be killed, not stopped"
    holds(compose.succeed("logs", "--no-color", "server"), "Finished", "server", "process")
    refused = httpx.get(f"{compose.url}/healthz")
    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/overloaded")
    assert refused.headers["Retry-After"] == "2"
    compose.start_again()


# ------------------------------------------------------------------------------ proxy and replicas


def test_strangers_meet_the_proxy_and_nobody_else(compose: Composition) -> None:
    published = compose.succeed("ps", "--format", "{{.Service}} {{.Ports}}").splitlines()
    assert [line.split()[0] for line in published if "->" in line] == ["proxy"]

    address = urlsplit(compose.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as stranger:
        stranger.sendall(b"GET /healthz HTTP/1.1\r\nHost: terrine\r\nX-Slow: ")
        assert b"408 Request Time-out" in stranger.recv(4096), "the server itself says nothing"


def test_one_server_shows_its_metrics_through_the_proxy(compose: Composition) -> None:
    with auditor(compose) as http:
        assert "terrine_requests" in http.get("/metrics").text
    assert httpx.get(f"{compose.url}/metrics").status_code == 401


@pytest.fixture
def replicas(compose: Composition, digits: np.ndarray) -> Iterator[list[str]]:
    """Three servers behind the proxy, instead of one; yields their containers."""
    replace(compose, environment=compose.environment | {"REPLICAS": "3"}).start_again()
    containers = compose.succeed("ps", "--quiet", "server").split()

    def each_is_found() -> bool:
        httpx.get(f"{compose.url}/problems")
        return all(answered_by(container, "/problems") > 0 for container in containers)

    until(each_is_found)
    yield containers
    compose.start_again()


def answered_by(replica: str, route: str) -> int:
    """Return how many requests to a route a replica has logged."""
    logged = run_program("docker", "logs", replica, check=True)
    lines = [json.loads(line) for line in logged.stderr.splitlines()]
    return sum(line.get("route") == route for line in lines)


def test_replicas_share_the_load_and_one_may_fail(
    compose: Composition, digits: np.ndarray, replicas: list[str]
) -> None:
    assert len(replicas) == 3
    with student(compose, "replicated") as http:
        affordable = http.get("/budget").json()["affordable"]
        assert 10 < affordable < len(digits)
        headers = http.headers

    def ask(number: int) -> int:
        question = {"inputs": digits[number : number + 1].tolist()}
        reply = httpx.post(f"{compose.url}/label", json=question, headers=headers, timeout=60)
        return reply.status_code

    with ThreadPoolExecutor(8) as pool:
        statuses = pool.map(ask, range(affordable))
        next(statuses)
        subprocess.run(["docker", "kill", replicas[0]], capture_output=True, check=True)
        lost = Counter(statuses)[502]
    assert lost <= 8, "no more than what the killed one was working on"
    assert {ask(number) for number in range(affordable)} == {200}
    assert answered_by(replicas[1], "/label") > 0
    assert answered_by(replicas[2], "/label") > 0
    with auditor(compose) as http:
        assert http.get("/ledger/replicated/verify").json()["ok"] is True
        assert http.get("/metrics").status_code == 404, "each replica counts for itself"


def test_the_proxy_ignores_forged_addresses_unless_configured_to_trust_them(
    compose: Composition, replicas: list[str]
) -> None:
    allowed = 30 * len(replicas)  # failed logins per minute; each replica counts separately

    def failed_logins(most: int) -> Iterator[int]:
        with httpx.Client(base_url=compose.url) as http:
            for n in range(most):
                address = f"192.0.{n // 256}.{n % 256}"
                yield http.get("/budget", headers={"X-Forwarded-For": address}).status_code

    # However slow this machine is: the limit is refilled while it asks.
    assert 429 in failed_logins(20 * allowed), "all came from one address, whatever they said"
    trusting = compose.environment | {"TERRINE_FORWARDED_ALLOW_IPS": "127.0.0.1,0.0.0.0/0"}
    proxy = ("up", "--detach", "--wait", "--no-deps", "proxy")
    replace(compose, environment=trusting).succeed(*proxy)
    assert set(failed_logins(allowed + 10)) == {401}
