"""Processes that start fast and may be killed, commands in them, and how long tests wait."""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, Protocol, TypeVar

import numpy as np
import pytest
from sqlalchemy import Engine, event

from terrine_server.privacy import noise
from terrine_server.privacy.published import ActualCost, BoundRelease

T = TypeVar("T")

PATIENCE_SECONDS = 240
"""Less than pytest's own limit. Only a hang reaches it, also on a machine that does much else."""


def until(
    look: Callable[[], T], good: Callable[[T], bool] = bool, seconds: float = PATIENCE_SECONDS
) -> T:
    """Repeat `look()` until its result is `good`, and return it."""
    deadline = time.monotonic() + seconds
    while not good(seen := look()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    return seen


SEED = "TESTS_NOISE_SEED"
REPEATED = {SEED: "0", "PYTHONPATH": str(Path(__file__).parent / "seeded")}
"""Environment of a process whose noise, and that of the processes it starts, is repeated."""


def seed_noise(patch: pytest.MonkeyPatch, seed: int = 0) -> None:
    """Draw all noise of this process, and of published figures, from `seed` on, as long as the
    patch lasts.

    Everything after the random bytes is the production code. With several clients at a time, who
    gets which noise depends on who comes first.
    """
    draw, random = noise._uniform, np.random.default_rng(seed)
    patch.setattr(noise, "_uniform", lambda count, entropy: draw(count, random.bytes))
    release = BoundRelease.release

    def released(self: BoundRelease, spend: ActualCost, worst: int, entropy: Any = None) -> int:
        return release(self, spend, worst, random.bytes)

    patch.setattr(BoundRelease, "release", released)


def held_port(host: str = "127.0.0.1") -> socket.socket:
    """A port that no other process is given, also while no server listens on it."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((host, 0))
    return made


def run_program(
    *command: object, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run another program to its end; what it says is text."""
    words = [*map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=check, **options)


_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [
        "terrine_server.ledger",
        "terrine_server.app",
        "terrine_server.cli",
        "terrine_server.doctor",
        "terrine_models.teachers.ensemble",
        "pytest",
        "uvicorn.main",
        "psycopg",
    ]
)


def start(work: Callable[..., None], *arguments: Any, daemon: bool = True) -> BaseProcess:
    """Run `work` in another process, without waiting for it.

    It ends when this process ends. One that is no `daemon` may start processes of its own, and has
    to be ended.
    """
    process = _processes.Process(target=work, args=arguments, daemon=daemon)
    process.start()
    return process


def in_processes(work: Callable[..., None], *arguments: tuple[Any, ...]) -> list[BaseProcess]:
    """Run `work` in parallel, one process per tuple of arguments, and wait for all of them."""
    processes = [start(work, *given) for given in arguments]
    for process in processes:
        process.join(timeout=PATIENCE_SECONDS)
    return processes


def command(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: str,
    descriptors: tuple[int, int] | None = None,
    errors: str | None = None,
) -> None:
    """Run `terrine` with these arguments and this environment; its output goes to a file.

    `descriptors`: how many it may open, and how many it may allow itself. `errors`: a file for what
    it writes on stderr, if another.
    """
    from terrine_server.cli import main

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0)  # uvicorn's workers look for it there
    for stream, file in ((1, log), (2, errors or log)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)
    os.environ.clear()  # it is of the test that started the first process
    os.environ.update(environment)
    gc.freeze()  # a collection would go through all that was imported, and copy its pages
    # Whoever started the tests in the background has them ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["terrine", *arguments]
    if SEED in environment:
        seed_noise(pytest.MonkeyPatch(), int(environment[SEED]))
    main()


def command_in(
    directory: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: str,
    errors: str | None = None,
) -> None:
    """Run a `command` in a directory."""
    os.chdir(directory)
    command(arguments, environment, log, errors=errors)


