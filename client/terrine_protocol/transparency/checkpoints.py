"""Checkpoints: how large a log is, and the root of its tree (c2sp.org/tlog-checkpoint)."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from terrine_protocol.transparency.notes import Note, NoteError, VerifierKey, decode, number


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
            raise NoteError("no checkpoint: an origin, a size and a root hash, each on a line")
        return cls(lines[0], number(lines[1]), decode(lines[2], 32), tuple(lines[3:]))


def opened(note: str | bytes | Note, log: VerifierKey) -> Checkpoint:
    """Return the checkpoint in a note that this log signed. Raises NoteError."""
    if not isinstance(note, Note):
        note = Note.parse(note)
    checkpoint = Checkpoint.parse(note.text)
    if checkpoint.origin != log.name:
        raise NoteError(f"a checkpoint of {checkpoint.origin}, not of {log.name}")
    if log not in note.signers([log]):
        raise NoteError(f"no signature of {log.name} with the key {log.key_id.hex()}")
    return checkpoint
