"""A process of its own for foreign models: what it may take, and what is said to it."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from terrine_addons.onnx.models import ModelError

# Bytes of address space that loading may take, beside eight times the files.
LOADING_BYTES = 4 * 2**30
# Bytes of address space that one model may take on one block of inputs, beside its weights. The
# check asks it one; sizes do not depend on values (`check_operators`), so others take as much.
VOTING_BYTES = 2**30
# Added to what makes the kernel end a process when memory runs out: this one, not the server.
OOM_SCORE = "500"
MEMORY_FILE = Path("/proc/self/statm")
# Sent to all processes of a terminal or a service. The server first answers what waits.
SERVERS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIZE = struct.Struct("<Q")


class GuardedProcess:
    """The process, to its parent. It ends with this object, or with its parent, however that ends.

    What is sent and heard are messages of bytes. A TimeoutError is an OSError.
    """

    def __init__(self, module: str) -> None:
        ours, theirs = socket.socketpair()
        paths = os.pathsep.join(path for path in sys.path if path)
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - this very interpreter, and a constant
                [sys.executable, "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # native code prints where it likes
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            )
        self._process, self._socket = process, ours
        self.pid = process.pid
        self.end = weakref.finalize(self, _end, process, ours)
        """End it now."""

    def ended(self) -> bool:
        """Whether it is gone, whoever ended it."""
        return self._process.poll() is not None

    def tell(self, message: bytes, seconds: float) -> None:
        """Send a message. Raises OSError."""
        send(self._socket, message, seconds)

    def hear(self, seconds: float) -> bytes:
        """Return the next message. Raises OSError or EOFError."""
        return receive(self._socket, seconds)

    def ask(self, message: bytes, seconds: float) -> bytes:
        """Send a message, and return the next one. Raises OSError or EOFError."""
        self.tell(message, seconds)
        return self.hear(seconds)

    def code(self) -> int:
        """The exit code, after it hung up."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)  # its own code says why
        self.end()
        return self._process.wait()


def name_exit(code: int) -> str:
    """How a process ended, for people."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def parent() -> socket.socket:
    """The parent, to its guarded process, whose first argument is a descriptor."""
    found = socket.socket(fileno=int(sys.argv[1]))
    for number in SERVERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    Thread(target=_end_with, args=(found,), daemon=True).start()
    return found


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


def confine() -> None:
    """Let this process write no file, leave no core dump, and end first. Raises ModelError."""
    if not MEMORY_FILE.exists():
        raise ModelError("imported models need Linux: their memory cannot be limited here")
    import resource  # not on every system that trains students

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # sockets are not files
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)


def limit_memory(more: int) -> None:
    """From now on, let this process take so many bytes of address space beyond what it has."""
    import resource

    now = int(MEMORY_FILE.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
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


def _end(process: subprocess.Popen[bytes], ours: socket.socket) -> None:
    ours.close()
    process.kill()
    process.wait()


def _end_with(parent: socket.socket) -> None:
    """End once the parent is gone, however it ended: also in the middle of a vote."""
    poll = select.poll()
    poll.register(parent, 0)  # a hang-up is always reported
    poll.poll()
    os._exit(0)


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
