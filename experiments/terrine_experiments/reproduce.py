"""Experiments on the product's defaults: runs, at one or several budgets, and what they measure.

A run has teachers of its own; records that vote themselves are the same in all runs. At each budget
a mechanism is priced as a project is, and answers every public input; students learn from that.
Everything is kept as it is made, so an interrupted experiment continues, and noise is drawn once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from terrine_experiments.costs import papers_epsilon
from terrine_experiments.results import ExperimentResult
from terrine_experiments.sources import Source
from terrine_experiments.study import Ints, Lesson, Protocol, Study, parts, pool_size, public_part
from terrine_models.data.arrays import number_distinct_rows
from terrine_models.storage.manifests import manifest_digest
from terrine_models.students.answers import Answers
from terrine_models.teachers.manifests import Manifest
from terrine_models.teachers.neighbours import (
    NeighbourEnsemble,
    NeighbourSettings,
    build,
    forecast_from_public,
)
from terrine_server.planning.first_project import plan_neighbours, sigma_for_rows
from terrine_server.planning.opening import choose
from terrine_server.privacy import (
    Neighbours,
    NoisyVotes,
    Rule,
    Units,
    VoteOutcome,
    cap_order,
)

Selling = Literal["noisy_votes", "neighbours"]
Bools = NDArray[np.bool_]

IMAGES = ((0.1, 960), (0.3, 240), (math.inf, 120))
NEAR: dict[str, tuple[tuple[float, int], ...]] = {
    "mnist": IMAGES,
    "fashion": IMAGES,
    "glyph": ((math.inf, 600),),
    "adult": ((0.1, 600), (0.3, 300), (math.inf, 100)),
}
"""Units near a query, up to an ε: the more noise, the more of them."""
BLOCK = 256


def near(name: str, epsilon: float) -> int:
    """Return how many units are near a query of a data set."""
    return next(units for most, units in NEAR[name] if epsilon <= most)


@dataclass(frozen=True, eq=False)
class Voters:
    """Who votes at a budget, and with which noise."""

    directory: Path
    manifest: Manifest
    mechanism: NoisyVotes | Neighbours
    cast: Callable[[Ints, int], tuple[Bools, Ints]]
    """Of test inputs [B], and what accounts allow a unit: which are answered, and the votes."""
    plurality: Callable[[Ints], Ints]
    """What most say of test inputs [B], without noise. A look at private votes: allowed because
    these data are public, and nobody learns from it."""


@dataclass(frozen=True, eq=False)
class Bought:
    """What one run's answers are, and its account."""

    who: str
    label: str
    """Names the run, and how and at which budget it was asked, in what is kept."""
    about: dict[str, Any]
    manifest: Manifest
    answers: Answers
    plurality: float
    epsilon_spent: float
    rule: str


