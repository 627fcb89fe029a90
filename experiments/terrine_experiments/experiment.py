"""One experiment: runs, each with teachers and projects of its own, and what they measure.

A run partitions the private records anew, trains its own teachers, and opens a project for each
budget, which is served over the real API. Everything is kept under one directory as it is made, so
an interrupted experiment continues: answers that were paid for are not paid for again, and a
student that was trained is not trained again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape

from terrine_client import Client
from terrine_client.distill import make_answers
from terrine_experiments.lesson import Bought, Lesson, once
from terrine_experiments.owner import open_own_ledger, open_study, trained
from terrine_experiments.papers_accountant import papers_epsilon
from terrine_experiments.results import ExperimentResult
from terrine_experiments.setup import Setup, numbered, parts, pool_size, public_part
from terrine_experiments.sources import Source
from terrine_models.storage.manifests import manifest_digest
from terrine_models.students.answers import Answers
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.manifests import Manifest
from terrine_protocol import Role
from terrine_server.app import serving
from terrine_server.planning.first_project import sigma_for_rows
from terrine_server.privacy import GaussianNoisyCounts

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Run:
    """One run's teachers."""

    number: int
    teachers: Path
    manifest: Manifest


class Experiment:
    """One protocol and mechanism on one data set, at one or several budgets.

    `setups` differ in ε alone; a run has the same teachers for all of them. Files are under `out`.
    """

    def __init__(
        self, source: Source, setups: Sequence[Setup], out: Path, console: Console
    ) -> None:
        self.source, self.setups, self.out, self.console = source, setups, out, console
        self.setup = setups[0]
        """For what all have in common."""
        protocol = self.setup.protocol
        self.x = source.test.inputs
        self.pool = self.x[: pool_size(protocol, source)]
        self.public = public_part(source)
        self.parts = parts(protocol, source)

    def run(self) -> list[ExperimentResult]:
        """Train what is missing, buy what is missing, and measure. Raises what they raise."""
        began = time.monotonic()
        source, rows = self.source, len(self.pool)
        runs = [
            Run(number, self.directory(number), self._manifest(number))
            for number in range(self.setup.runs)
        ]
        manifest = runs[0].manifest
        specifications = [self._specification(setup, manifest) for setup in self.setups]
        bought = [
            [self._bought(setup, run, specification) for run in runs]
            for setup, specification in zip(self.setups, specifications, strict=True)
        ]
        made: list[list[list[dict[str, Any]]]] = [[[] for _ in runs] for _ in self.setups]
        twins = []
        for number, part in enumerate(self.parts):
            lesson = Lesson(source, part, self._say, self.console)
            for at, setup in enumerate(self.setups):
                for run in runs:
                    found = self._student(setup, run, number, lesson, bought[at][run.number])
                    made[at][run.number].append(found)
            chosen = Counter[str](each[-1]["chosen"] for of_setup in made for each in of_setup)
            twins.append(self._twin(number, lesson, chosen.most_common(1)[0][0]))
        tested = np.concatenate([part.tested for part in self.parts])
        most = np.bincount(source.test.labels[tested]).max()

        def share(found: list[dict[str, Any]], what: str) -> float:
            return float(sum(each[what] for each in found) / len(tested))

        plurality = [self._plurality(run, tested) for run in runs]
        seconds = time.monotonic() - began
        return [
            ExperimentResult(
                data=source.name,
                title=source.title,
                protocol=setup.protocol,
                mechanism=specifications[at],
                kind=manifest.kind,
                teachers=manifest.teachers,
                private_records=len(source.private),
                public_inputs=rows,
                tested=len(tested),
                epsilon=setup.epsilon,
                delta=setup.delta,
                epsilon_spent=max(each.epsilon_spent for each in bought[at]),
                rule=bought[at][-1].rule,
                papers_epsilon=self._papers_epsilon(setup, specifications[at], bought[at][-1]),
                answers=bought[at][-1].outcomes.get("answered", 0),
                partitions=[run.number for run in runs],
                accuracies=[share(found, "right") for found in made[at]],
                plain=[share(found, "plain") for found in made[at]],
                chosen=dict(Counter(each["chosen"] for found in made[at] for each in found)),
                true_labels=share(twins, "right"),
                true_labels_chosen=dict(Counter(each["chosen"] for each in twins)),
                plurality=plurality,
                majority=float(most / len(tested)),
                training=asdict(source.training),
                heads=manifest.teacher.model_dump(
                    mode="json", exclude={"kind", "features"}, exclude_none=True
                ),
                warnings=list(source.warnings),
                seconds=seconds,
            )
            for at, setup in enumerate(self.setups)
        ]

    def directory(self, number: int) -> Path:
        """Where a run's teachers are."""
        name = f"{self.source.name}-{numbered(self.source.config.kind, self.source.teachers)}"
        return self.out / "ensembles" / name / f"run-{number}"

    def _manifest(self, number: int) -> Manifest:
        """Train a run's teachers, or look them up."""
        return trained(self.source, self.public, self.directory(number), number, self.console)

    def _specification(self, setup: Setup, manifest: Manifest) -> dict[str, Any]:
        """The mechanism that is opened. Raises ParameterError."""
        rows, classes = len(self.pool), len(manifest.classes)
        sigma = sigma_for_rows(rows, manifest.teachers, classes, setup.epsilon, setup.delta)
        return {"name": "noisy_votes", "sigma": sigma}

    def _home(self, setup: Setup, run: Run) -> Path:
        """The directory of a run's project and students at one budget."""
        label = setup.label(run.manifest.kind, run.manifest.teachers)
        return self.out / f"{self.source.name}-{label}" / f"run-{run.number}"

    def _bought(self, setup: Setup, run: Run, specification: dict[str, Any]) -> Bought:
        """Ask every public input in the run's project, once: what was paid for comes back."""
        home = self._home(setup, run)
        home.mkdir(parents=True, exist_ok=True)
        owner, ledger = open_own_ledger(home / "terrine-data", run.teachers, setup)
        project = open_study(ledger, setup, specification)
        token = owner.token(ledger, Role.STUDENT, "reproduce", project.name)
        with serving(owner.settings) as url, Client(url, token) as client:
            answers = client.label(self.pool)
            budget, facts = client.budget(), client.project()
        self._say(
            f"Run {run.number + 1}: {len(self.pool):,} inputs asked, "
            f"ε spent {budget.epsilon_spent:.4f} of {budget.epsilon:g}."
        )
        counts, sigma = answers.noisy_counts, answers.noise_sigma
        return Bought(
            answers=make_answers(facts, answers.labels, counts, sigma),
            outcomes=dict(Counter(answers.outcomes.tolist())),
            epsilon_spent=budget.epsilon_spent,
            rule=str(project.terms.rule),
        )

    def _student(
        self, setup: Setup, run: Run, number: int, lesson: Lesson, bought: Bought
    ) -> dict[str, Any]:
        """Train one student, as `terrine student train` does, and measure it; or look it up.

        The plain student of the same answers is measured beside it.
        """
        directory = self._home(setup, run) / f"student-{number}"
        training = self.source.training

        def train() -> dict[str, Any]:
            who = f"Run {run.number + 1}, ε = {setup.epsilon:g}"
            self._say(f"{who}, student {number + 1} of {len(self.parts)}:")
            made = lesson.learn(bought.answers, training)
            made.student.save(directory)
            right = lesson.right(made.student)
            plain = lesson.right(made.plain)
            self._say(f"  {right / len(lesson.part.tested):.2%}. {made.choice.why}")
            return {
                "right": right,
                "chosen": made.choice.chosen,
                "why": made.choice.why,
                "plain": plain,
            }

        found: dict[str, Any] = self._once(directory / "measured.json", asdict(training), train)
        return found

    def _twin(self, number: int, lesson: Lesson, chosen: str) -> dict[str, Any]:
        """Measure the same student, with the same settings, on true labels; or look it up.

        It is of the method that most students were.
        """
        training = replace(self.source.training, method=chosen)
        classes = len(self.source.private.classes)
        certain = Answers.of_labels(self.source.test.labels[: len(self.pool)], classes)

        def train() -> dict[str, Any]:
            self._say(f"The same on true labels, {number + 1} of {len(self.parts)}, to compare …")
            made = lesson.learn(certain, training)
            return {"right": lesson.right(made.student), "chosen": made.choice.chosen}

        protocol = self.setup.label(self.source.config.kind, self.source.teachers).partition(
            "-epsilon"
        )
        name = f"{self.source.name}-{protocol[0]}-true-labels"
        found: dict[str, Any] = self._once(
            self.out / name / f"{number}.json", asdict(training), train
        )
        return found

    def _plurality(self, run: Run, tested: Ints) -> float:
        """Accuracy of the plurality of a run's votes on `tested`.

        A look at private votes: allowed because these data are public, and nobody learns from it.
        """
        truth = self.source.test.labels[tested]

        def vote() -> dict[str, Any]:
            votes = Ensemble.load(run.teachers).votes(self.x[tested])
            return {"plurality": float((votes.argmax(axis=1) == truth).mean())}

        file = run.teachers.with_name(f"{run.teachers.name}-{self.setup.protocol}.json")
        about = {"teachers": manifest_digest(run.teachers), "tested": len(tested)}
        return float(self._once(file, about, vote)["plurality"])

    def _papers_epsilon(
        self, setup: Setup, specification: dict[str, Any], bought: Bought
    ) -> float | None:
        """ε of these answers by the accountant of the papers, for the worst case.

        Their curves, Mironov's conversion, and the order that is best afterwards; without the
        data-dependent reduction, which only private votes show.
        """
        if setup.mechanism == "neighbours":
            return None  # the papers have no accounts
        noise = GaussianNoisyCounts(specification["sigma"])
        return papers_epsilon({noise: bought.outcomes["answered"]}, setup.delta)

    def _once(self, file: Path, about: dict[str, Any], make: Any) -> Any:
        """Return what the file holds if it is about the same settings and inputs, or make it."""
        return once(file, {**about, "public_inputs": self.public.source.sha256}, make)

    def _say(self, text: str) -> None:
        self.console.print(escape(text), highlight=False, soft_wrap=True)
