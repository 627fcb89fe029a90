"""Receipts, from a real answer to a proof that a stranger can check."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from support.processes import until
from support.servers import LOG, RunningWitness, policy_of, policy_text, witnessing
from support.wording import holds
from terrine_client import Client, ConfigurationError, Receipts
from terrine_client._receipts import WAIT_SECONDS, Receipt
from terrine_protocol.transparency import KeyKind, Proof, SignerKey

if TYPE_CHECKING:
    from support.data import DigitsEnsemble
    from support.servers import RunningServer

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Served:
    server: RunningServer
    witness: RunningWitness
    policy: Path


@pytest.fixture
def served(database_url: str, tmp_path: Path, digits_ensemble: DigitsEnsemble) -> Iterator[Served]:
    """A real service with a log, and a witness that cosigns it."""
    from support.servers import running_server

    data = tmp_path / "data"
    data.mkdir()
    (data / "checkpoint.key").write_text(LOG.secret)
    policy = tmp_path / "policy"
    with witnessing(tmp_path / "witness") as witness:
        policy.write_text(policy_text(witness))
        with running_server(
            data,
            database_url,
            digits_ensemble,
            checkpoint_seconds=0.1,
            log_policy_file=policy,
        ) as server:
            server.open_project(mechanism={"name": "gnmax", "sigma": 4.0}, epsilon=20)
            yield Served(server, witness, policy)


def test_a_student_proves_that_answers_were_charged(served: Served, tmp_path: Path) -> None:
    url, token = served.server.url, served.server.token()
    x = served.server.ensemble.public
    with Client(url, token, batch_size=16) as client:
        client.label(x[:40])
        assert sorted(client.receipts.entries) == list(range(1, 41))
        stored = {c.seq: c.hash for c in served.server.ledger.entries.list("study", 0, 100)}
        assert {n: r.hash for n, r in client.receipts.entries.items()} == stored
        client.label(x[:40])  # for free, with the same receipts
        assert not client.receipts.contradicted
        report = until(lambda: client.verify_receipts(served.policy), lambda r: bool(r.proofs))
        assert report.ok, str(report)
        protects = client.budget().protects
        holds(str(report), "protects", *protects.split())
        until(lambda: len(client.verify_receipts(served.policy).proofs) == 40)
        client.receipts.save(tmp_path / "receipts")
    state = httpx.get(f"{url}/readyz").json()["log"]
    assert list(state["cosigned"]) == ["w"]
    assert state["missing"] == []
    auditor = {"Authorization": f"Bearer {served.server.token('auditor')}"}
    metrics = httpx.get(f"{url}/metrics", headers=auditor).text
    assert 'terrine_log_cosigned{witness="w"} 1.0' in metrics
    with Client(url, served.server.token("auditor")) as client:
        log = client.log_state()
        assert log is not None
        assert log.size >= state["size"]
        assert list(log.cosigned) == ["w"]
    assert re.search("^terrine_log_entries [0-9]+", metrics, re.MULTILINE)
    # Another program, on another day; and a third party with nothing but a proof and a policy.
    with Client(url, token) as client:
        client.receipts = Receipts.load(tmp_path / "receipts")
        assert client.receipts.protects == protects
        client.label(x[40:41])
        report = until(lambda: client.verify_receipts(served.policy), lambda r: 41 in r.proofs)
        assert report.ok
        assert report.cosigned.keys() == {"w"}
    proof = Proof.parse(str(report.proofs[7]))
    opening = json.loads(proof.extra or b"")
    assert (opening["charge"], opening["hash"]) == (7, stored[7])
    key, entry = bytes.fromhex(opening["leaf_key"]), bytes.fromhex(opening["hash"])
    leaf = hmac.new(key, entry, hashlib.sha256).digest()
    assert proof.check(leaf, policy_of(served.witness)) == report.checkpoint


def test_what_is_not_in_the_log_waits_or_is_missing(served: Served) -> None:
    url, token = served.server.url, served.server.token()
    with Client(url, token) as client:
        client.label(served.server.ensemble.public[:3])
        until(lambda: len(client.verify_receipts(served.policy).proofs) == 3)
        now = time.time()
        client.receipts.entries[4] = Receipt("ab" * 32, now)
        client.receipts.entries[5] = Receipt("cd" * 32, now - 2 * WAIT_SECONDS)
        client.receipts.entries[2] = Receipt("ef" * 32, now)  # its place has another entry
        report = client.verify_receipts(served.policy)
        assert not report.ok
        assert (report.waiting, report.missing) == ([4], [2, 5])
        assert sorted(report.proofs) == [1, 3]
        holds(str(report), 5, "log")


class _Forger(httpx.BaseTransport):
    """A server that replies to some paths as it likes."""

    def __init__(self, replies: dict[str, bytes]) -> None:
        self.replies = replies
        self.asked: list[str] = []
        self._served = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if (forged := self.replies.get(request.url.path)) is not None:
            return httpx.Response(200, content=forged)
        return self._served.handle_request(request)


def _client_of(forger: _Forger, served: Served) -> Client:
    class Deceived(Client):
        @staticmethod
        def _open(**options: Any) -> httpx.Client:
            return httpx.Client(**options, transport=forger)

    return Deceived(served.server.url, served.server.token())


def test_a_checkpoint_before_the_one_that_was_seen_is_a_problem_and_not_remembered(
    served: Served,
) -> None:
    x, forger = served.server.ensemble.public, _Forger({})
    with _client_of(forger, served) as client:
        client.label(x[:3])
        until(lambda: len(client.verify_receipts(served.policy).proofs) == 3)
        early = client.receipts.checkpoint
        assert early is not None
        client.label(x[3:9])
        until(lambda: len(client.verify_receipts(served.policy).proofs) == 9)
        late = client.receipts.checkpoint
        assert late is not None
        forger.replies["/checkpoint"] = early.encode()
        for _ in range(2):
            report = client.verify_receipts(served.policy)
            assert not report.ok
            holds(str(report), "BACK")
            assert client.receipts.checkpoint == late
        client.receipts.checkpoint = None
        report = client.verify_receipts(served.policy, others=[late])
        assert not report.ok
        holds(str(report), "BACK", "others")


def test_pages_of_nothing_come_to_an_end(served: Served) -> None:
    forger = _Forger({})
    with _client_of(forger, served) as client:
        client.label(served.server.ensemble.public[:3])
        until(lambda: len(client.verify_receipts(served.policy).proofs) == 3)
        for items in ([], [{"charge": 1, "index": 2}], [{"charge": 1, "index": 2}] * 2):
            page = {"leaf_key": "ab" * 32, "items": items, "next": "1"}
            forger.replies["/receipts"] = json.dumps(page).encode()
            forger.asked.clear()
            assert not client.verify_receipts(served.policy).proofs
            assert forger.asked.count("/receipts") <= 2


def test_a_log_that_the_policy_does_not_know_is_not_believed(served: Served) -> None:
    url, token = served.server.url, served.server.token()
    stranger = SignerKey("log.example/1", KeyKind.ED25519, b"s" * 32)
    more = policy_text(served.witness) + "# a comment\n"
    with Client(url, token) as client:
        client.label(served.server.ensemble.public[:1])
        until(lambda: client.verify_receipts(more.encode()).proofs)
        for text in (
            policy_text(log=stranger),
            policy_text(log=SignerKey("log.example/2", KeyKind.ED25519, bytes(range(32)))),
            policy_text(served.witness).replace("group witnesses all w", _absent()),
        ):
            report = client.verify_receipts(text.encode())
            assert not report.ok
            assert report.checkpoint is None
            holds(str(report), "trusted")
        for wrong in (b"", b"quorum nobody", str(served.policy) + "x"):
            with pytest.raises((ConfigurationError, OSError)):
                client.verify_receipts(wrong)


def _absent() -> str:
    key = SignerKey("absent.example", KeyKind.COSIGNATURE, b"a" * 32).verifier
    return f"witness absent {key}\ngroup witnesses all w absent"


def test_receipts_are_for_those_who_may_see_the_entries(served: Served) -> None:
    server = served.server
    server.open_project("other", mechanism={"name": "gnmax", "sigma": 4.0}, epsilon=2)

    def ask(token: str, **params: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"{server.url}/receipts", headers=headers, params=params)

    with Client(server.url, server.token()) as client:
        client.label(server.ensemble.public[:3])
        until(lambda: len(client.verify_receipts(served.policy).proofs) == 3)
    own = ask(server.token()).json()
    assert [item["charge"] for item in own["items"]] == [1, 2, 3]
    other = ask(server.token(project="other"))
    assert other.json()["items"] == []
    assert other.json()["leaf_key"] != own["leaf_key"]
    assert ask(server.token(project="other"), project="study").status_code == 403
    auditor = server.token("auditor")
    assert ask(auditor, project="study").json() == own
    assert ask(auditor).status_code == 404
    assert ask(auditor, project="nobody").status_code == 404
    page = ask(auditor, project="study", limit="2").json()
    assert (len(page["items"]), page["next"]) == (2, "2")
    assert [i["charge"] for i in ask(auditor, project="study", cursor="2").json()["items"]] == [3]


def test_receipts_that_were_altered_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    for text in ("", "{}", '{"format": "x"}', '{"format": "terrine-receipts/1", "entries": []}'):
        path.write_text(text)
        with pytest.raises(ConfigurationError):
            Receipts.load(path)
