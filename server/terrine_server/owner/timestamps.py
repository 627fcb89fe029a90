"""Time stamps of checkpoints (RFC 3161): an authority signs that a checkpoint was there at a time.

A cosignature says when, too, but by a witness's clock. An authority that courts and auditors know
may say it of what was never shown to a witness. Its whole reply is kept, as `openssl ts` reads it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from terrine_protocol.files import read
from terrine_protocol.transparency.notes import LARGEST, NoteError
from terrine_server.owner.checkpoints import CheckpointError, posted

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

SUFFIX = ".tsr"
"""What follows the name of a checkpoint's file in that of its time stamp."""
QUERY, REPLY = "application/timestamp-query", "application/timestamp-reply"


class TimestampError(CheckpointError):
    """A time stamp that cannot be had, or proves nothing."""


def load_authority(path: Path) -> list[Certificate]:
    """Read the certificates of an authority that are trusted, in PEM. Raises CheckpointError."""
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(read(path, LARGEST))
    except ValueError:
        raise TimestampError(
            f"{path} has no certificate in PEM. Expected is the root of the time-stamping "
            "authority, and what is between that and its own, if its replies lack it."
        ) from None


def stamp(note: bytes, url: str, authority: Sequence[Certificate]) -> bytes:
    """Return the reply of the authority at a URL, once it is checked. Raises TimestampError.

    A reply that does not verify is refused now: later, nobody could ask for another one.
    """
    library = _library()
    request = library.TimestampRequestBuilder().data(note).build()
    try:
        status, kind, reply = posted(url, request.as_bytes(), QUERY)
    except (httpx.HTTPError, httpx.InvalidURL, NoteError) as error:
        cause = str(error) or type(error).__name__
        raise TimestampError(f"{url} gave no time stamp: {cause}.") from None
    if status != 200 or not kind.startswith(REPLY):
        raise TimestampError(
            f"{url} gave no time stamp: it answered {status}, {kind or 'nothing'}."
        )
    check(reply, note, authority, request.nonce)
    return reply


def check(
    reply: bytes, note: bytes, authority: Sequence[Certificate], nonce: int | None = None
) -> datetime:
    """Return when a note was there, as an authority's reply proves. Raises TimestampError.

    Certificates must have been valid then, not now. `nonce`: what the reply must repeat.
    """
    library = _library()
    try:
        parsed = library.decode_timestamp_response(reply)
        if parsed.status != 0:
            said = "; ".join(parsed.status_string) or f"status {parsed.status}"
            raise TimestampError(f"The time-stamping authority refused: {said}.")
        info = parsed.tst_info
    except ValueError:
        raise TimestampError("It is no reply of a time-stamping authority (RFC 3161).") from None
    made = [hashlib.new(name, note).digest() for name in ("sha256", "sha384", "sha512")]
    if info.message_imprint.message not in made:
        raise TimestampError("The time stamp is of another text than this checkpoint.")
    verifier = library.VerifierBuilder(roots=list(authority), nonce=nonce).build()
    try:
        verifier.verify_message(parsed, note)
    except (library.VerificationError, ValueError) as error:
        raise TimestampError(
            f"The time stamp does not verify by the certificates that are trusted: {error}."
        ) from None
    when: datetime = info.gen_time
    return when


def _library() -> Any:
    try:
        import rfc3161_client
    except ModuleNotFoundError:
        raise TimestampError(
            "Time stamps need the extra `timestamp`. In a checkout: pip install '.[timestamp]'"
        ) from None
    return rfc3161_client
