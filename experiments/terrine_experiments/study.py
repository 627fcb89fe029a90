"""The harness of all experiments: how data are split, teachers and their votes, and students.

All of it is the product's code, called in this process. Teachers are trained once, and their votes
on all public inputs are kept. Whoever has recorded votes of such teachers may give them instead:
250 networks take hours on one processor.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from sklearn.ensemble import RandomForestClassifier
from torch.nn import functional

from terrine_experiments.papers import Name
from terrine_experiments.sources import Source, load
from terrine_models.data.arrays import DataError
from terrine_models.features.bases import prepare
from terrine_models.features.public import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.models import Student, Task, Training
from terrine_models.students.selection import TrainedStudent, choose
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Forests, Heads, Networks, load_manifest
from terrine_models.teachers.manifests import Manifest, TeacherSettings
from terrine_models.teachers.networks import initialise
from terrine_models.teachers.training import train_ensemble
from terrine_protocol.files import write_atomically
from terrine_server.privacy import Mechanism, VoteOutcome
from terrine_server.progress import teachers_bar

Ints = NDArray[np.int64]
Protocol = Literal["folds", "last-1000"]
Learner = Literal["default", "supervised"]
"""A student as `terrine student train` makes it, or a network of the labelled images alone. Of
tables, either is the papers' forest."""

LAST = 1000
FOLDS = 5
DRAWS = 5
"""How often noise is drawn for each figure that has noise in it."""
IMAGES_OF_NETWORKS = 12_000
"""Images that each network sees in training, distorted anew each time: half of what 250 teachers
of 240 images do by default, in 100 epochs."""
FEWEST_EPOCHS = 2
SUPERVISED_STEPS = 600
SUPERVISED_BATCH = 50
SUPERVISED_RATE = 0.05
"""Of a supervised student: steps of SGD, the images of each, and the first rate, which falls."""


@dataclass(frozen=True, eq=False)
class Part:
    """What one student is trained and tested on."""

    seen: Ints
    """Rows of the pool whose inputs and answers the student has."""
    tested: Ints
    """Rows of the test set that measure it, none of them seen."""


