"""One cap for the same private data, however many ensembles are made of them.

Of the ensembles that share a cap, the row of the first counts what all of them reserve: it is
locked, checked and changed for each. Which ensemble that is, is fixed at registration.
Ensembles without a row of `private_data` (teachers from elsewhere) have a cap of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Select, bindparam, select, update

from terrine_server.errors import Conflict, LedgerCorrupted
from terrine_server.ledger.administration import Action, facts_text
from terrine_server.ledger.chain import canonical_json
from terrine_server.ledger.records import EnsembleRecord, PrivateData
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import log
from terrine_server.ledger.store.database import write
from terrine_server.ledger.store.log import GONE, logged
from terrine_server.ledger.store.soundness import UNREADABLE, check_types
from terrine_server.ledger.store.tables import ensembles, private_data
from terrine_server.ledger.store.transaction import Transaction

_heads = ensembles.alias("heads")


def select_private_data() -> Select[Any]:
    """Select all rows, each with its `subject` and all of its facts."""
    return (
        select(
            private_data,
            ensembles.c.name.label("subject"),
            _heads.c.name.label("cap_of"),
            logged("data", ensembles.c.name).label("logged"),
        )
        .outerjoin(ensembles, private_data.c.ensemble_id == ensembles.c.id)
        .outerjoin(_heads, private_data.c.cap_id == _heads.c.id)
        .order_by(private_data.c.ensemble_id)
    )


_SHARING = select_private_data().where(private_data.c.cap_id == bindparam("cap"))
_OF_ONE = select(
    logged("data", bindparam("name")),
    select(private_data.c.cap_id)
    .where(private_data.c.ensemble_id == bindparam("ensemble"))
    .scalar_subquery(),
)
"""Built once, as reading any ensemble needs them."""


@dataclass(frozen=True)
class RegisteredData:
    """What is recorded of an ensemble's private data."""

    ensemble_id: int
    name: str
    cap_id: int
    cap_of: str
    edition: int
    data: PrivateData | None
    """None for teachers from elsewhere, of whom the owner said whose cap they share."""


def known(
    connection: Connection, seals: Seals, of: EnsembleRecord | None = None
) -> list[RegisteredData]:
    """Return what is recorded of all private data, or of those that share the cap `of` an ensemble.

    Raises LedgerCorrupted.
    """
    if of is None:
        return [_known(row, seals) for row in connection.execute(select_private_data()).all()]
    own = {"ensemble": of.id, "name": of.name}
    # Whether the log says that it has a row: somebody may have removed that.
    said, cap = connection.execute(_OF_ONE, own).one()
    if (said in (None, GONE)) != (cap is None):
        raise LedgerCorrupted(f"Whose cap the ensemble {of.name} shares was edited.")
    if cap is None:
        return []
    return [_known(row, seals) for row in connection.execute(_SHARING, {"cap": cap}).all()]


def _known(row: Any, seals: Seals) -> RegisteredData:
    fields: Mapping[str, Any] = row._mapping
    try:
        check_types(private_data.c, fields)
        seals.check("private_data", fields)
        if row.logged != facts_text("data", fields):
            raise ValueError("it is not as the administrative log says")
        digests = json.loads(row.digests)
        data = PrivateData(row.key_check.hex(), frozenset(digests)) if digests else None
    except UNREADABLE as error:
        raise LedgerCorrupted(
            f"Whose cap the ensemble {row.subject} shares was edited.", cause=repr(error)
        ) from None
    return RegisteredData(row.ensemble_id, row.subject, row.cap_id, row.cap_of, row.edition, data)


