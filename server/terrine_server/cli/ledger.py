"""`terrine ledger …`: show, verify, checkpoint and export the ledger."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from terrine_server.cli.console import (
    as_json,
    command_text,
    console,
    errors,
    fail,
    opened_ledger,
    output,
    print_json,
    spent_by_whom,
    with_json,
    writing,
)
from terrine_server.progress import entries_bar

if TYPE_CHECKING:
    from terrine_protocol import LogState, LogVerification, Verification
    from terrine_server.ledger import ChargeRecord, Ledger, ProjectRecord
    from terrine_server.owner.backup import Backup, Restore


log_app = typer.Typer(no_args_is_help=True, help="Show and export the administrative log.")
LAST = 20


@log_app.command("show")
@with_json
def show_log(
    last: Annotated[int, typer.Option(min=1, max=1000, help="Number of entries to show.")] = LAST,
) -> None:
    """Show who did what, newest last: projects, tokens, ensembles, keys, publications, exports."""

    from terrine_server import views

    ledger = opened_ledger()
    entries = ledger.log(limit=last, newest=True)
    shown = views.actors(ledger, (entry.actor for entry in entries))
    output(
        entries,
        [
            {
                "#": str(entry.seq),
                "when (UTC)": f"{entry.created_at:%Y-%m-%d %H:%M:%S}",
                "who": shown[entry.actor],
                "what": entry.action,
                "on": entry.subject,
                "detail": ", ".join(f"{k} {v}" for k, v in entry.detail.items() if v is not None),
            }
            for entry in entries
        ],
    )


@log_app.command("export")
def export_log(
    output: Annotated[
        Path | None, typer.Option(help="File to write; default: standard output.")
    ] = None,
) -> None:
    """Export the log: its end, then every entry, one JSON object per line.

    `docs/check_chain.py` checks an export without Terrine.
    """
    from terrine_server.owner import operations

    ledger, count = opened_ledger(), 0
    with writing(output) as file:
        for count, line in enumerate(operations.export_log(ledger)):  # noqa: B007 - the end of the log is 0
            file.write(json.dumps(line) + "\n")
    if output is not None:
        console.print(f"Wrote {count} entries to {output}.", highlight=False, soft_wrap=True)


def seal(
    old_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The key that the ledger was sealed with until now."),
    ] = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Believe the rows as they are, whatever their seals say. For a key that is lost, "
            "or for edits that you made yourself.",
        ),
    ] = False,
) -> None:
    """Verify the books, then seal every row with the server's secret key.

    Needed when the secret key changed, with --old-key, or was lost, with --accept. Stop the servers
    first. What is printed is what will be believed from now on: read it.
    """
    from terrine_server.ledger import check_schema, connect
    from terrine_server.ledger import seal as seal_ledger
    from terrine_server.owner.sign_in import load_secret_key
    from terrine_server.settings import Settings

    settings = Settings()
    engine = connect(settings.database, settings.database_password())
    check_schema(engine)
    sealed = seal_ledger(
        engine,
        load_secret_key(settings.secret_key_path),
        old_key=None if old_key is None else load_secret_key(old_key),
        accept=accept,
    )
    for kind, subjects in sealed.adopted.items():
        for subject in subjects:
            console.print(f"Taken as it is: {kind} {subject}", highlight=False, soft_wrap=True)
    console.print(f"Sealed, with {sealed.projects} projects. `terrine log show` shows the details.")
    if old_key is not None:
        console.print("Tokens were made with the old key, and are no longer valid: make new ones.")


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
    checkpoint, or the cosignatures of witnesses. See docs/ledger.md.
    """
    from terrine_server.ledger.verifying import verify_export

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
    from terrine_server.owner.operations import verify_log, verify_project

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
    from terrine_protocol.transparency import MAX_NOTE_BYTES
    from terrine_server.owner.checkpoints import load_policy, own_policy
    from terrine_server.settings import Settings

    policy = load_policy(path) or own_policy(Settings())
    if policy is None:
        fail("Here is no key of a log, nor a policy that names one: give --policy.")
    earlier = {
        str(each): read(each, MAX_NOTE_BYTES).decode(errors="replace") for each in checkpoints
    }
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
    from terrine_server.labeling.local_voters import LocalVoters
    from terrine_server.labeling.strategies import recompute_accounts
    from terrine_server.settings import Settings

    settings = Settings()
    voters = LocalVoters(settings.data_dir, settings.device)
    found = recompute_accounts(opened_ledger(), voters, project, load_inputs(path))
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


app = typer.Typer(no_args_is_help=True, help="Show, verify and export the ledger.")
app.command()(verify)
app.command()(checkpoint)
app.command()(seal)

MOST = 1000
"""Entries that are shown at a time."""


