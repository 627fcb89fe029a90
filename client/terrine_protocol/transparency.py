"""The transparency log, as the service, its clients and witnesses share it.

Signed notes (c2sp.org/signed-note, with keys as golang.org/x/mod/sumdb/note writes them), Merkle
trees and their proofs (RFC 6962), tiles (c2sp.org/tlog-tiles), checkpoints, and policies.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from terrine_protocol.errors import TerrineError

DASH = "\N{EM DASH}"
# A note with more signatures is refused.
MAX_SIGNATURES = 100
MAX_NOTE_BYTES = 64 * 1024
SIGNATURE_BYTES = 64
TIME_BYTES = 8
# The last second of the year 9999, with which calendars end. Later cosignatures are refused.
MAX_POSIX_SECONDS = 253_402_300_799
PRIVATE_KEY_PREFIX = "PRIVATE+KEY+"


class NoteError(TerrineError, ValueError):
    """A note, a key or a note's text is malformed, or a signature is wrong."""


class KeyKind(IntEnum):
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
        name, raw = _check_name(parts[1]), decode_base64(parts[2])
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
        text = check_text(note)
        body, gap, lines = text.rpartition("\n\n")
        if not gap or not lines.endswith("\n"):
            raise NoteError(
                "not a note: its text, an empty line and signatures, each with a newline"
            )
        found = lines[:-1].split("\n")
        if len(found) > MAX_SIGNATURES:
            raise NoteError(f"the note has more than {MAX_SIGNATURES} signatures")
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
    kind: KeyKind
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
        key = cls(*_parse_key(text.strip()))
        if key.key_id.hex() != text.strip().split("+", 2)[1]:
            raise NoteError(f"the id in the key of {key.name} is not that key's: copy it again")
        return key

    def verify(self, text: str, signed: bytes) -> int | None:
        """Return when the text was signed, if the signature says so. Raises NoteError."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        when = None
        if self.kind is KeyKind.COSIGNATURE:
            when = int.from_bytes(signed[:TIME_BYTES], "big")
            signed, text = signed[TIME_BYTES:], cosigned_text(when, text)
            if when > MAX_POSIX_SECONDS:
                raise NoteError(f"the cosignature of {self.name} has no valid time")
        try:
            if len(signed) != SIGNATURE_BYTES:
                raise InvalidSignature
            Ed25519PublicKey.from_public_bytes(self.public).verify(signed, text.encode())
        except (InvalidSignature, ValueError):
            raise NoteError(f"the signature of {self.name} does not match this text") from None
        return when


@dataclass(frozen=True)
class SignerKey:
    """A private key with its name, written `PRIVATE+KEY+name+id+key`. Never show it."""

    name: str
    kind: KeyKind
    private: bytes

    def __repr__(self) -> str:
        return f"<SignerKey {self.name}>"

    @property
    def secret(self) -> str:
        """The key as its file holds it."""
        encoded = base64.b64encode(bytes([self.kind]) + self.private).decode()
        return f"{PRIVATE_KEY_PREFIX}{self.name}+{self.verifier.key_id.hex()}+{encoded}"

    @classmethod
    def parse(cls, text: str) -> SignerKey:
        """Read what `secret` wrote. Raises NoteError, which never shows the key."""
        text = text.strip()
        if not text.startswith(PRIVATE_KEY_PREFIX):
            raise NoteError(f"not a private key, which begins with {PRIVATE_KEY_PREFIX}")
        key = cls(*_parse_key(text.removeprefix(PRIVATE_KEY_PREFIX)))
        if key.verifier.key_id.hex() != text.removeprefix(PRIVATE_KEY_PREFIX).split("+", 2)[1]:
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

        if (when is not None) != (self.kind is KeyKind.COSIGNATURE):
            raise ValueError("cosignatures have a time, and only they")
        head = b"" if when is None else when.to_bytes(TIME_BYTES, "big")
        message = text if when is None else cosigned_text(when, text)
        signed = Ed25519PrivateKey.from_private_bytes(self.private).sign(message.encode())
        return Signature(self.name, self.verifier.key_id, head + signed)


def cosigned_text(when: int, checkpoint: str) -> str:
    """Return the text that a cosignature signs (c2sp.org/tlog-cosignature, Ed25519)."""
    return f"cosignature/v1\ntime {when}\n{checkpoint}"


def check_text(given: str | bytes) -> str:
    """Return the text of a note, within its limits. Raises NoteError."""
    try:
        text = given if isinstance(given, str) else given.decode("utf-8")
        size = len(text.encode())
    except UnicodeError:
        raise NoteError("not UTF-8") from None
    if size > MAX_NOTE_BYTES:
        raise NoteError(f"longer than {MAX_NOTE_BYTES} bytes")
    if any(character < " " and character != "\n" for character in text):
        raise NoteError("it has control characters")
    return text


def decode_base64(text: str, size: int | None = None) -> bytes:
    """Decode standard base64, of so many bytes if `size` is given. Raises NoteError."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoteError("not base64") from None
    if base64.b64encode(raw).decode() != text or size not in (None, len(raw)):
        raise NoteError("not base64 of as many bytes as it should be")
    return raw


