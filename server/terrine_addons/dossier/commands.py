"""`terrine dossier`: what an ethics board or a data-protection officer files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from terrine_server.cli.console import fail, name_output, say, writing


def dossier(
    project: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this project, and its ensemble.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to write; default, as -: standard output.",
            callback=name_output,
        ),
    ] = None,
) -> None:
    """Write a page about projects for an ethics board, from the ledger, which it verifies.

    One HTML file, to read offline or to print: what is promised to each person, what may leave and
    what has left, to whom, and whether the ledger holds. See docs/addons/dossier.md.

    Exits with code 1 if the ledger or its log is not intact; the page is written, and says so.

    [bold]Example[/bold]

      terrine dossier --project cough --out cough.html
    """
    from terrine_addons.dossier.facts import gather, render
    from terrine_server.cli.ledger import open_current_ledger
    from terrine_server.settings import Settings

    facts = gather(open_current_ledger(), Settings(), project)
    with writing(out) as file:
        file.write(render(facts))
    if out is not None:
        say(f"Wrote {out}.")
    if not facts.intact:
        fail("The ledger or its log is not intact: the page begins with what is wrong.")
