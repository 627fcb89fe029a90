"""An anchor that was kept elsewhere tells what no look at the books alone can tell."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from books import CONFIDENT, EPOCHS, answered, open_ledger, open_project, unguarded
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from forging import account, altered, cut, rebuild, remove, rewrite, rows_of, write
from publishing import open_published, publishing_ledger, voted
from sqlalchemy import Connection, delete, update
from typer.testing import CliRunner, Result

from terrine_protocol import ProjectStatus
from terrine_server.cli.console import CommandError
from terrine_server.cli.ledger import app
from terrine_server.ledger import Ledger
from terrine_server.ledger.anchors import (
    Anchor,
    AnchorError,
    load_private_key,
    load_public_key,
    read_anchors,
    write_anchors,
)
from terrine_server.ledger.store.tables import ensembles, projects
from terrine_server.ledger.verifying.walk import verify_project

ENTRIES = 6
ONE_DATABASE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""Where nothing depends on which database it is."""


@pytest.fixture
def ledger(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("TERRINE_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "200")
    ledger = open_ledger(database_url)
    project = open_project(ledger, 20, CONFIDENT)
    ledger.charge(project.id, [answered(i, i) for i in range(ENTRIES)])
    return ledger


def ask(ledger: Ledger, *queries: object) -> None:
    ledger.charge(ledger.project("study").id, [answered(query) for query in queries])


def anchored(ledger: Ledger, name: str = "study") -> Anchor:
    anchor = ledger.verify(name).anchor
    assert anchor is not None
    return anchor


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A key pair as `openssl genpkey -algorithm ed25519` writes it."""
    return key_pair(tmp_path, "anchor")


def key_pair(directory: Path, name: str) -> tuple[Path, Path]:
    private, public = directory / f"{name}.key", directory / f"{name}.pub"
    key = Ed25519PrivateKey.generate()
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def terrine(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


# ------------------------------------------------------------------------ what it finds


def test_an_anchor_holds_while_the_ledger_grows(ledger: Ledger) -> None:
    anchor = anchored(ledger)
    for resume in (False, True):
        assert ledger.verify("study", anchor, resume).ok
    ask(ledger, *range(100, 105))
    for resume, vouched in ((False, 0), (True, ENTRIES)):
        found = ledger.verify("study", anchor, resume)
        assert found.ok, found.problems
        assert (found.charges, found.vouched) == (ENTRIES + 5, vouched)
        assert found.anchor == replaced(anchored(ledger), found.anchor)


def replaced(anchor: Anchor, other: Anchor | None) -> Anchor:
    """The anchor as if it were made when the other was."""
    assert other is not None
    return Anchor(**{**vars(anchor), "made_at": other.made_at})


REWRITTEN: dict[str, tuple[Callable[[Connection], object], str]] = {
    "cut tail with balances to match": (lambda c: cut(c, 4), "anchor: entry 6, there at "),
    "all cut but the first": (lambda c: cut(c, 1), "anchor: entry 6, there at "),
    "label altered, chain rewritten": (
        lambda c: rewrite(c, 3, label=9),
        "anchor: entry 6 is not the one of ",
    ),
    "swapped, chain rewritten": (
        lambda c: rebuild(c, [rows_of(c)[i] for i in (0, 2, 1, 3, 4, 5)]),
        "anchor: entry 6 is not the one of ",
    ),
    "last label altered, chain rewritten": (
        lambda c: rewrite(c, 6, label=9),
        "anchor: entry 6 is not the one of ",
    ),
}


def test_books_that_are_consistent_and_wrong_are_found(ledger: Ledger, database_url: str) -> None:
    anchor = anchored(ledger)
    with unguarded(database_url) as forger:
        forger.commit()
        for forgery, (forge, first_finding) in REWRITTEN.items():
            forge(forger)
            assert verify_project(forger, "study").ok, "without an anchor nobody can tell"
            for resume in (False, True):
                problems = verify_project(forger, "study", anchor, resume).problems
                assert problems, forgery
                assert problems[0].startswith(first_finding), problems
            forger.rollback()


def test_a_cut_tail_is_found_even_when_new_charges_took_its_place(
    ledger: Ledger, database_url: str
) -> None:
    anchor = anchored(ledger)
    with unguarded(database_url) as connection:
        cut(connection, 4)
    ask(ledger, *range(100, 110))
    assert ledger.verify("study").ok
    for resume in (False, True):
        problems = ledger.verify("study", anchor, resume).problems
        assert problems[0].startswith("anchor: entry 6 is not the one of ")


def test_a_closed_project_that_is_open_again_is_found(ledger: Ledger, database_url: str) -> None:
    ledger.set_status("study", ProjectStatus.CLOSED)
    anchor = anchored(ledger)
    with unguarded(database_url) as connection:
        account(status="active", closed_at=None)(connection)
    problems = ledger.verify("study", anchor).problems
    assert problems[0].startswith("anchor: it was closed at ")
    assert problems[0].endswith("active now")


def test_a_project_that_was_opened_anew_under_its_name_is_found(
    ledger: Ledger, database_url: str
) -> None:
    anchor = anchored(ledger)
    with unguarded(database_url) as connection:
        remove(connection, *range(1, ENTRIES + 1))
        connection.execute(delete(projects))
        connection.execute(update(ensembles).values(reserved=0, delta_reserved=0))
    project = open_project(ledger, 20, CONFIDENT)
    ledger.charge(project.id, [answered(i, i) for i in range(ENTRIES)])
    assert ledger.verify("study").ok
    problems = ledger.verify("study", anchor).problems
    assert problems[0].startswith("anchor: the terms are not those anchored at ")
    assert any("entry 6 is not the one of" in problem for problem in problems)


# -------------------------------------------------------------------------- going on


def test_going_on_from_an_anchor_reads_only_what_came_after_it(
    ledger: Ledger, database_url: str
) -> None:
    anchor = anchored(ledger)
    ask(ledger, *range(100, 105))
    seen: list[tuple[int, int]] = []
    ledger.verify("study", anchor, resume=True, progress=lambda *counted: seen.append(counted))
    assert seen == [(11, 11)]
    with unguarded(database_url) as connection:
        write(connection, 2, {"label": 9})
        connection.commit()
        assert ledger.verify("study", anchor, resume=True).ok, "that is what its word is for"
        assert not ledger.verify("study", anchor).ok
        write(connection, 9, {"label": 9})
        connection.commit()
        [problem] = ledger.verify("study", anchor, resume=True).problems
        assert problem.startswith("entry 9: altered")


@ONE_DATABASE
def test_going_on_from_any_entry_comes_to_the_same_account(
    ledger: Ledger, database_url: str
) -> None:
    whole = [anchored(ledger)]
    for query in range(100, 108):
        ask(ledger, query)
        whole.append(anchored(ledger))
    for anchor in whole:
        resumed = ledger.verify("study", anchor, resume=True)
        assert resumed.ok, resumed.problems
        assert resumed.anchor == replaced(whole[-1], resumed.anchor)


def test_going_on_follows_published_figures(database_url: str) -> None:
    """The account of a data-dependent project depends on when and what it published."""
    ledger = publishing_ledger(database_url)
    project = open_published(ledger)
    schedule = project.terms.schedule
    assert schedule is not None
    whole = [anchored(ledger)]
    step = max(1, schedule.counts[0] // 3)
    for start in range(0, schedule.counts[1] + step, step):
        ledger.charge(project.id, voted(project, [f"{start} {i}" for i in range(step)]))
        whole.append(anchored(ledger))
    assert whole[-1].account.published >= 2
    for anchor in whole:
        resumed = ledger.verify("study", anchor, resume=True)
        assert resumed.ok, resumed.problems
        assert resumed.anchor == replaced(whole[-1], resumed.anchor)


@ONE_DATABASE
def test_going_on_follows_epochs(database_url: str) -> None:
    ledger = open_ledger(database_url)
    project = open_project(ledger, 6, EPOCHS)
    whole = [anchored(ledger)]
    for request in range(4):
        ledger.charge(project.id, [answered(f"{request} {k}", epoch=0) for k in range(2)])
        whole.append(anchored(ledger))
    for anchor in whole:
        resumed = ledger.verify("study", anchor, resume=True)
        assert resumed.ok, resumed.problems
        assert resumed.anchor == replaced(whole[-1], resumed.anchor)


@ONE_DATABASE
def test_an_anchor_that_lies_about_the_account_is_found(ledger: Ledger) -> None:
    anchor = anchored(ledger)
    ask(ledger, 100)
    for name in ("spent", "delta_spent", "cap_spent"):
        account = type(anchor.account)(
            **{**vars(anchor.account), name: getattr(anchor.account, name) - 1}
        )
        lying = Anchor(**{**vars(anchor), "account": account})
        problems = ledger.verify("study", lying, resume=True).problems
        assert problems == [
            f"balance: {name} is {getattr(ledger.project('study'), name)}, "
            f"but the entries make {getattr(ledger.project('study'), name) - 1}"
        ]


# ------------------------------------------------------------------------ signatures


def fields_of(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from fields_of(value[key], *path, key)
    else:
        yield path


@ONE_DATABASE
def test_every_field_of_an_anchor_is_signed(
    ledger: Ledger, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    file, key = tmp_path / "anchor.json", load_public_key(keys[1])
    file.write_text(write_anchors([anchored(ledger)], load_private_key(keys[0])))
    assert read_anchors(file, key) == ([anchored_as(file)], True)
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
        with pytest.raises(AnchorError, match="altered"):
            read_anchors(file, key)


def anchored_as(file: Path) -> Anchor:
    return read_anchors(file, None)[0][0]


@ONE_DATABASE
def test_another_key_or_no_signature_vouches_for_nothing(
    ledger: Ledger, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    file = tmp_path / "anchor.json"
    stranger = load_public_key(key_pair(tmp_path, "stranger")[1])
    file.write_text(write_anchors([anchored(ledger)], load_private_key(keys[0])))
    with pytest.raises(AnchorError, match="not signed with this key"):
        read_anchors(file, stranger)
    file.write_text(write_anchors([anchored(ledger)], None))
    with pytest.raises(AnchorError, match="is not signed, so no key can vouch for it"):
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


@ONE_DATABASE
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
    assert "newer: whole" in verified.output
    resumed = terrine("verify", "study", *trusted, "--resume")
    assert resumed.exit_code == 0
    assert "7 charges, the first 6 by the anchor's word" in resumed.output
    with unguarded(database_url) as connection:
        cut(connection, 4)
    for arguments in ((), ("study",), ("study", "--resume")):
        found = terrine("verify", *arguments, *trusted)
        assert found.exit_code == 1
        assert "study: NOT WHOLE" in found.output
        assert "anchor: entry 6, there at" in found.output
    assert terrine("verify", "study").exit_code == 0


@ONE_DATABASE
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
        assert "newer: NOT WHOLE, gone" in found.output


@ONE_DATABASE
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


@ONE_DATABASE
def test_a_project_that_the_anchors_leave_out_is_not_passed_over(
    ledger: Ledger, tmp_path: Path
) -> None:
    file = tmp_path / "anchor.json"
    file.write_text(terrine("anchor", "study").stdout)
    open_project(ledger, 3, name="newer")
    result = terrine("verify", "newer", "--anchor", file)
    assert isinstance(result.exception, CommandError)
    assert "none of the project newer" in str(result.exception)


@ONE_DATABASE
def test_broken_books_are_never_anchored(
    ledger: Ledger, database_url: str, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    with unguarded(database_url) as connection:
        write(connection, 2, {"label": 9})
    file = tmp_path / "anchor.json"
    result = terrine("anchor", "all", "--key", keys[0], "--output", file)
    assert isinstance(result.exception, CommandError)
    assert "entry 2: altered" in result.output
    assert not file.exists()


@ONE_DATABASE
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "terrine-anchor/1"}', "\0"])
def test_what_is_no_anchor_is_refused(text: str, ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "anchor.json"
    file.write_text(text)
    result = terrine("verify", "study", "--anchor", file)
    assert isinstance(result.exception, AnchorError)
    assert str(file) in str(result.exception)


@ONE_DATABASE
def test_a_bar_is_drawn_on_a_terminal_only(ledger: Ledger) -> None:
    result = terrine("verify", "study")
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
