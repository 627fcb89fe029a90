"""Work on a transparency log in other processes."""

from __future__ import annotations

from pathlib import Path

from migrated import SECRET_KEY

from terrine_server.ledger import Ledger, connect, transparency


def grow_until(url: str, stop: str, batch: int) -> None:
    """Grow the tree, a few leaves at a time, until a file is there, and once more then."""
    transparency.MAX_NEW_LEAVES = batch
    ledger, last = Ledger(connect(url), SECRET_KEY), False
    while not last:
        last = Path(stop).exists()
        ledger.grow_tree()
