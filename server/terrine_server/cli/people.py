"""Who leaves a population or joins an ensemble, as files on the command line say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from terrine_server.cli import tables
from terrine_server.cli.console import console, fail

if TYPE_CHECKING:
    from terrine_models.data.arrays import Dataset
    from terrine_models.teachers.manifests import Manifest
    from terrine_server.ledger import EnsembleRecord, Ledger
    from terrine_server.owner.editions import EditionChange
    from terrine_server.settings import Settings


def newest(ledger: Ledger, settings: Settings, ensemble: str) -> Manifest:
    """Return the manifest of the newest edition of an ensemble that people can leave or join."""
    from terrine_models.teachers.kinds import load_manifest
    from terrine_server.owner.editions import with_newest_edition

    record, _ = with_newest_edition(ledger, ensemble)
    return load_manifest(settings.data_dir / record.current.path)


def by_ensemble(option: str, given: Iterable[str]) -> dict[str, Path]:
    """Return the files that are given as ENSEMBLE=FILE."""
    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            fail(f"{option} is ENSEMBLE=FILE, such as {option} wards=patients.csv; not {text}.")
        if not Path(path).exists():
            fail(f"There is no {path}.")
        found[name] = Path(path)
    return found


def names(records: Iterable[EnsembleRecord], settings: Settings, who: Path) -> list[str]:
    """Return what the people in a file are called, by the column that one of the ensembles has."""
    from terrine_models.data.arrays import DataError, load_groups
    from terrine_models.tables.loading import is_table, load_people

    if not is_table(who):
        return load_groups(who)
    schemas = [each.facts.encoding for each in records if each.facts.encoding is not None]
    for schema in schemas:
        try:
            return load_people(who, schema, tables.note)
        except DataError as error:
            if schema is schemas[-1]:
                raise
            tables.note(str(error))
    fail(f"{who} is a table, and no ensemble is of tables: give an .npz with an array `group`.")


def show_who_left(
    done: Mapping[str, EditionChange], nameless: list[str], settings: Settings
) -> None:
    """Print which editions serve, and that they are without those who left."""
    for ensemble, made in done.items():
        say = f"Edition {made.edition} of {ensemble} serves. People who left: {made.people:,}."
        if not made.new:
            say = f"They were forgotten in {ensemble} before; edition {made.edition} serves."
        console.print(say, soft_wrap=True)
    where = settings.ensembles_dir
    console.print(f"What was made of their records is gone from {where}.", soft_wrap=True)
    for ensemble in nameless:
        console.print(
            f"{ensemble} does not know whose its records are: nobody was looked for in it. If they "
            "may be in it, close its projects, or have its teachers trained anew.",
            soft_wrap=True,
        )


def records(manifest: Manifest, path: Path) -> Dataset:
    """Return records in the format of an ensemble's."""
    from terrine_models.data.arrays import DataError, load_idx, load_npz
    from terrine_models.data.blocks import remark_on_people
    from terrine_models.data.images import load_image_classes
    from terrine_models.tables.loading import load_table

    if manifest.encoding is not None:
        return load_table(path, manifest.encoding, tables.note)
    if manifest.image is not None:
        return load_image_classes(path, manifest.image, classes=manifest.classes)
    if path.suffix.lower() != ".npz":
        return load_idx(path, classes=manifest.classes)
    try:
        data = load_npz(path)
    except DataError:  # it does not name its classes
        data = load_npz(path, classes=manifest.classes)
    if data.people and (told := remark_on_people(data.people, f"{path}: array group")):
        tables.note(told)
    return data
