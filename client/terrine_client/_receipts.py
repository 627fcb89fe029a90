"""Receipts: which entries of the ledger paid for answers, and whether they are in its log.

The server names the entry that paid for an answer, and its hash. Later it has to show a tree that
contains the entry, signed by itself and cosigned by witnesses who know it as the only one. All of
that is checked here; nothing that the server says is trusted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from terrine_client._calls import Call, Plan
from terrine_client.errors import ConfigurationError, NotFound
from terrine_protocol import LabelResponse, ReceiptPage, transparency
from terrine_protocol.files import read, write_atomically
from terrine_protocol.transparency import (
    Checkpoint,
    Note,
    NoteError,
    Policy,
    Proof,
    Tile,
    Tiles,
    VerifiedCheckpoint,
    commitment,
)

FORMAT = "terrine-receipts/1"
# An entry that is in no cosigned checkpoint after this time is missing.
WAIT_SECONDS = 120
# Maximum age of the newest cosignature. The service asks for new ones every hour.
STALE_SECONDS = 3 * 3600
T = TypeVar("T")


@dataclass(frozen=True)
class Receipt:
    """An entry's hash, in hex, and when it was first received (POSIX seconds, by our clock)."""

    hash: str
    received_at: float


@dataclass
class Receipts:
    """Receipts by the number of their entry, all of one project, and the last checkpoint seen.

    `contradicted`: numbers for which the server has sent two hashes. `protects`: whose contribution
    the guarantee hides (a record, or all records of a person), as the server said last.
    """

    entries: dict[int, Receipt] = field(default_factory=dict)
    checkpoint: str | None = None
    contradicted: set[int] = field(default_factory=set)
    protects: str | None = None

    def __repr__(self) -> str:
        return f"<Receipts of {len(self.entries):,} entries, {len(self.contradicted)} contradicted>"

    def keep(self, reply: LabelResponse) -> None:
        """Keep the receipts of a reply."""
        self.protects = reply.budget.protects
        for result in reply.results:
            if result.charge is None or result.hash is None:
                continue
            kept = self.entries.get(result.charge)
            if kept is None:
                self.entries[result.charge] = Receipt(result.hash, time.time())
            elif kept.hash != result.hash:
                self.contradicted.add(result.charge)

    def save(self, path: Path | str) -> None:
        """Write them to a file that `load` reads."""
        document = {
            "format": FORMAT,
            "protects": self.protects,
            "checkpoint": self.checkpoint,
            "contradicted": sorted(self.contradicted),
            "entries": {str(n): [r.hash, r.received_at] for n, r in sorted(self.entries.items())},
        }
        write_atomically(Path(path), f"{json.dumps(document, indent=1)}\n".encode())

    @classmethod
    def load(cls, path: Path | str) -> Receipts:
        """Read what `save` wrote. Raises ConfigurationError, and OSError."""
        try:
            document = json.loads(read(path, None))
            if document["format"] != FORMAT:
                raise ValueError(document["format"])
            return cls(
                {int(n): Receipt(str(h), float(t)) for n, (h, t) in document["entries"].items()},
                document["checkpoint"],
                set(map(int, document["contradicted"])),
                document["protects"],
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(f"{path} has no receipts, or was altered.") from error


@dataclass(frozen=True)
class ReceiptReport:
    """What the log shows of receipts.

    checkpoint: the checkpoint that they were checked against; None if none was trustworthy.
    cosigned: when each witness cosigned it (POSIX seconds).
    proofs: of every entry in the log, by its number; `str(proof)` is a file that others can check.
    waiting: numbers of entries so new that they may still get into the log.
    missing: numbers of entries that should be in the log, and are not.
    problems: everything else that is wrong, as text.
    protects: whose contribution the guarantee hides, as the server said with the answers.
    """

    checkpoint: Checkpoint | None
    cosigned: Mapping[str, int]
    proofs: Mapping[int, Proof]
    waiting: Sequence[int]
    missing: Sequence[int]
    problems: Sequence[str]
    protects: str | None

    def __repr__(self) -> str:
        return (
            f"<ReceiptReport: {'ok' if self.ok else 'not ok'}, {len(self.proofs):,} in the log, "
            f"{len(self.waiting):,} waiting, {len(self.missing):,} missing, "
            f"{len(self.problems)} problems>"
        )

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.missing and not self.problems

    def __str__(self) -> str:
        if self.checkpoint is None:
            lines = ["no checkpoint that the policy accepts"]
        else:
            by = ", ".join(sorted(self.cosigned)) or "nobody"
            lines = [f"a log of {self.checkpoint.size} entries, cosigned by {by}"]
        if self.protects is not None:
            lines.append(f"protects {self.protects}")
        lines.append(f"{len(self.proofs)} receipts proven, {len(self.waiting)} wait")
        lines += [f"entry {number} is not in the log" for number in self.missing]
        return "\n".join([*lines, *self.problems])


def read_policy(policy: Policy | Path | str | bytes) -> Policy:
    """Return a policy, read from a file by its path, or from bytes, unless it is one already.

    Raises ConfigurationError, also if `cryptography` is not installed, and OSError.
    """
    if find_spec("cryptography") is None:
        raise ConfigurationError(
            "Signatures are checked with cryptography. In a checkout: pip install '.[signatures]'"
        )
    if isinstance(policy, Policy):
        return policy
    try:
        return Policy.parse(policy if isinstance(policy, bytes) else read(policy))
    except NoteError as error:
        raise ConfigurationError(f"The policy cannot be used: {error}.") from error


def verify(receipts: Receipts, policy: Policy | None, others: Iterable[str]) -> Plan[ReceiptReport]:
    """Check all receipts, and that the log continues the checkpoints seen by us and by `others`.

    Without a policy, it is not checked who signed any of them.
    """
    problems = [f"entry {n} was sent with two hashes" for n in sorted(receipts.contradicted)]
    try:
        note = yield Call("GET", "/checkpoint", bytes)
        opened = _open(policy, Note.parse(note))
    except NotFound:
        problems.append("the server shows no checkpoint")
        return _report_without_checkpoint(receipts, problems)
    except NoteError as error:
        problems.append(f"the checkpoint cannot be trusted: {error}")
        return _report_without_checkpoint(receipts, problems)
    checkpoint, tiles = opened.checkpoint, _TileCache()
    now = time.time()
    if opened.newest is not None and opened.newest < now - STALE_SECONDS:
        since = datetime.fromtimestamp(opened.newest, UTC)
        problems.append(f"the checkpoint was last cosigned at {since:%Y-%m-%d %H:%M} UTC")
    for whose, seen in [("seen before", receipts.checkpoint), *(("of others", o) for o in others)]:
        if seen is not None:
            problems += yield from _find_contradictions(policy, opened, seen, whose, tiles)
    proofs: dict[int, Proof] = {}
    places: dict[int, int] = {}
    key = yield from _locate_entries(receipts, places)
    for number, receipt in sorted(receipts.entries.items()):
        index = places.get(number)
        if key is None or index is None or index >= checkpoint.size:
            continue
        leaf = transparency.leaf_hash(commitment(key, bytes.fromhex(receipt.hash)))
        try:
            path = yield from tiles.of(
                checkpoint.size,
                partial(transparency.prove_inclusion, index, checkpoint.size),
            )
            transparency.check_inclusion(leaf, index, checkpoint.size, checkpoint.root, path)
        except (transparency.ProofError, NotFound):
            continue
        opening = {"charge": number, "hash": receipt.hash, "leaf_key": key.hex()}
        extra = json.dumps(opening, separators=(",", ":")).encode()
        proofs[number] = Proof(index, tuple(path), str(opened.note), extra)
    due = (now if opened.newest is None else opened.newest) - WAIT_SECONDS
    absent = sorted(receipts.entries.keys() - proofs.keys())
    waiting = [
        n
        for n in absent
        if receipts.entries[n].received_at > due
        and places.get(n, checkpoint.size) >= checkpoint.size
    ]
    if not problems:
        receipts.checkpoint = str(opened.note)
    return ReceiptReport(
        checkpoint,
        opened.cosigned,
        proofs,
        waiting,
        [n for n in absent if n not in waiting],
        problems,
        receipts.protects,
    )


def _open(policy: Policy | None, note: Note) -> VerifiedCheckpoint:
    if policy is None:
        return VerifiedCheckpoint(Checkpoint.parse(note.text), note, {})
    return policy.open(note)


def _report_without_checkpoint(receipts: Receipts, problems: list[str]) -> ReceiptReport:
    return ReceiptReport(None, {}, {}, sorted(receipts.entries), [], problems, receipts.protects)


class _TileCache:
    """Fetched tiles. A computation that needs another one starts again once it is fetched."""

    def __init__(self) -> None:
        self._kept: dict[Tile, bytes] = {}

    def of(self, size: int, compute: Callable[[transparency.Perfect], T]) -> Plan[T]:
        """Compute something from the tiles of a tree of this size."""
        while True:
            try:
                return compute(Tiles(size, self._fetch).perfect)
            except _NeedTile as missing:
                self._kept[missing.tile] = yield Call("GET", f"/tile/{missing.tile.path}", bytes)

    def _fetch(self, tile: Tile) -> bytes:
        if tile not in self._kept:
            raise _NeedTile(tile)
        return self._kept[tile]


class _NeedTile(Exception):  # noqa: N818 - not an error: it is fetched
    def __init__(self, tile: Tile) -> None:
        self.tile = tile


def _find_contradictions(
    policy: Policy | None, opened: VerifiedCheckpoint, seen: str, whose: str, tiles: _TileCache
) -> Plan[list[str]]:
    """Return what contradicts between the current checkpoint and one that was seen."""
    try:
        note = Note.parse(seen)
        earlier = Checkpoint.parse(note.text)
        logs = () if policy is None else policy.logs
        keys = [log.key for log in logs if log.key.name == earlier.origin]
        if policy is not None and not note.signers(keys):
            raise NoteError("no log of the policy signed it")
    except NoteError as error:
        return [f"a checkpoint {whose} cannot be used: {error}"]
    current = opened.checkpoint
    if earlier.origin != current.origin:
        return [f"a checkpoint {whose} is of another log, {earlier.origin}"]
    old, new = sorted((earlier, current), key=lambda checkpoint: checkpoint.size)
    try:
        proof = yield from tiles.of(
            new.size, partial(transparency.prove_consistency, old.size, new.size)
        )
        transparency.check_consistency(old.size, new.size, old.root, new.root, proof)
    except (transparency.ProofError, NotFound):
        return [
            f"TWO HISTORIES: the log signed a checkpoint {whose}, of {earlier.size} entries, that "
            f"the one of {current.size} entries does not agree with. Keep both as evidence:\n"
            f"{seen}\n{opened.note}"
        ]
    if earlier.size > current.size:
        return [
            f"THE LOG WENT BACK: a checkpoint {whose} is of {earlier.size} entries, and the server "
            f"now shows one of {current.size}: an older database was restored, or entries are "
            f"kept from you. Keep both as evidence:\n{seen}\n{opened.note}"
        ]
    return []


def _locate_entries(receipts: Receipts, places: dict[int, int]) -> Plan[bytes | None]:
    """Fill `places` with the index of each entry, as the server says; return the leaf key."""
    wanted = sorted(receipts.entries)
    if not wanted:
        return None
    cursor: str | None = str(wanted[0] - 1)
    before = wanted[0] - 1
    key: bytes | None = None
    while cursor is not None:
        page: ReceiptPage = yield Call(
            "GET",
            "/receipts",
            ReceiptPage,
            params={"limit": "1000", "cursor": cursor},
        )
        key = None if page.leaf_key is None else bytes.fromhex(page.leaf_key)
        places.update((item.charge, item.index) for item in page.items)
        last = max((item.charge for item in page.items), default=before)
        # A server that keeps sending pages without anything new must not keep us for ever.
        cursor = page.next if before < last < wanted[-1] else None
        before = last
    return key if key is None or len(key) == 32 else None
