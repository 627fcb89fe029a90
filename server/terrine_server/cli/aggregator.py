"""`terrine aggregator …` is the second server, with which nobody sees a vote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from terrine_server.cli.console import console
from terrine_server.cli.serving import serve_over_tls

app = typer.Typer(
    no_args_is_help=True, help="Be the second of two servers that add up votes neither sees."
)
Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Made by `terrine aggregator make`.")
]


@app.command()
def make(
    file: Annotated[Path, typer.Argument(metavar="AGGREGATOR.toml", help="Owners, noise, budget.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")],
) -> None:
    """Make an aggregator: its count of what it releases, at 0, and a token for each who will ask
    it.

    docs/owners.md has an example of the file. What it says cannot be changed afterwards.

    [bold]Example[/bold]: terrine aggregator make aggregator.toml districts
    """
    from terrine_server import aggregator
    from terrine_server.labeling.aggregator_terms import read_terms

    aggregator.make(read_terms(file), directory)
    _show(directory)
    console.print(
        f"Give {directory / aggregator.SERVICE} to the service, and each file in "
        f"{directory / aggregator.OWNERS} to its owner, with your certificate and {file}, and on "
        "ways "
        "on which the service does not see, or change, what owners get.",
        soft_wrap=True,
    )
    console.print(f"Next: terrine aggregator serve {directory} …")


@app.command()
def show(directory: Directory) -> None:
    """Show what an aggregator does, and how much of its budget is released.

    [bold]Example[/bold]: terrine aggregator show districts
    """
    _show(directory)


@app.command()
def serve(
    directory: Directory,
) -> None:
    """Take shares of owners, and give the service their sums with noise, within the budget.

    Environment variables set the rest: docs/settings.md.

    [bold]Example[/bold]: TERRINE_PORT=8300 terrine aggregator serve districts
    """
    from terrine_server.aggregator import Aggregator
    from terrine_server.settings import SmallServer

    settings, aggregator = SmallServer(), Aggregator(directory)
    serve_over_tls(aggregator.app(), "Aggregator", settings, aggregator.limits)


def _show(directory: Path) -> None:
    from terrine_server.aggregator import ReleaseCounter

    count = ReleaseCounter(directory)
    terms, released = count.terms, count.released
    table = Table(show_header=False)
    table.add_row("owners", f"{len(terms.owners):,}")
    table.add_row("classes", f"{terms.classes:,}")
    table.add_row("σ of its noise", f"{terms.sigma:g} votes")
    table.add_row("budget against the service", f"ε = {terms.epsilon:g}, δ = {terms.delta:g}")
    table.add_row("queries released", f"{released:,} of {count.most:,}")
    console.print(table)
