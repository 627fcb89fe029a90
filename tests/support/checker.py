"""An independent auditor: compares the answers that clients got with the ledger, by plain SQL.

It shares no code with the product. If every client retried until it got its answers, each charge
must have been sent to someone: the books hold exactly the answers that were sent. Who paid is not
always told so: where a reply was lost, the retry is a repetition.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import psycopg
from crowd import Exchange

_ACCOUNT = (
    "SELECT id, budget, spent, delta_budget, delta_spent, cap_budget, cap_spent, charges"
    " FROM projects WHERE name = '{}'"
)
_ENTRIES = (
    "SELECT seq, outcome, label, cost, delta, cap_cost, query_digest, counts"
    " FROM charges WHERE project_id = {} ORDER BY seq"
)


def discrepancies(url: str, project: str, exchanges: Iterable[Exchange]) -> list[str]:
    """Return what is wrong with a project's books, in words; an empty list if nothing is."""
    with closing(_open(url)) as database:
        [account] = database.execute(_ACCOUNT.format(project)).fetchall()
        entries = database.execute(_ENTRIES.format(account[0])).fetchall()
    mine = [exchange for exchange in exchanges if exchange.project == project]
    return [*_books(account, entries), *_answers(entries, mine)]


def _open(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    return psycopg.connect(url.replace("+psycopg", ""))


def _books(account: Any, entries: list[Any]) -> Iterator[str]:
    _, *money, charges = account
    if [entry[0] for entry in entries] != list(range(1, charges + 1)):
        yield f"{charges} charges are not numbered from 1 without gaps"
    if len({bytes(entry[6]) for entry in entries}) != len(entries):
        yield "a query was charged twice"
    for column, (budget, spent) in enumerate(zip(money[::2], money[1::2], strict=True), start=3):
        paid = sum(entry[column] for entry in entries)
        if not paid == spent <= budget:
            yield f"paid {paid}, recorded {spent}, budget {budget}"


def _answers(entries: list[Any], exchanges: list[Exchange]) -> Iterator[str]:
    book = {entry[0]: (entry[1], entry[2], _counts(entry[7])) for entry in entries}
    charge_of: dict[int, set[int]] = defaultdict(set)
    query_of: dict[int, set[int]] = defaultdict(set)
    payers: dict[int, set[str]] = defaultdict(set)
    replies: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
    for exchange in exchanges:
        if exchange.answers is None:
            continue
        replies[exchange.key].add(tuple((a.charge, a.label) for a in exchange.answers))
        if tuple(answer.query for answer in exchange.answers) != exchange.queries:
            yield f"request {exchange.key} got other answers than it asked for"
        for answer in exchange.answers:
            if answer.charge is None:
                if answer.outcome != "refused" or answer.label is not None:
                    yield f"answered without a charge: {answer}"
                continue
            if book.get(answer.charge) != (answer.outcome, answer.label, answer.counts):
                yield f"answered {answer}, but the books say {book.get(answer.charge)}"
            charge_of[answer.query].add(answer.charge)
            query_of[answer.charge].add(answer.query)
            if not answer.replayed:
                payers[answer.charge].add(exchange.key)
    yield from (f"query {q} was paid by {c}" for q, c in charge_of.items() if len(c) > 1)
    yield from (f"charge {c} paid for {q}" for c, q in query_of.items() if len(q) > 1)
    yield from (f"charge {c} was paid by {k}" for c, k in payers.items() if len(k) > 1)
    yield from (f"request {k} was answered {a}" for k, a in replies.items() if len(a) > 1)
    if unsent := book.keys() - query_of.keys():
        yield f"paid, but never sent to anybody: {sorted(unsent)}"


def _counts(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else tuple(json.loads(text))
