"""Errors by what a caller can rely on, and the one file of sentences where words matter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
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


RECORD = Path(__file__).resolve().parent.parent / "wording.txt"
HEAD = """\
What Terrine says where words matter: refusals, and the promise. `make wording` writes it anew.
In angle brackets: what is different each time.
"""
SECTION = re.compile(r"^== (.*)\n", re.MULTILINE)
MOVING = (
    (r" +$", ""),
    (r"\d{4}-\d\d-\d\d(?:[T ][\d:.]+(?:Z|\+00:00)?)?", "<time>"),
    (r"retry_after: \d+", "retry_after: <seconds>"),
    (r"Retry in \d+ s", "Retry in <seconds>"),
    (r"\b\d{9,}\b", "<units>"),
    (r"http://127\.0\.0\.1:\d+", "<url>"),
    (r"\b(?=\w*\d)(?=\w*[a-f])[0-9a-f]{12,}\b", "<hex>"),
)
"""What is different each time, and what stands for it."""

Wording = Callable[[str, Mapping[str, str]], None]
"""Compares a section, by the title of each paragraph, with what is on record; or writes it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-wording", action="store_true", help="write tests/wording.txt")


@pytest.fixture
def wording(request: pytest.FixtureRequest, tmp_path: Path) -> Wording:
    def compare(title: str, said: Mapping[str, str]) -> None:
        shown = "\n\n".join(f"# {about}\n{text.strip()}" for about, text in said.items())
        shown = shown.replace(str(tmp_path), "<directory>")
        for pattern, mark in MOVING:
            shown = re.sub(pattern, mark, shown, flags=re.MULTILINE)
        sections = recorded()
        if request.config.getoption("--write-wording"):
            sections[title] = shown
            found = "".join(f"\n== {name}\n\n{text}\n" for name, text in sorted(sections.items()))
            RECORD.write_text(HEAD + found)
        assert shown == sections.get(title), "If it should say this, run `make wording`."

    return compare


def recorded() -> dict[str, str]:
    """Return what is on record, by the title of its section."""
    if not RECORD.exists():
        return {}
    _, *found = SECTION.split(RECORD.read_text())
    return {name: text.strip() for name, text in zip(found[::2], found[1::2], strict=True)}
