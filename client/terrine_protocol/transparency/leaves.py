"""What stands in the log for an entry of the ledger: a commitment to its hash.

An entry's hash covers its label. Whoever can guess all the rest of an entry, down to the
microsecond, could find the label by trying, and the tree is for everybody to read. So the log shows
HMAC-SHA256 of the hash, with a key that those have who may read the entry anyway: a project's
students and the auditors. The key is of fixed length, so no second pair of key and hash has the
same commitment, and the owner cannot open one in two ways.
"""

from __future__ import annotations

import hashlib
import hmac

KEY_BYTES = 32


def commitment(key: bytes, entry_hash: bytes) -> bytes:
    """Return the log's entry for an entry of the ledger, given its project's leaf key."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a leaf key has {KEY_BYTES} bytes")
    return hmac.digest(key, entry_hash, hashlib.sha256)
