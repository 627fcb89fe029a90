"""Signed notes: text with signatures of named Ed25519 keys (c2sp.org/signed-note).

Keys are written as golang.org/x/mod/sumdb/note does, which other logs and witnesses use, too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

DASH = "\N{EM DASH}"
MOST_SIGNATURES = 100
"""Signatures in a note that are read; more are refused."""
LARGEST = 64 * 1024
"""Bytes of a note."""
SIGNATURE_BYTES = 64
TIME_BYTES = 8
LATEST = 253_402_300_799
"""The last second of the year 9999. A later cosignature is refused: calendars end there."""
PRIVATE = "PRIVATE+KEY+"


class NoteError(ValueError):
    """A note, a key or what a note should say is malformed, or a signature is wrong."""


class Kind(IntEnum):
    """What a key signs, and how: the first byte of an encoded key."""

    ED25519 = 1
    """A note's text."""
    COSIGNATURE = 4
    """A time and a checkpoint (c2sp.org/tlog-cosignature)."""


@dataclass(frozen=True)
class Signature:
    """A signature line: whose it is, by name and the key's id, and the bytes after the id."""

    name: str
    key_id: bytes
    signed: bytes

    def __str__(self) -> str:
        return f"{DASH} {self.name} {base64.b64encode(self.key_id + self.signed).decode()}\n"

    @classmethod
    def parse(cls, line: str) -> Signature:
        """Read a line, without its newline. Raises NoteError."""
        parts = line.split(" ")
        if len(parts) != 3 or parts[0] != DASH:
            raise NoteError(f"not a line `{DASH} name signature`")
        name, raw = _checked_name(parts[1]), decode(parts[2])
        if len(raw) < 5:
            raise NoteError(f"the signature of {name} is too short")
        return cls(name, raw[:4], raw[4:])


@dataclass(frozen=True)
class Note:
    """A text, with its final newline, and its signatures, not verified yet."""

    text: str
    signatures: tuple[Signature, ...]

    def __str__(self) -> str:
        return f"{self.text}\n{''.join(map(str, self.signatures))}"

    @classmethod
    def parse(cls, note: str | bytes) -> Note:
        """Read a note, which must have at least one signature. Raises NoteError."""
        text = checked_text(note)
        body, gap, lines = text.rpartition("\n\n")
        if not gap or not lines.endswith("\n"):
            raise NoteError("no note: its text, an empty line and signatures, each with a newline")
        found = lines[:-1].split("\n")
        if len(found) > MOST_SIGNATURES:
            raise NoteError(f"the note has more than {MOST_SIGNATURES} signatures")
        return cls(body + "\n", tuple(map(Signature.parse, found)))

    def signers(self, keys: Iterable[VerifierKey]) -> Mapping[VerifierKey, int | None]:
        """Return which of the keys signed it, and when, if they say (POSIX seconds).

        Other signatures are ignored. Raises NoteError if one of the keys has a wrong signature.
        """
        known = {(key.name, key.key_id): key for key in keys}
        found = {}
        for signature in self.signatures:
            key = known.get((signature.name, signature.key_id))
            if key is not None:
                found[key] = key.verify(self.text, signature.signed)
        return found