def pool_size(protocol: Protocol, source: Source) -> int:
    """How many of the first test inputs are public and may be asked."""
    rows = len(source.test)
    return rows if protocol == "folds" else rows - min(LAST, rows // 10)


def public_part(source: Source) -> PublicData:
    """The test inputs that teachers' feature maps may be fitted on: the pool of `last-1000`."""
    pool = pool_size("last-1000", source)
    name = f"{source.title}, test inputs 0 to {pool - 1}, without labels"
    return PublicData.declare(name, source.test.inputs[:pool])


def parts(protocol: Protocol, source: Source) -> list[Part]:
    """Return the students' parts.

    `folds`: the answers to all test inputs are bought in one study; each fold is judged by a
    student that has seen the inputs and answers of the other four. `last-1000`, as in P17: the
    student sees all of the test set but its last thousand, which measure it (of a smaller test set,
    the last tenth).
    """
    rows, pool = np.arange(len(source.test)), pool_size(protocol, source)
    if protocol != "folds":
        return [Part(rows[:pool], rows[pool:])]
    fold = np.random.default_rng(0).permutation(len(rows)) % FOLDS
    return [Part(rows[fold != k], rows[fold == k]) for k in range(FOLDS)]


@dataclass(frozen=True, eq=False)
class Lesson:
    """The public inputs that students of one part see, and the tests that measure them."""

    source: Source
    part: Part

    @cached_property
    def task(self) -> Task:
        """What students of all runs are to learn; what the inputs alone say is computed once."""
        test = self.source.test
        return Task(test.inputs[self.part.seen], test.spec, test.classes, test.encoding)

    def learn(
        self,
        answers: Answers,
        method: str = "auto",
        tell: Callable[[str], None] = lambda line: None,
    ) -> TrainedStudent:
        """Train a student on answers to the whole pool, as `terrine student train` does."""
        return choose(self.task, answers.of(self.part.seen), Training(method), tell=tell)

    def right(self, student: Student) -> int:
        """How many of the part's tests a student has right."""
        tested, test = self.part.tested, self.source.test
        return int((student.predict_indices(test.inputs[tested]) == test.labels[tested]).sum())


def trained(
    source: Source, public: PublicData, directory: Path, run: int, console: Console
) -> Manifest:
    """Train a run's teachers into `directory`, or return the manifest of those that are there.

    The private records are partitioned by the run's number, so no two runs have the same partition.
    Raises DataError if there are others, and what `train_ensemble` raises.
    """
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with teachers_bar(console, source.teachers) as on_trained:
            return train_ensemble(
                source.private,
                directory,
                name=f"{source.name}-teachers",
                teachers=source.teachers,
                config=source.config,
                public=public,
                seed=run,
                on_trained=on_trained,
            )
    manifest, private = load_manifest(directory), source.private
    features = manifest.teacher.features
    fitted_on = features.fitted_on if features else None
    found = (manifest.input, manifest.classes, manifest.teacher, manifest.teachers, manifest.seed)
    expected = source.config.teacher(private, features, public)
    others = found != (private.spec, private.classes, expected, source.teachers, run)
    if others or (fitted_on is not None and fitted_on.sha256 != public.source.sha256):
        raise DataError(
            f"{directory} holds teachers of other data, or that were trained with other settings. "
            "Give another --out."
        )
    return manifest


@dataclass(frozen=True, eq=False)
class Asked:
    """What came of asking once: labels [pool], -1 where there is none, the rows [B] that were
    asked, how many had which outcome, and the accuracy of a student of the labels.
    `baselines` [B, m]: what was subtracted from the votes before the test, if anything."""

    labels: Ints
    rows: Ints
    outcomes: dict[VoteOutcome, int]
    accuracy: float
    baselines: Ints | None = None


@dataclass(frozen=True, eq=False)
class Study:
    """Data in directories of `data` by their names, and beside them `NAME_TEACHERS_votes.npz`, if
    votes were recorded. What is made of them is kept in `out`. `sources`: those that are loaded."""

    data: Path
    out: Path
    console: Console
    sources: dict[Name, Source] = field(default_factory=dict)
    _lessons: dict[tuple[str, int], Lesson] = field(default_factory=dict)

    def has(self, name: Name) -> bool:
        """Whether there are files of a data set."""
        return (self.data / name).is_dir()

    def source(self, name: Name) -> Source:
        """A data set. Raises DataError."""
        if name not in self.sources:
            self.sources[name] = load(name, self.data / name)
        return self.sources[name]

    def teachers(self, name: Name, kind: str, teachers: int, run: int = 0) -> tuple[Path, Manifest]:
        """The directory of a run's teachers, and what they are. Raises DataError."""
        source = self.source(name)
        source = replace(source, teachers=teachers, config=_settings(source, kind, teachers))
        directory = self.out / "ensembles" / f"{name}-{teachers}-{kind}-run-{run}"
        if not directory.exists():
            self.say(f"{source.title}: {teachers:,} {kind} …")
        return directory, trained(source, public_part(source), directory, run, self.console)

    def votes(self, name: Name, kind: str, teachers: int, run: int = 0) -> Ints:
        """Vote counts [N, m] of a run's teachers on all test inputs. Raises DataError."""
        test = self.source(name).test
        recorded = self.data / f"{name}_{teachers}_votes.npz"
        if kind != "heads" and recorded.exists():
            with np.load(recorded) as archive:
                if not np.array_equal(archive["labels"], test.labels):
                    title = self.source(name).title
                    raise DataError(f"{recorded} is of other inputs than those of {title}.")
                return np.asarray(archive["counts"], np.int64)
        directory, _ = self.teachers(name, kind, teachers, run)
        kept = self.out / "votes" / f"{directory.name}.npy"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            np.save(kept, Ensemble.load(directory).votes(test.inputs))
        return np.asarray(np.load(kept), np.int64)

    def once(
        self, what: str, make: Callable[[], dict[str, Any]], **about: object
    ) -> dict[str, Any]:
        """What was found before `about` the same, or is found now: noise is drawn once."""
        file = self.out / "found" / f"{what}.json"
        if file.exists():
            kept: dict[str, Any] = json.loads(file.read_bytes())
            if kept["about"] == about:
                return dict(kept["found"])
        found = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps({"about": about, "found": found}).encode() + b"\n")
        return found

    def student(self, name: Name, labels: Ints) -> tuple[Student, float]:
        """A student of the first test inputs, labelled or -1, and its accuracy on the others."""
        lesson = self._lessons.get((name, len(labels)))
        if lesson is None:
            rows = np.arange(len(self.source(name).test))
            part = Part(rows[: len(labels)], rows[len(labels) :])
            lesson = self._lessons[name, len(labels)] = Lesson(self.source(name), part)
        answers = Answers.of_labels(labels, len(lesson.source.test.classes))
        student = lesson.learn(answers).student
        return student, lesson.right(student) / len(lesson.part.tested)

    def forest(self, name: Name, labels: Ints) -> float:
        """As `student`, of a random forest: the papers' student of tables."""
        test, asked = self.source(name).test, len(labels)
        rows = np.flatnonzero(labels >= 0)
        return self._right_of_forest(name, test.inputs[rows], labels[rows], asked)

    def open_forest(self, name: Name, pool: int) -> float:
        """The accuracy of a forest of all private records, on the tests after the pool."""
        private = self.source(name).private
        return self._right_of_forest(name, private.inputs, private.labels, pool)

    def _right_of_forest(self, name: Name, inputs: Any, labels: Ints, pool: int) -> float:
        test = self.source(name).test
        student = RandomForestClassifier(100, max_depth=16, random_state=0).fit(inputs, labels)
        return float(student.score(test.inputs[pool:], test.labels[pool:]))

    def supervised(self, name: Name, labels: Ints, seed: int) -> float:
        """As `student`, of a network that sees the labelled images alone, undistorted."""
        test, rows = self.source(name).test, np.flatnonzero(labels >= 0)
        spec, generator = test.spec, torch.Generator().manual_seed(seed)
        network = Networks().teacher(test, None, None).build(spec, test.classes)
        initialise(network, generator)
        inputs, targets = torch.from_numpy(test.inputs[rows]), torch.from_numpy(labels[rows])
        optimizer = torch.optim.SGD(network.parameters(), SUPERVISED_RATE, 0.9)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, SUPERVISED_STEPS)
        for _ in range(SUPERVISED_STEPS):
            picked = torch.randint(len(rows), (SUPERVISED_BATCH,), generator=generator)
            scores = network(prepare(inputs[picked], spec))
            loss = functional.cross_entropy(scores, targets[picked])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            falling.step()
        with torch.inference_mode():
            tests = torch.from_numpy(test.inputs[len(labels) :])
            said = network(prepare(tests, spec)).argmax(1).numpy()
        return float((said == test.labels[len(labels) :]).mean())

    def ask(
        self,
        name: Name,
        what: str,
        votes: Ints,
        mechanism: Mechanism,
        pool: int,
        learn: Learner | None = "default",
    ) -> list[Asked]:
        """Ask about the first inputs of `pool`, whose votes [B, m] are given; teach a student.

        All of it is done `DRAWS` times.
        """
        self.say(f"{self.source(name).title}: {what}")
        rows, unknown = np.arange(len(votes)), np.full(pool, -1)
        return [
            self._ask(name, what, draw, votes, mechanism, rows, unknown, learn)
            for draw in range(DRAWS)
        ]

    def ask_again(
        self,
        name: Name,
        what: str,
        votes: Ints,
        mechanism: Mechanism,
        before: Sequence[Asked],
        queries: int,
    ) -> list[Asked]:
        """Ask about the first inputs, so many, that each draw of an earlier round left open.

        A student of that round's labels says its probabilities of each, and another learns from the
        labels of both.
        """
        self.say(f"{self.source(name).title}: {what}")
        asked = []
        for draw, first in enumerate(before):
            rows = np.flatnonzero(first.labels < 0)[:queries]
            asked.append(
                self._ask(name, what, draw, votes, mechanism, rows, first.labels, "default")
            )
        return asked

    def _ask(
        self,
        name: Name,
        what: str,
        draw: int,
        votes: Ints,
        mechanism: Mechanism,
        rows: Ints,
        known: Ints,
        learn: Learner | None,
    ) -> Asked:
        def make() -> dict[str, Any]:
            labels, told, baselines = known.copy(), None, None
            if mechanism.needs_probabilities:
                student, _ = self.student(name, known)
                told = student.probabilities(self.source(name).test.inputs[rows])
                baselines = mechanism.canonical_baseline(told).tolist()  # type: ignore[attr-defined]
            released = mechanism.release(votes[rows], told)
            labels[rows] = released.labels
            outcomes = dict(Counter(str(outcome) for outcome in released.outcomes))
            accuracy = None if learn is None else self._taught(name, labels, learn, draw)
            found = {"labels": labels.tolist(), "outcomes": outcomes, "accuracy": accuracy}
            return {**found, "baselines": baselines}

        about = {"mechanism": repr(mechanism), "queries": len(rows), "pool": len(known)}
        found = self.once(f"{name}-{what}-draw-{draw}", make, **about)
        baselines = found["baselines"]
        return Asked(
            np.array(found["labels"]),
            rows,
            {VoteOutcome(each): count for each, count in found["outcomes"].items()},
            math.nan if found["accuracy"] is None else found["accuracy"],
            None if baselines is None else np.array(baselines),
        )

    def _taught(self, name: Name, labels: Ints, learn: Learner, seed: int) -> float:
        if self.source(name).test.encoding is not None:
            return self.forest(name, labels)
        if learn == "supervised":
            return self.supervised(name, labels, seed)
        return self.student(name, labels)[1]

    def supervise(self, name: Name, what: str, labels: Ints) -> list[float]:
        """The accuracies of supervised students of labels that are the same each time.

        What differs from one to the next is where its network begins.
        """
        self.say(f"{self.source(name).title}: {what}")

        def make(seed: int) -> dict[str, Any]:
            return {"accuracy": self.supervised(name, labels, seed)}

        return [
            self.once(f"{name}-{what}-supervised-{seed}", partial(make, seed))["accuracy"]
            for seed in range(DRAWS)
        ]

    def taught(self, name: Name, what: str, labels: Ints) -> float:
        """The accuracy of a student of labels that are the same each time."""
        made = self.once(f"{name}-{what}", lambda: {"accuracy": self.student(name, labels)[1]})
        return float(made["accuracy"])

    def say(self, text: str) -> None:
        """Say what is being done."""
        self.console.print(escape(text), highlight=False, soft_wrap=True)


def _settings(source: Source, kind: str, teachers: int) -> TeacherSettings:
    if kind == "forest":
        return Forests(match_prior=False)
    if kind == "networks":
        records = len(source.private) // teachers
        return Networks(epochs=max(FEWEST_EPOCHS, IMAGES_OF_NETWORKS // records))
    return source.config if isinstance(source.config, Heads) else Heads()
