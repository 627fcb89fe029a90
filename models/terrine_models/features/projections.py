"""What is fitted on public inputs makes features of data-independent ones: a class for each way.

Each says which tensors it has, by name and shape, which are stored with the teachers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from terrine_models.data.arrays import InputSpec
from terrine_models.features import linear
from terrine_models.features.arrays import Array, like, namespace, unit_length
from terrine_models.features.bases import base_size
from terrine_models.features.components import project
from terrine_models.features.texts import other_columns, text_features, text_shapes
from terrine_models.storage.manifests import FeatureSpec

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Projection(ABC):
    """One way to make features of data-independent ones."""

    spec: FeatureSpec
    inputs: InputSpec
    tensors: Mapping[str, Array]

    @abstractmethod
    def apply(self, base: Array, skip: int) -> Array:
        """Features [B, width] of data-independent ones [B, D]. `skip` as in `linear.extend`."""

    @abstractmethod
    def shapes(self) -> Shapes:
        """The shapes that the tensors must have."""


class Unchanged(Projection):
    """The data-independent features themselves."""

    def apply(self, base: Array, skip: int) -> Array:
        """As they are."""
        return base

    def shapes(self) -> Shapes:
        """There are no tensors."""
        return {}


class Directions(Projection):
    """Directions in which classes differ: `mean` [D], `basis` [D, components], and how much they
    do, `between` [components]."""

    def apply(self, base: Array, skip: int) -> Array:
        """Places along the directions."""
        return project(base, self.tensors)

    def shapes(self) -> Shapes:
        """Those of a basis, and one number for each direction."""
        return self._basis_shapes() | {"between": (self.spec.components,)}

    def _basis_shapes(self) -> Shapes:
        spec = self.spec
        size = spec.backbone.width if spec.backbone else base_size(spec.base, self.inputs)
        return {"mean": (size,), "basis": (size, spec.components)}


class Components(Directions):
    """Principal components, or random ones, of unit length: `mean` [D] and `basis`
    [D, components]."""

    def apply(self, base: Array, skip: int) -> Array:
        """Points of unit length."""
        return unit_length(project(base, self.tensors), 1)

    def shapes(self) -> Shapes:
        """Those of a basis."""
        return self._basis_shapes()


class Graph(Components):
    """Principal components, and beside them coordinates on a graph of public points: `points`
    [N, components], `scales` [N] and `coordinates` [N, coordinates]."""

    def apply(self, base: Array, skip: int) -> Array:
        """Points of unit length, and their coordinates."""
        points = super().apply(base, skip)
        return namespace(base).concatenate([points, _along_graph(points, self.tensors, skip)], 1)

    def shapes(self) -> Shapes:
        """Those of a basis and of a graph."""
        return self._basis_shapes() | _graph_shapes(self.spec)


class Landmarks(Directions):
    """Similarities with public points by a Gaussian kernel: `landmarks` [L, components] and
    `whitening` [L, L] beside a basis."""

    def apply(self, base: Array, skip: int) -> Array:
        """Similarities, whitened."""
        landmarks, whitening = (self.tensors[name] for name in ("landmarks", "whitening"))
        points = project(base, self.tensors)
        return linear.nystrom(points, landmarks, whitening, self.spec.gamma or 0.0)

    def shapes(self) -> Shapes:
        """Those of a basis and of the landmarks."""
        spec = self.spec
        landmarks = {"landmarks": (spec.landmarks, spec.components)}
        return self._basis_shapes() | landmarks | {"whitening": (spec.landmarks, spec.landmarks)}


class Bins(Projection):
    """Columns of a table, cut at quantiles of public rows: the tensors of `linear.Bins`."""

    def apply(self, base: Array, skip: int) -> Array:
        """Steps and ranks, projected."""
        return project(linear.Bins(self.tensors)(base), self.tensors)

    def shapes(self) -> Shapes:
        """Those of `linear.Bins`."""
        return linear.shapes(self.spec.steps, self.spec.ranks, self.spec.components)


class Texts(Projection):
    """Components of texts (`texts.fit_texts`), beside bins of all other columns, and perhaps a
    graph of both."""

    def apply(self, base: Array, skip: int) -> Array:
        """Bins, components of texts, and coordinates."""
        found = text_features(base, self.inputs, self.tensors)
        if self.spec.steps + self.spec.ranks:
            others = base[:, like(other_columns(self.inputs), base)]
            binned = project(linear.Bins(self.tensors)(others), self.tensors)
            found = namespace(base).concatenate([binned, found], 1)
        if not self.spec.points:
            return found
        along = _along_graph(unit_length(found, 1), self.tensors, skip)
        return namespace(base).concatenate([found, along], 1)

    def shapes(self) -> Shapes:
        """Those of bins, of texts and of a graph, where there are such."""
        spec, known = self.spec, self.spec.texts or ()
        bins = linear.shapes(spec.steps, spec.ranks, spec.components - sum(known))
        others = bins if spec.steps + spec.ranks else {}
        return (
            others | text_shapes(self.inputs, known) | (_graph_shapes(spec) if spec.points else {})
        )


# By the name that a manifest has for it; bins and texts by their base.
PROJECTIONS: dict[str, type[Projection]] = {
    "none": Unchanged,
    "random": Components,
    "pca": Components,
    "graph": Graph,
    "nystrom": Landmarks,
    "discriminant": Directions,
    "bins": Bins,
    "texts": Texts,
}


def projection_of(spec: FeatureSpec, inputs: InputSpec, tensors: Mapping[str, Array]) -> Projection:
    """The projection that a manifest describes, with its tensors."""
    named = spec.base if spec.projection in ("scaled", "whitened") else spec.projection
    return PROJECTIONS[named](spec, inputs, tensors)


def _along_graph(points: Array, tensors: Mapping[str, Array], skip: int) -> Array:
    """Coordinates of points of unit length on the public graph."""
    known = (tensors[name] for name in ("points", "scales", "coordinates"))
    return linear.extend(points, *known, skip=skip)


def _graph_shapes(spec: FeatureSpec) -> Shapes:
    return {
        "points": (spec.points, spec.components),
        "scales": (spec.points,),
        "coordinates": (spec.points, spec.coordinates),
    }
