"""Processes that start fast and may be killed.

Slow imports happen once, in a process that then forks: a ledger worker starts in a hundredth of a
second, a whole server in a third of a second.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
from patience import PATIENCE_SECONDS
from seeded_noise import SEED, seed_noise
from sqlalchemy import Engine, event

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
