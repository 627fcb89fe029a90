"""The steps of the demo: an owner, a server, a student, an auditor, and the results."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from terrine_client import BudgetExhausted, Client
from terrine_client._picture import draw
from terrine_client.distill import Distilled, distill
from terrine_models.data.workers import side_by_side
from terrine_models.features.maps import PublicData
from terrine_models.students.answers import CERTAIN, student_from_answers, true_counts
from terrine_models.students.models import Student
from terrine_models.students.networks import Training, train_student
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import ConfidentGNMaxSpec, EnsembleRegister, NoisyVotesSpec, ProjectOpen, Role
from terrine_server.bars import comparison_bar, steps_bar, teachers_bar
from terrine_server.demo.folds import FOLDS, assign_folds
from terrine_server.demo.material import DELTA, Material
from terrine_server.demo.owner import DemoOwner
from terrine_server.demo.process import running_server
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.privacy import Terms

ENSEMBLE, PROJECT = "demo-teachers", "demo"
OnStep = Callable[[int, int], None]


@dataclass(frozen=True)
class Figures:
    """`demo.json`: the results."""

    data: str
    teachers: int
    epsilon: float
    delta: float
    epsilon_spent: float
    asked: int
    answered: int
    abstained: int
    labels_right: float
    """Share of the bought labels that are correct; of noisy counts, the highest is the label."""
    student: float
    """Accuracy on the held-out images."""
    without_privacy: float
    """The same student with the same settings, on the true labels of all public images."""
    folds: float | None
    """Accuracy over all test images; see `Demo._fold`. None where that is left out."""
    ledger_intact: bool
    ledger_head: str
    seconds: float


def _answers(m: Material) -> str:
    """Say what the project's mechanism answers."""
    match m.mechanism:
        case ConfidentGNMaxSpec(threshold=threshold, sigma1=sigma1, sigma2=sigma2):
            return (
                f"It answers where about {threshold:,} of {m.teachers:,} teachers agree (noise "
                f"σ₁ = {sigma1:g} on the highest count, σ₂ = {sigma2:g} on each count to choose "
                "the label), and abstains elsewhere."
            )
        case NoisyVotesSpec(sigma=sigma):
            return (
                f"It answers with the number of votes for each class, of {m.teachers:,} in all, "
                f"with noise of σ = {sigma:g} on each. One answer says next to nothing; the "
                "student learns from all of them together."
            )


def _bought(terms: Terms) -> str:
    """Say what the rule that was chosen buys, beside the next best."""
    if terms.choice is None or len(terms.choice.considered) < 2:
        return ""
    best, other = terms.choice.considered[:2]
    if best.answer_share is None:
        return f"About {best.answers:,} answers are expected."
    return (
        f"The test and the noisy maximum are priced together: about {best.answers:,} answers are "
        f"expected, where they would be {other.answers:,} priced separately."
    )


