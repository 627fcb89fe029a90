"""Files that people name: only regular files are read or replaced.

Reading a pipe could block for ever, and a device such as /dev/zero never ends.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from tempfile import NamedTemporaryFile, mkdtemp
from typing import BinaryIO

# Of a document: a key, a token, a checkpoint, a schema, settings.
MAX_DOCUMENT_BYTES = 2**24
# Symbolic links in a row, as many as Linux follows.
_MAX_LINKS = 40
# Ends the names of directories that are being filled, or were when their process was killed.
PARTIAL = ".partial"


def open_regular_file(path: Path | str) -> BufferedReader:
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


def read(path: Path | str, largest: int | None = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the bytes of a regular file. Raises OSError, also if there are more than `largest`."""
    with open_regular_file(path) as file:
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
    """Replace `path` by `data`, as `replacing` does."""
    with replacing(path, public=public) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, *, public: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of `path` once it is complete and on disk.

    A crash or an error leaves the old file or the new one, never a mixture, and a new one has the
    permissions of the old one. Where `path` is a link, its target is replaced. A device, a pipe or
    a descriptor such as /dev/stdout is not a file to replace: it is written to. Raises OSError.

    public: everyone on this machine may read it, whatever the umask: a container's account, too.
    """
    descriptor = _own_descriptor(path)
    if descriptor is not None:
        with os.fdopen(os.dup(descriptor), "wb") as stream:
            yield stream
        return
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "wb") as stream:
            yield stream
        return
    target = Path(os.path.realpath(path))
    scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            if public:
                os.fchmod(file.fileno(), 0o644)
            elif mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
    sync_directory(target.parent)


def _own_descriptor(path: Path) -> int | None:
    """Return the open file that `path` names, as /dev/stdout and `>(command)` in a shell do.

    To open it anew would write over what was written before.
    """
    own = os.path.realpath("/dev/fd")
    for _ in range(_MAX_LINKS):
        if path.name.isdecimal() and os.path.realpath(path.parent) == own:
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Yield a directory, closed to others, that becomes `out` once it is filled, or is removed.

    First, what is left of those for `out` whose process was killed is removed.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f".{glob.escape(out.name)}.*{PARTIAL}"):
        with suppress(OSError), directory_lock(left, wait=False):
            shutil.rmtree(left)
    work = Path(mkdtemp(prefix=f".{out.name}.", suffix=PARTIAL, dir=out.parent))
    try:
        with directory_lock(work, wait=False):
            yield work
            sync_directory(work)
            work.rename(out)
        sync_directory(out.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def directory_lock(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """Keep others on this machine out of a directory, until this process ends at the latest.

    Waits for those who are in it, or else raises BlockingIOError while there are any.
    """
    import fcntl  # which Windows lacks

    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            what = "another process writes in it. Wait until it is done, and run this again"
            raise BlockingIOError(error.errno, what, str(directory)) from None
        yield
    finally:
        os.close(handle)


def sync_directory(directory: Path) -> None:
    """Make renames in `directory` durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
