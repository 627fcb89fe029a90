"""`docker compose --profile owners` and `--profile ray`: votes from other containers, for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import httpx
import numpy as np
import pytest

from support.processes import run_program
from support.servers import REPOSITORY, Composition, composed, docker
from support.wording import holds

pytestmark = [pytest.mark.docker, pytest.mark.nightly, pytest.mark.timeout(1800)]

OWNERS = ("owner-1", "owner-2", "owner-3")
SETUP = REPOSITORY / "docker" / "owners" / "setup.py"
RIGHTS = "id -u; touch /opt/x || echo read-only; grep -E 'CapEff|NoNewPrivs' /proc/1/status"
UP = ("up", "--detach", "--wait")


def set_up(directory: Path, *arguments: str, **variables: str) -> None:
    """Run what `make owners` and `make owners-demo` run."""
    command = [sys.executable, str(SETUP), *arguments]
    done = subprocess.run(command, cwd=directory, env=os.environ | variables, check=False)
    assert done.returncode == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which `make owners` was run."""
    directory = tmp_path_factory.mktemp("profiles")
    set_up(directory)
    return directory


@pytest.fixture(scope="module")
def composition(engine: None, made: Path) -> Iterator[Composition]:
    """One composition for both profiles, one after the other."""
    images = dict.fromkeys(OWNERS, "") | dict.fromkeys(
        ("ray-head", "ray-worker", "server-ray"), "-ray"
    )
    file = str(made / "owners" / "compose.yml")
    with composed(made, images, OWNERS_FILE=file, COMPOSE_PROFILES="owners,ray") as composition:
        yield composition


@pytest.fixture(scope="module")
def owners(composition: Composition, made: Path) -> Composition:
    """Owners who are up, with the teachers of `make owners-demo`, and gathered."""
    files = ":".join(map(str, composition.files))
    composition.succeed("build", "migrate")
    set_up(made, "--demo", **composition.environment, COMPOSE_FILE=files)
    composition.succeed("--profile", "owners", *UP)
    given = f"{made / 'owners' / 'for-the-service'}:/owners:ro"
    said = composition.succeed(
        "run",
        "--rm",
        "--no-TTY",
        "--no-deps",
        "--volume",
        given,
        "server",
        "federation",
        "gather",
        "/owners/owners.toml",
        "--name",
        "districts",
    )
    for owner in OWNERS:
        holds(said, owner, "yes")
    composition.terrine("ensemble", "register", "districts", "--epsilon", "20", "--delta", "1e-4")
    return composition


def ask(http: httpx.Client, number: int) -> httpx.Response:
    """Ask about two images that nobody asked about before."""
    inputs = np.full((2, 8, 8), number, np.uint8)
    inputs[1, 0] = 16
    return http.post("/label", json={"inputs": inputs.tolist()})


def logged(composition: Composition, service: str) -> list[dict[str, Any]]:
    """What the one container of a service has logged; Ray's own lines are no JSON."""
    (container,) = composition.succeed("ps", "--all", "--quiet", service).split()
    said = run_program("docker", "logs", container, check=True)
    return [json.loads(line) for line in said.stderr.splitlines() if line.startswith("{")]


def reached(composition: Composition, service: str, *others: tuple[str, int]) -> list[str]:
    """Which of these hosts and ports a service's container can connect to."""
    program = (
        "import socket, sys\n"
        f"for host, port in {others!r}:\n"
        "    try:\n"
        "        socket.create_connection((host, port), 2).close()\n"
        "        print(host)\n"
        "    except OSError:\n"
        "        pass\n"
    )
    return composition.succeed("exec", "--no-TTY", service, "python", "-c", program).split()


def test_before_make_owners_the_profile_says_what_to_run(engine: None, tmp_path: Path) -> None:
    environment = os.environ | {"SECRETS_DIR": str(tmp_path)}
    command = ["docker", "compose", "--env-file", os.devnull, "--profile", "owners", *UP]
    asked = run_program(*command, cwd=REPOSITORY, env=environment)
    assert asked.returncode != 0
    assert "first run `make owners`" in asked.stderr


def test_owners_answer_are_charged_and_may_fail_down_to_the_quorum(owners: Composition) -> None:
    with owners.student("study", "districts") as http:
        first = ask(http, 1)
        assert first.status_code == 200, first.text
        assert [each["outcome"] for each in first.json()["results"]] == ["answered"] * 2
        assert first.json()["budget"]["charges"] == 2

        owners.succeed("kill", "owner-2")
        assert ask(http, 2).json()["budget"]["charges"] == 4
        owners.succeed("kill", "owner-1")
        refused = ask(http, 3)
        assert (refused.status_code, refused.json()["type"]) == (
            503,
            "/problems/ensemble-unavailable",
        )
        assert http.get("/budget").json()["charges"] == 4
        lines = logged(owners, "server")
        absent = [line["owners"] for line in lines if line["event"] == "owners absent"]
        assert absent == [["owner-2"], ["owner-1", "owner-2"]]

        owners.succeed("--profile", "owners", *UP)
        assert ask(http, 3).json()["budget"]["charges"] == 6
    assert "intact" in owners.terrine("ledger", "verify", "study")


