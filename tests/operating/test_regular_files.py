"""A pipe or a device that is named as a file is refused at once, wherever a file is read.

Nobody writes to the pipe: to wait for it is to wait for ever. /dev/zero never ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.processes import Terrine
from support.wording import holds, refuses
from terrine_models.data.arrays import DataError, load_idx, load_inputs
from terrine_models.data.images import load_images
from terrine_models.storage.manifests import StoreError, read_verified
from terrine_models.students.models import Student
from terrine_models.tables.loading import read_schema
from terrine_models.teachers.shards import read_partition
from terrine_protocol.files import MAX_DOCUMENT_BYTES, open_regular_file, read
from terrine_protocol.projects import ImageFormat
from terrine_server.cli.plan import load_votes
from terrine_server.ledger.verifying import verify_export
from terrine_server.owner.checkpoints import load_checkpoint_key, load_policy
from terrine_server.owner.sign_in import SecretKeyError, load_secret_key
from terrine_server.settings import Settings
from terrine_tables.files import check_table

SAYS = ("regular", "pipe", "device")
KINDS = ["pipe", "device"]


@pytest.fixture(params=KINDS)
def irregular(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    """Make a path of that name which is a pipe, or leads to a device."""

    def make(name: str) -> Path:
        path = tmp_path / name
        if request.param == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
        return path

    return make


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "IDX images": ("images", lambda path: load_idx(path, path)),
    "packed IDX images": ("images.gz", lambda path: load_idx(path, path)),
    "inputs in .npy": ("inputs.npy", load_inputs),
    "inputs in .npz": ("inputs.npz", load_inputs),
    "a picture in a folder": (
        "1.png",
        lambda path: load_images(path.parent, ImageFormat(height=2, width=2, grey=True)),
    ),
    "a table": ("table.csv", check_table),
    "a schema": ("schema.json", read_schema),
    "a partition": ("partition.json", read_partition),
    "an owner's token": (
        "peer.token",
        lambda path: pytest.importorskip("terrine_addons.federation.federations").read_token(path),
    ),
    "a teacher": ("teacher", lambda path: read_verified(path.parent, path.name, "")),
    "a student": ("model.json", lambda path: Student.load(path.parent)),
    "the log's key": ("key", load_checkpoint_key),
    "a policy": ("policy", load_policy),
    "an export": ("export", lambda path: verify_export(path)),
    "the secret key": ("key", load_secret_key),
    "votes": ("votes.npz", lambda path: load_votes(path, [])),
    "the database's password": (
        "password",
        lambda path: Settings(database_password_file=path).database_password(),
    ),
}


@pytest.mark.parametrize("what", READERS)
def test_no_reader_waits_for_a_pipe_or_reads_a_device(
    what: str, irregular: Callable[[str], Path]
) -> None:
    name, reader = READERS[what]
    path = irregular(name)
    errors = (OSError, DataError, StoreError, SecretKeyError)
    with pytest.raises(errors, match="regular") as refused:
        reader(path)
    holds(str(refused.value), *SAYS)
    assert str(path) in str(refused.value)


def test_the_secret_of_an_issuer_is_a_regular_file(irregular: Callable[[str], Path]) -> None:
    issuer = pytest.importorskip("terrine_addons.oidc.issuer")
    with refuses(issuer.IssuerError, "read"):
        issuer._secret(irregular("secret"))


AT = ("--url", "http://127.0.0.1:9")
COMMANDS: dict[str, Callable[[Path], tuple[Any, ...]]] = {
    "ledger verify": lambda path: ("ledger", "verify", "--file", path),
    "ensemble schema": lambda path: ("ensemble", "schema", path, "--label", "y"),
    "student label": lambda path: ("student", *AT, "label", path, "--out", "labels.npz"),
    "student's token": lambda path: ("student", *AT, "--token-file", path, "budget"),
    "plan": lambda path: ("plan", "gnmax", "--votes", path, "--votes-are", "public"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_in_a_line_what_is_no_file(
    command: str, irregular: Callable[[str], Path], terrine: Terrine
) -> None:
    refused = terrine(*COMMANDS[command](irregular("named")), TERRINE_TOKEN="terrine_x").refused
    holds(refused, *SAYS)
    assert "named" in refused


def test_a_regular_file_is_read_through_links_and_a_document_has_a_limit(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"content")
    link.symlink_to(file)
    assert read(link) == b"content"
    os.truncate(file, MAX_DOCUMENT_BYTES)
    assert len(read(file)) == MAX_DOCUMENT_BYTES
    os.truncate(file, MAX_DOCUMENT_BYTES + 1)
    with refuses(OSError, "larger"):
        read(file)
    assert len(read(file, None)) == MAX_DOCUMENT_BYTES + 1
    with pytest.raises(IsADirectoryError):
        open_regular_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular_file(tmp_path / "missing")
