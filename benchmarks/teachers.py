"""How fast teachers train and vote, beside the machine's matrix products and a plain loop.

The peer is the obvious implementation: a Python loop over 250 CNN modules, a batch at a time.
Everything is measured in one run, on the same images. `--full` trains all 250 CNNs (a quarter of an
hour on two cores) where otherwise a few are timed; `--quick` reduces everything.

    python benchmarks/teachers.py [--quick | --full] [--data DIR_WITH_MNIST]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from terrine_models.data.arrays import DIGITS, Dataset, InputSpec, load_idx
from terrine_models.features.maps import PublicData
from terrine_models.features.prepared import prepare
from terrine_models.storage.manifests import load_tensors, save_tensors
from terrine_models.teachers.architectures import build_network, default_architecture
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Heads, Networks, load_manifest
from terrine_models.teachers.manifests import Manifest, save_manifest
from terrine_models.teachers.training import train_ensemble

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


@dataclass(frozen=True)
class Material:
    """Private training data, a public pool, and test images with their labels."""

    name: str
    private: Dataset
    public: PublicData
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="about a tenth of the work")
    size.add_argument("--full", action="store_true", help="train all 250 CNNs")
    default = Path(os.environ.get("TERRINE_SHARED_DATA", SHARED)) / "mnist"
    parser.add_argument("--data", type=Path, default=default, help="directory with MNIST")
    options = parser.parse_args()
    material = mnist(options.data) if options.data.is_dir() else digits()
    peak = matrix_peak()
    print(f"{material.name}; {torch.get_num_threads()} threads; matrix products {peak:.0f} Gflop/s")
    print(f"{'':34}{'training':>10}{'images/s':>10}{'of peak':>9}{'plurality':>11}{'mean':>8}")
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), material, peak, options.quick, options.full)


def run(folder: Path, material: Material, peak: float, quick: bool, full: bool) -> None:
    counts = [250] if quick else [250, 1000, 2000]
    most = len(material.private) // 20
    heads_speed = 0.0
    for teachers in sorted({min(count, most) for count in counts}):
        directory = folder / f"heads-{teachers}"
        took = train(material.private, directory, teachers, Heads(), material.public)
        ensemble = Ensemble.load(directory)
        speed = images_per_second(ensemble.votes, material.images)
        heads_speed = heads_speed or speed
        report(f"{teachers} heads", took, speed, ensemble, peak, material)
    teachers = 10 if quick else 250
    few = teachers if full else 2 if quick else 4
    config = Networks(epochs=10 if quick else 100)
    directory = folder / "networks"
    shard_size = len(material.private) // min(250, most)
    part = first(material.private, shard_size * few)
    took = train(part, directory, few, config, None)
    voting = directory if full else repeated(directory, folder / "copies", teachers)
    ensemble = Ensemble.load(voting)
    images = material.images[: 256 if quick else 2048]
    speed = images_per_second(ensemble.votes, images)
    print(f"  {few} CNNs, {config.epochs} epochs on {shard_size} images each: {took:.1f} s", end="")
    print("" if full else f"; 250 would take {took * 250 / few / 60:.0f} min")
    report(f"{teachers} CNNs", None, speed, ensemble, peak, material if full else None)
    loop = plain_loop(voting, ensemble.voting.device)
    plain = images_per_second(loop, images)
    report(f"{teachers} CNNs, plain loop", None, plain, ensemble, peak, None)
    plain_250 = plain * teachers / 250
    print(f"Heads vote {heads_speed / plain_250:.0f} times as fast as 250 CNNs in a plain loop.")


def mnist(folder: Path) -> Material:
    test = load_idx(folder / "t10k-images-idx3-ubyte.gz")
    images = test.inputs.astype(np.uint8)
    public = PublicData.declare("MNIST test images 0-8999", images[:9000])
    return Material("MNIST", load_idx(folder), public, images, test.labels)


def digits() -> Material:
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = data.images.astype(np.uint8), data.target.astype(np.int64)
    spec = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
    private = Dataset(images[:1200], labels[:1200], DIGITS, spec, name="digits")
    public = PublicData.declare("digits from 1200 on", images[1200:])
    name = "scikit-learn's digits, because no MNIST was given (--data)"
    return Material(name, private, public, images[1200:], labels[1200:])


def train(
    data: Dataset,
    directory: Path,
    teachers: int,
    config: Heads | Networks,
    public: PublicData | None,
) -> float:
    start = time.perf_counter()
    train_ensemble(data, directory, name="bench", teachers=teachers, config=config, public=public)
    return time.perf_counter() - start


def repeated(directory: Path, out: Path, teachers: int) -> Path:
    """An ensemble of copies, which votes as fast as one of as many different networks."""
    manifest, parameters = stored(directory)
    times = -(-teachers // manifest.teachers)
    stacked = {name: torch.cat([each] * times)[:teachers] for name, each in parameters.items()}
    out.mkdir()
    file = manifest.teacher_files[0]
    digest = save_tensors(out / file, stacked)
    save_manifest(out, manifest.model_copy(update={"teachers": teachers, "files": {file: digest}}))
    return out


def stored(directory: Path) -> tuple[Manifest, dict[str, torch.Tensor]]:
    """The manifest of an ensemble of networks, and their parameters."""
    manifest = load_manifest(directory)
    parts = [load_tensors(directory, name, manifest.files[name]) for name in manifest.teacher_files]
    return manifest, {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def plain_loop(directory: Path, device: str) -> Callable[[NDArray[np.uint8]], NDArray[np.int64]]:
    """The obvious way to count votes."""
    manifest, parameters = stored(directory)
    networks = []
    for i in range(manifest.teachers):
        network = build_network(
            default_architecture(manifest.input), manifest.input, len(manifest.classes)
        )
        network.load_state_dict({name: value[i] for name, value in parameters.items()})
        networks.append(network.to(device).eval())

    def votes(x: NDArray[np.uint8]) -> NDArray[np.int64]:
        counts = np.zeros((len(x), len(manifest.classes)), dtype=np.int64)
        with torch.no_grad():
            for start in range(0, len(x), 256):
                block = torch.tensor(x[start : start + 256]).to(device)
                block = prepare(block, manifest.input)
                for network in networks:
                    chosen = network(block).argmax(1).cpu().numpy()
                    counts[np.arange(start, start + len(chosen)), chosen] += 1
        return counts

    return votes


def images_per_second(
    votes: Callable[[NDArray[np.uint8]], NDArray[np.int64]], images: NDArray[np.uint8]
) -> float:
    votes(images[:32])
    took = []
    for _ in range(3):
        start = time.perf_counter()
        votes(images)
        took.append(time.perf_counter() - start)
    return len(images) / min(took)


def matrix_peak() -> float:
    """Gflop/s of large float32 products, the best of several."""
    a = torch.randn(2048, 2048)
    if torch.cuda.is_available():
        a = a.cuda()
    took = []
    for _ in range(10):
        start = time.perf_counter()
        (a @ a)[0, 0].item()
        took.append(time.perf_counter() - start)
    return 2 * 2048**3 / min(took) / 1e9


def flops_per_image(ensemble: Ensemble) -> float:
    """Floating-point operations in products and convolutions; nothing else is counted."""
    voting, shape = ensemble.voting, ensemble.manifest.input.shape
    blank = torch.zeros((voting.block, *shape), device=voting.device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        voting.choose(blank)
    flops: float = counter.get_total_flops() / voting.block
    return flops


def report(
    what: str,
    training: float | None,
    speed: float,
    ensemble: Ensemble,
    peak: float,
    material: Material | None,
) -> None:
    share = speed * flops_per_image(ensemble) / 1e9 / peak
    line = f"{what:34}" + (" " * 10 if training is None else f"{training:8.1f} s")
    line += f"{speed:10.0f}{share:9.0%}"
    if material is not None:
        votes = ensemble.votes(material.images)
        right = votes[np.arange(len(votes)), material.labels] / ensemble.manifest.teachers
        line += f"{(votes.argmax(1) == material.labels).mean():11.2%}{right.mean():8.1%}"
    print(line, flush=True)


def first(data: Dataset, rows: int) -> Dataset:
    return Dataset(data.inputs[:rows], data.labels[:rows], data.classes, data.spec)


if __name__ == "__main__":
    main()
