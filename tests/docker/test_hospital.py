"""docs/tutorials/hospital.md as its reader follows it with Docker, from records to answers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.documents import IN_DOCKER, ROOT, blocks, lines
from support.servers import Composition, composed, docker
from support.wording import holds
from terrine_client import Client
from terrine_tables.encoding import encode_table

pytestmark = [pytest.mark.docker, pytest.mark.nightly, pytest.mark.timeout(1800)]

PAGE = ROOT / "docs" / "tutorials" / "hospital.md"
STAYS = "docs/tutorials/stays.py"
WEEKLY = "docker compose exec server terrine ledger verify all"
"""The first line of what is done once a week."""


def typed() -> list[str]:
    """Return what a reader with Docker types, in its order."""
    shell = [line for _, text in blocks(PAGE, "bash") for line in lines(text)]
    return [line for line in shell if IN_DOCKER.search(line) or STAYS in line]


@pytest.fixture
def compose(engine: None, tmp_path: Path) -> Iterator[Composition]:
    """The composition, up and healthy, as docs/deploying.md leaves it."""
    directory = tmp_path / "secrets"
    directory.mkdir()
    with composed(directory) as composition:
        composition.succeed("up", "--detach", "--wait")
        yield composition


def test_private_files_become_answers_by_the_page_s_commands(
    compose: Composition, tmp_path: Path
) -> None:
    checkout = tmp_path / "checkout"
    (checkout / STAYS).parent.mkdir(parents=True)
    shutil.copy(ROOT / STAYS, checkout / STAYS)

    def type_in(line: str) -> str:
        return compose.type_in(line, checkout)

    opened, weekly = typed(), list[str]()
    while WEEKLY in opened:
        weekly.insert(0, opened.pop())
    said = "\n".join(map(type_in, opened))
    holds(said, "noisy_votes:sigma=127", "--epsilon", 2)
    holds(said, "problems", "found")
    student, auditor = re.findall(r"terrine_[0-9a-f]{16}_\S+", said)

    export = checkout / "export.csv"
    assert export.stat().st_mode & 0o777 == 0o600, "as it was"
    look = ("exec", "--no-TTY", "server", "find", "/tmp", "/var/lib/terrine", "-name", "*.csv")
    assert compose.succeed(*look) == ""
    mine = f"label=com.docker.compose.project={compose.environment['COMPOSE_PROJECT_NAME']}"
    ran = f"{mine},label=com.docker.compose.service=with-files".split(",")
    filters = [part for label in ran for part in ("--filter", label)]
    assert docker("ps", "--all", "--quiet", *filters) == "", "it is gone with its files"

    with Client(compose.url, student) as client:
        schema = client.project().ensemble.encoding
        assert schema is not None
        pool = encode_table(checkout / "pool.csv", schema)
        first, second = client.label(pool[:40]), client.label(pool[40:80])
        compose.succeed("restart", "server")
        compose.start_again()
        third = client.label(pool[80:120])
        again = client.label(pool[:40])
    assert all(labels.answered.all() for labels in (first, second, third))
    assert again.replayed.all()
    assert again.noisy_counts is not None
    assert first.noisy_counts is not None
    assert np.array_equal(again.noisy_counts, first.noisy_counts)
    with Client(compose.url, auditor) as client:
        charges = list(client.charges("readmission", outcome="answered"))
        assert len(charges) == len(np.unique(pool[:120], axis=0))
        assert client.verify("readmission").ok

    for line in weekly:
        type_in(line)
    kept = (checkout / "today.checkpoint").read_text()
    assert kept.count("\n") >= 3, kept
