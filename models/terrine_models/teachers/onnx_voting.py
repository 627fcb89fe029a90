"""The process in which imported teachers vote: it answers `onnx_guard.py`, and ends with it.

    python -m terrine_models.teachers.onnx_voting DESCRIPTOR

It is sent the models, opens no file, and may take no more memory than `onnx_limits.py` says: a
model that wants more ends it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread

import numpy as np

from terrine_models.storage.onnx_limits import LOADING, VOTING, confine, limit_memory
from terrine_models.storage.onnx_models import ModelError, OnnxModel, OnnxTeachers

SERVERS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Sent to all processes of a terminal or a service. The server first answers what waits."""
EXHAUSTED = 3
"""The exit code after a model wanted more memory."""
_SIZE = struct.Struct("<Q")


@dataclass(frozen=True)
class Order:
    """What the models are asked to do; their files follow."""

    files: int
    size: int
    """Bytes of all files."""
    output: str | None
    classes: list[str]
    dtype: str
    shape: list[int]
    """Of one input."""
    threads: int


def main() -> None:
    """Load the models that arrive on the descriptor given as the first argument; let them vote."""
    parent = socket.socket(fileno=int(sys.argv[1]))
    for number in SERVERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    Thread(target=_end_with, args=(parent,), daemon=True).start()
    with suppress(OSError, EOFError):
        order = Order(**json.loads(receive(parent)))
        try:
            teachers = _loaded(order, parent)
        except (ModelError, MemoryError) as error:
            send(parent, (str(error) or f"it needs more than {LOADING // 2**30} GiB").encode())
            return
        limit_memory(VOTING * order.threads)
        send(parent, b"")
        while True:
            x = np.frombuffer(receive(parent), order.dtype).reshape(-1, *order.shape)
            try:
                choices = teachers.choices(x)
            except MemoryError:
                os._exit(EXHAUSTED)
            send(parent, choices.astype("<i4").tobytes())


def _loaded(order: Order, parent: socket.socket) -> OnnxTeachers:
    confine()
    limit_memory(LOADING + 8 * order.size)
    models = []
    for _ in range(order.files):
        models.append(OnnxModel(receive(parent), order.output))
        send(parent, b"")
    return OnnxTeachers(models, order.classes, order.threads)


def _end_with(parent: socket.socket) -> None:
    """End once the server is gone, however it ended: also in the middle of a vote."""
    poll = select.poll()
    poll.register(parent, 0)  # a hang-up is always reported
    poll.poll()
    os._exit(0)


def send(to: socket.socket, message: bytes, seconds: float | None = None) -> None:
    """Send one message. Raises OSError, which a TimeoutError is."""
    to.settimeout(seconds)
    to.sendall(_SIZE.pack(len(message)))
    to.sendall(message)


def receive(source: socket.socket, seconds: float | None = None) -> bytes:
    """Wait for one message. Raises OSError, which a TimeoutError is, or EOFError."""
    deadline = None if seconds is None else time.monotonic() + seconds
    (size,) = _SIZE.unpack(_exactly(source, _SIZE.size, deadline))
    return bytes(_exactly(source, size, deadline))


def _exactly(source: socket.socket, size: int, deadline: float | None) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        source.settimeout(None if deadline is None else max(1e-3, deadline - time.monotonic()))
        received = source.recv_into(rest)
        if not received:
            raise EOFError
        rest = rest[received:]
    return data


if __name__ == "__main__":
    main()
