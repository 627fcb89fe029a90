"""Votes in two shares that say nothing alone: additive sharing modulo 2³².

All arrays are uint32[B, m], whose sums wrap as the proof wants: docs/privacy/secret-sharing.md.
"""

from __future__ import annotations

import os
import re
import secrets

import numpy as np
from numpy.typing import NDArray

from terrine_server.labeling.inference import ProtocolError
from terrine_server.privacy import Entropy

Share = NDArray[np.uint32]
ROUND = "Terrine-Round"
"""The header that names the round for which an owner is asked for shares."""
ROUND_NAME = r"[0-9a-f]{32}"
SHAPE = "Terrine-Shape"
"""The header in which an owner says how many rows and classes the aggregator's share has:
`8x10`."""
WIDTH = 4
"""Bytes of each number of a share, least significant first."""


def new_round() -> str:
    """Return the name of a new round."""
    return secrets.token_hex(16)


def split(
    labels: NDArray[np.int64], classes: int, entropy: Entropy = os.urandom
) -> tuple[Share, Share]:
    """Return the two shares of one vote on each of B inputs; their sum has a 1 at each label.

    The second is drawn anew and is uniform, whatever the labels; so is the first, without it.
    """
    drawn = read(entropy(len(labels) * classes * WIDTH), len(labels), classes)
    return one_hot(labels, classes) - drawn, drawn


def one_hot(labels: NDArray[np.int64], classes: int) -> Share:
    """Return labels `[B]` as votes."""
    votes = np.zeros((len(labels), classes), dtype=np.uint32)
    votes[np.arange(len(labels)), labels] = 1
    return votes


def read(body: bytes, rows: int, classes: int) -> Share:
    """Read what `write` wrote. Raises ProtocolError if it is not of this size."""
    if len(body) != rows * classes * WIDTH:
        raise ProtocolError(
            f"{len(body)} bytes, expected {WIDTH} for each of {rows} x {classes} numbers"
        )
    return np.frombuffer(body, dtype="<u4").reshape(rows, classes).astype(np.uint32)


def shape_of(share: Share) -> str:
    """Return what an owner says of a share in the header `SHAPE`."""
    rows, classes = share.shape
    return f"{rows}x{classes}"


def check(shape: str, body: bytes, classes: int) -> None:
    """Check the bytes of a share by its header. Raises ProtocolError.

    The size alone does not tell: rows of ten classes are fewer rows of twenty, each with two votes.
    """
    found = re.fullmatch(r"([1-9][0-9]{0,9})x([1-9][0-9]{0,9})", shape)
    if found is None:
        raise ProtocolError(f"{SHAPE} says no rows and classes, such as 8x{classes}")
    rows, theirs = map(int, found.groups())
    if theirs != classes:
        raise ProtocolError(f"rows of {theirs} classes, expected {classes}")
    if len(body) != rows * classes * WIDTH:
        raise ProtocolError(
            f"{len(body)} bytes, expected {WIDTH} for each of {rows} x {classes} numbers"
        )


def write(share: Share) -> bytes:
    """Return the bytes that a share is sent as."""
    return share.astype("<u4").tobytes()
