"""Neighbours: every private record votes near it, and nothing is trained.

    from terrine_models.teachers.neighbours import Neighbours, NeighbourEnsemble, build

    build(private, Path("ensembles/mnist"), name="mnist", public=public)
    NeighbourEnsemble.load(Path("ensembles/mnist")).weights(x)  # uint8 [B, N], for no one's eyes

A record votes for its label where it lies within a radius r(x) of the query x, in the coordinates
of a public map. r(x) is the distance to the k'-th nearest of the public inputs. So whether a record
votes follows from the query, that record and public things alone: replacing one person's records
changes no other's vote. There is
no index, no choice of the k nearest and no scale of private records, each of which would break
that. Nor do products round: coordinates are whole numbers, so small that float32 holds every sum of
their products exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass as record
from dataclasses import field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from terrine_models.data.arrays import DataError, Dataset
from terrine_models.data.workers import side_by_side
from terrine_models.features.backbones import backbones
from terrine_models.features.bases import check_channels_last
from terrine_models.features.fitting import public_features
from terrine_models.features.linear import MANY_CLASSES, confidence_weights
from terrine_models.features.maps import FeatureMap
from terrine_models.features.public import PublicData
from terrine_models.features.views import MAX_GRAPH_POINTS, MIN_GRAPH_POINTS
from terrine_models.storage.manifests import (
    IDENTITIES_FILE,
    SETTINGS_CONFIG,
    FeatureSpec,
    Partition,
    StoreError,
    save_tensors,
    versions,
)
from terrine_models.teachers.heads import load_feature_map
from terrine_models.teachers.manifests import (
    EnsemblePlan,
    Manifest,
    StoredEnsemble,
    TeacherKind,
    Voting,
    VotingLimits,
    check_shapes,
    save_manifest,
    teacher_kind,
)
from terrine_models.teachers.people import People
from terrine_models.teachers.shards import check_encoding, check_new, unit_count
from terrine_protocol.files import new_directory

RADIUS_FILE = "radius.safetensors"
RECORDS_FILE = "teachers-00000.safetensors"
MAX_COORDINATES = 4096
# In whole numbers: rounded it is shorter than 3,344, so a product of two and half the square of one
# stay below 2 ** 24, up to which float32 holds every whole number. So sums are exact in whatever
# order they are added.
MAX_POINT_LENGTH = 3300
# Inputs mapped at a time: always as many, as products round by their size, and what one person's
# records round to must not depend on others'.
BATCH_INPUTS = 128
# Records of one person mapped at a time.
PERSON_BATCH_RECORDS = 8
# Records compared at a time: what that computes with stays in a processor's cache.
BLOCK_RECORDS = 4096
# Units within the radius of a query.
DEFAULT_NEAR = 240
IMAGE_COORDINATES = 96
TABLE_COORDINATES = 512
# Length of an image's coordinates on the public graph, beside its components, of length 1. On
# MNIST's training images, 240 of 50,000 near each: 97.6 % of the pluralities right without these
# coordinates, 98.0 % with them, 97.9 % where they are of length 1.
GRAPH_COORDINATE_NORM = 0.5
# Public rows that are asked about, and that stand for private ones.
STAND_INS = 2000
# Public points, at least, by which it is judged how far people near a query are exhausted.
MIN_JUDGED_POINTS = 20
Points = NDArray[np.int16]


@record(frozen=True)
class ShadowPoints:
    """Public points near B queries, as if they were records of S people. Anyone may see it.

    `weights`: uint8 [B, S], how many records of each are within the radius, 255 at most.
    `near_wider`: uint8 [B, S], the same within the radius or, if those are more, among the
    `MIN_JUDGED_POINTS` nearest.
    """

    weights: NDArray[np.uint8]
    near_wider: NDArray[np.uint8]


@dataclass(frozen=True, config=SETTINGS_CONFIG)
class NeighbourSettings:
    """Records that vote for what lies near them on a public map: nothing is trained."""

    near: Annotated[
        int,
        Field(
            ge=1,
            description="How many people, by public rows, a query asks: for a smaller ε, more.",
        ),
    ] = DEFAULT_NEAR
    width: Annotated[
        int | None,
        Field(ge=3, le=512, description="Coordinates, at most: 96, or of tables 512."),
    ] = None
    backbone: Annotated[
        Path | None,
        Field(
            description="An ONNX model [batch, …] → [batch, D] whose embeddings are the features. "
            "It must be public: nobody's private records may have trained it."
        ),
    ] = None

    kind = "neighbours"

    def feature_map(self, data: Dataset, public: PublicData) -> FeatureMap:
        """The map on which distances are measured: fitted on `public` alone."""
        images, many = len(data.spec.shape) > 1, len(data.classes) >= MANY_CLASSES
        backbone = None if self.backbone is None else backbones().declare(self.backbone, data.spec)
        if backbone is None:
            check_channels_last(data.spec)
        discriminant = (
            images and many and backbone is None and len(public.inputs) >= MIN_GRAPH_POINTS
        )
        return public_features(
            data.spec,
            public,
            self.width or (IMAGE_COORDINATES if images or backbone else TABLE_COORDINATES),
            "discriminant" if discriminant else "graph",
            backbone=backbone,
        )


@teacher_kind
class NeighbourTeachers(TeacherKind):
    """Neighbours, as the manifest describes them. A teacher is a unit: a record, or a person."""

    kind: Literal["neighbours"] = "neighbours"
    features: FeatureSpec
    near: Annotated[int, Field(ge=1)]
    """Units within a query's radius, as public rows forecast."""
    rank: Annotated[int, Field(ge=1)]
    """Which of a query's nearest public points is at the radius."""
    points: Annotated[int, Field(ge=1)]
    """Public points among which it is found."""
    by_person: bool = False
    """Whether it is known whose each is; otherwise each counts as one person's only row."""
    scale: Annotated[float, Field(gt=0)]
    """Whole numbers for a coordinate of 1, by public points alone."""
    edition: Annotated[int, Field(ge=1)] = 1
    """How many times people left or came, and one."""
    steps: Literal[1] = 1
    """The largest weight of a record: it votes, or does not."""
    divisible = False

    @model_validator(mode="before")
    @classmethod
    def _without_obsolete_fields(cls, fields: Any) -> Any:
        # `added`: keyed digests of files, which earlier versions wrote. Nothing reads it.
        if isinstance(fields, dict):
            return {name: value for name, value in fields.items() if name != "added"}
        return fields

    def check(self, plan: EnsemblePlan) -> None:
        """Raise ValueError unless each unit is a teacher."""
        super().check(plan)
        if plan.teachers != plan.units:
            raise ValueError("of neighbours, each unit is a teacher")
        if self.rank > self.points:
            raise ValueError("the radius reaches beyond the public points")

    def check_files(self, manifest: Manifest) -> None:
        """Raise ValueError unless there are records, and public points for the radius."""
        super().check_files(manifest)
        if RADIUS_FILE not in manifest.files or manifest.teacher_files != [RECORDS_FILE]:
            raise ValueError(f"neighbours have the files {RECORDS_FILE} and {RADIUS_FILE}")

    def voting(self, stored: StoredEnsemble, limits: VotingLimits, device: str) -> Voting:
        """Verify the files, and raise StoreError: votes like these need accounts."""
        NeighbourEnsemble.load(stored.directory)
        raise StoreError(
            f"{stored.directory} holds neighbours. They vote in a project, where each has an "
            "account of what its votes have revealed, and nowhere else."
        )

    def inspect(self, directory: Path, manifest: Manifest) -> None:
        """Load it whole, and check a backbone in a process of its own."""
        NeighbourEnsemble.load(directory)
        if self.features.backbone is not None:
            backbones().check(directory, self.features.backbone, manifest.input)

    @property
    def matches_prior(self) -> bool:
        """A record votes for its own class, whichever that is."""
        return True

    def described(self) -> dict[str, str]:
        """The radius."""
        return {
            "radius": f"to the public point of rank {self.rank} among {self.points:,}: some "
            f"{self.near} units"
        }


