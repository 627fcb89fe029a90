"""`make reproduce ARGS="paper …"`: tables and figures of the papers, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from terrine_server.cli.console import console, fail


def paper(
    which: Annotated[
        str, typer.Argument(help="pate-2017, scalable-2018, near-zero, or all.", metavar="PAPER")
    ],
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Directory with a directory for each data set, named mnist, adult, svhn, diabetes "
            "and glyph. All but mnist may be missing. Recorded votes of networks and forests, in "
            "NAME_TEACHERS_votes.npz, are used in place of training.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for teachers, votes and what is found.")
    ] = Path("reproduce-papers"),
    page: Annotated[
        Path, typer.Option(metavar="FILE", help="The page whose tables and pictures are renewed.")
    ] = Path("docs/papers.md"),
) -> None:
    """Recompute what three papers print, and renew the page that compares it.

    Run the same command again to continue after an interruption: votes, and what students reached,
    are kept in --out.
    """
    from terrine_experiments.near_zero import near_zero
    from terrine_experiments.page import write_page
    from terrine_experiments.pate_2017 import pate_2017
    from terrine_experiments.scalable_2018 import scalable_2018
    from terrine_experiments.study import Study
    from terrine_server import logs

    chapters = {"pate-2017": pate_2017, "scalable-2018": scalable_2018, "near-zero": near_zero}
    if which != "all" and which not in chapters:
        fail(f"There is no paper {which!r}; expected {', '.join(chapters)}, or all.")
    if not page.exists():
        fail(f"{page} is not there: it holds the prose that the tables stand in.")
    logs.configure("error")
    study = Study(data, out, console)
    chosen = [which] if which != "all" else list(chapters)
    made = {name: chapters[name](study, page.parent) for name in chosen}
    write_page(page, out, made)
    study.say(f"{page}, with pictures beside it")
