"""Features of a table's rows: steps at public quantiles, and ranks.

A linear model on these can bend at each step, so a head or a student needs no hidden layer. All of
it is fitted on public rows, without labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

LEVELS = tuple(k / 10 for k in range(1, 10))
"""A step at each decile."""
ABOVE = (0.25, 0.5, 0.75)
"""A column that is at its least value in most rows: steps at these quantiles of the other rows."""
KNOTS = 101
"""Quantiles by which ranks are found."""
NEAR_CONSTANT = 0.005
"""Variance, of columns in [0, 1], below which one is dropped: less than 0.5 % of rows differ."""
MOST, ROWS_EACH = 3000, 10
"""The most steps and ranks, and the least public rows for each of them."""
SHRINK = 3.0
"""Whitening divides by the root of a direction's variance plus this share of the mean variance."""


@dataclass(frozen=True, eq=False)
class Bins:
    """What is computed from the columns of a row, before it is scaled."""

    tensors: dict[str, torch.Tensor]
    """`step_columns` and `steps` [s]: 1 where the column reaches the step. `rank_columns` [r] and
    `knots` [r, KNOTS]: the column's rank among the public rows, from 0 to 1."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[B, columns] to [B, s + r]."""
        reached = x[:, self.tensors["step_columns"].long()] >= self.tensors["steps"]
        ranked = x[:, self.tensors["rank_columns"].long()].T.contiguous()
        knots = self.tensors["knots"].contiguous()
        below = torch.searchsorted(knots, ranked)
        within = torch.searchsorted(knots, ranked, right=True)
        ranks = (below + within).T / (2 * KNOTS)
        return torch.cat([reached.to(x.dtype), ranks.to(x.dtype)], 1)


def fit_bins(
    x: torch.Tensor, width: int, *, whiten: bool, ranks_alone: bool = False
) -> dict[str, torch.Tensor] | None:
    """The map of public rows x [N, columns]: those of `Bins`, `mean` [D] and `basis` [D, d].

    Columns of two values become one step; other columns, several and a rank, or with `ranks_alone`
    nothing but that. Each result is
    divided by the root of its deviation, so that rare ones count neither nothing nor as much as
    common ones. `whiten` turns and scales them further, towards equal variance: then a head need
    not learn from a few rows how columns go together. More than `width` are reduced to that many
    principal components. None if all columns are nearly constant, if there are more than `MOST`,
    or if there are fewer than `ROWS_EACH` rows for each: too few to know what is common.
    """
    steps, ranks = [], []
    for column in range(x.shape[1]):
        values = x[:, column]
        if len(set(values.tolist())) <= 2:
            steps.append((column, float(values.max())))
            continue
        if not ranks_alone:
            steps += [(column, step) for step in _steps(values)]
        ranks.append((column, _quantiles(values, torch.linspace(0, 1, KNOTS))))
    bins = _bins(steps, ranks)
    kept = (bins(x).double().var(0, unbiased=False) >= NEAR_CONSTANT).tolist()
    if not 0 < sum(kept) <= min(MOST, len(x) // ROWS_EACH):
        return None
    bins = _bins(
        [step for step, keep in zip(steps, kept[: len(steps)], strict=True) if keep],
        [rank for rank, keep in zip(ranks, kept[len(steps) :], strict=True) if keep],
    )
    raw = bins(x).double()
    mean = raw.mean(0)
    basis = raw.var(0, unbiased=False).pow(-0.25).diag()
    if whiten or len(basis) > width:
        covariance = ((raw - mean) @ basis).T.cov(correction=0).reshape(basis.shape)
        variances, directions = torch.linalg.eigh(covariance)  # the largest last
        scale = (variances + SHRINK * variances.mean()).rsqrt() if whiten else 1.0
        basis = (basis @ directions * scale)[:, -width:]
    return bins.tensors | {"mean": mean.float(), "basis": basis.float().contiguous()}


def shapes(steps: int, ranks: int, components: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of `fit_bins`."""
    return {
        "step_columns": (steps,),
        "steps": (steps,),
        "rank_columns": (ranks,),
        "knots": (ranks, KNOTS),
        "mean": (steps + ranks,),
        "basis": (steps + ranks, components),
    }


def _steps(values: torch.Tensor) -> list[float]:
    least = values.min()
    rest = values[values > least]
    if 2 * len(rest) >= len(values):
        found = _quantiles(values, torch.tensor(LEVELS))
    else:
        found = torch.cat([rest.min()[None], _quantiles(rest, torch.tensor(ABOVE))])
    return sorted(set(found.tolist()))


def _quantiles(values: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Quantiles that occur: `torch.quantile` refuses large inputs."""
    at = (levels * (len(values) - 1)).round().long()
    return values.sort().values[at]


def _bins(steps: list[tuple[int, float]], ranks: list[tuple[int, torch.Tensor]]) -> Bins:
    knots = [quantiles for _, quantiles in ranks]
    return Bins(
        {
            "step_columns": torch.tensor([column for column, _ in steps], dtype=torch.int32),
            "steps": torch.tensor([step for _, step in steps], dtype=torch.float32),
            "rank_columns": torch.tensor([column for column, _ in ranks], dtype=torch.int32),
            "knots": torch.stack(knots) if knots else torch.zeros(0, KNOTS),
        }
    )
