"""Processes that start fast and may be killed.

What is slow to import is imported once, by a process that then forks: a ledger's worker costs a
hundredth of a second, a whole server a third.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from typing import Any

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [
        *("terrine_server.ledger", "terrine_server.app", "terrine_server.cli"),
        *("terrine_server.doctor", "terrine_models.ensemble", "uvicorn.main", "psycopg"),
    ]
)


def start(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Run `work` in another process, without waiting for it. It ends with this one."""
    process = _processes.Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def in_processes(work: Callable[..., None], *arguments: tuple[Any, ...]) -> list[BaseProcess]:
    """Run `work` in one process for each tuple of arguments, all at once, until all end."""
    processes = [start(work, *given) for given in arguments]
    for process in processes:
        process.join(timeout=120)
    return processes


def serve(port: int, environment: Mapping[str, str], log: str) -> None:
    """The whole life of a server: `terrine serve`, with what it says in a file."""
    from terrine_server.cli import main

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    sys.argv = ["terrine", "serve", "--port", str(port)]
    main()
