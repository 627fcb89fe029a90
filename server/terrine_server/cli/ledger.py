"""`terrine ledger …`: show, verify, anchor and export the ledger."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.markup import escape
from rich.table import Table

from terrine_server.cli import seal, verify
from terrine_server.cli.console import (
    as_json,
    console,
    opened_ledger,
    print_json,
    with_json,
    writing,
)

if TYPE_CHECKING:
    from terrine_server.ledger import ChargeRecord, Ledger, ProjectRecord

app = typer.Typer(no_args_is_help=True, help="Show, verify, anchor and export the ledger.")
app.command()(verify.verify)
app.command()(verify.anchor)
app.command()(seal.seal)

LAST = 20


class Format(StrEnum):
    """Format of an export."""

    JSON = "json"
    CSV = "csv"


@app.command()
@with_json
def show(
    project: Annotated[str | None, typer.Argument(help="Only this project.")] = None,
    last: Annotated[int, typer.Option(min=0, max=1000, help="Number of entries to show.")] = LAST,
) -> None:
    """Show all accounts, or one project's account and its last entries."""
    ledger = opened_ledger()
    if project is None:
        _show_accounts(ledger)
    else:
        _show_project(ledger, project, last)


@app.command()
def restored() -> None:
    """Make a ledger safe that was restored from a backup: run it before anything answers again.

    What was charged after the backup is not known any more. So every active project is paused, and
    in projects of `neighbours` every person's account counts as spent, for good: resumed, they
    answer with noise, and they cannot be closed.
    """
    done = opened_ledger().fill_accounts()
    console.print(
        f"Paused {len(done.paused)} projects: {', '.join(done.paused) or 'none was active'}.",
        highlight=False,
        soft_wrap=True,
    )
    if done.filled:
        console.print(
            f"Every account counts as spent in {', '.join(done.filled)}.",
            highlight=False,
            soft_wrap=True,
        )


@app.command()
def export(
    project: Annotated[str, typer.Argument(help="The project.")],
    format: Annotated[
        Format,
        typer.Option(
            help="json: the account, then the entries, one JSON object per line; csv: the entries."
        ),
    ] = Format.JSON,
    output: Annotated[
        Path | None, typer.Option(help="File to write; default: standard output.")
    ] = None,
) -> None:
    """Export a project's ledger, with everything that its hashes cover.

    `terrine ledger verify --file` verifies a JSON export without the database.
    """
    from terrine_server.owner import operations

    ledger, count = opened_ledger(), 0
    ledger.project(project)  # fails for an unknown name, before a file is made
    with writing(output) as file:
        if format is Format.CSV:
            operations.record_export(ledger, project)
            count = _write_csv(ledger, project, file)
        else:
            for count, line in enumerate(operations.export(ledger, project)):  # noqa: B007 - the account is 0
                file.write(json.dumps(line) + "\n")
    if output is not None:
        console.print(f"Wrote {count} entries to {output}.", highlight=False, soft_wrap=True)


def _show_accounts(ledger: Ledger) -> None:
    from terrine_server import views

    ensembles = ledger.ensembles()
    projects = [ledger.project(name) for name in ledger.project_names()]
    if as_json():
        print_json(
            {
                "ensembles": [_cap(ensemble) for ensemble in ensembles],
                "projects": [views.budget(p) for p in projects],
            }
        )
        return
    caps = Table("ensemble", "cap ε", "cap δ", "reserved", "δ reserved")
    for ensemble in ensembles:
        caps.add_row(
            ensemble.name,
            f"{ensemble.epsilon:g}",
            f"{ensemble.delta:g}",
            _share(ensemble.reserved, ensemble.cap),
            _share(ensemble.delta_reserved, ensemble.delta_cap),
        )
    accounts = Table("project", "ensemble", "status", "ε", "ε spent", "spent", "charges", "left")
    for project in projects:
        account = views.budget(project)
        accounts.add_row(
            project.name,
            project.ensemble.name,
            project.status,
            f"{account.epsilon:g}",
            f"{account.epsilon_spent:.4g}",
            _share(account.spent, account.budget),
            str(account.charges),
            f"≥ {account.affordable}",
        )
    console.print(caps)
    console.print(accounts)


def _show_project(ledger: Ledger, name: str, last: int) -> None:
    from terrine_server import views
    from terrine_server.ledger.verifying.archive import entry_line

    project = ledger.project(name)
    account = views.budget(project)
    entries = ledger.charges(name, after_seq=max(0, project.charges - last), limit=last)
    if as_json():
        print_json(
            {
                "account": account,
                "genesis": project.genesis,
                "head": project.head,
                "last_charges": [entry_line(entry) for entry in entries],
            }
        )
        return
    console.print(
        f"[bold]{name}[/] on {project.ensemble.name}, {project.status}\n"
        f"ε spent {account.epsilon_spent:.6g} of {account.epsilon:g} at δ = {account.delta:g}: "
        f"{account.spent} of {account.budget} units ({_share(account.spent, account.budget)})\n"
        f"{account.charges} charges, at least {account.affordable} more queries fit\n"
        f"head {project.head}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("#", "when (UTC)", "outcome", "label", "cost", "δ", "query")
    for entry in entries:
        table.add_row(
            str(entry.seq),
            f"{entry.created_at:%Y-%m-%d %H:%M:%S}",
            entry.outcome,
            _result(entry, project),
            str(entry.cost),
            str(entry.delta),
            entry.query_digest[:12],
        )
    if entries:
        console.print(table)


def _result(entry: ChargeRecord, project: ProjectRecord) -> str:
    if entry.figure is not None:
        return f"≤ {entry.figure}"
    label = "" if entry.label is None else str(entry.label)
    return escape(project.ensemble.class_names.get(entry.label, label))


def _cap(ensemble: Any) -> dict[str, Any]:
    names = ("name", "manifest_sha256", "epsilon", "delta", "cap", "reserved")
    return {name: getattr(ensemble, name) for name in (*names, "delta_cap", "delta_reserved")}


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _write_csv(ledger: Ledger, project: str, file: TextIO) -> int:
    from dataclasses import fields

    from terrine_server.ledger import ChargeRecord
    from terrine_server.ledger.chain import canonical_json
    from terrine_server.ledger.verifying.archive import entry_line
    from terrine_server.sheets import Sheet

    columns = [field.name for field in fields(ChargeRecord)]
    record = ledger.project(project)
    names = record.ensemble.class_names
    if names:
        columns.insert(columns.index("label") + 1, "label_name")
    if record.noise_sigma is None:
        columns.remove("counts")
    sheet = Sheet(file)
    sheet.row(columns)
    count = 0
    for entry in map(entry_line, ledger.stream_charges(project)):
        documents = {"mechanism", "event", "counts"} & entry.keys()
        named = {"label_name": names.get(entry["label"])} if names else {}
        texts = {name: canonical_json(entry[name]) for name in documents}
        line = entry | named | texts
        sheet.row(line.get(column) for column in columns)
        count += 1
    return count
