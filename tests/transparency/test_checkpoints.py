"""The owner's checkpoints: signed only if they continue the last, cosigned by whoever answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path

import pytest
from sqlalchemy import text, update

from support.databases import SECRET_KEY
from support.forgeries import cut
from support.ledgers import NOISY, answered, charge_one, open_ledger, open_project, unguarded
from support.processes import Terrine, held_port, until
from support.servers import LOG, RunningWitness, policy_of, publisher, witnessing
from support.wording import holds, refuses
from terrine_protocol.transparency import (
    Checkpoint,
    KeyKind,
    Note,
    Policy,
    SignerKey,
    open_checkpoint,
)
from terrine_server.errors import LedgerRestored, ServiceError
from terrine_server.ledger import Ledger, connect
from terrine_server.ledger.schema import tree_head, tree_leaves
from terrine_server.owner import checkpoints, operations
from terrine_server.owner.checkpoints import (
    CheckpointError,
    Publisher,
    SignedHistory,
    load_checkpoint_key,
    load_policy,
    log_state,
    sign_now,
)
from terrine_server.settings import Settings


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    made = open_ledger(database_url)
    open_project(made, 5000, NOISY)
    yield made
    made._access.engine.dispose()


def charge(ledger: Ledger, *queries: object) -> None:
    charge_one(ledger, ledger.projects.get("study").id, [answered(query) for query in queries])


def last(ledger: Ledger) -> Note:
    note = ledger.tree.checkpoint()
    assert note is not None
    return Note.parse(note)


def cosigners(ledger: Ledger, policy: Policy) -> set[str]:
    return set(policy.cosigned(last(ledger)))


def test_each_round_signs_the_tree_as_it_is(ledger: Ledger) -> None:
    owner = publisher(ledger)
    for step in range(3):
        charge(ledger, *(f"{step} {n}" for n in range(150)))
        owner.round()
        found = open_checkpoint(last(ledger), LOG.verifier)
        assert found.size == ledger.tree.grow()
        assert found.root == ledger.tree.root(found.size)
    before = ledger.tree.checkpoint()
    owner.round()
    assert ledger.tree.checkpoint() == before, "what has not changed is not signed again"


def test_witnesses_cosign_what_they_can_and_nobody_waits(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MAX_PAUSE_SECONDS", 0)
    with (
        ExitStack() as stack,
        witnessing(tmp_path / "a", "a") as a,
        held_port() as kept,
        held_port() as silent,  # nobody listens
    ):
        port = kept.getsockname()[1]
        b = stack.enter_context(witnessing(tmp_path / "b", "b", port=port))
        key = SignerKey("c", KeyKind.COSIGNATURE, b"c" * 32).verifier
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        c = RunningWitness("c", url, key, a.witness)
        policy = policy_of(a, b, c, quorum="2")
        owner = publisher(ledger, policy)
        charge(ledger, *range(300))
        owner.round()
        assert cosigners(ledger, policy) == {"a", "b"}
        assert policy.open(last(ledger)).checkpoint.size > 300
        stack.close()  # b goes away
        charge(ledger, "more")
        owner.round()
        assert cosigners(ledger, policy) == {"a"}
        state = log_state(ledger.tree.checkpoint(), policy)
        assert state is not None
        assert state.missing == ["b", "c"]
        with witnessing(tmp_path / "b", "b", port=port):
            owner.round()  # the log has not grown
            assert cosigners(ledger, policy) == {"a", "b"}
            # Another process of the service knows nothing of the witnesses, and asks them.
            charge(ledger, "still more")
            publisher(ledger, policy).round()
            assert cosigners(ledger, policy) == {"a", "b"}


def test_a_cosignature_is_renewed_once_it_is_old(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with witnessing(tmp_path) as witness:
        policy = policy_of(witness)
        owner = publisher(ledger, policy)
        owner.round()
        before = ledger.tree.checkpoint()
        owner.round()
        assert ledger.tree.checkpoint() == before
        monkeypatch.setattr("terrine_addons.witness.service.time.time", lambda: 2e9)
        monkeypatch.setattr(checkpoints, "REFRESH_SECONDS", -1e9)
        owner.round()
        assert policy.cosigned(last(ledger)) == {"w": 2_000_000_000}
        assert len(last(ledger).signatures) == 2


@pytest.mark.parametrize("answer", ["wrong key", "wrong text", "garbage", "too long", "status"])
def test_what_a_witness_should_not_answer_is_no_cosignature(
    answer: str, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = pytest.importorskip("terrine_addons.witness.service")
    policy_key = SignerKey("w.example", KeyKind.COSIGNATURE, b"w".ljust(32, b"."))
    stranger = SignerKey("w.example", KeyKind.COSIGNATURE, b"x" * 32)
    texts = {
        "wrong key": str(stranger.sign("text", 1)),
        "wrong text": str(policy_key.sign("another\n", 1)),
        "garbage": "\0\xff\n\n",
        "too long": "x" * 100_000,
        "status": "",
    }
    status = HTTPStatus.IM_A_TEAPOT if answer == "status" else HTTPStatus.OK
    monkeypatch.setattr(service.Witness, "add", lambda *_: service.Answer(status, texts[answer]))
    with witnessing(tmp_path) as witness:
        policy = policy_of(witness)
        publisher(ledger, policy).round()
        assert cosigners(ledger, policy) == set()
        assert open_checkpoint(last(ledger), LOG.verifier)


def test_only_one_process_signs_at_a_time(ledger: Ledger, database_url: str) -> None:
    other = Ledger(connect(database_url), SECRET_KEY)
    with ledger.tree.try_lock() as mine:
        assert mine
        publisher(other).round()
        assert other.tree.checkpoint() is None
    publisher(other).round()
    assert other.tree.checkpoint() is not None


def test_an_honest_service_signs_no_second_history(ledger: Ledger, database_url: str) -> None:
    owner = publisher(ledger)
    charge(ledger, *range(20))
    owner.round()
    signed = ledger.tree.checkpoint()
    with unguarded(database_url, with_key=False) as connection:
        where = tree_leaves.c.position == 7
        connection.execute(update(tree_leaves).where(where).values(entry=b"f" * 32))
    charge(ledger, "more")
    for anybody in (owner, publisher(ledger)):  # also one that starts now
        with refuses(LedgerRestored, "continue"):
            anybody.round()
    assert ledger.tree.checkpoint() == signed


def test_a_restored_backup_is_not_signed_and_charges_go_on(
    ledger: Ledger, database_url: str
) -> None:
    owner = publisher(ledger)
    charge(ledger, *range(20))
    owner.round()
    signed = ledger.tree.checkpoint()
    with unguarded(database_url, with_key=False) as connection:
        connection.execute(tree_leaves.delete().where(tree_leaves.c.position >= 4))
    owner.round()  # the same entries in the same order: the same tree
    assert ledger.tree.checkpoint() == signed
    with unguarded(database_url) as connection:
        cut(connection, 5)
        connection.execute(tree_leaves.delete().where(tree_leaves.c.position >= 4))
    for anybody in (owner, publisher(ledger)):
        with refuses(LedgerRestored, "backup"):
            anybody.round()
    charge(ledger, "a charge needs no checkpoint")
    assert ledger.tree.checkpoint() == signed


def test_a_database_that_was_set_back_as_a_whole_is_not_signed(
    ledger: Ledger, database_url: str, tmp_path: Path
) -> None:
    """Not by a process that starts then, either: what was signed is known outside the database."""
    file, new = tmp_path / "checkpoint.signed", SignerKey(LOG.name, KeyKind.ED25519, b"n" * 32)
    charge(ledger, *range(5))
    Publisher(ledger, LOG, None, 3600, SignedHistory(ledger, LOG.verifier, file)).round()
    early = last(ledger)
    size = Checkpoint.parse(early.text).size
    charge(ledger, *range(5, 20))
    Publisher(ledger, LOG, None, 3600, SignedHistory(ledger, LOG.verifier, file)).round()
    published = last(ledger)
    with unguarded(database_url) as connection:
        cut(connection, 5)
        connection.execute(tree_leaves.delete().where(tree_leaves.c.position >= size))
        connection.execute(update(tree_head).values(checkpoint=str(early)))
    charge(ledger, "another history")
    with refuses(LedgerRestored, "backup"):
        Publisher(ledger, LOG, None, 3600, SignedHistory(ledger, LOG.verifier, file)).round()
    assert last(ledger) == early
    assert file.read_text() == str(published)
    with refuses(LedgerRestored, "backup"):  # a new key alone continues what was signed
        Publisher(ledger, new, None, 3600, SignedHistory(ledger, new.verifier, file)).round()
    file.rename(tmp_path / "ended")
    begun = SignedHistory(ledger, new.verifier, file)  # a new log, which everybody sees
    Publisher(ledger, new, None, 3600, begun).round()
    assert file.read_text() == str(last(ledger)) != str(early)


def test_what_was_charged_before_the_end_is_signed(ledger: Ledger) -> None:
    owner = publisher(ledger)
    owner.start()
    until(lambda: ledger.tree.checkpoint() is not None)
    before = Checkpoint.parse(last(ledger).text).size
    charge(ledger, *range(7))
    owner.stop()
    assert Checkpoint.parse(last(ledger).text).size == before + 7


def test_init_makes_the_key_once(terrine: Terrine, tmp_path: Path) -> None:
    said = terrine("--data-dir", tmp_path / "d", "init", "--origin", "labels.example/1").fine
    key = load_checkpoint_key(tmp_path / "d" / "checkpoint.key")
    assert key is not None
    assert f"log {key.verifier}" in said
    assert key.name == "labels.example/1"
    assert (tmp_path / "d" / "checkpoint.key").stat().st_mode & 0o777 == 0o600
    assert f"log {key.verifier}" in terrine("--data-dir", tmp_path / "d", "init").fine
    terrine("--data-dir", tmp_path / "e", "init").fine  # noqa: B018 - it must succeed
    other = load_checkpoint_key(tmp_path / "e" / "checkpoint.key")
    assert other is not None
    assert other.name != key.name
    assert "name" in terrine("--data-dir", tmp_path / "f", "init", "--origin", "a b").refused


def test_init_makes_no_other_key_for_a_ledger_that_was_signed_unless_a_new_log_is_named(
    terrine: Terrine, tmp_path: Path
) -> None:
    """Whether the database or the data directory alone knows of it."""
    data = tmp_path / "d"
    path, signed, aside = data / "checkpoint.key", data / "checkpoint.signed", tmp_path / "aside"
    aside.mkdir()

    def init(*more: str) -> str:
        return terrine("--data-dir", data, "init", *more).fine

    init("--origin", "labels.example/1")
    path.unlink()
    init()
    assert path.exists(), "nothing was signed yet"
    settings = Settings(data_dir=data)
    sign_now(operations.open_ledger(settings), settings)
    key = path.read_text()
    origin = SignerKey.parse(key).name
    for gone in ((path,), (path, signed)):
        for each in gone:
            each.rename(aside / each.name)
        said = init()
        holds(said, origin, path, "--origin")
        assert not path.exists()
        holds(init("--origin", origin), origin, "--origin")
        assert not path.exists()
        for each in gone:
            (aside / each.name).rename(each)
    assert str(SignerKey.parse(key).verifier) in init()
    path.unlink()
    init("--origin", "labels.example/2")
    sign_now(operations.open_ledger(settings), settings)
    assert Checkpoint.parse(Note.parse(signed.read_text()).text).origin == "labels.example/2"


def test_a_key_or_a_policy_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert load_checkpoint_key(path) is None
    assert load_policy(None) is None
    witness = SignerKey("w", KeyKind.COSIGNATURE, b"w" * 32)
    for wrong in ("", "PRIVATE+KEY+x", LOG.secret[:-3], str(LOG.verifier), witness.secret, "\xff"):
        path.write_text(wrong, encoding="latin-1")
        with pytest.raises(CheckpointError) as caught:
            load_checkpoint_key(path)
        assert LOG.secret.split("+")[-1] not in str(caught.value)
    path.write_text("quorum nobody\n")
    with refuses(CheckpointError, 1):
        load_policy(path)


def test_what_is_wrong_is_raised_as_what_callers_know(ledger: Ledger, database_url: str) -> None:
    with unguarded(database_url, with_key=False) as connection:
        connection.execute(text("DROP TABLE tree_nodes"))
    charge(ledger, *range(300))
    with pytest.raises(ServiceError):
        publisher(ledger).round()
