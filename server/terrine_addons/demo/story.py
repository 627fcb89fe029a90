"""The steps of the demo: an owner, a student, an auditor, and the results."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.table import Table

from terrine_addons.demo.material import DemoData
from terrine_client import BudgetExhausted, Client
from terrine_client.distill import Distilled, distill
from terrine_models.students.answers import Answers
from terrine_models.students.methods import METHODS
from terrine_models.students.models import Task, Training
from terrine_protocol import EnsembleRegister, Role
from terrine_server import logs
from terrine_server.app import serving
from terrine_server.cli.console import command_text, console, say
from terrine_server.cli.reading import Terminal
from terrine_server.ledger import Ledger
from terrine_server.owner.operations import LocalOwner
from terrine_server.planning.first_project import max_guess_accuracy
from terrine_server.quickstart.choice import choose
from terrine_server.quickstart.dialogue import Described
from terrine_server.quickstart.opening import make_student_token, open_first_project
from terrine_server.quickstart.records import read_records
from terrine_server.quickstart.report import describe

EPSILON = 1.0
PROJECT = "demo"


@dataclass(frozen=True)
class DemoReport:
    """`demo.json`: the results."""

    data: str
    epsilon: float
    delta: float
    epsilon_spent: float
    """In the end: more was asked after the student was trained."""
    right_at_most: float
    """How often a guess between two equally likely versions of a record is right, at most."""
    asked: int
    student: float
    """Accuracy on the held-out images."""
    without_privacy: float
    """The same student with the same settings, on the true labels of all public images."""
    ledger_intact: bool
    ledger_head: str
    seconds: float


class _Owner(Terminal):
    """Agrees to everything, and reads no more than five lines."""

    def note(self, sentence: str) -> None:
        """Leave it to `terrine quickstart` to say more."""


class Demo:
    """One run of the demo, with its files under `out`."""

    def __init__(self, material: DemoData, out: Path) -> None:
        self.material = material
        self.out = out
        self.owner = LocalOwner.of(out / "terrine-data")
        self.steps = 0
        self.began = time.monotonic()

    def run(self) -> DemoReport:
        """Run all steps. Raises what they raise."""
        m, out = self.material, self.out
        logs.configure("error", "json")
        self._step("Pictures of digits")
        say(f"{m.name}, {m.why}.")
        private, public, held_out = m.save(out)
        say(f"The owner's, with labels, which nobody else may see: {len(m.private):,}, {private}")
        say(f"A student's, without labels: {len(m.public):,}, {public}")
        say(f"The student's own, to test what it learns: {len(m.held_out):,}, {held_out}")
        self._step("The owner lets the private pictures answer, under a budget")
        data = ["--data-dir", self.owner.settings.data_dir]
        self._by(*data, "quickstart", private, "--public", public, "--name", PROJECT)
        ledger = self.owner.prepare()
        token = self._open(ledger, private, public)
        auditor_token = self.owner.token(ledger, Role.AUDITOR, "demo")
        with serving(self.owner.settings) as url:
            self._by(*data, "serve")
            with Client(url, token) as client:
                self._step("The student asks about its pictures, and learns from the answers")
                trained = ["student", "train", public, "--held-out", held_out]
                self._by(*trained, "--out", out / "student")
                tested = m.held_out, m.held_out_labels
                made = distill(client, m.public, out / "student", held_out=tested, tell=say)
                self._step("It asks for more, and for the same again")
                epsilon_spent = self._ask_again(client, made)
            self._step("An auditor recomputes the ledger, in which every answer was paid for")
            self._by(*data, "ledger", "verify")
            with Client(url, auditor_token) as auditor:
                found = auditor.verify(PROJECT)
        problems = "" if found.ok else f": {'; '.join(found.problems)}"
        say(f"{found.charges:,} charges: {'intact' if found.ok else 'NOT INTACT'}{problems}.")
        self._step("Without privacy, for comparison")
        report = made.report
        figures = DemoReport(
            data=m.name,
            epsilon=report.epsilon,
            delta=report.delta,
            epsilon_spent=epsilon_spent,
            right_at_most=max_guess_accuracy(report.epsilon, report.delta),
            asked=sum(report.outcomes.values()),
            student=made.student.accuracy(m.held_out, m.held_out_labels),
            without_privacy=self._without_privacy(made),
            ledger_intact=found.ok,
            ledger_head=found.head,
            seconds=time.monotonic() - self.began,
        )
        (out / "demo.json").write_text(json.dumps(asdict(figures), indent=2) + "\n")
        self._sum_up(figures)
        return figures

    def _open(self, ledger: Ledger, private: Path, public: Path) -> str:
        """Open a project as `terrine quickstart` does, and return its student's token."""
        owner, register = _Owner(is_asked=False), EnsembleRegister(name=PROJECT)
        schema = self.out / "schema.json"  # of tables alone
        records, data, _ = read_records(private, Described(public), schema, owner)
        choice = choose(data, None, register, EPSILON, owner)
        for heading, text in describe(data, choice.forecast, None).items():
            console.print(f"[bold]{heading}[/]  {escape(text)}", soft_wrap=True, highlight=False)
        open_first_project(choice, records, ledger, self.owner.settings, owner)
        token = make_student_token(ledger, self.owner.settings, PROJECT)
        assert token is not None  # noqa: S101 - the first one of a new project
        return token

    def _ask_again(self, client: Client, made: Distilled) -> float:
        """Ask until the budget refuses, then for old answers. Return the ε spent in the end."""
        m = self.material
        fresh = np.concatenate([m.public[made.outcomes == ""], m.held_out])
        for answers in range(len(fresh)):
            try:
                client.label(fresh[answers : answers + 1])
            except BudgetExhausted as error:
                more = f"{answers} more answer{'' if answers == 1 else 's'}"
                say(f"New pictures: refused, after {more}. {error}")
                break
        old = np.flatnonzero(made.outcomes == "answered")[:100]
        before = client.budget()
        again = client.label(m.public[old])
        same = bool((again.labels == made.labels[old]).all() and again.replayed.all())
        free = again.budget.spent == before.spent
        say(
            f"{len(old)} pictures once more: {'the same' if same else 'OTHER'} answers, "
            f"{'free' if free else 'NOT FREE'}. With the same noise again, there is nothing to "
            "average."
        )
        return again.budget.epsilon_spent

    def _without_privacy(self, made: Distilled) -> float:
        """Accuracy without privacy: of the student that was chosen, on true labels."""
        m, method = self.material, made.report.choice.chosen
        say("The same kind of student learns from the true labels of all its pictures.")
        task = Task(m.public, m.private.spec, m.private.classes)
        answers = Answers.of_labels(m.truth, len(m.private.classes))
        twin = METHODS[method](Training(method)).fit(task, answers)
        return twin.accuracy(m.held_out, m.held_out_labels)

    def _sum_up(self, f: DemoReport) -> None:
        m, out, data = self.material, self.out, self.owner.settings.data_dir
        table = Table(title=f"terrine demo: {m.name}", show_header=False)
        guess = (
            "a guess between two versions of a record, by somebody who knows all others, is right "
            f"at most {f.right_at_most:.0%} of the time"
        )
        verdict = "intact" if f.ledger_intact else "NOT INTACT"
        rows = {
            "with privacy": f"{f.student:.1%} of {len(m.held_out):,} held-out images right",
            "without privacy": f"{f.without_privacy:.1%}, the same on true labels",
            "privacy": f"ε = {f.epsilon:g}, δ = {f.delta:g}, {f.asked:,} questions asked",
            "what can be learned": guess,
            "ledger": f"{verdict}: every charge was recomputed",
            "time": f"{f.seconds:.0f} s",
        }
        for row in rows.items():
            table.add_row(*row)
        console.print()
        console.print(table)
        say("\nWhere to look:")
        for what, where in {
            f"{out}/student/": "the student, with card, privacy.json and report",
            f"{out}/demo.json": "all figures",
            command_text("--data-dir", data, "ledger", "show", PROJECT): "what was paid",
            command_text("--data-dir", data, "dossier"): "a page for an ethics board",
        }.items():
            say(f"  {where}: {what}")

    def _step(self, title: str) -> None:
        self.steps += 1
        seconds = time.monotonic() - self.began
        console.rule(f"{self.steps}. {title}  [dim]{seconds:.0f} s[/]", align="left")

    def _by(self, *words: object) -> None:
        """Say which command does what follows."""
        say(f"The same as: {command_text(*words)}")
