"""The command line of the experiments, and small files of the published formats."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from support.processes import Terrine, commands, seed_noise
from terrine_experiments.__main__ import main


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terrine:
    """Run `python -m terrine_experiments …` in this process, with the same noise each time."""
    seed_noise(monkeypatch)
    return commands(monkeypatch, capsys, main)


PRIVATE, TEST = 600, 160


def enlarged(images: NDArray[np.float64]) -> NDArray[np.uint8]:
    """scikit-learn's digits [N, 8, 8] with MNIST's size and range."""
    large = np.kron(images * 15.9, np.ones((3, 3)))
    padded: NDArray[np.uint8] = np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    return padded


@pytest.fixture(scope="session")
def digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    bundle = load_digits()
    order = np.random.default_rng(0).permutation(len(bundle.target))[: PRIVATE + TEST]
    return enlarged(bundle.images[order]), bundle.target[order].astype(np.uint8)


@pytest.fixture(scope="session")
def idx(
    tmp_path_factory: pytest.TempPathFactory, digits: tuple[NDArray[np.uint8], NDArray[np.uint8]]
) -> Path:
    """A directory as MNIST and Fashion-MNIST are published."""
    directory = tmp_path_factory.mktemp("idx")
    for part, rows in (("train", slice(PRIVATE)), ("t10k", slice(PRIVATE, None))):
        for kind, array in (("images-idx3", digits[0][rows]), ("labels-idx1", digits[1][rows])):
            sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
            content = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
            (directory / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
    return directory
