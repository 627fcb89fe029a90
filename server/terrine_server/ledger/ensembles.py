"""Ensembles: registered with the cap that all their projects share."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError
from sqlalchemy.exc import IntegrityError

from terrine_protocol import EnsembleFacts, Name
from terrine_server.errors import Conflict, InvalidTerms, NotFound
from terrine_server.ledger.administration import Action, Actor
from terrine_server.ledger.chain import canonical_json
from terrine_server.ledger.handle import Handle
from terrine_server.ledger.records import Edition, EnsembleRecord
from terrine_server.ledger.store import editions, log, rows
from terrine_server.ledger.store.database import reading
from terrine_server.ledger.store.tables import ensembles
from terrine_server.privacy import Cap

_LARGEST = 2**63 - 1
_NAME: TypeAdapter[str] = TypeAdapter(Name)


class Ensembles(Handle):
    """The ensembles of a ledger."""

    def ensembles(self) -> list[EnsembleRecord]:
        """Return all ensembles, by name."""
        with reading(self._engine) as connection:
            found = connection.execute(rows.select_ensembles())
            records = [rows.ensemble_record(row, self._seals) for row in found.all()]
            return [editions.living(connection, self._seals, record) for record in records]

    def ensemble(self, name: str) -> EnsembleRecord:
        """Return one ensemble. Raises NotFound."""
        with reading(self._engine) as connection:
            query = rows.select_ensembles().where(ensembles.c.name == name)
            row = connection.execute(query).one_or_none()
            if row is None:
                raise NotFound(f"There is no ensemble called {name}.")
            record = rows.ensemble_record(row, self._seals)
            return editions.living(connection, self._seals, record)

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
    ) -> EnsembleRecord:
        """Register an ensemble under a name, with the cap that all its projects share.

        `units`: the number of training records, or of people where they are grouped. Raises
        InvalidTerms when the cap's δ is 1/units or more, Conflict when the name, or the same
        manifest under another name, is registered already.
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
            return rows.ensemble_record(tx.connection.execute(query).one(), tx.seals)


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
