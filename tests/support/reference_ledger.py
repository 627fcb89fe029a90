"""A reference model of a ledger with worst-case prices, as short as possible."""

from __future__ import annotations

from dataclasses import dataclass, field

Answer = tuple[int, str] | None
"""Number and outcome of the charge that answers a query; None if it is refused."""


class Refused(Exception):  # noqa: N818 - a refusal is no error
    """The ledger refuses; the text says why."""


@dataclass
class Book:
    """One project. Amounts in units; prices are (cost, share of the cap) by outcome."""

    budget: int
    prices: dict[str, tuple[int, int]]
    reserved: int
    status: str = "active"
    paid: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The charge that answers each query, in the order of payment."""

    def total(self, part: int) -> int:
        return sum(self.prices[outcome][part] for _, outcome in self.paid.values())

    def charge(self, queries: list[tuple[str, str]]) -> list[Answer]:
        """Pay for queries, each with the outcome that its votes would give."""
        if self.status != "active":
            raise Refused(self.status)
        worst, full = max(cost for cost, _ in self.prices.values()), False
        answers = []
        for query, outcome in queries:
            fits = outcome != "unvoted" and self.total(0) + worst <= self.budget
            full = full or (query not in self.paid and not fits)
            if not full and query not in self.paid:
                self.paid[query] = len(self.paid) + 1, outcome
            answers.append(self.paid.get(query))
        if not any(answers):
            raise Refused("exhausted")
        return answers


@dataclass
class Books:
    """All projects of one ensemble, which share its cap."""

    cap: int
    projects: dict[str, Book] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        return sum(book.reserved for book in self.projects.values())

    def open(self, name: str, book: Book) -> None:
        if self.reserved + book.reserved > self.cap:
            raise Refused("cap")
        self.projects[name] = book

    def set_status(self, name: str, status: str) -> None:
        book = self.projects[name]
        if book.status == "closed" and status != "closed":
            raise Refused("closed for good")
        if status == "closed" and book.status != "closed":
            book.reserved = book.total(1)
        book.status = status