def shared(
    group: Sequence[RegisteredData], ensemble: EnsembleRecord, head: EnsembleRecord
) -> EnsembleRecord:
    """Return an ensemble with what is reserved of the cap that it shares. Raises LedgerCorrupted.

    `group`: all that share it. `head`: the one whose row counts what they reserve.
    """
    caps = [
        (each.epsilon, each.delta, each.rdp_order, each.cap, each.delta_cap)
        for each in (ensemble, head)
    ]
    alone = ensemble.id == head.id or (ensemble.reserved, ensemble.delta_reserved) == (0, 0)
    heads = [each for each in group if each.ensemble_id == head.id]
    if caps[0] != caps[1] or not alone or not heads:
        raise LedgerCorrupted(f"Whose cap the ensemble {ensemble.name} shares was edited.")
    return replace(
        ensemble,
        cap_id=head.id,
        shares_with=tuple(sorted(each.name for each in group if each.name != ensemble.name)),
        reserved=head.reserved,
        delta_reserved=head.delta_reserved,
    )


def cap_for(
    recorded: Iterable[RegisteredData], name: str, data: PrivateData, stated: int | None = None
) -> RegisteredData | None:
    """Return an ensemble of the same private data as those of `name`; None if there is none.

    `stated`: the cap that the owner says it shares. Raises Conflict if the data have another cap,
    or two, or if nobody can tell, because digests were made with different keys.
    """
    found: dict[int, RegisteredData] = {}
    for each in recorded:
        if each.name == name or each.data is None:
            continue
        if each.data.key != data.key and stated is None:
            raise Conflict(
                f"Nobody can tell whether {name} is made of the private data of {each.name}, with "
                "which it would share a cap: each was made with another key of records "
                f"(records.key in the data directory). Make {name} again with the key of "
                f"{each.name}, or say whose cap it shares: --shares-cap-of."
            )
        if not data.digests.isdisjoint(each.data.digests):
            found.setdefault(each.cap_id, each)
    caps = {*found, stated} - {None}
    if len(caps) > 1:
        named = " and ".join(sorted(each.name for each in found.values()))
        other = "they have a cap each" if len(found) > 1 else "their cap is another than was said"
        raise Conflict(
            f"The private data of {name} are those of {named}, and {other}. An answer cannot count "
            "in two caps."
        )
    return next(iter(found.values()), None)


def record(
    tx: Transaction, ensemble: EnsembleRecord, cap_id: int, edition: int, data: PrivateData | None
) -> None:
    """Record the private data of an ensemble, and whose cap it shares: its own, if nobody's."""
    row = {
        "ensemble_id": ensemble.id,
        "cap_id": cap_id,
        "edition": edition,
        "key_check": b"" if data is None else bytes.fromhex(data.key),
        "digests": _digests(data),
    }
    tx.insert(private_data, row)
    _log(tx, ensemble)


def extend(tx: Transaction, ensemble: EnsembleRecord, edition: int, data: PrivateData) -> None:
    """Record that an ensemble is made of more private data, or of fewer, from an edition on.

    The last entry of the log must be locked: nobody may register the same data meanwhile. Raises
    Conflict if they have another cap.
    """
    recorded = known(tx.connection, tx.seals)
    own = next((each for each in recorded if each.ensemble_id == ensemble.id), None)
    if own is None or own.data is None:
        return
    data = PrivateData(own.data.key, own.data.digests | data.digests)
    cap_for(recorded, ensemble.name, data, own.cap_id)
    here = private_data.c.ensemble_id == ensemble.id
    row = tx.connection.execute(select(private_data).where(here)).one()._mapping
    changed = {"edition": edition, "digests": _digests(data)}
    sealed = tx.seals.sealed("private_data", {**row, **changed})
    changed["seal"] = sealed["seal"]
    write(tx.connection, update(private_data).where(here).values(changed))
    _log(tx, ensemble)


def _digests(data: PrivateData | None) -> str:
    return canonical_json([] if data is None else sorted(data.digests))


def _log(tx: Transaction, ensemble: EnsembleRecord) -> None:
    own = select_private_data().where(private_data.c.ensemble_id == ensemble.id)
    row = tx.connection.execute(own).one()._mapping
    log.record_row(tx, Action.DATA_RECORDED, ensemble.name, row)
