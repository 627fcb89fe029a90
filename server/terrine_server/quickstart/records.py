"""Private and public records, read as a project would use them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from terrine_models.data.arrays import DataError, Dataset
from terrine_models.features.public import PublicData
from terrine_models.formats import load_labelled_rows, load_private, load_public
from terrine_models.tables.loading import read_schema
from terrine_models.tables.proposal import find_repeated_people
from terrine_models.teachers.shards import unit_count
from terrine_protocol.schema import TableSchema
from terrine_server.progress import stages_bar
from terrine_server.quickstart.dialogue import (
    Described,
    Given,
    Owner,
    QuickstartError,
    SchemaAlone,
    find_schema,
)
from terrine_server.settings import Settings
from terrine_tables.columns import Note, Progress, ignore_note, ignore_progress


@dataclass(frozen=True)
class PublicRows:
    """Public rows, on all of which students ask."""

    pool: PublicData
    sample: Dataset
    """The same as records; where they have no labels, all of the first class."""
    labelled: bool


@dataclass(frozen=True)
class ProjectData:
    """What a first project starts from: numbers of private records, and what is asked."""

    units: int
    """Records, or people with all of theirs."""
    person: str | None
    """What names people, each protected with all records; None if each record is alone."""
    asked: PublicRows | TableSchema
    """Of a schema, rows are designed."""
    schema: Path | None = None
    """Of a table: where its schema is."""
    rows_of_people: str = ""
    """What to do if people have several rows, and none are named."""

    @property
    def labelled(self) -> Dataset | None:
        """Public rows whose labels are known."""
        asked = self.asked
        return asked.sample if isinstance(asked, PublicRows) and asked.labelled else None

    @classmethod
    def of(
        cls,
        private: Dataset,
        asked: PublicRows | TableSchema,
        schema: Path | None = None,
        rows_of_people: str = "",
    ) -> ProjectData:
        """Return that of private records."""
        return cls(unit_count(private), _find_person(private), asked, schema, rows_of_people)


def schema_file(settings: Settings, name: str) -> Path:
    """Return where the schema is kept that is proposed for an ensemble."""
    beside = settings.data_dir.parent  # which a container may not write to
    place = beside if os.access(beside, os.W_OK) else settings.data_dir
    return place / f"{name}-schema.json"


def read_records(
    private: Path, given: Given, out: Path, owner: Owner
) -> tuple[Dataset, ProjectData, Given]:
    """Read private and public records. `out`: the schema of a table, made if there is none.

    Returns what is said of them, with what was answered, too. Raises DataError, QuickstartError.
    """
    schema, given = find_schema(private, given, out, owner)
    read = list[str]()
    records = _load_private(private, schema, given, owner, read.append)
    if isinstance(given, SchemaAlone):
        asked: PublicRows | TableSchema = read_schema(given.schema)
    else:
        asked = _read_public_rows(given.public, records, owner, read.append)
    for sentence in read:
        owner.note(sentence)
    several = _if_several(given)
    if records.groups is None and schema is not None:
        several = _count_rows_of_people(private, schema, given) or several
    return records, ProjectData.of(records, asked, schema, several), given


def read_public_alone(
    units: int, given: Given, out: Path, owner: Owner
) -> tuple[ProjectData, Given]:
    """Read labelled public rows, in place of private ones too, of which there are so many units.

    Raises QuickstartError for rows without labels, with which nothing can be tried out.
    """
    if isinstance(given, SchemaAlone):
        stated = read_schema(given.schema)
        person = next((each.name for each in stated.columns if each.role == "group"), None)
        return ProjectData(units, person, stated, given.schema, _if_several(given)), given
    public = given.public
    schema, given = find_schema(public, given, out, owner)
    try:
        if schema is not None:
            data = load_labelled_rows(public, read_schema(schema), owner.note)
        else:
            data = _load_private(public, None, given, owner, owner.note)
    except DataError as error:
        raise QuickstartError(
            f"What a student will be cannot be forecast without public labels: {error} With "
            "PRIVATE in place of --units, this says what is certain. `terrine plan` ranks "
            "mechanisms by right answers, if teachers agree as its --consensus says."
        ) from None
    pool = PublicData.declare(public.name, data.inputs, labels=data.labels)
    asked = PublicRows(pool, data, labelled=True)
    return ProjectData(units, _find_person(data), asked, schema, _if_several(given)), given


def _load_private(
    path: Path, schema: Path | None, given: Given, owner: Owner, note: Note
) -> Dataset:
    said = given if isinstance(given, Described) else None
    with stages_bar(owner.console, f"Reading {path.name}") as (progress,):
        return load_private(
            path,
            schema,
            classes=None if said is None or schema is not None else said.classes,
            image=None if said is None else said.image,
            public=None if said is None else said.public,
            note=note,
            progress=progress,
        )


def _read_public_rows(public: Path, private: Dataset, owner: Owner, note: Note) -> PublicRows:
    with stages_bar(owner.console, f"Reading {public.name}") as (progress,):
        pool, labelled = load_pool(public, private, note, progress)
    owner.note(describe_private_rows(pool, private))
    if labelled is not None:
        return PublicRows(pool, labelled, labelled=True)
    unknown = np.zeros(len(pool.inputs), np.int64)
    sample = Dataset(pool.inputs, unknown, private.classes, private.spec, encoding=private.encoding)
    return PublicRows(pool, sample, labelled=False)


def load_pool(
    public: Path, private: Dataset, note: Note = ignore_note, progress: Progress = ignore_progress
) -> tuple[PublicData, Dataset | None]:
    """Return public records, of the format of private ones, and with labels if they have any."""
    found = load_public(public, private, note, progress)
    labels = None if private.encoding or found.labelled is None else found.labelled.labels
    return PublicData.declare(public.name, found.inputs, found.groups, labels), found.labelled


def describe_private_rows(public: PublicData, private: Dataset) -> str:
    """Return how many public rows are private ones as well, as text that is stored nowhere.

    Raises DataError if these are many.
    """
    shared = public.count_private_rows(private)
    return (
        f"Private, for your eyes only: {shared:,} of {len(public.inputs):,} public rows are rows "
        "of private records as well, as they are encoded. Nothing is left out or stored because of "
        "that: what a public row says of somebody is not protected."
    )


def _find_person(records: Dataset) -> str | None:
    """Return what names the people of records, if anything does."""
    return None if records.groups is None else records.group_column or "person"


def _if_several(given: Given) -> str:
    how = "say which column names the person: --group."
    if not isinstance(given, Described):
        how = f'give the column that names the person the role "group" in {given.schema}.'
    return f" If a person can have several, {how}"


def _count_rows_of_people(data: Path, schema: Path, given: Given) -> str:
    """Say that people have several rows, if a private table without a group seems to name them."""
    if (found := find_repeated_people(data, read_schema(schema))) is None:
        return ""
    name, rows = found
    mean = "more than 1" if rows < 1.05 else f"{rows:,.1f}".removesuffix(".0")
    how = f"use --group {name}, and remove {schema.name} before"
    if not isinstance(given, Described):
        how = f'give it the role "group" in {given.schema}'
    return (
        f" By the column {name}, {mean} rows a person on average: this protects one row, not one "
        f"person. If {name} names people, {how}."
    )
