"""Checking ONNX files in a process of their own: the parent of `onnx_check.py`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO

from terrine_models.storage.manifests import StoreError
from terrine_models.storage.onnx_check import READY, CheckRequest, FileFinding
from terrine_models.storage.onnx_models import ModelError, require_onnx

STARTING = 120.0
"""Seconds until the check must be ready."""
SECONDS = 120.0
"""That one file may take."""
SHOWN = 5
"""Refusals that an error names."""


def findings(request: CheckRequest, seconds: float = SECONDS) -> list[FileFinding]:
    """What each file is, in order. A file that kills the check, or outlasts it, is refused.

    Raises StoreError if the check itself cannot run: onnx or onnxruntime is missing.
    """
    try:
        require_onnx()
    except ModelError as error:
        raise StoreError(f"{error}.") from None
    found: list[FileFinding] = []
    while len(found) < len(request.paths):
        rest = request.paths[len(found) :]
        found += _run(replace(request, paths=rest), seconds)
    return found


def checked(request: CheckRequest, names: Sequence[Path] | None = None) -> list[FileFinding]:
    """As `findings`. Raises StoreError unless all are taken; `names` are the user's."""
    found = findings(request)
    called = [Path(each.path) for each in found] if names is None else names
    refused = {
        path: each.refused
        for path, each in zip(called, found, strict=True)
        if each.refused is not None
    }
    refuse(refused, len(found))
    return found


def refuse(why: Mapping[Path, str], count: int) -> None:
    """Raise StoreError if any of `count` files is refused."""
    if not why:
        return
    named = [f"{path}: {reason}." for path, reason in list(why.items())[:SHOWN]]
    more = [f"… and {len(why) - SHOWN} more."] if len(why) > SHOWN else []
    raise StoreError("\n".join([f"{len(why)} of {count} files cannot be used:", *named, *more]))


def _run(request: CheckRequest, seconds: float) -> list[FileFinding]:
    """Findings of the first files, up to and including one that ended the process."""
    command = [sys.executable, "-m", "terrine_models.storage.onnx_check"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(  # noqa: S603 - this very interpreter, and a constant
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    )
    if process.stdin is None or process.stdout is None:
        raise StoreError("The check of ONNX files has no pipes.")
    lines: SimpleQueue[str] = SimpleQueue()
    Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    found: list[FileFinding] = []
    try:
        with process.stdin as asked:
            json.dump(asdict(request), asked)
        if lines.get(timeout=STARTING).strip() != READY:
            raise StoreError("The check of ONNX files cannot start; is onnx installed whole?")
        while len(found) < len(request.paths) and (line := lines.get(timeout=seconds)):
            found.append(FileFinding(**json.loads(line)))
        why = "" if len(found) == len(request.paths) else _ended(process.wait())
    except Empty:
        why = f"its check took longer than {seconds:g} s"
    except BrokenPipeError:
        raise StoreError("The check of ONNX files ended as it started.") from None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    if why:
        found.append(FileFinding(request.paths[len(found)], refused=why))
    return found


def _read(pipe: IO[str], lines: SimpleQueue[str]) -> None:
    """Pass lines on, and an empty one at the end."""
    try:
        for line in pipe:
            lines.put(line)
    except ValueError:  # closed after a time-out
        pass
    lines.put("")


def _ended(code: int) -> str:
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"it ended the process that checked it ({how})"
