"""`terrine log`: what the data owner did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from terrine_server.cli.console import console, opened_ledger, output, with_json, writing

app = typer.Typer(no_args_is_help=True, help="Show and export the administrative log.")
LAST = 20


@app.command()
@with_json
def show(
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


@app.command()
def export(
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
