"""Anchors: the state of a project's ledger, kept out of reach of anyone who writes the database.

Anyone who can rewrite the whole database can make the ledger consistent but wrong. An older backup
is consistent, too. Neither contains the entry that an anchor names. An anchor that the owner signed
(Ed25519, RFC 8032) also vouches for all entries before it: verification may resume from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from terrine_protocol.files import read
from terrine_server.ledger.chain import canonical_json
from terrine_server.privacy import Account

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

FORMAT = "terrine-anchor/1"


class AnchorError(Exception):
    """An anchor or a key that cannot be used. The message says what to do."""


@dataclass(frozen=True)
class Anchor:
    """The state of one project's ledger when it was verified to its end.

    `account`, `outcomes` (entries by outcome) and `published` (number and figure of each
    publication) are what the checks of later entries depend on. Auditors can read all of it in the
    ledger, so it reveals nothing more about votes.
    """

    project: str
    made_at: str
    genesis: str
    entries: int
    head: str
    closed: bool
    account: Account
    outcomes: Mapping[str, int]
    published: tuple[tuple[int, int], ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Anchor:
        """Return an anchor from its `asdict`, as JSON. Raises ValueError, TypeError or KeyError."""
        anchor = cls(
            **dict(data)
            | {
                "account": Account(**data["account"]),
                "outcomes": {str(o): int(n) for o, n in data["outcomes"].items()},
                "published": tuple((int(seq), int(figure)) for seq, figure in data["published"]),
            }
        )
        if type(anchor.project) is not str:
            raise ValueError("a project has a name")
        if len(bytes.fromhex(anchor.genesis)) != 32 or len(bytes.fromhex(anchor.head)) != 32:
            raise ValueError("a hash is 32 bytes")
        if not anchor.entries == anchor.account.charges == sum(anchor.outcomes.values()):
            raise ValueError("the account is not that of so many entries")
        return anchor


@dataclass(frozen=True)
class LogAnchor:
    """The end of the administrative log when it was verified: number and hash of its last entry."""

    made_at: str
    entries: int
    head: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LogAnchor:
        """Return an anchor from its `asdict`, as JSON. Raises ValueError, TypeError or KeyError."""
        anchor = cls(str(data["made_at"]), data["entries"], str(data["head"]))
        if type(anchor.entries) is not int or len(bytes.fromhex(anchor.head)) != 32:
            raise ValueError("not the end of a log")
        return anchor


@dataclass(frozen=True)
class AnchorFile:
    """What an anchor file holds. `log` is None where only one project was anchored, on a page."""

    anchors: Sequence[Anchor]
    log: LogAnchor | None
    signed: bool


def write_anchors(
    anchors: Iterable[Anchor], key: Ed25519PrivateKey | None, log: LogAnchor | None = None
) -> str:
    """Return anchors as a JSON document, signed if there is a key.

    The signature covers the document without `signature`, as JSON with sorted keys and no spaces.
    """
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": version("terrine"),
        "anchors": [asdict(anchor) for anchor in anchors],
    }
    if log is not None:
        document["log"] = asdict(log)
    if key is not None:
        document["signature"] = key.sign(canonical_json(document).encode()).hex()
    return json.dumps(document, indent=2) + "\n"


def read_anchors(path: Path, key: Ed25519PublicKey | None) -> AnchorFile:
    """Return what `write_anchors` wrote.

    If a key is given, the signature is checked. Raises AnchorError when the file is malformed or,
    with a key, not signed with it.
    """
    return parse_anchors(read(path), key, str(path))


def parse_anchors(text: str | bytes, key: Ed25519PublicKey | None, where: str) -> AnchorFile:
    """Return what `write_anchors` wrote, as `read_anchors` does; `where` names it in errors."""
    try:
        document = json.loads(text)
        signature = document.pop("signature", None)
        if document["format"] != FORMAT:
            raise ValueError(document["format"])
        if key is not None:
            _check_signature(where, canonical_json(document).encode(), signature, key)
        anchors = [Anchor.from_json(data) for data in document["anchors"]]
        log = LogAnchor.from_json(document["log"]) if "log" in document else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise AnchorError(
            f"{where} is not what `terrine ledger anchor` of this version writes. Was it altered?"
        ) from error
    return AnchorFile(anchors, log, signature is not None)


def _check_signature(where: str, signed: bytes, signature: Any, key: Ed25519PublicKey) -> None:
    from cryptography.exceptions import InvalidSignature

    if signature is None:
        raise AnchorError(
            f"{where} is not signed, so no key can vouch for it. Leave --public-key out to compare "
            "with it all the same, or make signed anchors with `terrine ledger anchor --key FILE`."
        )
    try:
        key.verify(bytes.fromhex(signature), signed)
    except InvalidSignature:
        raise AnchorError(
            f"{where} was not signed with this key, or altered since. Trust nothing in it."
        ) from None


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """Read the signing key. Raises AnchorError, or OSError when the file cannot be read."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(read(path), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise AnchorError(
            f"{path} is no Ed25519 private key in PEM without a passphrase. "
            f"Make one: openssl genpkey -algorithm ed25519 -out {path}"
        )
    return key


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Read the key that checks signatures. Raises the same as `load_private_key`."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(read(path))
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise AnchorError(
            f"{path} is no Ed25519 public key in PEM. "
            f"Make it from the private one: openssl pkey -in KEY -pubout -out {path}"
        )
    return key
