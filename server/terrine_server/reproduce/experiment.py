"""One experiment: teachers, a project for each seed, students over the real API, and measures.

Everything is kept under one directory as it is made, so an interrupted experiment continues:
answers that were paid for are not paid for again, and a student that was trained is not trained
again.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape

from terrine_client import Client
from terrine_client.errors import BudgetExhausted
from terrine_models.answers import student_from_answers
from terrine_models.choosing import asking_order
from terrine_models.ensemble import Ensemble
from terrine_models.learning import train_student
from terrine_models.store import write_atomically
from terrine_protocol import Role
from terrine_server.audit.world import serving
from terrine_server.bars import steps_bar
from terrine_server.planning.accountants import Method, reprice
from terrine_server.privacy import VoteOutcome, build_mechanism
from terrine_server.reproduce.owner import fitted_elsewhere, open_books, open_study, trained
from terrine_server.reproduce.results import Result
from terrine_server.reproduce.setup import Part, Setup, parts, pool_size, public_part
from terrine_server.reproduce.sources import Source

CHUNK = 1024
"""Inputs that are sent before the budget is looked at again."""
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Bought:
    """The answers of one study, and its account."""

    labels: Ints
    """[P], -1 where none was bought."""
    asked: Ints
    """Rows that were answered or abstained."""
    outcomes: dict[str, int]
    noisy_counts: Ints | None
    noise_sigma: float | None
    epsilon_spent: float
    rule: str


class Experiment:
    """One protocol, mechanism and budget on one data set, with its files under `out`."""

    def __init__(
        self,
        source: Source,
        setup: Setup,
        out: Path,
        console: Console,
        ensemble: Path | None = None,
    ) -> None:
        self.source, self.setup, self.out, self.console = source, setup, out, console
        self.x = source.test.inputs
        self.pool = self.x[: pool_size(setup.protocol, source)]
        self.public = public_part(source)
        self.parts = parts(setup.protocol, source)
        self.teachers = ensemble or out / "ensembles" / f"{source.name}-{source.teachers}"

    def run(self) -> Result:
        """Train what is missing, buy what is missing, and measure. Raises what they raise."""
        began = time.monotonic()
        source, setup = self.source, self.setup
        manifest = trained(source, self.public, self.teachers, self.console)
        home = self.out / f"{source.name}-{setup.label(manifest.teachers)}"
        home.mkdir(parents=True, exist_ok=True)
        elsewhere = fitted_elsewhere(manifest, self.public)
        rows = len(self.pool)
        specification = setup.specification(rows, manifest.teachers, len(manifest.classes))
        accuracies, chosen, spent = [], Counter[str](), []
        for seed in range(setup.seeds):
            bought = self._bought(home, seed, specification)
            right = 0
            for number, part in enumerate(self.parts):
                made = self._student(home, seed, number, part, bought, manifest.teachers)
                chosen[made["chosen"]] += 1
                right += made["right"]
            accuracies.append(right / self._tested())
            spent.append(bought.epsilon_spent)
            self._say(f"Seed {seed}: {accuracies[-1]:.2%} of {self._tested():,} test inputs.")
        plurality, majority = self._teachers_alone()
        return Result(
            data=source.name,
            title=source.title,
            protocol=setup.protocol,
            mechanism=specification,
            teachers=manifest.teachers,
            private_records=len(source.private),
            public_inputs=rows,
            tested=self._tested(),
            epsilon=setup.epsilon,
            delta=setup.delta,
            epsilon_spent=max(spent),
            rule=bought.rule,
            papers_epsilon=self._papers_epsilon(manifest.teachers, specification, bought),
            answers=sum(count for name, count in bought.outcomes.items() if name == "answered"),
            accuracies=accuracies,
            chosen=dict(chosen),
            true_labels=self._true_labels(),
            plurality=plurality,
            majority=majority,
            training=asdict(source.training),
            heads=manifest.training.model_dump(mode="json", exclude_none=True),
            warnings=[*source.warnings, *([elsewhere] if elsewhere else [])],
            seconds=time.monotonic() - began,
        )

    def _bought(self, home: Path, seed: int, specification: dict[str, Any]) -> Bought:
        """Ask in one study until every public input was asked, or the budget refuses."""
        owner, ledger = open_books(home / "terrine-data", self.teachers, self.setup)
        name = f"seed-{seed}"
        project = open_study(ledger, name, self.setup, specification)
        token = owner.token(ledger, Role.STUDENT, "reproduce", name)
        inputs = self.pool
        order = np.arange(len(inputs))
        if project.affordable < len(inputs) and self.setup.mechanism != "noisy_votes":
            order = asking_order(inputs, self.source.test.spec, seed)
        labels, outcomes = np.full(len(inputs), -1), np.full(len(inputs), "", dtype="U16")
        counts, sigma = None, None
        with serving(owner.settings) as url, Client(url, token) as client:
            for at in range(0, len(order), CHUNK):
                rows = order[at : at + CHUNK]
                try:
                    answers = client.label(inputs[rows])
                except BudgetExhausted:
                    break
                outcomes[rows], labels[rows] = answers.outcomes, answers.labels
                if answers.noisy_counts is not None:
                    if counts is None:
                        counts = np.zeros((len(inputs), answers.noisy_counts.shape[1]), np.int64)
                    counts[rows], sigma = answers.noisy_counts, answers.noise_sigma
                if (answers.outcomes == "refused").any():
                    break
            budget = client.budget()
        asked = np.flatnonzero((outcomes != "") & (outcomes != "refused"))
        self._say(
            f"Seed {seed}: {len(asked):,} of {len(inputs):,} inputs asked, "
            f"ε spent {budget.epsilon_spent:.4f} of {budget.epsilon:g}."
        )
        return Bought(
            labels=labels,
            asked=asked,
            outcomes=dict(Counter(outcomes[asked].tolist())),
            noisy_counts=counts,
            noise_sigma=sigma,
            epsilon_spent=budget.epsilon_spent,
            rule=str(project.terms.rule),
        )

    def _student(
        self, home: Path, seed: int, number: int, part: Part, bought: Bought, teachers: int
    ) -> dict[str, Any]:
        """Train one student, as `terrine student train` does, and measure it; or look it up."""
        directory = home / f"seed-{seed}" / f"student-{number}"
        training = replace(self.source.training, seed=seed)

        def train() -> dict[str, Any]:
            self._say(f"Seed {seed}, student {number + 1} of {len(self.parts)}:")
            seen, counts = part.seen, bought.noisy_counts
            with steps_bar(self.console) as on_step:
                made = student_from_answers(
                    self.x[seen],
                    bought.labels[seen],
                    teachers=teachers,
                    noisy_counts=None if counts is None else counts[seen],
                    noise_sigma=bought.noise_sigma,
                    inputs=self.source.test.spec,
                    classes=self.source.test.classes,
                    encoding=self.source.test.encoding,
                    training=training,
                    tell=lambda line: self._say(f"  {line}"),
                    on_step=on_step,
                )
            made.student.save(directory)
            right = made.student.predict(self.x[part.tested]) == self._truth(part)
            return {
                "right": int(right.sum()),
                "tested": len(right),
                "chosen": made.choice.chosen,
                "why": made.choice.why,
            }

        return self._once(directory / "measured.json", asdict(training), train)

    def _true_labels(self) -> float:
        """Accuracy of the same network, trained on the true labels of the same public inputs."""
        training = replace(self.source.training, method="supervised", seed=0)
        right = 0
        for number, part in enumerate(self.parts):

            def train(part: Part = part, number: int = number) -> dict[str, Any]:
                self._say(f"True labels, network {number + 1} of {len(self.parts)}, to compare …")
                with steps_bar(self.console) as on_step:
                    student = train_student(
                        self.x[part.seen],
                        self.source.test.labels[part.seen],
                        inputs=self.source.test.spec,
                        classes=self.source.test.classes,
                        encoding=self.source.test.encoding,
                        training=training,
                        on_step=on_step,
                    )
                return {
                    "right": int((student.predict(self.x[part.tested]) == self._truth(part)).sum())
                }

            name = f"{self.source.name}-{self.setup.protocol}-true-labels"
            file = self.out / name / f"network-{number}.json"
            right += self._once(file, asdict(training), train)["right"]
        return right / self._tested()

    def _teachers_alone(self) -> tuple[float, float]:
        """Accuracy of the plurality of the votes, and of the test inputs' most frequent class.

        A look at private votes: allowed because these data are public, and nobody learns from it.
        """
        tested = np.concatenate([part.tested for part in self.parts])
        truth = self.source.test.labels[tested]
        majority = float(np.bincount(truth).max() / len(truth))

        def vote() -> dict[str, Any]:
            votes = Ensemble.load(self.teachers).votes(self.x[tested])
            return {"plurality": float((votes.argmax(axis=1) == truth).mean())}

        file = self.teachers.with_name(f"{self.teachers.name}-{self.setup.protocol}-plurality.json")
        return self._once(file, {"teachers": str(self.teachers)}, vote)["plurality"], majority

    def _papers_epsilon(
        self, teachers: int, specification: dict[str, Any], bought: Bought
    ) -> float | None:
        """ε of these answers by the accountant of the papers, for the worst case.

        Their curves, Mironov's conversion, and the order that is best afterwards; without the
        data-dependent reduction, which only private votes show.
        """
        classes = len(self.source.private.classes)
        mechanism = build_mechanism(specification, teachers=teachers, classes=classes)
        events = mechanism.events()
        tally = {
            events[VoteOutcome(outcome)]: count
            for outcome, count in bought.outcomes.items()
            if VoteOutcome(outcome) in events
        }
        methods = reprice(tally, self.setup.delta, self.setup.epsilon)
        return next((each.epsilon for each in methods if each.method is Method.CLASSIC), None)

    def _once(self, file: Path, about: dict[str, Any], make: Any) -> Any:
        """Return what the file holds if it is about the same settings; otherwise make it."""
        if file.exists():
            kept = json.loads(file.read_bytes())
            if kept["about"] == about:
                return kept["found"]
        found = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"about": about, "found": found}, indent=2)
        write_atomically(file, text.encode() + b"\n")
        return found

    def _truth(self, part: Part) -> Ints:
        return self.source.test.labels[part.tested]

    def _tested(self) -> int:
        return sum(len(part.tested) for part in self.parts)

    def _say(self, text: str) -> None:
        self.console.print(escape(text), highlight=False, soft_wrap=True)