@app.command()
@with_json
def show(
    project: Annotated[str, typer.Argument(help="The project.")],
    last: Annotated[int, typer.Option(min=0, max=MOST, help="Number of entries to show.")] = LAST,
) -> None:
    """Show a project's account and its last entries. `terrine project list` has all accounts."""
    from terrine_server import views
    from terrine_server.ledger.verifying import entry_line
    from terrine_server.owner.checkpoints import log_state, own_policy
    from terrine_server.settings import Settings

    ledger = opened_ledger()
    record = ledger.project(project)
    account = views.budget(record)
    log = log_state(ledger.checkpoint(), own_policy(Settings()))
    entries = ledger.charges(project, after_seq=max(0, record.charges - last), limit=last)
    if as_json():
        print_json(
            {
                "account": account,
                "genesis": record.genesis,
                "head": record.head,
                "log": log,
                "last_charges": [entry_line(entry) for entry in entries],
            }
        )
        return
    console.print(
        f"[bold]{project}[/] on {record.ensemble.name}, {record.status}\n"
        f"Protects: {account.protects}\n"
        f"ε spent {account.epsilon_spent:.6g} of {account.epsilon:g} at δ = {account.delta:g}: "
        f"{account.spent} of {account.budget} units ({account.spent / account.budget:.1%})"
        f"{spent_by_whom(str(record.mechanism['name']))}\n"
        f"{account.charges} charges, at least {account.affordable} more queries fit\n"
        f"head {record.head}\n"
        f"transparency log: {_said(log)}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("#", "when (UTC)", "outcome", "label", "cost", "δ", "query")
    for entry in entries:
        table.add_row(
            str(entry.seq),
            f"{entry.created_at:%Y-%m-%d %H:%M:%S}",
            entry.outcome,
            _result(entry, record),
            str(entry.cost),
            str(entry.delta),
            entry.query_digest[:12],
        )
    if entries:
        console.print(table)


@app.command()
@with_json
def payers(
    project: Annotated[str, typer.Argument(help="The project.")],
    entries: Annotated[
        str | None,
        typer.Argument(help="Numbers of entries, such as 12 or 12-14; default: the last 20."),
    ] = None,
) -> None:
    """Show which token paid for which entries. For the data owner alone.

    A query that was paid before is free for whoever asks it again, and they are not in the ledger.
    """
    ledger = opened_ledger()
    first, last = _range(entries, ledger.project(project).charges)
    charged = ledger.charges(project, after_seq=first - 1, limit=last - first + 1)
    paid = ledger.payers(project, [entry.seq for entry in charged if entry.figure is None])
    labels = ledger.token_labels({*paid.values()})
    found = [(entry, paid.get(entry.seq)) for entry in charged]
    output(
        [
            {"charge": entry.seq, "token": token, "label": labels.get(token or "")}
            for entry, token in found
        ],
        [
            {
                "#": str(entry.seq),
                "when (UTC)": f"{entry.created_at:%Y-%m-%d %H:%M:%S}",
                "outcome": entry.outcome,
                "token": token,
                "label": labels.get(token or ""),
            }
            for entry, token in found
        ],
    )


def _range(entries: str | None, charges: int) -> tuple[int, int]:
    """Return the first and the last of the entries that were asked for."""
    if entries is None:
        return max(1, charges - LAST + 1), max(1, charges)
    numbers = re.fullmatch(r"([1-9]\d{0,17})(?:-([1-9]\d{0,17}))?", entries)
    first, last = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (1, 0)
    if not first <= last < first + MOST:
        fail(f"{entries} names no entries. Write 12, or 12-14: at most {MOST:,} of them.")
    return first, last


@app.command()
def restored(
    origin: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What a new transparency log is called, if one must begin; by default as before, "
            "with the next number.",
        ),
    ] = None,
) -> None:
    """Make a ledger safe that was restored from a backup: run it before anything answers again.

    What was charged after the backup is not known any more. So every active project is paused, and
    in projects of `neighbours` every person's account counts as spent, for good: resumed, they
    answer with noise, and they cannot be closed.

    If something is gone that was signed, a new transparency log begins: the old one cannot be
    continued, and its key and its last checkpoint are kept beside the new ones. Servers answer new
    queries again once they are restarted.
    """
    from terrine_server.owner.checkpoints import make_restored_safe
    from terrine_server.settings import Settings

    settings = Settings()
    done, new_log = make_restored_safe(opened_ledger(), settings, origin)
    console.print(
        f"Paused: {', '.join(done.paused)}." if done.paused else "No project was active.",
        highlight=False,
        soft_wrap=True,
    )
    if done.filled:
        console.print(
            f"Every account counts as spent in {', '.join(done.filled)}.",
            highlight=False,
            soft_wrap=True,
        )
    if new_log is not None:
        console.print(
            f"Entries are gone that were signed, so a new log begins: {new_log.name}. "
            "Restart all servers. Put this line into policies, and tell it to students, auditors "
            "and witnesses; what the old log signed last shows them how much was lost:",
            highlight=False,
            soft_wrap=True,
        )
        console.print(f"log {new_log.verifier}", soft_wrap=True, markup=False)