def test_an_owner_is_reached_by_servers_alone_and_reaches_nothing_that_is_private(
    owners: Composition,
) -> None:
    others = (("db", 5432), ("proxy", 8000), ("192.0.2.1", 443))
    assert reached(owners, "owner-1", *others) == []
    assert reached(owners, "server", ("db", 5432), *((owner, 8100) for owner in OWNERS)) == [
        "db",
        *OWNERS,
    ]
    published = owners.succeed("ps", "--format", "{{.Service}} {{.Ports}}").splitlines()
    assert [line.split()[0] for line in published if "->" in line] == ["proxy"]
    mounted = owners.succeed("exec", "--no-TTY", "owner-1", "ls", "/run/secrets").split()
    assert mounted == ["certificate", "key", "token"]
    said = owners.succeed("exec", "--no-TTY", "owner-1", "sh", "-c", RIGHTS).split()
    assert said == ["10001", "read-only", "CapEff:", "0" * 16, "NoNewPrivs:", "1"]


@pytest.fixture(scope="module")
def cluster(owners: Composition, made: Path) -> Composition:
    """A Ray cluster beside them, and teachers in the server; the owners have left."""
    owners.succeed("stop", *OWNERS)
    owners.with_teachers(made)
    owners.succeed("--profile", "ray", *UP)
    return owners


def answered_by(composition: Composition, service: str) -> int:
    """How many requests for labels a service has answered."""
    lines = logged(composition, service)
    return sum((line.get("route"), line.get("status")) == ("/label", 200) for line in lines)


def test_a_cluster_votes_and_goes_on_when_a_worker_is_killed(cluster: Composition) -> None:
    before = answered_by(cluster, "server")
    with cluster.student("far", "digits") as http:
        first = ask(http, 1)
        assert first.status_code == 200, first.text
        assert first.json()["budget"]["charges"] == 2

        worker = cluster.succeed("ps", "--quiet", "ray-worker").split()[0]
        docker("kill", worker)
        for _ in range(20):  # until Ray has noticed, requests may be refused, uncharged
            after = ask(http, 2)
            if after.status_code == 200:
                break
            assert after.json()["type"] == "/problems/ensemble-unavailable"
            sleep(2)
        assert after.json()["budget"]["charges"] == 4

        cluster.succeed("--profile", "ray", *UP)
        assert ask(http, 3).json()["budget"]["charges"] == 6
        assert answered_by(cluster, "server") == before

        cluster.succeed("restart", "server-ray")
        for number in range(4, 14):  # until the proxy has noticed, others answer
            assert ask(http, number).status_code == 200
            if answered_by(cluster, "server-ray") == 4:
                break
            sleep(2)
        workers = cluster.succeed("ps", "--quiet", "ray-worker").split()
        assert [docker("top", each).count("ray::_Actor") for each in workers] == [1, 1]

        cluster.succeed("stop", "--timeout", "10", "server-ray")
        before, headers = answered_by(cluster, "server"), http.headers
    with httpx.Client(base_url=cluster.url, headers=headers, timeout=90) as http:
        assert ask(http, 15).status_code == 200
    assert answered_by(cluster, "server-ray") == 4
    assert answered_by(cluster, "server") == before + 1, "once no server was on the cluster"
    assert "intact" in cluster.terrine("ledger", "verify", "far")


def test_a_cluster_is_reached_by_its_own_containers_with_their_token(cluster: Composition) -> None:
    assert reached(cluster, "ray-head", ("db", 5432), ("proxy", 8000), ("192.0.2.1", 443)) == []
    assert reached(cluster, "server", ("ray-head", 6379)) == []
    status = ("exec", "--no-TTY", "--env", "RAY_AUTH_MODE=disabled", "ray-head", "ray", "status")
    stranger = cluster(*status, "--address=ray-head:6379")
    assert stranger.returncode != 0
    assert "InvalidAuthToken" in stranger.stdout + stranger.stderr
    for service in ("ray-head", "ray-worker"):
        said = cluster.succeed("exec", "--no-TTY", service, "sh", "-c", RIGHTS).split()
        assert said == ["10001", "read-only", "CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    written = "touch /var/lib/terrine/x || echo refused"
    assert "refused" in cluster.succeed("exec", "--no-TTY", "ray-worker", "sh", "-c", written)
