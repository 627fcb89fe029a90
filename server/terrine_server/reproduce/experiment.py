"""One experiment: teachers, a project for each seed, students over the real API, and measures.

Everything is kept under one directory as it is made, so an interrupted experiment continues:
answers that were paid for are not paid for again, and a student that was trained is not trained
again.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.markup import escape

from terrine_client import Client
from terrine_client.errors import BudgetExhausted
from terrine_models.choice import Candidate
from terrine_models.choosing import asking_order
from terrine_models.ensemble import Ensemble
from terrine_models.store import manifest_digest, write_atomically
from terrine_protocol import Role
from terrine_server.audit.world import serving
from terrine_server.planning.accountants import FINE_ORDERS, Accountant, Method, reprice
from terrine_server.privacy import VoteOutcome, build_mechanism
from terrine_server.privacy.published.noisy_max import laplace_log_tails, lnmax_rdp, union_bound
from terrine_server.reproduce.lesson import Bought, Lesson
from terrine_server.reproduce.owner import (
    check_settings,
    fitted_elsewhere,
    open_books,
    open_study,
    trained,
)
from terrine_server.reproduce.results import Result
from terrine_server.reproduce.setup import GAMMA, Setup, numbered, parts, pool_size, public_part
from terrine_server.reproduce.sources import Source

CHUNK = 1024
"""Inputs that are sent before the budget is looked at again."""
TRUE = -1
"""Stands for a seed where true labels were learned from."""


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
        self.pool = self.x[: pool_size(setup.protocol, source, setup.queries)]
        self.public = public_part(source)
        self.parts = parts(setup.protocol, source, setup.queries)
        name = f"{source.name}-{numbered(source.how.kind, source.teachers)}"
        self.teachers = ensemble or out / "ensembles" / name
        self.given = ensemble is not None

    def run(self) -> Result:
        """Train what is missing, buy what is missing, and measure. Raises what they raise."""
        began = time.monotonic()
        source, setup = self.source, self.setup
        manifest = trained(source, self.public, self.teachers, self.console)
        if not self.given:
            check_settings(manifest, source, self.public, self.teachers)
        home = self.out / f"{source.name}-{setup.label(manifest.kind, manifest.teachers)}"
        home.mkdir(parents=True, exist_ok=True)
        elsewhere = fitted_elsewhere(manifest, self.public)
        rows = len(self.pool)
        specification = setup.specification(rows, manifest.teachers, len(manifest.classes))
        studies = [self._bought(home, seed, specification) for seed in range(setup.seeds)]
        right, chosen = Counter[int](), Counter[Candidate]()
        for number, part in enumerate(self.parts):
            lesson = Lesson(source, part, manifest.teachers, self._say, self.console)
            for seed, bought in enumerate(studies):
                made = self._student(home, seed, number, lesson, bought)
                chosen[made["chosen"]] += 1
                right[seed] += made["right"]
            right[TRUE] += self._true_labels(number, lesson, chosen.most_common(1)[0][0])
        bought = studies[-1]
        plurality, majority = self._teachers_alone()
        return Result(
            data=source.name,
            title=source.title,
            protocol=setup.protocol,
            mechanism=specification,
            kind=manifest.kind,
            teachers=manifest.teachers,
            private_records=len(source.private),
            public_inputs=rows,
            tested=self._tested(),
            epsilon=setup.epsilon,
            delta=setup.delta,
            epsilon_spent=max(each.epsilon_spent for each in studies),
            rule=bought.rule,
            papers_epsilon=self._papers_epsilon(manifest.teachers, specification, bought),
            data_dependent=self._data_dependent(bought),
            answers=sum(count for name, count in bought.outcomes.items() if name == "answered"),
            accuracies=[right[seed] / self._tested() for seed in range(setup.seeds)],
            chosen={str(name): count for name, count in chosen.items()},
            true_labels=right[TRUE] / self._tested(),
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
            budget, ensemble = client.budget(), client.project().ensemble
        asked = np.flatnonzero((outcomes != "") & (outcomes != "refused"))
        self._say(
            f"Seed {seed}: {len(asked):,} of {len(inputs):,} inputs asked, "
            f"ε spent {budget.epsilon_spent:.4f} of {budget.epsilon:g}."
        )
        return Bought(
            labels=labels,
            outcomes=dict(Counter(outcomes[asked].tolist())),
            noisy_counts=counts,
            noise_sigma=sigma,
            matches_prior=ensemble.matches_prior,
            epsilon_spent=budget.epsilon_spent,
            rule=str(project.terms.rule),
        )

    def _student(
        self, home: Path, seed: int, number: int, lesson: Lesson, bought: Bought
    ) -> dict[str, Any]:
        """Train one student, as `terrine student train` does, and measure it; or look it up."""
        directory = home / f"seed-{seed}" / f"student-{number}"
        training = replace(self.source.training, seed=seed)

        def train() -> dict[str, Any]:
            self._say(f"Seed {seed}, student {number + 1} of {len(self.parts)}:")
            made = lesson.learn(bought, training)
            made.student.save(directory)
            right = lesson.right(made.student)
            self._say(f"  {right / len(lesson.part.tested):.2%}. {made.choice.why}")
            return {"right": right, "chosen": made.choice.chosen, "why": made.choice.why}

        found: dict[str, Any] = self._once(directory / "measured.json", asdict(training), train)
        return found

    def _true_labels(self, number: int, lesson: Lesson, chosen: Candidate) -> int:
        """How many inputs a model of the same kind has right that learned from true labels.

        Of tables' regressions it is a network, as in the papers.
        """
        model: Literal["ridge", "kernel", "neighbours", "forest", "supervised"] = "supervised"
        image = len(self.source.test.spec.shape) > 1
        if chosen in ("kernel", "neighbours", "forest") or (chosen == "ridge" and image):
            model = chosen
        training = replace(self.source.training, method=model, seed=0)

        def train() -> dict[str, Any]:
            self._say(f"True labels, {model} {number + 1} of {len(self.parts)}, to compare …")
            return {"right": lesson.right(lesson.learn_truth(training))}

        name = f"{self.source.name}-{self.setup.protocol}-true-labels-{model}"
        found = self._once(self.out / name / f"{number}.json", asdict(training), train)
        return int(found["right"])

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

        file = self.out / f"{self.source.name}-{self.setup.protocol}-plurality.json"
        teachers = {"teachers": manifest_digest(self.teachers)}
        return self._once(file, teachers, vote)["plurality"], majority

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

    def _data_dependent(self, bought: Bought) -> float | None:
        """ε as P17 states it: of the votes themselves, by its Theorem 3. Of lnmax only.

        A look at private votes, as `_teachers_alone`. A student may not be told this figure.
        """
        if self.setup.mechanism != "lnmax":
            return None
        votes = Ensemble.load(self.teachers).votes(self.pool[bought.labels >= 0])
        log_q = union_bound(votes, laplace_log_tails(GAMMA, int(votes.max(initial=0))))
        total = lnmax_rdp(log_q, GAMMA, FINE_ORDERS).sum(axis=0)
        return Accountant(Method.CLASSIC, self.setup.delta).epsilon(total)

    def _once(self, file: Path, about: dict[str, Any], make: Any) -> Any:
        """Return what the file holds if it is about the same settings and inputs, or make it."""
        about = {**about, "public_inputs": self.public.source.sha256}
        if file.exists():
            kept = json.loads(file.read_bytes())
            if kept["about"] == about:
                return kept["found"]
        found = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"about": about, "found": found}, indent=2)
        write_atomically(file, text.encode() + b"\n")
        return found

    def _tested(self) -> int:
        return sum(len(part.tested) for part in self.parts)

    def _say(self, text: str) -> None:
        self.console.print(escape(text), highlight=False, soft_wrap=True)
