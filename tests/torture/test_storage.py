"""A full disk, a read-only disk or database: refused clearly, and then over.

While a fault lasts, whoever asks gets a 503 that says to retry; nothing is half-written. When it is
gone, the same request is answered, and nobody had to help.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from crowd import Lost
from digits import DigitsEnsemble
from postgres import Postgres, running_postgres
from replicas import replicas
from witness import Witness


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path]:
    """A disk of its own, or a loud skip."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("NO RIGHT TO MOUNT a small disk: full disks are not tested here. Run as root.")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(disk: Path) -> Path:
    """Leave not a byte; return the file whose removal gives the room back."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_full_disk_is_a_503_until_there_is_room(
    kind: str, digits_ensemble: DigitsEnsemble, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "4m" if kind == "sqlite" else "256m") as disk:
        if kind == "sqlite":
            check_full_disk(f"sqlite:///{disk}/terrine.sqlite", digits_ensemble, tmp_path, disk)
        else:
            with running_postgres(disk) as server, server.database() as name:
                check_full_disk(server.url(name), digits_ensemble, tmp_path, disk)


def check_full_disk(url: str, ensemble: DigitsEnsemble, directory: Path, disk: Path) -> None:
    with replicas(directory / "data", url, ensemble, 1) as servers:
        witness = Witness(servers)
        witness.ask()
        filler = fill(disk)
        witness.ask_until_lost(most=500)  # what was allocated before is used up first
        for _ in range(3):
            with pytest.raises(Lost):
                witness.ask()
        assert witness.alive()
        witness.ask_again(witness.told[0])  # what is paid can be told
        filler.unlink()
        witness.ask_until_told()
        witness.judge()


@pytest.mark.slow
def test_a_read_only_disk_is_refused_at_the_start(
    digits_ensemble: DigitsEnsemble, tmp_path: Path
) -> None:
    """A server does not start on a SQLite file that it cannot write, and says so."""
    with (
        small_disk(tmp_path / "disk", "4m") as disk,
        replicas(
            tmp_path / "data", f"sqlite:///{disk}/terrine.sqlite", digits_ensemble, 1
        ) as servers,
    ):
        witness = Witness(servers)
        witness.ask()
        servers.stop(0)
        servers.engine.dispose()  # this process has it open, too
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        servers.start(0)
        assert "cannot be" in servers.refusal(0)
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        servers.wait_until_ready(0)
        witness.ask_again(witness.told[0])
        witness.ask()
        witness.judge()


@pytest.mark.slow
@pytest.mark.parametrize("servers", ["postgresql"], indirect=True)
def test_a_database_made_read_only_is_a_503_until_it_is_writable(
    witness: Witness, mortal: Postgres
) -> None:
    """As after a failover to a standby, or where an operator freezes it for a backup."""
    name = witness.servers.engine.url.database
    assert name
    witness.ask()
    mortal.alter(name, "SET default_transaction_read_only = on")
    mortal.end_sessions(name)  # they would go on as before
    for _ in range(3):
        with pytest.raises(Lost):
            witness.ask()
    witness.ask_again(witness.told[0])
    mortal.alter(name, "RESET default_transaction_read_only")
    witness.ask_until_told()
    witness.judge()
