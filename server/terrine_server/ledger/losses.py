"""What a ledger lost: entries that were signed, and are in no database any more.

Their charges were paid, and answers left: what they spent of a cap is spent. The ledger cannot say
how much, so the owner does, and the cap is smaller by that from then on. All of it stands in the
administrative log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from terrine_protocol import ProjectStatus
from terrine_server.errors import Conflict
from terrine_server.ledger import log, rows
from terrine_server.ledger.chain import Action
from terrine_server.ledger.database import Access, Transaction
from terrine_server.ledger.records import PopulationRecord
from terrine_server.ledger.schema import administrative_log, populations
from terrine_server.privacy import cap_share

# The subject of entries about the whole ledger.
LEDGER = "ledger"


@dataclass(frozen=True)
class LostSpend:
    """What projects that are not in the ledger may have spent together, as their owner says.

    That is (0, 0) if there were none.
    """

    epsilon: float
    delta: float


def reduce_new_cap(tx: Transaction, population: PopulationRecord) -> PopulationRecord:
    """Take from the cap of a population that is declared now what was spent before a loss.

    Raises Conflict if entries were lost and nobody said what these people had spent by them.
    """
    entries = list(_details(tx.connection, Action.LEDGER_LOST, LEDGER))
    if not entries:
        return population
    if not any(population.name in entry["spent"] for entry in entries):
        raise Conflict(
            f"Entries of this ledger were lost, and may have been of the population "
            f"{population.name}. Say first what was spent of it: `terrine ledger restored --spent "
            f"{population.name}=EPSILON,DELTA`, or {population.name}=0 if nothing was."
        )
    _reduce_cap(tx, population)
    return rows.fetch_population(tx.connection, tx.seals, population.name)


def sum_lost(connection: Connection, population: str) -> tuple[int, int]:
    """Return by how much a population's cap was reduced, as cost and δ."""
    entries = list(_details(connection, Action.CAP_REDUCED, population))
    return sum(each["cost"] for each in entries), sum(each["delta_cost"] for each in entries)


def check_nothing_lost(connection: Connection, project: str) -> None:
    """Raise Conflict if charges of a project were lost."""
    if any(_details(connection, Action.CHARGES_LOST, project)):
        raise Conflict(
            f"Charges of {project} were lost with an earlier database, so nobody knows what it has "
            "spent. It stays paused, with its whole budget: resumed or closed, that could be spent "
            "again. Open a new project."
        )


def _reduce_cap(tx: Transaction, population: PopulationRecord) -> None:
    """Reserve what all losses together take of a cap, as far as it is free.

    By basic composition: what the ledger knows of keeps within (ε - ε', δ - δ') if what it lost was
    (ε', δ')-DP, whatever mechanisms these were.
    """
    stated = [
        LostSpend(*entry["spent"][population.name])
        for entry in _details(tx.connection, Action.LEDGER_LOST, LEDGER)
        if population.name in entry["spent"]
    ]
    whole = cap_share(
        population.limit, sum(s.epsilon for s in stated), sum(s.delta for s in stated)
    )
    before = sum_lost(tx.connection, population.name)
    free = (
        population.cap - population.reserved,
        population.delta_cap - population.delta_reserved,
    )
    cost, delta_cost = (
        max(0, min(most - taken, left))
        for most, taken, left in zip(whole, before, free, strict=True)
    )
    if cost == delta_cost == 0:
        return
    tx.change(
        populations,
        population.id,
        {
            "reserved": population.reserved + cost,
            "delta_reserved": population.delta_reserved + delta_cost,
        },
    )
    detail = {"cost": cost, "delta_cost": delta_cost}
    log.record(tx, Action.CAP_REDUCED, population.name, detail)


def _details(connection: Connection, action: Action, subject: str) -> Iterator[dict[str, Any]]:
    entry = administrative_log.c
    query = select(entry.detail).where(entry.action == str(action), entry.subject == subject)
    for text in connection.execute(query.order_by(entry.seq)).scalars():
        yield json.loads(text)


class Losses:
    """What a ledger lost once. Thread-safe."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def record(self, signed: int, spent: Mapping[str, LostSpend], *, of_projects: bool) -> None:
        """Record that entries were lost, and what was spent by them, by population.

        `signed`: how many had been signed. The same amounts of the same loss count once, as a
        command may be run again; other amounts add up. `of_projects`: whether there may be charges
        among them of the projects that are here, which are neither resumed nor closed then. In one
        transaction.
        """
        with self._access.writing() as tx:
            rows.lock_populations(tx.connection)
            projects = rows.lock_all_projects(tx) if of_projects else ()
            entries = list(_details(tx.connection, Action.LEDGER_LOST, LEDGER))
            told = {
                (name, LostSpend(*amounts))
                for entry in entries
                if entry["signed"] == signed
                for name, amounts in entry["spent"].items()
            }
            spent = {name: lost for name, lost in spent.items() if (name, lost) not in told}
            if told and not spent:
                return  # all of it was recorded before
            detail = {
                "signed": signed,
                "spent": {name: [lost.epsilon, lost.delta] for name, lost in spent.items()},
            }
            log.record(tx, Action.LEDGER_LOST, LEDGER, detail)
            for population in rows.load_populations(tx.connection, tx.seals):
                if population.name in spent:
                    _reduce_cap(tx, population)
            for project in projects:
                if project.status is not ProjectStatus.CLOSED:
                    log.record(tx, Action.CHARGES_LOST, project.name, {"charges": project.charges})

    def have_been(self) -> bool:
        """Return whether entries of this ledger were lost once."""
        with self._access.reading() as connection:
            return any(_details(connection, Action.LEDGER_LOST, LEDGER))
