"""Private training data from files: MNIST-style IDX, `.npz` and, in `loading.py`, CSV.

The public facts about a data set (its classes, the range of its values, a table's categories) are
declared, never computed from private rows: everything in the manifest is public.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine_protocol.base import fold, list_names, map_class_numbers, normalize
from terrine_protocol.errors import DataError as DataError
from terrine_protocol.files import open_regular_file, read
from terrine_protocol.names import find_unshown
from terrine_protocol.projects import ImageFormat
from terrine_protocol.projects import InputSpec as InputSpec
from terrine_protocol.schema import TableSchema
from terrine_tables.columns import GrowingArray
from terrine_tables.formats import explain_unread

# Rows of a block.
BLOCK_ROWS = 16_384


@dataclass(frozen=True)
class Records:
    """Some records of a source, one after another."""

    inputs: NDArray[np.generic]
    """[B, *shape]."""
    labels: NDArray[np.int64]
    """[B]."""
    groups: NDArray[np.int64] | None
    """[B], as in `Dataset`."""


class GroupNumbering:
    """Numbers people 0, 1, … in the order in which they first appear. Text is compared in NFC."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What people are called, in the order of their numbers."""
        return tuple(map(str, self._numbers))

    def of(self, names: Sequence[object]) -> NDArray[np.int64]:
        """The numbers of these rows' people [B]."""
        known = self._numbers
        same = (normalize(name) if isinstance(name, str) else name for name in names)
        return np.array([known.setdefault(name, len(known)) for name in same], dtype=np.int64)


def remark_on_people(names: Sequence[str], what: str) -> str | None:
    """Say how many people may be others by another spelling; None if none are.

    It is computed from private names: for the terminal of their owner alone.
    """
    # Of each a number, and not its text: there may be millions.
    folded = np.fromiter((hash(fold(name)) for name in names), np.int64, len(names))
    folded.sort()
    same = np.flatnonzero(folded[1:] == folded[:-1])
    if not len(same):
        return None
    ones = len(np.unique(folded[same]))
    return (
        f"{what}: {len(same) + ones:,} people would coincide, as {ones:,}, if capitals, spaces, "
        "invisible characters and zeros (7, 7.0, 007) did not count. Each is protected by itself: "
        "if some are one person, write the name in one way first."
    )


DIGITS = tuple(str(digit) for digit in range(10))
# Of an ensemble.
MAX_CLASSES = 10_000
# Characters in the name of a class.
MAX_CLASS_CHARACTERS = 200
# Between the lowest and the highest value of an input: more cannot be scaled in float32.
MAX_RANGE = float(np.finfo(np.float32).max)


class RecordSource(ABC):
    """Labelled records that are read a block at a time."""

    name: str
    """Their name in messages."""
    classes: tuple[str, ...]
    spec: InputSpec
    group_column: str | None
    """What names people; None if each record counts as one person."""
    encoding: TableSchema | None
    """How a table's rows were encoded."""
    people: tuple[str, ...] | None
    """[U], what each person is called, by number, once all records were read. It is kept
    nowhere."""
    sha256: str | None
    """Of the records' file, once all were read, if it is a table."""

    @abstractmethod
    def blocks(self) -> Iterator[Records]:
        """Read all records, in order. Raises DataError."""


