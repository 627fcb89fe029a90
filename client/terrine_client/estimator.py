"""A scikit-learn estimator that learns from labels bought of a project.

    bought = buy(client, pool, queries=500)              # spends of the budget; again is free
    classifier = TerrineClassifier(bought).fit(pool)     # buys nothing; there is no y
    classifier.predict(x_new)                            # names of classes

In a checkout: pip install '.[student]'.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from terrine_client._labels import NO_COUNT, Labels, as_array
from terrine_client.client import Client
from terrine_client.distill import (
    Examples,
    check_labels,
    fetch_sums,
    first_probabilities,
    make_answers,
    make_task,
    train_on_sums,
)
from terrine_tables.columns import index_classes

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "TerrineClassifier needs scikit-learn 1.6. In a checkout: pip install '.[student]'. "
        "Without it, `terrine_client.distill` trains the same students."
    ) from error

if TYPE_CHECKING:
    from terrine_models.students.calibration import Threshold
    from terrine_models.sums import ReleasedSums
    from terrine_protocol import ProjectInfo

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class BoughtAnswers:
    """Answers of a project, by input. It holds no token, and never asks for more.

    rows: [K], the rows of the pool that were asked, in that order. labels: the K answers to them.
    digests: SHA-256 of each of these inputs.
    """

    project: ProjectInfo
    rows: npt.NDArray[np.int64]
    labels: Labels
    digests: list[bytes]
    released: ReleasedSums | None = None
    """Of a project of sums: what its students follow from, beside whatever was asked."""

    def __repr__(self) -> str:
        return f"<BoughtAnswers of {self.project.name}: {self.labels!r}>"

    def __deepcopy__(self, memo: object) -> Self:
        """Clones of an estimator share what was bought."""
        return self

    def labels_of(self, x: Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
        """Return the labels [N], -1 where none was bought, and any noisy counts [N, m] of inputs.

        x: [N, …], of the dtype that the project takes.
        """
        at = [self._position.get(digest, -1) for digest in _digest_rows(x)]
        known = np.array(at, dtype=np.int64)
        labels = np.where(known >= 0, self.labels.labels[known], -1)
        counts = self.labels.noisy_counts
        if counts is None:
            return labels, None
        return labels, np.where((labels >= 0)[:, None], counts[known], NO_COUNT)

    @cached_property
    def _position(self) -> dict[bytes, int]:
        return {digest: at for at, digest in enumerate(self.digests)}


def buy(
    client: Client,
    pool: Any,
    *,
    queries: int | None = None,
    random_state: int = 0,
    progress: bool = False,
    accept_clipped: bool = False,
) -> BoughtAnswers:
    """Ask for labels of a pool of public inputs, in one round; what was paid for before is free.

    pool: inputs as `Client.label` takes them.
    queries: the most inputs to ask, chosen to represent the pool; by default all, as far as the
        budget reaches. Interactive projects are sent uniform probabilities.
    random_state: seed of the order in which they are asked.
    accept_clipped: buy although more than a tenth of a table's column is outside the schema's
        range, or missing.

    Raises what `Client.label` raises, and before anything is asked ValueError for inputs that the
    project does not take, or DataError for a table that does not fit its schema.
    """
    from terrine_models.students.selection import asking_order

    if queries is not None and queries < 1:
        raise ValueError(f"queries must be at least 1 or None, got {queries}.")
    project = client.project()
    x = _to_input_dtype(as_array(pool, project, accept_clipped), project)
    rows = asking_order(x, project.ensemble.input, random_state)[:queries]
    probabilities = first_probabilities(project, len(rows))
    labels = client.label(x[rows], probabilities, progress=progress)
    released = fetch_sums(client, project) if project.mechanism.free else None
    return BoughtAnswers(project, rows, labels, _digest_rows(x[rows]), released)


class TerrineClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A student of one project, as scikit-learn has classifiers.

    bought: the answers that it learns from, of `buy`. Clones share it.
    method: how the student is trained, see docs/student.md. `auto` compares several.
    threshold: how shares of two classes become labels: `prior`, `accuracy`, or the probability from
        which the second class is predicted.
    random_state: seed of the training.
    labels: public inputs as X, and names of their classes, from which it may learn too. They cost
        nothing, and nothing protects them: the student may tell them.

    After `fit`: `classes_` (their names, as text, in the project's order), `labels_` (the index of
    the class that was bought for each row of X, -1 where there is none), `student_` (which can be
    saved), `choice_` (what was tried, and why this student), `n_features_in_`, and for data frames
    `feature_names_in_`.

    It asks for nothing: cross-validation and grid searches cost no budget. A pickle holds the
    answers and no token, and can be fitted again elsewhere.
    """

    def __init__(
        self,
        bought: BoughtAnswers | None = None,
        *,
        method: str = "auto",
        threshold: Threshold = "prior",
        random_state: int = 0,
        labels: Examples | None = None,
    ) -> None:
        self.bought = bought
        self.method = method
        self.threshold = threshold
        self.random_state = random_state
        self.labels = labels

    def fit(self, X: Any, y: object = None) -> Self:  # noqa: N803 - scikit-learn's names
        """Learn from X: from its inputs that were bought, with their labels; from others, without.

        X: inputs [N, …] as the project takes them, or for a table a data frame with its columns.
        y: not used: labels come from the project.

        Raises ValueError if no input of X was answered, and DistillError for `labels` that do not
        fit.
        """
        from terrine_models.students.labels import choose_with_labels
        from terrine_models.students.models import Training
        from terrine_models.students.selection import choose

        if self.bought is None:
            raise ValueError(
                "TerrineClassifier has no answers to learn from: "
                "TerrineClassifier(buy(client, pool)).fit(pool)."
            )
        project = self.bought.project
        training = Training(method=self.method, threshold=self.threshold)
        x = _to_input_dtype(self._inputs(X, project, reset=True), project)
        self.labels_, counts = self.bought.labels_of(x)
        self.classes_ = np.array(project.ensemble.classes, dtype=np.str_)
        self._project = project
        task = make_task(x, project, seed=self.random_state)
        public = None
        if self.labels is not None:
            inputs, names = self.labels
            known = _to_input_dtype(self._inputs(inputs, project, reset=False), project)
            public = check_labels((known, names), task, project, None)
        if self.bought.released is not None:
            found = train_on_sums(self.bought.released, task, training, public)
            self.student_, self.choice_ = found
            return self
        if not (self.labels_ >= 0).any():
            raise ValueError(
                f"None of the {len(x)} inputs of X was bought and answered: fit on the pool that "
                "`buy` was given, or on a part of it."
            )
        answers = make_answers(project, self.labels_, counts, self.bought.labels.noise_sigma)
        if public is None:
            made = choose(task, answers, training)
        else:
            made = choose_with_labels(task, answers, public, training)
        self.student_, self.choice_ = made.student, made.choice
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Class probabilities [B, m] of inputs, in the order of `classes_`."""
        check_is_fitted(self)
        return self.student_.probabilities(self._inputs(X, self._project, reset=False))

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Names of classes, [B]: the most probable, or of two classes by the threshold."""
        probabilities = self.predict_proba(X)
        names: Array = self.classes_[self.student_.labels(probabilities)]
        return names

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Accuracy on labels y [B], names of classes as in `classes_`.

        Numbers and booleans are names where classes are named by numbers: 1, 1.0 and True are "1".
        Raises ValueError for a label that is no class.
        """
        check_is_fitted(self)
        try:
            truth = index_classes(y, self._project.ensemble.classes)
        except ValueError as error:
            raise ValueError(
                f"y does not suit the project {self._project.name}: {error}."
            ) from None
        right = self.student_.labels(self.predict_proba(X)) == truth
        return float(np.average(right, weights=sample_weight))

    def _inputs(self, X: Any, project: ProjectInfo, reset: bool) -> Array:  # noqa: N803
        """X as the student takes it; a table's data frame is encoded by the project's schema."""
        schema = project.ensemble.encoding
        if schema is not None and hasattr(X, "columns"):
            if set(schema.features) <= set(X.columns):
                X = X[schema.features]  # noqa: N806 - others are not used, and need not be there
            validate_data(self, X, reset=reset, skip_check_array=True)
            return as_array(X, project, accept_clipped=True)  # nothing is charged for it
        x: Array = validate_data(self, X, reset=reset, allow_nd=True, dtype="numeric")
        return x


def _to_input_dtype(x: Array, project: ProjectInfo) -> Array:
    """Return inputs with the dtype that the project takes. Raises ValueError for others."""
    expected = project.ensemble.input.shape
    if x.shape[1:] != expected:
        raise ValueError(
            f"X has shape {list(x.shape)}; the project {project.name} takes "
            f"[N, {', '.join(map(str, expected))}]."
        )
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise ValueError("X contains NaN or infinity: leave such inputs out, or fill them in.")
    spec = project.ensemble.input
    with np.errstate(invalid="ignore", over="ignore"):
        taken: Array = x.astype(spec.dtype)
    if spec.dtype == "uint8" and not np.array_equal(taken, x):  # it would be paid for as another
        raise ValueError(
            f"X has values that uint8 cannot hold; the project {project.name} takes whole numbers "
            f"from {spec.low:g} to {spec.high:g}. Leave out any scaling."
        )
    return taken


def _digest_rows(x: Array) -> list[bytes]:
    return [hashlib.sha256(np.ascontiguousarray(row).tobytes()).digest() for row in x]
