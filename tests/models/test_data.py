"""Data from files: what is read, and what is refused with which message."""

from __future__ import annotations

import gzip
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.wording import refuses
from terrine_models.data.arrays import (
    MAX_CLASSES,
    DataError,
    Dataset,
    InputSpec,
    load_idx,
    load_inputs,
    load_npz,
    read_arrays,
    read_idx,
)

IMAGES = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
LABELS = np.array([0, 1, 2, 9, 4], dtype=np.uint8)


def idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist_like(folder: Path, packed: bool = True) -> Path:
    end, pack = (".gz", gzip.compress) if packed else ("", bytes)
    for split in ("train", "t10k"):
        (folder / f"{split}-images-idx3-ubyte{end}").write_bytes(pack(idx(IMAGES)))
        (folder / f"{split}-labels-idx1-ubyte{end}").write_bytes(pack(idx(LABELS)))
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_a_directory_of_idx_files_is_the_training_set(tmp_path: Path, packed: bool) -> None:
    data = load_idx(mnist_like(tmp_path, packed))
    assert data.inputs.tolist() == IMAGES.tolist()
    assert data.labels.tolist() == LABELS.tolist()
    assert data.spec == InputSpec(shape=(4, 3), dtype="uint8", low=0, high=255)
    assert data.classes == tuple("0123456789")


def test_images_take_the_labels_beside_them_or_those_named(tmp_path: Path) -> None:
    folder = mnist_like(tmp_path)
    assert len(load_idx(folder / "t10k-images-idx3-ubyte.gz")) == 5
    other = tmp_path / "marks"
    other.write_bytes(idx(LABELS[::-1].copy()))
    data = load_idx(folder / "t10k-images-idx3-ubyte.gz", other)
    assert data.labels.tolist() == LABELS[::-1].tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "nothing"),
        (b"\x89PNG\r\n", "89 50 4e 47"),
        (b"\x00\x00\x0d\x01" + bytes(8), "IDX bytes"),
        (idx(IMAGES)[:-1], "truncated"),
        (idx(IMAGES)[:9], "truncated"),
        (idx(IMAGES) + b"x", "long"),
    ],
)
def test_a_bad_idx_file_is_named_with_what_was_expected(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with refuses(DataError, *message.split()) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_a_broken_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    for content in (idx(IMAGES), gzip.compress(idx(IMAGES))[:-9]):
        path.write_bytes(content)
        with refuses(DataError, "read"):
            read_idx(path)


def test_labels_that_do_not_match_are_refused(tmp_path: Path) -> None:
    folder = mnist_like(tmp_path, packed=False)
    with refuses(DataError, 9, 3, 4):
        load_idx(folder, classes=list("01234"))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(LABELS[:4]))
    with refuses(DataError, 5):
        load_idx(folder)
    (folder / "train-labels-idx1-ubyte").unlink()
    with refuses(DataError, "train-labels"):
        load_idx(folder)


def test_an_archive_that_promises_too_much_is_refused_in_words(tmp_path: Path) -> None:
    x, y = np.zeros((6, 2), np.uint8), np.arange(6) % 2
    many = np.arange(MAX_CLASSES + 1).astype(str)
    for name, classes in (("own", None), ("given", ("0", "1"))):
        np.savez(tmp_path / f"{name}.npz", x=x, y=y, classes=many)
        with refuses(DataError, f"{MAX_CLASSES + 1:,}", f"{MAX_CLASSES:,}"):
            load_npz(tmp_path / f"{name}.npz", classes=classes)
    header = np.lib.format.header_data_from_array_1_0(x) | {"shape": (2**43, 2)}
    with (
        zipfile.ZipFile(tmp_path / "large.npz", "w") as archive,
        archive.open("x.npy", "w") as file,
    ):
        np.lib.format.write_array_header_1_0(file, header)
    with (tmp_path / "large.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    for path in (tmp_path / "large.npz", tmp_path / "large.npy"):
        with refuses(DataError, path.name):
            read_arrays(path)


def test_npz_contains_its_public_declarations(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    x = np.linspace(-1, 1, 12).reshape(4, 3)
    np.savez(path, x=x, y=[0, 1, 1, 0], group=["b", "a", "b", "c"], classes=["no", "yes"])
    with refuses(DataError, "declared"):
        load_npz(path)
    np.savez(path, x=x, y=[0, 1, 1, 0], group=["b", "a", "b", "c"], low=-2, high=2)
    with refuses(DataError, "classes"):
        load_npz(path)
    data = load_npz(path, classes=["no", "yes"])
    assert data.spec == InputSpec(shape=(3,), dtype="float32", low=-2, high=2)
    assert data.groups is not None
    assert data.groups.tolist() == [0, 1, 0, 2]
    assert data.group_column == "group"


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.parametrize("name", ["data.npz", "data.npy"])
def test_pickles_are_never_loaded(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    array = np.array([Bomb()], dtype=object)
    for write in (
        lambda: np.savez(path, x=array, y=[0]) if name == "data.npz" else np.save(path, array),
        lambda: path.write_bytes(pickle.dumps(Bomb())),
    ):
        write()
        with refuses(DataError, "read"):
            load_npz(path, classes=["a", "b"]) if name == "data.npz" else load_inputs(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.1, 1.1])
def test_values_outside_the_declared_range_are_refused(bad: float) -> None:
    x = np.full((3, 2), 0.5, dtype=np.float32)
    x[1, 1] = bad
    with refuses(DataError, 1, "[0, 1]"):
        Dataset(
            x,
            np.zeros(3, np.int64),
            ("a", "b"),
            InputSpec(shape=(2,), dtype="float32", low=0, high=1),
        )
