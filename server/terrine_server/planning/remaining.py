"""What is left of a budget, in the words of whoever decides about it."""

from __future__ import annotations

from terrine_server.privacy.budget.terms import Account, Terms

FEW = 10
"""Answers per class below which a budget teaches a student little."""


def too_few(terms: Terms, classes: int) -> str | None:
    """Return what is wrong with a budget that buys too few answers to learn from, or None."""
    choice = terms.choice
    answers = choice.considered[0].answers if choice else terms.affordable(Account())
    if answers >= FEW * classes:
        return None
    return (
        f"About {answers:,} answers for {classes:,} classes teach a student little. At equal "
        "agreement an answer costs a quarter with twice the teachers, and less with more noise; "
        "`terrine plan` says what this budget can buy."
    )


def most_queries(terms: Terms, account: Account) -> int | None:
    """Return how many further queries fit if each has its cheapest outcome.

    None if nothing limits them beforehand: a published figure may give back all that was spent.
    """
    limits = []
    left = terms.budget - account.spent
    if terms.schedule is None:
        limits.append(_fitting(left, terms.room.cost, terms.least.cost))
    delta_left = terms.delta_budget - account.delta_spent
    limits.append(_fitting(delta_left, terms.room.delta, terms.least.delta))
    return min((limit for limit in limits if limit is not None), default=None)


def _fitting(left: int, room: int, each: int) -> int | None:
    """Return how many fit while `room` must be left for each; None if they take nothing."""
    if left < room:
        return 0
    return (left - room) // each + 1 if each else None
