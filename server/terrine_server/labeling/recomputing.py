"""Accounts of people, recomputed from the charges of a project by casting all votes again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from terrine_server.errors import Conflict
from terrine_server.labeling.queries import canonical_inputs, input_digests
from terrine_server.labeling.strategies import (
    AccountVotes,
    strategy_of,
)
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import (
    Ledger,
    ProjectRecord,
)


@dataclass(frozen=True)
class AccountsCheck:
    """`queries`: how many were charged. `unknown`: how many of them are not among the inputs.

    `same`: whether the accounts are those that the records make; None if any query is unknown.
    """

    queries: int
    unknown: int
    same: bool | None


def recompute_accounts(
    ledger: Ledger, voters: Voters, name: str, inputs: np.ndarray
) -> AccountsCheck:
    """Cast all votes of a project of `neighbours` again, in the order of its charges.

    Each query is cast by those records that were there then; accounts of people who left are full.
    `inputs`: all that students may have asked, `[B, …]`, such as the public pool. Raises Conflict
    for any other project, and if its accounts count as spent after a restore; ConcurrentUpdate if
    it answers meanwhile; InvalidQuery for inputs that the ensemble does not take.
    """
    project = ledger.projects.get(name)
    strategy = strategy_of(project, ledger, voters)
    if not isinstance(strategy, AccountVotes):
        raise Conflict(
            f"Nobody has an account in {name}: it is a project of {strategy.mechanism.name}."
        )
    accounts = ledger.charging.unit_accounts(project)
    facts = project.ensemble.facts
    known = canonical_inputs(inputs, facts.input, len(inputs))
    rows = {
        digest.hex(): row
        for row, digest in enumerate(input_digests(known, project.ensemble.manifest_sha256))
    }
    asked = [rows.get(entry.input_digest, -1) for entry in ledger.entries.stream(name)]
    asked = asked[: project.charges]
    unknown = asked.count(-1)
    if unknown:
        return AccountsCheck(len(asked), unknown, None)
    found = voters.neighbourhood(project.ensemble.current)
    spent = np.zeros(len(accounts), dtype=np.uint32)
    for edition, some in _by_edition(ledger, project, known[asked]):
        there = found.ensemble.since <= edition  # records of people who left are gone
        for weights in found.record_weights(found.ensemble.to_points(some)):
            given = weights * there, found.units, spent, strategy.allowance
            _, spent = strategy.mechanism.cast(*given)
    newest = project.ensemble.edition
    spent[list(newest.erased if newest else ())] = strategy.allowance
    same = bool(np.array_equal(spent, accounts))
    if not same and bool((accounts == strategy.allowance).all()):
        raise Conflict(f"All accounts of {name} count as spent: its ledger was restored once.")
    return AccountsCheck(len(asked), 0, same)


def _by_edition(
    ledger: Ledger, project: ProjectRecord, asked: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the inputs that were charged in each edition of the ensemble, with its number."""
    editions = ledger.ensembles.list_editions(project.ensemble.name)
    # A project that was opened later began with the newest edition of its time.
    begins = [edition.begins.get(project.id, 0) for edition in editions]
    for edition, start, end in zip(editions, begins, [*begins[1:], len(asked)], strict=True):
        if start < end:
            yield edition.number, asked[start:end]