@dataclass(frozen=True)
class Dataset(RecordSource):
    """Labelled records. Raises DataError when its parts do not fit together."""

    inputs: NDArray[np.generic]
    """[N, *shape], uint8 or float32, as `spec` says."""
    labels: NDArray[np.int64]
    """[N], indices into `classes`."""
    classes: tuple[str, ...]
    spec: InputSpec
    groups: NDArray[np.int64] | None = None
    """[N], the number of each record's person; None if each record counts as one person."""
    group_column: str | None = None
    encoding: TableSchema | None = None
    image: ImageFormat | None = None
    """How pictures were converted, if the inputs were made from some."""
    name: str = "data"
    sha256: str | None = None
    people: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        inputs, rows = self.inputs, len(self.labels)
        if rows == 0:
            raise DataError(f"{self.name} holds no records.")
        if inputs.shape != (rows, *self.spec.shape) or inputs.dtype != self.spec.dtype:
            raise DataError(
                f"{self.name}: inputs are {inputs.dtype} {inputs.shape}, expected "
                f"{self.spec.dtype} {(rows, *self.spec.shape)}: one input per label."
            )
        check_classes(self.classes, self.name)
        unknown = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.classes)))
        if len(unknown):
            raise DataError(
                f"{self.name}: label {self.labels[unknown[0]]} of record {unknown[0]} is not one "
                f"of 0..{len(self.classes) - 1}; are the classes declared correctly?"
            )
        odd = find_outside(inputs, self.spec)
        if len(odd):
            record = odd[0]
            raise DataError(
                f"{self.name}: record {record} has values outside the declared range "
                f"[{self.spec.low:g}, {self.spec.high:g}]."
            )
        if self.groups is not None and self.groups.shape != (rows,):
            raise DataError(f"{self.name}: expected one group for each of the {rows} records.")

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, source: RecordSource) -> Dataset:
        """Load all records of a source. Raises DataError."""
        spec = source.spec
        inputs = GrowingArray(spec.shape, np.dtype(spec.dtype).type)
        labels, groups = GrowingArray((), np.int64), GrowingArray((), np.int64)
        for block in source.blocks():
            inputs.add(block.inputs)
            labels.add(block.labels)
            if block.groups is not None:
                groups.add(block.groups)
        grouped = source.group_column is not None  # which a table may only say once it is read
        return cls(
            inputs.array(),
            labels.array(),
            source.classes,
            spec,
            groups=groups.array() if grouped else None,
            group_column=source.group_column,
            encoding=source.encoding,
            name=source.name,
            sha256=source.sha256,
            people=source.people,
        )

    def blocks(self) -> Iterator[Records]:
        """The records, a block at a time."""
        for at in _slices(len(self)):
            groups = None if self.groups is None else self.groups[at]
            yield Records(self.inputs[at], self.labels[at], groups)

    def digest(self) -> str:
        """Return the SHA-256 of all records. Never stored: it would identify them."""
        digest = hashlib.sha256(f"{self.spec!r}{self.classes!r}".encode())
        for part in (self.inputs, self.labels, self.groups):
            if part is not None:
                for at in _slices(len(part)):
                    digest.update(np.ascontiguousarray(part[at]).tobytes())
        return digest.hexdigest()


