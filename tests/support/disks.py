"""Small disks, which can be filled."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """Mount a small disk, or skip the test and say so.

    Not in pytest's directory, which is closed to other users, such as PostgreSQL's.
    """
    directory = Path(tempfile.mkdtemp(prefix="terrine-disk-"))
    directory.chmod(0o755)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(directory)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        if not mounted:
            pytest.skip("NO RIGHT TO MOUNT a small disk: it is not tested here. Run as root.")
        yield directory
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=True)
        directory.rmdir()


def fill(disk: Path) -> Path:
    """Fill the disk; return the file whose removal frees it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler
