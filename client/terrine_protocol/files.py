"""Files that people name, read only if they are regular files, and files for secrets.

A pipe would let a program wait for ever, and a device such as /dev/zero never ends.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from tempfile import NamedTemporaryFile

LARGEST_DOCUMENT = 2**24
"""Bytes of a document: a key, a token, a checkpoint, a schema, settings."""


def opened(path: Path | str) -> BufferedReader:
    """Open a regular file to read its bytes. Raises OSError for anything else, without waiting."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    reason = "not a regular file, but a pipe or a device; save what it holds as a file"
    raise OSError(errno.EINVAL, reason, str(path))


def read(path: Path | str, largest: int | None = LARGEST_DOCUMENT) -> bytes:
    """Return the bytes of a regular file. Raises OSError, also if there are more than `largest`."""
    with opened(path) as file:
        data = file.read(-1 if largest is None else largest + 1)
    if largest is not None and len(data) > largest:
        raise OSError(errno.EFBIG, f"larger than {largest:,} bytes", str(path))
    return data


def write_secret(path: Path, text: str) -> bool:
    """Write a file that only its owner may read; return False if there is one already.

    It gets its name only once it is complete and on disk: half a key would be kept for good.
    """
    if path.exists():
        return False
    with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(file.name, path)
        except FileExistsError:
            return False
    return True


def replace(path: Path, text: str) -> None:
    """Replace a file durably: whoever reads it, after a crash, too, finds all of the old or new."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
