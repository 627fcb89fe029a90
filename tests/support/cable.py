"""A proxy between a program and PostgreSQL that can cut the connection or delay it."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from postgres import Postgres


class Cable:
    """A Unix socket that forwards to a server's.

    `lose_next_reply_to`: when a program sends these bytes, the server's reply to them is lost.
    """

    def __init__(self, server: Postgres, directory: Path) -> None:
        self.lose_next_reply_to: bytes | None = None
        self._target = server.socket
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / server.socket.name))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                program, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._target))
                for work in (self._ask, self._reply):
                    threading.Thread(target=work, args=(program, server), daemon=True).start()

    def _ask(self, program: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := program.recv(65536):
                if self.lose_next_reply_to is not None and self.lose_next_reply_to in data:
                    self.lose_next_reply_to = None
                    program.shutdown(socket.SHUT_RDWR)
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _reply(self, program: socket.socket, server: socket.socket) -> None:
        with closing(program), closing(server), suppress(OSError):
            while data := server.recv(65536):
                program.sendall(data)


@contextmanager
def cable(server: Postgres) -> Iterator[tuple[Cable, Path]]:
    """A cable to the server, and the directory of its socket: the host to connect to."""
    with tempfile.TemporaryDirectory(prefix="terrine-cable-") as directory:
        made = Cable(server, Path(directory))
        try:
            yield made, Path(directory)
        finally:
            made.close()
