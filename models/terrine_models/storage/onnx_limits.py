"""What a process may take in which code of others computes: ONNX models, of whoever made them.

The check of files (`onnx_check.py`) and the process in which imported teachers vote
(`onnx_voting.py`) have the same limits, so what passed the check is not stopped later by less.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from terrine_models.storage.onnx_models import ModelError

LOADING = 4 * 2**30
"""Bytes of address space that loading may take, beside eight times the files."""
VOTING = 2**30
"""Bytes of address space that one model may take on one block of inputs, beside its weights. The
check asks it one; sizes do not depend on values (`onnx_operators.py`), so others take as much."""
EXPENDABLE = "500"
"""Added to what makes the kernel end a process when memory runs out: this one, not the server."""
STATE = Path("/proc/self/statm")


def confine() -> None:
    """Let this process write no file, leave no core dump, and end first. Raises ModelError."""
    if not STATE.exists():
        raise ModelError("imported models need Linux: their memory cannot be limited here")
    import resource  # not on every system that trains students

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # pipes and sockets are no files
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(EXPENDABLE)


def limit_memory(more: int) -> None:
    """From now on, let this process take so many bytes of address space beyond what it has."""
    import resource

    now = int(STATE.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = now + more if hard == resource.RLIM_INFINITY else min(now + more, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


@contextmanager
def memory_for(more: int) -> Iterator[None]:
    """As `limit_memory`, for a while."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(more)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
