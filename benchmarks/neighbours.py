"""How fast neighbours weigh in, beside the bare matrix product of the same sizes.

A batch of 64 queries against 60,000 records with 150 coordinates each; the peer is one call of
torch's product of the two, on as many threads, without a comparison. Both in one run.

    python benchmarks/neighbours.py [--records 60000] [--batch 64] [--coordinates 150]
"""

from __future__ import annotations

import os
import resource

import numpy as np

# Read as torch is imported. The threads of the bare product would otherwise go on spinning after
# it, and take processors from what is measured next, which has threads of its own.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import typer

from serving import in_turn, seconds
from terrine_models.data.arrays import InputSpec
from terrine_models.features.maps import PublicData, public_features
from terrine_models.storage.manifests import versions
from terrine_models.teachers.manifests import Manifest
from terrine_models.teachers.neighbours import NeighbourEnsemble, NeighbourTeachers, quantize

AIM = 1.5
ROUNDS = 30
POINTS = 10_000
NEAR = 240


def main(records: int = 60_000, batch: int = 64, coordinates: int = 150) -> None:
    random = np.random.default_rng(0)
    ensemble = made(random, records, coordinates)
    queries = quantize(unit(random, batch, coordinates), 3300.0)
    x = torch.from_numpy(queries).float()
    others = torch.from_numpy(quantize(unit(random, records, coordinates), 3300.0))
    transposed = others.float().T.contiguous()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = {
        "weights": lambda: seconds(lambda: ensemble.near(queries)),
        "product": lambda: seconds(lambda: x @ transposed),
    }
    found = in_turn(lines, ROUNDS)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    weights, product = (float(np.median(each)) for each in found.values())
    points = 4 * (POINTS + records) * (coordinates + 1) / 2**20
    print(
        f"{batch} queries, {records:,} records, {coordinates} coordinates, "
        f"{torch.get_num_threads()} threads:\n"
        f"weights {weights * 1e3:.1f} ms, bare product {product * 1e3:.1f} ms: "
        f"{weights / product:.2f} times as long (aim: at most {AIM})\n"
        f"memory: {points:.0f} MiB of points; both together took {grown:.0f} MiB "
        "more"
    )


def made(random: np.random.Generator, records: int, coordinates: int) -> NeighbourEnsemble:
    """Neighbours at random places of the sphere."""
    spec = InputSpec(shape=(coordinates,), dtype="float32", low=-1, high=1)
    inputs = unit(random, POINTS, coordinates)
    features = public_features(spec, PublicData.declare("random", inputs[:50]), coordinates)
    rank = max(1, round(NEAR * POINTS / records))
    kind = NeighbourTeachers(
        features=features.spec, near=NEAR, rank=rank, points=POINTS, scale=3300.0
    )
    manifest = Manifest(
        name="random",
        teacher=kind,
        input=spec,
        classes=("a", "b"),
        teachers=records,
        units=records,
        versions=versions(),
        files={"teachers-00000.safetensors": "0" * 64, "radius.safetensors": "0" * 64},
    )
    labels = np.zeros(records, np.int16)
    own = quantize(unit(random, records, coordinates), 3300.0)
    units = np.arange(records, dtype=np.int32)
    return NeighbourEnsemble(manifest, features, quantize(inputs, 3300.0), own, labels, units)


def unit(random: np.random.Generator, rows: int, coordinates: int) -> np.ndarray:
    """Points of unit length."""
    points = random.standard_normal((rows, coordinates), dtype=np.float32)
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True))


if __name__ == "__main__":
    typer.run(main)