class NeighbourEnsemble:
    """Private records that vote near them. Make one with `load`; threads may share it."""

    def __init__(
        self,
        manifest: Manifest,
        features: FeatureMap,
        public: Points,
        points: Points,
        labels: NDArray[np.int16],
        units: NDArray[np.int32],
        since: NDArray[np.int32] | None = None,
        owners: NDArray[np.int32] | None = None,
    ) -> None:
        """`public` [P, d] and `points` [N, d]: whole coordinates, as `whole` makes them."""
        kind = manifest.teacher
        if not isinstance(kind, NeighbourTeachers):
            raise StoreError(f"{manifest.name} holds {kind.kind}, not neighbours.")
        self.manifest, self.features, self.public = manifest, features, public
        self.labels: NDArray[np.int16] = labels
        """int16[N], the class of each record; those of a unit are in order."""
        self.units: NDArray[np.int32] = units
        """int32[N], the slot of each record: from 0 up, non-decreasing."""
        self.since: NDArray[np.int32] = np.ones_like(units) if since is None else since
        """int32[N], the edition in which each record came."""
        each = np.arange(len(public), dtype=np.int32)
        self.owners: NDArray[np.int32] = each if owners is None else owners
        """int32[P], whose public points are: people 0 to S − 1, in order; S = P: a point each."""
        self._kind = kind
        self._among, self._records = _prepare_points(public), _prepare_points(points)

    @property
    def shadows(self) -> int:
        """How many people the public points stand for, with accounts that anyone may see."""
        return int(self.owners[-1]) + 1

    @property
    def by_person(self) -> bool:
        """Whether it is known whose public points are."""
        return self._kind.by_person

    @classmethod
    def load(cls, directory: Path) -> NeighbourEnsemble:
        """Load an ensemble; every byte is verified against the manifest. Raises StoreError."""
        stored = StoredEnsemble.open(directory)
        directory, manifest, kind = stored.directory, stored.manifest, stored.manifest.teacher
        if not isinstance(kind, NeighbourTeachers):
            raise StoreError(f"{directory} holds {kind.kind}, not neighbours.")
        features = load_feature_map(stored, kind.features)
        public, records = stored.tensors(RADIUS_FILE), stored.tensors(RECORDS_FILE)
        width, n = kind.features.width, len(records.get("labels", ()))
        shapes = {"points": (kind.points, width), "owners": (kind.points,)}
        check_shapes(str(directory / RADIUS_FILE), public, shapes)
        expected = {"points": (n, width), "labels": (n,), "units": (n,), "since": (n,)}
        check_shapes(str(directory / RECORDS_FILE), records, expected)
        points, labels, units, since = (records[name].numpy() for name in expected)
        owners = public["owners"].numpy()
        types = (np.int16, np.int16, np.int16, np.int32, np.int32, np.int32)
        arrays = (public["points"].numpy(), points, labels, units, since, owners)
        if any(each.dtype != dtype for each, dtype in zip(arrays, types, strict=True)):
            raise StoreError(f"{directory} holds neighbours whose numbers are of other types.")
        if not all(_fits_float32(each) for each in arrays[:2]):
            raise StoreError(f"{directory} holds points that are too long to be compared exactly.")
        if not n or not _is_sorted(units, labels, manifest):
            raise StoreError(
                f"{directory / RECORDS_FILE}: records are not sorted by unit and class."
            )
        if (np.diff(owners, prepend=-1) > 1).any() or (np.diff(owners, prepend=0) < 0).any():
            raise StoreError(f"{directory / RADIUS_FILE}: public points are not sorted by person.")
        public_points = public["points"].numpy()
        return cls(manifest, features, public_points, points, labels, units, since, owners)

    def weights(self, x: NDArray[np.generic]) -> NDArray[np.uint8]:
        """What each record adds to its class, uint8 [B, N] from 0 to `steps`, on [B, *shape].

        One pass over all records, which takes as long whatever they are. Beside the result it takes
        BLOCK_RECORDS · B · 4 bytes for each processor. Raises ValueError when shape or dtype do not
        match.
        """
        return self.near(self.to_points(x))

    def to_points(self, x: NDArray[np.generic]) -> Points:
        """Whole coordinates [B, d] of inputs [B, *shape], by the public map. Errors alike."""
        spec = self.manifest.input
        if x.shape[1:] != spec.shape or x.dtype != spec.dtype:
            raise ValueError(
                f"Inputs are {x.dtype} {list(x.shape)}, expected {spec.dtype} "
                f"[B, {', '.join(map(str, spec.shape))}]."
            )
        return quantize(coordinates(self.features, x), self._kind.scale)

    def near(self, points: Points) -> NDArray[np.uint8]:
        """The same as `weights`, of queries with whole coordinates [B, d]."""
        queries, (radius,) = self._radii(points, self._kind.rank)
        return _within(queries, radius, self._records)

    def public_neighbours(self, points: Points) -> ShadowPoints:
        """Which public points are near such queries: no record is looked at."""
        rank, around = self._kind.rank, min(MIN_JUDGED_POINTS, len(self.public))
        if around <= rank:
            queries, (radius,) = self._radii(points, rank)
            found = self._count_by_person(_within(queries, radius, self._among))
            return ShadowPoints(found, found)
        queries, (radius, wider) = self._radii(points, rank, around)
        near, nearest = (_within(queries, each, self._among) for each in (radius, wider))
        return ShadowPoints(self._count_by_person(near), self._count_by_person(nearest))

    def _count_by_person(self, near: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """How many public points of each person are near, uint8 [B, S], of each point [B, P]."""
        if self.shadows == len(self.public):
            return near
        return points_per_person(near, self.owners)

    def _radii(self, points: Points, *ranks: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Queries [B, d + 1] as they are compared, and how far public points of these ranks are.

        A radius is [B, 1], for each rank, in ascending order.
        """
        queries = torch.ones(len(points), points.shape[1] + 1)
        queries[:, :-1] = torch.from_numpy(points)
        places = torch.tensor(ranks) - 1

        def least(block: torch.Tensor) -> torch.Tensor:
            return (block @ self._among).topk(ranks[-1], 1).values[:, places]

        with torch.inference_mode():
            if not len(points):
                return queries, [torch.empty(0, 1) for _ in ranks]
            found = torch.cat(side_by_side(least, torch.split(queries, 32)))
            return queries, [found[:, [place]] for place in range(len(ranks))]


def _within(
    queries: torch.Tensor, radius: torch.Tensor, records: torch.Tensor
) -> NDArray[np.uint8]:
    """Whether each record [d + 1, N] lies within the radius of each query, uint8 [B, N]."""
    count = records.shape[1]
    found = np.empty((len(queries), count), dtype=np.uint8)
    near = torch.from_numpy(found).view(torch.bool)

    def compare(start: int) -> None:
        some = slice(start, min(start + BLOCK_RECORDS, count))
        torch.ge(queries @ records[:, some], radius, out=near[:, some])

    with torch.inference_mode():
        if len(queries):
            side_by_side(compare, range(0, count, BLOCK_RECORDS))
    return found


def points_per_person(near: NDArray[np.uint8], owners: NDArray[np.int32]) -> NDArray[np.uint8]:
    """How many points of each person are near, 255 at most: uint8 [B, S] of [B, P], in order."""
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    counts = np.add.reduceat(near, starts, axis=1, dtype=np.int64)
    return np.minimum(counts, 255).astype(np.uint8)


def _prepare_points(points: Points) -> torch.Tensor:
    """[d + 1, N] of points [N, d]: a product with (x, 1) is less by |x − z|² / 2 than |x|² / 2."""
    squares = (points.astype(np.int64) ** 2).sum(1)
    found = torch.empty(points.shape[1] + 1, len(points))
    found[:-1] = torch.from_numpy(points).T
    found[-1] = torch.from_numpy(-(squares // 2))
    return found


def coordinates(
    features: FeatureMap,
    x: NDArray[np.generic],
    together: int = BATCH_INPUTS,
    starts: Sequence[int] | None = None,
) -> NDArray[np.float32]:
    """Coordinates [B, d] of inputs [B, *shape], `together` at a time, by a backbone one at a time.

    So no row's depend on another row (docs/privacy/neighbours.md). `starts`: where blocks of up to
    so many begin, if they are not all full.
    """
    starts = range(0, len(x), together) if starts is None else starts
    features, components = features.to("cpu"), features.spec.components
    between = features.tensors.get("between")
    found = np.empty((len(x), features.spec.width), np.float32)

    def locate(block: tuple[int, int]) -> None:
        start, end = block
        rows = x[start:end]
        with torch.inference_mode():
            known = features.of_block(torch.tensor(rows), together)
            if between is not None:
                known = F.normalize(known * confidence_weights(between), dim=1)
            elif features.spec.coordinates:
                along = GRAPH_COORDINATE_NORM * F.normalize(known[:, components:], dim=1)
                known = torch.cat([known[:, :components], along], 1)
        found[start : start + len(rows)] = known[: len(rows)].numpy()

    side_by_side(locate, pairwise([*starts, len(x)]))
    return found


def quantize(points: NDArray[np.float32], scale: float) -> Points:
    """Points [B, d] in whole numbers; those that are longer than MAX_POINT_LENGTH are shortened to
    it."""
    scaled = np.nan_to_num(points.astype(np.float64) * scale, posinf=0.0, neginf=0.0)
    length = np.sqrt((scaled**2).sum(1, keepdims=True))
    found: Points = np.rint(
        scaled * (MAX_POINT_LENGTH / np.maximum(length, MAX_POINT_LENGTH))
    ).astype(np.int16)
    return found


def _fits_float32(points: Points) -> bool:
    """Whether no sum of products can exceed what float32 holds."""
    squares = (points.astype(np.int64) ** 2).sum(1)
    return bool(1.5 * squares.max(initial=0) < 2**24)


def _is_sorted(units: NDArray[np.int32], labels: NDArray[np.int16], manifest: Manifest) -> bool:
    classes = len(manifest.classes)
    key = units.astype(np.int64) * classes + labels
    fits = labels.min() >= 0 and labels.max() < classes
    fits = fits and units.min() >= 0 and units.max() < manifest.units
    return bool(fits and (np.diff(key) >= 0).all())


def build(
    data: Dataset,
    out: Path,
    *,
    name: str,
    public: PublicData,
    settings: NeighbourSettings | None = None,
    key: bytes | None = None,
) -> Manifest:
    """Place the records of `data` on a public map, and save them in directory `out`.

    The map, the radii and the scale follow from `public` alone. The records are copied, as
    coordinates and labels: the directory is as private as they are. Rows of `public`
    may be among them, as stand-ins are: commands look with `PublicData.count_private_rows` before.
    `key`: the owner's, under which people who have names (a group) can be found again; without one
    nobody can be forgotten, or added. Raises TrainingError (`out` exists) and DataError (public
    data unfit, a schema fitted on the private data).
    """
    out, settings = Path(out), settings or NeighbourSettings()
    check_new(out)
    check_encoding(data)
    public.check_fits(data.spec)
    features = settings.feature_map(data, public)
    if features.spec.width > MAX_COORDINATES:
        raise DataError(f"Points have more than {MAX_COORDINATES} coordinates: set a width.")
    sample, owners = _sample_public(public, by_person=data.groups is not None)
    among = coordinates(features, public.inputs[sample])
    scale = MAX_POINT_LENGTH / max(
        float(np.sqrt((among.astype(np.float64) ** 2).sum(1)).max()), 1e-9
    )
    units = unit_count(data)
    rank = min(len(among), max(1, round(settings.near * len(among) / units)))
    kind = NeighbourTeachers(
        features=features.spec,
        near=settings.near,
        rank=rank,
        points=len(among),
        by_person=public.groups is not None and data.groups is not None,
        scale=scale,
    )
    partition = None
    if data.groups is not None:  # a person may have several records, and has a name
        partition = Partition(
            recipe="groups", seed=0, group_column=data.group_column, smallest=1, largest=1
        )
    with new_directory(out) as work:
        placed = place_records(data, features, scale)
        records = {name: torch.from_numpy(values) for name, values in placed.items()}
        records["since"] = torch.ones(len(records["units"]), dtype=torch.int32)
        points = {
            "points": torch.from_numpy(quantize(among, scale)),
            "owners": torch.from_numpy(owners),
        }
        files = {
            RECORDS_FILE: save_tensors(work / RECORDS_FILE, records),
            RADIUS_FILE: save_tensors(work / RADIUS_FILE, points),
        }
        if key is not None and data.groups is not None:
            files[IDENTITIES_FILE] = People.of(data, key).save(work, key)
        files |= features.save(work)
        manifest = Manifest(
            name=name,
            teacher=kind,
            input=data.spec,
            encoding=data.encoding,
            image=data.image,
            classes=data.classes,
            teachers=units,
            units=units,
            partition=partition,
            versions=versions(),
            files=dict(sorted(files.items())),
        )
        save_manifest(work, manifest)
    return manifest


def _sample_public(
    public: PublicData, *, by_person: bool
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Public rows to find radii among, `MAX_GRAPH_POINTS` at most, and whose each is.

    `by_person`: whole people, if it is known whose rows are; else each row is a person.
    """
    rows, groups = len(public.inputs), public.groups
    if groups is None or not by_person:
        chosen = np.arange(0, rows, -(-rows // MAX_GRAPH_POINTS))
        return chosen, np.arange(len(chosen), dtype=np.int32)
    people, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(0).permutation(len(people))  # rows may be sorted by anything
    fits = order[np.cumsum(sizes[order]) <= MAX_GRAPH_POINTS]
    chosen = np.flatnonzero(np.isin(group, fits if len(fits) else order[:1]))[:MAX_GRAPH_POINTS]
    chosen = chosen[np.argsort(group[chosen], kind="stable")]
    return chosen, np.unique(group[chosen], return_inverse=True)[1].astype(np.int32)


def place_records(
    data: Dataset, features: FeatureMap, scale: float
) -> dict[str, NDArray[np.generic]]:
    """Points, labels and units of the records, sorted by unit and label.

    A record without a place is left out: it votes for nothing.
    """
    units = np.arange(len(data)) if data.groups is None else data.groups
    order = np.lexsort((data.labels, units))
    inputs, labels, units = data.inputs[order], data.labels[order], units[order]
    if data.groups is None:
        found = coordinates(features, inputs)  # a record's place in a block is its number
    else:
        firsts = np.flatnonzero(np.diff(units, prepend=-1)).tolist()
        starts = [
            start
            for own in pairwise([*firsts, len(units)])
            for start in range(*own, PERSON_BATCH_RECORDS)
        ]
        found = coordinates(features, inputs, PERSON_BATCH_RECORDS, starts)
    placed = np.isfinite(found).all(1)
    return {
        "points": quantize(found[placed], scale),
        "labels": labels[placed].astype(np.int16),
        "units": units[placed].astype(np.int32),
    }


@record(frozen=True)
class NeighbourForecast:
    """What the public rows of an ensemble, as stand-ins for its units, forecast. It is public."""

    units: int
    near: float
    """Units near a query, on average."""
    spent: NDArray[np.float64] = field(repr=False)
    """‖v‖² of each stand-in in a query, on average."""
    people: bool
    """Whether a stand-in is a person with all records, where units are; else it is one row."""
    group_column: str | None
    """What names the people, if units are people."""


def forecast_from_public(ensemble: NeighbourEnsemble, norm: int = 1) -> NeighbourForecast:
    """Ask about some of the public points, and let others stand for private units.

    `norm`: how long a unit's vote is at most. Records of a stand-in count as of one class, as
    public rows have none: no vote is longer.
    """
    every = -(-ensemble.shadows // (2 * STAND_INS))
    kept, place = ensemble.owners % every == 0, ensemble.owners // every
    asked, own = kept & (place % 2 == 0), kept & (place % 2 == 1)
    own = own if own.any() else asked
    manifest, partition = ensemble.manifest, ensemble.manifest.partition
    stand_ins = NeighbourEnsemble(
        manifest,
        ensemble.features,
        ensemble.public,
        ensemble.public[own],
        np.zeros(own.sum(), np.int16),
        np.arange(own.sum(), dtype=np.int32),
    )
    near = points_per_person(stand_ins.near(ensemble.public[asked]), place[own])
    return NeighbourForecast(
        units=manifest.units,
        near=float(((near > 0).mean(1) * manifest.units).mean()),
        spent=(np.minimum(near, norm).astype(np.float64) ** 2).mean(0),
        people=ensemble.by_person,
        group_column=None if partition is None else partition.group_column or "group",
    )
