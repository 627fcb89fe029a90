"""The process in which imported teachers vote: `python -m terrine_addons.onnx.voting`.

It imports no more than that takes, above all not PyTorch: a server starts one for each ensemble.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import numpy as np

from terrine_addons.onnx.guard import (
    LOADING_BYTES,
    VOTING_BYTES,
    confine,
    limit_memory,
    parent,
    receive,
    send,
)
from terrine_addons.onnx.models import ModelError, OnnxModel, OnnxTeachers
from terrine_models.data.arrays import InputSpec
from terrine_protocol.base import Record

# The exit code after a model wanted more memory.
OUT_OF_MEMORY_EXIT_CODE = 3


class VotingJob(Record):
    """What the models are asked to do; their files follow."""

    files: int
    size: int
    """Bytes of all files."""
    output: str | None
    classes: tuple[str, ...]
    by_index: bool
    """As in `CheckRequest`."""
    spec: InputSpec
    threads: int


def main() -> None:
    """Load the models that arrive on the descriptor given as the first argument; let them vote."""
    server = parent()
    with suppress(OSError, EOFError):
        order = VotingJob.model_validate_json(receive(server))
        try:
            teachers = _load_in_guard(order, server)
        except (ModelError, MemoryError) as error:
            send(
                server, (str(error) or f"it needs more than {LOADING_BYTES // 2**30} GiB").encode()
            )
            return
        limit_memory(VOTING_BYTES * order.threads)
        send(server, b"")
        while True:
            x = np.frombuffer(receive(server), order.spec.dtype).reshape(-1, *order.spec.shape)
            try:
                choices = teachers.choices(x)
            except MemoryError:
                os._exit(OUT_OF_MEMORY_EXIT_CODE)
            send(server, choices.astype("<i4").tobytes())


def _load_in_guard(order: VotingJob, server: socket.socket) -> OnnxTeachers:
    confine()
    limit_memory(LOADING_BYTES + 8 * order.size)
    models = []
    for _ in range(order.files):
        models.append(OnnxModel(receive(server), order.output))
        send(server, b"")
    return OnnxTeachers(models, order.classes, order.threads, order.by_index)


if __name__ == "__main__":
    main()