def parse_decimal(text: str) -> int:
    """Read a decimal without leading zeroes, below 2**63. Raises NoteError."""
    if not (text.isascii() and text.isdigit()) or (text[0] == "0" and text != "0"):
        raise NoteError("not a whole number in decimal")
    if len(text) > 19 or int(text) >= 2**63:
        raise NoteError("too large a number")
    return int(text)


def _check_name(name: str) -> str:
    if not name or "+" in name or any(character.isspace() for character in name):
        raise NoteError("a key has a name, without spaces and plus signs")
    return name


def _parse_key(text: str) -> tuple[str, KeyKind, bytes]:
    parts = text.split("+", 2)  # base64 may have plus signs, too
    if len(parts) != 3:
        raise NoteError("not a key, which has the form name+id+key")
    name, raw = _check_name(parts[0]), decode_base64(parts[2])
    kinds = {kind.value: kind for kind in KeyKind}
    if len(raw) != 33 or raw[0] not in kinds:
        raise NoteError(f"the key of {name} is not an Ed25519 key of a log or a witness")
    return name, kinds[raw[0]], raw[1:]


# From a height h and an index i: the hash of the perfect subtree over the 2**h leaves from i *
# 2**h. Height 0 is a leaf's own hash.
Perfect = Callable[[int, int], bytes]

# The root of no leaves.
EMPTY_ROOT = hashlib.sha256(b"").digest()
_LEAF, _NODE = b"\x00", b"\x01"


