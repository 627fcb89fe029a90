"""A ledger that is kept from the first release on: every later version must still verify it.

    PYTHONPATH=tests/support python tests/support/kept_ledger.py

writes `tests/fixtures/ledger-1.0.0.database.gz` and the exports beside it. It is never
written again: a version that changes what is stored adds a ledger of its own.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from tampering import World

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
DATABASE = FIXTURES / "ledger-1.0.0.database.gz"
EXPORTS = FIXTURES / "ledger-1.0.0.json"


def main() -> None:
    """Write the ledger, and what its exports were."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "terrine.sqlite"
        world = World(f"sqlite:///{path}")
        ledger = world.ledger()
        kept = {
            "projects": {
                name: {
                    "head": ledger.project(name).head,
                    "export": list(ledger.export(name)),
                }
                for name in ledger.project_names()
            },
            "log": list(ledger.export_log()),
        }
        world.engine.dispose()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        DATABASE.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        EXPORTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