@dataclass(frozen=True)
class VerifierKey:
    """A public key with its name, written `name+id+key`: a vkey."""

    name: str
    kind: Kind
    public: bytes

    def __str__(self) -> str:
        encoded = base64.b64encode(bytes([self.kind]) + self.public).decode()
        return f"{self.name}+{self.key_id.hex()}+{encoded}"

    @cached_property
    def key_id(self) -> bytes:
        """Four bytes that, with the name, say which key signed."""
        encoded = self.name.encode() + b"\n" + bytes([self.kind]) + self.public
        return hashlib.sha256(encoded).digest()[:4]

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """Read a vkey. Raises NoteError."""
        key = cls(*_key_parts(text.strip()))
        if key.key_id.hex() != text.strip().split("+", 2)[1]:
            raise NoteError(f"the id in the key of {key.name} is not that key's: copy it again")
        return key

    def verify(self, text: str, signed: bytes) -> int | None:
        """Return when the text was signed, if the signature says so. Raises NoteError."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        when = None
        if self.kind is Kind.COSIGNATURE:
            when = int.from_bytes(signed[:TIME_BYTES], "big")
            signed, text = signed[TIME_BYTES:], cosigned_text(when, text)
            if when > LATEST:
                raise NoteError(f"the cosignature of {self.name} is of no time")
        try:
            if len(signed) != SIGNATURE_BYTES:
                raise InvalidSignature
            Ed25519PublicKey.from_public_bytes(self.public).verify(signed, text.encode())
        except (InvalidSignature, ValueError):
            raise NoteError(f"the signature of {self.name} is not that of this text") from None
        return when


@dataclass(frozen=True)
class SignerKey:
    """A private key with its name, written `PRIVATE+KEY+name+id+key`. Never show it."""

    name: str
    kind: Kind
    private: bytes

    def __repr__(self) -> str:
        return f"<SignerKey {self.name}>"

    @property
    def secret(self) -> str:
        """The key as its file holds it."""
        encoded = base64.b64encode(bytes([self.kind]) + self.private).decode()
        return f"{PRIVATE}{self.name}+{self.verifier.key_id.hex()}+{encoded}"

    @classmethod
    def parse(cls, text: str) -> SignerKey:
        """Read what `secret` wrote. Raises NoteError, which never shows the key."""
        text = text.strip()
        if not text.startswith(PRIVATE):
            raise NoteError(f"no private key: it begins with {PRIVATE}")
        key = cls(*_key_parts(text.removeprefix(PRIVATE)))
        if key.verifier.key_id.hex() != text.removeprefix(PRIVATE).split("+", 2)[1]:
            raise NoteError(f"the id in the private key of {key.name} is not that key's")
        return key

    @cached_property
    def verifier(self) -> VerifierKey:
        """The public key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        public = Ed25519PrivateKey.from_private_bytes(self.private).public_key()
        return VerifierKey(self.name, self.kind, public.public_bytes_raw())

    def sign(self, text: str, when: int | None = None) -> Signature:
        """Sign a note's text; `when` (POSIX seconds), for a cosignature only."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if (when is not None) != (self.kind is Kind.COSIGNATURE):
            raise ValueError("cosignatures have a time, and only they")
        head = b"" if when is None else when.to_bytes(TIME_BYTES, "big")
        message = text if when is None else cosigned_text(when, text)
        signed = Ed25519PrivateKey.from_private_bytes(self.private).sign(message.encode())
        return Signature(self.name, self.verifier.key_id, head + signed)


def cosigned_text(when: int, checkpoint: str) -> str:
    """Return the text that a cosignature signs (c2sp.org/tlog-cosignature, Ed25519)."""
    return f"cosignature/v1\ntime {when}\n{checkpoint}"


def checked_text(given: str | bytes) -> str:
    """Return text in which a note may come. Raises NoteError."""
    try:
        text = given if isinstance(given, str) else given.decode("utf-8")
        size = len(text.encode())
    except UnicodeError:
        raise NoteError("not UTF-8") from None
    if size > LARGEST:
        raise NoteError(f"longer than {LARGEST} bytes")
    if any(character < " " and character != "\n" for character in text):
        raise NoteError("it has control characters")
    return text


def decode(text: str, size: int | None = None) -> bytes:
    """Decode standard base64, of so many bytes if `size` is given. Raises NoteError."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoteError("not base64") from None
    if base64.b64encode(raw).decode() != text or size not in (None, len(raw)):
        raise NoteError("not base64 of as many bytes as it should be")
    return raw


def number(text: str) -> int:
    """Read a decimal without leading zeroes, below 2**63. Raises NoteError."""
    if not (text.isascii() and text.isdigit()) or (text[0] == "0" and text != "0"):
        raise NoteError("not a whole number in decimal")
    if len(text) > 19 or int(text) >= 2**63:
        raise NoteError("too large a number")
    return int(text)


def _checked_name(name: str) -> str:
    if not name or "+" in name or any(character.isspace() for character in name):
        raise NoteError("a key has a name, without spaces and plus signs")
    return name


def _key_parts(text: str) -> tuple[str, Kind, bytes]:
    parts = text.split("+", 2)  # base64 may have plus signs, too
    if len(parts) != 3:
        raise NoteError("no key: it has the form name+id+key")
    name, raw = _checked_name(parts[0]), decode(parts[2])
    kinds = {kind.value: kind for kind in Kind}
    if len(raw) != 33 or raw[0] not in kinds:
        raise NoteError(f"the key of {name} is no Ed25519 key of a log or a witness")
    return name, kinds[raw[0]], raw[1:]
