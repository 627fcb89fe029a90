"""`terrine ledger …`: show, verify, checkpoint and export the ledger."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from terrine_server.cli import seal, verify
from terrine_server.cli.console import (
    as_json,
    console,
    fail,
    opened_ledger,
    output,
    print_json,
    with_json,
    writing,
)
from terrine_server.cli.student_report import spent_by_whom

if TYPE_CHECKING:
    from terrine_protocol import LogState
    from terrine_server.ledger import ChargeRecord, ProjectRecord

app = typer.Typer(no_args_is_help=True, help="Show, verify and export the ledger.")
app.command()(verify.verify)
app.command()(verify.checkpoint)
app.command()(seal.seal)

LAST = 20
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
    from terrine_server.ledger.verifying.archive import entry_line
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
