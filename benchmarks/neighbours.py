"""How fast neighbours weigh in, beside the bare matrix product of the same sizes.

A batch of 64 queries against 60,000 records with 150 coordinates each; the peer is one call of
torch's product of the two, on as many threads, without a comparison. Both in one run.

    python benchmarks/neighbours.py [--records 60000] [--batch 64] [--coordinates 150]
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

# Read as torch is imported. The threads of the bare product would otherwise go on spinning after
# it, and take processors from what is measured next, which has threads of its own.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import typer

from serving import in_turn, seconds
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.public import PublicData
from terrine_models.teachers.neighbours import NeighbourEnsemble, NeighbourSettings, build

AIM = 1.5
ROUNDS = 30
POINTS = 10_000
NEAR = 240


def main(records: int = 60_000, batch: int = 64, coordinates: int = 150) -> None:
    """Let records at random places of the sphere vote."""
    random = np.random.default_rng(0)
    spec = InputSpec(shape=(coordinates,), dtype="float32", low=-1, high=1)
    labels = np.zeros(records, np.int64)
    private = Dataset(unit(random, records, coordinates), labels, ("a", "b"), spec)
    public = PublicData.declare("random", unit(random, POINTS, coordinates))
    with tempfile.TemporaryDirectory() as place:
        settings = NeighbourSettings(near=NEAR, width=coordinates)
        build(private, Path(place) / "random", name="random", public=public, settings=settings)
        ensemble = NeighbourEnsemble.load(Path(place) / "random")
    queries = ensemble.to_points(unit(random, batch, coordinates))
    width = queries.shape[1]
    x, transposed = torch.from_numpy(queries).float(), torch.randn(width, records)
    lines = {
        "weights": lambda: seconds(lambda: ensemble.near(queries)),
        "product": lambda: seconds(lambda: x @ transposed),
    }
    found = in_turn(lines, ROUNDS)
    weights, product = (float(np.median(each)) for each in found.values())
    print(
        f"{batch} queries, {records:,} records, {width} coordinates, "
        f"{torch.get_num_threads()} threads:\n"
        f"weights {weights * 1e3:.1f} ms, bare product {product * 1e3:.1f} ms: "
        f"{weights / product:.2f} times as long (aim: at most {AIM})"
    )


def unit(random: np.random.Generator, rows: int, coordinates: int) -> np.ndarray:
    """Points of unit length."""
    points = random.standard_normal((rows, coordinates), dtype=np.float32)
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True))


if __name__ == "__main__":
    typer.run(main)