@dataclass(frozen=True, eq=False)
class Experiment:
    """One way to ask the records of a data set, and to measure students.

    source: that of the study, with as many teachers as there shall be.
    """

    study: Study
    source: Source
    protocol: Protocol
    selling: Selling
    delta: float
    runs: int

    def results(self, epsilons: Sequence[float]) -> list[ExperimentResult]:
        """Train what is missing, ask what was not asked, and measure, at each budget.

        Raises what all of that raises.
        """
        bought = {
            epsilon: [self.buy(epsilon, run) for run in range(self.runs)] for epsilon in epsilons
        }
        every = [each for runs in bought.values() for each in runs]
        test = self.source.test
        truth = Answers.of_labels(test.labels, len(test.classes))
        students: dict[str, list[dict[str, Any]]] = {each.label: [] for each in every}
        twins = []
        for number, part in enumerate(parts(self.protocol, self.source)):
            lesson = Lesson(self.source, part)
            for each in every:
                label, who = f"{each.label}-student-{number}", f"{each.who}, student {number + 1}"
                found = self._measure(who, label, lesson, each.answers, each.about)
                students[each.label].append(found)
            most = Counter(str(made[-1]["chosen"]) for made in students.values()).most_common(1)
            about = {"method": most[0][0], "public_inputs": every[0].about["public_inputs"]}
            label = f"{self.source.name}-{self.protocol}-true-labels-{number}"
            twins.append(self._measure(f"True labels, {number + 1}", label, lesson, truth, about))
        return [
            self._result(epsilon, runs, [students[each.label] for each in runs], twins)
            for epsilon, runs in bought.items()
        ]

    def buy(self, epsilon: float, run: int) -> Bought:
        """Ask every public input, once: equal ones have one answer."""
        test, asked = self.source.test, pool_size(self.protocol, self.source)
        by_records = self.selling == "neighbours"
        voters = self.neighbours(epsilon) if by_records else self.teachers(epsilon, run)
        rule = Rule("rdp", cap_order(epsilon, self.delta))
        terms = choose(voters.mechanism, epsilon, self.delta, cap_rule=rule).terms
        numbers = number_distinct_rows(test.inputs[:asked])
        first = np.unique(numbers, return_index=True)[1][numbers]
        different, equal = np.unique(first, return_inverse=True)
        tested = np.concatenate([part.tested for part in parts(self.protocol, self.source)])

        def release() -> dict[str, Any]:
            answered, votes = voters.cast(different, terms.allowance.most if terms.allowance else 0)
            counts = np.zeros((len(different), votes.shape[1]), np.int64)
            counts[answered] = np.asarray(voters.mechanism.release(votes).counts)
            right = voters.plurality(tested) == test.labels[tested]
            found = {"answered": answered.tolist(), "counts": counts.tolist()}
            return {**found, "plurality": float(right.mean())}

        budget = f"epsilon-{epsilon:g}-delta-{self.delta:g}"
        label = f"{voters.directory.name}-{self.protocol}-{budget}-asked-{run}"
        about = {
            "mechanism": {"name": voters.mechanism.name, **asdict(voters.mechanism)},
            "voters": manifest_digest(voters.directory),
            "public_inputs": public_part(self.source).source.sha256,
        }
        found = self.study.once(label, release, **about)
        answered, counts = np.array(found["answered"]), np.array(found["counts"])
        price = terms.price(VoteOutcome.ANSWERED)
        spent = terms.epsilon_spent(int(answered.sum()) * price.cost)
        who = f"Run {run + 1}, ε = {epsilon:g}"
        self.study.say(f"{who}: {asked:,} inputs asked, ε spent {spent:.4f}.")
        answers = self._answers(voters, counts[equal], answered[equal])
        right = found["plurality"]
        return Bought(who, label, about, voters.manifest, answers, right, spent, str(terms.rule))

    def _answers(self, voters: Voters, counts: Ints, known: Bools) -> Answers:
        """Return what students learn from."""
        voting = teachers = voters.manifest.teachers
        if self.selling == "neighbours":
            # Few are near a query: shares are of those that vote, on average over the queries.
            voting = max(1, round(counts[known].sum(axis=1).mean()))
        return Answers.of_counts(
            counts,
            teachers=voting,
            sigma=voters.mechanism.sigma,
            known=known,
            matches_prior=voters.manifest.teacher.matches_prior,
            voting=min(1.0, voting / teachers),
        )

    def teachers(self, epsilon: float, run: int) -> Voters:
        """Trained teachers, all of whom vote on each input; a run deals them the records anew."""
        of = self.source.name, "heads", self.source.teachers, run
        (directory, manifest), votes = self.study.teachers(*of), self.study.votes(*of)
        asked, classes = pool_size(self.protocol, self.source), len(manifest.classes)
        sigma = sigma_for_rows(asked, manifest.teachers, classes, epsilon, self.delta)
        return Voters(
            directory,
            manifest,
            NoisyVotes(manifest.teachers, classes, sigma),
            cast=lambda rows, allowance: (np.ones(len(rows), dtype=bool), votes[rows]),
            plurality=lambda rows: votes[rows].argmax(axis=1),
        )

    def neighbours(self, epsilon: float) -> Voters:
        """Private records, each of which votes near it, with an account: nothing is trained.

        Noise and accounts are planned as by `terrine plan neighbours`, by public rows alone.
        """
        source, units = self.source, near(self.source.name, epsilon)
        directory = self.study.out / "ensembles" / f"{source.name}-neighbours-{units}"
        if not directory.exists():
            build(
                source.private,
                directory,
                name=f"{source.name}-neighbours",
                public=public_part(source),
                settings=NeighbourSettings(near=units),
            )
        ensemble = NeighbourEnsemble.load(directory)
        manifest, by = ensemble.manifest, forecast_from_public(ensemble)
        plan = plan_neighbours(
            by.spent,
            units=by.units,
            near=by.near,
            queries=pool_size(self.protocol, source),
            epsilon=epsilon,
            delta=self.delta,
        )
        mechanism = Neighbours(by.units, len(manifest.classes), plan.sigma, plan.queries)
        inputs, classes = source.test.inputs, np.eye(mechanism.classes, dtype=np.float32)

        def cast(rows: Ints, allowance: int) -> tuple[Bools, Ints]:
            units = Units.of(ensemble.units, ensemble.labels, manifest.units)
            accounts = np.zeros(units.count, np.uint32)
            shadows = np.zeros(ensemble.shadows, np.uint32)
            answered, votes = [], []
            for block in blocks(rows):
                points = ensemble.to_points(inputs[block])
                public = ensemble.public_neighbours(points)
                asked, shadows = mechanism.split_exhausted(
                    public.weights, public.near_wider, shadows, allowance, math.inf
                )
                weights = ensemble.near(points[asked])
                counts, accounts = mechanism.cast(weights, units, accounts, allowance)
                answered.append(asked)
                votes.append(counts)
            return np.concatenate(answered), np.concatenate(votes)

        def plurality(rows: Ints) -> Ints:
            labels = classes[ensemble.labels]
            votes = [ensemble.weights(inputs[block]) @ labels for block in blocks(rows)]
            return np.asarray(np.concatenate(votes).argmax(axis=1))

        return Voters(directory, manifest, mechanism, cast, plurality)

    def _measure(
        self, who: str, label: str, lesson: Lesson, answers: Answers, about: dict[str, Any]
    ) -> dict[str, Any]:
        """Train a student as `terrine student train` does, and measure it and the plain one.

        about: what it depends on, and its `method` if that is known.
        """

        def train() -> dict[str, Any]:
            self.study.say(f"{who}:")
            method = about.get("method", "auto")
            made = lesson.learn(answers, method, lambda line: self.study.say(f"  {line}"))
            right, plain = lesson.right(made.student), lesson.right(made.plain)
            self.study.say(f"  {right / len(lesson.part.tested):.2%}. {made.choice.why}")
            return {"right": right, "plain": plain, "chosen": made.choice.chosen}

        return self.study.once(label, train, **about)

    def _result(
        self,
        epsilon: float,
        runs: Sequence[Bought],
        students: Sequence[Sequence[dict[str, Any]]],
        twins: Sequence[dict[str, Any]],
    ) -> ExperimentResult:
        tested = np.concatenate([part.tested for part in parts(self.protocol, self.source)])
        manifest, last, labels = runs[-1].manifest, runs[-1], self.source.test.labels[tested]
        answers = int(last.answers.known.sum())
        of_papers = None  # they have no accounts
        if self.selling == "noisy_votes":
            of_papers = papers_epsilon(answers, last.about["mechanism"]["sigma"], self.delta)

        def share(found: Sequence[dict[str, Any]], what: str) -> float:
            return float(sum(each[what] for each in found) / len(tested))

        return ExperimentResult(
            data=self.source.name,
            title=self.source.title,
            protocol=self.protocol,
            mechanism=last.about["mechanism"],
            kind=manifest.kind,
            teachers=manifest.teachers,
            public_inputs=pool_size(self.protocol, self.source),
            tested=len(tested),
            epsilon=epsilon,
            delta=self.delta,
            epsilon_spent=max(each.epsilon_spent for each in runs),
            rule=last.rule,
            papers_epsilon=of_papers,
            answers=answers,
            accuracies=[share(found, "right") for found in students],
            plain=[share(found, "plain") for found in students],
            chosen=dict(Counter(each["chosen"] for found in students for each in found)),
            true_labels=share(twins, "right"),
            true_labels_chosen=dict(Counter(each["chosen"] for each in twins)),
            plurality=[each.plurality for each in runs],
            majority=float(np.bincount(labels).max() / len(labels)),
            heads=manifest.teacher.model_dump(
                mode="json", exclude={"kind", "features"}, exclude_none=True
            ),
            warnings=list(self.source.warnings),
        )


def blocks(rows: Ints) -> list[Ints]:
    """Rows that are compared with all records at once."""
    return np.array_split(rows, -(-len(rows) // BLOCK))
