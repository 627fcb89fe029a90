"""Time stamps of checkpoints: made by openssl's authority, refused where they prove nothing."""

from __future__ import annotations

import shutil
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from authority import Authority, answering, authority
from books import CONFIDENT, answered, open_ledger, open_project
from logged import LOG, policy_of, publisher
from refusals import holds, refuses, says
from rfc3161_client import TimestampRequestBuilder
from typer.testing import CliRunner, Result

from terrine_server.cli.console import CommandError
from terrine_server.cli.ledger import app
from terrine_server.ledger.transparency.checking import SLACK
from terrine_server.owner import timestamps
from terrine_server.owner.timestamps import TimestampError, check, load_authority, stamp

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="NO OPENSSL on this machine to stamp with"
)
NOTE = b"log.example/1\n3\nroot\n\n- signed\n"


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("authority") / "known", "known")


def of(text: bytes, by: Authority) -> bytes:
    return by.reply(TimestampRequestBuilder().data(text).build().as_bytes())


def refused(reply: bytes, by: Authority, note: bytes = NOTE) -> str:
    with pytest.raises(TimestampError) as error:
        check(reply, note, load_authority(by.root))
    return str(error.value)


def test_openssl_and_we_agree_on_a_time_stamp(known: Authority, tmp_path: Path) -> None:
    with answering(known) as url:
        before = datetime.now(UTC).replace(microsecond=0)
        reply = stamp(NOTE, url, load_authority(known.root))
    assert before <= check(reply, NOTE, load_authority(known.root)) <= datetime.now(UTC)
    (tmp_path / "note").write_bytes(NOTE)
    (tmp_path / "note.tsr").write_bytes(reply)
    assert known.accepts(tmp_path / "note", tmp_path / "note.tsr")


def test_a_time_stamp_that_proves_nothing_says_why(known: Authority, tmp_path: Path) -> None:
    good = of(NOTE, known)
    other = authority(tmp_path / "other", "other")
    namesake = authority(tmp_path / "namesake", "known")
    holds(refused(good, other), "verify")
    holds(refused(good, namesake), "verify")
    holds(refused(good, known, NOTE + b"x"), "another")
    holds(refused(NOTE, known), "reply")
    holds(refused(b"", known), "reply")
    expired = authority(tmp_path / "expired", "expired", expired=True)
    assert "expired" in refused(of(NOTE, expired), expired)


def test_no_altered_reply_verifies(known: Authority) -> None:
    """Every byte is altered. What is not signed may be: the authority's words and its ordering."""
    good, trusted = of(NOTE, known), load_authority(known.root)
    when = check(good, NOTE, trusted)
    for place in range(len(good)):
        forged = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
        with suppress(TimestampError):
            assert check(forged, NOTE, trusted) == when, f"byte {place}"
    for length in range(0, len(good), 50):
        refused(good[:length], known)


def test_an_authority_that_refuses_or_is_none_is_named(known: Authority) -> None:
    trusted = load_authority(known.root)
    rejected = bytes.fromhex("30053003020102")
    with answering(rejected) as url, refuses(TimestampError, "refused", 2):
        stamp(NOTE, url, trusted)
    with answering(of(NOTE, known)) as url, pytest.raises(TimestampError, match="Nonce"):
        stamp(NOTE, url, trusted)
    with answering(b"<p>", "text/html") as url, refuses(TimestampError, 200):
        stamp(NOTE, url, trusted)
    with answering(b"x" * 100_000) as url, refuses(TimestampError, "long"):
        stamp(NOTE, url, trusted)
    for bad in (url, "nowhere", "http://[", "ftp://here"):
        with refuses(TimestampError, "gave"):
            stamp(NOTE, bad, trusted)


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("none")
    with refuses(TimestampError, "PEM"):
        load_authority(tmp_path / "root")


def test_the_commands_stamp_and_check(
    known: Authority, tmp_path: Path, secret_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("TERRINE_DATABASE_URL", f"sqlite:///{tmp_path}/ledger.sqlite")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERRINE_CHECKPOINT_KEY_FILE", str(tmp_path / "checkpoint.key"))
    (tmp_path / "checkpoint.key").write_text(LOG.secret)
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    project = open_project(ledger, 20, CONFIDENT)
    ledger.charge(project.id, [answered(i, i) for i in range(6)])
    kept, reply = tmp_path / "kept", tmp_path / f"kept{timestamps.SUFFIX}"

    def terrine(*arguments: str | Path) -> Result:
        return CliRunner().invoke(app, list(map(str, arguments)))

    with answering(known) as url:
        write = ("checkpoint", "--timestamp", url, "--tsa-certificate", known.root)
        for incomplete in (write, (*write[:3], "--output", kept), (write[0], *write[3:])):
            assert isinstance(terrine(*incomplete).exception, CommandError)
        began = datetime.now(UTC)
        done = terrine(*write, "--output", kept)
        days = {f"{instant:%Y-%m-%d}" for instant in (began, datetime.now(UTC))}
    assert done.exit_code == 0, done.output
    holds(done.output, reply)
    assert known.accepts(kept, reply)

    ledger.charge(project.id, [answered("later")])
    verify = ("verify", "--checkpoint", kept)
    unchecked = terrine(*verify)
    assert unchecked.exit_code == 0
    holds(unchecked.output, reply, "authority")
    by = ("--tsa-certificate", known.root)
    found = terrine(*verify, *by)
    assert found.exit_code == 0, found.output
    assert any(says(found.output, kept, day) for day in days), "midnight may have passed"

    reply.write_bytes(of(b"something else", known))
    found = terrine(*verify, *by)
    assert found.exit_code == 1
    holds(found.output, reply, "text")
    reply.unlink()
    found = terrine(*verify, *by)
    assert found.exit_code == 1
    holds(found.output, kept, reply)
    assert isinstance(terrine("verify", *by).exception, CommandError)


def test_an_entry_that_is_younger_than_a_time_stamp_over_it_is_found(tmp_path: Path) -> None:
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    project = open_project(ledger, 20, CONFIDENT)
    ledger.charge(project.id, [answered(1)])
    publisher(ledger).round()
    earlier = {"kept": ledger.checkpoint() or ""}
    ledger.charge(project.id, [answered(2)])
    publisher(ledger).round()
    now = datetime.now(UTC)
    for stamped in (now, now + timedelta(days=30)):  # an old checkpoint may be stamped late
        assert ledger.check_tree(policy_of(), earlier, {"kept": stamped}).ok
    before = now - SLACK - timedelta(days=1)
    found = ledger.check_tree(policy_of(), earlier, {"kept": before}).problems
    holds(found, "entry", 1, "study", "stamped", "before")
    assert not says(found, "entry", 2, "study")
