"""What tokens in league leave of the seats, as docs/operating.md says."""

from __future__ import annotations

import pytest

from terrine_server.serving.seats import Seat, Seats, Share
from terrine_server.settings import Settings


def taken_by(seats: Seats, token: str) -> int:
    """Take as many as the token can have."""
    taken = 0
    while Seat().of_token(seats, token) is None:
        taken += 1
    return taken


@pytest.mark.parametrize(
    ("part", "tokens", "left"),
    [(64, 1, 64), (64, 2, 32), (64, 3, 16), (64, 7, 1), (16, 7, 49), (16, 16, 12), (128, 1, 0)],
)
def test_each_token_takes_its_part_of_the_seats_that_are_left(
    part: int, tokens: int, left: int
) -> None:
    seats = Seats(Settings(max_connections=128, max_per_token=part).limits)
    for token in range(tokens):
        assert taken_by(seats, str(token))
    assert seats.limits[Share.ALL] - seats.taken[Share.ALL, ""] == left


def test_a_token_without_a_seat_gets_any_that_is_free() -> None:
    seats = Seats(Settings(max_connections=128).limits)
    for token in range(7):
        taken_by(seats, str(token))
    assert taken_by(seats, "another") == 1
    assert taken_by(seats, "late") == 0


def test_seats_that_are_given_back_can_be_taken_again() -> None:
    seats, seat = Seats(Settings(max_connections=1).limits), Seat()
    assert seat.of_token(seats, "first") is None
    assert Seat().of_token(seats, "second") is Share.ALL
    seat.leave()
    assert Seat().of_token(seats, "second") is None
