"""The papers' data sets, from files that are given by path."""

from __future__ import annotations

import csv
import gzip
import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from terrine_experiments.glyphs.records import PRIVATE, PUBLIC
from terrine_experiments.papers import Name
from terrine_models.data.arrays import DIGITS, DataError, Dataset, InputSpec, load_idx, load_npz
from terrine_models.tables.loading import load_table
from terrine_models.tables.proposal import propose_schema
from terrine_models.teachers.kinds import Heads
from terrine_models.teachers.manifests import TeacherSettings
from terrine_protocol.files import read

CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
    "Ankle boot",
)  # fmt: skip
ADULT_COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
]  # fmt: skip

# SHA-256 of the public originals, unpacked, as mirrors pack them differently. The paper's Glyph is
# not public; `make glyphs` draws data like it.
DIGESTS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "fashion": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    "adult": (
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    ),
}
FILES: dict[str, tuple[str, ...]] = {
    "mnist": ("train-images", "train-labels", "t10k-images", "t10k-labels"),
    "fashion": ("train-images", "train-labels", "t10k-images", "t10k-labels"),
    "svhn": ("train_32x32.mat", "test_32x32.mat"),
    "adult": ("adult.data", "adult.test"),
    "diabetes": ("diabetic_data.csv",),
    "glyph": (PRIVATE, PUBLIC),
}
"""How the names of a data set's files begin."""
UNCOMPARED = {
    "glyph": (
        "The paper's data are not public: these are drawn with other fonts and characters, so its "
        "figures are of a task that is alike, not the same."
    ),
    "svhn": "The digests of these files are not known here, so they were not compared.",
    "diabetes": "The digest of this file is not known here, so it was not compared.",
}
"""What is noted with results of data that have no known digests."""
FEWEST = 50
"""Test inputs that folds need."""


@dataclass(frozen=True, eq=False)
class Source:
    """A data set: private records for teachers, a test set for students, and what suits them."""

    name: Name
    title: str
    private: Dataset
    test: Dataset
    """Its inputs are the student's public ones; its labels are for measuring only."""
    delta: float
    teachers: int
    config: TeacherSettings
    warnings: tuple[str, ...]
    """What the reader of a result must know about the files."""


def load(name: Name, directory: Path) -> Source:
    """Read a data set from a directory with its files. Raises DataError."""
    directory = Path(directory)
    if not directory.is_dir():
        raise DataError(
            f"{directory} is not a directory; expected one with {', '.join(FILES[name])}, plain "
            "or .gz."
        )
    found = [find_file(directory, start) for start in FILES[name]]
    recipe, warnings = RECIPES[name], check(name, found)
    private, test = recipe.read(found)
    if test.spec != private.spec:
        raise DataError(f"{directory}: training and test inputs differ in shape or range.")
    if len(test) < FEWEST:
        raise DataError(f"{directory} has {len(test)} test inputs; {FEWEST} are needed.")
    suited = recipe.delta, recipe.teachers, recipe.config
    return Source(name, recipe.title, private, test, *suited, warnings)


def check(name: Name, found: list[Path]) -> tuple[str, ...]:
    """Compare files with the public originals; return a warning if some differ."""
    if name not in DIGESTS:
        return (UNCOMPARED[name],)
    others = []
    for path, known in zip(found, DIGESTS[name], strict=True):
        data = read(path, None)
        digests = {hashlib.sha256(data).hexdigest()}
        if data[:2] == b"\x1f\x8b":
            try:
                digests.add(hashlib.sha256(gzip.decompress(data)).hexdigest())
            except (OSError, EOFError, zlib.error):
                raise DataError(f"{path} cannot be unpacked: it is damaged.") from None
        if known not in digests:
            others.append(path.name)
    if not others:
        return ()
    return (
        f"{', '.join(others)}: not the public original, by SHA-256, so the figures may not be "
        "comparable with published ones.",
    )


@dataclass(frozen=True)
class _Recipe:
    """How a data set is read, and what suits it. See `Source`."""

    title: str
    read: Callable[[list[Path]], tuple[Dataset, Dataset]]
    """The private records and the test set, of the files in the order of FILES."""
    delta: float
    teachers: int
    config: TeacherSettings = field(default_factory=Heads)


def _idx(found: list[Path], classes: tuple[str, ...] = DIGITS) -> tuple[Dataset, Dataset]:
    private = load_idx(found[0], found[1], classes=classes)
    return private, load_idx(found[2], found[3], classes=classes)


