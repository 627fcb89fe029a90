"""Requests for labels, their results, and the budget after them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from terrine_protocol.base import (
    PROTECTS,
    Name,
    Outcome,
    ProjectStatus,
    Reply,
    RuleInfo,
    Wire,
    absent,
)


class LabelRequest(Wire):
    """`POST /label` as JSON, of numbers. The binary forms carry the same two arrays."""

    inputs: Annotated[
        list[Any],
        Field(min_length=1, description="Nested numbers of shape [B, …]; see `GET /project`."),
    ]
    probabilities: Annotated[
        list[list[float]] | None,
        Field(description="[B, m], the student's class probabilities; for `interactive_gnmax`."),
    ] = None


# The value of a column in a row of a table; null where it is missing.
Cell = str | int | float | bool | None


class RowsRequest(Wire):
    """`POST /label` as JSON, of the rows of a table; `text/csv` is the same with a header.

    They are encoded by the schema of the project's ensemble, `ensemble.encoding`. Columns that are
    not features are ignored.
    """

    rows: Annotated[
        list[dict[str, Cell]],
        Field(
            min_length=1,
            description="For each row an object with a value for every feature, by its column.",
            examples=[[{"age": 39, "job": "nurse"}]],
        ),
    ]
    probabilities: Annotated[
        list[list[float]] | None,
        Field(description="[B, m], the student's class probabilities; for `interactive_gnmax`."),
    ] = None


class LabelResult(Reply):
    """The result of one query."""

    outcome: Outcome
    label: Annotated[int | None, Field(description="Class index, if there is a label.")] = None
    label_name: Annotated[
        str | None,
        Field(
            exclude_if=absent,
            description="Name of that class. Absent if there is no label, or if classes are named "
            "0, 1, … as their labels are.",
        ),
    ] = None
    counts: Annotated[
        list[int] | None,
        Field(
            description="For `noisy_votes` and `neighbours`, and absent otherwise: the votes for "
            "each class and their noise, which may make them negative or more than the teachers. "
            "`label` is the largest."
        ),
    ] = None
    charge: Annotated[
        int | None, Field(description="Number of the ledger entry that paid for it.")
    ] = None
    hash: Annotated[
        str | None, Field(description="Hash of that entry: a receipt, to find it in the log by.")
    ] = None
    replayed: Annotated[
        bool, Field(description="True if an earlier answer was repeated, at no cost.")
    ] = False
    source: Annotated[
        Literal["sums"] | None,
        Field(
            exclude_if=absent,
            description="`sums`: it follows from what the project released when it was opened, so "
            "it costs nothing (post-processing). Absent where votes were taken.",
        ),
    ] = None


class PublicationInfo(Reply):
    """A published bound on the cost of a data-dependent project's queries."""

    charge: Annotated[int, Field(description="Number of its ledger entry.")]
    queries: Annotated[int, Field(description="Queries that it covers.")]
    figure: Annotated[int, Field(description="Units of 1e-12 of the rule's quantity.")]


class Budget(Reply):
    """A project's public account. Every number follows from public parameters and outcomes."""

    project: Name
    status: ProjectStatus
    protects: Annotated[str, Field(description=PROTECTS)]
    epsilon: float
    delta: float
    rule: RuleInfo
    budget: Annotated[int, Field(description="The most that may be spent, in units of 1e-12.")]
    spent: int
    delta_budget: Annotated[int, Field(description="Additive δ to spend, in units of 1e-18.")]
    delta_spent: int
    epsilon_spent: Annotated[
        float,
        Field(description="ε of the spend so far, at the same δ. Informational."),
    ]
    charges: Annotated[int, Field(ge=0, description="Ledger entries so far.")]
    publications: list[PublicationInfo] = Field(
        default=[],
        description="For data_dependent: the bounds that replace their queries' worst case.",
    )
    affordable: Annotated[
        int,
        Field(ge=0, description="Further queries that are certain to fit, at worst-case prices."),
    ]
    used_up: Annotated[
        float | None,
        Field(
            description="For neighbours, in `GET /budget`: the share of public rows that, as "
            "private ones, could not vote any more, by the queries so far: of the newest edition, "
            "since it is not public how many people came with it."
        ),
    ] = None

    def __repr__(self) -> str:
        return (
            f"<Budget of {self.project}: ε = {self.epsilon_spent:.4g} of {self.epsilon:g} spent at "
            f"δ = {self.delta:g}, {self.charges:,} ledger entries, at least {self.affordable:,} "
            f"more queries fit, {self.status}>"
        )


class LabelResponse(Reply):
    """The results, in the order of the inputs, and the account after them."""

    results: list[LabelResult]
    notes: Annotated[
        list[str] | None,
        Field(
            exclude_if=absent,
            description="For rows by name: what the project's schema does not expect in them, such "
            "as values that count as other. Absent if there is nothing.",
        ),
    ] = None
    noise_sigma: Annotated[
        float | None,
        Field(
            description="For `noisy_votes` and `neighbours`, and absent otherwise: the standard "
            "deviation of the noise in each of `counts`, in votes."
        ),
    ] = None
    classes: Annotated[
        list[str] | None,
        Field(
            exclude_if=absent,
            description="For `noisy_votes` and `neighbours`, and absent otherwise: the names of "
            "the classes, in the order of `counts`.",
        ),
    ] = None
    budget: Budget


class UsedUp(Reply):
    """How far people of a project of neighbours are exhausted, by public rows."""

    used_up: Annotated[
        list[float],
        Field(
            description="For each input, in order: of the public rows near it, which share could "
            "not vote any more if they were private. From 0.95 on, the input is `exhausted`."
        ),
    ]
