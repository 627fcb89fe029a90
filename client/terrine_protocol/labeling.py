"""Asking for labels: requests, results, the budget after them, and estimates."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from terrine_protocol.base import (
    Guarantee,
    Name,
    Opening,
    Outcome,
    Price,
    ProjectStatus,
    Reply,
    Rule,
    Wire,
)


class LabelRequest(Wire):
    """`POST /label` as JSON. The binary forms carry the same two arrays."""

    inputs: Annotated[
        list[Any],
        Field(min_length=1, description="Nested numbers of shape [B, …], as the ensemble asks."),
    ]
    probabilities: Annotated[
        list[list[float]] | None,
        Field(description="[B, m] class probabilities of the student; for interactive_gnmax."),
    ] = None


class LabelResult(Reply):
    """One query's fate."""

    outcome: Outcome
    label: Annotated[int | None, Field(description="Class index, where there is one.")] = None
    charge: Annotated[
        int | None, Field(description="Number of the ledger entry that paid for it.")
    ] = None
    replayed: Annotated[
        bool, Field(description="True when an earlier answer was repeated, at no cost.")
    ] = False


class Published(Reply):
    """A bound on what a data-dependent project's queries had cost, as it was published."""

    charge: Annotated[int, Field(description="Number of its ledger entry.")]
    queries: Annotated[int, Field(description="Queries that it covers.")]
    figure: Annotated[int, Field(description="Units of 1e-12 of the rule's quantity.")]


class Budget(Reply):
    """A project's public account. Every figure follows from public parameters and outcomes."""

    project: Name
    status: ProjectStatus
    guarantee: Guarantee
    epsilon: float
    delta: float
    rule: Rule
    budget: Annotated[int, Field(description="What may be spent, in units of 1e-12.")]
    spent: int
    delta_budget: Annotated[int, Field(description="Additive δ to spend, in units of 1e-18.")]
    delta_spent: int
    epsilon_spent: Annotated[
        float,
        Field(description="ε of what is spent so far at the same δ. Informational."),
    ]
    charges: Annotated[int, Field(ge=0, description="Ledger entries so far.")]
    publications: list[Published] = Field(
        default=[],
        description="Of a data-dependent project: what stands for its queries' worst case.",
    )
    affordable: Annotated[
        int, Field(ge=0, description="Further queries that are certain to fit, at worst price.")
    ]


class LabelResponse(Reply):
    """The answers, in the order of the inputs, and the account after them."""

    results: list[LabelResult]
    budget: Budget


class EstimateRequest(Wire):
    """`POST /label/estimate`: what would this many new queries cost at most?"""

    queries: Annotated[int, Field(ge=1, le=1_000_000_000)]


class Estimate(Reply):
    """Worst-case price of a plan. No input and no vote was looked at."""

    queries: int
    cost: Annotated[int, Field(description="Worst-case debit in units of 1e-12.")]
    delta_cost: Annotated[int, Field(description="Worst-case additive δ, in units of 1e-18.")]
    fits: Annotated[bool, Field(description="True when all are certain to be paid.")]
    epsilon_after: Annotated[
        float, Field(description="ε spent after the plan, at worst price. Informational.")
    ]
    prices: dict[Outcome, Price]
    opening: Opening = None
    budget: Budget
