"""Public feature maps: data-independent, or fitted on data that its owner declared public.

Nothing in this module is fitted on a private data set. A map can only be fitted on `PublicData`,
and the only way to make one is to give public data a name: `PublicData.declare`.
Teachers' heads on top of such a map are private; the map is not, and so it costs no privacy.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError, Dataset, InputSpec, find_outside, row_digests
from terrine_models.data.workers import side_by_side
from terrine_models.features import linear
from terrine_models.features.backbones import Backbone
from terrine_models.features.linear import (
    DISCRIMINANT_COMPONENTS,
    DISTORTED_COPIES,
    choose_landmarks,
    discriminant,
    embed,
    extend,
    nystrom,
)
from terrine_models.features.pictures import (
    Base,
    View,
    best_view,
    coloured_gradients,
    colours_width,
    distorted,
    draws_for,
    oriented_gradients,
    prepare,
)
from terrine_models.features.texts import (
    fit_texts,
    other_columns,
    text_blocks,
    text_features,
    text_shapes,
)
from terrine_models.storage.manifests import (
    BACKBONE_FILE,
    FEATURES_FILE,
    FeatureSpec,
    save_tensors,
)
from terrine_protocol.files import write_atomically
from terrine_protocol.tables import PublicSource

Kind = Literal["graph", "fine_graph", "nystrom", "discriminant"]
"""What is fitted on public images: components and graph coordinates, a kernel's landmarks, or
directions in which classes differ (`linear.discriminant`)."""
KERNEL_COMPONENTS = 150
"""Principal components among which a kernel measures distances."""
FINE_GRAPH_POWER = 0.5
"""Power of `linear.embed` for a fine graph. Chosen, with its width, on Fashion-MNIST's training
images: 100 coordinates with this power 84.1 % right at ε = 1, 50 with a power of 1 83.7 %."""
MIN_SIDE = 4
"""Pixels of a grey picture's side from which gradients say more than the pixels themselves."""
MIN_COLOURED_SIDE = 8
"""The same for pictures with several channels."""
COLOUR_WEIGHT = 5.0
"""Of colours against gradients, where there are no public pictures to judge by."""
COLOUR_SHARES = (1.0, 0.5, 0.0)
"""How much colours may count, where labels or answers tell: 0 if they only distract. Else they
count most: where colours are classes, they are all that is worth knowing."""
MAX_JUDGED_PICTURES = 2000
"""Public pictures by which views are judged, at most."""
MAX_COLOUR_WEIGHT = 100.0
"""Of colours against gradients, at most: what varies less than that makes up for is noise."""
BLOCK_IMAGES = 128
"""Images turned into features at a time: few enough to stay in a processor's cache."""
MAX_BINNED_ROWS = 100_000
"""The most public rows of a table on which bins are fitted: of more, every second, third, ….
Quantiles of that many are near enough, and bins take several times the memory of the columns."""
MAX_TEXT_ROWS = 20_000
"""The same of rows with texts, whose principal components are sought."""
TEXT_VARIANCE_SHARE = 0.5
"""Variance of a text beside that of all other columns: it may say more than they, or nothing."""
MAX_SHARED = 0.01
"""Share of the public rows that may be private ones as well, however seldom rows repeat."""
MIN_GRAPH_POINTS, MAX_GRAPH_POINTS = 200, 10_000
"""The fewest public inputs for which there is a graph, and the most that it contains."""


