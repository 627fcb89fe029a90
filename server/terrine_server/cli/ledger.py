"""`terrine ledger …`: what was paid, whether the books are whole, and a copy of them."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.table import Table

from terrine_server.cli.console import AsJson, console, fail, print_json

if TYPE_CHECKING:
    from terrine_server.ledger import ChargeRecord, Ledger

app = typer.Typer(no_args_is_help=True, help="Show, verify and export the ledger.")

LAST = 20


class Format(StrEnum):
    """How entries are written down."""

    JSON = "json"
    CSV = "csv"


@app.command()
def show(
    project: Annotated[str | None, typer.Argument(help="Only this project.")] = None,
    last: Annotated[int, typer.Option(min=0, max=1000, help="Entries to show.")] = LAST,
    as_json: AsJson = False,
) -> None:
    """Show all accounts, or one project's account and its last entries."""
    ledger = _open()
    if project is None:
        _show_accounts(ledger, as_json)
    else:
        _show_project(ledger, project, last, as_json)


@app.command()
def verify(
    project: Annotated[str, typer.Argument(help="A project, or `all`.", show_default=True)] = "all",
) -> None:
    """Recompute every hash, number, price and balance. Exit code 1 when anything is wrong.

    Keep the printed head elsewhere: entries cut from the end together with a balance set back to
    match leave consistent books, and only a head that is no longer found tells.
    """
    ledger = _open()
    names = ledger.project_names() if project == "all" else [project]
    whole = True
    for name in names:
        found = ledger.verify(name)
        whole = whole and found.ok
        verdict = "[green]whole[/]" if found.ok else "[bold red]NOT WHOLE[/]"
        console.print(f"{name}: {verdict}, {found.charges} charges", highlight=False)
        console.print(f"  head {found.head}", highlight=False, soft_wrap=True)
        for problem in found.problems:
            console.print(f"  {problem}", markup=False, highlight=False, soft_wrap=True)
    if not names:
        console.print("No project was opened yet.")
    if not whole:
        raise typer.Exit(1)


@app.command()
def export(
    project: Annotated[str, typer.Argument(help="The project.")],
    format: Annotated[
        Format, typer.Option(help="json: one JSON object a line; csv: with a header line.")
    ] = Format.JSON,
    output: Annotated[
        Path | None, typer.Option(help="File to write; default: standard output.")
    ] = None,
) -> None:
    """Write down every entry of a project, with all that its hash covers."""
    ledger = _open()
    ledger.project(project)  # an unknown name leaves no file behind
    count = 0
    with _opened(output) as file:
        write = _csv_writer(file) if format is Format.CSV else _json_writer(file)
        for entry in ledger.stream_charges(project):
            write(_fields(entry))
            count += 1
    if output is not None:
        console.print(f"Wrote {count} entries to {output}.", highlight=False, soft_wrap=True)


def _open() -> Ledger:
    from terrine_server.ledger import check_schema, connect
    from terrine_server.operations import open_ledger
    from terrine_server.settings import Settings

    settings = Settings()
    check_schema(connect(settings.database, settings.database_password()))
    return open_ledger(settings)


def _show_accounts(ledger: Ledger, as_json: bool) -> None:
    from terrine_server.api import views

    ensembles = ledger.ensembles()
    projects = [ledger.project(name) for name in ledger.project_names()]
    if as_json:
        print_json(
            {
                "ensembles": [_cap(ensemble) for ensemble in ensembles],
                "projects": [views.budget(p) for p in projects],
            }
        )
        return
    caps = Table("ensemble", "cap ε", "cap δ", "reserved", "δ reserved", "guarantee")
    for ensemble in ensembles:
        caps.add_row(
            ensemble.name,
            f"{ensemble.epsilon:g}",
            f"{ensemble.delta:g}",
            _share(ensemble.reserved, ensemble.cap),
            _share(ensemble.delta_reserved, ensemble.delta_cap),
            _guarantee(ensemble.guarantee),
        )
    accounts = Table("project", "ensemble", "status", "ε", "ε spent", "spent", "charges", "left")
    accounts.add_column("guarantee")
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
            _guarantee(account.guarantee),
        )
    console.print(caps)
    console.print(accounts)


def _show_project(ledger: Ledger, name: str, last: int, as_json: bool) -> None:
    from terrine_server.api import views

    project = ledger.project(name)
    account = views.budget(project)
    entries = ledger.charges(name, after_seq=max(0, project.charges - last), limit=last)
    if as_json:
        print_json(
            {
                "account": account,
                "genesis": project.genesis,
                "head": project.head,
                "last_charges": [_fields(entry) for entry in entries],
            }
        )
        return
    console.print(
        f"[bold]{name}[/] on {project.ensemble.name}, {project.status}, "
        f"guarantee: {_guarantee(account.guarantee)}\n"
        f"ε spent {account.epsilon_spent:.6g} of {account.epsilon:g} at δ = {account.delta:g}: "
        f"{account.spent} of {account.budget} units ({_share(account.spent, account.budget)})\n"
        f"{account.charges} charges, at least {account.affordable} more queries fit\n"
        f"head {project.head}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("#", "when (UTC)", "outcome", "label", "cost", "δ", "guarantee", "query")
    for entry in entries:
        table.add_row(
            str(entry.seq),
            f"{entry.created_at:%Y-%m-%d %H:%M:%S}",
            entry.outcome,
            _told(entry),
            str(entry.cost),
            str(entry.delta),
            _guarantee(entry.guarantee),
            entry.query_digest[:12],
        )
    if entries:
        console.print(table)


def _told(entry: ChargeRecord) -> str:
    if entry.figure is not None:
        return f"≤ {entry.figure}"
    return "" if entry.label is None else str(entry.label)


def _cap(ensemble: Any) -> dict[str, Any]:
    names = ("name", "manifest_sha256", "guarantee", "epsilon", "delta", "cap", "reserved")
    return {name: getattr(ensemble, name) for name in (*names, "delta_cap", "delta_reserved")}


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _guarantee(guarantee: str) -> str:
    return f"[bold yellow]{guarantee}[/]" if guarantee == "claimed" else str(guarantee)


def _fields(entry: ChargeRecord) -> dict[str, Any]:
    """An entry, with its time in the very form that is hashed."""
    from terrine_server.ledger.tables import iso

    return {**vars(entry), "created_at": iso(entry.created_at)}


def _json_writer(file: TextIO) -> Callable[[dict[str, Any]], object]:
    return lambda entry: file.write(json.dumps(entry) + "\n")


def _csv_writer(file: TextIO) -> Callable[[dict[str, Any]], object]:
    from dataclasses import fields

    from terrine_server.ledger import ChargeRecord
    from terrine_server.ledger.chain import canonical_json

    writer = csv.DictWriter(file, [field.name for field in fields(ChargeRecord)])
    writer.writeheader()
    return lambda entry: writer.writerow(
        entry | {name: canonical_json(entry[name]) for name in ("mechanism", "event")}
    )


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears under its name only when it is complete."""
    if output is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    partial = output.with_name(f"{output.name}.partial")
    try:
        with partial.open("w", newline="", encoding="utf-8") as file:
            yield file
        os.replace(partial, output)
    except OSError as error:
        fail(f"{output} cannot be written: {error.strerror}.")
    finally:
        partial.unlink(missing_ok=True)
