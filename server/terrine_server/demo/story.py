"""The steps of the demo: an owner, a server, students, an auditor, and the results."""

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
from terrine_models.data.arrays import Dataset, distinct
from terrine_models.features.maps import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.methods import METHODS
from terrine_models.students.settings import Training
from terrine_models.students.task import Task
from terrine_models.teachers.neighbours import NeighbourSettings, build
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import EnsembleRegister, ProjectOpen, Role
from terrine_server.demo.material import DemoData
from terrine_server.demo.owner import DemoOwner
from terrine_server.demo.process import running_server
from terrine_server.ledger import Ledger
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.owner.ways import choose_way
from terrine_server.planning.first_project import FirstProject, Setting, right_at_most
from terrine_server.progress import teachers_bar

EPSILON = 1.0
"""Of each project."""
PROJECT = "demo"


@dataclass(frozen=True)
class DemoReport:
    """`demo.json`: the results."""

    data: str
    ways: dict[str, float]
    """Accuracy on the held-out images of a student of each way to ask the records, the first of
    which `terrine quickstart` would take."""
    epsilon: float
    delta: float
    epsilon_spent: float
    """Of the first project, in the end: more was asked after the student was trained."""
    right_at_most: float
    """How often a guess between two equally likely versions of a record is right, at most."""
    asked: int
    student: float
    """Accuracy of the first student."""
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
            f"Private: {len(m.private):,} images with labels, of the owner. Public: "
            f"{len(m.public):,} images without labels, of the student. Held out: "
            f"{len(m.held_out):,} images with labels, to test the student."
        )
        self._step("The owner lets the records vote, and opens projects with a budget")
        ledger = self.owner.prepare()
        ways = self._ways()
        names = [PROJECT, *(f"{PROJECT}-{first.way.replace(' ', '-')}" for first in ways[1:])]
        tokens = [self._open(ledger, first, name) for first, name in zip(ways, names, strict=True)]
        auditor_token = self.owner.token(ledger, Role.AUDITOR, "demo")
        made = dict[str, Distilled]()
        with running_server(self.settings.data_dir, self.out / "server.log") as url:
            self._say(f"The server runs at {url}; its log is {self.out}/server.log.")
            for first, name, token in zip(ways, names, tokens, strict=True):
                self._step(f"A student asks {first.way}, and learns")
                with Client(url, token) as client:
                    made[name] = self._distil(client, name)
            self._step("New questions, and old ones")
            with Client(url, tokens[0]) as client:
                epsilon_spent = self._ask_again(client, made[PROJECT])
            self._step("The auditor verifies the ledger")
            with Client(url, auditor_token) as auditor:
                found = [auditor.verify(name) for name in names]
        intact = all(each.ok for each in found)
        problems = [problem for each in found for problem in each.problems]
        self._say(
            f"{sum(each.charges for each in found):,} charges recomputed: "
            f"{'intact' if intact else 'NOT INTACT: ' + '; '.join(problems)}."
        )
        self._step("Without privacy, for comparison")
        report = made[PROJECT].report
        students = [each.student.accuracy(m.held_out, m.held_out_labels) for each in made.values()]
        figures = DemoReport(
            data=m.name,
            ways=dict(zip((first.way for first in ways), students, strict=True)),
            epsilon=report.epsilon,
            delta=report.delta,
            epsilon_spent=epsilon_spent,
            right_at_most=right_at_most(report.epsilon, report.delta),
            asked=sum(report.outcomes.values()),
            student=students[0],
            without_privacy=self._without_privacy(made[PROJECT]),
            ledger_intact=intact,
            ledger_head=found[0].head,
            seconds=time.monotonic() - self.began,
        )
        picture = self.out / "student" / "accuracy.png"
        draw(report, picture, true_labels=figures.without_privacy)
        (self.out / "demo.json").write_text(json.dumps(asdict(figures), indent=2) + "\n")
        self._sum_up(figures)
        return figures

    def _ways(self) -> list[FirstProject]:
        """Return two ways to ask the records: that of quickstart, and another."""
        m = self.material
        setting = Setting.of(
            units=len(m.private),
            rows=int(distinct(m.public).max()) + 1,
            classes=len(m.private.classes),
            epsilon=EPSILON,
        )
        unknown = np.zeros(len(m.public), np.int64)
        sample = Dataset(m.public, unknown, m.private.classes, m.private.spec)
        found = choose_way(setting, sample, self._pool(), labelled=False, people=False)
        first, *others = (each.first for each in found.ways)
        return [first, next(each for each in others if each.way != first.way)]

    def _pool(self) -> PublicData:
        return PublicData.declare("the student's public images", self.material.public)

    def _open(self, ledger: Ledger, first: FirstProject, name: str) -> str:
        """Make what votes, open a project, and return its student's token."""
        m, directory = self.material, self.settings.ensembles_dir / name
        if first.neighbours is not None:
            self._say(
                "Neighbours: the records that are most like a public image vote for their labels."
            )
            near = NeighbourSettings(near=first.neighbours.near)
            build(m.private, directory, name=name, public=self._pool(), settings=near)
        else:
            self._say(
                f"Trained teachers (PATE): {first.teachers:,} models vote, each trained on "
                f"{len(m.private) // first.teachers} images of its own."
            )
            with teachers_bar(self.console, first.teachers) as on_trained:
                train_ensemble(
                    m.private,
                    directory,
                    name=name,
                    teachers=first.teachers,
                    public=self._pool(),
                    on_trained=on_trained,
                )
        register = EnsembleRegister(name=name)
        if not ledger.populations():
            cap = first.cap
            limit = {"epsilon": cap.epsilon, "delta": cap.delta, "rule": cap.rule.name}
            register = register.model_copy(update=limit)
        register_ensemble(ledger, self.settings, register)
        project = ProjectOpen(
            name=name, ensemble=name, mechanism=first.spec, epsilon=EPSILON, delta=first.delta
        )
        open_project(ledger, project)
        self._say(
            f"Project {name}: at most ε = {EPSILON:g} at δ = {first.delta:g}, whatever is asked. "
            "An answer is the number of votes for each digit, with random noise added "
            f"(σ = {first.sigma:g})."
        )
        return self.owner.token(ledger, Role.STUDENT, "demo", name)

    def _distil(self, client: Client, name: str) -> Distilled:
        m = self.material
        return distill(
            client,
            m.public,
            self.out / name.replace(PROJECT, "student"),
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
        old = np.flatnonzero(made.outcomes == "answered")[:100]
        before = client.budget()
        again = client.label(m.public[old])
        same = bool((again.labels == made.labels[old]).all() and again.replayed.all())
        free = again.budget.spent == before.spent
        self._say(
            f"{len(old)} images that were sent before: {'the same' if same else 'OTHER'} answers, "
            f"{'free' if free else 'NOT FREE'}. With the same noise again, there is nothing to "
            "average."
        )
        return again.budget.epsilon_spent

    def _without_privacy(self, made: Distilled) -> float:
        """Accuracy without privacy: of the student that was chosen, on true labels."""
        m, method = self.material, made.report.choice.chosen
        self._say("The same kind of student learns from the true labels of all public images.")
        task = Task(m.public, m.private.spec, m.private.classes)
        answers = Answers.of_labels(m.truth, len(m.private.classes))
        twin = METHODS[method](Training(method)).fit(task, answers)
        return twin.accuracy(m.held_out, m.held_out_labels)

    def _sum_up(self, f: DemoReport) -> None:
        m, verdict = self.material, "intact" if f.ledger_intact else "NOT INTACT"
        (_, student), *others = f.ways.items()
        table = Table(title=f"terrine demo: {m.name}", show_header=False)
        table.add_row("with privacy", f"{student:.1%} of {len(m.held_out):,} held-out images right")
        table.add_row("without privacy", f"{f.without_privacy:.1%}, the same on true labels")
        for way, accuracy in others:
            table.add_row(f"by {way}", f"{accuracy:.1%}, at the same ε, from the same questions")
        guess = (
            "a guess between two versions of a record, by somebody who knows all others, is right "
            f"at most {f.right_at_most:.0%} of the time"
        )
        rows = {
            "privacy": f"ε = {f.epsilon:g}, δ = {f.delta:g}, {f.asked:,} questions asked",
            "what can be learned": guess,
            "ledger": f"{verdict}: every charge was recomputed",
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
            f"{self.out}/student/                  its student: model.safetensors, report.json",
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
