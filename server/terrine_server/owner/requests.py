"""Requests for projects: made by the holder of a student's token, decided by the data owner.

A project's terms never change, so every request is for a new project, on the ensemble of the
token's own: also one for more budget. Its epsilon is reserved from the same cap besides.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime

from terrine_protocol import (
    ProjectOpen,
    RequestApprove,
    RequestCreate,
    RequestStatus,
    Role,
    TokenCreate,
    TokenCreated,
)
from terrine_server.errors import Forbidden, InvalidTerms
from terrine_server.ledger import Actor, Ledger, ProjectRecord, RequestRecord
from terrine_server.owner.cap_advice import explained
from terrine_server.owner.operations import ProjectQuote, quote_project
from terrine_server.owner.tokens import Principal, Tokens, shown_once
from terrine_server.privacy import ParameterError, build_mechanism


@dataclass(frozen=True)
class ApprovedRequest:
    """A request that was approved, and what that made. `token`: with its secret."""

    request: RequestRecord
    project: ProjectRecord
    token: TokenCreated | None


def make(ledger: Ledger, wanted: RequestCreate, holder: Principal) -> tuple[RequestRecord, bool]:
    """Store what a student asks for; return it, and whether it was not open already.

    What is checked depends on nothing but public parameters: the cap, and what others hold of it,
    are not looked at. Raises Forbidden for another role, InvalidTerms for a mechanism that cannot
    be used on the ensemble, and Conflict when too many of the token's requests are open.
    """
    if holder.role is not Role.STUDENT or holder.project is None:
        raise Forbidden("Only a student's token makes requests.")
    of = ledger.project(holder.project)
    if wanted.mechanism is None:
        # How a price is divided is chosen anew, for the epsilon that is asked for.
        mechanism = {key: of.mechanism[key] for key in of.mechanism if key != "answer_share"}
    else:
        mechanism = wanted.mechanism.model_dump(mode="json", exclude_none=True)
    try:
        facts = of.ensemble.facts
        build_mechanism(mechanism, teachers=facts.teachers, classes=len(facts.classes))
    except ParameterError as error:
        raise InvalidTerms(str(error)) from error
    id = secrets.token_hex(8)
    made = ledger.make_request(
        id=id,
        token=holder.token_id,
        title=wanted.title,
        purpose=wanted.purpose,
        asked={
            "mechanism": mechanism,
            "epsilon": wanted.epsilon,
            "delta": of.terms.delta if wanted.delta is None else wanted.delta,
        },
        by=holder.actor,
    )
    return made, made.id == id


def as_opened(request: RequestRecord, approval: RequestApprove) -> ProjectOpen:
    """Return the project that an approval opens: as it was requested, but for what it changes."""
    changed = approval.model_dump(exclude_none=True, exclude={"token_expires_in_days"})
    words = {"title": request.title, "purpose": request.purpose}
    return ProjectOpen.model_validate(
        {**words, **request.asked, **changed, "ensemble": request.ensemble}
    )


def approve(
    ledger: Ledger,
    tokens: Tokens,
    id: str,
    terms: ProjectOpen,
    days: float | None = None,
    by: Actor | None = None,
    until: datetime | None = None,
) -> ApprovedRequest:
    """Open the project, and make a token of it that expires in so many `days`, if they are given.

    `terms` may differ from what was requested, but for the ensemble. `until`: when the token
    expires at the latest. The request, the project, the token and what the log says of them are
    written in one transaction. Raises Conflict when the request was decided already or asks for
    another ensemble, and what `open_project` and `Tokens.create` raise.
    """
    request = ledger.find_request(id)
    quoted, new, secret = quote_project(ledger, terms), None, ""
    if days is not None:
        holder = ledger.find_token(request.token)
        wanted = TokenCreate(
            role=Role.STUDENT,
            project=terms.name,
            label="" if holder is None else holder.label,
            expires_in_days=days,
        )
        new, secret = tokens.draw(wanted, until)
    words = {
        "title": terms.title or request.title,
        "purpose": terms.purpose or request.purpose,
    }
    project = quoted.project(terms.model_copy(update=words))
    with explained(ledger, quoted.ensemble, quoted.mechanism, quoted.terms):
        decided, opened, made = ledger.approve_request(id, project, new, by)
    return ApprovedRequest(decided, opened, None if made is None else shown_once(made, secret))


def examine(ledger: Ledger, request: RequestRecord) -> tuple[ProjectQuote | None, str | None]:
    """Return what approving an open request as it was made would mean, or why it is impossible."""
    if request.status is not RequestStatus.OPEN:
        return None, None
    try:
        # Its name decides nothing about its price.
        unnamed = as_opened(request, RequestApprove(name=request.id))
        return quote_project(ledger, unnamed), None
    except InvalidTerms as error:
        return None, error.detail
