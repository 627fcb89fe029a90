"""Imported teachers, each ensemble in a guarded process of its own: the parent of `onnx_voting.py`.

Their code is somebody else's (`guarded.py`): a process that takes too much memory or time ends, and
the next vote starts another.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.storage.guarded import VOTING, GuardedProcess, named
from terrine_models.storage.manifests import StoreError, verified_bytes
from terrine_models.storage.onnx_models import Ints, ModelError, require_onnx
from terrine_models.teachers.onnx_voting import EXHAUSTED, VotingJob

LOADING_SECONDS = 600.0
"""How long a process may take to start, and to load one model."""
SECONDS = 60.0
"""How long the teachers may take for a block of inputs, unless told otherwise."""


class VotingError(Exception):
    """Imported teachers did not vote within their limits; the message says which, and of whom."""


class GuardedTeachers:
    """n models that each choose one of m classes. Threads may share it; they take turns."""

    def __init__(
        self,
        directory: Path,
        files: Mapping[str, str],
        output: str | None,
        classes: tuple[str, ...],
        spec: InputSpec,
        threads: int,
        seconds: float = SECONDS,
        by_index: bool = False,
    ) -> None:
        """Verify the files against their digests, and load them. Raises StoreError.

        `threads` models compute at a time; `seconds` are for a block of inputs. `by_index`: whether
        labels that are numbers are indices whatever the classes' names.
        """
        self._directory, self._files, self._seconds = directory, dict(files), seconds
        self._order = VotingJob(
            files=len(files),
            size=sum(_size(directory / name) for name in files),
            output=output,
            classes=classes,
            by_index=by_index,
            spec=spec,
            threads=threads,
        )
        self._turn = Lock()
        self._process: GuardedProcess | None = self._started()

    def choices(self, x: NDArray[np.generic]) -> Ints:
        """Every teacher's choice [b, n] on rows [b, *shape]. Raises VotingError or StoreError.

        The process is gone then, whatever the others of it would have said.
        """
        with self._turn:
            process, self._process = self._process, None
            if process is None or process.ended():
                process = self._started()
            try:
                found = process.ask(np.ascontiguousarray(x).tobytes(), self._seconds)
            except TimeoutError:
                process.end()
                raise VotingError(self._why(f"took longer than {self._seconds:g} s")) from None
            except (OSError, EOFError):
                raise VotingError(self._why(self._said(process.code()))) from None
            self._process = process
        return np.frombuffer(found, "<i4").reshape(len(x), -1).astype(np.int64)

    def _why(self, said: str) -> str:
        return (
            f"The imported teachers in {self._directory} {said} on a block of inputs, and their "
            "process was ended."
        )

    def _said(self, code: int) -> str:
        if code == EXHAUSTED:
            return f"wanted more than {VOTING * self._order.threads // 2**30} GiB of memory"
        return f"ended with {named(code)}"

    def _started(self) -> GuardedProcess:
        try:
            require_onnx()
        except ModelError as error:
            raise StoreError(f"{self._directory} cannot be used: {error}.") from None
        process = GuardedProcess("terrine_models.teachers.onnx_voting")
        where = self._directory
        try:
            process.tell(self._order.model_dump_json().encode(), LOADING_SECONDS)
            for name, digest in self._files.items():
                where = self._directory / name
                refused = process.ask(
                    verified_bytes(self._directory, name, digest), LOADING_SECONDS
                )
                if refused:
                    raise StoreError(f"{where} cannot be used: {refused.decode()}.")
            refused = process.hear(LOADING_SECONDS)
        except (OSError, EOFError) as error:
            late = isinstance(error, TimeoutError)
            said = "took too long" if late else self._said(process.code())
            raise StoreError(f"{where} cannot be loaded: its process {said}.") from None
        if refused:
            raise StoreError(f"{self._directory} cannot be used: {refused.decode()}.")
        return process


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
