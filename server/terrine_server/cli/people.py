"""Who leaves an ensemble or joins it, as files on the command line say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.cli import tables
from terrine_server.cli.console import console

if TYPE_CHECKING:
    from terrine_models.data.arrays import Dataset
    from terrine_models.teachers.manifests import Manifest
    from terrine_models.teachers.people import Digests
    from terrine_server.ledger import Ledger
    from terrine_server.owner.editions import EditionChange
    from terrine_server.settings import Settings

Who = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="Who leaves. Where records have a group: a table with its column, or an .npz with "
        "`group`. Otherwise the records themselves, as they were given.",
    ),
]


def newest(ledger: Ledger, settings: Settings, ensemble: str) -> Manifest:
    """Return the manifest of the newest edition of an ensemble that people can leave."""
    from terrine_models.teachers.kinds import load_manifest
    from terrine_server.owner.editions import living

    record, _ = living(ledger, ensemble)
    return load_manifest(settings.data_dir / record.current.path)


def digests(manifest: Manifest, who: Path, key: bytes, *, grouped: bool) -> Digests:
    """Return digests of the people in a file: by name, or else by their records."""
    from terrine_models.teachers.people import name_digests, record_digests

    if grouped:
        return name_digests(_names(manifest, who), key)
    return record_digests(records(manifest, who), key)


def say_who_left(made: EditionChange, ensemble: str, settings: Settings) -> None:
    """Print which edition serves, and that it is without them."""
    if made.new:
        say = f"Edition {made.edition} of {ensemble} serves. People who left: {made.people:,}."
    else:
        say = f"They left {ensemble} before; edition {made.edition} serves."
    where = settings.ensembles_dir
    console.print(f"{say} What was made of their records is gone from {where}.", soft_wrap=True)


def _names(manifest: Manifest, who: Path) -> list[str]:
    """Return what the people in a file are called."""
    from terrine_models.data.arrays import load_groups
    from terrine_models.tables.loading import load_people

    if manifest.encoding is not None:
        return load_people(who, manifest.encoding, tables.note)
    return load_groups(who)


def records(manifest: Manifest, path: Path) -> Dataset:
    """Return records in the format of an ensemble's."""
    from terrine_models.data.arrays import DataError, load_idx, load_npz
    from terrine_models.data.images import load_image_classes
    from terrine_models.tables.loading import load_table

    if manifest.encoding is not None:
        return load_table(path, manifest.encoding, tables.note)
    if manifest.image is not None:
        return load_image_classes(path, manifest.image, classes=manifest.classes)
    if path.suffix != ".npz":
        return load_idx(path, classes=manifest.classes)
    try:
        return load_npz(path)
    except DataError:  # it does not name its classes
        return load_npz(path, classes=manifest.classes)
