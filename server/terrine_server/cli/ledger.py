"""`terrine ledger …`: show, verify, anchor and export the ledger."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

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
    project: Annotated[str, typer.Argument(help="The project.")],
    last: Annotated[int, typer.Option(min=0, max=1000, help="Number of entries to show.")] = LAST,
) -> None:
    """Show a project's account and its last entries. `terrine project list` has all accounts."""
    from terrine_server import views
    from terrine_server.ledger.verifying.archive import entry_line

    ledger = opened_ledger()
    record = ledger.project(project)
    account = views.budget(record)
    entries = ledger.charges(project, after_seq=max(0, record.charges - last), limit=last)
    if as_json():
        print_json(
            {
                "account": account,
                "genesis": record.genesis,
                "head": record.head,
                "last_charges": [entry_line(entry) for entry in entries],
            }
        )
        return
    console.print(
        f"[bold]{project}[/] on {record.ensemble.name}, {record.status}\n"
        f"ε spent {account.epsilon_spent:.6g} of {account.epsilon:g} at δ = {account.delta:g}: "
        f"{account.spent} of {account.budget} units ({account.spent / account.budget:.1%})\n"
        f"{account.charges} charges, at least {account.affordable} more queries fit\n"
        f"head {record.head}",
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


def _result(entry: ChargeRecord, project: ProjectRecord) -> str:
    if entry.figure is not None:
        return f"≤ {entry.figure}"
    label = "" if entry.label is None else str(entry.label)
    return escape(project.ensemble.class_names.get(entry.label, label))


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
