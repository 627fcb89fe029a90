"""Editions of ensembles: who is there now. The first is what was registered, and has no row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, String, bindparam, cast, select

from terrine_server.errors import LedgerCorrupted
from terrine_server.ledger.administration import facts_text
from terrine_server.ledger.chain import canonical_json
from terrine_server.ledger.records import NEIGHBOURS, Edition, EnsembleRecord
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store.log import logged
from terrine_server.ledger.store.soundness import UNREADABLE, check_types
from terrine_server.ledger.store.tables import editions, ensembles

SUBJECT = ensembles.c.name.concat("/").concat(cast(editions.c.number, String))
"""What the administrative log calls an edition."""


def select_editions() -> Select[Any]:
    """Select all editions but the first of each ensemble, in order, each with its `subject`."""
    return (
        select(editions, SUBJECT.label("subject"), logged("edition", SUBJECT).label("logged"))
        .outerjoin(ensembles, editions.c.ensemble_id == ensembles.c.id)
        .order_by(editions.c.ensemble_id, editions.c.number)
    )


_NEWEST = (
    select_editions()
    .where(editions.c.ensemble_id == bindparam("ensemble"))
    .order_by(None)
    .order_by(editions.c.number.desc())
    .limit(1)
)
"""Selects the newest edition of an ensemble. Built once, as every request needs it."""


def first(ensemble: EnsembleRecord) -> Edition:
    """Return the edition that was registered."""
    return Edition(
        number=1,
        manifest_sha256=ensemble.manifest_sha256,
        units=ensemble.units,
        slots=ensemble.facts.teachers if ensemble.facts.kind == NEIGHBOURS else ensemble.units,
        erased=(),
        begins={},
        made_at=ensemble.registered_at,
    )


def living(connection: Connection, seals: Seals, ensemble: EnsembleRecord) -> EnsembleRecord:
    """Return the ensemble with its newest edition. Raises LedgerCorrupted."""
    row = connection.execute(_NEWEST, {"ensemble": ensemble.id}).one_or_none()
    found = first(ensemble) if row is None else _edition(row, seals, ensemble)
    return replace(ensemble, edition=found)


def history(connection: Connection, seals: Seals, ensemble: EnsembleRecord) -> Iterator[Edition]:
    """Yield all editions of an ensemble, in order. Raises LedgerCorrupted."""
    yield first(ensemble)
    for row in connection.execute(select_editions().where(editions.c.ensemble_id == ensemble.id)):
        yield _edition(row, seals, ensemble)


def row_of(ensemble: EnsembleRecord, edition: Edition) -> dict[str, Any]:
    """Return the row of an edition, without its seal."""
    return {
        "ensemble_id": ensemble.id,
        "number": edition.number,
        "manifest_sha256": bytes.fromhex(edition.manifest_sha256),
        "units": edition.units,
        "slots": edition.slots,
        "erased": canonical_json(list(edition.erased)),
        "begins": canonical_json({str(project): at for project, at in edition.begins.items()}),
        "made_at": edition.made_at,
    }


def _edition(row: Any, seals: Seals, ensemble: EnsembleRecord) -> Edition:
    fields: Mapping[str, Any] = row._mapping
    try:
        check_types(editions.c, fields)
        seals.check("editions", fields)
        if row.logged != facts_text("edition", fields):
            raise ValueError("it is not as the administrative log says")
        return Edition(
            number=row.number,
            manifest_sha256=row.manifest_sha256.hex(),
            units=row.units,
            slots=row.slots,
            erased=tuple(json.loads(row.erased)),
            begins={int(project): at for project, at in json.loads(row.begins).items()},
            made_at=row.made_at,
        )
    except UNREADABLE as error:
        raise LedgerCorrupted(
            f"An edition of the ensemble {ensemble.name} was altered or damaged.", cause=repr(error)
        ) from None
