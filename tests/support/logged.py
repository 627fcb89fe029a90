"""Transparency logs for tests: a witness on a socket, an owner's key, and a policy of both."""

from __future__ import annotations

import base64
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvicorn
from migrated import SECRET_KEY
from patience import PATIENCE_SECONDS

from terrine_protocol import transparency
from terrine_protocol.transparency import Checkpoint, KeyKind, Note, Policy, SignerKey, VerifierKey
from terrine_server.ledger import Ledger
from terrine_server.owner.checkpoints import Publisher
from terrine_server.serving import listening
from terrine_server.serving.bounds import uvicorn_options
from terrine_server.settings import Settings

if TYPE_CHECKING:
    from terrine_addons.witness.service import Witness


LOG = SignerKey("log.example/1", KeyKind.ED25519, bytes(range(32)))
"""The owner's key in tests."""


def witness_key(name: str) -> SignerKey:
    """The key of a witness in tests."""
    return SignerKey(f"{name}.example", KeyKind.COSIGNATURE, name.encode().ljust(32, b"."))


@dataclass(frozen=True)
class RunningWitness:
    """A witness that listens at `url`."""

    name: str
    url: str
    key: VerifierKey
    witness: Witness

    @property
    def line(self) -> str:
        return f"witness {self.name} {self.key} {self.url}"


@contextmanager
def witnessing(
    state: Path, name: str = "w", log: VerifierKey = LOG.verifier, port: int = 0
) -> Iterator[RunningWitness]:
    """Serve a witness of this log in a thread, with its state in this directory."""
    service = pytest.importorskip("terrine_addons.witness.service")
    key = witness_key(name)
    witness: Witness = service.Witness(key, [log], state)
    (own,) = listening.bind("127.0.0.1", port)
    app = service.serve_app(witness)
    config = uvicorn.Config(app, log_level="critical", **uvicorn_options(service.LIMITS))
    urls = queue.Queue[str]()
    server = listening.ListeningServer(config, urls.put)
    thread = threading.Thread(target=server.run, args=([own],), daemon=True)
    thread.start()
    try:
        url = urls.get(timeout=PATIENCE_SECONDS)
        yield RunningWitness(name, url, key.verifier, witness)
    finally:
        server.should_exit = True
        thread.join()
        witness.close()


def policy_text(*witnesses: RunningWitness, quorum: str = "all", log: SignerKey = LOG) -> str:
    """A policy that needs the log's signature, and those of `quorum` of the witnesses."""
    lines = [f"log {log.verifier}", *(witness.line for witness in witnesses)]
    if witnesses:
        lines += [f"group witnesses {quorum} {' '.join(w.name for w in witnesses)}"]
    return "\n".join([*lines, f"quorum {'witnesses' if witnesses else 'none'}", ""])


def policy_of(*witnesses: RunningWitness, quorum: str = "all") -> Policy:
    return Policy.parse(policy_text(*witnesses, quorum=quorum).encode())


def log_settings(directory: Path, database_url: str, witness: RunningWitness) -> Settings:
    """Settings of a service whose log this witness cosigns; its files are made in `directory`."""
    policy = directory / "policy"
    policy.write_text(policy_text(witness))
    settings = Settings(
        data_dir=directory,
        database_url=database_url,
        checkpoint_seconds=0.1,
        log_policy_file=policy,
    )
    settings.secret_key_path.write_bytes(SECRET_KEY)
    settings.checkpoint_key_path.write_text(LOG.secret)
    return settings


def publisher(ledger: Ledger, policy: Policy | None = None) -> Publisher:
    """The owner's publisher, whose rounds a test runs itself."""
    return Publisher(ledger, LOG, policy, 3600)


def signed(size: int, root: bytes, log: SignerKey = LOG) -> str:
    """A checkpoint that the log signed."""
    text = Checkpoint(log.name, size, root).text
    return str(Note(text, (log.sign(text),)))


class History:
    """A history of a log in memory: what it could have signed, and how it could prove it."""

    def __init__(self, name: str, entries: int, shared: int = 0) -> None:
        texts = [f"{'shared' if n < shared else name} {n}" for n in range(entries)]
        self._leaves = [transparency.leaf_hash(text.encode()) for text in texts]

    def root(self, size: int) -> bytes:
        return transparency.root_of(self._leaves[:size])

    def note(self, size: int) -> str:
        return signed(size, self.root(size))

    def body(self, old: int, size: int) -> bytes:
        """The body of `add-checkpoint`."""
        lines = [f"old {old}", *map(_base64, self.proof(old, size)), "", self.note(size)]
        return "\n".join(lines).encode()

    def proof(self, old: int, size: int) -> list[bytes]:
        return transparency.prove_consistency(old, size, self._perfect)

    def _perfect(self, height: int, index: int) -> bytes:
        return transparency.root_of(self._leaves[index << height : (index + 1) << height])


def _base64(hash: bytes) -> str:
    return base64.b64encode(hash).decode()
