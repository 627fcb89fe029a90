"""Sums of public features, class by class: what a project may release once and then answer from.

    known = SumMap.fit(spec, PublicData.declare("pool", pool), norm=1024)
    sums = add_up(known(data.inputs), data.labels, data.groups, 2, known.norm)  # private
    released = ReleasedSums(known, noisy, sigma=5_000.0, units=32_561, natural=pool[:4_000])
    fitted = fit_scores(released, pool)
    fitted.probabilities(known.places(x))

Of records, a softmax regression needs nothing but Σ φ(x) ⊗ e_y over all of them: the slope of its
loss is the mean of φ·p_W less that of φ ⊗ e_y, and the first can be had of unlabelled public rows.
So one release, in which each person counts once, stands for any number of questions. What is
computed of it here is post-processing.
"""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import IO, Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, ValidationError
from scipy.linalg import eigh
from scipy.special import softmax

from terrine_models.data.arrays import DataError, InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.features.fitting import public_features
from terrine_models.features.maps import FeatureMap, compute_features
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import FeatureSpec
from terrine_models.tables.designed import NATURAL_ROWS
from terrine_protocol.base import Record, first_problem
from terrine_protocol.projects import SumRelease

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Public features at most: of tables, and of pictures and texts.
TABLE_WIDTH = 512
WIDTH = 300
# Shares of a row's length by which it is shortened until it is within the norm, rounded as it is.
SHORTENING = 0.98
MAX_SHORTENINGS = 60
# Of a norm. A greater one only adds digits.
MAX_NORM = 1024
# Of two classes, the difference of the sums counts so many times as much as their total, and has
# less noise at the same price (docs/privacy/sums.md).
DIFFERENCE = 2
# Of public rows, those that are not shortened.
SHORT_SHARE = 0.1
# Of a component, relative to the largest: others are left out.
MIN_VARIANCE_SHARE = 1e-6
MIN_VARIANCE = 1e-12
MIN_LENGTH = 1e-9
# Of a mean, for dividing the norm: with less, a pool of other people leaves more open than noise.
MIN_MAP_NOISE = 5e-4
# Of scores, and of the class of a row: what is expected where the norm is divided.
SCORE_VARIANCE, CLASS_VARIANCE = 4.0, 0.15
# Bytes of what an archive holds.
MAX_ARCHIVE_BYTES = 1 << 30
# By which a noisy sum may exceed the largest: never, but for one that nobody drew.
MAX_NOISE_DEVIATIONS = 100
# Of a map, beside its features.
MAP_ARRAYS = ("centre", "basis", "stretch")


class _About(Record):
    """What an archive says of itself."""

    format: Literal["terrine-sums-2"] = "terrine-sums-2"
    input: InputSpec
    features: FeatureSpec
    norm: Annotated[int, Field(ge=1, le=MAX_NORM)]
    sigma: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    units: Annotated[int, Field(ge=1)]


# Of a person, that are mapped at a time.
PERSON_RECORDS = 8
# Rows that are added up at a time.
BLOCK_ROWS = 1 << 13
# Below it, float64 holds whole numbers, and their quotients rounded towards zero, exactly.
MAX_WHOLE = 1 << 53