def load_idx(
    images: Path, labels: Path | None = None, *, classes: Sequence[str] = DIGITS
) -> Dataset:
    """Load MNIST-style images and labels, each plain or `.gz`.

    `images` is a file, or a directory with MNIST's `train-images*` and `train-labels*`. A label is
    the number that names its class, and where classes are not named by numbers its index.
    """
    images = Path(images)
    if not images.exists():
        raise DataError(f"{images} does not exist.")
    if labels is None:
        folder = images if images.is_dir() else images.parent
        if images.is_dir():
            images = _one_file(folder, "train-images")
        start, marker, _ = images.name.partition("images")
        if not marker:
            read_idx(images)  # it may be none
            raise DataError(
                f"{images}: which file holds its labels? Call them as MNIST does, such as "
                "train-images.idx and train-labels.idx, or give the directory."
            )
        labels = _one_file(folder, f"{start}labels")
    pixels = read_idx(images)
    if pixels.ndim not in (3, 4):
        raise DataError(f"{images}: expected images, found an array of shape {pixels.shape}.")
    marks = read_idx(Path(labels))
    if marks.ndim != 1 or len(marks) != len(pixels):
        raise DataError(
            f"{labels}: expected {len(pixels)} labels, one for each image of {images.name}, "
            f"found an array of shape {marks.shape}."
        )
    spec = InputSpec(shape=pixels.shape[1:], dtype="uint8", low=0, high=255)
    names = tuple(map(normalize, classes))
    found = _named_numbers(Path(labels), marks.astype(np.int64), names)
    return Dataset(pixels, found, names, spec, name=str(images))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read the array of bytes in an IDX file, plain or `.gz`. Raises DataError."""
    path = Path(path)
    try:
        data = read(path, None)
        if path.suffix.lower() == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read: {reason}.") from None
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or not 1 <= data[3] <= 4:
        raise DataError(
            f"{path} is not an IDX file of bytes: it starts with {data[:4].hex(' ') or 'nothing'}, "
            "expected 00 00 08 and the number of dimensions, 1 to 4. Arrays end in .npy or .npz. "
            f"{explain_unread(path)}"
        )
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise DataError(f"{path} is truncated: its header alone needs {start} bytes.")
    shape = tuple(int(size) for size in np.frombuffer(data[4:start], ">u4"))
    expected = start + math.prod(shape)
    if len(data) != expected:
        raise DataError(
            f"{path} is {'truncated' if len(data) < expected else 'too long'}: its header declares "
            f"shape {shape}, {expected} bytes in all, but it has {len(data)}."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def load_npz(path: Path, *, classes: Sequence[str] | None = None) -> Dataset:
    """Load an `.npz` archive with `x` [N, …], `y` [N] and optionally `group` [N].

    `classes` is an argument, or an array in the archive. `y` holds the numbers that name the
    classes where these are numbers, and else indices: into the archive's `classes`, if it has an
    array of text, whatever the argument's order is. `x` is uint8, or floating point with the range
    of its values declared as `low` and `high`.
    """
    path = Path(path)
    arrays = _read_npz(path)
    y = _labels(path, arrays)
    if classes is None and "classes" not in arrays:
        raise DataError(
            f"{path}: the classes are public and must be declared: pass --classes, or store an "
            "array `classes` with their names."
        )
    names = tuple(map(normalize, classes)) if classes else _archived_classes(arrays) or ()
    check_classes(names, str(path))
    if classes is None and (wrong := find_unshown(names)):
        raise DataError(f"{path}: {wrong}.")
    labels = _class_labels(path, arrays, y, names)
    group = arrays.get("group")
    if group is not None and group.shape != labels.shape:
        raise DataError(f"{path}: group has shape {group.shape}, expected {labels.shape}.")
    inputs, spec = _declared_inputs(path, arrays)
    numbering = GroupNumbering()
    return Dataset(
        inputs,
        labels,
        names,
        spec,
        groups=None if group is None else numbering.of(group.tolist()),
        group_column=None if group is None else "group",
        name=str(path),
        people=None if group is None else numbering.names,
    )


def load_groups(path: Path) -> list[str]:
    """The people of an `.npz`: the values of its array `group`, each once. Raises DataError."""
    group = _read_npz(Path(path)).get("group")
    if group is None or group.ndim != 1:
        raise DataError(f"{path} has no array `group` [N] that names people.")
    return list(dict.fromkeys(normalize(str(name)) for name in group.tolist()))


def load_inputs(path: Path) -> NDArray[np.generic]:
    """Load inputs [N, …] without labels: IDX images, `.npy`, or the `x` of an `.npz`."""
    path = Path(path)
    if not (is_npz(path) or path.suffix.lower() == ".npy"):
        return read_idx(path)
    arrays = read_arrays(path)
    if isinstance(arrays, dict):
        if "x" not in arrays:
            raise DataError(f"{path} has no array x; it has {', '.join(arrays) or 'none'}.")
        arrays = arrays["x"]
    inputs = _as_input(arrays)
    _check_shape(path, inputs)
    if len(inputs) == 0:
        raise DataError(f"{path} holds no inputs: its array has shape {list(inputs.shape)}.")
    return inputs


def is_npz(path: Path) -> bool:
    """Whether a file is an `.npz`, by its name in small or capital letters."""
    return path.suffix.lower() == ".npz"


def read_arrays(path: Path) -> NDArray[np.generic] | dict[str, NDArray[np.generic]]:
    """Read the array of an `.npy`, or those of an `.npz` by name, whatever the file is called.

    Raises DataError, also for Python objects: to load these runs what whoever wrote them chose.
    """
    try:
        with open_regular_file(path) as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.lib.npyio.NpzFile):
                return {key: found[key] for key in found.files}
            return np.asarray(found)
    except MemoryError as error:
        raise DataError(
            f"{path} promises more than the memory of this machine holds: {error}. If that is not "
            "what was saved, the file is damaged: write it again."
        ) from None
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(getattr(error, "strerror", None) or error)
        if "pickle" in reason:
            with open_regular_file(path) as file:
                start = file.read(6)
            reason = (
                "it holds Python objects, which are not loaded; save arrays of numbers or text, "
                "such as x.astype('float32') and names.astype(str)"
                if start[:2] == b"PK" or start == b"\x93NUMPY"
                else "it is not a .npy or .npz file; write one with numpy.save or numpy.savez"
            )
        raise DataError(f"{path} cannot be read as arrays of NumPy: {reason}.") from None


def load_labelled(path: Path, like: Dataset) -> Dataset:
    """Load the `x` and `y` of an `.npz` that has the classes and the range of `like`.

    Raises DataError, also if it has no labels or names other classes.
    """
    arrays = _read_npz(path)
    labels = _class_labels(path, arrays, _labels(path, arrays), like.classes)
    if _archived_classes(arrays) not in (None, like.classes):
        raise DataError(f"{path} names other classes, or in another order, than {like.name}.")
    return Dataset(_as_input(arrays["x"]), labels, like.classes, like.spec, name=str(path))


def row_digests(inputs: NDArray[np.generic]) -> NDArray[np.void]:
    """Return a 128-bit digest of each row [N], to find rows that two arrays share."""
    digests = bytearray()
    for row in inputs:
        digests += hashlib.blake2b(row.tobytes(), digest_size=16).digest()
    return np.frombuffer(digests, dtype="V16")


def number_distinct_rows(inputs: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return which different row each one is [N], from 0 on: equal rows have one answer."""
    which: NDArray[np.int64] = np.unique(row_digests(inputs), return_inverse=True)[1]
    return which


