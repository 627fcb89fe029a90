"""Tokens: how one is made, and what is told of it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, model_validator

from terrine_protocol.base import VISIBLE_LINE, Name, Reply, Role, Wire

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
