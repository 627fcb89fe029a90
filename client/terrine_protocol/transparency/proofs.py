"""Proofs of inclusion with their checkpoints, as files (c2sp.org/tlog-proof)."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from terrine_protocol.transparency import trees
from terrine_protocol.transparency.checkpoints import Checkpoint
from terrine_protocol.transparency.notes import Note, NoteError, checked_text, decode, number
from terrine_protocol.transparency.policies import Policy

HEADER = "c2sp.org/tlog-proof@v1"


@dataclass(frozen=True)
class Proof:
    """That the leaf `index` is in the tree of a checkpoint, given as the signed note.

    `extra` is not authenticated; we keep there what opens the commitment.
    """

    index: int
    path: tuple[bytes, ...]
    checkpoint: str
    extra: bytes | None = None

    def __str__(self) -> str:
        lines = [HEADER]
        if self.extra is not None:
            lines.append(f"extra {base64.b64encode(self.extra).decode()}")
        lines += [f"index {self.index}", *(base64.b64encode(h).decode() for h in self.path)]
        return "".join(f"{line}\n" for line in lines) + f"\n{self.checkpoint}"

    @classmethod
    def parse(cls, text: str | bytes) -> Proof:
        """Read what `str` writes. Raises NoteError."""
        head, gap, checkpoint = checked_text(text).partition("\n\n")
        lines = head.split("\n")
        if lines.pop(0) != HEADER or not gap:
            raise NoteError(f"no proof: it begins with {HEADER}, and a checkpoint follows")
        extra = None
        if lines and lines[0].startswith("extra "):
            extra = decode(lines.pop(0).removeprefix("extra "))
        if not lines or not lines[0].startswith("index "):
            raise NoteError("a proof says its index")
        index = number(lines.pop(0).removeprefix("index "))
        return cls(index, tuple(decode(line, 32) for line in lines), checkpoint, extra)

    def check(self, entry: bytes, policy: Policy) -> Checkpoint:
        """Return the checkpoint in whose tree the entry is. Raises NoteError and ProofError."""
        checkpoint = policy.opened(Note.parse(self.checkpoint)).checkpoint
        leaf = trees.leaf_hash(entry)
        trees.check_inclusion(leaf, self.index, checkpoint.size, checkpoint.root, self.path)
        return checkpoint
