"""A restore in a process that is killed just before what one step writes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from terrine_server.ledger import database
from terrine_server.owner import backup as backups
from terrine_server.settings import Settings

WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}


def restore_but_die(data_dir: str, url: str, backup: str, step: int, counted: str) -> None:
    """Restore, and be killed before this step; else write to `counted` how many there are.

    Steps are writes to files, and commits of PostgreSQL.
    """
    seen = 0

    def count() -> None:
        nonlocal seen
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    def reads(mode: object, flags: object) -> bool:
        if mode is None:
            return not int(str(flags)) & (os.O_WRONLY | os.O_RDWR)
        return str(mode).startswith("r") and "+" not in str(mode)

    def audit(name: str, given: tuple[Any, ...]) -> None:
        written = name == "open" and data_dir in str(given[0]) and not reads(*given[1:])
        if name in WRITES or written:
            count()

    sys.addaudithook(audit)
    connected = vars(database)["create_engine"]

    def watched(*given: Any, **named: Any) -> Engine:
        engine: Engine = connected(*given, **named)
        if engine.dialect.name == "postgresql":
            event.listen(engine, "commit", lambda *_: count())
        return engine

    vars(database)["create_engine"] = watched
    settings = Settings(data_dir=Path(data_dir), database_url=url)
    backups.restore(settings, Path(backup), replace=True)
    Path(counted).write_text(str(seen))
