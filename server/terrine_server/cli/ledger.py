"""`terrine ledger …`: show, verify, seal, checkpoint and export."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from terrine_protocol import LogState, LogVerification, Verification
from terrine_protocol.base import quantity
from terrine_protocol.files import read
from terrine_protocol.names import show_name
from terrine_protocol.transparency import MAX_NOTE_BYTES
from terrine_server import views
from terrine_server.cli.console import (
    ALL_FREE,
    as_json,
    console,
    errors,
    explain_spending,
    fail,
    name_output,
    output,
    print_json,
    say,
    with_json,
    writing,
)
from terrine_server.errors import LedgerRestored, LogNotSigned
from terrine_server.ledger import (
    ChargeRecord,
    Ledger,
    ProjectRecord,
    check_schema,
    connect,
    upgrade,
)
from terrine_server.ledger import seal as seal_ledger
from terrine_server.ledger.ensembles import DEFAULT_POPULATION
from terrine_server.ledger.exports import entry_line
from terrine_server.ledger.losses import LostSpend
from terrine_server.ledger.revisions import has_tables
from terrine_server.ledger.verifying import verify_export
from terrine_server.owner import operations
from terrine_server.owner.checkpoints import (
    ask_spent,
    load_policy,
    log_state,
    lost_entries,
    make_restored_safe,
    own_policy,
    sign_now,
    signed_entries,
)
from terrine_server.owner.sign_in import keep_token_key, load_secret_key
from terrine_server.privacy import ParameterError, build_mechanism
from terrine_server.privacy.parameters import MAX_EPSILON
from terrine_server.progress import entries_bar
from terrine_server.settings import Settings

app = typer.Typer()
DEFAULT_SHOWN = 20
# Entries at a time.
MAX_SHOWN = 1000

SPENT_FORM = "Write NAME=EPSILON,DELTA, such as people=4,1e-5, or NAME=0."

Output = Annotated[
    Path | None,
    typer.Option(help="File to write; default, as -: standard output.", callback=name_output),
]
OptionalProject = Annotated[
    str | None, typer.Argument(help="A project. Default: the log of the owner's acts.")
]


def open_current_ledger() -> Ledger:
    """Return the ledger that the settings name. It is of this schema and key.

    Raises SchemaMismatch, NotSealed or DatabaseUnavailable, and SecretKeyError without a key.
    """
    settings = Settings()
    check_schema(connect(settings.database, settings.database_password()))
    ledger = operations.open_ledger(settings)
    ledger.log.check_sealed()
    return ledger


def _write_lines(lines: Iterable[object], output: Path | None) -> None:
    """Write JSON by line: what the entries are of, then the entries."""
    count = 0
    with writing(output) as file:
        for count, line in enumerate(lines):  # noqa: B007 - the first is not an entry
            file.write(json.dumps(line) + "\n")
    if output is not None:
        say(f"Wrote {quantity(count, 'entry', 'entries')} to {output}.")


@app.command()
def verify(
    project: Annotated[
        str | None, typer.Argument(help="A project, or `all`.", show_default="all")
    ] = None,
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

    With `all`, also the administrative log, and tokens, projects and ensembles by it.

    An older backup, a rewritten chain, or entries removed from the end together with a balance set
    back to match, are consistent in themselves: only what is kept elsewhere reveals them, a
    checkpoint, or the cosignatures of witnesses. See docs/ledger.md.
    """
    if file is not None and project is not None:
        fail("Name a project or give --file with an export, not both.")
    if accounts is not None and (file is not None or project in (None, "all")):
        fail("--accounts goes with one project of this machine's ledger: name it.")
    logged = policy is not None or bool(checkpoint)
    if logged and file is not None:
        fail("docs/check_log.py compares an export with the log: leave --file out.")
    if logged and project not in (None, "all"):
        fail("--policy and --checkpoint are of the log of all projects: leave the project out.")
    if file is not None:
        with entries_bar(errors, file.name) as progress:
            found = verify_export(file, progress)
        intact = _report(found.project, quantity(found.charges, "charge"), found)
    else:
        intact = _verify_ledger(project or "all")
        if logged:
            intact = _verify_tree(policy, checkpoint or []) and intact
        if accounts is not None:
            intact = _verify_accounts(project or "all", accounts) and intact
    if not intact:
        raise typer.Exit(1)


@app.command()
def checkpoint(
    output: Output = None,
) -> None:
    """Write a checkpoint of the ledger as it is now: log what is new, and sign the log.

    Later, `terrine ledger verify --checkpoint FILE` shows whether the ledger still holds every
    entry of now. Keep the file where nobody who can write to the database can reach it. A server
    does the same every few seconds, and serves its last one at `/checkpoint`.
    """
    note = sign_now(open_current_ledger(), Settings())
    with writing(output) as file:
        file.write(note)
    if output is not None:
        size = note.splitlines()[1]
        say(f"Wrote a checkpoint of {quantity(int(size), 'entry', 'entries')} to {output}.")


