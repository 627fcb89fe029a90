"""Full disks, read-only disks and databases: clear refusals, and recovery without help."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from support.clients import Lost, Witness
from support.data import DigitsEnsemble
from support.databases import SECRET_KEY, running_postgres
from support.disks import fill, small_disk
from support.processes import until
from support.servers import Replicas, replicas
from support.wording import holds
from terrine_protocol import Role
from terrine_server.errors import DatabaseUnavailable
from terrine_server.ledger import Ledger, NewToken, connect


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)])
def test_a_full_disk_is_a_503_until_there_is_room(
    kind: str, digits_ensemble: DigitsEnsemble, tmp_path: Path
) -> None:
    with small_disk("4m" if kind == "sqlite" else "256m") as disk:
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
        witness.ask_until_lost(most=500)  # space that is already allocated is used up first
        for _ in range(3):
            with pytest.raises(Lost):
                witness.ask()
        with pytest.raises(DatabaseUnavailable):
            make_tokens(Ledger(connect(url), SECRET_KEY), 2000)
        assert witness.alive()
        assert not ready(servers)
        witness.ask_again(witness.exchanges[0])  # paid answers can be replayed
        filler.unlink()
        until(lambda: ready(servers), bool)
        witness.ask_until_answered()
        witness.judge()


def ready(servers: Replicas) -> bool:
    """Whether the server says that it can charge; if not, it says why."""
    reply = httpx.get(f"{servers.url(0)}/readyz")
    if reply.status_code == 503:
        assert reply.json()["type"] == "/problems/database-unavailable"
    return reply.status_code == 200


def make_tokens(ledger: Ledger, count: int) -> None:
    for number in range(count):
        ledger.tokens.create(
            NewToken(
                id=f"{number:016x}",
                hash=bytes(32),
                role=Role.AUDITOR,
                project=None,
                label="fills what room is left",
                expires_at=datetime.now(UTC),
            )
        )


@pytest.mark.slow
def test_a_server_refuses_to_start_on_a_read_only_disk(
    digits_ensemble: DigitsEnsemble, tmp_path: Path
) -> None:
    with (
        small_disk("4m") as disk,
        replicas(
            tmp_path / "data", f"sqlite:///{disk}/terrine.sqlite", digits_ensemble, 1
        ) as servers,
    ):
        witness = Witness(servers)
        witness.ask()
        servers.stop(0)
        servers.engine.dispose()  # this process also has it open
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        servers.start(0)
        holds(servers.refusal(0), "cannot")
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        servers.wait_until_ready(0)
        witness.ask_again(witness.exchanges[0])
        witness.ask()
        witness.judge()
