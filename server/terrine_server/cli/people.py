"""`terrine ensemble forget` and `add`: people who leave ensembles, and who join."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from terrine_models.data.arrays import DataError, Dataset, load_groups
from terrine_models.features.maps import PublicData
from terrine_models.formats import PICTURES, TABLE, format_of
from terrine_models.tables.loading import load_people
from terrine_models.teachers.kinds import load_manifest
from terrine_models.teachers.manifests import Manifest
from terrine_models.teachers.neighbours import NeighbourTeachers
from terrine_models.teachers.people import name_digests
from terrine_protocol.base import quantity
from terrine_server.cli.console import console, fail, say
from terrine_server.cli.ledger import open_current_ledger
from terrine_server.cli.options import Yes
from terrine_server.cli.reading import note
from terrine_server.ledger import EnsembleRecord, Ledger
from terrine_server.owner import editions
from terrine_server.owner.editions import EditionChange
from terrine_server.settings import Settings
from terrine_tables.encoding import encode_table
from terrine_tables.formats import is_table


def forget(
    who: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Who leaves: a table with the column that names people, alone or beside others, "
            "or an .npz with `group`.",
        ),
    ],
    population: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose people. Default: the only population.")
    ] = None,
    records: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENSEMBLE=FILE",
            help="The records that an ensemble of trained teachers was trained on, or what is left "
            "of them without who leaves. May be repeated.",
        ),
    ] = None,
    public: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENSEMBLE=FILE",
            help="The public table of its `train`, where teachers match their prior on its rows. "
            "May be repeated.",
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Forget people in every ensemble of their population, for good, while the service runs.

    Their records are gone when this is done, teachers that learned from them are trained anew
    without them, and what is charged afterwards is answered without them, under the same caps,
    projects and tokens. Keyed digests of their names stay, which keep them from coming back. If
    this is interrupted, run it again. Backups, FILE and the files that ensembles were made of are
    yours to clean.

    [bold]Examples[/bold]

      terrine ensemble forget --who withdrawn.csv

      terrine ensemble forget --who withdrawn.csv --records wards=patients.csv
          --public wards=census-sample.csv
    """
    settings, ledger = Settings(), open_current_ledger()
    key = editions.records_key(settings)
    members = editions.members(ledger, population)
    files = _parse_files("--records", records or ())
    pools = _parse_files("--public", public or ())
    for name in pools:
        if name not in files:
            fail(f"--public {name}=… is for training {name} anew: give --records {name}=… as well.")
    retraining = {}
    for name, path in files.items():
        manifest = _newest_manifest(ledger, settings, name)
        pool = None
        if name in pools:
            if manifest.encoding is None:
                fail("--public is for tables: only their teachers match a prior on public rows.")
            rows = encode_table(
                pools[name],
                manifest.encoding,
                note,
                accept_clipped=True,
                accept_empty=False,
                go_on=None,
            )
            pool = PublicData.declare(pools[name].name, rows)
        retraining[name] = editions.Retraining(_load_records(manifest, path), pool)
    named = _names_of_people(members, who)
    if not yes:
        whose = members[0].population.name
        typer.confirm(
            f"Forget {quantity(len(named), 'person', 'people')} of {whose} for good?", abort=True
        )
    with console.status("Forgetting"):
        done = editions.forget(ledger, settings, population, name_digests(named, key), retraining)
    nameless = [each.name for each in members if each.name not in done]
    _show_forgotten(done, nameless, settings)


def add(
    ensemble: Annotated[
        str, typer.Argument(metavar="ENSEMBLE", help="A registered ensemble of neighbours.")
    ],
    more: Annotated[
        Path,
        typer.Argument(metavar="MORE", help="Private records, in the format of those it has."),
    ],
) -> None:
    """Let people join, while the service runs: they vote from the next query on.

    Only where the ensemble knows whose its records are (the role group). Each new person has an
    empty account in every project. More records of a person who is there are added to that
    person's, those that are there already are not; who was forgotten is left out.

    [bold]Example[/bold]: terrine ensemble add wards admitted-in-may.csv
    """
    settings, ledger = Settings(), open_current_ledger()
    manifest = _newest_manifest(ledger, settings, ensemble)
    if not isinstance(manifest.teacher, NeighbourTeachers):
        fail(
            f"{ensemble} has trained teachers, of the kind {manifest.kind}, and nobody joins "
            "these. Train another ensemble of the population."
        )
    made = editions.add(ledger, settings, ensemble, _load_records(manifest, more))
    left_out = f" Left out, as they were forgotten before: {made.left_out:,}."
    say(
        f"Edition {made.edition} of {ensemble} serves. New people: {made.people:,}."
        f"{left_out if made.left_out else ''}"
    )


def _newest_manifest(ledger: Ledger, settings: Settings, ensemble: str) -> Manifest:
    record, _ = editions.with_newest_edition(ledger, ensemble)
    return load_manifest(settings.data_dir / record.current.path)


def _load_records(manifest: Manifest, path: Path) -> Dataset:
    """Return private records in the format of an ensemble's, and in no other."""
    form = format_of(path, manifest)
    if manifest.encoding is not None:
        form = TABLE
    elif manifest.image is not None:
        form = PICTURES
    return form.labelled(path, manifest, note, False)


def _parse_files(option: str, given: Iterable[str]) -> dict[str, Path]:
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


def _names_of_people(records: Iterable[EnsembleRecord], who: Path) -> list[str]:
    """Return what the people in a file are called, by the column that one of the ensembles has."""
    if not is_table(who):
        return load_groups(who)
    schemas = [each.facts.encoding for each in records if each.facts.encoding is not None]
    for schema in schemas:
        try:
            return load_people(who, schema, note)
        except DataError as error:
            if schema is schemas[-1]:
                raise
            note(str(error))
    return fail(
        f"{who} is a table, and no ensemble is of tables: give an .npz with an array `group`."
    )


def _show_forgotten(
    done: Mapping[str, EditionChange], nameless: Iterable[str], settings: Settings
) -> None:
    for ensemble, made in done.items():
        if made.new:
            say(f"Edition {made.edition} of {ensemble} serves. People who left: {made.people:,}.")
        else:
            say(f"They were forgotten in {ensemble} before; edition {made.edition} serves.")
    say(f"What was made of their records is gone from {settings.ensembles_dir}.")
    for ensemble in nameless:
        say(
            f"{ensemble} does not know whose its records are: nobody was looked for in it. If they "
            "may be in it, close its projects, or have its teachers trained anew."
        )