@app.command()
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
    """Verify the ledger, then seal every row with the server's secret key.

    Needed when the secret key changed, with --old-key, or was lost, with --accept. Stop the servers
    first. What is printed will be trusted from now on: read it. With --old-key tokens stay valid:
    `token.key` in the data directory then keeps the key that their hashes were made with.
    """
    settings = Settings()
    engine = connect(settings.database, settings.database_password())
    check_schema(engine)
    new, old = load_secret_key(settings.secret_key_path), None
    if old_key is not None:
        old = load_secret_key(old_key)
        Ledger(engine, old).log.check_sealed()
        keep_token_key(settings, old)  # first: whatever interrupts this, tokens stay valid
    sealed = seal_ledger(engine, new, old_key=old, accept=accept)
    for kind, subjects in sealed.adopted.items():
        for subject in subjects:
            say(f"Taken as it is: {kind} {subject}")
    projects = quantity(sealed.projects, "project")
    say(f"Sealed, with {projects}. `terrine ledger show` shows the details.")
    if old_key is not None:
        say(f"Tokens stay valid, by {settings.token_key_path}.")
        say("Make a backup now. Those from before need the old key to be restored.")


INTACT = {True: "[green]intact[/]", False: "[bold red]NOT INTACT[/]"}


def _verify_ledger(project: str) -> bool:
    ledger = open_current_ledger()
    names = ledger.projects.list_names() if project == "all" else [project]
    intact = True
    for name in names:
        with entries_bar(errors, name) as progress:
            found = operations.verify_project(ledger, name, progress)
        intact = _report(name, quantity(found.charges, "charge"), found) and intact
        if found.ok:
            _note_missing_package(ledger, name)
    if not names:
        say("No project has been opened yet.")
    if project == "all":
        log = operations.verify_log(ledger)
        intact = (
            _report("administrative log", quantity(log.entries, "entry", "entries"), log) and intact
        )
        intact = _continues_signed(ledger) and intact
    return intact


def _continues_signed(ledger: Ledger) -> bool:
    """Return whether the ledger continues what was signed of it here, and print if it does not."""
    try:
        ledger.check_history()
    except (LedgerRestored, LogNotSigned) as error:
        text = f"last signed checkpoint: [bold red]NOT CONTINUED[/]\n  {escape(str(error))}"
        say(text, markup=True)
        return False
    return True


def _verify_tree(path: Path | None, checkpoints: list[Path]) -> bool:
    policy = load_policy(path) or own_policy(Settings())
    if policy is None:
        fail("No key of a log is here, and no policy that names one: give --policy.")
    earlier = {
        str(each): read(each, MAX_NOTE_BYTES).decode(errors="replace") for each in checkpoints
    }
    found = open_current_ledger().tree.check(policy, earlier)
    by = ", ".join(sorted(found.cosigned)) or "nobody"
    entries = quantity(found.size, "entry", "entries")
    verdict = f"transparency log: {INTACT[found.ok]}, {entries}, cosigned by {by}"
    say(verdict, markup=True)
    if found.waiting:
        say(f"  {found.waiting} entries are not in it yet")
    for problem in found.problems:
        say(f"  {problem}")
    return found.ok


def _note_missing_package(ledger: Ledger, project: str) -> None:
    """Print a note if a project's mechanism is of a package that is not installed."""
    record = ledger.projects.get(project)
    facts, spec = record.ensemble.facts, record.mechanism
    if "." not in spec["name"]:
        return
    try:
        build_mechanism(spec, teachers=facts.teachers, classes=len(facts.classes))
    except ParameterError as error:
        say(
            f"  {error} Its prices were recomputed from the cost events on record; that they are "
            "those of the mechanism, only its package shows, and until it is installed nothing is "
            "answered."
        )


def _verify_accounts(project: str, path: Path) -> bool:
    # Voters, which an auditor's installation lacks.
    from terrine_models.data.arrays import load_inputs
    from terrine_server.labeling.local_voters import LocalVoters
    from terrine_server.labeling.recomputing import recompute_accounts

    settings = Settings()
    voters = LocalVoters(settings.data_dir, settings.device)
    found = recompute_accounts(open_current_ledger(), voters, project, load_inputs(path))
    if found.same is None:
        result = f"not recomputed: {found.unknown} of {found.queries} queries are not in {path}"
    elif found.same:
        queries = quantity(found.queries, "query", "queries")
        result = f"{INTACT[True]}, as the records make them in {queries}"
    else:
        result = f"{INTACT[False]}, not those that the records make"
    say(f"{project}: accounts {result}", markup=True)
    return found.same is True


