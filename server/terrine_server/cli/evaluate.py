"""`terrine ensemble evaluate`: how far teachers agree, and how often they are right."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from terrine_server.cli import tables
from terrine_server.cli.console import as_json, console, fail, print_json, with_json
from terrine_server.cli.votes import VoteSource, check_origin

if TYPE_CHECKING:
    from terrine_models.data.arrays import Dataset
    from terrine_models.teachers.agreement import Agreement
    from terrine_models.teachers.manifests import Manifest
    from terrine_protocol.tables.columns import Note


def ensemble_directory(ensemble: str) -> Path:
    """The directory of an ensemble that is named, or given by path: of its newest edition."""
    from terrine_models.storage.manifests import MANIFEST
    from terrine_models.teachers.federation import FEDERATION
    from terrine_server.settings import Settings

    path = Path(ensemble)
    if not any((path / name).exists() for name in (MANIFEST, FEDERATION)) and len(path.parts) == 1:
        named = Settings().ensembles_dir / ensemble
        path = named if named.exists() else path
    editions = [each for each in path.glob("edition-*") if each.name[8:].isdigit()]
    return max(editions, key=lambda each: int(each.name[8:]), default=path)


@with_json
def evaluate(
    ensemble: Annotated[
        str, typer.Argument(metavar="ENSEMBLE", help="Name or directory of an ensemble.")
    ],
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Labelled data that no teacher was trained on: IDX images (labels beside them), "
            ".npz with x and y, a table, or a folder of pictures for each class.",
        ),
    ],
    trained_on: Annotated[
        VoteSource | None, typer.Option(help="What the teachers were trained on.")
    ] = None,
    votes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also save the votes, as `terrine plan --votes` reads."),
    ] = None,
) -> None:
    """Measure how far teachers agree, and how often they are right, by class.

    To know this before private teachers are trained, train a stand-in: as many teachers, with as
    many records each, on data that are public. Votes of private teachers are private, even votes on
    public inputs, and what is chosen by looking at them is outside every guarantee.

    [bold]Example[/bold]

      terrine ensemble evaluate stand-in census.csv --trained-on public --votes votes.npz

      terrine plan --votes votes.npz --votes-are public --epsilon 1
    """
    import numpy as np

    from terrine_models.teachers.agreement import Agreement
    from terrine_models.teachers.ensemble import Ensemble
    from terrine_protocol.files import replacing

    check_origin(trained_on, "--trained-on")
    if votes is not None and votes.suffix.lower() != ".npz":
        fail(f"--votes must end in .npz; {votes} does not.")
    loaded = Ensemble.load(ensemble_directory(ensemble))
    manifest = loaded.manifest
    labelled = _labelled(data, manifest, tables.note_aside if as_json() else tables.note)
    counts = loaded.votes(labelled.inputs)
    found = Agreement.of(counts, labelled.labels, manifest.classes)
    if votes is not None:
        with replacing(votes) as archive:
            np.savez_compressed(archive, counts=counts, labels=labelled.labels)
    if as_json():
        print_json(asdict(found))
        return
    _show(found, manifest, data)
    if votes is None:
        levels = ",".join(f"{level:.2g}" for level in found.consensus)
        options = f"--teachers {found.teachers} --classes {len(found.classes)} --consensus {levels}"
    else:
        options = f"--votes {votes} --votes-are {trained_on}"
    console.print(
        f"To plan with it: terrine plan {options} --epsilon 1", soft_wrap=True, highlight=False
    )


def _labelled(path: Path, manifest: Manifest, note: Note) -> Dataset:
    from terrine_models.data.arrays import load_idx, load_npz
    from terrine_models.data.images import load_image_classes
    from terrine_models.tables.loading import load_table

    if manifest.encoding is not None:
        data = load_table(path, manifest.encoding, note, public=True)
    elif manifest.image is not None and path.is_dir():
        data = load_image_classes(path, manifest.image, classes=manifest.classes)
    elif path.suffix.lower() == ".npz":
        data = load_npz(path, classes=manifest.classes)
    else:
        data = load_idx(path, classes=manifest.classes)
    if data.spec.shape != manifest.input.shape or data.spec.dtype != manifest.input.dtype:
        fail(
            f"{path} has inputs {data.spec.dtype} {list(data.spec.shape)}; the ensemble takes "
            f"{manifest.input.dtype} {list(manifest.input.shape)}."
        )
    return data


def _show(found: Agreement, manifest: Manifest, data: Path) -> None:
    console.print(
        f"{found.teachers:,} teachers of {manifest.name} on {found.inputs:,} records of {data}:\n"
        f"one teacher is right on {found.mean_teacher:.2%} on average, most of them on "
        f"{found.plurality:.2%}, the larger class on {found.majority:.2%}.",
        soft_wrap=True,
        highlight=False,
    )
    levels = Table("agree", "records", "of them right")
    above = ""
    for level in found.levels:
        name = f"{level.agreement:.0%} or more" if level.agreement else "less"
        levels.add_row(name + above, f"{level.inputs:,}", _percent(level.right))
        above = f", below {level.agreement:.0%}" if level.agreement else ""
    console.print(levels)
    classes = Table("class", "records", "most teachers right", "mean share of votes")
    for each in found.classes:
        row = (f"{each.inputs:,}", _percent(each.right), _percent(each.votes))
        classes.add_row(escape(each.name), *row)
    console.print(classes)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.2%}"
