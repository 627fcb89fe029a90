"""Noisy counts, which some mechanisms release with a label: what they must be, how they are kept.

They are kept as canonical JSON, a list of one whole number for each class, whose SHA-256 is part of
the entry's hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from terrine_server.ledger.chain import canonical_json
from terrine_server.privacy import GaussianNoisyCounts, NeighbourCounts, event_from_json

Counts = tuple[int, ...]


def counted_outcomes(events: Mapping[str, Any]) -> frozenset[str]:
    """Return the outcomes that come with noisy counts, going by a project's cost events."""
    return frozenset(
        str(outcome)
        for outcome, event in events.items()
        if isinstance(event_from_json(event), GaussianNoisyCounts | NeighbourCounts)
    )


def noise_sigma(events: Mapping[str, Any]) -> float | None:
    """Return the σ of the noise in a project's counts, in votes; None if it releases none."""
    for event in map(event_from_json, events.values()):
        if isinstance(event, GaussianNoisyCounts | NeighbourCounts):
            return event.sigma
    return None


def check_counts(counts: Counts | None, label: int | None, due: int | None) -> None:
    """Raise ValueError unless an answer with this label may come with these counts.

    `due`: how many counts there must be; None where there must be none.
    """
    if (counts is None) != (due is None):
        raise ValueError("an answer has noisy counts where they are charged for, and only there")
    if counts is not None and len(counts) != due:
        raise ValueError("noisy counts are one for each class")
    if counts is not None and counts.index(max(counts)) != label:
        raise ValueError("the label is not the first class with the largest of its noisy counts")


def text_of(counts: Counts | None) -> str | None:
    """Return the text that counts are kept as."""
    return None if counts is None else canonical_json(list(counts))


def counts_of(text: str | None) -> Counts | None:
    """The inverse of `text_of`. ValueError or TypeError for what it never writes."""
    return None if text is None else whole_numbers(json.loads(text))


def whole_numbers(value: object) -> Counts:
    """Return counts from what JSON made of them. TypeError unless it is a list of whole numbers."""
    if not isinstance(value, list) or any(type(count) is not int for count in value):
        raise TypeError("noisy counts are a list of whole numbers")
    return tuple(value)
