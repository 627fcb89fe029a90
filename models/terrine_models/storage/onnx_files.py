"""Checking ONNX files in a process of their own: the parent of `onnx_check.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from terrine_models.storage.guarded import GuardedProcess, named
from terrine_models.storage.manifests import StoreError
from terrine_models.storage.onnx_check import CheckRequest, FileFinding
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
    while rest := request.paths[len(found) :]:
        found += _run(request.model_copy(update={"paths": rest}), seconds)
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
    shown = [f"{path}: {reason}." for path, reason in list(why.items())[:SHOWN]]
    more = [f"… and {len(why) - SHOWN} more."] if len(why) > SHOWN else []
    raise StoreError("\n".join([f"{len(why)} of {count} files cannot be used:", *shown, *more]))


def _run(request: CheckRequest, seconds: float) -> list[FileFinding]:
    """Findings of the first files, up to and including one that ended the process."""
    process = GuardedProcess("terrine_models.storage.onnx_check")
    found: list[FileFinding] = []
    try:
        try:
            process.ask(request.model_dump_json().encode(), STARTING)
        except (OSError, EOFError):
            raise StoreError(
                "The check of ONNX files cannot start; is onnx installed whole?"
            ) from None
        for path in request.paths:
            try:
                found.append(FileFinding.model_validate_json(process.hear(seconds)))
            except TimeoutError:
                why = f"its check took longer than {seconds:g} s"
            except (OSError, EOFError):
                why = f"it ended the process that checked it ({named(process.code())})"
            else:
                continue
            return [*found, FileFinding(path=path, refused=why)]
        return found
    finally:
        process.end()