def _read_npz(path: Path) -> dict[str, NDArray[np.generic]]:
    arrays = read_arrays(path)
    if not isinstance(arrays, dict):
        raise DataError(
            f"{path} is one array of shape {list(arrays.shape)}; expected an .npz, whose arrays "
            "have names: numpy.savez(file, x=inputs, y=labels)."
        )
    return arrays


def _labels(path: Path, arrays: dict[str, NDArray[np.generic]]) -> NDArray[np.int64]:
    """The labels [N] of an archive that has inputs, too. Raises DataError."""
    for key in ("x", "y"):
        if key not in arrays:
            raise DataError(f"{path} has no array {key}; it has {', '.join(arrays) or 'none'}.")
    y = arrays["y"]
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise DataError(f"{path}: y must have one integer per record, found {y.dtype} {y.shape}.")
    return y.astype(np.int64)


def _archived_classes(arrays: dict[str, NDArray[np.generic]]) -> tuple[str, ...] | None:
    """The classes that an archive names."""
    own = arrays.get("classes")
    return None if own is None else tuple(normalize(str(name)) for name in own.ravel().tolist())


def _class_labels(
    path: Path,
    arrays: dict[str, NDArray[np.generic]],
    y: NDArray[np.int64],
    classes: tuple[str, ...],
) -> NDArray[np.int64]:
    """The `y` [N] of an archive as indices into `classes`. Raises DataError."""
    own = _archived_classes(arrays)
    if own is None or arrays["classes"].dtype.kind in "iu":
        return _named_numbers(path, y, classes)
    check_classes(own, str(path))
    odd = np.flatnonzero((y < 0) | (y >= len(own)))
    if len(odd):
        raise DataError(
            f"{path}: label {y[odd[0]]} of record {odd[0]} is not one of 0..{len(own) - 1}, the "
            "indices into its array `classes`."
        )
    places = np.array([classes.index(name) if name in classes else -1 for name in own])
    labels: NDArray[np.int64] = places[y]
    if (labels < 0).any():
        record = int(np.flatnonzero(labels < 0)[0])
        raise DataError(
            f"{path}: record {record} is of class {own[y[record]]!r}, as its array `classes` says; "
            f"expected one of {list_names(classes)}."
        )
    return labels


