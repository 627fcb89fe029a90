"""`terrine neighbours build`: an ensemble in which every person votes, and nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.cli import arrays, tables
from terrine_server.cli.console import console, fail
from terrine_server.cli.ensemble import show_manifest

if TYPE_CHECKING:
    from terrine_models.data.arrays import Dataset
    from terrine_models.features.maps import PublicData

app = typer.Typer(no_args_is_help=True, help="Let every person vote, with an account of their own.")


@app.command()
def build(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="PRIVATE", help="Private records, in a format that `ensemble train` reads."
        ),
    ],
    public: Annotated[
        Path,
        typer.Option(
            metavar="POOL",
            help="Public data, on which the map and the radius are fitted: such as students ask "
            "about.",
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the ensemble: a-z, 0-9, '-' and '_'.")],
    near: Annotated[
        int,
        typer.Option(
            min=1, help="How many people, by public rows, a query asks: for a smaller ε, more."
        ),
    ] = 240,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Public schema of a table: `terrine ensemble schema`. Its column of the role "
            "group says whose a row is.",
        ),
    ] = None,
    classes: arrays.Classes = None,
    images: arrays.Images = None,
    backbone: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="An ONNX model [batch, …] → [batch, D] whose embeddings are the features. It must "
            "be public: nobody's private records may have trained it.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where to save. Default: ensembles/NAME in the data directory."
        ),
    ] = None,
) -> None:
    """Place private records on a public map, where each votes for what lies near it.

    Nothing is trained. The directory holds a transformed copy of every private record.

    [bold]Examples[/bold]

      terrine neighbours build mnist/ --public pool.npy --name digits

      terrine neighbours build patients.csv --public census-sample.csv --schema schema.json
          --name wards --near 100
    """
    from terrine_models.teachers.neighbours import (
        NeighbourEnsemble,
        Neighbours,
        foresee,
    )
    from terrine_models.teachers.neighbours import build as place

    if out is None:
        from terrine_server.settings import Settings

        out = Settings().ensembles_dir / name
    private, pool, _ = loaded(data, public, schema, classes, images)
    with console.status("Placing the records"):
        settings = Neighbours(near=near, backbone=backbone)
        manifest = place(private, out, name=name, public=pool, settings=settings)
    show_manifest(out, manifest)
    found = foresee(NeighbourEnsemble.load(out))
    console.print(
        f"From public rows alone: {found.near:,.0f} people near a query, {found.fewest:,.0f} to "
        f"{found.most:,.0f} near four in five; one record near {found.appearances:.2%} of the "
        f"queries, the busiest hundredth near {found.busiest:.2%} or more.\n"
        f"Next: terrine ensemble register {name} --epsilon ε --delta δ",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


def loaded(
    data: Path, public: Path, schema: Path | None, classes: str | None, images: str | None
) -> tuple[Dataset, PublicData, Dataset | None]:
    """Return private records, and public ones: as inputs, and with labels if they have any."""
    from terrine_models.tables.loading import is_table

    if is_table(data):
        if classes or images:
            fail("--classes and --images are for images and arrays; a table has a schema.")
        private, pool, labelled = tables.load(data, schema, public)
    else:
        if schema:
            fail("--schema is for tables only.")
        private, pool, labelled = arrays.load(data, arrays.Arrays(public, classes, images))
    if pool is None:
        raise RuntimeError("--public was read, and is not there")
    return private, pool, labelled