@dataclass(frozen=True)
class PublicData:
    """Inputs [N, *shape] that anyone may see. Make one with `declare`."""

    inputs: NDArray[Any]
    source: PublicSource
    groups: NDArray[np.int64] | None = None
    """[N], the number of each row's person; None if that is not known."""
    labels: NDArray[np.int64] | None = None
    """[N], the class of each row; None if that is not known."""

    @classmethod
    def declare(
        cls,
        name: str,
        inputs: NDArray[np.generic],
        groups: NDArray[np.int64] | None = None,
        labels: NDArray[np.int64] | None = None,
    ) -> PublicData:
        """State that `inputs` [N, *shape] are public, under a name that the manifest will show.

        `groups`: whose they are, [N], if people have several. `labels`: their classes, [N], also
        public: of colour pictures they show how much colours matter.
        """
        if not name.strip():
            raise DataError("Public data needs a name, so that its use can be checked later.")
        if inputs.ndim < 2 or len(inputs) == 0:
            raise DataError(f"Public data {name} holds no inputs; its shape is {inputs.shape}.")
        for what, each in (("group", groups), ("label", labels)):
            if each is not None and each.shape != (len(inputs),):
                raise DataError(f"Public data {name}: expected one {what} for each of its rows.")
        inputs = np.ascontiguousarray(inputs)
        digest = hashlib.sha256(f"{inputs.dtype.str}{inputs.shape}".encode())
        digest.update(inputs.data)
        source = PublicSource(name=name, sha256=digest.hexdigest(), records=len(inputs))
        return cls(inputs, source, groups, labels)

    def check_fits(self, spec: InputSpec) -> None:
        """Raise DataError unless these are inputs such as the private ones."""
        name, inputs = self.source.name, self.inputs
        if inputs.shape[1:] != spec.shape:
            raise DataError(
                f"Public data {name} has inputs of shape {inputs.shape[1:]}, the private data of "
                f"shape {spec.shape}."
            )
        if inputs.dtype != spec.dtype:
            raise DataError(
                f"Public data {name} has dtype {inputs.dtype}, the private data {spec.dtype}."
            )
        if len(find_outside(inputs, spec)):
            raise DataError(
                f"Public data {name} has values outside the declared range [{spec.low:g}, "
                f"{spec.high:g}]."
            )

    def count_private_rows(self, private: Dataset) -> int:
        """Return how many of these rows are private ones as well, for the owner's eyes alone.

        Raises DataError if they are too many for chance: most likely the private file was given as
        the public one. By chance come 1 %, or as many as would if each had twice as many private
        rows like it as the repetitions suggest among the public rows, or among the private ones:
        of few public rows, which hardly repeat, the latter tell more. Where rows repeat so often
        that all are expected among the private ones, a mix-up looks like chance.
        """
        self.check_fits(private.spec)
        own, others = row_digests(self.inputs), row_digests(private.inputs)
        shared = int(np.isin(own, others).sum())
        alike = max(
            _repetitions(own) / len(own) * len(private) / len(own),
            _repetitions(others) / len(private),
        )
        if shared > len(own) * max(MAX_SHARED, -np.expm1(-2 * alike)):
            raise DataError(
                f"{shared:,} of {len(own):,} rows of the public data {self.source.name} are rows "
                "of the private data, more than by chance: was the private file given as the "
                "public one? Nothing may be fitted on private rows: use data that is really "
                "public, or none."
            )
        return shared


