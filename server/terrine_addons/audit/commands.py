"""`terrine audit`: measures the privacy that is delivered, and checks the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from terrine_server.cli.console import as_json, console, errors, fail, print_json, with_json
from terrine_server.progress import stages_bar

if TYPE_CHECKING:
    import numpy as np

    from terrine_addons.audit.findings import AuditFinding, AuditReport
    from terrine_models.data.arrays import Dataset
    from terrine_server.ledger import Ledger


class Subject(StrEnum):
    """What can be audited."""

    MECHANISMS = "mechanisms"
    LEDGER = "ledger"
    STUDENT = "student"


BY_DEFAULT = (Subject.MECHANISMS, Subject.LEDGER)
# Probability that nothing sound fails by chance.
CONFIDENCE = 0.999


# Noise, mechanisms and students share the probability of a false alarm.
STATISTICAL_PARTS = 3


@dataclass(frozen=True)
class SampleSizes:
    """Sample sizes: the larger they are, the smaller the excess that is detected."""

    draws: int
    """Releases for each vote vector, in each half."""
    noise: int
    """Draws of each kind of noise."""
    students: int
    """Students that are trained and attacked."""


FULL = SampleSizes(draws=500_000, noise=10_000_000, students=192)
QUICK = SampleSizes(draws=60_000, noise=1_000_000, students=64)


@dataclass(frozen=True)
class StudentOptions:
    """What students are trained on, to be attacked themselves."""

    public: Path | None = None
    """Labelled public records; None: scikit-learn's digits."""
    label: str | None = None
    classes: str | None = None
    epsilon: float = 1.0
    students: int | None = None


def run_audit(
    subjects: Collection[str],
    effort: SampleSizes,
    confidence: float,
    seed: int,
    ledger: Ledger | None,
    on_finding: Callable[[AuditFinding], None] = lambda finding: None,
    students: StudentOptions | None = None,
) -> AuditReport:
    """Audit the subjects; pass each finding to `on_finding` as it comes.

    `confidence`: the probability that nothing sound is convicted by chance, in all parts together.
    `seed` picks vote vectors and inputs, never noise. `ledger` is None if there is none to audit.
    """
    from terrine_addons.audit.findings import AuditReport

    start = time.monotonic()
    findings = []
    level = (1 - confidence) / STATISTICAL_PARTS
    for finding in _findings(subjects, effort, level, seed, ledger, students or StudentOptions()):
        findings.append(finding)
        on_finding(finding)
    return AuditReport(
        datetime.now(UTC), version("terrine"), confidence, seed, time.monotonic() - start, findings
    )


def _findings(
    subjects: Collection[str],
    effort: SampleSizes,
    level: float,
    seed: int,
    ledger: Ledger | None,
    students: StudentOptions,
) -> Iterator[AuditFinding]:
    import numpy as np

    from terrine_addons.audit.evidence import audit_prices
    from terrine_addons.audit.findings import AuditFinding
    from terrine_addons.audit.ledger import audit_ledger
    from terrine_addons.audit.mechanisms import audit_mechanisms, audit_noise

    choice = np.random.default_rng(seed)
    if "mechanisms" in subjects:
        yield from audit_noise(effort.noise, level)
        yield from audit_mechanisms(effort.draws, level, choice)
        yield from audit_prices()
    if "student" in subjects:
        yield from _attack_students(students, effort.students, level, seed, choice)
    if "ledger" in subjects and ledger is not None:
        yield from audit_ledger(ledger)
    elif "ledger" in subjects:
        yield AuditFinding(
            "ledger", "ledger", "nothing there", "no service was set up on this machine"
        )


def _attack_students(
    given: StudentOptions, usual: int, level: float, seed: int, choice: np.random.Generator
) -> Iterator[AuditFinding]:
    from terrine_addons.audit.membership import Material, audit_students, digits

    data = digits() if given.public is None else _read_public(given.public, given)
    with errors.status("Choosing how a project would ask"):
        material = Material.of(data, epsilon=given.epsilon, seed=seed)
    students = usual if given.students is None else given.students
    with stages_bar(errors, "Training students") as (progress,):
        yield from audit_students(material, students, level, choice, on_student=progress)


def _read_public(path: Path, given: StudentOptions) -> Dataset:
    from terrine_models.formats import load_private
    from terrine_models.tables.loading import load_table
    from terrine_models.tables.proposal import propose_schema
    from terrine_server.cli import reading
    from terrine_tables.formats import is_table

    if not path.exists():
        fail(f"There is no {path}.")
    if not is_table(path):
        if given.label is not None:
            fail("--label is for tables.")
        classes = reading.parse_classes(given.classes)
        return load_private(path, classes=classes, note=reading.note_aside)
    if given.label is None:
        fail("Which column is to be predicted? Name it with --label.")
    found = propose_schema(
        path,
        label=given.label,
        classes=reading.parse_classes(given.classes),
        note=reading.note_aside,
    )
    return load_table(path, found.schema, reading.note_aside, public=True, accept_clipped=True)


