"""One run of docker-compose.yml on a real engine, with its own name, port, secrets and images."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import IO

import httpx
import numpy as np
from sklearn.datasets import load_digits

REPOSITORY = Path(__file__).resolve().parents[2]
SECRETS = ("db_password", "service_password", "secret_key")


@dataclass(frozen=True)
class Composition:
    """One run of docker-compose.yml, with its own name, port and secrets."""

    files: tuple[Path, ...]
    environment: dict[str, str]
    url: str

    def __call__(
        self, *arguments: str | Path, stdin: IO[bytes] | None = None
    ) -> subprocess.CompletedProcess[str]:
        files = [part for file in self.files for part in ("--file", str(file))]
        return subprocess.run(
            ["docker", "compose", *files, *map(str, arguments)],
            cwd=REPOSITORY,
            env=self.environment,
            stdin=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    def succeed(self, *arguments: str | Path, stdin: IO[bytes] | None = None) -> str:
        done = self(*arguments, stdin=stdin)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start_again(self) -> None:
        """Start what is not running, and wait until the proxy, which is, has found it."""
        self.succeed("up", "--detach", "--wait")
        until(lambda: httpx.get(f"{self.url}/readyz").status_code == 200)

    def terrine(self, *arguments: str) -> str:
        """Run `terrine` in a separate container, next to the server's."""
        return self.succeed("run", "--rm", "--no-TTY", "--no-deps", "server", *arguments)

    def with_files(self, directory: Path, file: str, *arguments: str) -> str:
        """Run `terrine` beside a file, or a directory, of `directory`."""
        send = ["tar", "--directory", str(directory), "--create", file]
        with subprocess.Popen(send, stdout=subprocess.PIPE) as sent:
            return self.succeed(
                "run", "--rm", "--no-TTY", "with-files", *arguments, stdin=sent.stdout
            )

    def with_teachers(self, directory: Path) -> np.ndarray:
        """Train and register teachers inside; return images that they have not seen."""
        data = load_digits()
        images = data.images.astype(np.uint8)
        file = directory / "digits.npz"
        names = [str(name) for name in range(10)]
        np.savez(file, x=images[:1200], y=data.target[:1200], classes=names)
        file.chmod(0o600)
        train = ("ensemble", "train", file.name, "--name", "digits", "--teachers", "20")
        self.with_files(directory, file.name, *train)
        self.terrine("ensemble", "register", "digits", "--epsilon", "20", "--delta", "1e-4")
        unseen: np.ndarray = images[1200:]
        return unseen

    def student(self, project: str, ensemble: str) -> httpx.Client:
        """Open a project; return what its student asks with, through the proxy."""
        self.terrine(
            "project",
            "open",
            project,
            "--ensemble",
            ensemble,
            "--mechanism",
            "gnmax:sigma=4",
            "--epsilon",
            "8",
            "--delta",
            "1e-5",
        )
        made = self.terrine("token", "create", "--role", "student", "--project", project)
        headers = {"Authorization": f"Bearer {made.strip()}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=90)


def until(met: Callable[[], bool]) -> None:
    for _ in range(60):
        if met():
            return
        sleep(0.5)
    raise AssertionError("not within half a minute")


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def composed(
    directory: Path, images: dict[str, str] | None = None, **variables: str
) -> Iterator[Composition]:
    """Yield a composition that nobody has started yet. Nothing of it may remain after `down`.

    `images`: of services beside the usual ones, by the suffix of an image of this run.
    """
    for name in SECRETS:
        (directory / name).write_text(secrets.token_hex(32))
        (directory / name).chmod(0o444)
    name = f"terrine-test-{secrets.token_hex(4)}"
    images = {"migrate": "", "server": "", "with-files": "", "proxy": "-proxy"} | (images or {})
    override = directory / "override.yml"
    override.write_text(
        "services:\n"
        + "".join(f'  {each}: {{image: "{name}{suffix}"}}\n' for each, suffix in images.items())
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    of_this_run = {
        "COMPOSE_PROJECT_NAME": name,
        "SECRETS_DIR": str(directory),
        "TERRINE_PORT": str(port),
        "REPLICAS": "1",
        "BUILDKIT_PROGRESS": "plain",
        **variables,
    }
    composition = Composition(
        files=(REPOSITORY / "docker-compose.yml", override),
        environment=os.environ | of_this_run,
        url=f"http://127.0.0.1:{port}",
    )
    down = ("down", "--volumes", "--timeout", "10")
    try:
        yield composition
        composition.succeed(*down)
        mine = f"label=com.docker.compose.project={name}"
        for kind in (["ps", "--all"], ["volume", "ls"], ["network", "ls"]):
            assert docker(*kind, "--quiet", "--filter", mine) == ""
    finally:
        composition(*down)
        remove = ["docker", "image", "rm", *{f"{name}{suffix}" for suffix in images.values()}]
        subprocess.run(remove, capture_output=True, check=False)