class FeatureMap:
    """Turns inputs [B, *shape] into features [B, width]."""

    def __init__(
        self,
        spec: FeatureSpec,
        inputs: InputSpec,
        tensors: dict[str, torch.Tensor],
        backbone: Backbone | None = None,
    ) -> None:
        self.spec = spec
        self.inputs = inputs
        self.backbone = backbone
        self.tensors = tensors
        """`mean` [D] and `basis` [D, components] of a projection; of a graph also `points`
        [N, components], `scales` [N] and `coordinates` [N, coordinates]; of nystrom also
        `landmarks` [L, components] and `whitening` [L, L]; of discriminant also `between`
        [components]; of bins, `linear.Bins`, and of texts those of `texts.fit_texts`."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Features [B, width] in float32 of inputs [B, *shape] in any dtype."""
        return self.of_base(_base(self.spec.base, self.backbone, x, self.inputs))

    def of_block(self, x: torch.Tensor, size: int) -> torch.Tensor:
        """Features [size, width] of inputs [B, *shape] and of rows of zeros after them.

        Products round by their size, so what one person's records round to depends on no other's
        if the size is always the same. A backbone is asked about the B alone: it has no blocks.
        """
        if self.backbone is not None:
            return self.of_base(_filled_up(self.backbone(x), size))
        return self(_filled_up(x, size))

    def of_base(self, base: torch.Tensor, *, skip: int = 0) -> torch.Tensor:
        """Features [B, width] of the data-independent ones [B, D] (`base_features`).

        `skip` as in `linear.extend`.
        """
        if self.spec.projection == "none":
            return base
        if self.spec.projection == "nystrom":
            points = (base - self.tensors["mean"]) @ self.tensors["basis"]
            gamma = self.spec.gamma or 0.0
            return nystrom(points, self.tensors["landmarks"], self.tensors["whitening"], gamma)
        if self.spec.projection == "discriminant":
            return (base - self.tensors["mean"]) @ self.tensors["basis"]
        if self.spec.base == "bins":
            return _binned(base, self.tensors)
        if self.spec.base == "texts":
            found = text_features(base, self.inputs, self.tensors)
            if self.spec.steps + self.spec.ranks:
                others = base[:, other_columns(self.inputs).to(base.device)]
                found = torch.cat([_binned(others, self.tensors), found], 1)
            if not self.spec.points:
                return found
            return torch.cat([found, self._along_graph(F.normalize(found, dim=1), skip)], 1)
        points = _project(base, self.tensors)
        if self.spec.projection != "graph":
            return points
        return torch.cat([points, self._along_graph(points, skip)], 1)

    def _along_graph(self, points: torch.Tensor, skip: int) -> torch.Tensor:
        """Coordinates of points of unit length on the public graph."""
        known = (self.tensors[name] for name in ("points", "scales", "coordinates"))
        return extend(points, *known, skip=skip)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes that the tensors must have."""
        if self.spec.projection == "none":
            return {}
        spec = self.spec
        if spec.base == "bins":
            return linear.shapes(spec.steps, spec.ranks, spec.components)
        if spec.base == "texts":
            known = spec.texts or ()
            bins = linear.shapes(spec.steps, spec.ranks, spec.components - sum(known))
            others = bins if spec.steps + spec.ranks else {}
            graph = self._graph_shapes() if spec.points else {}
            return others | text_shapes(self.inputs, known) | graph
        size = spec.backbone.width if spec.backbone else _base_size(spec.base, self.inputs)
        shapes: dict[str, tuple[int, ...]] = {"mean": (size,), "basis": (size, spec.components)}
        if spec.projection == "graph":
            shapes |= self._graph_shapes()
        if spec.projection == "discriminant":
            shapes["between"] = (spec.components,)
        if spec.projection == "nystrom":
            shapes["landmarks"] = (spec.landmarks, spec.components)
            shapes["whitening"] = (spec.landmarks, spec.landmarks)
        return shapes

    def _graph_shapes(self) -> dict[str, tuple[int, ...]]:
        spec = self.spec
        return {
            "points": (spec.points, spec.components),
            "scales": (spec.points,),
            "coordinates": (spec.points, spec.coordinates),
        }

    def save(self, directory: Path) -> dict[str, str]:
        """Save the tensors and the backbone, if there are any; return the SHA-256 of each file."""
        files = {}
        if self.tensors:
            files[FEATURES_FILE] = save_tensors(directory / FEATURES_FILE, self.tensors)
        if self.backbone is not None:
            write_atomically(directory / BACKBONE_FILE, self.backbone.data)
            files[BACKBONE_FILE] = self.backbone.source.sha256
        return files

    def to(self, device: str) -> FeatureMap:
        """The same map on another device."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return FeatureMap(self.spec, self.inputs, moved, self.backbone)


