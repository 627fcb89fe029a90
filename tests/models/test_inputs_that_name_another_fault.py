"""Small files as people have them: each is read, or the fault that it has is named.

A row is what the file holds, how it is read, and what is made of it, or the words of the refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from terrine_models.data.arrays import DataError, load_idx, load_inputs, load_npz
from terrine_server.cli.console import CommandError
from terrine_server.cli.votes import load_votes
from terrine_server.privacy import ParameterError

PIXELS = np.zeros((2, 4), np.uint8)
OBJECTS = np.array([[{}], [1]], dtype=object)
Y = np.array([0, 1])


def _save(path: Path, content: np.ndarray | Mapping[str, Any] | bytes) -> None:
    with path.open("wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        elif isinstance(content, Mapping):
            np.savez(file, **content)
        else:
            np.save(file, content, allow_pickle=True)


def _archive(path: Path) -> object:
    return load_npz(path, classes=("a", "b")).inputs.shape


def _inputs(path: Path) -> object:
    return load_inputs(path).shape


def _votes(path: Path) -> object:
    votes = load_votes(path, [])
    return votes.counts.shape, votes.teachers


def _declared(**changed: object) -> dict[str, Any]:
    return {"x": np.zeros((2, 4)), "y": Y, "low": 0, "high": 1, **changed}


READ: dict[str, tuple[str, Any, Callable[[Path], object], object]] = {
    "an archive named in capitals": ("X.NPZ", {"x": PIXELS}, _inputs, (2, 4)),
    "an array named in capitals": ("X.NPY", PIXELS, _inputs, (2, 4)),
    "counts in an .npy": ("votes.npy", np.array([[3, 1], [0, 4]]), _votes, ((2, 2), 4)),
    "counts as floats": ("votes.npy", np.array([[3.0, 1.0], [0.0, 4.0]]), _votes, ((2, 2), 4)),
    "the widest range": (
        "x.npz",
        _declared(low=-1.5e38, high=1.5e38),
        _archive,
        (2, 4),
    ),
}


@pytest.mark.parametrize("what", READ)
def test_it_is_read(what: str, tmp_path: Path) -> None:
    name, content, reader, expected = READ[what]
    _save(tmp_path / name, content)
    assert reader(tmp_path / name) == expected


REFUSED: dict[str, tuple[str, Any, Callable[[Path], object], tuple[object, ...]]] = {
    "no dimension": ("x.npy", np.float64(3), _inputs, ("shape", "[]")),
    "one dimension": ("x.npy", np.zeros(4), _inputs, ("shape", "[4]")),
    "no rows": ("x.npy", np.zeros((0, 4)), _inputs, ("shape", "[0, 4]")),
    "rows of nothing": ("x.npy", np.zeros((4, 0)), _inputs, ("shape", "[4, 0]")),
    "five dimensions": ("x.npz", _declared(x=np.zeros((2, *[1] * 5))), _archive, ("four",)),
    "a scalar in an archive": ("x.npz", _declared(x=np.float32(1)), _archive, ("shape", "[]")),
    "empty rows in an archive": ("x.npz", _declared(x=np.zeros((2, 0))), _archive, ("[2, 0]",)),
    "no rows in an archive": (
        "x.npz",
        {"x": PIXELS[:0], "y": Y[:0]},
        _archive,
        ("no", "records"),
    ),
    "a range of doubles": ("x.npz", _declared(low=-1e308, high=1e308), _archive, ("float32",)),
    "a range upside down": ("x.npz", _declared(low=1, high=0), _archive, ("low", "high")),
    "a range that is no number": ("x.npz", _declared(high=np.nan), _archive, ("high", "nan")),
    "a range without end": ("x.npz", _declared(high=np.inf), _archive, ("high", "inf")),
    "Python objects": ("x.npy", OBJECTS, _inputs, ("x.npy", "objects")),
    "Python objects in an archive": ("x.npz", {"x": OBJECTS, "y": Y}, _archive, ("objects",)),
    "Python objects as votes": ("votes.npz", {"counts": OBJECTS}, _votes, ("objects",)),
    "text as an array": ("x.npy", b"1,2\n3,4\n", _inputs, ("x.npy", "NumPy")),
    "text as an archive": ("x.npz", b"1,2\n3,4\n", _archive, ("x.npz", "NumPy")),
    "an array as an archive": ("x.npz", PIXELS, _archive, ("numpy.savez", "[2, 4]")),
    "an archive without its suffix": ("x.bin", {"x": PIXELS}, load_idx, ("x.bin", "IDX")),
    "votes that are no numbers": (
        "votes.npz",
        {"counts": np.array([[np.nan, 1.0]])},
        _votes,
        ("whole",),
    ),
    "votes without end": ("votes.npy", np.array([[np.inf, 1.0]]), _votes, ("larger",)),
    "shares instead of votes": ("votes.npy", np.array([[0.25, 0.75]]), _votes, ("whole",)),
    "no votes": ("votes.npy", np.zeros((0, 3), int), _votes, ("[0, 3]",)),
    "one row of votes": ("votes.npy", np.array([3, 1]), _votes, ("[2]",)),
    "votes the other way round": (
        "votes.npy",
        np.array([[3, 0, 2], [1, 4, 2]]),
        _votes,
        ("transpose", "[2, 3]"),
    ),
    "labels that are no numbers": (
        "votes.npz",
        {"counts": np.array([[3, 1]]), "labels": np.array([np.nan])},
        _votes,
        ("Labels",),
    ),
    "votes under another name": ("votes.npz", {"votes": Y}, _votes, ("counts", "votes")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_its_own_fault_is_named(what: str, tmp_path: Path) -> None:
    name, content, reader, words = REFUSED[what]
    _save(tmp_path / name, content)
    kind = (
        DataError
        if reader is not _votes or "objects" in words
        else ParameterError
        if "Labels" in words
        else CommandError
    )
    with refuses(kind, *words) as refused:
        reader(tmp_path / name)
    assert "allow_pickle" not in str(refused.value), "NumPy's advice is not safe"
