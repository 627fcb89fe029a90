"""Errors by what a caller can rely on: their class, and the names and numbers that they hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
    holds(" ".join(str(caught.value).split()), *held)


def holds(said: str | Iterable[str], *held: object) -> None:
    """Check that one line of what was said has each of these, as words of their own."""
    said = said if isinstance(said, str) else "\n".join(said)
    assert says(said, *held), f"no line has all of {held}: {said}"


def says(said: str | Iterable[str], *held: object) -> bool:
    """Return whether `holds` would find that."""
    words = [str(word) for word in held]
    for word in words:
        assert " " not in re.sub(r"\[.*\]", "", word), f"{word!r} is a sentence"
    patterns = [re.compile(rf"(?<!\w)(?<!\d\.){re.escape(word)}(?!\w|\.\d)") for word in words]
    lines = said.splitlines() if isinstance(said, str) else said
    return any(all(each.search(line) for each in patterns) for line in lines)
