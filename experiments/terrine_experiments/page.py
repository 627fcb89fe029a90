"""The page of the papers: prose, one table over all items, and tables of each paper.

Figures with noise in them are of several draws: their mean, ± the standard deviation from draw to
draw, from which the verdict follows, too.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev

from terrine_experiments.papers import Name, Published
from terrine_experiments.sources import FILES
from terrine_models.data.arrays import DataError
from terrine_protocol.files import write_atomically

SOURCES = {"pate-2017": "P17", "scalable-2018": "P18", "near-zero": "NZC"}
"""With what the rows of each paper begin, in the order of the page."""
ITEMS = ("item", "the paper", "ours, by its accountant", "ours, enforced", "verdict")
MADE = ("rows", "made on", "draws of the noise")
NO_DATA = "no data: "
TITLES: Mapping[Name, str] = {"glyph": "our letters"}
"""What data are called that stand in for the paper's."""
TOLERANCE_POINTS = 1.0
"""How many percentage points an accuracy may be from the paper's to agree with it."""
TEMPLATE = Path(__file__).parents[2] / "docs" / "papers.md"
"""The page whose prose a new one begins with."""

Figure = float | Sequence[float]
"""What noise does not change, or what each draw gave."""


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
    """What was found of one paper: rows of the table over all, rows of tables of its own, their
    heads first, by name, and which data sets were at hand."""

    items: Sequence[Item]
    tables: Mapping[str, Sequence[Sequence[str]]]
    data: Mapping[str, bool]


def begin_page(page: Path) -> None:
    """Copy the prose of the documentation's page to a page that is not there yet."""
    page.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(TEMPLATE, page)


def write_page(page: Path, made: Mapping[str, Chapter], draws: int) -> None:
    """Replace in a page what stands between `<!-- NAME -->` and `<!-- end -->`; the rest is prose.

    NAME is of a chapter's table, or `items`, the rows of all chapters, or `made`, when they were.
    Rows of chapters that were not made now stay, as do those whose data were not at hand. Raises
    DataError if the page lacks a place.
    """
    text = page.read_text()
    today = datetime.now(UTC).strftime("%-d %B %Y")
    items, days = read_rows(page, text, "items"), read_rows(page, text, "made")
    tables: dict[str, list[Sequence[str]]] = {"items": [ITEMS], "made": [MADE]}
    for name, source in SOURCES.items():
        own_items = [row for row in items if row[0].split(",")[0] == source]
        own_days = [row for row in days if row[0].split(",")[0] == source]
        if name in made:
            chapter = made[name]
            now = [list(asdict(each).values()) for each in chapter.items]
            own_items = keep_missing(own_items, now)
            now = [
                [f"{source}, {data}", today if at_hand else f"{NO_DATA}{data}", str(draws)]
                for data, at_hand in chapter.data.items()
            ]
            own_days = [row for row in keep_missing(own_days, now) if not _lacks_data(row)]
            for own, (heads, *rows) in chapter.tables.items():
                tables[own] = [heads, *keep_missing(read_rows(page, text, own), rows)]
        tables["items"] += own_items
        tables["made"] += own_days
    for name, (heads, *rows) in tables.items():
        before, _, after = _place(page, text, name)
        text = before + table(heads, rows) + after
    write_atomically(page, text.encode())


def keep_missing(old: Sequence[Sequence[str]], made: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the rows that were made; for those without data, the old ones that begin alike.

    Of rows of one name, that of the same figure of the paper.
    """
    rows = []
    for row in made:
        alike = [each for each in old if each[0].startswith(row[0]) and not _lacks_data(each)]
        if sum(each[0] == row[0] for each in alike) > 1:
            alike = [each for each in alike if each[1] == row[1]]
        rows += alike if _lacks_data(row) and alike else [row]
    return [list(row) for row in rows]


def _lacks_data(row: Sequence[str]) -> bool:
    return any(cell.startswith(NO_DATA) for cell in row)


def read_rows(page: Path, text: str, name: str) -> list[list[str]]:
    """Return the rows of a place's table, without its heads. Raises DataError."""
    lines = _place(page, text, name)[1].splitlines()
    return [line[2:-2].split(" | ") for line in lines if line.startswith("| ")][1:]


def _place(page: Path, text: str, name: str) -> tuple[str, str, str]:
    """Return what stands before, in and after a place. Raises DataError if the page lacks it."""
    start, end = f"<!-- {name} -->\n", "<!-- end -->"
    before, found, rest = text.partition(start)
    old, ended, after = rest.partition(end)
    if not found or not ended:
        raise DataError(f"{page} has no place for {name}: <!-- {name} -->, <!-- end -->.")
    return before + start, old, f"\n{end}{after}"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    first, *lines = [f"| {' | '.join(map(str, line))} |" for line in (heads, *rows)]
    return "\n".join([first, f"|{'---|' * len(heads)}", *lines])


def no_data(source: str, name: Name, paper: Published, enforced: str) -> Item:
    """A row that files are missing of. What answers cost for any votes is known without them."""
    what = f"{source}, {paper.method}, {TITLES.get(name, name)}"
    return Item(what, paper.row, needed(name), enforced)


def needed(name: Name) -> str:
    """What is said of a data set that was not at hand."""
    return NO_DATA + ", ".join(FILES[name])


def average(figure: Figure) -> tuple[float, float]:
    """The mean of all draws, and their standard deviation: 0 of what noise does not change."""
    if isinstance(figure, int | float):
        return float(figure), 0.0
    return fmean(figure), stdev(figure) if len(figure) > 1 else 0.0


def number(figure: Figure, digits: int = 0) -> str:
    """A figure with its spread, if that is not rounded to nothing."""
    return _with_spread(*average(figure), digits)


def percent(share: Figure) -> str:
    """A share of one."""
    mean, spread = average(share)
    return f"{_with_spread(100 * mean, 100 * spread, 1)} %"


def _with_spread(mean: float, spread: float, digits: int) -> str:
    wide = f"{spread:,.{digits}f}"
    return f"{mean:,.{digits}f}" + (f" ± {wide}" if wide.strip("0.") else "")


def shown_epsilon(epsilon: float | Sequence[float | None] | None) -> str:
    """What is enforced; None is more than a project may have."""
    each = [epsilon] if epsilon is None or isinstance(epsilon, float) else list(epsilon)
    known = [value for value in each if value is not None]
    return f"ε {number(known, 2)}" if len(known) == len(each) else "ε > 100"


def verdict(ours: Figure, paper: float) -> str:
    """How an accuracy compares with the paper's, by its mean and spread over all draws.

    Undecided if the spread alone could bring it to within one point, or beyond.
    """
    mean, spread = average(ours)
    away, wide = 100 * abs(mean - paper), 100 * spread
    shown = f"{_with_spread(away, wide, 1)} points {'above' if mean > paper else 'below'} it"
    if away + wide <= TOLERANCE_POINTS:
        return f"agrees within one point: {shown}"
    return shown if away - wide > TOLERANCE_POINTS else f"undecided: {shown}"
