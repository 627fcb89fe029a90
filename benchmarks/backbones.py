"""How long private records take through a public backbone one at a time, and in blocks of 128.

Terrine does not ask in blocks: a model could make one record's embedding depend on those beside it
(docs/ensembles.md). Both ways use as many threads, on the same models, in one run.

    python benchmarks/backbones.py [--records 5000]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from terrine_addons.onnx.backbones import OnnxBackbone
from terrine_addons.onnx.models import OnnxModel
from terrine_models.data.workers import side_by_side
from terrine_models.storage.manifests import PublicModel, sha256

BLOCK = 128
ROUNDS = 3
MODELS = {
    "a table, 30 columns; layers of 64 and 32": (
        nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 32)),
        (30,),
    ),
    "a table, 300 columns; layers of 1,024, 1,024 and 256": (
        nn.Sequential(
            nn.Linear(300, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 256)
        ),
        (300,),
    ),
    "images of 28 x 28; convolutions of 16 and 32 channels": (
        nn.Sequential(
            nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 64),
        ),
        (28, 28),
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5000)
    options = parser.parse_args()
    print(f"{options.records:,} records, {torch.get_num_threads()} threads, ms for 1,000 records:")
    for name, (network, shape) in MODELS.items():
        one, many = milliseconds(exported(network, shape), options.records, shape)
        print(f"  {name}: {one:.1f} one at a time, {many:.1f} in blocks: {one / many:.1f} times")


def milliseconds(
    backbone: OnnxBackbone, records: int, shape: tuple[int, ...]
) -> tuple[float, float]:
    """For 1,000 records, one at a time and in blocks: the best of some rounds."""

    def in_block(rows: torch.Tensor) -> object:
        return backbone.model(rows.numpy())

    x = torch.rand((records, *shape), generator=torch.Generator().manual_seed(0))
    blocks = torch.split(x, BLOCK)
    alone, together = [], []
    for _ in range(ROUNDS):  # in turn, so that a busy machine slows both
        alone.append(seconds(lambda: side_by_side(backbone, blocks)))
        together.append(seconds(lambda: side_by_side(in_block, blocks)))
    return min(alone) * 1e6 / records, min(together) * 1e6 / records


def exported(network: nn.Module, shape: tuple[int, ...]) -> OnnxBackbone:
    """The network with random weights, as an ONNX model with a batch of any size."""
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "network.onnx"
        torch.onnx.export(
            network.eval(),
            (torch.rand(2, *shape),),
            path,
            input_names=["x"],
            output_names=["embedding"],
            dynamic_axes={"x": {0: "batch"}, "embedding": {0: "batch"}},
            dynamo=False,
        )
        data = path.read_bytes()
    model = OnnxModel(data)
    width = model(np.zeros((1, *shape), np.float32)).shape[1]
    source = PublicModel(name="made", sha256=sha256(data), width=width)
    return OnnxBackbone(data, model, source)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
