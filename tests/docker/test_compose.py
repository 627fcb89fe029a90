"""`docker compose up`, for real: build, serve on PostgreSQL, answer, restart, remember."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from sklearn.datasets import load_digits

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Composition:
    """One run of docker-compose.yml, with a name, a port and secrets of its own."""

    files: tuple[Path, ...]
    environment: dict[str, str]
    url: str

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        files = [part for file in self.files for part in ("--file", str(file))]
        return subprocess.run(
            ["docker", "compose", *files, *map(str, arguments)],
            cwd=REPOSITORY,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def succeed(self, *arguments: str | Path) -> str:
        done = self(*arguments)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def terrine(self, *arguments: str) -> str:
        """Run `terrine` in a container of its own, beside the server's."""
        return self.succeed("run", "--rm", "--no-TTY", "server", *arguments)


@pytest.fixture(scope="module")
def engine() -> None:
    if shutil.which("docker") is None:
        pytest.skip("NO DOCKER ENGINE: docker is not installed. The images are not tested here.")
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        if asked.returncode != 0:
            pytest.skip(f"NO DOCKER ENGINE: {' '.join(command)}: {asked.stderr.strip()}")


@pytest.fixture(scope="module")
def compose(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composition]:
    """The composition, up and healthy; removed with its volumes and image afterwards."""
    directory = tmp_path_factory.mktemp("compose")
    for name in ("db_password", "secret_key"):
        (directory / name).write_text(secrets.token_hex(32))
        (directory / name).chmod(0o444)
    name = f"terrine-test-{secrets.token_hex(4)}"
    override = directory / "override.yml"
    override.write_text(
        f"""
services:
  migrate: {{image: "{name}"}}
  server: {{image: "{name}"}}
secrets:
  db_password: {{file: "{directory}/db_password"}}
  secret_key: {{file: "{directory}/secret_key"}}
"""
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    composition = Composition(
        files=(REPOSITORY / "docker-compose.yml", override),
        environment=os.environ | {"COMPOSE_PROJECT_NAME": name, "TERRINE_PORT": str(port)},
        url=f"http://127.0.0.1:{port}",
    )
    try:
        composition.succeed("build")
        composition.succeed("up", "--detach", "--wait")
        yield composition
    finally:
        composition("down", "--volumes", "--timeout", "10")
        subprocess.run(["docker", "image", "rm", name], capture_output=True, check=False)


@pytest.fixture(scope="module")
def digits(compose: Composition, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Train and register teachers inside; returns images that they have not seen."""
    data = load_digits()
    images = data.images.astype(np.uint8)
    file = tmp_path_factory.mktemp("private") / "digits.npz"
    names = [str(name) for name in range(10)]
    np.savez(file, x=images[:1200], y=data.target[:1200], classes=names)
    file.chmod(0o444)
    compose.succeed(
        *("run", "--rm", "--no-TTY", "--volume", f"{file}:/input/digits.npz:ro", "server"),
        *("ensemble", "train", "/input/digits.npz", "--name", "digits", "--teachers", "20"),
    )
    compose.terrine("ensemble", "register", "digits", "--epsilon", "20", "--delta", "1e-4")
    unseen: np.ndarray = images[1200:]
    return unseen


def student(compose: Composition, project: str) -> httpx.Client:
    compose.terrine(
        *("project", "open", project, "--ensemble", "digits", "--mechanism", "gnmax"),
        *("--sigma", "4", "--epsilon", "8", "--delta", "1e-5"),
    )
    token = compose.terrine("token", "create", "--role", "student", "--project", project).strip()
    return httpx.Client(
        base_url=compose.url, headers={"Authorization": f"Bearer {token}"}, timeout=60
    )


def auditor(compose: Composition) -> httpx.Client:
    token = compose.terrine("token", "create", "--role", "auditor").strip()
    return httpx.Client(base_url=compose.url, headers={"Authorization": f"Bearer {token}"})


def test_a_query_is_answered_charged_and_remembered_across_a_restart(
    compose: Composition, digits: np.ndarray
) -> None:
    question = {"inputs": digits[:5].tolist()}
    with student(compose, "study") as http:
        first = http.post("/label", json=question)
        assert first.status_code == 200, first.text
        assert [result["outcome"] for result in first.json()["results"]] == ["answered"] * 5
        assert first.json()["budget"]["charges"] == 5

        compose.succeed("restart", "server")
        compose.succeed("up", "--detach", "--wait", "server")
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
        (account,) = http.get("/ledger").json()["items"]
        assert account["spent"] == first.json()["budget"]["spent"]


def test_migrating_again_changes_nothing(compose: Composition) -> None:
    compose.terrine("init")
    assert httpx.get(f"{compose.url}/readyz").json() == {"status": "ready"}


def test_the_server_has_no_rights_that_it_does_not_need(compose: Composition) -> None:
    look = "id -u; touch /opt/x || echo read-only; grep CapEff /proc/self/status"
    said = compose.succeed("exec", "--no-TTY", "server", "sh", "-c", look)
    user, root_fs, capabilities = said.split("\n")[:3]
    assert (user, root_fs) == ("10001", "read-only")
    assert int(capabilities.split()[1], 16) == 0


def test_the_image_has_no_compiler_and_no_cuda(compose: Composition) -> None:
    compose.succeed(
        *("exec", "--no-TTY", "server", "sh", "-c"),
        "! command -v gcc && ! command -v cc && ! command -v g++ && ! command -v curl",
    )
    cuda = "import torch; print(torch.version.cuda)"
    assert compose.succeed("exec", "--no-TTY", "server", "python", "-c", cuda).strip() == "None"


def test_no_secret_is_in_the_environment(compose: Composition) -> None:
    containers = compose.succeed("ps", "--all", "--quiet").split()
    inspected = subprocess.run(
        ["docker", "inspect", *containers], capture_output=True, text=True, check=True
    ).stdout
    for name in ("db_password", "secret_key"):
        assert (compose.files[1].parent / name).read_text() not in inspected


def test_the_server_stops_when_told_to(compose: Composition) -> None:
    compose.succeed("stop", "server")
    code = compose.succeed("ps", "--all", "--format", "{{.ExitCode}}", "server").strip()
    assert code in ("0", "143"), "137 would be killed, not stopped"
    assert "Finished server process" in compose.succeed("logs", "--no-color", "server")
    compose.succeed("up", "--detach", "--wait")
    assert httpx.get(f"{compose.url}/healthz").status_code == 200
