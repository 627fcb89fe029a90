"""Ensembles: registered with the cap that all their projects share."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError
from sqlalchemy.exc import IntegrityError

from terrine_protocol import EnsembleFacts, Name
from terrine_server.errors import Conflict, InvalidTerms, NotFound
from terrine_server.ledger.administration import Action, Actor
from terrine_server.ledger.chain import canonical_json
from terrine_server.ledger.handle import DatabaseHandle
from terrine_server.ledger.records import Edition, EnsembleRecord, PrivateData
from terrine_server.ledger.store import editions, log, rows, shared_caps
from terrine_server.ledger.store.database import reading
from terrine_server.ledger.store.tables import ensembles
from terrine_server.ledger.store.transaction import Transaction
from terrine_server.privacy import Cap

_LARGEST = 2**63 - 1
_NAME: TypeAdapter[str] = TypeAdapter(Name)


class Ensembles(DatabaseHandle):
    """The ensembles of a ledger."""

    def ensembles(self) -> list[EnsembleRecord]:
        """Return all ensembles, by name."""
        with reading(self._engine) as connection:
            found = connection.execute(rows.select_ensembles())
            records = [rows.ensemble_record(row, self._seals) for row in found.all()]
            return [rows.living_ensemble(connection, self._seals, record) for record in records]

    def ensemble(self, name: str) -> EnsembleRecord:
        """Return one ensemble. Raises NotFound."""
        with reading(self._engine) as connection:
            row = connection.execute(rows.ensemble_by("name"), {"name": name}).one_or_none()
            if row is None:
                raise NotFound(f"There is no ensemble called {name}.")
            record = rows.ensemble_record(row, self._seals)
            return rows.living_ensemble(connection, self._seals, record)

    def editions(self, name: str) -> list[Edition]:
        """Return all editions of an ensemble, in order. Raises NotFound."""
        record = self.ensemble(name)
        with reading(self._engine) as connection:
            return list(editions.history(connection, self._seals, record))

    def register_ensemble(
        self,
        name: str,
        path: str,
        manifest_sha256: str,
        facts: EnsembleFacts,
        units: int,
        cap: Cap,
        by: Actor | None = None,
        *,
        data: PrivateData | None = None,
        shares_cap_of: str | None = None,
    ) -> EnsembleRecord:
        """Register an ensemble under a name, with the cap that all its projects share.

        `units`: the number of training records, or of people where they are grouped. An ensemble of
        the same private `data` as one that is registered shares its cap, and so does one of which
        the owner says so: `shares_cap_of`. Raises InvalidTerms when the cap's δ is 1/units or more,
        NotFound (`shares_cap_of`), and Conflict when the name, or the same manifest under another
        name, is registered already, or when the cap that it shares is another, protects other
        units, or cannot be told.
        """
        check_name("an ensemble", name)
        check_delta("The cap's δ", cap.delta, units)
        check_sizes(units=units, cap=cap.budget, delta_cap=cap.delta_budget)
        fields = {
            "name": name,
            "path": path,
            "manifest_sha256": bytes.fromhex(manifest_sha256),
            "info": canonical_json(facts.model_dump(mode="json", exclude_defaults=True)),
            "units": units,
            "epsilon": float(cap.epsilon),
            "delta": float(cap.delta),
            "rdp_order": cap.rule.order,
            "cap": cap.budget,
            "delta_cap": cap.delta_budget,
            "reserved": 0,
            "delta_reserved": 0,
        }
        same = ensembles.c.manifest_sha256 == fields["manifest_sha256"]
        query = rows.select_ensembles().where((ensembles.c.name == name) | same)
        with self._writing(by) as tx:
            # Two of the same data that are registered at once: the second sees the first.
            log.check_head(tx.connection, tx.seals, lock=True)
            for row in tx.connection.execute(query):
                taken = rows.ensemble_record(row, tx.seals)
                if taken.name == name:
                    raise Conflict(f"An ensemble called {name} is registered already.")
                raise Conflict(
                    f"These very teachers are registered as {taken.name}. "
                    "Open projects on that ensemble, so that they share its cap."
                )
            registered = {**fields, "registered_at": tx.now}
            try:
                tx.insert_named(ensembles, registered)
            except IntegrityError as error:
                raise Conflict(
                    f"The ensemble {name} was registered by someone else just now."
                ) from error
            log.record_row(tx, Action.ENSEMBLE_REGISTERED, name, registered)
            made = rows.ensemble_record(tx.connection.execute(query).one(), tx.seals)
            if data is not None or shares_cap_of is not None:
                self._share(tx, made, data, shares_cap_of)
            return rows.living_ensemble(tx.connection, tx.seals, made)

    def _share(
        self, tx: Transaction, made: EnsembleRecord, data: PrivateData | None, stated: str | None
    ) -> None:
        """Record the private data of a new ensemble, and whose cap it shares."""
        recorded = shared_caps.known(tx.connection, tx.seals)
        head = None if stated is None else _head(tx, stated, recorded)
        if data is not None:
            same = shared_caps.cap_for(recorded, made.name, data, head)
            head = head if same is None else same.cap_id
        if head is not None:
            row = tx.connection.execute(rows.ensemble_by("id"), {"id": head}).one()
            _check_same_cap(made, rows.ensemble_record(row, tx.seals))
        shared_caps.record(tx, made, head or made.id, 1, data)


def _head(tx: Transaction, name: str, recorded: Sequence[shared_caps.RegisteredData]) -> int:
    """Return whose row counts the cap of an ensemble, which may be the first to be shared."""
    for each in recorded:
        if each.name == name:
            return each.cap_id
    row = tx.connection.execute(rows.ensemble_by("name"), {"name": name}).first()
    if row is None:
        raise NotFound(f"There is no ensemble called {name}, whose cap could be shared.")
    found = rows.ensemble_record(row, tx.seals)
    shared_caps.record(tx, found, found.id, 1, None)
    return found.id


def _check_same_cap(made: EnsembleRecord, head: EnsembleRecord) -> None:
    """Raise Conflict unless an ensemble may count in the cap of another."""
    declared = made.facts.disjoint_by or head.facts.disjoint_by
    if made.unit != head.unit and not declared:
        raise Conflict(
            f"{made.name} is of the same people as {head.name}, but protects one {made.unit}, and "
            f"{head.name} one {head.unit}. These do not add up in one cap. Make it again with the "
            "same unit: the same column of the role group, or none."
        )
    caps = [(each.epsilon, each.delta, each.rule) for each in (made, head)]
    if caps[0] != caps[1]:
        raise Conflict(
            f"{made.name} is of the same people as {head.name}, so they share one cap, which is "
            f"final: ε = {head.epsilon:g}, δ = {head.delta:g}, added up in {head.rule}. Register "
            f"{made.name} with these: {_options(head)}."
        )


def _options(head: EnsembleRecord) -> str:
    rule = "gdp" if head.rdp_order is None else f"rdp:{head.rdp_order!r}"
    return f"--epsilon {head.epsilon!r} --delta {head.delta!r} --rule {rule}"


def check_name(kind: str, name: str) -> None:
    """Raise InvalidTerms unless `name` is a valid name for `kind`, such as "a project"."""
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        raise InvalidTerms(
            f"{name!r} cannot name {kind}: use at most 64 lower-case letters, digits, "
            "'-' and '_', with a letter or digit at both ends."
        ) from error


def check_delta(what: str, delta: float, units: int) -> None:
    """Raise InvalidTerms unless a δ is below one over the number of units."""
    if units < 1:
        raise InvalidTerms(f"An ensemble protects at least one record or person, not {units}.")
    if not 0 < delta < 1 / units:
        raise InvalidTerms(
            f"{what} is {delta:g}; it must be above 0 and below 1/{units} = {1 / units:.3g}, "
            "one over the number of those whom it protects: a larger δ would allow publishing all "
            "of one."
        )


def check_sizes(**amounts: int) -> None:
    """Raise InvalidTerms for an amount that a column cannot hold."""
    for name, amount in amounts.items():
        if not 0 <= amount <= _LARGEST:
            raise InvalidTerms(f"{name} = {amount} is outside what the ledger can count.")