def _report(what: str, entries: str, found: Verification | LogVerification) -> bool:
    """Print whether hashes, numbers, prices and seals are right, and return it."""
    say(f"{what}: {INTACT[found.ok]}, {entries}", markup=True)
    say(f"  head {found.head}")
    for problem in found.problems:
        say(f"  {problem}")
    return found.ok


@app.command()
@with_json
def show(
    project: OptionalProject = None,
    entries: Annotated[
        str | None,
        typer.Argument(help="Numbers of a project's entries, such as 12 or 12-14."),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_SHOWN,
            help=f"In place of ENTRIES: how many to show. Default: {DEFAULT_SHOWN}.",
        ),
    ] = None,
    payers: Annotated[
        bool,
        typer.Option(
            "--payers",
            help="Of a project: which token paid for which entries. For the data owner alone. A "
            "query that was paid before is free for whoever asks it again, and they are not in the "
            "ledger.",
        ),
    ] = False,
) -> None:
    """Show a project's account and its last entries, or the log of who did what.

    The administrative log has projects, tokens, ensembles, keys, publications and exports, newest
    last. `terrine project show` lists the accounts of all projects.

    [bold]Examples[/bold]: terrine ledger show, terrine ledger show sepsis 12-14 --payers
    """
    if entries is not None and last is not None:
        fail("Name entries or give --last, not both.")
    shown = DEFAULT_SHOWN if last is None else last
    ledger = open_current_ledger()
    if project is None:
        if payers:
            fail("--payers is of a project: name it.")
        _show_log(ledger, shown)
        return
    charges = ledger.projects.get(project).charges
    first, end = _parse_range(entries, charges, shown)
    if payers:
        _show_payers(ledger, project, first, end)
    else:
        _show_project(ledger, project, first, end)


def _show_log(ledger: Ledger, last: int) -> None:
    entries = ledger.log.list(limit=last, newest=True)
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
                "detail": ", ".join(
                    f"{k} {v}" for k, v in entry.detail.items() if v not in (None, "")
                ),
            }
            for entry in entries
        ],
    )


def _show_project(ledger: Ledger, project: str, first: int, last: int) -> None:
    record = ledger.projects.get(project)
    account = views.budget(record)
    log = log_state(ledger.tree.checkpoint(), own_policy(Settings()))
    entries = ledger.entries.list(project, after_seq=first - 1, limit=last - first + 1)
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
    more = quantity(account.affordable, "more query", "more queries")
    left = f"queries: {ALL_FREE}" if record.free else f"at least {more} fit"
    say(
        f"[bold]{project}[/] on {record.ensemble.name}, {record.status}\n"
        f"Protects: {account.protects}\n"
        f"ε spent {account.epsilon_spent:.6g} of {account.epsilon:g} at δ = {account.delta:g}: "
        f"{account.spent} of {account.budget} units ({account.spent / account.budget:.1%})"
        f"{explain_spending(str(record.mechanism['name']))}\n"
        f"{quantity(account.charges, 'charge')}, {left}\n"
        f"head {record.head}\n"
        f"transparency log: {_describe_log(log)}",
        markup=True,
    )
    table = Table("#", "when (UTC)", "outcome", "label", "cost", "δ", "query")
    for entry in entries:
        table.add_row(
            str(entry.seq),
            f"{entry.created_at:%Y-%m-%d %H:%M:%S}",
            entry.outcome,
            _outcome(entry, record),
            str(entry.cost),
            str(entry.delta),
            entry.query_digest[:12],
        )
    if entries:
        console.print(table)


def _show_payers(ledger: Ledger, project: str, first: int, last: int) -> None:
    charged = ledger.entries.list(project, after_seq=first - 1, limit=last - first + 1)
    paid = ledger.entries.payers(project, [entry.seq for entry in charged if entry.figure is None])
    labels = ledger.tokens.list_labels({*paid.values()})
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


