"""A full disk, a read-only disk or database: refused clearly, and then over.

While a fault lasts, whoever asks gets a 503 that says to retry; nothing is half-written. When it is
gone, the same request is answered, and nobody had to help.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from crowd import Lost
from digits import DigitsEnsemble
from mortal_postgres import cut_all, mortal_postgres
from replicas import replicas
from sqlalchemy import text
from witness import Witness

from terrine_server.ledger import connect


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
            with one_server(
                f"sqlite:///{disk}/terrine.sqlite", digits_ensemble, tmp_path
            ) as servers:
                check_full_disk(Witness(servers), disk)
        else:
            with mortal_postgres(disk) as server:
                url = server.url(server.make_database())
                with one_server(url, digits_ensemble, tmp_path) as servers:
                    check_full_disk(Witness(servers), disk)


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
    """On a SQLite file that cannot be written, no query is answered until it can."""
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
        time.sleep(2)
        with pytest.raises(Lost):
            witness.ask()
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        witness.ask_until_told()
        witness.judge()


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    reason="connections opened while the database was read-only stay so, and stay in the pool",
)
@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_a_database_made_read_only_is_a_503_until_it_is_writable(witness: Witness) -> None:
    """As after a failover to a standby, or where an operator freezes it for a backup."""
    url = witness.servers.database_url
    witness.ask()
    alter(url, "SET default_transaction_read_only = on")
    for _ in range(3):
        with pytest.raises(Lost):
            witness.ask()
    witness.ask_again(witness.told[0])
    alter(url, "RESET default_transaction_read_only")
    witness.ask_until_told()
    witness.judge()


def alter(url: str, how: str) -> None:
    """Alter the database, and end all sessions, which would go on as before."""
    with connect(url).connect() as connection:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        name = connection.scalar(text("SELECT current_database()"))
        connection.execute(text("SET default_transaction_read_only = off"))
        connection.execute(text(f"ALTER DATABASE {name} {how}"))
        if how.startswith("SET"):
            cut_all(connection.exec_driver_sql)
