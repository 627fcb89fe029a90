"""Sends raw bytes to the server, for requests that no HTTP library would send."""

from __future__ import annotations

import json
import select
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from patience import PATIENCE_SECONDS
from server import RunningServer


@dataclass(frozen=True)
class Reply:
    """One response as it was received."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def slug(self) -> str:
        """The problem's type; the body must be a complete problem document."""
        problem = self.json()
        assert self.headers["content-type"] == "application/problem+json"
        assert problem["status"] == self.status
        assert problem["request_id"] == self.headers["x-request-id"]
        return str(problem["type"]).removeprefix("/problems/")


class Wire:
    """One connection."""

    def __init__(self, server: RunningServer, timeout: float = PATIENCE_SECONDS) -> None:
        url = urlsplit(server.url)
        self.socket = socket.create_connection((url.hostname, url.port), timeout)
        self._read = b""

    def send(self, data: bytes) -> None:
        """Send these bytes; the server may have closed before it has read them all."""
        with suppress(ConnectionError):
            self.socket.sendall(data)

    def reply(self) -> Reply:
        """Read one response. Raises `EOFError` if the server closes without one."""
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        length = int(headers.get("content-length", 0))
        while len(self._read) < length:
            self._more()
        body, self._read = self._read[:length], self._read[length:]
        return Reply(int(status.split()[1]), headers, body)

    def rest(self) -> list[Reply]:
        """Read responses until the server closes."""
        replies = []
        with suppress(EOFError):
            while True:
                replies.append(self.reply())
        return replies

    def ends(self) -> bool:
        """Whether the server sends nothing more and closes."""
        return not self.rest()

    def silent(self) -> bool:
        """Whether the server has sent nothing unread and has not closed."""
        return not self._read and not select.select([self.socket], [], [], 0)[0]

    def close(self) -> None:
        self.socket.close()

    def _more(self) -> None:
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            raise EOFError("the server closed the connection")
        self._read += data


def request(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    """Return an HTTP/1.1 request with exactly these headers and `Host`."""
    head = "\r\n".join([f"{method} {target} HTTP/1.1", "Host: terrine", *headers, "", ""])
    return head.encode("latin-1") + body


def label(token: str, body: bytes, *more: str) -> bytes:
    """Return a request to label the .npy file `body`; its length is only in `more`, if at all."""
    headers = (f"Authorization: Bearer {token}", "Content-Type: application/x-npy", *more)
    return request("POST", "/label", *headers, body=body)
