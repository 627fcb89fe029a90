"""Reads arrays of numbers from JSON, a block of the text at a time.

A parser makes objects, at least 32 bytes for a number that may have two. So the text is cut into
blocks, and the objects of one are numbers in an array before the next is read. Other threads have
their turns in between.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterator
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import numpy as np

BLOCK = 1 << 15
"""Bytes of text that are read at a time, beside the rest of an array; numbers of such an array."""
LIST = re.compile(rb"\s*\[\s*(\S.*)\]\s*", re.DOTALL)
PLACE = re.compile(r" - at `\$(?:\[(\d+)\])?([^`]*)`")
"""How an error of msgspec names a place: by the index in the list, and the indices within."""


def numbers(
    text: memoryview, shape: tuple[int, ...], place: str
) -> Generator[np.ndarray, None, int]:
    """Yield the numbers of a list of arrays of this shape, in order, as flat float64 `[k]`.

    Returns the list's length. `text` must be valid JSON. `place` names it in errors. Raises
    `msgspec.ValidationError` if it is another value.
    """
    inside = LIST.fullmatch(text)
    if inside is None:  # not a list, or an empty one: the parser says which
        _parse(bytes(text), shape, place, 0)
        raise AssertionError("A list was not found in its text.")
    rows, size, length = text[slice(*inside.span(1))], math.prod(shape), 0
    if size <= BLOCK:
        for block in _blocks(rows, len(shape), BLOCK):
            sent = b"".join((b"[", block, b"]"))
            if sent.count(b",") > BLOCK + size:  # of another shape; its start may show where
                sent = sent[:BLOCK]
            parsed = _parse(sent, shape, place, length)
            length += len(parsed)
            yield np.array(parsed, dtype=np.float64).ravel()
        return length
    for row in _blocks(rows, len(shape), 0):
        found = yield from numbers(row, shape[1:], f"{place}[{length}]")
        if found != shape[0]:
            raise msgspec.ValidationError(
                f"Expected `array` of length {shape[0]}, got {found} - at `{place}[{length}]`"
            )
        length += 1
    return length


def _blocks(text: memoryview, sides: int, size: int) -> Iterator[memoryview]:
    """Cut the inside of a list at commas between arrays of so many sides.

    Each block but the last has at least `size` bytes, and at most one array more. A list of another
    shape may be cut elsewhere or have larger blocks.
    """
    comma, start = _comma(sides), 0
    while found := comma.search(text, start + size):
        yield text[start : found.start(1)]
        start = found.end(1)
    yield text[start:]


@lru_cache
def _comma(sides: int) -> re.Pattern[bytes]:
    return re.compile(rb"\]\s*" * sides + rb"(,)" + rb"\s*\[" * sides)


def _parse(text: bytes, shape: tuple[int, ...], place: str, first: int) -> list[Any]:
    """Parse a list of arrays, of which the first is that of index `first` in the whole list."""

    def moved(found: re.Match[str]) -> str:
        index = "" if found[1] is None else f"[{first + int(found[1])}]"
        return f" - at `{place}{index}{found[2]}`"

    try:
        parsed: list[Any] = _decoder(shape).decode(text)
    except msgspec.ValidationError as error:
        message = str(error)
        if "`$" not in message:
            message += " - at `$`"
        raise msgspec.ValidationError(PLACE.sub(moved, message)) from None
    except msgspec.DecodeError:  # cut within a list that is too long, or within a string
        found = "`str`" if b'"' in text else "more of them"
        raise msgspec.ValidationError(f"Expected numbers, got {found} - at `{place}`") from None
    return parsed


@lru_cache(maxsize=64)
def _decoder(shape: tuple[int, ...]) -> msgspec.json.Decoder[Any]:
    """Return a parser that holds each list against this shape while it reads."""
    kind: Any = float
    for side in reversed(shape):
        kind = Annotated[list[kind], msgspec.Meta(min_length=side, max_length=side)]
    return msgspec.json.Decoder(Annotated[list[kind], msgspec.Meta(min_length=1)])
