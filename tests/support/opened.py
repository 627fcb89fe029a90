"""Notices whoever opens a file, native code included: Linux's inotify."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IN_ACCESS, IN_OPEN = 0x1, 0x20


class Watch:
    """Watches one file."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._handle: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if (
            self._handle < 0
            or libc.inotify_add_watch(self._handle, os.fsencode(path), IN_ACCESS | IN_OPEN) < 0
        ):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))

    def opened(self) -> bool:
        """Whether the file was opened or read since the last call."""
        try:
            return bool(os.read(self._handle, 2**16))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._handle)


@contextmanager
def watching(path: Path) -> Iterator[Watch]:
    watch = Watch(path)
    try:
        yield watch
    finally:
        watch.close()
