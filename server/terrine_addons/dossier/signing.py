"""Signing a folder with the log's key, and checking one, which needs next to nothing installed.

`dossier.note` is a signed note (c2sp.org/signed-note) with the digests of all other files, as
`sha256sum` prints them. Its first two lines are the format and a time, so no checkpoint of a log,
whose second line is a number, is ever signed with it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from terrine_addons.dossier.words import DossierError
from terrine_protocol.files import read
from terrine_protocol.transparency import MAX_NOTE_BYTES, Note, NoteError, SignerKey, VerifierKey

FORMAT = "terrine-dossier/1"
NOTE = "dossier.note"


def sign(folder: Path, key: SignerKey, made_at: datetime) -> None:
    """Write the note of all files that are there. Raises DossierError, or OSError."""
    lines = [f"{_digest(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    text = "".join([f"{FORMAT}\n", f"{made_at:%Y-%m-%dT%H:%M:%SZ}\n", *lines])
    note = str(Note(text, (key.sign(text),)))
    if len(note.encode()) > MAX_NOTE_BYTES:
        raise DossierError("Too many projects for one dossier. Name one with --project.")
    (folder / NOTE).write_text(note, "utf-8")


@dataclass(frozen=True)
class CheckedDossier:
    """A folder that holds: when it was made, whose log signed it, and its files."""

    made_at: datetime
    signer: str
    files: tuple[str, ...]


def check(folder: Path, keys: list[VerifierKey]) -> CheckedDossier:
    """Check signature and digests. Raises DossierError for whatever does not hold, or OSError."""
    try:
        note = Note.parse(read(folder / NOTE, MAX_NOTE_BYTES))
        signers = note.signers(keys)
    except NoteError as error:
        raise DossierError(f"{folder / NOTE} does not hold: {error}.") from None
    if not signers:
        known = ", ".join(sorted(f"{key.name}+{key.key_id.hex()}" for key in keys)) or "none"
        by = ", ".join(f"{each.name}+{each.key_id.hex()}" for each in note.signatures)
        raise DossierError(f"{folder} is signed by {by}, not by a known log (known: {known}).")
    first, made, *lines = note.text.removesuffix("\n").split("\n")
    if first != FORMAT:
        raise DossierError(f"{folder / NOTE} is no {FORMAT}, but {first!r}.")
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    # What a link leads to, outside the folder, may change after it was checked.
    links = sorted(path.name for path in folder.iterdir() if path.is_symlink())
    there = {path.name for path in folder.iterdir()} - {NOTE}
    wrong = [f"{name} is missing" for name in sorted(set(listed) - there)]
    wrong += [f"{name} was added" for name in sorted(there - set(listed))]
    wrong += [f"{name} is a link" for name in links]
    wrong += [
        f"{name} was altered"
        for name in sorted((set(listed) & there) - set(links))
        if not (folder / name).is_file() or _digest(folder / name) != listed[name]
    ]
    if wrong:
        raise DossierError(f"{folder} is not as it was signed: {', '.join(wrong)}.")
    return CheckedDossier(
        datetime.fromisoformat(made), str(next(iter(signers))), tuple(sorted(listed))
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(read(path, None)).hexdigest()
