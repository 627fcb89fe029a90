"""Errors by what a caller can rely on: their class, and the names and numbers that they hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)


@contextmanager
def refuses(kind: type[E], *held: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """What is done within raises an error of just this kind, whose message has all of `held`.

    Each is a name, a number, a value such as "[B, 8, 8]", or one word of what the error is about,
    where its class does not say that: no sentence. `wording.txt` has those that matter.
    """
    with pytest.raises(kind) as caught:
        yield caught
    assert type(caught.value) is kind
    holds(str(caught.value), *held)


def holds(said: str, *held: object) -> None:
    """Check that a message has each of these as words of its own."""
    for word in map(str, held):
        assert " " not in re.sub(r"\[.*\]", "", word), f"{word!r} is a sentence"
        found = re.search(rf"(?<![\w.]){re.escape(word)}(?!\w|\.\d)", said)
        assert found, f"{word!r} is not in: {said}"
