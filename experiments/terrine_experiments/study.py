"""What recomputing the papers needs: data, votes of ensembles of every size and kind, and students.

Ensembles are trained by the product, once, and their votes on all public inputs are kept. Whoever
has recorded votes of such teachers may give them instead: 250 networks take hours on one processor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from sklearn.ensemble import RandomForestClassifier

from terrine_experiments.lesson import Lesson, once
from terrine_experiments.owner import trained
from terrine_experiments.papers import Name
from terrine_experiments.setup import Part, numbered, public_part
from terrine_experiments.sources import Source, load
from terrine_models.data.arrays import DataError
from terrine_models.students.answers import Answers
from terrine_models.students.models import Student, Training
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Forests, Heads, Networks
from terrine_models.teachers.manifests import TeacherSettings
from terrine_server.privacy import Mechanism, VoteOutcome

Ints = NDArray[np.int64]

IMAGES_OF_NETWORKS = 12_000
"""Images that each network sees in training, distorted anew each time: half of what 250 teachers
of 240 images do by default, in 100 epochs."""
FEWEST_EPOCHS = 2


@dataclass(frozen=True, eq=False)
class Asked:
    """What came of asking: labels [pool], -1 where there is none, how many queries had which
    outcome, the share of the labels that is right, and the accuracy of a student of them.
    `baselines` [B, m]: what was subtracted from the votes before the test, if anything."""

    labels: Ints
    outcomes: dict[VoteOutcome, int]
    right: float
    accuracy: float
    baselines: Ints | None = None


@dataclass(frozen=True, eq=False)
class Study:
    """Data in directories of `data` by their names, and beside them `NAME_TEACHERS_votes.npz`, if
    votes were recorded. What is made of them is kept in `out`."""

    data: Path
    out: Path
    console: Console
    _sources: dict[str, Source] = field(default_factory=dict)
    _lessons: dict[tuple[str, int], Lesson] = field(default_factory=dict)

    def has(self, name: Name) -> bool:
        """Whether there are files of a data set."""
        return (self.data / name).is_dir()

    def source(self, name: Name) -> Source:
        """A data set. Raises DataError."""
        if name not in self._sources:
            self._sources[name] = load(name, self.data / name)
        return self._sources[name]

    def votes(self, name: Name, kind: str, teachers: int) -> Ints:
        """Vote counts [N, m] of teachers on all test inputs. Raises DataError."""
        source, own = self.source(name), f"{name}-{numbered(kind, teachers)}"
        recorded = self.data / f"{name}_{teachers}_votes.npz"
        if kind != "heads" and recorded.exists():
            with np.load(recorded) as archive:
                if not np.array_equal(archive["labels"], source.test.labels):
                    raise DataError(f"{recorded} is of other inputs than those of {source.title}.")
                return np.asarray(archive["counts"], np.int64)
        kept = self.out / "votes" / f"{own}.npy"
        if not kept.exists():
            source = replace(source, teachers=teachers, config=_settings(source, kind, teachers))
            self.say(f"{source.title}: {teachers:,} {kind} …")
            directory = self.out / "ensembles" / own
            trained(source, public_part(source), directory, 0, self.console)
            kept.parent.mkdir(parents=True, exist_ok=True)
            np.save(kept, Ensemble.load(directory).votes(source.test.inputs))
        return np.asarray(np.load(kept), np.int64)

    def once(self, what: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What was found before, or is found now: noise is drawn once."""
        found: dict[str, Any] = once(self.out / "found" / f"{what}.json", {"what": what}, make)
        return found

    def student(self, name: Name, labels: Ints) -> tuple[Student, float]:
        """A student of the first test inputs, labelled or -1, and its accuracy on the others."""
        lesson = self._lessons.get((name, len(labels)))
        if lesson is None:
            rows = np.arange(len(self.source(name).test))
            part = Part(rows[: len(labels)], rows[len(labels) :])
            lesson = Lesson(self.source(name), part, lambda line: None, self.console)
            self._lessons[name, len(labels)] = lesson
        answers = Answers.of_labels(labels, len(lesson.source.test.classes))
        student = lesson.learn(answers, Training()).student
        return student, lesson.right(student) / len(lesson.part.tested)

    def forest(self, name: Name, labels: Ints) -> float:
        """As `student`, of a random forest: the papers' student of tables."""
        test, asked = self.source(name).test, len(labels)
        rows = np.flatnonzero(labels >= 0)
        student = RandomForestClassifier(100, max_depth=16, random_state=0)
        student.fit(test.inputs[rows], labels[rows])
        return float(student.score(test.inputs[asked:], test.labels[asked:]))

    def ask(
        self,
        name: Name,
        what: str,
        votes: Ints,
        mechanism: Mechanism,
        pool: int,
        before: Ints | None = None,
    ) -> Asked:
        """Ask about the first inputs of `pool`, whose votes [B, m] are given; teach a student.

        `before`: labels [pool] of an earlier round. A student of these has its own probabilities
        compared with the votes of all other inputs, and the last student learns all labels.
        """

        def make() -> dict[str, Any]:
            labels, rows, told = np.full(pool, -1), np.arange(len(votes)), None
            baselines: list[list[int]] | None = None
            if before is not None:
                labels, rows = before.copy(), np.flatnonzero(before < 0)
                student, _ = self.student(name, before)
                told = student.probabilities(self.source(name).test.inputs[rows])
                baselines = mechanism.canonical_baseline(told).tolist()  # type: ignore[attr-defined]
            released = mechanism.release(votes[rows], told)
            labels[rows] = released.labels
            outcomes = dict(Counter(str(outcome) for outcome in released.outcomes))
            table = self.source(name).test.encoding is not None
            accuracy = self.forest(name, labels) if table else self.student(name, labels)[1]
            found = {"labels": labels.tolist(), "outcomes": outcomes, "accuracy": accuracy}
            return {**found, "baselines": baselines}

        self.say(f"{self.source(name).title}: {what}")
        found = self.once(f"{name}-{what}", make)
        labels, baselines = np.array(found["labels"]), found["baselines"]
        return Asked(
            labels,
            {VoteOutcome(each): count for each, count in found["outcomes"].items()},
            self.right(name, labels),
            found["accuracy"],
            None if baselines is None else np.array(baselines),
        )

    def taught(self, name: Name, what: str, labels: Ints) -> float:
        """The accuracy of a student of labels that are the same each time."""
        made = self.once(f"{name}-{what}", lambda: {"accuracy": self.student(name, labels)[1]})
        return float(made["accuracy"])

    def right(self, name: Name, labels: Ints) -> float:
        """The share of the labels, of the first inputs, that are right."""
        known = labels >= 0
        return float((labels == self.source(name).test.labels[: len(labels)])[known].mean())

    def say(self, text: str) -> None:
        """Say what is being done."""
        self.console.print(text, highlight=False, soft_wrap=True)


def _settings(source: Source, kind: str, teachers: int) -> TeacherSettings:
    if kind == "forest":
        return Forests(match_prior=False)
    if kind == "networks":
        records = len(source.private) // teachers
        return Networks(epochs=max(FEWEST_EPOCHS, IMAGES_OF_NETWORKS // records))
    return source.config if isinstance(source.config, Heads) else Heads()
