"""What `label` takes, and what it returns: the answers, as arrays."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from terrine_protocol import Budget, LabelResponse, LabelResult, Outcome
from terrine_protocol.names import show_name

if TYPE_CHECKING:
    import pandas as pd

    from terrine_protocol import ProjectInfo
    from terrine_tables.encoding import Frame


# What `label` takes: numbers [B, …], or rows with named columns.
Inputs: TypeAlias = (
    "npt.ArrayLike | Frame | Mapping[str, Any] | Sequence[Mapping[str, Any]] | os.PathLike[str]"
)


def has_columns(x: Any) -> bool:
    """Whether x names its columns, or is the path of a file, instead of a plain array.

    A data frame, a dictionary of columns, a list of dictionaries with a row each, or a path.
    """
    if isinstance(x, str | os.PathLike | Mapping):
        return True
    if isinstance(x, Sequence):
        return len(x) > 0 and isinstance(x[0], Mapping)
    return hasattr(x, "columns") or hasattr(x, "column_names")


def pandas_index(x: Any) -> Any:
    """Return the index of a data frame of pandas; None for anything else."""
    return getattr(x, "index", None) if hasattr(x, "columns") else None


def encode_columns(
    x: Any, project: ProjectInfo, accept_clipped: bool, *, stacklevel: int = 4
) -> Any:
    """Encode rows with named columns as inputs [N, width], by the project's schema.

    Columns that the schema does not use are left out. What it does not expect is listed in one
    warning, whose place is `stacklevel` calls up. Raises DataError, ClippedError of more than a
    tenth of a column unless that is accepted, and ValueError if the project takes no tables.
    """
    from terrine_tables.encoding import encode_frame, encode_rows, encode_table

    schema = project.ensemble.encoding
    if schema is None:
        if hasattr(x, "to_numpy"):  # a frame of numbers, such as pixels
            return x.to_numpy()
        expected = project.ensemble.input
        raise ValueError(
            f"The project {project.name} takes no tables, but arrays of {expected.dtype} "
            f"[B, {', '.join(map(str, expected.shape))}]; got a {type(x).__name__}."
        )
    notes: list[str] = []
    try:
        if isinstance(x, str | os.PathLike):
            path = Path(x)
            return encode_table(path, schema, notes.append, accept_clipped=accept_clipped)
        encode: Any = encode_rows if isinstance(x, Sequence) else encode_frame
        return encode(x, schema, notes.append, accept_clipped=accept_clipped)
    finally:
        if notes:
            warnings.warn("\n".join(map(show_name, notes)), stacklevel=stacklevel)


def plain_array(x: Any) -> npt.NDArray[Any]:
    """Return an array as it is. Raises ValueError for one that hides values under a mask."""
    if np.ma.is_masked(x):
        raise ValueError(
            "The inputs have masked values, and numbers without one are asked: leave such inputs "
            "out, or fill them in."
        )
    return np.asarray(x)


def as_array(x: Any, project: ProjectInfo, accept_clipped: bool) -> npt.NDArray[Any]:
    """Return any inputs as an array; see `encode_columns`."""
    return plain_array(encode_columns(x, project, accept_clipped) if has_columns(x) else x)


_OF_NO_QUERY = (Outcome.PUBLISHED, Outcome.RELEASED)
# The value in `Labels.noisy_counts` where there is no answer. No count is this small.
NO_COUNT = int(np.iinfo(np.int64).min)


class TrainingSet(NamedTuple):
    """What `fit` of a classifier of scikit-learn takes, in its order.

    X: [K, features], or a data frame of K rows. y: [K], names of classes. sample_weight: [K].
    """

    X: Any
    y: npt.NDArray[np.str_]
    sample_weight: npt.NDArray[np.float64]

    def __repr__(self) -> str:
        return f"<TrainingSet of {len(self.y)} weighted rows>"


@dataclass(frozen=True, eq=False)
class Labels:
    """The answers to B inputs, in their order, and the project's account after them.

    outcomes: [B] strings, one of `Outcome` each, none "published" or "released".
    labels: [B] int64, the class index; -1 where there is none.
    names: [B] strings, the name of the class, or its index if it has no other; None where there is
        no label.
    charges: [B] int64, number of the ledger entry that paid for the answer; -1 where there is none:
        `refused` and `exhausted` cost nothing, nor do labels that follow from released sums.
    replayed: [B] bool, True where an earlier answer was repeated, at no cost.
    noisy_counts: [B, m] int64, the votes for each class and their noise, for `noisy_votes` and
        `neighbours`: they may be negative, or more than the voters. Rows that are not `answered`
        hold `NO_COUNT`. None for other mechanisms.
    noise_sigma: the standard deviation of the noise in each of them, in votes; None for other
        mechanisms.
    classes: [m] names, in the order of `noisy_counts`; None for other mechanisms.
    index: that of the data frame of pandas that was asked; None of other inputs.
    """

    outcomes: npt.NDArray[np.str_]
    labels: npt.NDArray[np.int64]
    names: npt.NDArray[np.object_]
    charges: npt.NDArray[np.int64]
    replayed: npt.NDArray[np.bool_]
    budget: Budget
    noisy_counts: npt.NDArray[np.int64] | None = None
    noise_sigma: float | None = None
    classes: Sequence[str] | None = None
    index: Any = None

    @classmethod
    def gather(
        cls, results: Sequence[LabelResult], last: LabelResponse, index: Any = None
    ) -> Labels:
        """Collect the server's results, one per input, and what the last reply says of them all.

        index: of all inputs that were to be asked, of which these may be the first.
        """
        counts, classes = _stack_counts([result.counts for result in results]), last.classes
        if counts is not None and classes is None:
            classes = [str(label) for label in range(counts.shape[1])]
        return cls(
            outcomes=np.array([result.outcome.value for result in results], dtype=np.str_),
            labels=_to_integers([result.label for result in results]),
            names=np.array([_name_of_class(result) for result in results], dtype=np.object_),
            charges=_to_integers([result.charge for result in results]),
            replayed=np.array([result.replayed for result in results], dtype=np.bool_),
            budget=last.budget,
            noisy_counts=counts,
            noise_sigma=last.noise_sigma,
            classes=classes,
            index=None if index is None else index[: len(results)],
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """[B] bool: where there is a label to learn from, `answered` or `reinforced`."""
        return self.labels >= 0

    @property
    def counts(self) -> dict[Outcome, int]:
        """Number of inputs with each outcome."""
        tally: Counter[Any] = Counter(self.outcomes.tolist())
        outcomes = (outcome for outcome in Outcome if outcome not in _OF_NO_QUERY)
        return {outcome: tally[outcome.value] for outcome in outcomes}

    def to_frame(self) -> pd.DataFrame:
        """Return the answers as a data frame of pandas, a row for each input.

            answers = labels.to_frame().query("weight > 0")
            model.fit(frame.loc[answers.index], answers["label"], answers["weight"])

        The index is that of the data frame that was asked, or the input's number from 0. The
        columns are `outcome`; `label`, the name of the class, None where there is none; `weight`;
        and with noisy counts `count_NAME` of each class, NaN where there is no answer.

        The weight of a label is 1. With noisy counts it is by how many votes the label leads the
        next class, over the mean of all leads: labels that noise decides have little weight, and
        over many similar rows noise cancels out. It is 0 where there is no label.

        Raises ImportError without pandas.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError(
                "labels.to_frame() needs pandas: pip install pandas. Without it, "
                "labels.training_set(x) returns arrays."
            ) from error
        columns = {"outcome": self.outcomes, "label": self.names, "weight": self._weights()}
        if self.noisy_counts is not None:
            counts = np.where(self.noisy_counts == NO_COUNT, np.nan, self.noisy_counts)
            columns |= {f"count_{name}": counts[:, k] for k, name in enumerate(self.classes or ())}
        return pd.DataFrame(columns, index=self.index)

    def _weights(self) -> npt.NDArray[np.float64]:
        """[B], the weight of each label; see `to_frame`."""
        if self.noisy_counts is None:
            return self.answered.astype(np.float64)
        leads, asked = np.zeros(len(self)), self.answered
        ordered = np.sort(self.noisy_counts[asked], axis=1)
        leads[asked] = ordered[:, -1] - ordered[:, -2]
        return leads / leads[asked].mean() if leads.any() else leads

    def training_set(self, x: Any) -> TrainingSet:
        """Return what a classifier learns from: `model.fit(*labels.training_set(x))`.

        x: the inputs that were asked, in their order: an array [B, …], of which each input becomes
            one row, or a data frame.

        With noisy counts, an input comes once for each class that has any, weighted by that count:
        so the model learns shares, and not the largest count, which is often noise. Counts below 0
        have no weight. As the noise is the same for all classes, the class with most votes still
        has most weight, on average. The weights of all inputs have the mean 1. With other answers,
        each input that has a label comes once, with the weight 1.

        Raises ValueError if x is not as long as the answers, or nothing was answered.
        """
        table = has_columns(x)
        inputs = x if table else np.asarray(x)
        if len(inputs) != len(self):
            raise ValueError(
                f"x has {len(inputs)} rows and there are {len(self)} answers: give the inputs that "
                "were asked."
            )
        asked = np.flatnonzero(self.answered)
        if not len(asked):
            raise ValueError("There is nothing to learn from: no input has an answer.")
        if self.noisy_counts is None:
            rows, y, weights = asked, self.names[asked].astype(np.str_), np.ones(len(asked))
        else:
            counts = self.noisy_counts[asked]
            at, which = np.nonzero(counts > 0)
            if not len(at):
                raise ValueError("There is nothing to learn from: no noisy count is above 0.")
            rows, y = asked[at], np.array(self.classes)[which]
            weights = counts[at, which] * (len(asked) / counts[at, which].sum())
        if table:
            return TrainingSet(inputs.take(rows) if hasattr(x, "take") else x[rows], y, weights)
        return TrainingSet(inputs[rows].reshape(len(rows), -1), y, weights)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items() if count)
        return f"<Labels of {len(self)} inputs: {counts}>"


def _stack_counts(given: Sequence[Sequence[int] | None]) -> npt.NDArray[np.int64] | None:
    classes = next((len(counts) for counts in given if counts is not None), None)
    if classes is None:
        return None
    nothing = [NO_COUNT] * classes
    return np.array([nothing if counts is None else counts for counts in given], dtype=np.int64)


def _name_of_class(result: LabelResult) -> str | None:
    """The class's name, which the server leaves out if it is the label itself."""
    return result.label_name or (None if result.label is None else str(result.label))


def _to_integers(values: Sequence[int | None]) -> npt.NDArray[np.int64]:
    return np.array([-1 if value is None else value for value in values], dtype=np.int64)