@dataclass(frozen=True, eq=False)
class SumMap:
    """A public map φ of inputs to whole numbers, of norm at most `norm`. Make one with `fit`.

    φ are principal components of public features, stretched, shortened to `norm`, and rounded.
    """

    features: FeatureMap
    centre: Floats
    """[D], the mean of the features of public rows."""
    basis: Floats
    """[D, d], orthogonal directions, of which public rows have a variance of 1 in all."""
    stretch: Floats
    """[d], by which components are multiplied. Of `SHORT_SHARE` of the public rows they are then
    shorter than 1; all others are shortened."""
    norm: int

    @classmethod
    def fit(
        cls, inputs: InputSpec, public: PublicData, norm: int = MAX_NORM, noise: float = 0.0
    ) -> SumMap:
        """The map that suits such inputs, by public rows alone. Raises DataError.

        noise: standard deviation of the noise by which means of φ/norm of two classes will differ,
        over √2: the larger it is, the more of the norm is for the components that vary most.
        """
        public.check_fits(inputs)
        width = TABLE_WIDTH if len(inputs.shape) == 1 and inputs.texts is None else WIDTH
        features = public_features(inputs, public, width)
        found = compute_features(features, public.inputs)
        centre = found.mean(axis=0)
        found -= centre
        variances, turned = np.linalg.eigh(found.T @ found / len(found))
        kept = variances > MIN_VARIANCE_SHARE * max(float(variances[-1]), MIN_VARIANCE)
        kept[-1] = True  # of equal rows, one direction, in which they are 0
        total = max(float(variances[kept].sum()), MIN_VARIANCE)
        basis = np.ascontiguousarray(turned[:, kept]) / math.sqrt(total)
        shares = np.maximum(variances[kept] / total, MIN_VARIANCE)
        stretch = np.sqrt(_divide_norm(shares, max(noise, MIN_MAP_NOISE)) / shares)
        lengths = np.linalg.norm(found @ basis * stretch, axis=1)
        return cls(
            features, centre, basis, stretch / max(np.quantile(lengths, SHORT_SHARE), MIN_LENGTH),
            norm,
        )  # fmt: skip

    @property
    def width(self) -> int:
        """How many numbers, without the constant: d."""
        return len(self.stretch)

    def places(self, x: NDArray[np.generic]) -> Floats:
        """Components [N, d] of inputs [N, *shape], before they are stretched and shortened."""
        found: Floats = (compute_features(self.features, x) - self.centre) @ self.basis
        return found

    def place_people(self, x: NDArray[np.generic], firsts: Sequence[int]) -> Floats:
        """The same of people's records, the first of each person at `firsts`, in blocks.

        Products round by their size. So what a record's are depends on its person's alone, if all
        blocks are of one size, and each of one person.
        """
        found = np.empty((len(x), self.width))

        def locate(block: tuple[int, int]) -> None:
            start, end = block
            rows = np.asarray(x[start:end], dtype=np.float32)
            features = self.features.of_block(rows, PERSON_RECORDS).astype(np.float64)
            found[start:end] = ((features - self.centre) @ self.basis)[: end - start]

        side_by_side(
            locate,
            [
                (start, min(start + PERSON_RECORDS, end))
                for first, end in pairwise([*firsts, len(x)])
                for start in range(first, end, PERSON_RECORDS)
            ],
        )
        return found

    def round(self, places: Floats) -> Ints:
        """What φ makes of `places` [N, d]: int64[N, d], each row of norm at most `norm`."""
        rows = places * self.stretch
        rows *= self.norm / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
        whole: Ints = np.rint(rows).astype(np.int64)
        for _ in range(MAX_SHORTENINGS):  # a row of length `norm` may be longer when it is rounded
            long = (whole**2).sum(axis=1) > self.norm**2
            if not long.any():
                return whole
            rows[long] *= SHORTENING
            whole[long] = np.rint(rows[long]).astype(np.int64)
        whole[long] = np.trunc(rows[long]).astype(np.int64)
        return whole

    def __call__(self, x: NDArray[np.generic]) -> Ints:
        """φ of inputs [N, *shape]: int64[N, d], each row of norm at most `norm`."""
        return self.round(self.places(x))

    @cached_property
    def sha256(self) -> str:
        """Of all that the map is, as hex."""
        spec, inputs = self.features.spec, self.features.inputs
        digest = hashlib.sha256(spec.model_dump_json().encode() + inputs.model_dump_json().encode())
        digest.update(f"{self.norm}".encode())
        own = {"centre": self.centre, "basis": self.basis, "stretch": self.stretch}
        for name, each in sorted((own | self.features.tensors).items()):
            digest.update(f"{name} {each.dtype.str} {each.shape}".encode())
            digest.update(np.ascontiguousarray(each).tobytes())
        return digest.hexdigest()


def _divide_norm(variances: Floats, noise: float) -> Floats:
    """Return which share of the squared norm each component [d] has, of such variances.

    Half is divided as the components vary. The other half goes where it tells most, if a score
    has a variance of `SCORE_VARIANCE`, evenly over components: as power is divided among channels
    (Cover and Thomas, "Elements of Information Theory", 9.4).
    """
    as_varied = variances / variances.sum()
    told = variances * SCORE_VARIANCE * CLASS_VARIANCE**2
    costs = np.sort(noise**2 / told)
    levels = (1 + costs.cumsum()) / np.arange(1, len(costs) + 1)
    level = levels[np.flatnonzero(levels >= costs)[-1]]
    found: Floats = (as_varied + np.maximum(level - noise**2 / told, 0)) / 2
    return found


def class_codes(classes: int) -> Ints:
    """Return what one of each class counts as in each column that is released: [m, m].

    Of two classes the columns are `DIFFERENCE` times the second less the first, and both; of more,
    the classes themselves.
    """
    if classes == 2:
        return np.array([[-DIFFERENCE, 1], [DIFFERENCE, 1]], np.int64)
    return np.eye(classes, dtype=np.int64)


