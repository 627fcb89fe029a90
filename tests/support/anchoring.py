"""Aggregators to make, sign and verify anchors of a small project."""

from __future__ import annotations

from pathlib import Path

from books import answered
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from typer.testing import CliRunner, Result

from terrine_server.cli.ledger import app
from terrine_server.ledger import Ledger
from terrine_server.ledger.anchors import (
    Anchor,
)

ENTRIES = 6


def ask(ledger: Ledger, *queries: object) -> None:
    ledger.charge(ledger.project("study").id, [answered(query) for query in queries])


def anchored(ledger: Ledger, name: str = "study") -> Anchor:
    anchor = ledger.verify(name).anchor
    assert anchor is not None
    return anchor


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
