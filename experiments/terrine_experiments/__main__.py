"""`python -m terrine_experiments reproduce DATA DIR`, `… paper NAME` and `… glyphs DIR`."""

from __future__ import annotations

import os

import typer

from terrine_experiments.draw_glyphs import glyphs
from terrine_experiments.paper import paper
from terrine_experiments.reproduce import reproduce
from terrine_server.cli.console import run

app = typer.Typer(
    name="experiments",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Repeat the experiments of the PATE papers.",
)
app.command()(reproduce)
app.command()(paper)
app.command()(glyphs)


def main() -> None:
    """Run an experiment. What it makes is closed to other accounts from the first byte."""
    os.umask(0o077)
    run(app)


if __name__ == "__main__":
    main()
