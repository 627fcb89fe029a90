"""Which features of pictures tell what is asked, judged by public labels or by bought answers.

A regression on each view's features is held out from every row in turn. Noise of answers is alike
for all views, so it biases no comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

Base = Literal["oriented_gradients", "coloured_gradients", "identity", "bins", "backbone"]
MIN_LEAD_STANDARD_ERRORS = 2.0
MIN_LEAD_OF_PIXELS = 0.02
"""Share of the answers on which pixels must agree more than gradients do: gradients gain from
distorted copies as well, which a plain regression does not see."""
PENALTIES = tuple(10.0**power for power in range(-5, 2))
"""Of a regression, relative to the variance of all features together."""


@dataclass(frozen=True)
class View:
    """What pictures are taken as."""

    base: Base
    colours: float = 1.0
    """How much colours count, of what makes them vary as much as gradients."""


def best_view(points: Mapping[View, torch.Tensor], shares: torch.Tensor) -> View:
    """Return the view whose features [N, C] tell most of shares [N, m], which may be noisy.

    The first is the usual one: another must be better by two standard errors, and pixels by two
    points of agreement as well.
    """
    usual, *others = points
    best, said = usual, held_out(points[usual], shares)
    for view in others:
        own = held_out(points[view], shares)
        gains = ((said - shares) ** 2 - (own - shares) ** 2).sum(1)
        clear = float(gains.mean()) > MIN_LEAD_STANDARD_ERRORS * float(
            gains.std() / len(gains) ** 0.5
        )
        least = MIN_LEAD_OF_PIXELS if view.base == "identity" else 0.0
        if clear and _agreement(own, shares) - _agreement(said, shares) >= least:
            best, said = view, own
    return best


def held_out(points: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return what ridge regressions say [N, m] of each row, fitted to all others.

    Of points [N, C] and shares [N, m]; with the penalty for which they are nearest to the shares.
    """
    x = points.double() - points.double().mean(0)
    level = shares.mean(0)
    left, values, _ = torch.linalg.svd(x, full_matrices=False)
    turned = left.T @ (shares - level)
    best, least = level.expand_as(shares), float("inf")
    for penalty in PENALTIES:
        kept = values**2 / (values**2 + penalty * (values**2).sum())
        fitted = level + left @ (kept[:, None] * turned)
        leverage = (left**2 @ kept + 1 / len(x)).clamp(max=1 - 1e-6)
        said = shares - (shares - fitted) / (1 - leverage[:, None])
        missed = float(((said - shares) ** 2).mean())
        if missed < least:
            best, least = said, missed
    return best


def _agreement(said: torch.Tensor, shares: torch.Tensor) -> float:
    return float(shares.gather(1, said.argmax(1, keepdim=True)).mean())
