"""What colluding tokens leave of the slots, as docs/operating.md says."""

from __future__ import annotations

import pytest

from terrine_server.serving.slots import ConcurrencyLimit, Share, Slot
from terrine_server.settings import Settings


def taken_by(slots: ConcurrencyLimit, token: str) -> int:
    """Take as many as the token can have."""
    taken = 0
    while Slot().take_for_token(slots, token) is None:
        taken += 1
    return taken


@pytest.mark.parametrize(
    ("part", "tokens", "left"),
    [(64, 1, 64), (64, 2, 32), (64, 3, 16), (64, 7, 1), (16, 7, 49), (16, 16, 12), (128, 1, 0)],
)
def test_each_token_takes_its_part_of_the_slots_that_are_left(
    part: int, tokens: int, left: int
) -> None:
    slots = ConcurrencyLimit(Settings(max_connections=128, max_per_token=part).limits)
    for token in range(tokens):
        assert taken_by(slots, str(token))
    assert slots.limits[Share.ALL] - slots.taken[Share.ALL, ""] == left


def test_a_token_without_a_slot_gets_any_that_is_free() -> None:
    slots = ConcurrencyLimit(Settings(max_connections=128).limits)
    for token in range(7):
        taken_by(slots, str(token))
    assert taken_by(slots, "another") == 1
    assert taken_by(slots, "late") == 0


def test_seats_that_are_given_back_can_be_taken_again() -> None:
    slots, slot = ConcurrencyLimit(Settings(max_connections=1).limits), Slot()
    assert slot.take_for_token(slots, "first") is None
    assert Slot().take_for_token(slots, "second") is Share.ALL
    slot.leave()
    assert Slot().take_for_token(slots, "second") is None