def _named_numbers(
    path: Path, labels: NDArray[np.int64], classes: tuple[str, ...]
) -> NDArray[np.int64]:
    """Numbers [N] as indices into `classes`: a number is an index only where it cannot be a name.

    Raises DataError.
    """
    try:
        places = map_class_numbers(classes)
    except ValueError as error:
        raise DataError(f"{path}: {error}.") from None
    if places is None:
        return labels
    found = np.array([places.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    if (found < 0).any():
        record = int(np.flatnonzero(found < 0)[0])
        raise DataError(
            f"{path}: label {labels[record]} of record {record} is not one of "
            f"{list_names(classes)}; where classes are named by numbers, labels are these numbers."
        )
    return found


def _declared_inputs(
    path: Path, arrays: dict[str, NDArray[np.generic]]
) -> tuple[NDArray[np.generic], InputSpec]:
    x = arrays["x"]
    inputs = _as_input(x)
    _check_shape(path, inputs)
    if inputs.dtype == np.uint8:
        return inputs, InputSpec(shape=inputs.shape[1:], dtype="uint8", low=0, high=255)
    try:
        low, high = (float(arrays[key].item()) for key in ("low", "high"))
    except (KeyError, ValueError, TypeError):
        raise DataError(
            f"{path}: x is {x.dtype}, so the range of its values must be declared: store numbers "
            "`low` and `high`. They become public; do not compute them from private records."
        ) from None
    if not (low < high and high - low <= MAX_RANGE):
        raise DataError(
            f"{path}: `low` is {low:g} and `high` is {high:g}; expected numbers, the first below "
            f"the second, and at most {MAX_RANGE:.3g} apart, as float32 has them."
        )
    return inputs, InputSpec(shape=inputs.shape[1:], dtype="float32", low=low, high=high)


def _check_shape(path: Path, inputs: NDArray[np.generic]) -> None:
    """Raise DataError unless each input has one to four dimensions, and something in it."""
    if not 2 <= inputs.ndim <= 5 or 0 in inputs.shape[1:]:
        raise DataError(
            f"{path}: inputs must be [N, …], one for each of N records, of one to four dimensions "
            f"that are not empty; found shape {list(inputs.shape)}."
        )


def check_classes(classes: Sequence[str], what: str) -> None:
    """Each answer names its class, so names are told apart and short."""
    if len(classes) < 2:
        raise DataError(f"{what}: at least two classes are needed.")
    if len(classes) > MAX_CLASSES:
        raise DataError(
            f"{what}: {len(classes):,} classes; expected at most {MAX_CLASSES:,}. Is the array of "
            "classes that of each record? Merge those that are rare."
        )
    if len(set(classes)) < len(classes):
        twice = next(name for name in classes if list(classes).count(name) > 1)
        raise DataError(f"{what}: two classes are named {twice!r}; each needs another name.")
    for name in classes:
        if not name.strip() or len(name) > MAX_CLASS_CHARACTERS:
            raise DataError(
                f"{what}: a class is named {name[:50]!r}, {len(name):,} characters; expected 1 to "
                f"{MAX_CLASS_CHARACTERS}, not all of them blank."
            )


def find_outside(inputs: NDArray[Any], spec: InputSpec) -> NDArray[np.int64]:
    """Return the records with a value outside the range, or NaN."""
    inside = np.empty(len(inputs), bool)
    for at in _slices(len(inputs)):
        block = inputs[at]
        inside[at] = ((block >= spec.low) & (block <= spec.high)).reshape(len(block), -1).all(1)
    return np.flatnonzero(~inside)


def _slices(rows: int) -> Iterator[slice]:
    """All rows, some at a time: what is made of them need not be held for all at once."""
    return (slice(start, start + BLOCK_ROWS) for start in range(0, rows, BLOCK_ROWS))


def _as_input(x: NDArray[np.generic]) -> NDArray[np.generic]:
    if x.dtype.kind not in "buif":
        raise DataError(f"Inputs must be numbers, found dtype {x.dtype}.")
    if x.dtype == np.uint8:
        return x
    with np.errstate(over="ignore"):  # what is infinite then is outside of every range
        return x.astype(np.float32)


def _one_file(folder: Path, start: str) -> Path:
    found = sorted(
        p for p in folder.glob(f"{start}*") if p.suffix.lower() in (".gz", "") or "idx" in p.name
    )
    if not found:
        raise DataError(
            f"{folder} has no file {start}*; expected MNIST-style IDX files there, or, with the "
            "size that pictures are converted to, folders of PNG and JPEG files. Of other data, "
            "name the file, not its directory."
        )
    return found[0]