def _binned(x: torch.Tensor, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Features [B, d] of the columns [B, c] of rows, by bins."""
    return (linear.Bins(tensors)(x) - tensors["mean"]) @ tensors["basis"]


def _repetitions(digests: NDArray[Any]) -> int:
    """How many ordered pairs of rows are equal."""
    counts = np.unique(digests, return_counts=True)[1]
    return int((counts * (counts - 1)).sum())


def _filled_up(rows: torch.Tensor, size: int) -> torch.Tensor:
    return torch.cat([rows, rows.new_zeros((size - len(rows), *rows.shape[1:]))])


def _base(
    base: Base, backbone: Backbone | None, x: torch.Tensor, inputs: InputSpec
) -> torch.Tensor:
    return base_features(base, x, inputs) if backbone is None else backbone(x)


def base_features(base: Base, x: torch.Tensor, inputs: InputSpec) -> torch.Tensor:
    """The data-independent part of a map: [B, *shape] to [B, D]. A backbone has its own."""
    return prepared_features(base, prepare(x, inputs))


def prepared_features(base: Base, x: torch.Tensor) -> torch.Tensor:
    """The same of prepared inputs: rows of tables [B, d], or images [B, C, H, W]."""
    if base == "backbone":
        raise ValueError("the features of a backbone need its model")
    if base == "oriented_gradients":
        return oriented_gradients(x.mean(1))
    if base == "coloured_gradients":
        return coloured_gradients(x)
    return x if x.ndim == 2 else x.flatten(1) * 2 - 1


def base_of(inputs: InputSpec) -> Base:
    """Which data-independent features suit such inputs, by their shape alone.

    Rows of tables and pictures of few pixels are taken as they are, other pictures by gradients,
    and those with several channels by gradients and colours.
    """
    if len(inputs.shape) == 1:
        return "identity"
    side, coloured = min(inputs.shape[:2]), math.prod(inputs.shape[2:]) > 1
    if side < (MIN_COLOURED_SIDE if coloured else MIN_SIDE):
        return "identity"
    return "coloured_gradients" if coloured else "oriented_gradients"


def _base_size(base: Base, inputs: InputSpec) -> int:
    return base_features(base, torch.zeros((1, *inputs.shape)), inputs).shape[1]


def check_channels_last(inputs: InputSpec) -> None:
    """Raise DataError for pictures as PyTorch has them, of which gradients would mean nothing."""
    shape = inputs.shape
    if len(shape) == 3 and shape[0] in (1, 3, 4) and min(shape[1:]) > max(shape[0], 3):
        wanted = "x[:, 0]" if shape[0] == 1 else "x.transpose(0, 2, 3, 1)"
        raise DataError(
            f"Inputs of shape {list(shape)} have the channels of their pictures first; expected "
            f"[height, width] or [height, width, channels]. Save {wanted}, of private and public "
            "inputs."
        )


def public_features(
    inputs: InputSpec,
    public: PublicData | None,
    width: int,
    kind: Kind = "graph",
    *,
    whiten: bool = False,
    backbone: Backbone | None = None,
    view: View | None = None,
) -> FeatureMap:
    """The feature map for inputs of this kind, with at most `width` numbers per input.

    Images get oriented gradients, and of several channels colours too (`base_of`). Small images are
    like tables. Where public data has labels, they decide how much colours count, and whether
    larger images, too, are better taken as tables (`ViewPoints`); or `view` says it. With
    public data features of images are reduced to principal components, and a third of the width are
    coordinates on its neighbourhood graph; or, with the kind `nystrom`, they are compared with
    `width` public landmarks by a Gaussian kernel. A `fine_graph` has twice as
    many coordinates, beyond the width, and the less smooth ones count for more. With the kind
    `discriminant` they are the directions in which classes seem to differ. Without public data
    oriented gradients are reduced by a random orthogonal projection to four times the width: it is
    data-independent and needs more dimensions. Tables get bins at the quantiles of public rows
    (`linear.fit_bins`, which explains `whiten`). Without public rows, or with too few, tables keep
    their encoded columns. Of texts, principal components of n-grams and embeddings stand beside the
    other columns' bins (`texts.py`), and with the kind `fine_graph` coordinates of their graph;
    without public rows, a random projection of all.
    With a backbone, its embeddings replace oriented gradients, of images and of tables; without
    public data they are kept as they are. `nystrom`, which students have, is for public images and
    no backbone. Raises DataError for `discriminant` without public images or with a backbone.
    """
    if public is not None and backbone is None:
        view = view or _view(public, inputs)
    if kind == "discriminant":
        return _discriminant(inputs, public, width, backbone, view)
    if backbone is not None and public is None:
        spec = FeatureSpec(
            base="backbone",
            projection="none",
            components=backbone.source.width,
            backbone=backbone.source,
        )
        return FeatureMap(spec, inputs, {}, backbone)
    if backbone is not None:
        view = View("backbone")
    view = view or View(base_of(inputs))
    name = view.base
    if name == "identity" and (kind != "nystrom" or public is None):
        if public is None or inputs.texts is None:
            return _of_tables(inputs, public, width, whiten)
        known = _of_texts(inputs, public, width, whiten)
        return _with_graph(known, public, width) if kind == "fine_graph" else known
    if public is None:
        return _random_projection(inputs, 4 * width)
    every = -(-len(public.inputs) // MAX_GRAPH_POINTS)
    blocks = [torch.tensor(block) for block in _blocks(public.inputs[::every])]
    base = torch.cat(side_by_side(lambda block: _base(name, backbone, block, inputs), blocks))
    weights = _weights(view, base, inputs)
    if kind == "nystrom":
        return _landmarks(inputs, name, base, weights, public.source, width)
    tensors = _principal_components(base, width - width // 3, weights)
    tensors["basis"] = tensors["basis"] * tensors.pop("deviations") ** -0.5
    spec = FeatureSpec(
        base=name,
        projection="pca",
        components=tensors["basis"].shape[1],
        fitted_on=public.source,
        backbone=None if backbone is None else backbone.source,
    )
    if len(base) >= MIN_GRAPH_POINTS:
        points = _project(base, tensors)
        fine = kind == "fine_graph"
        count, power = (2 * (width // 3), FINE_GRAPH_POWER) if fine else (width // 3, 1.0)
        coordinates, scales = embed(points, count, power)
        tensors |= {"points": points, "scales": scales, "coordinates": coordinates}
        spec = spec.model_copy(
            update={"projection": "graph", "coordinates": count, "points": len(points)}
        )
    return FeatureMap(spec, inputs, tensors, backbone)


def _discriminant(
    inputs: InputSpec,
    public: PublicData | None,
    width: int,
    backbone: Backbone | None,
    view: View | None,
) -> FeatureMap:
    """The map to at most `width` directions in which public images of other classes differ."""
    pictures = public is not None and len(inputs.shape) > 1 and backbone is None
    if public is None or view is None or not pictures or len(public.inputs) < MIN_GRAPH_POINTS:
        raise DataError(
            f"Discriminant features need at least {MIN_GRAPH_POINTS} public images, and no "
            "backbone."
        )
    every = -(-len(public.inputs) // MAX_GRAPH_POINTS)
    plain = torch.from_numpy(public.inputs[::every])
    rows, name = torch.split(torch.arange(len(plain)), BLOCK_IMAGES), view.base
    base = torch.cat(side_by_side(lambda own: base_features(name, plain[own], inputs), rows))
    tensors = _principal_components(base, DISCRIMINANT_COMPONENTS, _weights(view, base, inputs))
    del tensors["deviations"]

    def components(of: torch.Tensor) -> torch.Tensor:
        return (of - tensors["mean"]) @ tensors["basis"]

    def changed(copy: int) -> torch.Tensor:
        draws = draws_for(0, copy, len(plain))

        def compute(own: torch.Tensor) -> torch.Tensor:
            bent = distorted(plain[own].float(), draws[own], inputs)
            return components(base_features(name, bent, inputs))

        return torch.cat(side_by_side(compute, rows))

    directions, between = discriminant(
        components(base), [changed(i) for i in range(DISTORTED_COPIES)], width
    )
    tensors["basis"] = (tensors["basis"] @ directions).contiguous()
    spec = FeatureSpec(
        base=name, projection="discriminant", components=len(between), fitted_on=public.source
    )
    return FeatureMap(spec, inputs, tensors | {"between": between})


def _landmarks(
    inputs: InputSpec,
    name: Base,
    base: torch.Tensor,
    weights: torch.Tensor | None,
    source: PublicSource,
    width: int,
) -> FeatureMap:
    """The map to similarities with at most `width` of the public points."""
    tensors = _principal_components(base, KERNEL_COMPONENTS, weights)
    del tensors["deviations"]
    points = (base - tensors["mean"]) @ tensors["basis"]
    found, gamma = choose_landmarks(points, width)
    spec = FeatureSpec(
        base=name,
        projection="nystrom",
        components=points.shape[1],
        landmarks=len(found["landmarks"]),
        gamma=gamma,
        fitted_on=source,
    )
    return FeatureMap(spec, inputs, tensors | found)


def _of_tables(
    inputs: InputSpec, public: PublicData | None, width: int, whiten: bool
) -> FeatureMap:
    if inputs.texts is not None and public is None:
        return _random_projection(inputs, 4 * width)
    if public is not None:
        every = -(-len(public.inputs) // MAX_BINNED_ROWS)
        rows = base_features("bins", torch.from_numpy(public.inputs[::every]), inputs)
        tensors = linear.fit_bins(rows, width, whiten=whiten)
        if tensors is None and len(inputs.shape) > 1:  # pixels are many: too few rows for steps
            tensors = linear.fit_bins(rows, width, whiten=whiten, ranks_alone=True)
        if tensors is not None:
            spec = FeatureSpec(
                base="bins",
                projection="whitened" if whiten else "scaled",
                components=tensors["basis"].shape[1],
                steps=len(tensors["steps"]),
                ranks=len(tensors["knots"]),
                fitted_on=public.source,
            )
            return FeatureMap(spec, inputs, tensors)
    spec = FeatureSpec(base="identity", projection="none", components=math.prod(inputs.shape))
    return FeatureMap(spec, inputs, {})


def _of_texts(inputs: InputSpec, public: PublicData, width: int, whiten: bool) -> FeatureMap:
    """The map of rows with texts: components of these, beside bins of all other columns.

    A text varies half as much as all other columns together (`TEXT_VARIANCE_SHARE`).
    """
    every = -(-len(public.inputs) // MAX_TEXT_ROWS)
    rows = base_features("texts", torch.from_numpy(public.inputs[::every]), inputs)
    columns = rows[:, other_columns(inputs)]
    bins = linear.fit_bins(columns, width, whiten=whiten)
    if bins is None:  # few rows: as much of the columns as there is
        bins = linear.fit_bins(columns, width, whiten=whiten, ranks_alone=True, rows_per_bin=1)
    length = 1.0
    if bins is not None:
        variance = float(_binned(columns, bins).var(0, correction=0).sum())
        length = (TEXT_VARIANCE_SHARE * variance) ** 0.5
    texts = fit_texts(rows, inputs, width, length, _principal_components)
    known = tuple(texts[f"basis_{number}"].shape[1] for number in range(len(text_blocks(inputs))))
    spec = FeatureSpec(
        base="texts",
        projection="whitened" if whiten else "scaled",
        components=sum(known) + (0 if bins is None else bins["basis"].shape[1]),
        steps=0 if bins is None else len(bins["steps"]),
        ranks=0 if bins is None else len(bins["knots"]),
        texts=known,
        fitted_on=public.source,
    )
    return FeatureMap(spec, inputs, (bins or {}) | texts)


def _with_graph(known: FeatureMap, public: PublicData, width: int) -> FeatureMap:
    """A map of texts with a fine graph besides, of a third of `width` coordinates."""
    rows = torch.from_numpy(public.inputs[:: -(-len(public.inputs) // MAX_GRAPH_POINTS)])
    if len(rows) < MIN_GRAPH_POINTS:
        return known
    points = F.normalize(known(rows), dim=1)
    coordinates, scales = embed(points, width // 3, FINE_GRAPH_POWER)
    spec = known.spec.model_copy(update={"coordinates": width // 3, "points": len(points)})
    graph = {"points": points, "scales": scales, "coordinates": coordinates}
    return FeatureMap(spec, known.inputs, known.tensors | graph)


def views_of(inputs: InputSpec, x: NDArray[Any]) -> tuple[View, ...]:
    """Return the ways to see public inputs x [N, *shape], the usual one first.

    Pictures whose channels are all the same are grey.
    """
    pixels, channels = View("identity"), x.reshape(*x.shape[:3], -1) if x.ndim > 2 else None
    grey = channels is not None and bool((channels == channels[..., :1]).all())
    like = inputs.model_copy(update={"shape": inputs.shape[:2]}) if grey else inputs
    usual = base_of(like)
    if usual == "identity":
        return (pixels,)
    if usual == "oriented_gradients":
        return View(usual), pixels
    shares = (View(usual, share) for share in COLOUR_SHARES)
    return (*shares, View("oriented_gradients"), pixels)


@dataclass(frozen=True, eq=False)
class ViewPoints:
    """Features of some public inputs in each view, by which views are compared."""

    rows: NDArray[np.int64]
    """[K], which of the inputs."""
    points: dict[View, torch.Tensor]
    """[K, C] each."""

    @classmethod
    def of(cls, inputs: InputSpec, x: NDArray[Any], rows: NDArray[np.int64]) -> ViewPoints:
        """Compute them for at most MAX_JUDGED_PICTURES of the `rows` of x [N, *shape], unless there
        is only one view."""
        rows, views = rows[:: -(-len(rows) // MAX_JUDGED_PICTURES)], views_of(inputs, x)
        if len(views) < 2 or len(rows) < MIN_GRAPH_POINTS:
            return cls(rows, {views[0]: torch.zeros(0)})
        some = torch.from_numpy(np.ascontiguousarray(x[rows]))
        blocks, points = torch.split(some, BLOCK_IMAGES), dict[View, torch.Tensor]()
        bases = dict[Base, torch.Tensor]()
        for view in views:
            name = view.base
            if name not in bases:
                known = side_by_side(partial(base_features, name, inputs=inputs), blocks)
                bases[name] = torch.cat(known)
            weights = _weights(view, bases[name], inputs)
            tensors = _principal_components(bases[name], KERNEL_COMPONENTS, weights)
            found = (bases[name] - tensors["mean"]) @ tensors["basis"]
            points[view] = found if name == "identity" else F.normalize(found, dim=1)
        return cls(rows, points)

    def best(self, shares: NDArray[np.float64], known: NDArray[np.bool_]) -> View:
        """Return the view that tells most of shares [N, m], of the rows that are `known` [N]."""
        usual, own = next(iter(self.points)), known[self.rows]
        if len(self.points) < 2 or np.count_nonzero(own) < MIN_GRAPH_POINTS:
            return usual
        points = {view: each[torch.from_numpy(own)] for view, each in self.points.items()}
        return best_view(points, torch.from_numpy(shares[self.rows[own]]))


def _view(public: PublicData, inputs: InputSpec) -> View:
    """Return how public inputs are seen best, if their labels tell."""
    if public.labels is None:
        return views_of(inputs, public.inputs)[0]
    points = ViewPoints.of(inputs, public.inputs, np.arange(len(public.inputs)))
    shares = np.eye(int(public.labels.max()) + 1)[public.labels]
    return points.best(shares, np.ones(len(shares), dtype=bool))


def _weights(view: View, base: torch.Tensor, inputs: InputSpec) -> torch.Tensor | None:
    """Weights [D] of the features of public pictures [N, D], None where all are of one kind.

    Colours vary as much as gradients, in sum, times what the view says.
    """
    if view.base != "coloured_gradients":
        return None
    colours = colours_width(inputs.shape[2])
    variances = base.var(0, correction=0)
    own, others = variances[-colours:].sum(), variances[:-colours].sum()
    alike = (others / own.clamp(min=1e-12)).sqrt().clamp(max=MAX_COLOUR_WEIGHT)
    weights = torch.ones(base.shape[1])
    weights[-colours:] = alike * view.colours
    return weights


def _principal_components(
    base: torch.Tensor, width: int, weights: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Mean [D], basis [D, C] and the components' standard deviations [C].

    The basis is orthonormal, or of features times `weights` [D].
    """
    mean = base.mean(0)
    centred = base - mean
    if weights is not None:
        centred *= weights
    keep = min(width, *base.shape)
    # Subspace iteration (Halko, Martinsson and Tropp, SIAM Review 2011): exact to far below what
    # matters to a teacher, and many times faster than a full decomposition.
    subspace = _random_directions(base.shape[1], min(keep + 20, *base.shape), seed=0)
    for _ in range(6):
        subspace, _ = torch.linalg.qr(centred.T @ (centred @ subspace))
    _, deviations, directions = torch.linalg.svd(centred @ subspace, full_matrices=False)
    variances = deviations[:keep] ** 2 / len(base)
    basis = subspace @ directions[:keep].T
    return {
        "mean": mean,
        "basis": (basis if weights is None else weights[:, None] * basis).contiguous(),
        "deviations": variances.clamp(min=1e-9).sqrt(),
    }


def _project(base: torch.Tensor, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.normalize((base - tensors["mean"]) @ tensors["basis"], dim=1)


def _blocks(inputs: NDArray[Any]) -> list[NDArray[Any]]:
    return np.array_split(inputs, -(-len(inputs) // BLOCK_IMAGES))


def _random_projection(inputs: InputSpec, width: int, seed: int = 0) -> FeatureMap:
    base = base_of(inputs)
    size = _base_size(base, inputs)
    basis = _random_directions(size, min(width, size), seed)
    spec = FeatureSpec(base=base, projection="random", components=basis.shape[1], seed=seed)
    if base == "coloured_gradients":
        basis[-colours_width(inputs.shape[2]) :] *= COLOUR_WEIGHT
    return FeatureMap(spec, inputs, {"mean": torch.zeros(size), "basis": basis})


def _random_directions(size: int, count: int, seed: int) -> torch.Tensor:
    """An orthonormal basis [size, count] of a uniformly random subspace."""
    random = np.random.Generator(np.random.Philox(seed))
    gaussian = torch.from_numpy(random.standard_normal((size, count), dtype=np.float32))
    basis: torch.Tensor = torch.linalg.qr(gaussian)[0]
    return basis
