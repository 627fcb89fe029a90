"""What an entry records about its price, and which entries open an epoch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from terrine_protocol import Outcome
from terrine_server.ledger.chain import canonical_json
from terrine_server.ledger.records import ProjectRecord
from terrine_server.privacy import Mechanism, Price

OPENING = "opening"

Events = Mapping[str, Any]


def events_of(mechanism: Mechanism) -> dict[str, Any]:
    """Return the cost event of each outcome, as JSON; under `OPENING`, that of opening an epoch."""
    events = {str(outcome): event.to_json() for outcome, event in mechanism.events().items()}
    opening = mechanism.opening
    return events if opening is None else events | {OPENING: opening.to_json()}


def entry_event(events: Events, outcome: str, opens: bool, baseline: int = 0) -> Events:
    """Return the cost event of an entry.

    `opens`: whether it also pays for opening an epoch. `baseline`: see `Terms.price`.
    """
    event: Events = events[outcome]
    if baseline:
        event = {**event, "baseline": baseline}
    return {"event": "composition", "events": [events[OPENING], event]} if opens else event


class EntryFields:
    """Builds the `chain.KIND_FIELDS` of a project's entries: all but number, time and query."""

    def __init__(self, project: ProjectRecord) -> None:
        self._mechanism = canonical_json(project.mechanism)
        self._events = dict(project.events)
        if project.terms.schedule is not None:
            self._events[Outcome.PUBLISHED] = project.terms.schedule.publication.event.to_json()
        self._recorded: dict[tuple[str, bool, int], str] = {}

    def fields(
        self,
        outcome: str,
        price: Price,
        opens: bool,
        label: int | None,
        figure: int | None = None,
        *,
        baseline: int = 0,
    ) -> tuple[str | int | None, ...]:
        """Return an entry's fields. Raises KeyError for an outcome without a cost event."""
        recorded = self._recorded.get((outcome, opens, baseline))
        if recorded is None:
            recorded = canonical_json(entry_event(self._events, outcome, opens, baseline))
            self._recorded[outcome, opens, baseline] = recorded
        return (
            str(outcome),
            label,
            figure,
            price.cost,
            price.delta,
            price.cap_cost,
            self._mechanism,
            recorded,
        )


class Epochs:
    """Follows entries (rows of `charges`), and tells which of them must open an epoch.

    An epoch ends with an abstention, with its last answer, or with its transaction. All entries of
    a transaction have the same time.
    """

    def __init__(self, events: Events) -> None:
        opening = events.get(OPENING)
        self._most = None if opening is None else int(opening["most"])
        self._left = 0
        self._time: object = None

    def must_open(self, entry: Mapping[str, Any]) -> bool:
        """Whether there is no open epoch that the entry could belong to."""
        ended = self._left < 1 or entry["created_at"] != self._time
        return self._most is not None and ended

    def follow(self, entry: Mapping[str, Any], opened: bool) -> None:
        """Take an entry into account. `opened`: whether it opened an epoch."""
        if self._most is not None:
            left = self._most if opened else self._left
            self._left = left - 1 if entry["outcome"] == Outcome.ANSWERED else 0
            self._time = entry["created_at"]
