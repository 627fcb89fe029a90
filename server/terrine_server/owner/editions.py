"""People leave the ensembles of a population, or join one of neighbours, while these serve.

An edition is a directory beside the files that were registered, and a row of the ledger that names
its digest. First the directory is complete and durable, then one transaction makes it the newest
edition and takes all accounts over, then the files of the edition before are removed. Whatever dies
in between, the ledger names one whole edition, and the next run of the same command does the rest:
nobody is reported as forgotten before their records are gone.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from terrine_protocol.files import directory_lock, sync_directory
from terrine_server.errors import Conflict, NotFound, ServiceError
from terrine_server.ledger import (
    Edition,
    EnsembleRecord,
    Ledger,
    PopulationRecord,
    choose_population,
)
from terrine_server.owner.sign_in import SecretKeyError, load_secret_key, make_secret_key
from terrine_server.settings import Settings

if TYPE_CHECKING:
    from terrine_models.data.arrays import Dataset
    from terrine_models.features.public import PublicData
    from terrine_models.teachers.editions import SavedEdition
    from terrine_models.teachers.kinds import StoredEnsemble
    from terrine_models.teachers.people import Digests


BUILD_AGAIN = (
    "Build it again with the column that names the person: the role group in the schema, or an "
    "array `group`. What was made of the same people shares their cap."
)
_OF_AN_EDITION = re.compile(r"\.?edition-\d+(\..*)?|\.?manifest\.json.*|.*\.(safetensors|onnx|tmp)")


@dataclass(frozen=True)
class Retraining:
    """What trained teachers are trained anew on, after people left.

    `records`: those of `train`, or what is left of them. `public`: the public rows of `train`,
    where teachers of tables match their prior on them.
    """

    records: Dataset | None
    public: PublicData | None = None


@dataclass(frozen=True)
class EditionChange:
    """`edition`: the newest one. `people`: how many left or came with it; `left_out`: how many had
    left before and were not let in. `new`: whether it was made by this run."""

    edition: int
    people: int
    left_out: int
    new: bool


def records_key(settings: Settings, *, make: bool = False) -> bytes:
    """Return the key under which people are found again; `make` it if there is none yet.

    Raises SecretKeyError.
    """
    path = settings.records_key_path
    if make:
        make_secret_key(path)
    try:
        return load_secret_key(path)
    except SecretKeyError:
        raise SecretKeyError(
            f"The key of the records, {path}, is not there or too short, so nobody can be found. "
            "Restore it from a backup: a new one would not know those who are there."
        ) from None


def forget(
    ledger: Ledger,
    settings: Settings,
    population: str | None,
    who: Digests,
    retraining: Mapping[str, Retraining] | None = None,
) -> dict[str, EditionChange]:
    """Forget people, uint8[k, 32] as `people.name_digests` has them, in a whole population.

    Every ensemble of it that knows whose its records are gets an edition without them, and none
    lets them in again. When it returns, their records are on no disk of this service, and what is
    charged from now on is answered without them; a query that trained teachers are answering
    meanwhile ends on the edition it began with. If it is interrupted, the same call does the rest.

    `population`: by default the only one. `retraining`: by ensemble, what trained teachers that
    learned from them are trained anew on. Returns what was done, by ensemble. Before anything is
    done it raises NotFound and Conflict (the population; no ensemble of it knows people), and
    DataError (somebody is in none of them; an ensemble has no `retraining` and needs it, or would
    be empty). Then also StoreError, SecretKeyError and Conflict (another edition was made
    meanwhile).
    """
    from terrine_models.data.arrays import DataError
    from terrine_models.teachers import editions
    from terrine_models.teachers.manifests import ShardTeachers
    from terrine_models.teachers.people import People

    of_it = members(ledger, population)
    key, given = records_key(settings), retraining or {}
    stored = _load_identified(settings, of_it)
    there = {name: People.load(each, key) for name, each in stored.items()}
    if not there:
        raise Conflict(
            "No ensemble of the population knows whose its records are, so nobody in it can be "
            f"found. {BUILD_AGAIN}"
        )
    for name in given:
        if name not in there:
            raise Conflict(f"{name} is not an ensemble of the population that knows its people.")
    known = np.any([people.knows(who) for people in there.values()], axis=0)
    if not known.all():
        raise DataError(
            f"{(~known).sum()} of {len(who)} to be forgotten are in no ensemble of the population, "
            f"the first of them number {np.flatnonzero(~known)[0] + 1}. Nobody was forgotten."
        )
    trained = [
        name for name, each in stored.items() if isinstance(each.manifest.teacher, ShardTeachers)
    ]
    for name in trained:
        left = there[name].remove(who)
        if left is not None and len(left[0]) and name not in given:
            raise DataError(
                f"People who leave {name} taught some of its teachers. Give the records that it "
                f"was trained on, or what is left of them: --records {name}=FILE. Nobody was "
                "forgotten."
            )
    done: dict[str, EditionChange] = {}
    # Those first that can still be refused, as their records do not fit.
    for name in [*trained, *(name for name in there if name not in trained)]:
        made_of = given.get(name, Retraining(None))

        def make(old: Path, out: Path, made_of: Retraining = made_of) -> SavedEdition | None:
            return editions.forget(old, out, who, key, made_of.records, made_of.public)

        done[name] = _make_next_edition(ledger, settings, name, make)
    return done


def add(ledger: Ledger, settings: Settings, name: str, data: Dataset) -> EditionChange:
    """Let people join, or add records of people who are there. Who was forgotten is left out.

    Raises NotFound, Conflict (an ensemble of another kind, or whose people have no names; another
    edition was made meanwhile), DataError for records of another kind, StoreError and
    SecretKeyError.
    """
    from terrine_models.teachers import editions

    key = records_key(settings)
    return _make_next_edition(
        ledger, settings, name, lambda old, out: editions.add(old, out, data, key)
    )


def refuse_forgotten_people(
    ledger: Ledger, settings: Settings, population: PopulationRecord, directory: Path
) -> None:
    """Raise Conflict if a new ensemble has people who were forgotten in its population.

    Who they are is compared by keyed digests of their names alone.
    """
    from terrine_models.teachers.kinds import StoredEnsemble
    from terrine_models.teachers.people import People

    made = StoredEnsemble.open(directory)
    if not made.manifest.knows_people:
        return
    people, check = People.stored(made)
    forgotten: set[bytes] = set()
    for name, other in _load_identified(settings, members(ledger, population.name)).items():
        found, their_check = People.stored(other)
        if len(found.erased) and their_check != check:
            raise Conflict(
                f"Nobody can tell whether {directory.name} has people who were forgotten in "
                f"{name}: it was made with another key of records (records.key in the data "
                f"directory). Make it again with the key of {name}."
            )
        forgotten |= {bytes(row) for row in found.erased}
    back = sum(bytes(row) in forgotten for row in people.present)
    if back:
        raise Conflict(
            f"{back} of the people of {directory.name} were forgotten in the population "
            f"{population.name}. Remove their records from the file, and make it again."
        )


def members(ledger: Ledger, population: str | None) -> list[EnsembleRecord]:
    """Return the ensembles of a population, by default of the only one.

    Raises NotFound, and Conflict if there are several populations and none is named.
    """
    found = choose_population(ledger.ensembles.list_populations(), population, disjoint=False)
    if found is None:
        raise NotFound("No ensemble is registered, so there is no population yet.")
    return [each for each in ledger.ensembles.list() if each.population.id == found.id]


def _load_identified(
    settings: Settings, records: list[EnsembleRecord]
) -> dict[str, StoredEnsemble]:
    """Return, by name, the ensembles that know whose their records are, and whose files are here.

    Raises StoreError.
    """
    from terrine_models.teachers.kinds import StoredEnsemble, ensemble_format

    found = {}
    for record in records:
        directory = settings.data_dir / record.path
        if directory.exists() and ensemble_format(directory).has_manifest:
            stored = StoredEnsemble.open(settings.data_dir / record.current.path)
            if stored.manifest.knows_people:
                found[record.name] = stored
    return found


def _make_next_edition(
    ledger: Ledger,
    settings: Settings,
    name: str,
    make: Callable[[Path, Path], SavedEdition | None],
) -> EditionChange:
    from terrine_models.storage.manifests import manifest_digest
    from terrine_models.teachers.ensemble import load

    directory = settings.data_dir / ledger.ensembles.get(name).path
    with directory_lock(directory):
        record, newest = with_newest_edition(ledger, name)
        _remove_old_editions(settings, record)
        number = newest.number + 1
        made = directory / f"edition-{number}"
        change = make(settings.data_dir / record.current.path, made)
        if change is None:
            return EditionChange(newest.number, 0, 0, new=False)
        load(made, device="cpu")
        erased, slots = {*newest.erased, *change.slots}, change.manifest.units
        try:
            ledger.ensembles.make_edition(name, number, manifest_digest(made), slots, erased)
        except ServiceError:
            _remove_old_editions(settings, ledger.ensembles.get(name))
            raise
        _remove_old_editions(settings, ledger.ensembles.get(name))
        return EditionChange(number, change.people, change.left_out, new=True)


def with_newest_edition(ledger: Ledger, name: str) -> tuple[EnsembleRecord, Edition]:
    """Return an ensemble that people can leave or join, and its newest edition.

    Raises NotFound, and Conflict for an ensemble that does not know whose its records are.
    """
    record = ledger.ensembles.get(name)
    if record.edition is None or record.person_column is None:
        raise Conflict(
            f"{name} does not know whose its records are, so nobody leaves or joins it. "
            f"{BUILD_AGAIN}"
        )
    return record, record.edition


def _remove_old_editions(settings: Settings, record: EnsembleRecord) -> None:
    """Remove what is of any edition but the newest, and make that durable.

    Raises StoreError, with nothing removed, unless the newest is there.
    """
    from terrine_models.storage.manifests import StoreError, manifest_digest

    directory = settings.data_dir / record.path
    kept = settings.data_dir / record.current.path
    if manifest_digest(kept) != record.current.manifest_sha256:
        raise StoreError(
            f"{kept} is not the edition that the ledger names. Restore it from the backup that the "
            "ledger is of."
        )
    for path in leftovers(settings, record):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    sync_directory(directory)


def leftovers(settings: Settings, record: EnsembleRecord) -> list[Path]:
    """Return what is there of editions that are over, or were never made: private records."""
    directory = settings.data_dir / record.path
    kept = settings.data_dir / record.current.path
    return [
        path
        for path in sorted(directory.iterdir())
        if path != kept
        and _OF_AN_EDITION.fullmatch(path.name)
        and (path.is_dir() or kept != directory)
    ]
