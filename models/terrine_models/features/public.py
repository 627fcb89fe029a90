"""Data that their owner declared public: all that anything may be fitted on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv

from terrine_models.data.arrays import DataError, Dataset, InputSpec, find_outside, row_digests
from terrine_protocol.schema import PublicSource

# Share of the different public rows that may be private ones as well, however seldom rows repeat.
MAX_SHARED = 0.01
# How often independent public rows may be refused as private ones.
MAX_FALSE_REFUSALS = 1e-4


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
        the public one. One in a hundred different public rows may be private. More are compared
        with what independent rows would be: private as often as those of as many private people are
        others' too, or as public rows repeat. That is refused which would be as rare as
        `MAX_FALSE_REFUSALS`, for the highest such share that the private rows do not rule out, and
        with twice as many private rows like each. Where all are expected among the private ones, a
        mix-up looks like chance.

        Rows are compared as they are encoded: numbers outside a schema's range are those at its
        ends, and count as two different values at most.
        """
        self.check_fits(private.spec)
        own, others = row_digests(self.inputs), row_digests(private.inputs)
        rows, copies = np.unique(own, return_counts=True)
        trials, shared = len(rows), int(np.isin(rows, others).sum())
        by_public = -np.expm1(-(len(private) / len(own)) * (copies - 1))
        by_private = _chance_of_equal(others, private.groups, len(own))
        chance = max(by_private, float(by_public.mean()))
        if shared > MAX_SHARED * trials and (
            betainc(shared, trials - shared + 1, chance) < MAX_FALSE_REFUSALS / 2
        ):
            raise DataError(
                f"{np.isin(own, others).sum():,} of {len(own):,} rows of the public data "
                f"{self.source.name} are rows of the private data, more than by chance: was the "
                "private file given as the public one? Nothing may be fitted on private rows: use "
                "data that is really public, or none."
            )
        return int(np.isin(own, others).sum())


def _chance_of_equal(digests: NDArray[Any], groups: NDArray[np.int64] | None, rows: int) -> float:
    """Return how likely one of `rows` different rows, drawn independently, equals a private one.

    As if they were those of a random part of the private people, compared with all others: where h
    people have a row, a part f has it with probability 1 − (1 − f)^h, and has it alone with f^h.
    Twice as many private rows as there are may be like each; or, if that is more, the upper bound
    of Clopper and Pearson holds, at half of `MAX_FALSE_REFUSALS`. `groups`: whose rows they are.
    """
    which = np.unique(digests, return_inverse=True)[1]
    people = np.arange(len(which)) if groups is None else groups
    holders = np.bincount(np.unique(np.stack([which, people]), axis=1)[0]).astype(np.float64)
    part = min(rows / len(which), 0.5)
    seen = 1 - (1 - part) ** holders
    equal = float(np.clip(1 - (part**holders).sum() / seen.sum(), 0, 1))
    values = len(holders)
    least = max(values * (1 - equal), 1e-9)
    highest = float(betaincinv(values * equal + 1, least, 1 - MAX_FALSE_REFUSALS / 2))
    doubled: float = 1 - (1 - equal) ** (2 / (1 - part))
    return max(highest, doubled)
