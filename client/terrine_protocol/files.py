"""Files that people name, read only if they are regular files; files for secrets; durable ones.

A pipe would let a program wait for ever, and a device such as /dev/zero never ends.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from tempfile import NamedTemporaryFile, mkdtemp

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


def write_atomically(path: Path, data: bytes, *, public: bool = False) -> None:
    """Replace `path` by `data` so that a crash leaves the old or the new file, never a mixture.

    public: everyone on this machine may read it, whatever the umask: a container's account, too.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            if public:
                os.fchmod(file.fileno(), 0o644)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_directory(path.parent)


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Yield a directory, closed to others, that becomes `out` once it is filled, or is removed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield work
        sync_directory(work)
        work.rename(out)
        sync_directory(out.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def sync_directory(directory: Path) -> None:
    """Make renames in `directory` durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