class ProofError(TerrineError, ValueError):
    """A proof does not prove what it should."""


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of a leaf."""
    return hashlib.sha256(_LEAF + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return hashlib.sha256(_NODE + left + right).digest()


class Frontier:
    """A tree that grows: the perfect subtrees that its leaves make up so far, largest first.

    Memory grows with the logarithm of its size.
    """

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[bytes] = []

    def append(self, leaf: bytes) -> None:
        """Add a leaf, by its hash."""
        size = self.size
        while size & 1:
            leaf = node_hash(self._parts.pop(), leaf)
            size >>= 1
        self._parts.append(leaf)
        self.size += 1

    @property
    def root(self) -> bytes:
        """The root of the tree so far."""
        if not self._parts:
            return EMPTY_ROOT
        root = self._parts[-1]
        for part in self._parts[-2::-1]:
            root = node_hash(part, root)
        return root


def perfect_root(hashes: Sequence[bytes]) -> bytes:
    """Return the root over a power of two of hashes."""
    while len(hashes) > 1:
        pairs = zip(hashes[::2], hashes[1::2], strict=True)
        hashes = [node_hash(left, right) for left, right in pairs]
    return hashes[0]


def subtree_root(begin: int, end: int, perfect: Perfect) -> bytes:
    """Return the root over the leaves from `begin` to before `end`, a range that a split makes."""
    count = end - begin
    if count == 0:
        return EMPTY_ROOT
    split = _split(count)
    if split == 0:
        height = count.bit_length() - 1
        return perfect(height, begin >> height)
    middle = begin + split
    return node_hash(subtree_root(begin, middle, perfect), subtree_root(middle, end, perfect))


def prove_inclusion(index: int, size: int, perfect: Perfect) -> list[bytes]:
    """Return the path from a leaf to the root of a tree of this size: the siblings, lowest first.

    Raises ValueError if the tree has no such leaf.
    """
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {index}")
    path, begin, end = [], 0, size
    while end - begin > 1:
        middle = begin + (_split(end - begin) or (end - begin) // 2)
        if index < middle:
            path.append(subtree_root(middle, end, perfect))
            end = middle
        else:
            path.append(subtree_root(begin, middle, perfect))
            begin = middle
    return path[::-1]


def prove_consistency(old: int, size: int, perfect: Perfect) -> list[bytes]:
    """Return the proof that the tree of `size` leaves begins with that of `old` leaves.

    Raises ValueError if `old` is the larger.
    """
    if not 0 <= old <= size:
        raise ValueError(f"a tree of {size} leaves does not begin with one of {old}")
    if old in (0, size):
        return []
    path, begin, end = [], 0, size
    while old < end:
        middle = begin + (_split(end - begin) or (end - begin) // 2)
        if old <= middle:
            path.append(subtree_root(middle, end, perfect))
            end = middle
        else:
            path.append(subtree_root(begin, middle, perfect))
            begin = middle
    if begin:
        path.append(subtree_root(begin, end, perfect))
    return path[::-1]


def check_inclusion(
    leaf: bytes, index: int, size: int, root: bytes, proof: Sequence[bytes]
) -> None:
    """Raise ProofError unless the leaf with this hash is where it should be, below this root."""
    if not 0 <= index < size:
        raise ProofError(f"a tree of {size} leaves has no leaf {index}")
    place, last, found = index, size - 1, leaf
    for sibling in _hashes(proof):
        if last == 0:
            raise ProofError("the proof of inclusion is too long")
        if place & 1 or place == last:
            found = node_hash(sibling, found)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        place, last = place >> 1, last >> 1
    if last or found != root:
        raise ProofError(f"leaf {index} is not in the tree of {size} leaves")


def check_consistency(
    old: int, size: int, old_root: bytes, root: bytes, proof: Sequence[bytes]
) -> None:
    """Raise ProofError unless the tree of `size` leaves begins with that of `old` leaves."""
    wrong = ProofError(f"the tree of {size} leaves does not begin with that of {old}")
    if not 0 <= old <= size or (proof and old in (0, size)):
        raise wrong
    if old == size and old_root != root:
        raise ProofError(f"two trees of {size} leaves differ")
    if old == 0 and old_root != EMPTY_ROOT:
        raise wrong
    if old in (0, size):
        return
    path = _hashes(proof)
    if old & (old - 1) == 0:
        path = [old_root, *path]
    if not path:
        raise wrong
    place, last = old - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    first = second = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise wrong
        if place & 1 or place == last:
            first, second = node_hash(sibling, first), node_hash(sibling, second)
            while place and not place & 1:
                place, last = place >> 1, last >> 1
        else:
            second = node_hash(second, sibling)
        place, last = place >> 1, last >> 1
    if last or (first, second) != (old_root, root):
        raise wrong


def _split(count: int) -> int:
    """Return the largest power of two below `count`; 0 if `count` is a power of two itself."""
    return 0 if count & (count - 1) == 0 else 1 << (count.bit_length() - 1)


def _hashes(proof: Sequence[bytes]) -> list[bytes]:
    if any(len(each) != 32 for each in proof):
        raise ProofError("a hash in the proof is not 32 bytes long")
    return list(proof)


HEIGHT = 8
WIDTH = 1 << HEIGHT
HASH_BYTES = 32
# Bytes of an entry in a bundle: its length, and a commitment.
ENTRY_BYTES = 2 + 32
_PATH = re.compile(
    r"(?P<level>entries|0|[1-9][0-9]?)/(?P<high>(?:x[0-9]{3}/)*)(?P<low>[0-9]{3})"
    r"(?:\.p/(?P<width>[1-9][0-9]{0,2}))?",
    re.ASCII,
)


@dataclass(frozen=True)
class Tile:
    """A tile's level (None: the entries themselves), its index, and its number of hashes."""

    level: int | None
    index: int
    width: int = WIDTH

    @property
    def path(self) -> str:
        """Its path below `tile/`."""
        groups = [f"{self.index % 1000:03}"]
        rest = self.index // 1000
        while rest:
            groups.insert(0, f"x{rest % 1000:03}")
            rest //= 1000
        level = "entries" if self.level is None else str(self.level)
        partial = "" if self.width == WIDTH else f".p/{self.width}"
        return f"{level}/{'/'.join(groups)}{partial}"

    @classmethod
    def parse(cls, path: str) -> Tile:
        """Read a path below `tile/`. Raises NoteError unless it is what `path` writes."""
        found = _PATH.fullmatch(path)
        if found is None or len(found["high"]) > 5 * 6:
            raise NoteError("not a tile, whose path is level/index or level/index.p/width")
        index = int(found["high"].replace("x", "").replace("/", "") + found["low"])
        level = None if found["level"] == "entries" else int(found["level"])
        tile = cls(level, index, int(found["width"] or WIDTH))
        if tile.path != path or (level or 0) > 63 or tile.width > WIDTH:
            raise NoteError("not a tile, whose path is level/index or level/index.p/width")
        return tile