def command_of_few_designed(*given: Any) -> None:
    """Run a `command_in`; where quickstart designs rows, they are few, for time's sake."""
    first_project = importlib.import_module("terrine_server.planning.first_project")
    first_project.DESIGNED_ROWS = (300,)  # type: ignore[attr-defined]
    command_in(*given)


def killed_at(
    directory: Path,
    place: tuple[str, str],
    after: bool,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: str,
) -> None:
    """Run a `command` in a directory, killed where one function is called, or `after` it returns.

    `place`: its module and its name there.
    """
    module, name = importlib.import_module(place[0]), place[1]
    original = getattr(module, name)

    def die(*given: Any, **named: Any) -> None:
        if after:
            original(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(module, name, die)
    command_in(directory, arguments, environment, log)


def killed_before(engine: Engine, step: int) -> None:
    """Let this process be killed just before the given step: a statement or a COMMIT."""
    seen = 0

    def count(*_: object) -> None:
        nonlocal seen
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    event.listen(engine, "before_cursor_execute", count)
    event.listen(engine, "commit", count)


def die_before_call(number: int, work: FunctionType, *arguments: Any) -> None:
    """Run `work`, but be killed just before its own call number `number`."""
    seen = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal seen
        caller = {"call": frame.f_back, "c_call": frame}.get(event)
        if caller is not None and caller.f_code is work.__code__:
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

    sys.setprofile(count)
    work(*arguments)
    sys.setprofile(None)


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def fine(self) -> str:
        """Its output; the command must have succeeded."""
        assert self.code == 0, self.err
        return self.out

    @property
    def refused(self) -> str:
        """Its error, which must be readable: on stderr only, without a traceback.

        That of a server is in its log, whose last line says that it cannot start, and why.
        """
        assert self.code == 1, self
        assert self.out == ""
        assert "Traceback" not in self.err
        if not self.err.startswith("Error: "):
            last = json.loads(self.err.splitlines()[-1])
            assert (last["event"], last["level"]) == ("cannot start", "error")
            return str(last["cause"])
        return self.err


class Terrine(Protocol):
    """Runs `terrine` with arguments, and with environment variables for this command alone."""

    def __call__(self, *arguments: object, **variables: str) -> Done: ...


def commands(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: Callable[[], None] | None = None,
) -> Terrine:
    """Return a function that runs commands on a terminal wide enough for any table.

    `program`: another command line than that of `terrine`.
    """
    from terrine_server.cli import main

    def run(*arguments: object, **variables: str) -> Done:
        with monkeypatch.context() as patched:
            for name, value in {"COLUMNS": "200", **variables}.items():
                patched.setenv(name, value)
            patched.setattr(sys, "argv", ["terrine", *map(str, arguments)])
            before = os.umask(0o022)  # as most accounts have it
            try:
                with pytest.raises(SystemExit) as ended:
                    (program or main)()
            finally:
                os.umask(before)
        said = capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    return run


def in_own_processes(directory: Path, environment: Mapping[str, str]) -> Terrine:
    """Return a function that runs each command in a process of its own, in this directory."""
    out, err = directory / "out", directory / "err"

    def run(*arguments: object, **variables: str) -> Done:
        for file in (out, err):
            file.unlink(missing_ok=True)
        words, every = [*map(str, arguments)], {"COLUMNS": "200", **environment, **variables}
        given = (directory, words, every, str(out), str(err))
        [process] = in_processes(command_in, given)
        assert process.exitcode is not None, f"{words} does not end"
        return Done(process.exitcode, out.read_text(), err.read_text())

    return run


def at_once(clients: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)` … `work(clients - 1)` in threads that start together."""
    barrier = threading.Barrier(clients)

    def start(client: int) -> T:
        barrier.wait()
        return work(client)

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(start, range(clients)))


def calls(work: Callable[[], object]) -> int:
    """Count the functions that are called meanwhile, of Python and of C."""
    found = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    gc.disable()  # whoever listens to a collection would be counted
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found
