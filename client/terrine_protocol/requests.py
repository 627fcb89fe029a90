"""Tokens, and requests for a project: what a student asks for, and what the data owner decides."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from terrine_protocol.base import (
    VISIBLE_LINE,
    Name,
    Outcome,
    PriceInfo,
    Purpose,
    Reason,
    Reply,
    Role,
    Title,
    Wire,
    absent,
)
from terrine_protocol.mechanisms import MechanismSpec
from terrine_protocol.projects import Delta, Epsilon, ProjectChoices, ProjectInfo

Days = Annotated[float, Field(gt=0, le=3650)]


class TokenCreate(Wire):
    """`POST /tokens`. A student's token belongs to one project; the others to none."""

    role: Annotated[Role, Field(description="What it may do.")]
    project: Annotated[Name | None, Field(description="Project of a student's token.")] = None
    label: Annotated[
        str,
        Field(max_length=100, pattern=VISIBLE_LINE, description="For your own records."),
    ] = ""
    expires_in_days: Annotated[Days, Field(description="Days until it expires.")] = 90

    @model_validator(mode="after")
    def _project_goes_with_the_role(self) -> Self:
        if (self.role is Role.STUDENT) != (self.project is not None):
            raise ValueError("A student's token needs a project, and no other token has one.")
        return self


class TokenInfo(Reply):
    """A token as it is stored: without its secret."""

    id: str
    role: Role
    project: Name | None
    label: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None


class TokenPage(Reply):
    """A page of tokens, oldest first."""

    items: list[TokenInfo]
    next: str | None = None


class TokenCreated(TokenInfo):
    """A new token. Its secret is shown only here."""

    token: str


class RequestStatus(StrEnum):
    """The state of a request."""

    OPEN = "open"
    APPROVED = "approved"
    REFUSED = "refused"


class RequestCreate(Wire):
    """`POST /requests`: a new project on the ensemble of the token's project.

    A project's terms never change. So more budget for the same work is a new project, too, with an
    epsilon of its own, which is reserved from the ensemble's cap besides that of the first.
    """

    title: Title
    purpose: Purpose
    epsilon: Epsilon
    delta: Annotated[Delta | None, Field(description="By default that of the token's project.")] = (
        None
    )
    mechanism: Annotated[
        MechanismSpec | None, Field(description="By default that of the token's project.")
    ] = None


class RequestInfo(Reply):
    """A request as its author sees it."""

    id: str
    ensemble: Name
    title: str
    purpose: str
    mechanism: MechanismSpec
    epsilon: float
    delta: float
    status: RequestStatus
    project: Annotated[
        Name | None, Field(description="Once it is approved: the project that was opened.")
    ] = None
    reason: Annotated[str | None, Field(description="Once it is refused: why.")] = None
    created_at: datetime
    decided_at: datetime | None = None


class ApprovalInfo(Reply):
    """What approving a request as it was made would mean, as of now."""

    prices: dict[Outcome, PriceInfo]
    affordable: Annotated[int, Field(description="Queries that are certain to fit its budget.")]
    reserved: Annotated[
        int, Field(description="Of the ensemble's cap, in all, after it. Units as in `cap`.")
    ]
    cap: Annotated[int, Field(description="Units of 1e-12 of the rule's quantity.")]
    delta_reserved: Annotated[int, Field(description="The same for the additive δ.")]
    delta_cap: Annotated[int, Field(description="Additive δ, in units of 1e-18.")]
    fits: Annotated[bool, Field(description="Whether the cap has room for it.")]
    warning: Annotated[
        str | None,
        Field(exclude_if=absent, description="That it buys too few answers to learn from."),
    ] = None


class RequestAccount(RequestInfo):
    """A request as the data owner sees it."""

    token: Annotated[str, Field(description="Id of the token that made it.")]
    token_project: Annotated[Name, Field(description="The project which that token belongs to.")]
    approval: Annotated[
        ApprovalInfo | None,
        Field(
            exclude_if=absent,
            description="Only of one request by itself, while it is open and can be priced.",
        ),
    ] = None
    cannot_be_opened: Annotated[
        str | None,
        Field(exclude_if=absent, description="Instead of `approval`: why it cannot be priced."),
    ] = None


class RequestPage(Reply):
    """A page of requests, oldest first; a student sees those of its own token."""

    items: list[RequestAccount | RequestInfo]
    next: str | None = None


class RequestApprove(ProjectChoices):
    """`POST /requests/{request_id}/approve`. What is left out is as it was requested."""

    name: Annotated[Name, Field(description="Of the project that this opens.")]
    title: Annotated[Title | None, Field(description="If other than requested.")] = None
    purpose: Annotated[Purpose | None, Field(description="If other than requested.")] = None
    epsilon: Annotated[Epsilon | None, Field(description="If other than requested.")] = None
    delta: Annotated[Delta | None, Field(description="If other than requested.")] = None
    mechanism: Annotated[MechanismSpec | None, Field(description="If other than requested.")] = None
    token_expires_in_days: Annotated[
        Days | None,
        Field(description="Also create a student's token of the new project, in the same step."),
    ] = None


class RequestApproved(Reply):
    """An approved request, the project that it opened, and a token if one was requested."""

    request: RequestAccount
    project: ProjectInfo
    token: Annotated[TokenCreated | None, Field(description="Its secret is shown only here.")] = (
        None
    )


class RequestRefuse(Wire):
    """`POST /requests/{request_id}/refuse`."""

    reason: Reason
