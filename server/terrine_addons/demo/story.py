"""The steps of the demo: an owner, a server, students, an auditor, and the results."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from terrine_addons.demo.material import DemoData
from terrine_client import BudgetExhausted, Client
from terrine_client._report import draw
from terrine_client.distill import Distilled, distill
from terrine_models.data.arrays import Dataset, number_distinct_rows
from terrine_models.features.maps import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.models import METHODS, Task, Training
from terrine_models.teachers.neighbours import NeighbourSettings, build
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import EnsembleRegister, ProjectOpen, Role
from terrine_protocol.errors import TerrineError
from terrine_server.ledger import Ledger
from terrine_server.owner.operations import LocalOwner, open_project, register_ensemble
from terrine_server.planning.first_project import FirstProject, Setting, max_guess_accuracy
from terrine_server.planning.forecast import compare_options
from terrine_server.progress import teachers_bar

START_SECONDS = 90.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1
LOG_LINES = 15
RUNNING = re.compile(rb"running on (http://\S+) ")


class ServerError(TerrineError):
    """The server did not start; the message has the end of its log."""


@contextmanager
def running_server(data_dir: Path, log: Path) -> Iterator[str]:
    """Run `terrine serve` on `data_dir` at a free local port; yield its URL.

    Its output goes to `log`. TERRINE_* variables of the environment are not passed on.
    Raises ServerError.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TERRINE_")}
    environment["TERRINE_DATA_DIR"] = str(data_dir)
    command = [sys.executable, "-m", "terrine_server", "serve", "--port", "0"]
    server = None
    try:
        with log.open("ab") as output, _defer_interrupts():
            before = output.tell()
            server = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        url = _wait_until_ready(server, log, before)
        yield url
    finally:
        if server is not None:
            _stop(server)


@contextmanager
def _defer_interrupts() -> Iterator[None]:
    """Let interrupts wait: one within `Popen` would leave a server that nobody knows of."""
    numbers = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if os.name == "posix" else []))
    before = {number: signal.getsignal(number) for number in numbers}
    handled = {number: handler for number, handler in before.items() if callable(handler)}
    came: list[int] = []
    for number in handled:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        for each in came:
            signal.raise_signal(each)


def _wait_until_ready(server: subprocess.Popen[bytes], log: Path, before: int) -> str:
    """Return the URL that the server says in its log, after the bytes that were there before."""
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(timeout=5, trust_env=False) as http:
        while server.poll() is None and time.monotonic() < deadline:
            said = RUNNING.search(log.read_bytes(), before)
            try:
                if said and http.get(f"{said[1].decode()}/readyz").is_success:
                    return said[1].decode()
            except httpx.TransportError:
                pass
            time.sleep(POLL_SECONDS)
    code = server.poll()
    what = f"is not ready after {START_SECONDS:g} s" if code is None else f"ended with code {code}"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
    raise ServerError(f"the server {what}. Its log, {log}, ends:\n{tail or '(empty)'}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


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
        self.owner = LocalOwner.of(out / "terrine-data")
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
        names = [PROJECT, *(f"{PROJECT}-{first.option.replace(' ', '-')}" for first in ways[1:])]
        tokens = [self._open(ledger, first, name) for first, name in zip(ways, names, strict=True)]
        auditor_token = self.owner.token(ledger, Role.AUDITOR, "demo")
        made = dict[str, Distilled]()
        with running_server(self.settings.data_dir, self.out / "server.log") as url:
            self._say(f"The server runs at {url}; its log is {self.out}/server.log.")
            for first, name, token in zip(ways, names, tokens, strict=True):
                self._step(f"A student asks {first.option}, and learns")
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
            ways=dict(zip((first.option for first in ways), students, strict=True)),
            epsilon=report.epsilon,
            delta=report.delta,
            epsilon_spent=epsilon_spent,
            right_at_most=max_guess_accuracy(report.epsilon, report.delta),
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
            rows=int(number_distinct_rows(m.public).max()) + 1,
            classes=len(m.private.classes),
            epsilon=EPSILON,
        )
        unknown = np.zeros(len(m.public), np.int64)
        sample = Dataset(m.public, unknown, m.private.classes, m.private.spec)
        found = compare_options(setting, sample, self._pool(), labelled=False, people=False)
        first, *others = (each.first for each in found.options)
        return [first, next(each for each in others if each.option != first.option)]

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
        if not ledger.ensembles.list_populations():
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
            f"{self.out}/student/                  its student, with card and privacy.json",
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
