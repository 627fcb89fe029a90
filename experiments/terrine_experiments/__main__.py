"""`python -m terrine_experiments reproduce DATA DIR`, `… paper NAME` and `… glyphs DIR`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from terrine_experiments.glyphs.records import Drawing, write_glyphs
from terrine_experiments.near_zero import near_zero
from terrine_experiments.page import begin_page, write_page
from terrine_experiments.papers import Name
from terrine_experiments.pate_2017 import pate_2017
from terrine_experiments.reproduce import NEAR, Experiment, Selling
from terrine_experiments.results import FILE, draw, keep, table
from terrine_experiments.scalable_2018 import scalable_2018
from terrine_experiments.sources import load
from terrine_experiments.study import DRAWS, Protocol, Study
from terrine_server import logs
from terrine_server.cli.console import console, errors, fail, run

QUICK_TEACHERS = 40
CHAPTERS = {"pate-2017": pate_2017, "scalable-2018": scalable_2018, "near-zero": near_zero}

app = typer.Typer(
    name="experiments",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Repeat the experiments of the PATE papers.",
)


@app.command()
def reproduce(
    data: Annotated[Name, typer.Argument(help="The data set.")],
    path: Annotated[
        Path, typer.Argument(metavar="DIR", help="Its files, as published: experiments/README.md.")
    ],
    epsilon: Annotated[list[float] | None, typer.Option(help="Of a student. Default: 0.3.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Default: the papers' for these data.")
    ] = None,
    protocol: Annotated[
        Protocol,
        typer.Option(
            help="folds: every test input measures a student that has not seen it. last-1000: the "
            "last 1,000 test inputs measure one that has seen all others, as in P17."
        ),
    ] = "folds",
    runs: Annotated[int, typer.Option(min=1, max=100, help="With teachers of their own.")] = 3,
    teachers: Annotated[int | None, typer.Option(min=2, help="Number of teachers.")] = None,
    mechanism: Annotated[Selling, typer.Option(help="Of teachers, or of records.")] = "noisy_votes",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For all. Default: reproduce-DATA.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few teachers, to try it.")] = False,
) -> None:
    """Repeat a paper's experiment: train teachers, ask them, teach students, compare.

    The table shows students beside the same student on true labels, a plain one on the same
    answers, the teachers' plurality and the paper's figures. ± is the interval in which a new run's
    figure falls, for 95 %. Run the same command again to continue after an interruption: no noise
    is drawn twice. Results gather in results.json and one picture.
    """
    if mechanism == "neighbours" and (teachers or data not in NEAR):
        fail(f"neighbours have no teachers to choose, and are for {', '.join(NEAR)}.")
    logs.configure("error")
    source = load(data, path)
    number = min(source.teachers, QUICK_TEACHERS) if quick else source.teachers
    source = replace(source, teachers=teachers or number)
    out = out or Path(f"reproduce-{data}")
    out.mkdir(parents=True, exist_ok=True)
    study = Study(path.parent, out, console, {data: source})
    budget = source.delta if delta is None else delta
    experiment = Experiment(study, source, protocol, mechanism, budget, runs)
    try:
        results = experiment.results(list(dict.fromkeys(epsilon or [0.3])))
    except KeyboardInterrupt:
        errors.print(f"Interrupted. Run the same command again to continue; see {out}.")
        raise typer.Exit(130) from None
    picture = out / f"{data}-{protocol}.png"
    draw(keep(results, out), picture)
    for result in results:
        console.print(table(result))
    for warning in source.warnings:
        console.print(f"[bold yellow]Note:[/] {warning}", soft_wrap=True, highlight=False)
    study.say(f"{out / FILE}, {picture}")


@app.command()
def paper(
    which: Annotated[str, typer.Argument(help=f"{', '.join(CHAPTERS)}, or all.", metavar="PAPER")],
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Directory with a directory for each data set, by its name, all but mnist if they "
            "are at hand, and recorded votes, NAME_TEACHERS_votes.npz.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="For teachers, votes and figures.")
    ] = Path("reproduce-papers"),
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page that is renewed, such as docs/papers.md; rows of other papers stay as "
            "they are. Default: papers.md in --out.",
        ),
    ] = None,
) -> None:
    """Recompute what three papers print, and renew a page that compares it.

    Run the same command again to continue after an interruption: votes, and what students reached,
    are kept in --out. Another --out draws all noise anew.
    """
    if which != "all" and which not in CHAPTERS:
        fail(f"There is no paper {which!r}; expected {', '.join(CHAPTERS)}, or all.")
    if page is None:
        page = out / "papers.md"
        if not page.exists():
            begin_page(page)
    elif not page.exists():
        fail(f"{page} is not there: it holds the prose that the tables stand in.")
    logs.configure("error")
    study = Study(data, out, console)
    chosen = [which] if which != "all" else list(CHAPTERS)
    made = {name: CHAPTERS[name](study, page.parent) for name in chosen}
    write_page(page, made, DRAWS)
    study.say(f"{page}, with pictures beside it")


@app.command()
def glyphs(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to write.")],
    fonts: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With .ttf and .otf files. Default: all.")
    ] = None,
    private: Annotated[int, typer.Option(min=1, help="Records for teachers.")] = Drawing.private,
    public: Annotated[int, typer.Option(min=1, help="For students.")] = Drawing.public,
    families: Annotated[int, typer.Option(min=2, help="The fewest to accept.")] = Drawing.families,
    characters: Annotated[
        str, typer.Option(help="The classes, one character each. Default: 150.", show_default=False)
    ] = Drawing.characters,
    seed: Annotated[int, typer.Option(min=0, help="Of the fonts' split and all else.")] = 0,
    tuning: Annotated[
        bool, typer.Option("--tuning", help="Split the private families of this seed again.")
    ] = False,
) -> None:
    """Draw labelled pictures of characters with this machine's fonts, as the Glyph data of P18.

    150 characters, 28 x 28 pixels, distorted at random; the most frequent is five times as frequent
    as the rarest, and 1 % of the private labels are wrong. A font family is private or public,
    never both. DIR gets private.npz, public.npz and facts.json.
    """
    plan = Drawing(private, public, families, characters, seed, tuning)
    facts = write_glyphs(out, plan, fonts, console.print)
    for side in ("private", "public"):
        part = facts[side]
        console.print(
            f"{side}: {part['records']:,} records of {len(part['families'])} families, "
            f"SHA-256 {part['sha256']}",
            highlight=False,
            soft_wrap=True,
        )


def main() -> None:
    """Run an experiment. What it makes is closed to other accounts from the first byte."""
    os.umask(0o077)
    run(app)


if __name__ == "__main__":
    main()
