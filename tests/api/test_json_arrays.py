"""Arrays are read from JSON in blocks exactly as a parser reads the whole of them."""

from __future__ import annotations

from typing import Annotated, Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from terrine_server.api import json_arrays

SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)
BLOCKS = st.sampled_from([1, 3, 10, 40, json_arrays.BLOCK])
NUMBERS = st.sampled_from(
    [
        *("0", "-0", "-0.0", "1e5", "1E-5", "0.1", "2.5e+3", "5e-324", "1e-400"),
        *("9007199254740993", "1.7976931348623157e308", "0." + "0" * 50 + "1", "1234567890" * 3),
    ]
) | st.floats(allow_nan=False, allow_infinity=False).map(repr)
ODD = st.sampled_from(
    ["1e999", "true", "null", '"1"', '"]],[["', '","', "[]", "[0]", "[[0]]", '{"a": [0]}', "0"]
)
"""Values that an array has none of, or has at another depth."""
CHANGES = st.lists(
    st.tuples(st.integers(0), st.sampled_from(["replace", "remove", "repeat"]), ODD), max_size=3
)
MARKS = st.tuples(
    *(
        st.builds("{1}{0}{2}".format, st.just(m), *[st.text(" \t\r\n", max_size=2)] * 2)
        for m in "[,]"
    )
)
"""How the lists of a text begin, go on and end."""


def array(shape: tuple[int, ...], values: list[str]) -> Any:
    """Return lists of this shape; their numbers are the values in turn."""
    if not shape:
        values.append(values.pop(0))
        return values[-1]
    return [array(shape[1:], values) for _ in range(shape[0])]


def changed(made: list[Any], changes: list[tuple[int, str, str]]) -> list[Any]:
    """Replace, remove or repeat an item of any of the lists."""
    for at, how, odd in changes:
        lists = [made]
        for each in lists:  # it grows meanwhile
            lists += [item for item in each if isinstance(item, list)]
        found = lists[at % len(lists)]
        place = slice(at % (len(found) + 1), at % (len(found) + 1) + 1)
        found[place] = {"replace": [odd], "remove": [], "repeat": found[place] * 2}[how]
    return made


def text(value: Any, marks: tuple[str, str, str]) -> str:
    if isinstance(value, str):
        return value
    return marks[0] + marks[1].join(text(item, marks) for item in value) + marks[2]


def whole(sent: str, shape: tuple[int, ...]) -> Any:
    """Read a list of arrays at once, or return the error."""
    kind: Any = float
    for side in reversed(shape):
        kind = Annotated[list[kind], msgspec.Meta(min_length=side, max_length=side)]
    try:
        return msgspec.json.decode(sent, type=Annotated[list[kind], msgspec.Meta(min_length=1)])
    except msgspec.ValidationError as error:
        return str(error)


def in_blocks(sent: str, shape: tuple[int, ...], block: int) -> np.ndarray:
    with patch.object(json_arrays, "BLOCK", block):
        read = list(json_arrays.numbers(memoryview(sent.encode()), shape, "$"))
    return np.concatenate(read).reshape(-1, *shape)


@given(SHAPES, st.integers(1, 6), st.lists(NUMBERS, min_size=1, max_size=9), CHANGES, MARKS, BLOCKS)
@example((2, 2), 2, ["1"], [(0, "replace", '"]],[["')], ("[", ",", "]"), 1)
@example((4,), 1, ["1"], [(1, "replace", '","')], ("[", ",", "]"), 1)
def test_blocks_have_the_very_numbers_or_the_errors_of_the_whole(
    shape: tuple[int, ...],
    length: int,
    values: list[str],
    changes: list[tuple[int, str, str]],
    marks: tuple[str, str, str],
    block: int,
) -> None:
    sent = text(changed(array((length, *shape), values), changes), marks)
    expected = whole(sent, shape)
    if isinstance(expected, list):
        read = in_blocks(sent, shape, block)
        assert read.tobytes() == np.array(expected, dtype=np.float64).tobytes()
        return
    with pytest.raises(msgspec.ValidationError) as error:
        in_blocks(sent, shape, block)
    place = expected.partition(" - at ")[2] or "`$`"
    if block == json_arrays.BLOCK:
        assert str(error.value) == f"{expected.partition(' - at ')[0]} - at {place}"
    else:
        assert " - at `$" in str(error.value)


@pytest.mark.parametrize("block", [1, json_arrays.BLOCK])
def test_an_error_names_the_place_in_the_whole_list(block: int) -> None:
    rows = "[[1,2],[3,4]]," * 5000
    with pytest.raises(msgspec.ValidationError, match=r"got `bool` - at `\$\[5000\]\[1\]\[0\]`"):
        in_blocks(f"[{rows}[[1,2],[true,4]]]", (2, 2), block)
    with pytest.raises(msgspec.ValidationError, match=r"^Expected `array` of length .*\$\[5000\]`"):
        in_blocks(f"[{rows}[[1,2]]]", (2, 2), block)
