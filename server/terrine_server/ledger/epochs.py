"""What an entry records of its price, and which entries open an epoch. Pure."""

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
    """Return the event of each outcome, as JSON; under `OPENING` that of opening an epoch."""
    events = {str(outcome): event.to_json() for outcome, event in mechanism.events().items()}
    opening = mechanism.opening
    return events if opening is None else events | {OPENING: opening.to_json()}


def entry_event(events: Events, outcome: str, opens: bool) -> Events:
    """Return what an entry records; `opens`: it pays for the epoch that starts with it."""
    event: Events = events[outcome]
    return {"event": "composition", "events": [events[OPENING], event]} if opens else event


class Kinds:
    """What a project's entries record beside their number, time and query: `chain.KIND_FIELDS`."""

    def __init__(self, project: ProjectRecord) -> None:
        self._guarantee = str(project.guarantee)
        self._mechanism = canonical_json(project.mechanism)
        self._events = dict(project.events)
        if project.terms.schedule is not None:
            self._events[Outcome.PUBLISHED] = project.terms.schedule.publication.event.to_json()
        self._recorded: dict[tuple[str, bool], str] = {}

    def fields(
        self, outcome: str, price: Price, opens: bool, label: int | None, figure: int | None = None
    ) -> tuple[str | int | None, ...]:
        """Return the fields of an entry with this outcome. KeyError where it has no event."""
        recorded = self._recorded.get((outcome, opens))
        if recorded is None:
            recorded = canonical_json(entry_event(self._events, outcome, opens))
            self._recorded[outcome, opens] = recorded
        return (
            *(str(outcome), label, figure, price.cost, price.delta, price.cap_cost),
            *(self._guarantee, self._mechanism, recorded),
        )


class Epochs:
    """Follows entries, as rows of `charges`, and knows which of them must open an epoch.

    An epoch ends with an abstention, with its last answer and with its transaction, all of whose
    entries have one time.
    """

    def __init__(self, events: Events) -> None:
        opening = events.get(OPENING)
        self._most = None if opening is None else int(opening["most"])
        self._left = 0
        self._time: object = None

    def must_open(self, entry: Mapping[str, Any]) -> bool:
        """Whether no epoch is open that the entry could belong to."""
        ended = self._left < 1 or entry["created_at"] != self._time
        return self._most is not None and ended

    def follow(self, entry: Mapping[str, Any], opened: bool) -> None:
        """Move on by an entry."""
        if self._most is not None:
            left = self._most if opened else self._left
            self._left = left - 1 if entry["outcome"] == Outcome.ANSWERED else 0
            self._time = entry["created_at"]
