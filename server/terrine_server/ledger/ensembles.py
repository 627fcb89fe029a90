"""Populations, each with the cap for all that is made of its people, and their ensembles."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import bindparam, select
from sqlalchemy.exc import IntegrityError

from terrine_protocol import EnsembleFacts, Name
from terrine_server.errors import Conflict, InvalidTerms, NotFound
from terrine_server.ledger import accounts, log, losses, rows
from terrine_server.ledger.chain import Action, Actor, canonical_json
from terrine_server.ledger.database import Access, Transaction
from terrine_server.ledger.records import Edition, EnsembleRecord, PopulationRecord
from terrine_server.ledger.schema import editions, ensembles, populations, projects
from terrine_server.privacy import Cap

# The name of a ledger's first population, if its owner gives it none.
DEFAULT_POPULATION = "people"
_MAX_AMOUNT = 2**63 - 1
_NAME: TypeAdapter[str] = TypeAdapter(Name)
# Built once: SQLAlchemy takes longer to build a statement than a database to run it.
_ON_ENSEMBLE = (
    select(projects.c.id).where(projects.c.ensemble_id == bindparam("id")).order_by(projects.c.id)
)


def choose_population(
    known: Sequence[PopulationRecord], name: str | None, *, disjoint: bool
) -> PopulationRecord | None:
    """Return the population that an ensemble joins; None if a new one is to be declared.

    Raises NotFound and Conflict as `Ensembles.register` does.
    """
    names = ", ".join(each.name for each in known)
    if name is None and len(known) > 1:
        raise Conflict(
            f"There are several populations: {names}. Say which one this is: --population NAME."
        )
    found = next((each for each in known if name in (None, each.name)), None)
    if found is not None and disjoint:
        raise Conflict(
            f"The population {found.name} is there already, with a cap for all ensembles of its "
            "people. Name a new one to say that nobody in it is in another, or leave out "
            "--disjoint."
        )
    if found is None and known and not disjoint:
        raise NotFound(
            f"There is no population called {name}; there is {names}. To declare a new one, state "
            f"with --disjoint that nobody in it is also in {names}. It gets a cap of its own: "
            "whoever is in two populations loses up to the sum of their caps."
        )
    return found


def join_population(
    tx: Transaction, ensemble: str, cap: Cap | None, name: str | None, disjoint: bool
) -> PopulationRecord:
    """Return the population that a new ensemble joins, locked; it is declared if it is new."""
    known = rows.load_populations(tx.connection, tx.seals)
    joined = choose_population(known, name, disjoint=disjoint)
    if joined is None:
        return _declare(tx, name or DEFAULT_POPULATION, cap, [each.name for each in known])
    if cap is not None and (cap.epsilon, cap.delta, cap.rule) != (
        joined.epsilon,
        joined.delta,
        joined.rule,
    ):
        raise Conflict(
            f"{ensemble} is of the population {joined.name}, whose cap is final: "
            f"ε = {joined.epsilon:g}, δ = {joined.delta:g}, added up in {joined.rule}. Register "
            "it without --epsilon, --delta and --rule, to share this cap."
        )
    return joined


def _declare(tx: Transaction, name: str, cap: Cap | None, others: list[str]) -> PopulationRecord:
    check_name("a population", name)
    if cap is None:
        raise InvalidTerms(
            f"The population {name} is new, and its cap is fixed now, for good: give --epsilon and "
            "--delta."
        )
    check_sizes(cap=cap.budget, delta_cap=cap.delta_budget)
    declared = {
        "name": name,
        "epsilon": float(cap.epsilon),
        "delta": float(cap.delta),
        "rdp_order": cap.rule.order,
        "cap": cap.budget,
        "delta_cap": cap.delta_budget,
        "reserved": 0,
        "delta_reserved": 0,
        "disjoint_from": canonical_json(others),
        "declared_at": tx.now,
    }
    tx.insert_named(populations, declared)
    log.record_row(tx, Action.POPULATION_DECLARED, name, declared)
    return losses.reduce_new_cap(tx, rows.fetch_population(tx.connection, tx.seals, name))


def check_unit(
    name: str, population: str, others: Iterable[EnsembleRecord], *, by_person: bool
) -> None:
    """Raise Conflict if the other ensembles of a population protect another unit than a new one.

    `by_person`: whether the new ensemble knows whose its records are, and protects people.
    """
    for other in others:
        if (other.person_column is not None) != by_person and not other.facts.disjoint_by:
            unit = "person with all their records" if by_person else "record"
            raise Conflict(
                f"{name} protects one {unit}, and {other.name}, of the same population "
                f"{population}, one {other.unit}. These do not add up in one cap. Make {name} "
                "again with the same unit (a column of the role group, or none), or, if nobody is "
                "in both, register it in another population: --population NAME --disjoint."
            )


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
        if not 0 <= amount <= _MAX_AMOUNT:
            raise InvalidTerms(f"{name} = {amount} is outside what the ledger can count.")


class Ensembles:
    """The ensembles of a ledger, their populations and editions. Thread-safe."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def list(self) -> Sequence[EnsembleRecord]:
        """Return all ensembles, by name."""
        with self._access.reading() as connection:
            seals = self._access.seals
            return [
                rows.load_newest_edition(connection, seals, record)
                for record in rows.load_ensembles(connection, seals)
            ]

    def get(self, name: str) -> EnsembleRecord:
        """Return one ensemble. Raises NotFound."""
        with self._access.reading() as connection:
            return rows.fetch_ensemble(connection, self._access.seals, name)[1]

    def register(
        self,
        name: str,
        path: str,
        manifest_sha256: str,
        facts: EnsembleFacts,
        units: int,
        cap: Cap | None = None,
        by: Actor | None = None,
        *,
        population: str | None = None,
        disjoint: bool = False,
    ) -> EnsembleRecord:
        """Register an ensemble of the people of a population, whose cap all its projects share.

        `units`: the number of training records, or of people where they are grouped. `population`:
        by default the only one, or `DEFAULT_POPULATION` if there is none yet. The first ensemble of
        a population fixes its `cap`; later ones give none, or the same. `disjoint`: the owner says
        that nobody of a new population is in another.

        Raises InvalidTerms when the cap's δ is 1/units or more, or a new population has no cap;
        NotFound for a population that is not there and not said to be disjoint; and Conflict when
        the name, or the same manifest under another name, is registered already, or the population
        has another cap, protects other units, is not named where there are several, or is there
        and said to be new; and what `check_history` raises.
        """
        check_name("an ensemble", name)
        check_sizes(units=units)
        fields = {
            "name": name,
            "path": path,
            "manifest_sha256": bytes.fromhex(manifest_sha256),
            "info": canonical_json(facts.model_dump(mode="json", exclude_defaults=True)),
            "units": units,
        }
        same = ensembles.c.manifest_sha256 == fields["manifest_sha256"]
        query = rows.select_ensembles().where((ensembles.c.name == name) | same)
        self._access.check_history()
        with self._access.writing(by) as tx:
            # Of two that are registered at once, the second sees the population of the first.
            log.check_head(tx.connection, tx.seals, lock=True)
            for row in tx.connection.execute(query):
                taken = rows.ensemble_record(row, tx.seals)
                if taken.name == name:
                    raise Conflict(f"An ensemble called {name} is registered already.")
                raise Conflict(
                    f"These very teachers are registered as {taken.name}. "
                    "Open projects on that ensemble, so that they share its cap."
                )
            joined = join_population(tx, name, cap, population, disjoint)
            check_delta(f"The δ of the cap of {joined.name}", joined.delta, units)
            registered = {**fields, "population_id": joined.id, "registered_at": tx.now}
            try:
                tx.insert_named(ensembles, registered)
            except IntegrityError as error:
                raise Conflict(
                    f"The ensemble {name} was registered by someone else just now."
                ) from error
            shown = {**registered, "population": joined.name}
            log.record_row(tx, Action.ENSEMBLE_REGISTERED, name, shown)
            made = rows.ensemble_record(tx.connection.execute(query).one(), tx.seals)
            if made.facts.disjoint_by is None:
                others = rows.load_ensembles(tx.connection, tx.seals)
                of_it = (each for each in others if each.population.id == joined.id)
                by_person = made.person_column is not None
                check_unit(name, joined.name, of_it, by_person=by_person)
            return rows.load_newest_edition(tx.connection, tx.seals, made)

    def list_populations(self) -> Sequence[PopulationRecord]:
        """Return all populations, by name."""
        with self._access.reading() as connection:
            return rows.load_populations(connection, self._access.seals)

    def list_editions(self, name: str) -> Sequence[Edition]:
        """Return all editions of an ensemble, in order. Raises NotFound."""
        record = self.get(name)
        with self._access.reading() as connection:
            return list(rows.load_editions(connection, self._access.seals, record))

    def make_edition(
        self,
        name: str,
        number: int,
        manifest_sha256: str,
        slots: int,
        erased: Collection[int],
    ) -> EnsembleRecord:
        """Record that people left or came: edition `number` of an ensemble.

        `slots`: how many people there are or were; a project of `neighbours` has as many accounts.
        `erased`: the slots of all who ever left. In one transaction, the accounts of all projects
        follow, and the log says that an edition was made. How many people there are is published
        anew with the first edition of a calendar month (UTC): as it was when the month began.
        Raises NotFound, Conflict unless it follows the newest edition, or if nobody knows whose the
        records are, and InvalidTerms for one that takes slots away or brings anybody back, or with
        so many people that the cap's δ is not below one over their number.
        """
        with self._access.writing() as tx:
            _, ensemble = rows.lock_ensemble(tx, name)
            before = ensemble.edition
            if before is None or ensemble.person_column is None:
                raise Conflict(
                    f"Nobody leaves or joins {name}: it does not know whose records it has."
                )
            if number != before.number + 1:
                raise Conflict(
                    f"{name} is in edition {before.number} by now. Run the command again."
                )
            if slots < before.slots or not {*before.erased} <= {*erased} <= {*range(slots)}:
                raise InvalidTerms("No slot is taken away, and nobody who left is there again.")
            if slots > before.slots:
                delta = ensemble.population.delta
                check_delta("The cap's δ", delta, slots - len({*erased}))
            on_it = []
            for id in tx.connection.execute(_ON_ENSEMBLE, {"id": ensemble.id}).scalars().all():
                on_it.append(rows.lock_project(tx, id))
            month = (tx.now.year, tx.now.month)
            published = (before.made_at.year, before.made_at.month) == month
            edition = Edition(
                number=number,
                manifest_sha256=manifest_sha256,
                units=before.units if published else before.slots - len(before.erased),
                slots=slots,
                erased=tuple(sorted(erased)),
                begins={project.id: project.charges for project in on_it},
                made_at=tx.now,
            )
            for project in on_it:
                if project.terms.allowance is not None:
                    accounts.follow_edition(tx, project, edition)
            made = rows.edition_row(ensemble, edition)
            tx.insert(editions, made)
            log.record_row(tx, Action.EDITION_MADE, f"{name}/{number}", made)
            return rows.load_newest_edition(tx.connection, tx.seals, ensemble)
