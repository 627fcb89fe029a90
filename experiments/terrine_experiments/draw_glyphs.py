"""`make glyphs`: draw the pictures of characters that `make reproduce ARGS=glyph …` needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from terrine_server.cli.console import console


def glyphs(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to write.")],
    fonts: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory with .ttf and .otf files. Default: the system's fonts."
        ),
    ] = None,
    private: Annotated[
        int | None, typer.Option(min=1, help="Private records, for teachers. Default: 600,000.")
    ] = None,
    public: Annotated[
        int | None, typer.Option(min=1, help="Public records, for students. Default: 10,000.")
    ] = None,
    families: Annotated[
        int | None, typer.Option(min=2, help="The fewest font families to accept. Default: 60.")
    ] = None,
    characters: Annotated[
        str | None, typer.Option(help="The classes, one character each. Default: 150.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the split of the fonts and all else.")] = 0,
    tuning: Annotated[
        bool,
        typer.Option(
            "--tuning",
            help="Use the private families of this seed alone and split them again: data to choose "
            "settings on.",
        ),
    ] = False,
) -> None:
    """Draw labelled pictures of characters with this machine's fonts, as the Glyph data of P18.

    150 characters, 28 x 28 pixels, distorted at random; the most frequent is five times as frequent
    as the rarest, and 1 % of the private labels are wrong. A font family is private or public,
    never both. DIR gets private.npz, public.npz and facts.json.

    [bold]Example[/bold]

      make glyphs ARGS=glyphs/ && make reproduce ARGS="glyph glyphs/"
    """
    from terrine_experiments.glyphs.files import Drawing, write_glyphs

    given = {"private": private, "public": public, "families": families, "characters": characters}
    chosen = {name: value for name, value in given.items() if value is not None}
    plan = Drawing(**chosen, seed=seed, tuning=tuning)  # type: ignore[arg-type]
    facts = write_glyphs(out, plan, fonts, console.print)
    for side in ("private", "public"):
        part = facts[side]
        console.print(
            f"{side}: {part['records']:,} records of {len(part['families'])} families, "
            f"SHA-256 {part['sha256']}",
            highlight=False,
            soft_wrap=True,
        )