def constant_feature(norm: int, classes: int) -> int:
    """Return the constant that stands beside the features, of a length of at most `norm`."""
    return norm // DIFFERENCE if classes == 2 else norm


@dataclass(frozen=True, eq=False)
class ReleasedSums:
    """Noisy sums and all that is needed to use them. Public, once they are paid for."""

    map: SumMap
    sums: Ints
    """int64[d + 1, m]: of φ, by column of `class_codes`; the last row is how many people there
    are, times `constant_feature`."""
    sigma: float
    """Standard deviation of the noise of each number."""
    units: int
    """How many people gave one contribution each."""
    natural: NDArray[Any]
    """[P, *shape]: public rows, to see how often a class is said."""

    @property
    def classes(self) -> int:
        """m."""
        return int(self.sums.shape[1])

    @property
    def release(self) -> SumRelease:
        """What a project says of them before it begins."""
        return SumRelease(
            sigma=self.sigma,
            norm=self.map.norm,
            features=self.map.width,
            classes=self.classes,
            map_sha256=self.map.sha256,
        )

    @cached_property
    def errors(self) -> Floats:
        """The covariance [m, m] of the noise of each feature's means, over classes."""
        back = np.linalg.inv(class_codes(self.classes)) * self.sigma / (self.map.norm * self.units)
        return back.T @ back

    @property
    def count_scale(self) -> float:
        """By how much the noise of a share of a class is larger than that of a feature's mean."""
        return self.map.norm / constant_feature(self.map.norm, self.classes)

    @cached_property
    def means(self) -> Floats:
        """[d + 1, m]: of φ/norm and 1, over all units, those of other classes being 0.

        The last row are the shares of the classes, and made to add up to 1, as they do.
        """
        back = np.linalg.inv(class_codes(self.classes))
        found: Floats = self.sums @ back / (self.map.norm * self.units)
        found[-1] *= self.count_scale
        of_total = self.errors.sum(axis=0)
        found[-1] += of_total / of_total.sum() * (1 - found[-1].sum())
        return found

    @property
    def share_errors(self) -> Floats:
        """Standard deviations [m] of the noise of the shares in `means`."""
        of_total = self.errors.sum(axis=0)
        left = self.errors - np.outer(of_total, of_total) / of_total.sum()
        found: Floats = self.count_scale * np.sqrt(np.diag(left))
        return found

    @property
    def prior(self) -> Floats:
        """The share of each class [m], as far as noise lets it be seen; none is 0."""
        seen = np.maximum(self.means[-1], np.maximum(self.share_errors, 1 / self.units) / 2)
        shares: Floats = seen / seen.sum()
        return shares

    def to_bytes(self) -> bytes:
        """An .npz archive; `of_bytes` reads it."""
        about = _About(
            input=self.map.features.inputs,
            features=self.map.features.spec,
            norm=self.map.norm,
            sigma=self.sigma,
            units=self.units,
        )
        made = io.BytesIO()
        arrays = {f"map.{name}": each for name, each in self.map.features.tensors.items()}
        arrays |= {name: getattr(self.map, name) for name in MAP_ARRAYS}
        arrays |= {"sums": self.sums, "natural": self.natural}
        arrays = {name: np.ascontiguousarray(each) for name, each in arrays.items()}
        np.savez_compressed(
            made, about=np.frombuffer(about.model_dump_json().encode(), np.uint8), **arrays
        )
        return made.getvalue()

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        """Read such an archive. Raises DataError for anything else."""
        arrays = _read_archive(data)
        try:
            about = _About.model_validate_json(arrays.pop("about").tobytes())
            sums, natural = arrays.pop("sums"), arrays.pop("natural")
            own = {name: arrays.pop(name) for name in MAP_ARRAYS}
        except ValidationError as error:
            raise DataError(f"These are not released sums {first_problem(error)}.") from None
        except KeyError as error:
            raise DataError(f"These are not released sums: {error} is missing.") from None
        tensors = {name.removeprefix("map."): each for name, each in arrays.items()}
        _check(about, sums, natural, own, tensors)
        known = SumMap(FeatureMap(about.features, about.input, tensors), **own, norm=about.norm)
        return cls(known, sums, about.sigma, about.units, natural)