class Tiles:
    """The perfect subtrees of a tree of `size` leaves, read from its tiles.

    `fetch` returns a tile's bytes, which must be `width` hashes. Each tile is fetched once.
    """

    def __init__(self, size: int, fetch: Callable[[Tile], bytes]) -> None:
        self.size = size
        self._fetch = fetch
        self._kept: dict[tuple[int, int], bytes] = {}

    def perfect(self, height: int, index: int) -> bytes:
        """Hash a perfect subtree, as `Perfect` does. Raises ProofError if a tile is incomplete."""
        level, above = divmod(height, HEIGHT)
        first = index << above
        data = self._tile(level, first // WIDTH)
        start = first % WIDTH * HASH_BYTES
        hashes = [
            data[at : at + HASH_BYTES]
            for at in range(start, start + (HASH_BYTES << above), HASH_BYTES)
        ]
        if len(hashes[-1]) != HASH_BYTES:
            raise ProofError(f"the tree of {self.size} leaves has no such part")
        return perfect_root(hashes)

    def _tile(self, level: int, index: int) -> bytes:
        data = self._kept.get((level, index))
        if data is None:
            tile = tile_of(self.size, level, index)
            data = self._fetch(tile)
            if len(data) != tile.width * HASH_BYTES:
                raise ProofError(f"the tile {tile.path} is incomplete")
            self._kept[level, index] = data
        return data


def tile_of(size: int, level: int, index: int) -> Tile:
    """Return the widest tile of this level and index in a tree of this size.

    Raises ProofError if there is none.
    """
    width = min(WIDTH, (size >> HEIGHT * level) - index * WIDTH)
    if width < 1:
        raise ProofError(f"the tree of {size} leaves has no such tile")
    return Tile(level, index, width)


def join_bundle(entries: list[bytes]) -> bytes:
    """Return a bundle of entries: each with its length, of two bytes, before it."""
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


@dataclass(frozen=True)
class Checkpoint:
    """The state of the log `origin`: a tree of `size` leaves with this root hash.

    `more`: further lines that were signed with it; we write none.
    """

    origin: str
    size: int
    root: bytes
    more: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The text that is signed."""
        root = base64.b64encode(self.root).decode()
        return "".join(f"{line}\n" for line in (self.origin, str(self.size), root, *self.more))

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Read the text of a note. Raises NoteError."""
        lines = text.removesuffix("\n").split("\n")
        if len(lines) < 3 or not all(lines) or not text.endswith("\n"):
            raise NoteError("not a checkpoint: an origin, a size and a root hash, each on a line")
        return cls(lines[0], parse_decimal(lines[1]), decode_base64(lines[2], 32), tuple(lines[3:]))


def open_checkpoint(note: str | bytes | Note, log: VerifierKey) -> Checkpoint:
    """Return the checkpoint in a note that this log signed. Raises NoteError."""
    if not isinstance(note, Note):
        note = Note.parse(note)
    checkpoint = Checkpoint.parse(note.text)
    if checkpoint.origin != log.name:
        raise NoteError(f"a checkpoint of {checkpoint.origin}, not of {log.name}")
    if log not in note.signers([log]):
        raise NoteError(f"no signature of {log.name} with the key {log.key_id.hex()}")
    return checkpoint


NO_QUORUM = "none"


class QuorumMissing(NoteError):  # noqa: N818
    """The log signed a checkpoint, but too few witnesses cosigned it."""


@dataclass(frozen=True)
class Party:
    """A log or a witness: its key, and where it is reached, if the policy says."""

    key: VerifierKey
    url: str | None = None


@dataclass(frozen=True)
class Group:
    """At least `least` of the members, witnesses or groups, must have cosigned."""

    least: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """A checkpoint that satisfies a policy, and when each witness cosigned it (POSIX seconds)."""

    checkpoint: Checkpoint
    note: Note
    cosigned: Mapping[str, int]

    @property
    def newest(self) -> int | None:
        """The time of the last cosignature, if there is one."""
        return max(self.cosigned.values(), default=None)


@dataclass(frozen=True)
class Policy:
    """Known logs, witnesses and groups by name, and the quorum."""

    logs: tuple[Party, ...]
    witnesses: Mapping[str, Party]
    groups: Mapping[str, Group]
    quorum: str

    @classmethod
    def parse(cls, data: bytes) -> Policy:
        """Read a policy. Raises NoteError, which says in which line."""
        logs: list[Party] = []
        witnesses: dict[str, Party] = {}
        groups: dict[str, Group] = {}
        quorum: str | None = None
        used: set[str] = set()

        def member(name: str) -> str:
            if name not in witnesses and name not in groups:
                raise NoteError(f"{name} is not defined above")
            return name

        def new(name: str) -> str:
            if name == NO_QUORUM or name in witnesses or name in groups:
                raise NoteError(f"the name {name} is taken")
            return name

        # Names are octets, not characters: see the specification.
        for place, line in enumerate(data.decode("latin-1").split("\n"), start=1):
            try:
                if any(not (" " <= c <= "~" or c >= "\x80" or c == "\t") for c in line):
                    raise NoteError("it has control characters")
                words = [word for word in line.replace("\t", " ").split(" ") if word]
                match words:
                    case []:
                        pass
                    case [first, *_] if first.startswith("#"):
                        pass
                    case ["log", key, *url] if len(url) <= 1:
                        logs.append(_parse_party(key, url, KeyKind.ED25519))
                        _check_distinct([log.key for log in logs])
                    case ["witness", name, key, *url] if len(url) <= 1:
                        witnesses[new(name)] = _parse_party(key, url, KeyKind.COSIGNATURE)
                        _check_distinct([witness.key for witness in witnesses.values()])
                    case ["group", name, least, *names] if names:
                        for each in map(member, names):
                            if each in used:
                                raise NoteError(f"{each} is a member more than once")
                            used.add(each)
                        groups[new(name)] = Group(_parse_least(least, len(names)), tuple(names))
                    case ["quorum", name] if quorum is None:
                        quorum = name if name == NO_QUORUM else member(name)
                    case _:
                        raise NoteError("expected log, witness, group, or one quorum")
            except NoteError as error:
                raise NoteError(f"line {place} of the policy: {error}") from None
        if quorum is None:
            raise NoteError("the policy has no quorum; `quorum none` needs no witness")
        return cls(tuple(logs), witnesses, groups, quorum)

    def open(self, note: Note | str | bytes) -> VerifiedCheckpoint:
        """Return the checkpoint in a note. Raises NoteError, or QuorumMissing."""
        note = note if isinstance(note, Note) else Note.parse(note)
        checkpoint = Checkpoint.parse(note.text)
        if not note.signers([p.key for p in self.logs if p.key.name == checkpoint.origin]):
            raise NoteError(
                f"no log of the policy signed this checkpoint, whose origin is {checkpoint.origin}"
            )
        cosigned = self.cosigned(note)
        if not self.is_satisfied_by(set(cosigned)):
            named = ", ".join(sorted(cosigned)) or "nobody"
            raise QuorumMissing(
                f"the checkpoint of size {checkpoint.size} is cosigned by {named}; the quorum is "
                f"{self.quorum}"
            )
        return VerifiedCheckpoint(checkpoint, note, cosigned)

    def cosigned(self, note: Note) -> dict[str, int]:
        """Return which witnesses cosigned a note, and when."""
        by_key = note.signers([witness.key for witness in self.witnesses.values()])
        found = {name: by_key.get(witness.key) for name, witness in self.witnesses.items()}
        return {name: when for name, when in found.items() if when is not None}

    def is_satisfied_by(self, cosigned: set[str]) -> bool:
        """Whether these witnesses are enough."""

        def done(name: str) -> bool:
            group = self.groups.get(name)
            if group is None:
                return name in cosigned
            return sum(map(done, group.members)) >= group.least

        return self.quorum == NO_QUORUM or done(self.quorum)


def _parse_party(key: str, url: list[str], kind: KeyKind) -> Party:
    try:
        # A key's name is text, whatever the policy's other octets are.
        found = VerifierKey.parse(key.encode("latin-1").decode())
    except UnicodeDecodeError:
        raise NoteError("the name in the key is not UTF-8") from None
    if found.kind is not kind:
        signs = "cosignatures" if kind is KeyKind.COSIGNATURE else "notes"
        raise NoteError(f"the key of {found.name} is not one for {signs}")
    return Party(found, *url)


def _check_distinct(keys: list[VerifierKey]) -> None:
    if len({key.public for key in keys}) < len(keys):
        raise NoteError("this public key is there already")


def _parse_least(word: str, members: int) -> int:
    least = {"any": 1, "all": members}.get(word) or parse_decimal(word)
    if not 1 <= least <= members:
        raise NoteError(f"{least} of {members} members cannot be needed")
    return least


PROOF_HEADER = "c2sp.org/tlog-proof@v1"


@dataclass(frozen=True)
class Proof:
    """Proves that the leaf `index` is in the tree of a checkpoint, given as the signed note.

    `extra` is not authenticated; we keep there what opens the commitment.
    """

    index: int
    path: tuple[bytes, ...]
    checkpoint: str
    extra: bytes | None = None

    def __str__(self) -> str:
        lines = [PROOF_HEADER]
        if self.extra is not None:
            lines.append(f"extra {base64.b64encode(self.extra).decode()}")
        lines += [f"index {self.index}", *(base64.b64encode(h).decode() for h in self.path)]
        return "".join(f"{line}\n" for line in lines) + f"\n{self.checkpoint}"

    @classmethod
    def parse(cls, text: str | bytes) -> Proof:
        """Read what `str` writes. Raises NoteError."""
        head, gap, checkpoint = check_text(text).partition("\n\n")
        lines = head.split("\n")
        if lines.pop(0) != PROOF_HEADER or not gap:
            raise NoteError(f"not a proof: it begins with {PROOF_HEADER}, and a checkpoint follows")
        extra = None
        if lines and lines[0].startswith("extra "):
            extra = decode_base64(lines.pop(0).removeprefix("extra "))
        if not lines or not lines[0].startswith("index "):
            raise NoteError("a proof says its index")
        index = parse_decimal(lines.pop(0).removeprefix("index "))
        return cls(index, tuple(decode_base64(line, 32) for line in lines), checkpoint, extra)

    def check(self, entry: bytes, policy: Policy) -> Checkpoint:
        """Return the checkpoint in whose tree the entry is. Raises NoteError and ProofError."""
        checkpoint = policy.open(Note.parse(self.checkpoint)).checkpoint
        leaf = leaf_hash(entry)
        check_inclusion(leaf, self.index, checkpoint.size, checkpoint.root, self.path)
        return checkpoint


LEAF_KEY_BYTES = 32


def commitment(key: bytes, entry_hash: bytes) -> bytes:
    """Return the log's entry for an entry of the ledger, given its project's leaf key."""
    if len(key) != LEAF_KEY_BYTES:
        raise ValueError(f"a leaf key has {LEAF_KEY_BYTES} bytes")
    return hmac.digest(key, entry_hash, hashlib.sha256)
