"""As what pictures are taken: gradients, colours or pixels, whichever tells more of the labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.features.arrays import unit_length
from terrine_models.features.bases import BLOCK_IMAGES, Base, base_features, base_of
from terrine_models.features.components import KERNEL_COMPONENTS, principal_components, project
from terrine_models.features.gradients import colours_width
from terrine_models.features.public import PublicData

Floats = NDArray[np.float32]
MIN_LEAD_STANDARD_ERRORS = 2.0
# Share of the answers on which pixels must agree more than gradients do: gradients gain from
# distorted copies as well, which a plain regression does not see.
MIN_LEAD_OF_PIXELS = 0.02
# Of a regression, relative to the variance of all features together.
PENALTIES = tuple(10.0**power for power in range(-5, 2))


@dataclass(frozen=True)
class View:
    """What pictures are taken as."""

    base: Base
    colours: float = 1.0
    """How much colours count, of what makes them vary as much as gradients."""


def best_view(points: Mapping[View, NDArray[Any]], shares: NDArray[np.float64]) -> View:
    """Return the view whose features [N, C] tell most of shares [N, m], which may be noisy.

    The first is the usual one: another must be better by two standard errors, and pixels by two
    points of agreement as well.
    """
    usual, *others = points
    best, said = usual, predict_held_out(points[usual], shares)
    for view in others:
        own = predict_held_out(points[view], shares)
        gains = ((said - shares) ** 2 - (own - shares) ** 2).sum(1)
        error = float(gains.std(ddof=1)) / len(gains) ** 0.5
        least = MIN_LEAD_OF_PIXELS if view.base == "identity" else 0.0
        clear = float(gains.mean()) > MIN_LEAD_STANDARD_ERRORS * error
        if clear and _agreement(own, shares) - _agreement(said, shares) >= least:
            best, said = view, own
    return best


def predict_held_out(points: NDArray[Any], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what ridge regressions say [N, m] of each row, fitted to all others.

    Of points [N, C] and shares [N, m]; with the penalty for which they are nearest to the shares.
    """
    x = points.astype(np.float64)
    x -= x.mean(axis=0)
    level = shares.mean(axis=0)
    left, values, _ = np.linalg.svd(x, full_matrices=False)
    turned, squares = left.T @ (shares - level), values**2
    best, least = np.broadcast_to(level, shares.shape), math.inf
    for penalty in PENALTIES:
        kept = squares / (squares + penalty * squares.sum())
        fitted = level + left @ (kept[:, None] * turned)
        leverage = np.minimum(left**2 @ kept + 1 / len(x), 1 - 1e-6)
        said = shares - (shares - fitted) / (1 - leverage[:, None])
        missed = float(((said - shares) ** 2).mean())
        if missed < least:
            best, least = said, missed
    return best


def _agreement(said: NDArray[np.float64], shares: NDArray[np.float64]) -> float:
    return float(shares[np.arange(len(shares)), said.argmax(axis=1)].mean())


# How much colours may count, where labels or answers tell: 0 if they only distract. Else they count
# most: where colours are classes, they are all that is worth knowing.
COLOUR_SHARES = (1.0, 0.5, 0.0)
# Public pictures by which views are judged, at most.
MAX_JUDGED_PICTURES = 2000
# Of colours against gradients, at most: what varies less than that makes up for is noise.
MAX_COLOUR_WEIGHT = 100.0
# The fewest public inputs for which there is a graph, and the most that it contains.
MIN_GRAPH_POINTS, MAX_GRAPH_POINTS = 200, 10_000


def views_of(inputs: InputSpec, x: NDArray[Any]) -> tuple[View, ...]:
    """Return the ways to see public inputs x [N, *shape], the usual one first.

    Pictures whose channels are all the same are grey.
    """
    pixels, channels = View("identity"), x.reshape(*x.shape[:3], -1) if x.ndim > 2 else None
    grey = channels is not None and bool((channels == channels[..., :1]).all())
    shown = inputs.model_copy(update={"shape": inputs.shape[:2]}) if grey else inputs
    usual = base_of(shown)
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
    points: dict[View, Floats]
    """[K, C] each."""

    @classmethod
    def of(cls, inputs: InputSpec, x: NDArray[Any], rows: NDArray[np.int64]) -> ViewPoints:
        """Compute them for at most MAX_JUDGED_PICTURES of the `rows` of x [N, *shape], unless there
        is only one view."""
        rows, views = rows[:: -(-len(rows) // MAX_JUDGED_PICTURES)], views_of(inputs, x)
        if len(views) < 2 or len(rows) < MIN_GRAPH_POINTS:
            return cls(rows, {views[0]: np.zeros(0, np.float32)})
        blocks, points = in_blocks(x[rows]), dict[View, Floats]()
        bases = dict[Base, Floats]()
        for view in views:
            name = view.base
            if name not in bases:
                known = side_by_side(partial(base_features, name, inputs=inputs), blocks)
                bases[name] = np.concatenate(known)
            weights = colour_weights(view, bases[name], inputs)
            tensors = principal_components(bases[name], KERNEL_COMPONENTS, weights)
            found = project(bases[name], tensors)
            points[view] = found if name == "identity" else unit_length(found, 1)
        return cls(rows, points)

    def best(self, shares: NDArray[np.float64], known: NDArray[np.bool_]) -> View:
        """Return the view that tells most of shares [N, m], of the rows that are `known` [N]."""
        usual, own = next(iter(self.points)), known[self.rows]
        if len(self.points) < 2 or np.count_nonzero(own) < MIN_GRAPH_POINTS:
            return usual
        points = {view: each[own] for view, each in self.points.items()}
        return best_view(points, shares[self.rows[own]])


def find_view(public: PublicData, inputs: InputSpec) -> View:
    """Return how public inputs are seen best, if their labels tell."""
    if public.labels is None:
        return views_of(inputs, public.inputs)[0]
    points = ViewPoints.of(inputs, public.inputs, np.arange(len(public.inputs)))
    shares = np.eye(int(public.labels.max()) + 1)[public.labels]
    return points.best(shares, np.ones(len(shares), dtype=bool))


def colour_weights(view: View, base: Floats, inputs: InputSpec) -> Floats | None:
    """Weights [D] of the features of public pictures [N, D], None where all are of one kind.

    Colours vary as much as gradients, in sum, times what the view says.
    """
    if view.base != "coloured_gradients":
        return None
    colours = colours_width(inputs.shape[2])
    variances = base.var(axis=0)
    own, others = float(variances[-colours:].sum()), float(variances[:-colours].sum())
    alike = min(math.sqrt(others / max(own, 1e-12)), MAX_COLOUR_WEIGHT)
    weights = np.ones(base.shape[1], np.float32)
    weights[-colours:] = alike * view.colours
    return weights


def in_blocks(rows: NDArray[Any]) -> list[NDArray[Any]]:
    """Rows [N, …] in parts of at most BLOCK_IMAGES."""
    return np.array_split(rows, -(-len(rows) // BLOCK_IMAGES))
