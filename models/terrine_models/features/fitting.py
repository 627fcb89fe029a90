"""Fit a feature map for inputs: data-independent, or on data that its owner declared public.

Nothing in this module is fitted on a private data set. A map can only be fitted on `PublicData`,
and the only way to make one is to give public data a name: `PublicData.declare`.
Teachers' heads on top of such a map are private; the map is not, and so it costs no privacy.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError, InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.features import linear
from terrine_models.features.arrays import unit_length
from terrine_models.features.backbones import Backbone
from terrine_models.features.bases import Base, base_features, base_of, base_size
from terrine_models.features.components import (
    KERNEL_COMPONENTS,
    principal_components,
    project,
    random_directions,
)
from terrine_models.features.distortions import distorted, draws_for
from terrine_models.features.gradients import colours_width
from terrine_models.features.linear import (
    DISCRIMINANT_COMPONENTS,
    DISTORTED_COPIES,
    choose_landmarks,
    discriminant,
    embed,
)
from terrine_models.features.maps import FeatureMap
from terrine_models.features.public import PublicData
from terrine_models.features.texts import fit_texts, other_columns
from terrine_models.features.views import (
    MAX_GRAPH_POINTS,
    MIN_GRAPH_POINTS,
    View,
    colour_weights,
    find_view,
    in_blocks,
)
from terrine_models.storage.manifests import FeatureSpec
from terrine_protocol.schema import PublicSource

Floats = NDArray[np.float32]
# What is fitted on public images: components and graph coordinates, a kernel's landmarks, or
# directions in which classes differ (`linear.discriminant`).
Kind = Literal["graph", "fine_graph", "nystrom", "discriminant"]
# Power of `linear.embed` for a fine graph. Chosen, with its width, on Fashion-MNIST's training
# images: 100 coordinates with this power 84.1 % right at ε = 1, 50 with a power of 1 83.7 %.
FINE_GRAPH_POWER = 0.5
# Of colours against gradients, where there are no public pictures to judge by.
COLOUR_WEIGHT = 5.0
# The most public rows of a table on which bins are fitted: of more, every second, third, ….
# Quantiles of that many are near enough, and bins take several times the memory of the columns.
MAX_BINNED_ROWS = 100_000
# The same of rows with texts, whose principal components are sought.
MAX_TEXT_ROWS = 20_000
# Variance of a text beside that of all other columns: it may say more than they, or nothing.
TEXT_VARIANCE_SHARE = 0.5


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
    their encoded columns. Of texts, principal components of n-grams stand beside the
    other columns' bins (`texts.py`), and with the kind `fine_graph` coordinates of their graph;
    without public rows, a random projection of all.
    With a backbone, its embeddings replace oriented gradients, of images and of tables; without
    public data they are kept as they are. `nystrom`, which students have, is for public images and
    no backbone. Raises DataError for `discriminant` without public images or with a backbone.
    """
    if public is not None and backbone is None:
        view = view or find_view(public, inputs)
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
    blocks = in_blocks(public.inputs[::every])
    compute = partial(base_features, name, inputs=inputs, backbone=backbone)
    base = np.concatenate(side_by_side(compute, blocks))
    weights = colour_weights(view, base, inputs)
    if kind == "nystrom":
        return _landmarks(inputs, name, base, weights, public.source, width)
    tensors = principal_components(base, width - width // 3, weights)
    tensors["basis"] = tensors["basis"] * tensors.pop("deviations") ** -0.5
    spec = FeatureSpec(
        base=name,
        projection="pca",
        components=tensors["basis"].shape[1],
        fitted_on=public.source,
        backbone=None if backbone is None else backbone.source,
    )
    if len(base) >= MIN_GRAPH_POINTS:
        points = unit_length(project(base, tensors), 1)
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
    plain, name = public.inputs[::every], view.base
    rows = in_blocks(np.arange(len(plain)))
    base = np.concatenate(side_by_side(lambda own: base_features(name, plain[own], inputs), rows))
    tensors = principal_components(
        base, DISCRIMINANT_COMPONENTS, colour_weights(view, base, inputs)
    )
    del tensors["deviations"]

    def changed(copy: int) -> Floats:
        draws = draws_for(0, copy, len(plain))

        def compute(own: NDArray[np.int64]) -> Floats:
            bent = distorted(plain[own].astype(np.float32), draws[own], inputs)
            found: Floats = project(base_features(name, bent, inputs), tensors)
            return found

        return np.concatenate(side_by_side(compute, rows))

    directions, between = discriminant(
        project(base, tensors), [changed(i) for i in range(DISTORTED_COPIES)], width
    )
    tensors["basis"] = (tensors["basis"] @ directions).astype(np.float32)
    spec = FeatureSpec(
        base=name, projection="discriminant", components=len(between), fitted_on=public.source
    )
    return FeatureMap(spec, inputs, tensors | {"between": between})


def _landmarks(
    inputs: InputSpec,
    name: Base,
    base: Floats,
    weights: Floats | None,
    source: PublicSource,
    width: int,
) -> FeatureMap:
    """The map to similarities with at most `width` of the public points."""
    tensors = principal_components(base, KERNEL_COMPONENTS, weights)
    del tensors["deviations"]
    points = project(base, tensors)
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
        rows = base_features("bins", public.inputs[::every], inputs)
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
    rows = base_features("texts", public.inputs[::every], inputs)
    columns = rows[:, other_columns(inputs)]
    bins = linear.fit_bins(columns, width, whiten=whiten)
    if bins is None:  # few rows: as much of the columns as there is
        bins = linear.fit_bins(columns, width, whiten=whiten, ranks_alone=True, rows_per_bin=1)
    length = 1.0
    if bins is not None:
        variance = float(project(linear.Bins(bins)(columns), bins).var(0).sum())
        length = (TEXT_VARIANCE_SHARE * variance) ** 0.5
    texts = fit_texts(rows, inputs, width, length, principal_components)
    known = tuple(texts[f"basis_{number}"].shape[1] for number in range(len(inputs.texts or ())))
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
    rows = public.inputs[:: -(-len(public.inputs) // MAX_GRAPH_POINTS)]
    if len(rows) < MIN_GRAPH_POINTS:
        return known
    points = unit_length(known(rows), 1)
    coordinates, scales = embed(points, width // 3, FINE_GRAPH_POWER)
    spec = known.spec.model_copy(update={"coordinates": width // 3, "points": len(points)})
    graph = {"points": points, "scales": scales, "coordinates": coordinates}
    return FeatureMap(spec, known.inputs, known.tensors | graph)


def _random_projection(inputs: InputSpec, width: int) -> FeatureMap:
    base = base_of(inputs)
    size = base_size(base, inputs)
    basis = random_directions(size, min(width, size)).copy()
    spec = FeatureSpec(base=base, projection="random", components=basis.shape[1], seed=0)
    if base == "coloured_gradients":
        basis[-colours_width(inputs.shape[2]) :] *= COLOUR_WEIGHT
    return FeatureMap(spec, inputs, {"mean": np.zeros(size, np.float32), "basis": basis})
