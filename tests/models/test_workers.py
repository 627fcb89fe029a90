"""Work on all processors at once."""

from __future__ import annotations

from terrine_models.data.workers import side_by_side


def test_work_may_have_work_of_its_own() -> None:
    def row(number: int) -> list[int]:
        return side_by_side(lambda other: 10 * number + other, range(5))

    for rows in (1, 9):  # more than there are processors
        expected = [[10 * number + other for other in range(5)] for number in range(rows)]
        assert side_by_side(row, range(rows)) == expected