class Demo:
    """One run of the demo, with its files under `out`."""

    def __init__(self, material: Material, out: Path, console: Console) -> None:
        self.material = material
        self.out = out
        self.console = console
        self.owner = DemoOwner.of(out / "terrine-data")
        self.settings = self.owner.settings
        self.steps = 0
        self.began = time.monotonic()

    def run(self) -> Figures:
        """Run all steps. Raises what they raise."""
        m = self.material
        self._step("Data")
        self._say(f"{m.name}, {m.why}.")
        self._say(
            f"Private: {len(m.private):,} labelled images, the owner's. Public: {len(m.public):,} "
            f"unlabelled images, the student's. Held out: {len(m.held_out):,} labelled images, "
            "to measure the student's accuracy."
        )
        self._step("The owner trains teachers")
        self._train_teachers()
        self._step("The owner opens a project with a budget")
        student_token, auditor_token = self._open_project()
        self._step("A student sends queries to the server")
        with running_server(self.settings.data_dir, self.out / "server.log") as url:
            self._say(f"Serving at {url} in a separate process; its log is {self.out}/server.log.")
            with Client(url, student_token) as client:
                made = self._distil(client)
                self._step("New queries and repeated ones")
                self._ask_again(client, made)
            self._step("The auditor verifies the ledger")
            with Client(url, auditor_token) as auditor:
                found = auditor.verify(PROJECT)
            self._say(
                f"{found.charges:,} entries recomputed: "
                f"{'intact' if found.ok else 'NOT INTACT: ' + '; '.join(found.problems)}."
            )
        self._step("The student compared with training without privacy")
        without_privacy, folds = self._compare(made)
        report = made.report
        bought = made.labels >= 0
        figures = Figures(
            data=m.name,
            teachers=m.teachers,
            epsilon=report.epsilon,
            delta=report.delta,
            epsilon_spent=report.epsilon_spent,
            asked=sum(report.outcomes.values()),
            answered=int(bought.sum()),
            abstained=report.outcomes.get("abstained", 0),
            labels_right=float((made.labels == m.truth)[bought].mean()),
            student=made.student.accuracy(m.held_out, m.held_out_labels),
            without_privacy=without_privacy,
            folds=folds,
            ledger_intact=found.ok,
            ledger_head=found.head,
            seconds=time.monotonic() - self.began,
        )
        picture = self.out / "student" / "accuracy.png"
        draw(report, picture, true_labels=without_privacy)
        (self.out / "demo.json").write_text(json.dumps(asdict(figures), indent=2) + "\n")
        self._sum_up(figures)
        return figures

    def _train_teachers(self) -> None:
        m = self.material
        self._say(
            f"{m.teachers:,} teachers, {len(m.private) // m.teachers} private images each, no "
            "image used twice. They share a feature map fitted on the public images; on top of it, "
            "each learns from its own images only."
        )
        with teachers_bar(self.console, m.teachers) as on_trained:
            train_ensemble(
                m.private,
                self.settings.ensembles_dir / ENSEMBLE,
                name=ENSEMBLE,
                teachers=m.teachers,
                config=m.heads,
                public=PublicData.declare("the student's public images", m.public),
                on_trained=on_trained,
            )

    def _open_project(self) -> tuple[str, str]:
        """Return the tokens of the student and of the auditor."""
        m, settings = self.material, self.settings
        ledger = self.owner.prepare()
        # Twice the budget of one project, which leaves room for a second one.
        register_ensemble(
            ledger, settings, EnsembleRegister(name=ENSEMBLE, epsilon=2 * m.epsilon, delta=DELTA)
        )
        request = ProjectOpen(
            name=PROJECT, ensemble=ENSEMBLE, mechanism=m.mechanism, epsilon=m.epsilon, delta=DELTA
        )
        project = open_project(ledger, request)
        self._say(
            f"Project {PROJECT}: at most ε = {m.epsilon:g} at δ = {DELTA:g}, whatever is sent. "
            f"{_answers(m)} The budget pays for at least {project.affordable:,} queries. "
            f"{_bought(project.terms)}".rstrip()
        )
        student = self.owner.token(ledger, Role.STUDENT, "demo", PROJECT)
        return student, self.owner.token(ledger, Role.AUDITOR, "demo")

    def _distil(self, client: Client) -> Distilled:
        m = self.material
        with steps_bar(self.console) as on_step:
            return distill(
                client,
                m.public,
                self.out / "student",
                held_out=(m.held_out, m.held_out_labels),
                training=m.training,
                tell=self._say,
                on_step=on_step,
            )

    def _ask_again(self, client: Client, made: Distilled) -> None:
        m = self.material
        self._say("Images that were never sent:")
        fresh = np.concatenate([m.public[made.outcomes == ""], m.held_out])
        for answers in range(len(fresh)):
            try:
                client.label(fresh[answers : answers + 1])
            except BudgetExhausted as error:
                more = f"{answers} more answer{'' if answers == 1 else 's'}"
                self._say(f"  refused, after {more}. {error}")
                break
        old = np.flatnonzero(made.outcomes != "")[:100]
        before = client.budget()
        again = client.label(m.public[old])
        same = bool((again.labels == made.labels[old]).all() and again.replayed.all())
        free = again.budget.spent == before.spent
        self._say(
            f"{len(old)} images that were sent before: {'the same' if same else 'OTHER'} answers, "
            f"{'free' if free else 'NOT FREE'}: ε spent was {before.epsilon_spent:.4f} and is "
            f"{again.budget.epsilon_spent:.4f}. Without fresh noise there is nothing to average."
        )

    def _compare(self, made: Distilled) -> tuple[float, float | None]:
        """Accuracy without privacy, and if the material says so over the whole test set."""
        m = self.material
        self._say("For comparison: the same student on the true labels of all public images.")
        plain = self._twin(made).accuracy(m.held_out, m.held_out_labels)
        if not m.folds:
            return plain, None
        self._say(
            f"And {FOLDS} students, each trained without a fifth of the test images and tested on "
            "it."
        )
        halt = threading.Event()
        with comparison_bar(self.console, FOLDS * m.training.steps) as advance:

            def on_step(done: int, steps: int) -> None:
                if halt.is_set():
                    raise InterruptedError("the demo was interrupted")
                advance()

            try:
                right = side_by_side(
                    lambda fold: self._fold(fold, made.labels, on_step), range(FOLDS)
                )
            except BaseException:
                halt.set()  # otherwise the program would wait for every student to finish
                raise
        return plain, sum(right) / (len(m.public) + len(m.held_out))

    def _twin(self, made: Distilled) -> Student:
        """Train the student that was chosen, with the same settings, on true labels."""
        m, counts = self.material, isinstance(self.material.mechanism, NoisyVotesSpec)
        training = m.training
        if not counts:
            training = replace(training, method=made.report.choice.chosen)
        with steps_bar(self.console) as on_step:
            return student_from_answers(
                m.public,
                m.truth,
                teachers=1,
                noisy_counts=true_counts(m.truth, len(m.private.classes)) if counts else None,
                noise_sigma=CERTAIN if counts else None,
                inputs=m.private.spec,
                classes=m.private.classes,
                training=training,
                on_step=on_step,
            ).student

    def _fold(self, number: int, labels: NDArray[np.int64], on_step: OnStep) -> float:
        """Return how many images of fold `number` a student trained without it gets right.

        The folds divide all test images, held-out ones included. The student sees the public images
        outside its fold, with the labels bought for them in the project above.
        """
        m = self.material
        images = np.concatenate([m.public, m.held_out])
        truth = np.concatenate([m.truth, m.held_out_labels])
        fold = assign_folds(len(images))
        seen = np.flatnonzero(fold[: len(m.public)] != number)
        student = self._learn(m.public[seen], labels[seen], m.training, on_step)
        tested = fold == number
        return float((student.predict(images[tested]) == truth[tested]).sum())

    def _learn(
        self,
        x: NDArray[np.uint8],
        labels: NDArray[np.int64],
        training: Training,
        on_step: OnStep,
    ) -> Student:
        private = self.material.private
        return train_student(
            x,
            labels,
            inputs=private.spec,
            classes=private.classes,
            training=training,
            on_step=on_step,
        )

    def _sum_up(self, f: Figures) -> None:
        m, verdict = self.material, "intact" if f.ledger_intact else "NOT INTACT"
        table = Table(title=f"terrine demo: {m.name}", show_header=False)
        rows = {
            "student": f"{f.student:.2%} of {len(m.held_out):,} held-out images",
            "on true labels": f"{f.without_privacy:.2%}, the same student without privacy",
        }
        if f.folds is not None:
            rows[f"{FOLDS} folds"] = (
                f"{f.folds:.2%} of all {len(m.public) + len(m.held_out):,} test images, each by a "
                "student trained without its fold (labels from the same project)"
            )
        alone = ", each by itself" if isinstance(m.mechanism, NoisyVotesSpec) else ""
        rows |= {
            "labels": f"{f.answered:,} bought, {f.labels_right:.2%} of them correct{alone}",
            "queries": f"{f.asked:,} sent, {f.abstained:,} abstentions",
            "privacy": f"ε = {f.epsilon_spent:.4f} of {f.epsilon:g} spent at δ = {f.delta:g}, "
            "worst case",
            "teachers": f"{f.teachers:,}",
            "ledger": f"{verdict}, head {f.ledger_head[:16]}…",
            "time": f"{f.seconds:.0f} s",
        }
        for row in rows.items():
            table.add_row(*row)
        self.console.print()
        self.console.print(table)
        data = self.settings.data_dir
        self._say("\nWhere to look:")
        for line in (
            f"{self.out}/student/accuracy.png      accuracy and ε against queries",
            f"{self.out}/student/                  the student: model.safetensors, report.json",
            f"{self.out}/demo.json                 all figures",
            f"terrine --data-dir {data} ledger show {PROJECT}",
            f"terrine --data-dir {data} ledger verify",
            f"terrine --data-dir {data} serve      the same server again",
        ):
            self._say(f"  {line}")

    def _step(self, title: str) -> None:
        self.steps += 1
        seconds = time.monotonic() - self.began
        self.console.rule(f"{self.steps}. {title}  [dim]{seconds:.0f} s[/]", align="left")

    def _say(self, text: str) -> None:
        self.console.print(escape(text), highlight=False, soft_wrap=True)
