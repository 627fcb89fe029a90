"""`docker compose --profile witness`: a witness in its own container, killed, late, lying."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from support.processes import until
from support.servers import Composition, composed, docker
from support.wording import holds, says

pytestmark = [pytest.mark.docker, pytest.mark.nightly, pytest.mark.timeout(1800)]

UP = ("up", "--detach", "--wait", "witness")


@dataclass(frozen=True)
class Witnessed:
    """A service whose policy needs the witness, and what is asked of both."""

    compose: Composition

    def log(self) -> dict[str, Any]:
        """What a service that is ready says of its log."""
        found = httpx.get(f"{self.compose.url}/readyz", timeout=30).raise_for_status().json()
        log: dict[str, Any] = found["log"]
        return log

    def act(self) -> int:
        """Do something that is logged; return how many entries the log has then."""
        before = self.log()["size"]
        self.compose.terrine("token", "create", "--role", "auditor")
        until(lambda: self.log()["size"] > before)
        logged: int = self.log()["size"]
        return logged

    def cosigned(self) -> bool:
        found = self.log()
        return list(found["cosigned"]) == ["w"] and found["missing"] == []

    def missed(self) -> bool:
        return bool(self.log()["missing"] == ["w"])


def printed(composition: Composition, service: str, pattern: str) -> str:
    """What a service printed last in this form."""
    logs = composition.succeed("logs", "--no-log-prefix", service)
    return str(re.findall(pattern, logs)[-1])


@pytest.fixture(scope="module")
def witnessed(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witnessed]:
    with composed(tmp_path_factory.mktemp("witness"), {"witness": "-witness"}) as composition:
        composition.succeed("up", "--detach", "--wait")
        composition.environment["WITNESSED_LOG"] = printed(
            composition, "migrate", r"log (\S+\+\S+)"
        )
        composition.environment["COMPOSE_PROFILES"] = "witness"
        composition.environment["WITNESS_NAME"] = "witness.example"
        composition.succeed("build", "witness")
        composition.succeed(*UP)
        key = printed(composition, "witness", r"witness NAME (\S+)")
        log = composition.environment["WITNESSED_LOG"]
        policy = f"log {log}\nwitness w {key} http://witness:8470\nquorum w\n"
        write = ("-euc", 'printf %s "$1" > policy', "sh", policy)
        composition.succeed(
            "run", "--rm", "--no-TTY", "--no-deps", "--entrypoint", "sh", "server", *write
        )
        composition.succeed("restart", "server")
        until(lambda: httpx.get(f"{composition.url}/readyz").status_code == 200)
        yield Witnessed(composition)


def test_its_image_has_neither_pytorch_nor_a_database(witnessed: Witnessed) -> None:
    heavy = ("torch", "sqlalchemy", "psycopg", "fastapi", "scipy")
    asked = f"import importlib.util as u; print([n for n in {heavy} if u.find_spec(n)])"
    command = ("exec", "--no-TTY", "witness", "python", "-c", asked)
    assert witnessed.compose.succeed(*command).strip() == "[]"
    (image,) = {
        line.split()[0]
        for line in docker("images", "--format", "{{.Repository}}:{{.Tag}}").splitlines()
        if line.startswith(f"{witnessed.compose.environment['COMPOSE_PROJECT_NAME']}-witness:")
    }
    assert int(docker("image", "inspect", "--format", "{{.Size}}", image)) < 600e6


def test_it_cosigns_and_nobody_waits_while_it_is_killed_or_late(witnessed: Witnessed) -> None:
    until(witnessed.cosigned)
    for stop, go_on in (("kill", UP), ("pause", ("unpause", "witness"))):
        witnessed.compose.succeed(stop, "witness")
        logged = witnessed.act()
        until(witnessed.missed)
        assert witnessed.act() > logged, "the log and the ledger go on"
        refused = witnessed.compose("run", "--rm", "--no-TTY", "--no-deps", "server", *VERIFY)
        assert refused.returncode == 1
        holds(refused.stdout, "nobody", "quorum")
        witnessed.compose.succeed(*go_on)
        until(witnessed.cosigned)
        holds(witnessed.compose.terrine(*VERIFY), "cosigned", "w")


VERIFY = ("ledger", "verify", "all", "--policy", "policy")
SIGNED = ("ledger", "verify", "all", "--checkpoint", "checkpoint.signed")
RESTORE = "pg_restore --username=terrine --dbname=terrine --clean --if-exists --single-transaction"


def test_a_history_that_was_rolled_back_is_not_cosigned(witnessed: Witnessed) -> None:
    """An honest service signs nothing after it, and spends nothing.

    Of one that forgets, the witness knows.
    """
    compose = witnessed.compose

    def shell(service: str, command: str) -> str:
        return compose.succeed("exec", "--no-TTY", service, "sh", "-euc", command)

    def readiness() -> str:
        found = httpx.get(f"{compose.url}/readyz", timeout=30).json()
        return str(found.get("status") if "log" in found else found.get("type"))

    def set_back(to: str, then: str, found: str = "ready") -> None:
        """Restore a dump with the database's own tool, do something in the volume, and serve."""
        compose.succeed("stop", "server")
        shell("db", f"{RESTORE} < /tmp/{to}.dump")
        compose.succeed(
            "run", "--rm", "--no-TTY", "--no-deps", "--entrypoint", "sh", "server", "-euc", then
        )
        compose.succeed("up", "--detach", "--wait")
        until(lambda: readiness() == found)

    def dump(name: str) -> None:
        shell("db", f"pg_dump --username=terrine --format=custom terrine > /tmp/{name}.dump")

    dump("older")
    for _ in range(3):
        witnessed.act()
    until(witnessed.cosigned)
    published = witnessed.log()["size"]
    dump("newer")

    set_back("older", "cp checkpoint.signed checkpoint.kept", "/problems/ledger-restored")
    before = httpx.get(f"{compose.url}/checkpoint").text
    compose.terrine("token", "create", "--role", "auditor")
    until(lambda: says(compose.succeed("logs", "server"), "no", "checkpoint"))
    assert httpx.get(f"{compose.url}/checkpoint").text == before
    found = compose("run", "--rm", "--no-TTY", "--no-deps", "server", *SIGNED)
    assert found.returncode == 1
    holds(found.stdout, "older", "backup")

    set_back("older", "rm checkpoint.signed")
    while witnessed.act() < published:
        pass
    until(witnessed.missed)
    witnessed.act()
    assert witnessed.missed(), "a longer one does not continue it, either"
    said = compose.succeed("logs", "server")
    holds(said, "older", "published")
    refused = compose("run", "--rm", "--no-TTY", "--no-deps", "server", *VERIFY)
    assert refused.returncode == 1
    holds(refused.stdout, "nobody", "quorum")

    set_back("newer", "mv checkpoint.kept checkpoint.signed")
    until(witnessed.cosigned)
    witnessed.act()
    until(witnessed.cosigned)


def test_another_key_at_its_address_is_no_witness(witnessed: Witnessed) -> None:
    """Nor does its forgetting what it promised bring it back: it has another key then."""
    until(witnessed.cosigned)
    witnessed.compose.succeed("rm", "--stop", "--force", "witness")
    docker("volume", "rm", f"{witnessed.compose.environment['COMPOSE_PROJECT_NAME']}_witness")
    witnessed.compose.succeed(*UP)
    witnessed.act()
    until(witnessed.missed)
    said = witnessed.compose.succeed("logs", "--no-log-prefix", "server")
    holds(said, "cosignature")
    assert witnessed.missed()
