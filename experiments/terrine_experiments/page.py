"""The page of the papers: prose, one table over all items, and tables of each paper."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from terrine_experiments.papers import Name, Published
from terrine_experiments.sources import FILES
from terrine_models.data.arrays import DataError
from terrine_protocol.files import write_atomically

CHAPTERS = ("pate-2017", "scalable-2018", "near-zero")
"""The papers, in the order of the page."""


@dataclass(frozen=True)
class Item:
    """One row of the table: a figure of a paper, and ours."""

    what: str
    paper: str
    theirs: str = "–"
    enforced: str = "–"
    verdict: str = "–"


@dataclass(frozen=True)
class Chapter:
    """What was found of one paper: rows of the table over all, and tables of its own, by name."""

    items: Sequence[Item]
    tables: Mapping[str, str]


def write_page(page: Path, out: Path, made: Mapping[str, Chapter]) -> None:
    """Replace in a page what stands between `<!-- NAME -->` and `<!-- end -->`; the rest is prose.

    NAME is of a chapter's table, or `items`: the rows of all chapters, in the order of `CHAPTERS`,
    of which those that were not made now are kept in `out`. Raises DataError if the page lacks one.
    """
    for name, chapter in made.items():
        text = json.dumps(asdict(chapter), ensure_ascii=False, indent=2)
        write_atomically(out / f"chapter-{name}.json", text.encode() + b"\n")
    kept = [out / f"chapter-{name}.json" for name in CHAPTERS]
    chapters = [json.loads(file.read_bytes()) for file in kept if file.exists()]
    rows = [list(item.values()) for chapter in chapters for item in chapter["items"]]
    heads = ("item", "the paper", "ours, by its accountant", "ours, enforced", "verdict")
    parts = {"items": table(heads, rows)}
    for chapter in chapters:
        parts |= chapter["tables"]
    text = page.read_text()
    for name, part in parts.items():
        start, end = f"<!-- {name} -->\n", "\n<!-- end -->"
        before, found, rest = text.partition(start)
        if not found or end not in rest:
            raise DataError(f"{page} has no place for {name}: <!-- {name} -->, <!-- end -->.")
        text = before + start + part + rest[rest.index(end) :]
    write_atomically(page, text.encode())


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    first, *lines = [f"| {' | '.join(map(str, line))} |" for line in (heads, *rows)]
    return "\n".join([first, f"|{'---|' * len(heads)}", *lines])


def no_data(source: str, name: Name, paper: Published) -> Item:
    """A row that files are missing of."""
    needed = f"no data: {', '.join(FILES[name])}"
    return Item(f"{source}, {paper.method}, {name}", paper.row, verdict=needed)


def percent(share: float) -> str:
    """A share of one."""
    return f"{100 * share:.1f} %"


def shown_epsilon(epsilon: float | None) -> str:
    """What is enforced; None is more than a project may have."""
    return "ε > 100" if epsilon is None else f"ε {epsilon:.2f}"


def verdict(ours: float, paper: float) -> str:
    """How an accuracy compares with the paper's."""
    points = 100 * (ours - paper)
    if abs(points) <= 1:
        return "agrees within one point"
    return f"{abs(points):.1f} points {'above' if points > 0 else 'below'} it"