def _parse_range(entries: str | None, charges: int, shown: int) -> tuple[int, int]:
    """Return the first and the last of the entries that were asked for, by default `shown`."""
    if entries is None:
        return max(1, charges - shown + 1), charges
    numbers = re.fullmatch(r"([1-9]\d{0,17})(?:-([1-9]\d{0,17}))?", entries)
    first, last = (int(numbers[1]), int(numbers[2] or numbers[1])) if numbers else (1, 0)
    if not first <= last < first + MAX_SHOWN:
        fail(f"{entries} names no entries. Write 12, or 12-14: at most {MAX_SHOWN:,} of them.")
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
    spent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=EPSILON,DELTA",
            help="If entries that were signed are lost: what was spent of the population NAME by "
            "projects that are not here any more, the sums of their ε and of their δ; NAME=0 if "
            "there were none. Its cap is smaller by that from now on; told again with other "
            "amounts, they add up. Once for each population.",
        ),
    ] = None,
) -> None:
    """Make a ledger safe that was restored from a backup: run it before anything answers again.

    What was charged after the backup is not known any more. So every active project is paused, and
    in projects of `neighbours` every person's account counts as spent, for good: resumed, they
    answer with noise, and they cannot be closed.

    If something is gone that was signed, projects stay paused for good, with their whole budgets,
    and you are asked what projects had spent that are not here any more. A new transparency log
    begins: the old one cannot be continued, and its key and its last checkpoint are kept beside the
    new ones. Servers answer new queries again once they are restarted. If the database is lost and
    there is no backup, this makes a new ledger.
    """
    settings = Settings()
    engine = connect(settings.database, settings.database_password())
    stated, signed = _parse_spent(spent), signed_entries(settings)
    if signed and not has_tables(engine):
        stated = stated or _ask_spent([])
        if not stated:
            fail(ask_spent(signed, []))
        upgrade(engine, load_secret_key(settings.secret_key_path))
    engine.dispose()
    ledger = open_current_ledger()
    if lost_entries(ledger, settings) is not None:
        known = [each.name for each in ledger.ensembles.list_populations()]
        stated |= _ask_spent([name for name in known if name not in stated])
    done, new_log = make_restored_safe(ledger, settings, stated, origin)
    for name, lost in stated.items():
        say(f"Taken from the cap of {name}: ε = {lost.epsilon:g}, δ = {lost.delta:g}.")
    say(f"Paused: {', '.join(done.paused)}." if done.paused else "No project was paused.")
    if done.filled:
        say(f"Every account counts as spent in {', '.join(done.filled)}.")
    if new_log is not None:
        say(
            f"Entries are gone that were signed, so a new log begins: {new_log.name}. "
            "Restart all servers. Put this line into policies, and tell it to students, auditors "
            "and witnesses; what the old log signed last shows them how much was lost:"
        )
        say(f"log {new_log.verifier}")


def _parse_spent(options: Sequence[str] | None) -> dict[str, LostSpend]:
    """Return what was spent of each population by entries that are lost."""
    found: dict[str, LostSpend] = {}
    for option in options or ():
        name, _, amounts = option.partition("=")
        if not name or name in found:
            fail(f"--spent {option} names no population, or one twice. {SPENT_FORM}")
        found[name] = _read_spent(option, amounts)
    return found


def _read_spent(given: str, amounts: str) -> LostSpend:
    parts = amounts.split(",")
    try:
        epsilon, delta = float(parts[0]), float(parts[1] if len(parts) > 1 else "0")
    except ValueError:
        fail(f"{given} has no amount. {SPENT_FORM}")
    if len(parts) > 2 or not 0 <= epsilon <= MAX_EPSILON or not 0 <= delta < 1:
        fail(f"{given} is no ε and δ. {SPENT_FORM}")
    if (epsilon == 0) != (delta == 0):
        fail(f"{given}: whatever was spent has an ε and a δ. {SPENT_FORM}")
    return LostSpend(epsilon, delta)


def _ask_spent(populations: Sequence[str]) -> dict[str, LostSpend]:
    """Ask at a terminal what was spent; elsewhere return nothing, which is refused."""
    if not sys.stdin.isatty():
        return {}
    found = {}
    for name in populations or [typer.prompt("Which population was it?", DEFAULT_POPULATION)]:
        amounts = typer.prompt(
            f"What was spent of {name} by projects that are not in this ledger any more? "
            "The sums of their ε and δ, such as 4,1e-5, or 0"
        )
        found[name] = _read_spent(amounts, amounts)
    return found


@app.command()
def export(
    project: OptionalProject = None,
    output: Output = None,
) -> None:
    """Export a project's account and entries, or the log, as one JSON object per line.

    It has everything that the hashes cover. Without the database, `terrine ledger verify --file`
    verifies a project's export, and `docs/check_chain.py`, without Terrine, both. The project's
    page and the API have its charges as CSV.
    """
    ledger = open_current_ledger()
    if project is None:
        _write_lines(operations.export_log(ledger), output)
        return
    ledger.projects.get(project)  # fails for an unknown name, before a file is made
    _write_lines(operations.export(ledger, project), output)


def _describe_log(log: LogState | None) -> str:
    if log is None:
        return "no checkpoint yet"
    by = ", ".join(f"{name} ({when:%Y-%m-%d %H:%M:%S})" for name, when in log.cosigned.items())
    missing = f", not by {', '.join(log.missing)}" if log.missing else ""
    entries = quantity(log.size, "entry", "entries")
    return f"{entries} of all projects, cosigned by {by or 'nobody'}{missing}"


def _outcome(entry: ChargeRecord, project: ProjectRecord) -> str:
    if entry.figure is not None:
        return f"≤ {entry.figure}"
    label = "" if entry.label is None else str(entry.label)
    return escape(show_name(project.ensemble.class_names.get(entry.label, label)))
