"""A signed anchor vouches for all before it; nobody else's word does."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anchoring import anchored, ask, key_pair, terrine
from books import open_project, unguarded
from forging import altered, cut, write
from migrated import SECRET_KEY
from sqlalchemy import delete

from terrine_server.cli.console import CommandError
from terrine_server.ledger import Ledger, connect, upgrade
from terrine_server.ledger.anchors import (
    Anchor,
    AnchorError,
    AnchorFile,
    load_private_key,
    load_public_key,
    read_anchors,
    write_anchors,
)
from terrine_server.ledger.store.tables import projects


def fields_of(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from fields_of(value[key], *path, key)
    else:
        yield path


def test_every_field_of_an_anchor_is_signed(
    ledger: Ledger, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    file, key = tmp_path / "anchor.json", load_public_key(keys[1])
    file.write_text(write_anchors([anchored(ledger)], load_private_key(keys[0])))
    assert read_anchors(file, key) == AnchorFile([anchored_as(file)], None, True)
    document = json.loads(file.read_text())
    paths = list(fields_of(document))
    assert len(paths) == 16
    for path in paths:
        forged = json.loads(json.dumps(document))
        holder = forged
        for step in path[:-1]:
            holder = holder[step]
        value = holder[path[-1]]
        holder[path[-1]] = (not value) if isinstance(value, bool) else altered(value)
        file.write_text(json.dumps(forged))
        with pytest.raises(AnchorError):
            read_anchors(file, key)


def anchored_as(file: Path) -> Anchor:
    return read_anchors(file, None).anchors[0]


def test_another_key_or_no_signature_vouches_for_nothing(
    ledger: Ledger, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    file = tmp_path / "anchor.json"
    stranger = load_public_key(key_pair(tmp_path, "stranger")[1])
    file.write_text(write_anchors([anchored(ledger)], load_private_key(keys[0])))
    with pytest.raises(AnchorError):
        read_anchors(file, stranger)
    file.write_text(write_anchors([anchored(ledger)], None))
    with pytest.raises(AnchorError):
        read_anchors(file, load_public_key(keys[1]))


def test_what_is_no_key_is_refused_with_the_command_that_makes_one(
    keys: tuple[Path, Path], tmp_path: Path
) -> None:
    other = tmp_path / "none.pem"
    other.write_text("nonsense")
    for wrong in (other, keys[1]):
        with pytest.raises(AnchorError, match="openssl genpkey -algorithm ed25519"):
            load_private_key(wrong)
    for wrong in (other, keys[0]):
        with pytest.raises(AnchorError, match="openssl pkey"):
            load_public_key(wrong)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="NO OPENSSL: not compared with it")
def test_openssl_makes_the_keys_and_checks_the_signature(ledger: Ledger, tmp_path: Path) -> None:
    """As docs/ledger.md says, without a line of ours."""

    def openssl(*arguments: str | Path) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

    private, public = tmp_path / "anchor.key", tmp_path / "anchor.pub"
    openssl("genpkey", "-algorithm", "ed25519", "-out", private)
    openssl("pkey", "-in", private, "-pubout", "-out", public)
    document = json.loads(write_anchors([anchored(ledger)], load_private_key(private)))
    signed, signature = tmp_path / "signed", tmp_path / "signature"
    signature.write_bytes(bytes.fromhex(document.pop("signature")))
    signed.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")))
    verify = ("pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in", signed)
    openssl(*verify, "-sigfile", signature)
    signed.write_text(signed.read_text().replace('"entries":6', '"entries":7'))
    with pytest.raises(subprocess.CalledProcessError):
        openssl(*verify, "-sigfile", signature)


# ------------------------------------------------------------------------ the commands


def test_the_commands_from_anchor_to_finding(
    ledger: Ledger, database_url: str, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = keys
    file = tmp_path / "anchor.json"
    trusted = ("--anchor", file, "--public-key", public)
    made = terrine("anchor", "--key", private, "--output", file)
    assert made.exit_code == 0
    assert "signed" in made.output
    ask(ledger, 100)
    open_project(ledger, 3, name="newer")
    verified = terrine("verify", *trusted)
    assert verified.exit_code == 0, verified.output
    assert "newer: intact" in verified.output
    resumed = terrine("verify", "study", *trusted, "--resume")
    assert resumed.exit_code == 0
    assert "7 charges, the first 6 trusted to the anchor" in resumed.output
    with unguarded(database_url) as connection:
        cut(connection, 4)
    upgrade(connect(database_url), SECRET_KEY)  # a careful forger puts the guards back
    for arguments in ((), ("study",), ("study", "--resume")):
        found = terrine("verify", *arguments, *trusted)
        assert found.exit_code == 1
        assert "study: NOT INTACT" in found.output
        assert "anchor: entry 6, there at" in found.output
    assert terrine("verify", "study").exit_code == 0


def test_a_project_that_is_no_longer_there_is_named(
    ledger: Ledger, database_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "anchor.json"
    open_project(ledger, 3, name="newer")
    assert terrine("anchor", "--output", file).exit_code == 0
    with unguarded(database_url) as connection:
        connection.execute(delete(projects).where(projects.c.name == "newer"))
    for arguments in ((), ("newer",)):
        found = terrine("verify", *arguments, "--anchor", file)
        assert found.exit_code == 1
        assert "newer: NOT INTACT, gone" in found.output


def test_nothing_is_taken_on_the_word_of_an_unsigned_anchor(
    ledger: Ledger, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    file = tmp_path / "anchor.json"
    file.write_text(terrine("anchor", "study").stdout)
    for arguments, refusal in [
        (("--anchor", file, "--resume"), "give --public-key"),
        (("--anchor", file, "--resume", "--public-key", keys[1]), "is not signed"),
        (("--public-key", keys[1]), "give --anchor"),
    ]:
        result = terrine("verify", "study", *arguments)
        assert isinstance(result.exception, CommandError | AnchorError)
        assert refusal in str(result.exception)
    assert terrine("verify", "study", "--anchor", file).exit_code == 0


def test_a_project_that_the_anchors_leave_out_is_not_passed_over(
    ledger: Ledger, tmp_path: Path
) -> None:
    file = tmp_path / "anchor.json"
    file.write_text(terrine("anchor", "study").stdout)
    open_project(ledger, 3, name="newer")
    result = terrine("verify", "newer", "--anchor", file)
    assert isinstance(result.exception, CommandError)
    assert "no anchor of project newer" in str(result.exception)


def test_ledger_corrupted_are_never_anchored(
    ledger: Ledger, database_url: str, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    with unguarded(database_url) as connection:
        write(connection, 2, {"label": 9})
    upgrade(connect(database_url), SECRET_KEY)  # a careful forger puts the guards back
    file = tmp_path / "anchor.json"
    result = terrine("anchor", "all", "--key", keys[0], "--output", file)
    assert isinstance(result.exception, CommandError)
    assert "entry 2: altered" in result.output
    assert not file.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "terrine-anchor/1"}', "\0"])
def test_what_is_no_anchor_is_refused(text: str, ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "anchor.json"
    file.write_text(text)
    result = terrine("verify", "study", "--anchor", file)
    assert isinstance(result.exception, AnchorError)
    assert str(file) in str(result.exception)


def test_a_bar_is_drawn_on_a_terminal_only(ledger: Ledger) -> None:
    result = terrine("verify", "study")
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
