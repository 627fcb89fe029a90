"""What docker-compose.yml, its profiles, `with-files` and `make owners` do, without an engine."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tomllib
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from support.documents import REPOSITORY, lines, section
from support.processes import held_port, run_program, until
from support.wording import holds

COMPOSE = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
OWNER = yaml.safe_load((REPOSITORY / "docker" / "owners" / "owner.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"] | OWNER["services"]
SETUP = REPOSITORY / "docker" / "owners" / "setup.py"
WITH_FILES = REPOSITORY / "docker" / "with-files"


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_locked_down(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert ("ports" in service) == (name in ("proxy", "grafana")), (
        "unauthenticated clients meet the proxy, and nobody else of what is always there"
    )
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert not service.get("privileged")


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_fills_the_disk_with_its_log(name: str) -> None:
    logging = SERVICES[name]["logging"]
    assert logging == {"driver": "local", "options": {"max-size": "20m", "max-file": "5"}}


def test_only_servers_share_a_network_with_what_is_private() -> None:
    joined = {
        network: {name for name, service in SERVICES.items() if network in service["networks"]}
        for network in COMPOSE["networks"]
    }
    assert joined == {
        "inside": {"db", "migrate", "server", "server-ray", "with-files"},
        "behind": {"server", "server-ray", "proxy", "prometheus"},
        "outside": {"proxy", "grafana"},
        "owners": {"server", "owner"},
        "witnesses": {"server", "witness"},
        "cluster": {"server-ray", "ray-head", "ray-worker"},
        "monitoring": {"prometheus", "grafana"},
    }
    closed = {name for name, network in COMPOSE["networks"].items() if network}
    assert closed == joined.keys() - {"outside"}


def test_commands_know_where_they_are_typed_and_others_come_in() -> None:
    variables = [each.get("environment", {}) for each in SERVICES.values()]
    ours = [each for each in variables if "TERRINE_DATABASE_URL" in each]
    assert len(ours) > 2
    for environment in ours:
        assert environment["TERRINE_STARTED_BY"] == "compose"
        assert "${TERRINE_PUBLIC_URL:-" in environment["TERRINE_PUBLIC_URL"]
        assert "${TERRINE_PORT:-8000}" in environment["TERRINE_PUBLIC_URL"]


def test_profiles_are_off_until_they_are_asked_for() -> None:
    usual = {name for name, service in SERVICES.items() if "profiles" not in service}
    assert usual == {"db", "migrate", "server", "proxy"}
    assert COMPOSE["include"] == ["${OWNERS_FILE:-docker/owners/none.yml}"]


def test_no_command_of_one_moment_replaces_what_runs() -> None:
    """`docker compose run` starts what its service needs, and replaces it if it has changed."""
    told = [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "docker").rglob("*"),
        *(REPOSITORY / "server").rglob("*.py"),
    ]
    commands = [
        found[0]
        for file in told
        if file.is_file()
        for found in re.finditer(
            r"docker compose run\b.*?\s(" + "|".join(SERVICES) + r"|owner-\d+)\b",
            re.sub(r'"\s*"|\\?\n\s*', " ", file.read_text()),
        )
    ]
    assert len(commands) > 5
    for command in commands:
        service = command.split()[-1]
        depends = SERVICES["owner" if service.startswith("owner-") else service].get("depends_on")
        assert not depends or "--no-deps" in command, command


def test_the_proxy_answers_while_servers_are_replaced() -> None:
    """Whatever depends on a server is stopped before it, and started after it."""
    assert "depends_on" not in SERVICES["proxy"]
    for heading in ("Upgrade", "Roll back"):
        shell = lines(section(REPOSITORY / "docs" / "upkeep.md", heading))
        servers, others = [line for line in shell if line.split()[1:3] == ["compose", "up"]]
        assert servers.split()[3:] == ["--detach", "--wait", "server"]
        assert others.split()[3:] == ["--detach", "--wait", "--remove-orphans"]
    for heading in ("Restore", "Roll back"):
        shell = lines(section(REPOSITORY / "docs" / "upkeep.md", heading))
        assert ["docker", "compose", "stop", "server"] in map(str.split, shell)


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
def test_the_proxy_listens_on_both_families_and_tells_addresses_as_they_are(
    tmp_path: Path,
) -> None:
    """An IPv4 address as one: written as IPv6, all of them would be one network."""
    held = held_port("::")
    port = held.getsockname()[1]
    seen = "    http-request return status 200 hdr Seen %[src] if { path /seen }\n"
    for name in ("start", "haproxy.cfg"):
        text = (REPOSITORY / "docker" / "proxy" / name).read_text()
        text = re.sub("/etc/terrine/|/tmp/", f"{tmp_path}/", text)
        text = re.sub(r"(?<=:)8000(?=[,;\n])", str(port), text)
        text = text.replace("    default_backend", f"{seen}    default_backend")
        (tmp_path / name).write_text(text)
    environment = os.environ | {"TERRINE_PATH_PREFIX": ""}
    with held, subprocess.Popen(["sh", tmp_path / "start"], env=environment) as proxy:
        try:
            for host, at in (("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")):
                until(partial(listens, host, port))
                assert httpx.get(f"http://{at}:{port}/seen").headers["Seen"] == host
        finally:
            proxy.terminate()


def listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port)):
        return True
    return False


def test_whoever_watches_has_the_files_that_it_names_and_one_token() -> None:
    watching = {name: SERVICES[name] for name in ("prometheus", "grafana")}
    for service in watching.values():
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"]), "no moving tag"
        files = [each.split(":")[0] for each in service["volumes"] if each.startswith("./")]
        assert files
        assert all((REPOSITORY / file).is_file() for file in files)
        assert all(each.endswith(":ro") for each in service["volumes"] if each.startswith("./"))
    asks = REPOSITORY / "docker" / "monitoring" / "prometheus.yml"
    (scraped,) = yaml.safe_load(asks.read_text())["scrape_configs"]
    (token,) = watching["prometheus"]["secrets"]
    assert scraped["authorization"] == {"credentials_file": f"/run/secrets/{token}"}
    (found,) = scraped["dns_sd_configs"]
    servers = {name for name, service in SERVICES.items() if name.startswith("server")}
    assert set(found["names"]) == servers
    assert all("behind" in SERVICES[name]["networks"] for name in servers)
    for name in ("datasource.yml", "dashboards.yml"):
        assert any(name in each for each in watching["grafana"]["volumes"])
    source = yaml.safe_load((asks.parent / "datasource.yml").read_text())["datasources"]
    assert [each["url"] for each in source] == ["http://prometheus:9090"]


# ---------------------------------------------------------------------------------- private files


def with_files(sent: bytes, *command: str, memory: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", str(WITH_FILES), *command],
        input=sent,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(memory)},
        capture_output=True,
        check=False,
    )


def test_files_that_nobody_else_may_read_lie_beside_a_command_and_go_with_it(
    tmp_path: Path,
) -> None:
    """With a folder that has several; whatever their modes, its own account alone may read them."""
    private, memory = tmp_path / "private", tmp_path / "memory"
    (private / "ward").mkdir(parents=True)
    memory.mkdir()
    for name, mode in {"ward/one.csv": 0o600, "ward/two.csv": 0o444, "three.csv": 0o640}.items():
        (private / name).write_text(name)
        (private / name).chmod(mode)
    create = ["tar", "--directory", str(private), "--create", "ward", "three.csv"]
    sent = subprocess.run(create, capture_output=True, check=True).stdout
    look = "cat ward/* three.csv; find . -type f -perm /077; cp three.csv ward/made; exit 3"
    done = with_files(sent, "sh", "-c", look, memory=memory)
    assert done.stdout == b"ward/one.csvward/two.csvthree.csv", "in the order of their names"
    assert done.returncode == 3, "the command's own"
    assert list(memory.iterdir()) == []


def test_without_files_the_command_is_not_run_and_says_how_to_send_them(tmp_path: Path) -> None:
    refused = with_files(b"no archive" * 100, "echo", "run", memory=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, b"")
    holds(refused.stderr.decode(), "tar", "--create")
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------------------- owners


def set_up(directory: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SETUP), *arguments]
    return run_program(*command, cwd=directory, **options)


needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="NO OPENSSL on this machine: owners are not made here."
)


@needs_openssl
def test_each_owner_has_a_key_and_token_of_its_own_and_keeps_them(tmp_path: Path) -> None:
    assert set_up(tmp_path, "2").returncode == 0
    made = tmp_path / "owners"
    kept = {file: file.read_bytes() for file in made.glob("*/*")}
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert len({kept[made / f"owner-{n}" / file] for n in (1, 2) for file in FILES}) == 6
    given = {file.name for file in (made / "for-the-service").iterdir()}
    assert given == {"owners.toml", *(f"owner-{n}.{kind}" for n in (1, 2) for kind in GIVEN)}

    more = set_up(tmp_path, "owner-1 owner-2 st-mary")
    assert more.returncode == 0, more.stderr
    assert '[[owner]]\nname = "st-mary"' in more.stdout
    assert {file: file.read_bytes() for file in kept} == kept
    services = yaml.safe_load((made / "compose.yml").read_text())["services"]
    assert list(services) == ["owner-1", "owner-2", "st-mary"]
    for name, service in services.items():
        base = (made / service["extends"]["file"]).resolve()
        assert base == SETUP.with_name("owner.yml")
        assert {secret["source"] for secret in service["secrets"]} == {
            f"{name}-{kind}" for kind in ("key", "certificate", "token")
        }
    assert (tmp_path / ".env").read_text() == "OWNERS_FILE=./owners/compose.yml\n"


FILES = ("key.pem", "certificate.pem", "token")
GIVEN = ("pem", "token")


@needs_openssl
def test_the_federation_that_is_made_can_be_gathered(tmp_path: Path) -> None:
    gather = pytest.importorskip("terrine_addons.federation.gathering").create_federation
    assert set_up(tmp_path, "4").returncode == 0
    file = tmp_path / "owners" / "for-the-service" / "owners.toml"
    federation = gather(file, "districts", tmp_path / "districts")
    assert (len(federation.owners), federation.quorum) == (4, 3)
    assert tomllib.loads(file.read_text())["owner"][3]["url"] == "https://owner-4:8100"


@pytest.mark.parametrize("owners", ["1", "", "north north", "North south", "for-the-service a"])
def test_other_owners_are_refused(tmp_path: Path, owners: str) -> None:
    refused = set_up(tmp_path, owners)
    assert refused.returncode == 1
    assert re.search("expected (a-z|a number, 2 or more)", refused.stderr)
    assert list(tmp_path.iterdir()) == []


def test_without_openssl_it_says_what_to_install(tmp_path: Path) -> None:
    refused = set_up(tmp_path, "3", env={"PATH": str(tmp_path)})
    assert refused.returncode == 1
    holds(refused.stderr, "openssl")
    assert list(tmp_path.iterdir()) == []


def test_without_owners_their_teachers_are_not_trained(tmp_path: Path) -> None:
    refused = set_up(tmp_path, "--demo")
    assert refused.returncode == 1
    holds(refused.stderr, "owners`")
