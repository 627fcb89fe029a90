"""Messages between the server and a voting process: a head, and the bytes of an array.

Nothing is pickled: neither side can make the other run anything.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Generic, TypeVar

import msgspec

from terrine_server.labeling.elsewhere import Defect, Reference

_SIZES = struct.Struct("<IQ")
"""Bytes of the head and of the array."""
SMALL = 64 * 1024
"""Bytes of an array that is copied, so that its message is sent at once."""


class Ask(msgspec.Struct, frozen=True):
    """Votes on inputs of this dtype and shape, which follow. Without a shape: can it vote?"""

    ensemble: Reference
    dtype: str = ""
    shape: tuple[int, ...] = ()


class Reply(msgspec.Struct, frozen=True):
    """Vote counts, which follow, in int64; or which files the ensemble was loaded from.

    `refused`: why the ensemble is unavailable.
    `block`: how many inputs are voted on at a time; more are given to several processes.
    """

    refused: str | None = None
    defect: Defect | None = None
    shape: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    stamp: tuple[tuple[int, int, int], ...] = ()
    block: int = 0


M = TypeVar("M", Ask, Reply)


class Channel(Generic[M]):
    """One end of a connection over which messages of type M arrive. Used by one thread at a time.

    Its methods raise OSError, or EOFError, if the other end is gone; TimeoutError after the given
    number of seconds. After any of them nothing more can be sent.
    """

    def __init__(self, own: socket.socket, arriving: type[M]) -> None:
        self.socket = own
        self._heads: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(arriving)

    def send(
        self,
        message: Ask | Reply,
        array: bytes | memoryview = b"",
        seconds: float | None = None,
    ) -> None:
        """Send a message; the array is contiguous."""
        head, body = msgspec.msgpack.encode(message), memoryview(array).cast("B")
        first = _SIZES.pack(len(head), len(body)) + head
        self.socket.settimeout(seconds)
        if len(body) <= SMALL:
            self.socket.sendall(first + body)
        else:
            self.socket.sendall(first)
            self.socket.sendall(body)

    def receive(self, seconds: float | None = None) -> tuple[M, bytearray]:
        """Wait for a message. Raises msgspec.MsgspecError for a head that is none."""
        deadline = None if seconds is None else time.monotonic() + seconds
        head, body = _SIZES.unpack(self._exactly(_SIZES.size, deadline))
        return self._heads.decode(self._exactly(head, deadline)), self._exactly(body, deadline)

    def _exactly(self, size: int, deadline: float | None) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            left = None if deadline is None else max(1e-3, deadline - time.monotonic())
            self.socket.settimeout(left)
            received = self.socket.recv_into(rest)
            if not received:
                raise EOFError
            rest = rest[received:]
        return data
