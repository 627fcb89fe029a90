"""What the students of one part have in common: inputs, and what is computed from them once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from terrine_experiments.setup import Part
from terrine_experiments.sources import Source
from terrine_models.students.answers import Answers
from terrine_models.students.models import Student, Task, Training
from terrine_models.students.selection import TrainedStudent, choose
from terrine_protocol.files import write_atomically


@dataclass(frozen=True, eq=False)
class Bought:
    """The answers of one run, and its account."""

    answers: Answers
    outcomes: dict[str, int]
    epsilon_spent: float
    rule: str


@dataclass(frozen=True, eq=False)
class Lesson:
    """The public inputs that students of one part see, and the tests that measure them."""

    source: Source
    part: Part
    say: Callable[[str], None]
    console: Console

    @cached_property
    def task(self) -> Task:
        """What students of all runs are to learn; what the inputs alone say is computed once."""
        test = self.source.test
        return Task(test.inputs[self.part.seen], test.spec, test.classes, test.encoding)

    def learn(self, answers: Answers, training: Training) -> TrainedStudent:
        """Train a student on answers to the whole pool, as `terrine student train` does."""
        own = answers.of(self.part.seen)
        return choose(self.task, own, training, tell=self._tell)

    def right(self, student: Student) -> int:
        """How many of the part's tests a student has right."""
        tested, test = self.part.tested, self.source.test
        return int((student.predict(test.inputs[tested]) == test.labels[tested]).sum())

    def _tell(self, line: str) -> None:
        self.say(f"  {line}")


def once(file: Path, about: dict[str, Any], make: Callable[[], Any]) -> Any:
    """Return what the file holds if it is about the same, or make it and keep it there."""
    if file.exists():
        kept = json.loads(file.read_bytes())
        if kept["about"] == about:
            return kept["found"]
    found = make()
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"about": about, "found": found}, indent=2)
    write_atomically(file, text.encode() + b"\n")
    return found
