"""A scikit-learn estimator whose `fit` buys the labels that it learns from.

    classifier = TerrineClassifier(client, queries=500).fit(X)      # there is no y
    classifier.predict(X_new)                                        # names of classes

Needs the extras student and forest: pip install 'terrine[student,forest]'.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from terrine_client.client import Client
from terrine_client.errors import ConfigurationError

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "TerrineClassifier needs scikit-learn 1.6: pip install 'terrine[student,forest]'. Without "
        "it, `terrine_client.distill` trains the same students."
    ) from error

if TYPE_CHECKING:
    from terrine_models.learning import Asked
    from terrine_protocol import ProjectInfo

Array = npt.NDArray[Any]


class TerrineClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A student of one project, as scikit-learn has classifiers.

    client: connection with a student's token. Clones share it; a pickle leaves it out, and can
        predict but not learn.
    queries: the most inputs that are asked; by default all, as far as the budget reaches.
    method: how the student is trained, see docs/student.md. `auto` compares several.
    steps: training steps of networks; by default what suits the method.
    random_state: seed of the order in which inputs are asked, and of the training.

    After `fit`: `classes_` (their names, in the project's order; whole numbers if they are named
    0, 1, …), `labels_` (what was bought, one
    for each input that was asked, `asked_` being their rows), `student_` (which can be saved),
    `choice_` (what was tried, and why this student), `n_features_in_`, and for data frames
    `feature_names_in_`.

    All inputs are asked in one round. Asking for the same inputs again is free, and so
    is fitting again.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        queries: int | None = None,
        method: Asked = "auto",
        steps: int | None = None,
        random_state: int = 0,
    ) -> None:
        self.client = client
        self.queries = queries
        self.method = method
        self.steps = steps
        self.random_state = random_state

    def fit(self, X: Any, y: object = None) -> Self:  # noqa: N803 - scikit-learn's names
        """Buy labels of X and learn from them.

        X: inputs [N, …] as the project takes them, or for a table a data frame with its columns.
        y: not used: labels come from the project.

        Raises what `Client.label` raises, and ValueError if no input was labelled.
        """
        from terrine_models.answers import student_from_answers
        from terrine_models.choosing import asking_order
        from terrine_models.data import InputSpec
        from terrine_models.learning import Training

        project = self._project()
        training = Training(method=self.method, seed=self.random_state)
        if self.steps is not None:
            training = replace(training, steps=self.steps)
        if self.queries is not None and self.queries < 1:
            raise ValueError(f"queries must be at least 1 or None, got {self.queries}.")
        self._schema = project.ensemble.encoding
        x = self._inputs(X, reset=True)
        expected = tuple(project.ensemble.input.shape)
        if x.shape[1:] != expected:
            raise ValueError(
                f"X has shape {list(x.shape)}; the project {project.name} takes "
                f"[N, {', '.join(map(str, expected))}]."
            )
        spec = InputSpec.model_validate(project.ensemble.input.model_dump())
        x = x.astype(spec.dtype)
        self.asked_ = asking_order(x, spec, self.random_state)[: self.queries]
        self.labels_ = self._ask(x[self.asked_], project)
        self.classes_ = _names(project.ensemble.classes)
        made = student_from_answers(
            x[self.asked_],
            self.labels_.labels,
            teachers=project.ensemble.teachers,
            noisy_counts=self.labels_.noisy_counts,
            noise_sigma=self.labels_.noise_sigma,
            matches_prior=project.ensemble.matches_prior,
            inputs=spec,
            classes=tuple(project.ensemble.classes),
            encoding=self._schema,
            training=training,
        )
        self.student_, self.choice_ = made.student, made.choice
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Class probabilities [B, m] of inputs, in the order of `classes_`."""
        check_is_fitted(self)
        x = self._inputs(X, reset=False)
        return self.student_.probabilities(x)

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Names of the most probable classes, [B]."""
        probabilities = self.predict_proba(X)
        names: Array = self.classes_[probabilities.argmax(axis=1)]
        return names

    def _project(self) -> ProjectInfo:
        if self.client is None:
            raise ConfigurationError(
                "TerrineClassifier needs a client to learn: TerrineClassifier(Client(url, token))."
            )
        return self.client.project()

    def _ask(self, x: Array, project: ProjectInfo) -> Any:
        """In interactive projects, uniform probabilities leave the decision to the teachers."""
        assert self.client is not None  # noqa: S101 - _project has checked it
        if project.mechanism.name != "interactive_gnmax":
            return self.client.label(x)
        classes = len(project.ensemble.classes)
        return self.client.label(x, np.full((len(x), classes), 1 / classes))

    def _inputs(self, X: Any, reset: bool) -> Array:  # noqa: N803
        """X as the student takes it; a table's data frame is encoded by the project's schema."""
        if self._schema is not None and hasattr(X, "columns"):
            from terrine_models.tables import encode_frame

            validate_data(self, X, reset=reset, skip_check_array=True)
            return encode_frame(X, self._schema)
        x: Array = validate_data(self, X, reset=reset, allow_nd=True, dtype="numeric")
        return x

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the client, which holds a token."""
        state: dict[str, Any] = super().__getstate__()
        return {**state, "client": None}


def _names(classes: list[str]) -> Array:
    numbers = np.arange(len(classes))
    return numbers if classes == [str(number) for number in numbers] else np.array(classes)
