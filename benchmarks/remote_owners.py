"""How long 20 owners on this machine's network take, and the same teachers in this process.

    python benchmarks/remote_owners.py

Each owner is a model behind a real socket that answers with one vote, computed beforehand, so that
what is measured is asking: requests, replies, tallies.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from digits import train_digits
from many_owners import choices, many_owners

from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.federation import Federation, federation_digest, save_federation
from terrine_server.labeling.remote_voters import RemoteVoters
from terrine_server.ledger import EnsembleRecord

OWNERS, BATCH, TIMES = 20, 64, 30


def median(call: Any) -> float:
    """Return the median duration of a call, in milliseconds."""
    durations = []
    for _ in range(TIMES):
        began = time.perf_counter()
        call()
        durations.append(1000 * (time.perf_counter() - began))
    return float(np.median(durations))


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        made = train_digits(Path(scratch, "digits"))
        ensemble, x = Ensemble.load(made.directory, device="cpu"), made.public[:BATCH]
        spec, classes = made.manifest.input, list(made.manifest.classes)
        local = median(lambda: ensemble.votes(x))
        with many_owners(lambda x: choices(ensemble, x), spec, len(classes)) as owners:
            for binary in (True, False):
                directory = Path(scratch, f"binary-{binary}")
                directory.mkdir()
                federation = {
                    "name": "ward",
                    "input": spec.model_dump(),
                    "classes": classes,
                    "owners": [
                        {
                            "name": f"owner-{i}",
                            "url": owners.url,
                            "model": f"owner-{i}",
                            "binary": binary,
                        }
                        for i in range(OWNERS)
                    ],
                    "units": 1200,
                    "disjoint_by": "position",
                    "quorum": OWNERS,
                    "timeout_seconds": 30,
                    "salt": "0" * 64,
                }
                save_federation(directory, Federation.model_validate(federation))
                facts = {
                    "name": "ward",
                    "path": "",
                    "manifest_sha256": federation_digest(directory),
                }
                record = cast(EnsembleRecord, SimpleNamespace(**facts))
                voters = RemoteVoters(directory)
                voters.votes(record, x)
                remote = median(lambda: voters.votes(record, x))  # noqa: B023
                print(
                    f"{OWNERS} owners, {BATCH} inputs, {'bytes' if binary else 'JSON'}: "
                    f"{remote:.1f} ms; {made.manifest.teachers} heads in this process: "
                    f"{local:.1f} ms; ratio {remote / local:.1f}"
                )


if __name__ == "__main__":
    main()
