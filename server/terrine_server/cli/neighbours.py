"""`terrine neighbours …`: an ensemble in which every person votes, and nothing is trained.

People come to it while it serves; `terrine ensemble forget` lets them leave.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.cli import arrays, people, preview, tables
from terrine_server.cli.console import console, fail, opened_ledger
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
        NeighbourSettings,
        foresee,
    )
    from terrine_models.teachers.neighbours import build as place
    from terrine_server.cli.plan_report import stand_ins
    from terrine_server.owner.editions import records_key
    from terrine_server.owner.operations import make_directories
    from terrine_server.settings import Settings

    own = Settings()
    out = out or own.ensembles_dir / name
    private, pool, _ = loaded(data, public, schema, classes, images)
    tables.note(preview.private_rows(pool, private))
    make_directories(own)
    key = records_key(own, make=True)
    with console.status("Placing the records"):
        settings = NeighbourSettings(near=near, backbone=backbone)
        manifest = place(private, out, name=name, public=pool, settings=settings, key=key)
    show_manifest(out, manifest)
    found = foresee(NeighbourEnsemble.load(out))
    of = stand_ins(manifest, found)
    console.print(
        f"By {of.who}: {found.near:,.0f} people near a query, {found.fewest:,.0f} to "
        f"{found.most:,.0f} near four in five; one of them near {found.appearances:.2%} of the "
        f"queries, the busiest hundredth near {found.busiest:.2%} or more.{of.but}\n"
        f"Next: terrine ensemble register {name} --epsilon ε --delta δ",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


Ensemble = Annotated[
    str, typer.Argument(metavar="ENSEMBLE", help="A registered ensemble of neighbours.")
]


@app.command()
def add(
    ensemble: Ensemble,
    more: Annotated[
        Path,
        typer.Argument(metavar="MORE", help="Private records, in the format of those it has."),
    ],
) -> None:
    """Let people join, while the service runs: they vote from the next query on.

    Only where the ensemble knows whose its records are (the role group). Each new person has an
    empty account in every project. More records of a person who is there are added to that
    person's, those that are there already are not; who was forgotten is left out.

    [bold]Example[/bold]: terrine neighbours add wards admitted-in-may.csv
    """
    from terrine_models.teachers.neighbours import NeighbourTeachers
    from terrine_server.owner import editions
    from terrine_server.settings import Settings

    settings, ledger = Settings(), opened_ledger()
    manifest = people.newest(ledger, settings, ensemble)
    if not isinstance(manifest.teacher, NeighbourTeachers):
        fail(
            f"{ensemble} has trained teachers, of the kind {manifest.kind}, and nobody joins "
            "these. Train another ensemble of the population."
        )
    made = editions.add(ledger, settings, ensemble, people.records(manifest, more))
    say = f"Edition {made.edition} of {ensemble} serves. New people: {made.people:,}."
    if made.left_out:
        say += f" Left out, as they were forgotten before: {made.left_out:,}."
    console.print(say, soft_wrap=True)


def loaded(
    data: Path,
    public: Path,
    schema: Path | None,
    classes: str | None,
    images: str | None,
    note: Callable[[str], None] = tables.note,
) -> tuple[Dataset, PublicData, Dataset | None]:
    """Return private records, and public ones: as inputs, and with labels if they have any."""
    from terrine_models.tables.loading import is_table

    if is_table(data):
        if classes or images:
            fail("--classes and --images are for images and arrays; a table has a schema.")
        private, pool, labelled = tables.load(data, schema, public, note)
    else:
        if schema:
            fail("--schema is for tables only.")
        private, pool, labelled = arrays.load(data, arrays.Arrays(public, classes, images))
    if pool is None:
        raise RuntimeError("--public was read, and is not there")
    return private, pool, labelled
