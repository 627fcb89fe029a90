"""`terrine price`: what the entries of a ledger cost under every accounting method."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from terrine_protocol.files import opened
from terrine_server.cli.console import as_json, console, fail, opened_ledger, with_json
from terrine_server.cli.plan_report import ALL_COUNTS, ANSWER_ALONE

if TYPE_CHECKING:
    from terrine_server.planning.accountants import Method
    from terrine_server.privacy import CostEvent


@dataclass(frozen=True)
class PriceLine:
    """The result of one accounting method: ε of a ledger's entries, queries for its budget."""

    rule: str
    sound: bool
    enforced: bool
    epsilon: float
    queries: int


@dataclass(frozen=True)
class Books:
    """What was charged, and under which terms. `order`: the fixed one, if any.

    `published`: the line of a data-dependent project, which has no `enforced` method.
    """

    project: str
    tally: Mapping[CostEvent, int]
    outcomes: Mapping[str, int]
    epsilon: float | None
    delta: float
    enforced: Method | None
    order: float | None
    published: PriceLine | None = None


@with_json
def price(
    project: Annotated[str | None, typer.Argument(metavar="PROJECT", help="A project.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A JSON file from `terrine ledger export`, instead of a project."
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of the budget, for --file.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ of the budget, for --file.")] = None,
) -> None:
    """Re-price a ledger, finished or not, under every accounting method. No votes are needed.

    [bold]Examples[/bold]

      terrine price sepsis

      terrine price --file sepsis.json --epsilon 2 --delta 1e-5
    """
    if (project is None) == (file is None):
        fail("Name a project, or give --file with an exported ledger.")
    if project is not None:
        if epsilon is not None or delta is not None:
            fail("A project has its own ε and δ; --epsilon and --delta are for --file.")
        books = _from_ledger(project)
    else:
        books = _from_file(file or Path(), epsilon, delta)
    if not books.tally:
        fail(f"{books.project} has no charges yet, so there is nothing to re-price.")
    budget = books.epsilon if books.epsilon is not None else _spent(books)
    lines = _lines(books, budget)
    if as_json():
        typer.echo(json.dumps(_document(books, budget, lines), indent=2, ensure_ascii=False))
    else:
        _show(books, budget, lines)


def _from_ledger(name: str) -> Books:
    from terrine_server.planning.accountants import Method
    from terrine_server.planning.plan import DATA_DEPENDENT
    from terrine_server.privacy import GDP

    ledger = opened_ledger()
    record = ledger.project(name)
    terms, account = record.terms, record.account
    tally, outcomes = _count((e.event, e.outcome) for e in ledger.stream_charges(name))
    published = None
    if terms.schedule is not None:
        published = PriceLine(
            DATA_DEPENDENT,
            sound=True,
            enforced=True,
            epsilon=terms.epsilon_spent(account.spent),
            queries=account.queries + terms.affordable(account),
        )
    return Books(
        project=name,
        tally=tally,
        outcomes=outcomes,
        epsilon=terms.epsilon,
        delta=terms.delta,
        enforced=None if published else (Method.GDP if terms.rule == GDP else Method.FIXED_ORDER),
        order=terms.rule.order,
        published=published,
    )


def _from_file(path: Path, epsilon: float | None, delta: float | None) -> Books:
    from terrine_server.planning.accountants import check_charged, enforced

    if delta is None:
        fail("A file is priced at a δ of your choice: give --delta, and --epsilon to compare with.")
    projects: set[str] = set()

    def entries() -> Iterator[tuple[Mapping[str, Any], str]]:
        with io.TextIOWrapper(opened(path), "utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    entry = json.loads(line)
                    if number == 1 and "account" in entry:
                        continue
                    projects.add(str(entry["project"]))
                    yield dict(entry["event"]), str(entry["outcome"])
                except (ValueError, TypeError, KeyError, UnicodeDecodeError):
                    fail(
                        f"{path}, line {number}: not a ledger entry. Expected the output of "
                        "`terrine ledger export --format json`."
                    )

    tally, outcomes = _count(entries())
    if not tally:
        fail(f"{path} has no entries of queries.")
    if len(projects) > 1:
        fail(f"{path} has entries of {', '.join(sorted(projects))}. Export one project only.")
    (name,) = projects
    check_charged(tally)
    # Refusals depended on published figures; the entries alone do not say what was left.
    binding = None if "published" in outcomes else enforced(tally, delta, epsilon or 1.0).method
    return Books(name, tally, outcomes, epsilon, delta, binding, order=None)


def _count(
    entries: Iterable[tuple[Mapping[str, Any], str]],
) -> tuple[dict[CostEvent, int], dict[str, int]]:
    from terrine_server.privacy import PublishedBound, event_from_json

    tally: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for event, outcome in entries:
        tally[json.dumps(event, sort_keys=True)] += 1
        outcomes[outcome] += 1
    events = {event_from_json(json.loads(text)): count for text, count in tally.items()}
    # Methods that count every query at its worst case do not use published figures.
    queries = {e: count for e, count in events.items() if not isinstance(e, PublishedBound)}
    return queries, dict(outcomes)


def _spent(books: Books) -> float:
    """The ε of all charges, under the enforced rule at its best order."""
    from terrine_server.planning.accountants import Accountant, Method, conversion_delta

    method = Method.GDP if books.enforced is Method.GDP else Method.IMPROVED
    accountant = Accountant(method, conversion_delta(books.tally, books.delta))
    return accountant.epsilon(accountant.total(books.tally))


def _lines(books: Books, budget: float) -> list[PriceLine]:
    from terrine_server.planning.accountants import reprice

    lines = [
        PriceLine(
            each.method.value, each.sound, each.method is books.enforced, each.epsilon, each.queries
        )
        for each in reprice(books.tally, books.delta, budget, books.order)
    ]
    return lines if books.published is None else [*lines, books.published]


def _show(books: Books, budget: float, lines: list[PriceLine]) -> None:
    from terrine_server.privacy import GaussianArgmax, GaussianNoisyCounts

    made = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(books.outcomes.items()))
    console.print(f"[bold]{books.project}[/]: {made}", highlight=False, soft_wrap=True)
    binding = next((line.queries for line in lines if line.enforced), 0)
    table = Table("accounting", "sound")
    for heading in (f"ε at δ = {books.delta:g}", f"queries for ε = {budget:.4g}", "gain"):
        table.add_column(heading, justify="right")
    for line in lines:
        name, at_least = line.rule, "≥ " if line is books.published else ""
        if name == "fixed-order RDP" and books.order is not None:
            name += f" (order {books.order:g})"
        table.add_row(
            f"[bold]{name}, enforced[/]" if line.enforced else name,
            "yes" if line.sound else "no",
            f"{line.epsilon:.4f}",
            f"{at_least}{line.queries:,}",
            "" if line.enforced or not binding else f"{line.queries / binding - 1:+.1%}",
        )
    console.print(table)
    if any(isinstance(event, GaussianNoisyCounts) for event in books.tally):
        console.print(ALL_COUNTS, highlight=False, soft_wrap=True)
    if any(isinstance(event, GaussianArgmax) for event in books.tally):
        console.print(ANSWER_ALONE, highlight=False, soft_wrap=True)


def _document(books: Books, budget: float, lines: list[PriceLine]) -> dict[str, Any]:
    return {
        "project": books.project,
        "charges": sum(books.outcomes.values()),
        "outcomes": dict(books.outcomes),
        "epsilon": budget,
        "delta": books.delta,
        "enforced": next((line.rule for line in lines if line.enforced), None),
        "order": books.order,
        "rules": [asdict(line) for line in lines],
    }