def _check(
    about: _About,
    sums: Ints,
    natural: NDArray[Any],
    own: Mapping[str, Floats],
    tensors: Mapping[str, Any],
) -> None:
    """Raise DataError unless all of an archive goes together."""
    width, shape = about.features.width, about.input.shape
    count = own["stretch"].size
    expected: dict[str, tuple[NDArray[Any], str, tuple[int | None, ...], int]] = {
        "stretch": (own["stretch"], "float64", (count,), 1),
        "basis": (own["basis"], "float64", (width, count), 1),
        "centre": (own["centre"], "float64", (width,), 1),
        "sums": (sums, "int64", (count + 1, None), 2),
        "natural": (natural, about.input.dtype, (None, *shape), 1),
    }
    for name, (found, dtype, sizes, least) in expected.items():
        if (
            found.dtype != dtype
            or found.ndim != len(sizes)
            or any(size not in (None, own) for own, size in zip(found.shape, sizes, strict=True))
            or min(found.shape) < least
            or not np.isfinite(found).all()
        ):
            wanted = ", ".join("any" if size is None else str(size) for size in sizes)
            raise DataError(
                f"These are not released sums: expected {name} as finite {dtype} [{wanted}]; found "
                f"{found.dtype} {list(found.shape)}."
            )
    if len(natural) > NATURAL_ROWS:
        raise DataError(f"Released sums hold at most {NATURAL_ROWS:,} public rows.")
    largest = DIFFERENCE * about.norm * about.units
    most = largest + MAX_NOISE_DEVIATIONS * about.sigma
    if max(-float(sums.min()), float(sums.max())) > most:
        raise DataError(
            f"These are not released sums: {about.units:,} people and noise of {about.sigma:g} "
            f"add up to {most:,.0f} at most."
        )
    known = FeatureMap(about.features, about.input, tensors)
    if about.features.backbone or known.shapes() != {n: each.shape for n, each in tensors.items()}:
        raise DataError("These are not released sums: the public map has other arrays.")
    if any(each.dtype.kind not in "fi" or not np.isfinite(each).all() for each in tensors.values()):
        raise DataError("These are not released sums: the public map has what are no numbers.")
    try:
        of_one = compute_features(known, natural[:1])
    except (ValueError, IndexError, TypeError):
        of_one = np.zeros(0)
    if of_one.shape != (1, width) or not np.isfinite(of_one).all():
        raise DataError("These are not released sums: the public map does not take their rows.")