@with_json
def audit(
    subjects: Annotated[
        list[Subject] | None,
        typer.Argument(
            metavar="[mechanisms] [ledger] [student]",
            show_default=False,
            help="What to audit; by default the first two.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller samples: about a minute, less power.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**63 - 1,
            show_default="random",
            help="Seed for the votes and inputs to try, never for noise.",
        ),
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Of students: labelled records that play the private ones. They must be public: "
            "what is printed is of students with and without some of them. Default: small digits.",
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Of students, with a table: the column to predict."),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(metavar="N|A,B,…", help="Of students, with IDX or .npz data: its classes."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Of students: ε of their project.  [default: 1]")
    ] = None,
    students: Annotated[
        int | None,
        typer.Option(
            min=16,
            max=100_000,
            metavar="N",
            help="How many to train: half to learn the attack from, half to attack.  "
            "[default: 192, with --quick 64]",
        ),
    ] = None,
) -> None:
    """Measure how much privacy is lost, and compare it with what was charged.

    [bold]mechanisms[/]: the noise, and each mechanism on its worst neighbouring votes.
    [bold]ledger[/]: every charge in the data directory, re-priced from its recorded event.
    [bold]student[/]: membership attacks on what students say, who learned from records that are
    public, with the noise of a first project.

    Exits with code 1 if a loss exceeds its price or the ledger does not add up.
    """
    chosen = subjects or list(BY_DEFAULT)
    import secrets

    from terrine_server import logs

    named = {
        "--public": public,
        "--label": label,
        "--classes": classes,
        "--epsilon": epsilon,
        "--students": students,
    }
    idle = [option for option, given in named.items() if given is not None]
    if Subject.STUDENT not in chosen and idle:
        fail(f"{', '.join(idle)}: only for the audit of students: terrine audit student …")
    idle = [option for option in ("--label", "--classes") if named[option] is not None]
    if public is None and idle:
        fail(f"{', '.join(idle)} says how records are read: name these with --public FILE.")

    ledger = None if Subject.LEDGER not in chosen else _ledger(required=bool(subjects))
    logs.configure("error")
    report = run_audit(
        [subject.value for subject in chosen],
        QUICK if quick else FULL,
        CONFIDENCE,
        secrets.randbelow(2**32) if seed is None else seed,
        ledger,
        (lambda finding: None) if as_json() else _report,
        StudentOptions(public, label, classes, 1.0 if epsilon is None else epsilon, students),
    )
    if as_json():
        print_json(report.to_json())
    _conclude(report)


def _ledger(required: bool) -> Ledger | None:
    """Return the ledger of the data directory, or None if there is none and none is required."""
    from terrine_server.ledger import check_schema, connect
    from terrine_server.owner.operations import open_ledger
    from terrine_server.settings import Settings

    settings = Settings()
    if settings.database_url is None and not settings.data_dir.is_dir():
        if required:
            fail(
                f"There is no data directory {settings.data_dir.absolute()}, so there is no "
                "ledger. Name one with terrine --data-dir DIR audit ledger."
            )
        return None
    check_schema(connect(settings.database, settings.database_password()))
    return open_ledger(settings)


def _report(finding: AuditFinding) -> None:
    colour = "green" if finding.passed else "bold red"
    loss = ""
    if finding.measured is not None and finding.price is not None:
        share = finding.measured / finding.price
        loss = f"{finding.unit} ≥ {finding.measured:.3f}, price {finding.price:.3f} ({share:.0%})"
    head = f"[{colour}]{finding.verdict:>17}[/]  {finding.part:10}  [bold]{finding.subject}[/]"
    console.print(head, loss, highlight=False, soft_wrap=True)
    console.print(f"[dim]{'':31}{escape(finding.evidence)}[/]", highlight=False, soft_wrap=True)


def _conclude(report: AuditReport) -> None:
    if best := report.best_attack:
        (errors if as_json() else console).print(
            f"The best attack on students is right on {best.right:.1%} (at most "
            f"{best.right_limits[1]:.1%} with 95 % confidence) of toss-ups between two versions of "
            f"a record; the promise allows {best.right_allowed:.1%}.",
            highlight=False,
            soft_wrap=True,
        )
    failed = [finding for finding in report.findings if not finding.passed]
    summary = (
        f"{len(report.findings)} findings in {report.seconds:.0f} s, "
        f"confidence {report.confidence:g}, seed {report.seed}."
    )
    if failed:
        fail(f"{summary} {len(failed)} failed: " + ", ".join(finding.subject for finding in failed))
    (errors if as_json() else console).print(
        f"{summary} No loss is above its price.", highlight=False, soft_wrap=True
    )
