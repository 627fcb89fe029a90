"""What a student's report says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Round:
    """One round: what was asked, and how good the student was after it."""

    asked: int
    outcomes: dict[str, int]
    charges: int
    """Queries that the project has paid for, all told."""
    epsilon_spent: float
    accuracy: float | None
    """On the held-out data; None without any."""


@dataclass(frozen=True)
class Report:
    """`report.json`: what was bought, and what became of it."""

    project: str
    mechanism: dict[str, Any]
    guarantee: str
    epsilon: float
    delta: float
    epsilon_spent: float
    charges: int
    public_inputs: int
    outcomes: dict[str, int]
    refused: bool
    """True when the budget ended the asking."""
    rounds: list[Round]
    held_out: int
    accuracy: float | None
    training: dict[str, Any]
    spending: list[tuple[int, float]]
    """ε spent after so many charges."""


def continued(history: list[Round], new: Round) -> list[Round]:
    """The history with a round added; one that asked nothing judges the last one again."""
    if history and new.asked == 0:
        return [*history[:-1], replace(history[-1], accuracy=new.accuracy)]
    return [*history, new]


def told(number: int, done: Round) -> str:
    """A round in one line."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(done.outcomes.items()))
    accuracy = "" if done.accuracy is None else f"; student {done.accuracy:.2%} right"
    return (
        f"Round {number}: {done.asked} asked ({outcomes or 'no answer'}); "
        f"ε spent {done.epsilon_spent:.3f}{accuracy}"
    )