def _read_archive(data: bytes) -> dict[str, NDArray[Any]]:
    """Arrays by name. What an array says of its size is compared with what is there before it is
    made. Raises DataError."""
    found = dict[str, NDArray[Any]]()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > MAX_ARCHIVE_BYTES:
                raise DataError(f"Released sums have at most {MAX_ARCHIVE_BYTES >> 20:,} MiB.")
            for entry in entries:
                with archive.open(entry) as file:
                    found[entry.filename.removesuffix(".npy")] = _read_array(file, entry.file_size)
    except (
        ValueError,
        OSError,
        EOFError,
        RuntimeError,  # an entry that is encrypted
        NotImplementedError,  # or packed in a way that zipfile does not know
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(f"These are not released sums: {error}") from None
    return found


def _read_array(file: IO[bytes], size: int) -> NDArray[Any]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        raise ValueError("an array of a later format")
    shape, by_columns, dtype = read(file)
    count = math.prod(shape)
    if dtype.hasobject or count * dtype.itemsize != size - file.tell():
        raise ValueError("an array of another size than it says")
    flat = np.frombuffer(file.read(size), dtype, count)
    return flat.reshape(shape, order="F" if by_columns else "C").copy()


def add_up(
    points: Ints, labels: ArrayLike, groups: ArrayLike | None, classes: int, norm: int
) -> Ints:
    """Return what all people contribute, added up: int64[d + 1, m], by column. Private.

    `points`: int64[N, d], a public map of each record; what is longer than `norm`, a whole number
    c, is shortened to it. `labels`: [N], below `classes`. `groups`: [N], whose each record is;
    None: each is somebody's only one. The last row is of the constant k (`constant_feature`).

    Of a person with R records, R_j of class j, that class gets the sum of their points divided by
    R, and q = ⌊k·R_j/R⌋ in the last row. The former is rounded towards zero, and shortened to
    q·c/k. Classes then count as `class_codes` says. How far apart two people's contributions are is
    in docs/privacy/sums.md. Raises ValueError for other shapes, and for no value.
    """
    count, width = points.shape
    if points.dtype != np.int64 or norm < 1 or width * norm**2 >= MAX_WHOLE:
        raise ValueError(f"points are int64[N, d], and d·norm² is below {MAX_WHOLE}")
    kinds = np.asarray(labels, dtype=np.int64).clip(0, classes - 1)
    people = np.arange(count) if groups is None else np.asarray(groups, dtype=np.int64)
    if kinds.shape != (count,) or people.shape != (count,):
        raise ValueError("each point has a label and a group")
    order = np.lexsort((kinds, people))
    people, kinds = people[order], kinds[order]
    firsts = np.flatnonzero(_find_starts(people))
    blocks = np.searchsorted(firsts, np.arange(0, count, BLOCK_ROWS), side="right") - 1
    cuts = [*np.unique(firsts[blocks]), count]
    totals = np.zeros((classes, width + 1), dtype=np.int64)
    for start, end in pairwise(cuts):
        rows = points[order[start:end]].astype(np.float64)
        given, of = _contribute(rows, kinds[start:end], people[start:end], norm, classes)
        present, places = np.unique(of, return_index=True)
        totals[present] += np.add.reduceat(given, places, axis=0).astype(np.int64)
    return totals.T @ class_codes(classes)


def _contribute(
    rows: Floats, kinds: Ints, people: Ints, norm: int, classes: int
) -> tuple[Floats, Ints]:
    """Return what each person gives to each of their classes, [P, d + 1], and that class, [P].

    Sorted by class. The rows are sorted by person and class.
    """
    own = _find_starts(people)
    pairs = np.flatnonzero(own | _find_starts(kinds))
    person = np.cumsum(own)[pairs] - 1
    records = np.diff(pairs, append=len(rows))
    of_person = np.bincount(person, records)[person]
    constant = constant_feature(norm, classes)
    counts = np.trunc(constant * records / of_person)[:, None]
    sums = np.add.reduceat(_shorten(rows, np.float64(norm)), pairs, axis=0)
    means = _shorten(np.trunc(sums / of_person[:, None]), norm // constant * counts)
    order = np.argsort(kinds[pairs], kind="stable")
    return np.concatenate([means, counts], axis=1)[order], kinds[pairs][order]


def _shorten(vectors: Floats, most: Floats | np.float64) -> Floats:
    """Return vectors [B, d] of whole numbers, those longer than `most`, [B, 1], shortened to it."""
    vectors = np.clip(vectors, -most, most)  # so that no square is too large
    squared = np.einsum("bd,bd->b", vectors, vectors)[:, None]
    lengths = np.ceil(np.sqrt(squared))
    lengths += lengths**2 < squared
    # Exactly as they are where the length, rounded up, is at most `most`.
    shorter: Floats = np.trunc(vectors * most / np.maximum(np.maximum(lengths, most), 1))
    return shorter


def _find_starts(values: Ints) -> NDArray[np.bool_]:
    """Return which values differ from the one before; the first does."""
    changed: NDArray[np.bool_] = np.diff(values, prepend=values[:1] - 1) != 0
    return changed


# How far the weights may spread, before anything is seen of them: a variance, of features of
# length 1. What the released sums say of it is weighed against this, with `SPREAD_DOUBT` as the
# standard deviation of its logarithm.
USUAL_SPREAD = 1.0
SPREAD_DOUBT = 1.5
SPREADS = np.geomspace(1e-2, 1e3, 21)
# And whether the weights of components that vary much are larger than others, or smaller.
SPREAD_POWERS = (0.0, 0.5, -0.5)
LEAST_SHAPE = 1e-3
# The same of biases: next to anything.
BIAS_SPREAD = 100.0
# The same of what tilts a pool; 0 leaves it as it is.
TILT_SPREADS = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 65)])
# Rows of a pool at most: of more, every second, third, …. Fewer, if with all features and classes
# they would be too many numbers, of which 10⁷ take about two seconds.
MAX_POOL_ROWS, ENOUGH_POOL_ROWS = 20_000, 2_000
MAX_POOL_NUMBERS = 10**8
# Classes from which fewer spreads are tried, for each takes an equation of so many unknowns.
MANY_CLASSES, MANY_SPREADS_STEP = 40, 4
# How much likelier it is from the start that a public model says something than that it does not.
BASE_ODDS = 20.0
# How often the spread is found again from what was fitted with the one before.
ROUNDS = 3
MAX_STEPS = 25
MAX_CONJUGATE_STEPS = 100
# Standard errors by which a share must differ from how often a class is said, to move the cut.
MIN_CUT_ERRORS = 2.0
# Of scores, between which a cut may lie: a student computes them in single precision.
MIN_SCORE_GAP = 1e-6
# Of a step, relative to what is to be gained.
STEP_TOLERANCE = 1e-4
MIN_STEP_SHARE = 1e-4