@app.command()
def export(
    project: Annotated[str, typer.Argument(help="The project.")],
    output: Annotated[
        Path | None, typer.Option(help="File to write; default: standard output.")
    ] = None,
) -> None:
    """Export a project's ledger: the account, then the entries, one JSON object per line.

    It has everything that the hashes cover: `terrine ledger verify --file` verifies an export
    without the database. The project's page and the API have its charges as CSV.
    """
    from terrine_server.owner import operations

    ledger, count = opened_ledger(), 0
    ledger.project(project)  # fails for an unknown name, before a file is made
    with writing(output) as file:
        for count, line in enumerate(operations.export(ledger, project)):  # noqa: B007 - the account is 0
            file.write(json.dumps(line) + "\n")
    if output is not None:
        console.print(f"Wrote {count} entries to {output}.", highlight=False, soft_wrap=True)


def _said(log: LogState | None) -> str:
    if log is None:
        return "no checkpoint yet"
    by = ", ".join(f"{name} ({when:%Y-%m-%d %H:%M:%S})" for name, when in log.cosigned.items())
    missing = f", not by {', '.join(log.missing)}" if log.missing else ""
    return f"{log.size} entries of all projects, cosigned by {by or 'nobody'}{missing}"


def _result(entry: ChargeRecord, project: ProjectRecord) -> str:
    if entry.figure is not None:
        return f"≤ {entry.figure}"
    label = "" if entry.label is None else str(entry.label)
    return escape(project.ensemble.class_names.get(entry.label, label))


def backup(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory to make, which must not be there.")
    ],
) -> None:
    """Back up the ledger, the ensembles and the data directory's other files, while they serve.

    The ledger is one SQLite file in it, from whichever database, and verified. The secret key and
    passwords are not inside: keep a copy of the key apart from the backups.
    """
    from terrine_server.owner.backup import back_up
    from terrine_server.settings import Settings

    made = back_up(Settings(), directory)
    _say(f"Made {directory}. {_contents(made)}")
    keys = [name for name in made.files if name.endswith(".key")]
    _say(f"Keys inside: {', '.join(keys) or 'none'}. It is as private as the records are.")
    _say("Not inside:")
    for what, why in made.left_out.items():
        _say(f"  {what}: {why}")
    _say("Keep the secret key where this backup is not: whoever has both can make tokens.")


def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What `backup` made.")],
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Though there is a ledger with entries; it is kept aside."),
    ] = False,
) -> None:
    """Put a backup in the place of what is there. Stop all servers first; the key must be there.

    It need not go into the kind of database that it came from, or of the same version. Active
    projects are paused, and in projects of `neighbours` every account counts as spent, for good:
    what was charged after the backup is not known. If this is interrupted, run it again.
    """
    from terrine_server.owner import backup as backups
    from terrine_server.settings import Settings

    done = backups.restore(Settings(), directory, replace=replace)
    made = done.backup
    _say(f"Restored the backup of {made.made_at:%Y-%m-%d %H:%M} UTC. {_contents(made)}")
    _say(f"Paused: {', '.join(done.projects.paused) or 'no project was active'}.")
    if done.projects.filled:
        _say(f"Every account counts as spent in: {', '.join(done.projects.filled)}.")
    for where in done.aside:
        _say(f"What was there is kept in {where}.")
    if done.stayed:
        _say(f"Kept as they are, though the backup has others: {', '.join(done.stayed)}.")
    _say("Next:")
    for number, step in enumerate(_next_steps(done), 1):
        _say(f"{number}. {step}")


@with_json
def upgrade(
    check: Annotated[
        bool, typer.Option("--check", help="Only say what was found, and change nothing.")
    ] = False,
    service_role: Annotated[
        str | None,
        typer.Option(metavar="ROLE", help="As of `init`: the PostgreSQL role that `serve` uses."),
    ] = None,
) -> None:
    """Say whether this version will serve what is here; if so, migrate the ledger.

    It looks at settings, keys, the ledger's tables and every registered ensemble, whose files are
    read and loaded. Exits with code 1, and migrates nothing, if there is a problem. Unlike `init`,
    it never makes a new ledger.
    """
    from terrine_server.cli.serve import init, report
    from terrine_server.doctor import examine_upgrade

    if as_json() and not check:
        fail("`terrine --json upgrade` needs --check.")
    if not report(examine_upgrade()):
        raise typer.Exit(1)
    if not check:
        init(service_role=service_role, origin=None)


def _contents(made: Backup) -> str:
    ensembles = ", ".join(made.ensembles) or "none"
    return f"Projects: {made.projects}, charges: {made.charges}, ensembles: {ensembles}."


def _next_steps(done: Restore) -> list[str]:
    resume = command_text("project", "resume", "NAME")
    steps = []
    if done.lost:
        steps.append(
            f"At least {done.lost} entries that were signed are lost: open new projects from what "
            "the cap has left, and close none of the old ones. `terrine ledger restored` begins a "
            "new transparency log."
        )
    else:
        steps.append(
            "If you know that nothing was answered after the backup, resume projects whose "
            f"accounts are not spent: {resume}. Else open new ones, and close none of the old."
        )
    steps.append("Forget people again who left after the backup: `terrine ensemble forget`.")
    steps.append("Revoke tokens again that were revoked after the backup: `terrine token revoke`.")
    if done.aside:
        steps.append("Remove what was kept aside once nothing is missing: it has private records.")
    steps.append("`terrine doctor`, then start the servers. docs/upkeep.md says more.")
    return steps


def _say(line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
