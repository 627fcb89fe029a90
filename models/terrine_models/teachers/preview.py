"""What teachers will see, before they are trained, and how far stand-ins agree on public data.

`Preview` is computed from private records, outside every guarantee: it is for their owner's eyes.
`stand_in` uses labelled public data alone.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import Dataset, row_digests
from terrine_models.features.maps import PublicData
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.manifests import TeacherSettings
from terrine_models.teachers.shards import partition_records, unit_count
from terrine_models.teachers.training import train_ensemble

LEVELS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.0)
PARTS = 5
"""Levels of consensus that stand for the whole in a plan."""


@dataclass(frozen=True)
class AgreementLevel:
    """The inputs on which at least a share of the teachers, and not the next share, agrees."""

    agreement: float
    inputs: int
    right: float | None
    """Share of them on which the plurality is right; None if there are none."""


@dataclass(frozen=True)
class ClassAgreement:
    """The inputs of one class."""

    name: str
    inputs: int
    right: float | None
    votes: float | None
    """Mean share of the teachers that vote for the class."""


@dataclass(frozen=True)
class Agreement:
    """What `votes` and `labels` say about an ensemble."""

    teachers: int
    inputs: int
    mean_teacher: float
    """Mean accuracy of one teacher."""
    plurality: float
    majority: float
    """Share of the most frequent class: what a constant answer is right on."""
    levels: tuple[AgreementLevel, ...]
    classes: tuple[ClassAgreement, ...]
    consensus: tuple[float, ...]
    """Means of the agreement of equal parts of the inputs, highest first, for a plan."""

    @classmethod
    def of(
        cls, votes: NDArray[np.int64], labels: NDArray[np.int64], classes: tuple[str, ...]
    ) -> Agreement:
        """From votes [B, m], B at least 1, and labels [B], indices into `classes`."""
        teachers = int(votes[0].sum())
        shares = votes / teachers
        right = votes.argmax(axis=1) == labels
        top = shares.max(axis=1)
        of_truth = shares[np.arange(len(labels)), labels]
        levels, above = [], np.inf
        for least in LEVELS:
            chosen = (top >= least) & (top < above)
            levels.append(AgreementLevel(least, int(chosen.sum()), _mean(right[chosen])))
            above = least
        parts = np.array_split(np.sort(top)[::-1], min(PARTS, len(top)))
        return cls(
            teachers=teachers,
            inputs=len(labels),
            mean_teacher=float(of_truth.mean()),
            plurality=float(right.mean()),
            majority=float(np.bincount(labels).max() / len(labels)),
            levels=tuple(levels),
            classes=tuple(
                ClassAgreement(
                    name,
                    int((labels == c).sum()),
                    _mean(right[labels == c]),
                    _mean(of_truth[labels == c]),
                )
                for c, name in enumerate(classes)
            ),
            consensus=tuple(float(part.mean()) for part in parts),
        )


def _mean(values: NDArray[Any]) -> float | None:
    return float(np.mean(values)) if len(values) else None


MOST, LEAST = 40, 5
"""Stand-ins that are trained."""
MOST_ROWS = 2000
"""Public rows on which they vote."""
NAME = "stand-in"


@dataclass(frozen=True)
class Preview:
    """What each teacher would be trained on. Private."""

    records: int
    people: int | None
    """None if each record counts as one person."""
    rows: tuple[int, int, int]
    """In the smallest, the middle and the largest shard."""
    classes: tuple[int, int, int]
    """Classes that occur, likewise."""
    lacking: dict[str, int]
    """Teachers without a record of a class, where there are any."""

    @classmethod
    def of(cls, data: Dataset, teachers: int, seed: int) -> Preview:
        """Deal the records as training will. Raises TrainingError, as it does."""
        shards, _ = partition_records(data, teachers, seed)
        seen = np.array([np.bincount(data.labels[s], minlength=len(data.classes)) for s in shards])
        lacking = (seen == 0).sum(axis=0).tolist()
        return cls(
            records=len(data),
            people=None if data.groups is None else unit_count(data),
            rows=_spread(seen.sum(axis=1)),
            classes=_spread((seen > 0).sum(axis=1)),
            lacking={name: n for name, n in zip(data.classes, lacking, strict=True) if n},
        )


@dataclass(frozen=True, eq=False)
class StandInVotes:
    """What teachers of public records say of other public ones."""

    teachers: int
    votes: NDArray[np.int64]
    """[K, m]."""
    asked: NDArray[np.int64]
    """[K], the rows of the public records on which they voted."""
    matches_prior: bool


def stand_in(public: Dataset, rows: int, config: TeacherSettings, seed: int) -> Agreement | None:
    """How far teachers of `rows` public records each agree on other public records.

    None if there are not enough of them: see `stand_ins`.
    """
    found = stand_ins(public, rows, config, seed)
    if found is None:
        return None
    return Agreement.of(found.votes, public.labels[found.asked], public.classes)


def stand_ins(
    public: Dataset, rows: int, config: TeacherSettings, seed: int
) -> StandInVotes | None:
    """Let at most `MOST` teachers of `rows` public records each vote on other public records.

    One half of the records is partitioned among them. They vote on at most `MOST_ROWS` of the other
    half, and the feature map is fitted on those that differ from theirs. None if there are not
    enough records for five teachers, or no others.
    """
    own, others = halves(public, seed)
    teachers = min(MOST, len(own) // rows)
    if teachers < LEAST:
        return None
    return votes_of(public, own[: teachers * rows], others[:MOST_ROWS], teachers, config, seed)


def votes_of(
    public: Dataset,
    own: NDArray[np.int64],
    asked: NDArray[np.int64],
    teachers: int,
    config: TeacherSettings,
    seed: int,
) -> StandInVotes | None:
    """Let teachers, among whom the public records `own` are partitioned, vote on `asked`.

    The feature map is fitted on the asked ones that differ from theirs. None if all are alike.
    """
    sample = Dataset(
        public.inputs[own], public.labels[own], public.classes, public.spec, name=public.name
    )
    inputs = public.inputs[asked]
    unseen = ~np.isin(row_digests(inputs), row_digests(sample.inputs))
    fresh = inputs[unseen]
    if not len(fresh):
        return None
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / NAME
        train_ensemble(
            sample,
            out,
            name=NAME,
            teachers=teachers,
            config=config,
            public=PublicData.declare(NAME, fresh, labels=public.labels[asked][unseen]),
            seed=seed,
        )
        ensemble = Ensemble.load(out, device="cpu")
        votes = ensemble.votes(inputs)
    return StandInVotes(teachers, votes, asked, ensemble.manifest.teacher.matches_prior)


def halves(
    public: Dataset, seed: int, one_in: int = 2
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of half of the records, and of the others: all of a person's in one part.

    `one_in`: of which share the first part has, another than half.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(public))
    if public.groups is None:
        return order[: len(public) // one_in], order[len(public) // one_in :]
    people = unit_count(public)
    first = random.permutation(people) < people // one_in
    return order[first[public.groups[order]]], order[~first[public.groups[order]]]


def _spread(values: np.ndarray) -> tuple[int, int, int]:
    return int(values.min()), int(np.median(values)), int(values.max())
