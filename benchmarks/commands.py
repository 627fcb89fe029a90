"""Terrine's commands as a user runs them: open a project, serve it, train a student, predict."""

from __future__ import annotations

import csv
import os
import re
import resource
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

SERVE = (sys.executable, "-m", "terrine_server", "serve")
READY_SECONDS = 120
COMMAND_SECONDS = 1200
DECLINED = 1
"""How quickstart ends where it opens nothing."""
BUG = "A bug in Terrine"
"""What it says where that was not on purpose."""


class CommandError(Exception):
    """What a user would not have got past: a command that failed, or said nothing useful."""


@dataclass(frozen=True)
class Scores:
    """Of predictions of tested rows. `auc`: of two classes, where there are shares."""

    accuracy: float
    balanced: float
    auc: float | None = None

    def __str__(self) -> str:
        auc = "" if self.auc is None else f", AUC {self.auc:.3f}"
        return f"{self.accuracy:.2%}, balanced {self.balanced:.2%}{auc}"


@dataclass(frozen=True, eq=False)
class Predicted:
    """Classes [T] of tested rows; and of two classes, how likely each row is of the second [T]."""

    said: NDArray[np.int64]
    shares: NDArray[np.float64] | None = None

    def scores(self, labels: NDArray[np.int64]) -> Scores:
        """How right that is."""
        auc = None if self.shares is None else float(roc_auc_score(labels, self.shares))
        balanced = float(balanced_accuracy_score(labels, self.said))
        return Scores(float((self.said == labels).mean()), balanced, auc)


@dataclass(frozen=True)
class Opened:
    """What `terrine quickstart` opened in a directory."""

    place: Path
    data: str
    """The data directory, in `place`."""
    variables: dict[str, str]
    said: str
    seconds: float
    """Of a processor, that quickstart took."""
    url: str
    token: str
    train: tuple[str, ...]
    """The student's command."""
    declined: str | None = None
    """What it said where it opens nothing without `--anyway`."""

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Serve it. Raises CommandError where the service does not start."""
        with served(self.place / f"{self.data}.log", self.url, self.variables):
            yield

    def train_student(self, *options: str) -> float:
        """Train a student of what is served, and return the processor seconds that it took.

        Over one that is there already.
        """
        began = processor_seconds()
        asked = {"TERRINE_URL": self.url, "TERRINE_TOKEN": self.token}
        out = ("--out", f"{self.data}-student")
        check(run(self.place, {**self.variables, **asked}, *self.train, *options, *out))
        return processor_seconds() - began

    def predict(self, tested: Path, classes: tuple[str, ...]) -> Predicted:
        """Return what the student says of a file's rows."""
        student, out = f"{self.data}-student", f"{self.data}-predicted.csv"
        asked = ("student", "predict", tested.name, "--student", student, "--out", out)
        check(run(self.place, self.variables, *asked))
        with (self.place / out).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        said = np.array([classes.index(row["label"]) for row in rows])
        second = f"probability_{classes[-1]}"
        shares = np.array([float(row[second]) for row in rows]) if len(classes) == 2 else None
        return Predicted(said, shares)


@dataclass(frozen=True)
class Refused:
    """What `terrine quickstart` said where it opened nothing, on purpose."""

    said: str


def open_project(
    private: Path, *options: str, data: str = "data", anyway: bool = False
) -> Opened | Refused:
    """Run `terrine quickstart` on a file, in its directory. Raises CommandError.

    anyway: where it declines, open the project with `--anyway`.
    """
    opened = _open_project(private, *options, data=data)
    if not anyway or isinstance(opened, Opened):
        return opened
    again = _open_project(private, *options, "--anyway", data=f"{data}-anyway")
    return replace(again, declined=opened.said) if isinstance(again, Opened) else again


def _open_project(private: Path, *options: str, data: str) -> Opened | Refused:
    place = private.parent
    variables = {"TERRINE_DATA_DIR": str(place / data), "TERRINE_PORT": str(free_port())}
    began = processor_seconds()
    done = run(place, variables, "quickstart", private.name, *options, "--yes")
    seconds = processor_seconds() - began
    if done.returncode == DECLINED and BUG not in done.stderr:
        return Refused(" ".join(done.stderr.split()))
    said = check(done)
    line = re.search(r"TERRINE_URL=(\S+) TERRINE_TOKEN=(\S+) terrine (student train.*)", said)
    if line is None:
        raise CommandError(f"quickstart told no student's command:\n{said}")
    train = tuple(shlex.split(line[3]))
    return Opened(place, data, variables, said, seconds, line[1], line[2], train)


@contextmanager
def served(
    log: Path, url: str, variables: dict[str, str], command: Sequence[str] = SERVE
) -> Iterator[None]:
    """Run a server in a separate process, at an address that the variables tell it.

    Raises CommandError where it is not ready in time.
    """
    with log.open("wb") as file:
        server = subprocess.Popen(
            command, cwd=log.parent, env=_environment(variables), stdout=file, stderr=file
        )
        try:
            until = time.monotonic() + READY_SECONDS
            while not _is_ready(url):
                if server.poll() is not None or time.monotonic() > until:
                    raise CommandError(f"the server was not ready:\n{log.read_text()[-2000:]}")
                time.sleep(0.2)
            yield
        finally:
            server.terminate()
            server.wait()


def run(place: Path, variables: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run `terrine WORDS` in a directory."""
    return subprocess.run(
        [sys.executable, "-m", "terrine_server", *words],
        cwd=place,
        env=_environment(variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
    )


def check(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a command printed. Raises CommandError if it failed."""
    if done.returncode:
        raise CommandError(f"{shlex.join(done.args[1:])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def processor_seconds() -> float:
    """Return what all commands that ended have taken of a processor."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.TransportError:
        return False


def _environment(variables: dict[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TERRINE_")}
    return {**kept, "COLUMNS": "400", "NO_COLOR": "1", **variables}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
