"""What an option writes to: a file is replaced as a whole, and nothing else is replaced.

No test names a device by its path: as root, code that is wrong would replace it for good.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from support.wording import refuses
from terrine_client._receipts import Receipts
from terrine_protocol.files import replacing, write_atomically
from terrine_server.cli.console import CommandError, writing


def _text(path: Path) -> None:
    with writing(path) as file:
        file.write("né")


def _arrays(path: Path) -> None:
    with replacing(path) as file:
        np.savez_compressed(file, counts=np.ones((2, 3)))


WRITERS: dict[str, Callable[[Path], None]] = {
    "text": _text,
    "a document": lambda path: write_atomically(path, b"{}"),
    "arrays": _arrays,
    "receipts": lambda path: Receipts().save(path),
}


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Something that writes a file."""
    return WRITERS[request.param]


@pytest.fixture
def full() -> Iterator[Path]:
    """A device that takes nothing, as a path that cannot be replaced."""
    handle = os.open("/dev/full", os.O_WRONLY)
    yield Path(f"/dev/fd/{handle}")
    os.close(handle)


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_written_to_and_stays_one(
    write: Callable[[Path], None], tmp_path: Path, linked: bool
) -> None:
    pipe, link, expected = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write(link if linked else pipe)
    reader.join(60)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert link.is_symlink()
    write(expected)
    if write is _arrays:  # an archive that cannot be sought is laid out otherwise
        assert np.load(BytesIO(read[0]))["counts"].shape == (2, 3)
    else:
        assert read == [expected.read_bytes()]


def test_a_link_keeps_leading_to_the_file_that_is_replaced(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    away = tmp_path / "away"
    away.mkdir()
    link, further, target = tmp_path / "link", tmp_path / "further", away / "target"
    link.symlink_to("further")
    further.symlink_to(target)
    write(link)  # the target is made
    made = target.read_bytes()
    target.write_bytes(b"old")
    before = target.stat().st_ino
    write(link)
    assert (link.is_symlink(), further.is_symlink(), target.is_symlink()) == (True, True, False)
    assert target.stat().st_ino != before, "replaced as a whole"
    assert len(target.read_bytes()) == len(made)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "away", "further", "link", "target",
    ]  # fmt: skip


def test_a_file_keeps_its_permissions(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() != b"old"


def test_what_fails_on_the_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(b"old")

    def write_half() -> None:
        with writing(path) as file:
            file.write("half")
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_device_and_a_directory_are_told(
    write: Callable[[Path], None], full: Path, tmp_path: Path
) -> None:
    for path in (full, tmp_path):
        with pytest.raises((OSError, CommandError)):
            write(path)
    with refuses(CommandError, str(full), "space"):
        _text(full)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with refuses(CommandError, str(loop)):
        _text(loop)
    assert loop.is_symlink()


def test_standard_output_by_its_path_keeps_what_was_printed(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from terrine_server.cli.console import writing\n"
        "print('before', flush=True)\n"
        "with writing(Path('/dev/stdout')) as file: file.write('data\\n')\n"
        "print('after')"
    )
    with (tmp_path / "printed").open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert (tmp_path / "printed").read_text().split() == ["before", "data", "after"]


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_data_are_utf8_and_text_for_people_fits_any_encoding(encoding: str) -> None:
    code = (
        "import sys; from terrine_server.cli.console import console, print_json, run, writing\n"
        "def command():\n"
        "    console.print('ε Łódź')\n"
        "    print_json({'city': 'Łódź'})\n"
        "    with writing(None) as file: file.write('Łódź\\n')\n"
        "run(command)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )
    first, *data = done.stdout.splitlines()
    assert [line.strip() for line in b"\n".join(data).decode().splitlines()] == [
        "{", '"city": "Łódź"', "}", "Łódź",
    ]  # fmt: skip
    assert first.decode(encoding)
    assert done.stderr == b""
