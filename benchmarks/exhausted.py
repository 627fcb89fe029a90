"""What is left where public rows say that a query of neighbours is exhausted.

MNIST: 60,000 private images, 10,000 public ones asked once in a random order, 240 near each,
ε = 0.1, δ = 1e-5; with the noise that public rows forecast, and with half of it, which drains most
regions. It looks at private accounts to say which share of those near could still vote.

    python benchmarks/exhausted.py MNIST_DIRECTORY [--sigma 272]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from terrine_models.data.arrays import Dataset, load_idx
from terrine_models.features.maps import PublicData
from terrine_models.teachers.neighbours import NeighbourEnsemble, NeighbourSettings, build
from terrine_server.privacy import Units
from terrine_server.privacy.budget import find_allowance
from terrine_server.privacy.mechanisms import Neighbours as Mechanism

NEAR = 240
EPSILON = 0.1
DELTA = 1e-5
BLOCK = 250


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mnist", type=Path)
    parser.add_argument("--sigma", type=float, default=272.0)
    options = parser.parse_args()
    files = [
        [options.mnist / f"{part}-{what}-ubyte.gz" for what in ("images-idx3", "labels-idx1")]
        for part in ("train", "t10k")
    ]
    private, public = (load_idx(*pair) for pair in files)
    with tempfile.TemporaryDirectory() as scratch:
        out, pool = Path(scratch) / "mnist", PublicData.declare("t10k", public.inputs)
        build(private, out, name="mnist", public=pool, settings=NeighbourSettings(near=NEAR))
        ensemble = NeighbourEnsemble.load(out)
    for sigma in (options.sigma, options.sigma / 2):
        measure(ensemble, public, sigma)


def measure(ensemble: NeighbourEnsemble, public: Dataset, sigma: float) -> None:
    """Ask everything, and print what was exhausted."""
    rows, units = len(public), Units.of(ensemble.units, ensemble.labels, len(ensemble.labels))
    most = find_allowance(sigma, 1, rows, EPSILON, DELTA)[1].most
    mechanism = Mechanism(units.count, len(public.classes), sigma, rows)
    accounts, shadows = np.zeros(units.count, np.uint32), np.zeros(ensemble.shadows, np.uint32)
    answered, left = np.zeros(rows, bool), np.zeros(rows)
    for some in np.array_split(np.random.default_rng(1).permutation(rows), rows // BLOCK):
        points = ensemble.to_points(public.inputs[some])
        near, weights = ensemble.public_neighbours(points), ensemble.near(points)
        judged, shadows = mechanism.split_exhausted(
            near.weights, near.near_wider, shadows, most, rows
        )
        answered[some] = judged
        for row, asked, own in zip(some, judged, weights, strict=True):
            left[row] = (accounts[own > 0] < most).mean()
            if asked:
                accounts = mechanism.cast(own[None], units, accounts, most)[1]
    gone = left[~answered]
    print(
        f"σ = {sigma:g}, allowance {most}: {(~answered).mean():.1%} of {rows:,} queries exhausted, "
        f"where {gone.mean():.1%} of those near could vote (nine in ten: at most "
        f"{np.quantile(gone, 0.9):.1%}); {(accounts >= most).mean():.0%} of all have retired",
        flush=True,
    )


if __name__ == "__main__":
    main()
