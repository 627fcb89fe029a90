"""The steps of the demo: an owner, a server, a student, an auditor, and the results."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from terrine_client import BudgetExhausted, Client
from terrine_client._picture import draw
from terrine_client.distill import Distilled, distill
from terrine_models.features.maps import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.methods import METHODS
from terrine_models.students.settings import Training
from terrine_models.students.task import Task
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import EnsembleRegister, ProjectOpen, Role
from terrine_server.demo.material import DELTA, DemoData
from terrine_server.demo.owner import DemoOwner
from terrine_server.demo.process import running_server
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.progress import teachers_bar

ENSEMBLE, PROJECT = "demo-teachers", "demo"


@dataclass(frozen=True)
class DemoReport:
    """`demo.json`: the results."""

    data: str
    teachers: int
    epsilon: float
    delta: float
    epsilon_spent: float
    """Of the project, in the end: more was asked after the student was trained."""
    asked: int
    answers_right: float
    """Share of the answers of which the highest count is the right class."""
    student: float
    """Accuracy on the held-out images."""
    without_privacy: float
    """The same student with the same settings, on the true labels of all public images."""
    ledger_intact: bool
    ledger_head: str
    seconds: float


class Demo:
    """One run of the demo, with its files under `out`."""

    def __init__(self, material: DemoData, out: Path, console: Console) -> None:
        self.material = material
        self.out = out
        self.console = console
        self.owner = DemoOwner.of(out / "terrine-data")
        self.settings = self.owner.settings
        self.steps = 0
        self.began = time.monotonic()

    def run(self) -> DemoReport:
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
                epsilon_spent = self._ask_again(client, made)
            self._step("The auditor verifies the ledger")
            with Client(url, auditor_token) as auditor:
                found = auditor.verify(PROJECT)
            self._say(
                f"{found.charges:,} entries recomputed: "
                f"{'intact' if found.ok else 'NOT INTACT: ' + '; '.join(found.problems)}."
            )
        self._step("The student compared with training without privacy")
        without_privacy = self._compare(made)
        report = made.report
        figures = DemoReport(
            data=m.name,
            teachers=m.teachers,
            epsilon=report.epsilon,
            delta=report.delta,
            epsilon_spent=epsilon_spent,
            asked=sum(report.outcomes.values()),
            answers_right=float((made.labels == m.truth)[made.labels >= 0].mean()),
            student=made.student.accuracy(m.held_out, m.held_out_labels),
            without_privacy=without_privacy,
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
            f"It answers with the number of votes for each class, of {m.teachers:,} in all, with "
            f"noise of σ = {m.mechanism.sigma:g} on each. One answer says next to nothing; the "
            "student learns from all of them together. The budget pays for at least "
            f"{project.affordable:,} queries."
        )
        student = self.owner.token(ledger, Role.STUDENT, "demo", PROJECT)
        return student, self.owner.token(ledger, Role.AUDITOR, "demo")

    def _distil(self, client: Client) -> Distilled:
        m = self.material
        return distill(
            client,
            m.public,
            self.out / "student",
            held_out=(m.held_out, m.held_out_labels),
            tell=self._say,
        )

    def _ask_again(self, client: Client, made: Distilled) -> float:
        """Ask until the budget refuses, then for old answers. Return the ε spent in the end."""
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
        return again.budget.epsilon_spent

    def _compare(self, made: Distilled) -> float:
        """Accuracy without privacy: of the student that was chosen, on true labels."""
        m, method = self.material, made.report.choice.chosen
        self._say("For comparison: the same student on the true labels of all public images.")
        task = Task(m.public, m.private.spec, m.private.classes)
        answers = Answers.of_labels(m.truth, len(m.private.classes))
        twin = METHODS[method](Training(method)).fit(task, answers)
        return twin.accuracy(m.held_out, m.held_out_labels)

    def _sum_up(self, f: DemoReport) -> None:
        m, verdict = self.material, "intact" if f.ledger_intact else "NOT INTACT"
        table = Table(title=f"terrine demo: {m.name}", show_header=False)
        rows = {
            "student": f"{f.student:.2%} of {len(m.held_out):,} held-out images",
            "on true labels": f"{f.without_privacy:.2%}, the same student without privacy",
            "answers": f"{f.asked:,} bought; by itself, {f.answers_right:.2%} of them are right",
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
        if (self.out / "student" / "accuracy.png").exists():
            self._say(f"  {self.out}/student/accuracy.png      accuracy and ε against queries")
        for line in (
            f"{self.out}/student/                  the student: model.safetensors, report.json",
            f"{self.out}/demo.json                 all figures",
            f"terrine --data-dir {data} ledger show {PROJECT}",
            f"terrine --data-dir {data} ledger verify",
            f"terrine --data-dir {data} dossier --out DIR      what an ethics board files",
            f"terrine --data-dir {data} serve      the same server again",
        ):
            self._say(f"  {line}")

    def _step(self, title: str) -> None:
        self.steps += 1
        seconds = time.monotonic() - self.began
        self.console.rule(f"{self.steps}. {title}  [dim]{seconds:.0f} s[/]", align="left")

    def _say(self, text: str) -> None:
        self.console.print(escape(text), highlight=False, soft_wrap=True)
