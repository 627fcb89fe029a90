"""docs/upkeep.md and docs/rotation.md, as operators follow them with Docker Compose."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import yaml

from support.documents import ROOT, lines, section
from support.processes import until
from support.servers import SECRETS, Composition, composed, docker
from support.wording import holds

pytestmark = [pytest.mark.docker, pytest.mark.nightly, pytest.mark.timeout(1800)]

PAGE = ROOT / "docs" / "upkeep.md"
ROTATION = ROOT / "docs" / "rotation.md"
ALIAS = re.compile(r"^alias (\S+)='(.*)'$", re.MULTILINE)


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("backups")
    directory.chmod(0o777)  # without `sudo`, the account of the containers gets in so
    return directory


@pytest.fixture(scope="module")
def compose(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composition]:
    directory = tmp_path_factory.mktemp("secrets")
    with composed(directory) as composition:
        composition.succeed("up", "--detach", "--wait")
        yield composition


@pytest.fixture(scope="module")
def upgraded(compose: Composition) -> Composition:
    """The same composition in a version of which every image and the database are new."""
    migrate = compose.environment["COMPOSE_PROJECT_NAME"]
    for image in (migrate, f"{migrate}-proxy"):
        subprocess.run(
            ["docker", "build", "--quiet", "--tag", image, "-"],
            input=f'FROM {image}\nLABEL upgraded="yes"\n',
            text=True,
            check=True,
        )
    newer = compose.files[1].with_name("newer.yml")
    newer.write_text(yaml.safe_dump({"services": {"db": {"labels": {"upgraded": "yes"}}}}))
    return replace(compose, files=(*compose.files, newer))


def typed(heading: str, backups: Path) -> list[str]:
    """Return what docs/upkeep.md types under a heading, with its alias written out."""
    aliases = dict(ALIAS.findall(PAGE.read_text()))
    found = []
    for line in lines(section(PAGE, heading)):
        first, _, others = line.partition(" ")
        found.append(
            f"{aliases.get(first, first)} {others}".replace("/srv/terrine-backups", str(backups))
        )
    return found


def containers(compose: Composition) -> dict[str, str]:
    """Return the container of each service that runs."""
    listed = compose.succeed("ps", "--no-trunc", "--format", "{{.Service}} {{.ID}}")
    return dict(line.split() for line in listed.splitlines())


@contextmanager
def asking(url: str) -> Iterator[list[httpx.Response | httpx.HTTPError]]:
    """Ask again and again, each time by a connection of its own; yield the replies."""
    replies: list[httpx.Response | httpx.HTTPError] = []
    enough = threading.Event()

    def ask() -> None:
        while not enough.wait(0.1):
            try:
                replies.append(httpx.get(f"{url}/problems", timeout=60))
            except httpx.HTTPError as error:
                replies.append(error)

    student = threading.Thread(target=ask)
    student.start()
    try:
        yield replies
    finally:
        enough.set()
        student.join()


def replace_by_the_page(compose: Composition, heading: str) -> str:
    """Type what docs/rotation.md says under a heading; return what was printed."""
    directory = compose.files[1].parent
    return "".join(
        compose.type_in(re.sub(r"\bsecrets\b", str(directory), line))
        for line in lines(section(ROTATION, heading))
    )


def test_each_secret_is_replaced_and_tokens_and_entries_stay(compose: Composition) -> None:
    directory = compose.files[1].parent
    token = compose.terrine("token", "create", "--role", "auditor").strip()
    auditor = httpx.Client(
        base_url=compose.url, headers={"Authorization": f"Bearer {token}"}, timeout=60
    )

    def entries() -> int:
        reply = auditor.get("/ledger")
        assert reply.status_code == 200, reply.text
        return int(reply.json()["log"]["size"])

    until(lambda: auditor.get("/ledger").json()["log"])
    before = entries()
    secrets = {name: (directory / name).read_text() for name in SECRETS}
    for heading, file in {
        "The service's password": "service_password",
        "The owner's password": "db_password",
        "The secret key": "secret_key",
    }.items():
        replace_by_the_page(compose, heading)
        assert (directory / file).read_text() != secrets[file]
        assert entries() >= before
    for role, file in (("terrine_service", "service_password"), ("terrine", "db_password")):
        assert log_in(compose, role, (directory / file).read_text().strip()) == 0
        assert log_in(compose, role, secrets[file]) != 0, "the old password is void"

    said = replace_by_the_page(compose, "The key of the transparency log")
    (key,) = re.findall(r"^log (labels\.example\.org/2\S+)\s*$", said, re.MULTILINE)
    compose.terrine("token", "create", "--role", "auditor")  # one more entry
    until(lambda: entries() > before)
    note = auditor.get("/checkpoint").text
    auditor.close()
    assert note.splitlines()[0] == key.partition("+")[0]
    holds(compose.terrine("doctor"), "problems", "found")


def log_in(compose: Composition, role: str, password: str) -> int:
    """Return the exit code of a login over the network that servers use."""
    address = f"postgresql://{role}:{password}@db/terrine"
    return compose("exec", "--no-TTY", "db", "psql", address, "--command=SELECT 1").returncode


def test_an_upgrade_refuses_no_connection_while_servers_are_replaced(
    compose: Composition, upgraded: Composition, backups: Path
) -> None:
    steps = typed("Upgrade", backups)
    check = next(n for n, line in enumerate(steps) if line.endswith("upgrade --check"))
    before = containers(compose)
    assert before.keys() == {"db", "server", "proxy"}
    upgraded.type_in(steps[0])
    upgraded.type_in(steps[check])
    assert containers(compose) == before, "a check changes nothing"

    servers, others = steps[check + 1 :]
    with asking(compose.url) as replies:
        upgraded.type_in(servers)
    refused = [reply for reply in replies if isinstance(reply, httpx.HTTPError)]
    assert refused == []
    told = [
        reply for reply in replies if isinstance(reply, httpx.Response) if reply.status_code != 200
    ]
    assert {reply.status_code for reply in told} == {503}
    assert all(reply.headers["Retry-After"] == "2" for reply in told)
    assert {reply.json()["type"] for reply in told} == {"/problems/overloaded"}
    between = containers(compose)
    assert {name for name in before if between[name] == before[name]} == {"proxy"}

    upgraded.type_in(others)
    after = containers(compose)
    assert {name for name in before if after[name] != between[name]} == {"proxy"}
    assert httpx.get(f"{compose.url}/readyz").status_code == 200
    assert (
        docker("inspect", "--format", '{{index .Config.Labels "upgraded"}}', after["proxy"])
        == "yes\n"
    )