def _adult(found: list[Path]) -> tuple[Dataset, Dataset]:
    with TemporaryDirectory() as folder:
        train, test = (_unpacked(path, Path(folder)) for path in found)
        schema = propose_schema(test, label="income", columns=ADULT_COLUMNS).schema
        return load_table(train, schema), load_table(test, schema)


def _unpacked(path: Path, folder: Path) -> Path:
    """A file, or what it packs, in a folder."""
    if path.suffix != ".gz":
        return path
    plain = folder / path.stem
    plain.write_bytes(gzip.decompress(read(path, None)))
    return plain


# What scipy raises for files that are none of MATLAB's.
UNREADABLE = (
    OSError,
    LookupError,
    TypeError,
    ValueError,
    NotImplementedError,
    MatReadError,
    zlib.error,
)


def _svhn(found: list[Path]) -> tuple[Dataset, Dataset]:
    """House numbers in MATLAB's format: X [32, 32, 3, N], y [N, 1], where 10 stands for 0."""
    spec = InputSpec(shape=(32, 32, 3), dtype="uint8", low=0, high=255)
    both = []
    for path in found:
        try:
            archive = loadmat(path, variable_names=["X", "y"])
            pictures, labels = archive["X"], archive["y"].ravel().astype(np.int64) % 10
        except UNREADABLE as error:
            raise DataError(f"{path} does not hold X and y, as SVHN's files do: {error}.") from None
        inputs = np.ascontiguousarray(np.moveaxis(pictures, -1, 0))
        both.append(Dataset(inputs, labels, DIGITS, spec, name=path.name))
    return both[0], both[1]


def _diabetes(found: list[Path]) -> tuple[Dataset, Dataset]:
    """Stays in hospital, and whether the patient came back within 30 days.

    Those of every tenth patient are the test set; the numbers of patients and stays are left out.
    """
    heads, *rows = csv.reader(read(found[0], None).decode("utf-8", "replace").splitlines())
    wanted = ("patient_nbr", "encounter_id", "readmitted")
    if not set(wanted) <= set(heads):
        raise DataError(f"{found[0]} lacks a column of {', '.join(wanted)}.")
    patient, label = heads.index("patient_nbr"), heads.index("readmitted")
    with TemporaryDirectory() as directory:
        parts = [Path(directory) / name for name in ("train.csv", "test.csv")]
        for part, of_test in zip(parts, (False, True), strict=True):
            own = [row for row in rows if (int(row[patient]) % 10 == 0) == of_test]
            for row in own:
                row[label] = "soon" if row[label] == "<30" else "later"
            with part.open("w", newline="") as file:
                csv.writer(file).writerows([heads, *own])
        ignored = ["patient_nbr", "encounter_id"]
        schema = propose_schema(parts[1], label="readmitted", ignore=ignored).schema
        return load_table(parts[0], schema), load_table(parts[1], schema)


def _glyph(found: list[Path]) -> tuple[Dataset, Dataset]:
    private, test = (load_npz(path) for path in found)
    if private.classes != test.classes:
        raise DataError(f"{found[0]} and {found[1]} have other classes; draw both at once.")
    return private, test


# Teachers and students have the defaults of `terrine ensemble train` and `terrine student train`,
# except the number of teachers, which has none, and glyphs, of which `augmentations=0` makes
# none.
RECIPES: Mapping[str, _Recipe] = {
    "mnist": _Recipe("MNIST", _idx, 1e-5, 2000),
    "fashion": _Recipe("Fashion-MNIST", lambda found: _idx(found, CLOTHES), 1e-5, 500),
    "svhn": _Recipe("SVHN", _svhn, 1e-6, 500),
    "adult": _Recipe("Adult", _adult, 1e-5, 1000),
    "diabetes": _Recipe("Diabetes", _diabetes, 1e-5, 1000),
    "glyph": _Recipe("Glyph", _glyph, 1e-8, 4000, Heads(augmentations=0)),
}


def find_file(directory: Path, start: str) -> Path:
    """Return the file of a data set that begins so. Raises DataError."""
    found = sorted(p for p in directory.glob(f"{start}*") if not p.name.endswith(".partial"))
    if not found:
        raise DataError(f"{directory} has no file {start}*, plain or .gz.")
    return found[0]