@dataclass(frozen=True, eq=False)
class SumScores:
    """Weights [d, m] and biases [m] of scores whose softmax are the shares, on `SumMap.places`."""

    weights: Floats
    biases: Floats
    tilt: Floats
    """[P], how much each row of the pool counts, so that the pool is like the private rows."""
    evidence: float
    """Logarithm of how likely the sums are, and their base: to be compared for the same sums and
    pool."""

    def scores(self, places: Floats) -> Floats:
        """Scores [B, m] of places [B, d]."""
        return places @ self.weights + self.biases

    def probabilities(self, places: Floats) -> Floats:
        """Shares [B, m] of places [B, d]."""
        found: Floats = softmax(self.scores(places), axis=1)
        return found


def fit_scores(
    released: ReleasedSums, x: NDArray[np.generic], base: Floats | None = None
) -> SumScores:
    """Fit scores to released sums, with unlabelled rows x [P, *shape] of anybody.

    The mean of φ·p_W over rows that are weighed as the private ones are is compared with the
    released means: its errors are their noise, and what a pool of that size and that many people
    leave open. base: scores [P, m] of a public model on the same rows, which are corrected. Raises
    DataError for rows of another shape.
    """
    if x.shape[1:] != released.map.features.inputs.shape or len(x) == 0:
        raise DataError(
            f"The pool has rows of shape {list(x.shape[1:])}; expected one or more rows of shape "
            f"{list(released.map.features.inputs.shape)}."
        )
    few = MAX_POOL_NUMBERS // released.sums.size
    every = -(-len(x) // min(MAX_POOL_ROWS, max(few, ENOUGH_POOL_ROWS)))
    places = released.map.places(x[::every])
    points = released.map.round(places) / released.map.norm
    pool = _Pool.of(places, points, released)
    found = _Match(pool, released, None if base is None else base[::every]).fit()
    tilt = np.zeros(len(x))
    tilt[::every] = pool.tilt
    return replace(found, tilt=tilt)


def find_cut(released: ReleasedSums, found: SumScores, probabilities: Floats) -> float | None:
    """Return from which probability the second of two classes is said; None: the likelier one.

    So that among the pool's rows, [P, 2] as `found` was fitted on them, it is said as often as it
    was released, as they are tilted. Where noise leaves that open, or the likelier class is said as
    often, nothing is cut; nor of more classes.
    """
    if probabilities.shape[1] != 2:
        return None
    share, error = float(released.prior[1]), max(released.share_errors[1], 1 / released.units)
    second = probabilities[:, 1]
    if not MIN_CUT_ERRORS * error < share < 1 - MIN_CUT_ERRORS * error or np.ptp(second) < 1e-9:
        return None
    likelier = float(found.tilt[second >= 1 / 2].sum())
    if abs(likelier - share) <= MIN_CUT_ERRORS * error:
        return None
    return cut_at_share(second, share, found.tilt)


def cut_at_share(second: Floats, share: float, weights: Floats | None = None) -> float | None:
    """Return the probability that so large a share of `second` [N] reaches, as nearly as can be.

    It lies between two of them that differ by more than rounding, so that this moves no row.
    weights: how much each counts [N]. None where all are the same.
    """
    values, places = np.unique(second, return_inverse=True)
    low, high = values[:-1], values[1:]
    apart = high - low > MIN_SCORE_GAP * high * (1 - low)
    if not apart.any():
        return None
    counts = np.bincount(places, weights)
    missed = np.abs(1 - counts.cumsum()[:-1] / counts.sum() - share)
    place = int(np.where(apart, missed, np.inf).argmin())
    return float(np.clip((low[place] + high[place]) / 2, 1e-9, 1 - 1e-9))


@dataclass(frozen=True, eq=False)
class _Pool:
    """Rows of a pool, centred, and a constant 1."""

    points: Floats
    """[P, d + 1]: of φ/norm."""
    places: Floats
    """[P, d + 1]: of what φ is before it is stretched, shortened and rounded."""
    tilt: Floats
    """[P]; they add up to 1."""
    centre: Floats
    """[d]: of points."""
    middle: Floats
    """[d]: of places."""

    @classmethod
    def of(cls, places: Floats, points: Floats, released: ReleasedSums) -> _Pool:
        tilt = _tilt(points, released)
        centre, middle = tilt @ points, tilt @ places
        one = np.ones((len(points), 1))
        points, places = np.hstack([points - centre, one]), np.hstack([places - middle, one])
        return cls(points, places, tilt, centre, middle)

    def average(self, rows: Floats) -> Floats:
        """Means [k] of rows [P, k]."""
        found: Floats = self.tilt @ rows
        return found

    @property
    def rows(self) -> float:
        """As many rows of equal weight leave as much open."""
        return float(1 / (self.tilt**2).sum())


def _tilt(points: Floats, released: ReleasedSums) -> Floats:
    """Weights [P] of a pool, ∝ exp(v·φ), whose mean of φ is the released one as far as it is known.

    v is fitted as scores are, with the variance that explains the difference best: none, where
    noise and chance do.
    """
    rows, size = points.shape
    tilt, centre = np.full(rows, 1 / rows), points.mean(axis=0)
    centred = points - centre
    variances, turned = np.linalg.eigh(centred.T @ centred / rows)
    variances = np.maximum(variances, MIN_VARIANCE)
    along = centred @ turned
    wanted = (released.means[:-1].sum(axis=1) - centre) @ turned
    errors = released.errors.sum() + variances * (1 / released.units + 1 / rows)

    def unlikely(spread: float) -> float:
        total = errors + spread * variances**2
        return float((np.log(total) + wanted**2 / total).sum())

    spread = float(TILT_SPREADS[int(np.argmin([unlikely(each) for each in TILT_SPREADS]))])
    if spread == 0:
        return tilt

    def weigh(v: Floats) -> tuple[float, Floats, Floats]:
        weights: Floats = softmax(along @ v)
        missed = weights @ along - wanted
        return float((missed**2 / errors).sum() + (v**2).sum() / spread) / 2, weights, missed

    v = np.zeros(size)
    loss, tilt, missed = weigh(v)
    for _ in range(MAX_STEPS):
        around = along - tilt @ along
        slope = (around * tilt[:, None]).T @ around
        curvature = (slope / errors) @ slope + np.eye(size) / spread
        step = np.linalg.solve(curvature, slope @ (missed / errors) + v / spread)
        share = 1.0
        while share > MIN_STEP_SHARE:
            next_loss, next_tilt, next_missed = weigh(v - share * step)
            if next_loss < loss:
                break
            share /= 2
        else:
            break
        done = loss - next_loss < STEP_TOLERANCE * loss
        v, loss, tilt, missed = v - share * step, next_loss, next_tilt, next_missed
        if done:
            break
    return tilt


class _Match:
    """Weights W [d + 1, m] of the components with which a pool has the released means.

    The error of the means of component k has the covariance Z + λ_k·Q over classes: Z is the
    noise's, λ_k the component's variance, and Q what the private people and the pool leave open,
    diag(π)/N + E[p pᵀ]/P. By Gauss and Newton, each step by conjugate gradients.
    """

    def __init__(self, pool: _Pool, released: ReleasedSums, base: Floats | None) -> None:
        self.pool, self.released = pool, released
        self.base = np.zeros((len(pool.tilt), released.classes)) if base is None else base
        means, prior = released.means, released.prior
        about = means[:-1] - np.outer(pool.centre, means[-1])
        self.wanted = np.vstack([about, prior])
        self.start = np.zeros_like(self.wanted)
        self.odds = math.log(BASE_ODDS)
        if base is None:
            self.start[-1], self.odds = np.log(prior), 0.0
        self.crossed = pool.average(pool.points * pool.places)
        """[d + 1]: how far a score changes its own mean."""
        self.variances = np.maximum(pool.average(pool.points**2), MIN_VARIANCE)
        """[d + 1]: of the points."""
        many = released.classes >= MANY_CLASSES
        self.spreads = SPREADS[::MANY_SPREADS_STEP] if many else SPREADS
        powers = SPREAD_POWERS[:1] if many else SPREAD_POWERS
        self.shapes = {power: self._shape(power) for power in powers}
        """[d + 1, 1]: how the variances of weights may go with those of components."""

    def fit(self) -> SumScores:
        """The scores that are likeliest, with the spread that is."""
        weights, evidence = self.start, 0.0
        for _ in range(ROUNDS):
            allowed, evidence = self._choose_spread(weights)
            weights = self._fit(weights, allowed)
        biases = weights[-1] - self.pool.middle @ weights[:-1]
        return SumScores(weights[:-1], biases, self.pool.tilt, evidence + self.odds)

    def _shape(self, power: float) -> Floats:
        """∝ a power of a component's variance, so that a score varies as much by any power."""
        varied = np.maximum(self.pool.average(self.pool.places[:, :-1] ** 2), MIN_VARIANCE)
        found = (varied / varied.max() + LEAST_SHAPE) ** power
        return np.append(found * varied.sum() / (found @ varied), BIAS_SPREAD)[:, None]

    def _shares(self, weights: Floats) -> Floats:
        found: Floats = softmax(self.base + self.pool.places @ weights, axis=1)
        return found

    def _missed(self, shares: Floats) -> Floats:
        weighed = shares * self.pool.tilt[:, None]
        found: Floats = self.pool.points.T @ weighed - self.wanted
        return found

    def _open(self, shares: Floats) -> tuple[Floats, Floats]:
        """Q [m, m], and the covariance [m, m] of one row's class, on average."""
        together = (shares * self.pool.tilt[:, None]).T @ shares
        left = np.diag(self.released.prior) / self.released.units + together / self.pool.rows
        return left, np.diag(self.pool.tilt @ shares) - together

    def _choose_spread(self, weights: Floats) -> tuple[Floats, float]:
        """The variances [d + 1, 1] of weights that make the released means likeliest, and how
        likely these are."""
        left, own = self._open(self._shares(weights))
        gain = self.crossed[:-1, None]
        seen = gain * ((weights - self.start)[:-1] @ own) - self._missed(self._shares(weights))[:-1]
        errors = self.released.errors + self.variances[:-1, None, None] * left
        best, most = (USUAL_SPREAD, SPREAD_POWERS[0]), -np.inf
        for power, shape in self.shapes.items():
            slopes = (gain**2 * shape[:-1])[:, :, None] * (own @ own)
            for spread in self.spreads:
                total = errors + spread * slopes
                told = np.linalg.solve(total, seen[:, :, None])[:, :, 0]
                likely = -float(np.linalg.slogdet(total)[1].sum() + (seen * told).sum()) / 2
                likely -= (math.log(spread / USUAL_SPREAD) / SPREAD_DOUBT) ** 2 / 2
                if likely > most:
                    best, most = (float(spread), power), likely
        allowed = self.shapes[best[1]].copy()
        allowed[:-1] *= best[0]
        return allowed, most

    def _fit(self, weights: Floats, allowed: Floats) -> Floats:
        """The likeliest weights, beginning with some, of such variances."""
        start = self.start
        # In these directions over classes, both parts of the covariance are diagonal, noise's 1.
        values, turned = eigh(self._open(self._shares(weights))[0], self.released.errors)
        errors = 1 + np.outer(self.variances, np.maximum(values, 0))
        errors[-1] += self.released.count_scale**2 - 1

        def lose(weights: Floats) -> tuple[float, Floats, Floats]:
            shares = self._shares(weights)
            missed = self._missed(shares) @ turned
            loss = (missed**2 / errors).sum() + ((weights - start) ** 2 / allowed).sum()
            return float(loss) / 2, shares, missed

        loss, shares, missed = lose(weights)
        for _ in range(MAX_STEPS):
            step = self._step(shares, missed, weights, errors, turned, allowed)
            share = 1.0
            while share > MIN_STEP_SHARE:
                next_loss, next_shares, next_missed = lose(weights + share * step)
                if next_loss < loss:
                    break
                share /= 2
            else:
                break
            done = loss - next_loss < STEP_TOLERANCE * loss
            weights = weights + share * step
            loss, shares, missed = next_loss, next_shares, next_missed
            if done:
                break
        return weights

    def _step(
        self,
        shares: Floats,
        missed: Floats,
        weights: Floats,
        errors: Floats,
        turned: Floats,
        allowed: Floats,
    ) -> Floats:
        """The step of Gauss and Newton, by conjugate gradients."""
        pool = self.pool
        weighed = shares * pool.tilt[:, None]

        def spread_out(scores: Floats) -> Floats:
            """How shares change with scores [P, m], times the weight of each row."""
            found: Floats = weighed * (scores - (shares * scores).sum(axis=1, keepdims=True))
            return found

        def forward(change: Floats) -> Floats:
            found: Floats = pool.points.T @ spread_out(pool.places @ change) @ turned
            return found

        def back(residual: Floats) -> Floats:
            found: Floats = pool.places.T @ spread_out(pool.points @ (residual @ turned.T))
            return found

        own = (weighed * (1 - shares)).sum(axis=0)
        nearly = 1 / (
            (self.crossed[:, None] * own) ** 2 * ((1 / errors) @ (turned**2).T) + 1 / allowed
        )
        step = np.zeros_like(weights)
        left = -back(missed / errors) - (weights - self.start) / allowed
        towards = direction = nearly * left
        size = first = float((left * towards).sum())
        for _ in range(MAX_CONJUGATE_STEPS):
            if size <= STEP_TOLERANCE * first or size == 0:
                break
            curved = back(forward(direction) / errors) + direction / allowed
            length = size / float((direction * curved).sum())
            step, left = step + length * direction, left - length * curved
            towards = nearly * left
            size, before = float((left * towards).sum()), size
            direction = towards + size / before * direction
        return step
