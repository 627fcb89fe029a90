"""Ensembles that are kept from the first release on: every later version must still serve them.

    PYTHONPATH=tests/support python tests/support/kept_ensembles.py

writes `tests/fixtures/ensembles-1.0.0`. It is never written again: a version that changes what is
stored adds ensembles of its own, beside these.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.maps import PublicData
from terrine_models.teachers.ensemble import load
from terrine_models.teachers.federation import Federation, Owner, save_federation
from terrine_models.teachers.kinds import Forests, Heads
from terrine_models.teachers.neighbours import NeighbourEnsemble, NeighbourSettings, build
from terrine_models.teachers.training import train_ensemble

KEPT = Path(__file__).resolve().parents[1] / "fixtures" / "ensembles-1.0.0"
ANSWERS = KEPT / "answers.json"
RECORDS_KEY = b"r" * 64
SPEC = InputSpec(shape=(4,), dtype="float32", low=0, high=1)
LOCAL = ("forests", "heads", "people")
"""Those whose teachers are here; the fourth, `owners`, has them elsewhere."""


def rows(count: int, seed: int) -> NDArray[np.float32]:
    """Public or private rows [count, 4], and what is asked."""
    drawn = np.random.default_rng(seed).random((count, 4), dtype=np.float32)
    return np.round(drawn, 3)


def records(count: int, people: int) -> Dataset:
    """Records of a few people in two classes, which the first column decides."""
    inputs = rows(count, 1)
    return Dataset(
        inputs,
        (inputs[:, 0] > 0.5).astype(np.int64),
        ("low", "high"),
        SPEC,
        groups=np.arange(count) % people,
        group_column="person",
        people=tuple(f"person {number}" for number in range(people)),
        name="private rows",
    )


def answers(directory: Path) -> Any:
    """What an ensemble says of a few inputs: votes, or how near each record is."""
    asked, found = rows(6, 3), load(directory, device="cpu")
    if isinstance(found, NeighbourEnsemble):
        return found.near(found.to_points(asked)).tolist()
    return found.votes(asked).tolist()


def main() -> None:
    """Write the ensembles, and what they answer."""
    KEPT.mkdir()
    data, public = records(48, people=12), PublicData.declare("public rows", rows(40, 2))
    train_ensemble(data, KEPT / "heads", name="heads", teachers=4, config=Heads(), public=public)
    train_ensemble(data, KEPT / "forests", name="forests", teachers=2, config=Forests(trees=2))
    near = NeighbourSettings(near=3)
    build(data, KEPT / "people", name="people", public=public, settings=near, key=RECORDS_KEY)
    owners = (Owner(name=name, url=f"https://{name}.example", model="m") for name in ("st-a", "b"))
    federation = Federation(
        name="owners",
        input=SPEC,
        classes=("low", "high"),
        owners=tuple(owners),
        units=48,
        disjoint_by="each treats another district",
        quorum=2,
        salt="5a" * 32,
    )
    (KEPT / "owners").mkdir()
    save_federation(KEPT / "owners", federation)
    found = {name: answers(KEPT / name) for name in LOCAL}
    ANSWERS.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
