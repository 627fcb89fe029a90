"""`terrine ledger verify` and `terrine ledger checkpoint`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from terrine_server.cli.console import console, errors, fail, opened_ledger, writing
from terrine_server.progress import entries_bar

if TYPE_CHECKING:
    from terrine_protocol import LogVerification, Verification
    from terrine_server.ledger import Ledger

Project = Annotated[str | None, typer.Argument(help="A project, or `all`.", show_default="all")]


def verify(
    project: Project = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON written by `export`, to verify instead of the ledger.",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Whose signatures the transparency log needs; it is verified, too, with all. "
            "With --checkpoint, by default the service's own policy, or its own key.",
        ),
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A checkpoint of any time, which log and ledger must continue. Repeat it.",
        ),
    ] = None,
    accounts: Annotated[
        Path | None,
        typer.Option(
            metavar="INPUTS",
            help="For a project of neighbours: .npy or .npz with all inputs that students asked, "
            "such as the pool; each person's account is recomputed from the records.",
        ),
    ] = None,
) -> None:
    """Recompute every hash, number, price, balance and seal. Exits with code 1 if any is wrong.

    With `all`, also the administrative log, and requests, tokens, projects and ensembles by it.

    An older backup, a rewritten chain, or entries removed from the end together with a balance set
    back to match, are consistent in themselves: only what is kept elsewhere reveals them, a
    checkpoint, or the cosignatures of witnesses. See docs/transparency.md.
    """
    from terrine_server.ledger.verifying.walk import verify_export

    if file is not None and project is not None:
        fail("Name a project or give --file with an export, not both.")
    if accounts is not None and (file is not None or project in (None, "all")):
        fail("--accounts goes with one project of this machine's ledger: name it.")
    logged = policy is not None or bool(checkpoint)
    if logged and file is not None:
        fail("An export is held against the log by docs/check_log.py: leave --file out.")
    if logged and project not in (None, "all"):
        fail("--policy and --checkpoint are of the log of all projects: leave the project out.")
    if file is not None:
        with entries_bar(errors, file.name) as progress:
            found = verify_export(file, progress)
        intact = _report(found.project, f"{found.charges} charges", found)
    else:
        intact = _verify_ledger(project or "all")
        if logged:
            intact = _verify_tree(policy, checkpoint or []) and intact
        if accounts is not None:
            intact = _verify_accounts(project or "all", accounts) and intact
    if not intact:
        raise typer.Exit(1)


def checkpoint(
    output: Annotated[
        Path | None, typer.Option(help="File to write; default: standard output.")
    ] = None,
) -> None:
    """Write a checkpoint of the ledger as it is now: log what is new, and sign the log.

    Later, `terrine ledger verify --checkpoint FILE` shows whether the ledger still holds every
    entry of now. Keep the file where nobody who can write to the database can reach it. A server
    does the same every few seconds, and serves its last one at `/checkpoint`.
    """
    from terrine_server.owner.checkpoints import sign_now
    from terrine_server.settings import Settings

    note = sign_now(opened_ledger(), Settings())
    with writing(output) as file:
        file.write(note)
    if output is not None:
        size = note.splitlines()[1]
        line = f"Wrote a checkpoint of {size} entries to {output}."
        console.print(line, highlight=False, soft_wrap=True)


def _verify_ledger(project: str) -> bool:
    from terrine_server.owner.verification import verify_log, verify_project

    ledger = opened_ledger()
    names = ledger.project_names() if project == "all" else [project]
    intact = True
    for name in names:
        with entries_bar(errors, name) as progress:
            found = verify_project(ledger, name, progress)
        intact = _report(name, f"{found.charges} charges", found) and intact
        if found.ok:
            _say_missing(ledger, name)
    if not names:
        console.print("No project has been opened yet.")
    if project == "all":
        log = verify_log(ledger)
        intact = _report("administrative log", f"{log.entries} entries", log) and intact
        intact = _continues_signed(ledger) and intact
    return intact


def _continues_signed(ledger: Ledger) -> bool:
    """Print that the ledger does not continue what was signed of it here, if it does not."""
    from terrine_server.errors import LedgerRestored, LogNotSigned

    try:
        ledger.check_history()
    except (LedgerRestored, LogNotSigned) as error:
        line = f"last signed checkpoint: [bold red]NOT CONTINUED[/]\n  {escape(str(error))}"
        console.print(line, highlight=False, soft_wrap=True)
        return False
    return True


def _verify_tree(path: Path | None, checkpoints: list[Path]) -> bool:
    from terrine_protocol.files import read
    from terrine_protocol.transparency.notes import LARGEST
    from terrine_server.owner.checkpoints import load_policy, own_policy
    from terrine_server.settings import Settings

    policy = load_policy(path) or own_policy(Settings())
    if policy is None:
        fail("Here is no key of a log, nor a policy that names one: give --policy.")
    earlier = {str(each): read(each, LARGEST).decode(errors="replace") for each in checkpoints}
    found = opened_ledger().check_tree(policy, earlier)
    verdict = "[green]intact[/]" if found.ok else "[bold red]NOT INTACT[/]"
    by = ", ".join(sorted(found.cosigned)) or "nobody"
    line = f"transparency log: {verdict}, {found.size} entries, cosigned by {by}"
    console.print(line, highlight=False, soft_wrap=True)
    if found.waiting:
        console.print(f"  {found.waiting} entries are not in it yet", highlight=False)
    for problem in found.problems:
        console.print(f"  {problem}", markup=False, highlight=False, soft_wrap=True)
    return found.ok


def _say_missing(ledger: Ledger, project: str) -> None:
    """Say so if a project's mechanism is of a package that is not here."""
    from terrine_server.privacy import ParameterError, build_mechanism

    record = ledger.project(project)
    facts, spec = record.ensemble.facts, record.mechanism
    if "." not in spec["name"]:
        return
    try:
        build_mechanism(spec, teachers=facts.teachers, classes=len(facts.classes))
    except ParameterError as error:
        console.print(
            f"  {error} Its prices were recomputed from the cost events on record; that they are "
            "those of the mechanism, only its package shows, and until it is installed nothing is "
            "answered.",
            highlight=False,
            soft_wrap=True,
        )


def _verify_accounts(project: str, path: Path) -> bool:
    from terrine_models.data.arrays import load_inputs
    from terrine_server.labeling.account_checks import recast
    from terrine_server.labeling.local_voters import LocalVoters
    from terrine_server.settings import Settings

    settings = Settings()
    voters = LocalVoters(settings.data_dir, settings.device)
    found = recast(opened_ledger(), voters, project, load_inputs(path))
    if found.same is None:
        line = f"not recomputed: {found.unknown} of {found.queries} queries are not in {path}"
    elif found.same:
        line = f"[green]intact[/], as the records make them in {found.queries} queries"
    else:
        line = "[bold red]NOT INTACT[/], not those that the records make"
    console.print(f"{project}: accounts {line}", highlight=False, soft_wrap=True)
    return found.same is True


def _report(what: str, entries: str, found: Verification | LogVerification) -> bool:
    """Print whether books are intact, and return it."""
    verdict = "[green]intact[/]" if found.ok else "[bold red]NOT INTACT[/]"
    console.print(f"{what}: {verdict}, {entries}", highlight=False, soft_wrap=True)
    console.print(f"  head {found.head}", highlight=False, soft_wrap=True)
    for problem in found.problems:
        console.print(f"  {problem}", markup=False, highlight=False, soft_wrap=True)
    return found.ok
