"""The pages of one project: its terms, account and charges; verifying, pausing and closing it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from terrine_protocol import (
    Name,
    Outcome,
    ProjectStatus,
    Role,
)
from terrine_server import views
from terrine_server.admin.access import Admin, ByAdmin, Checked, Reader
from terrine_server.admin.overview import Blank, ProjectOverview
from terrine_server.admin.rendering import page, see_other
from terrine_server.api.ledger import CSV, csv_lines
from terrine_server.api.paths import PAGES_PATH
from terrine_server.api.services import ServicesDep
from terrine_server.api.shared import EXPORTING, VERIFYING
from terrine_server.ledger import (
    Ledger,
    ProjectRecord,
)
from terrine_server.owner import operations
from terrine_server.owner.operations import max_fitting_epsilon, verify_project
from terrine_server.owner.sign_in import Session
from terrine_server.privacy import Accounts

router = APIRouter(prefix=f"{PAGES_PATH}/projects")

# Charges on a page.
CHARGES_ON_A_PAGE = 25
STATUS_OF_ACT = {
    "pause": ProjectStatus.PAUSED,
    "resume": ProjectStatus.ACTIVE,
    "close": ProjectStatus.CLOSED,
}


UNPAID = Outcome.EXHAUSTED, Outcome.REFUSED
PaidOutcome = Annotated[Outcome | None, Blank, Query()]
_Dated = Annotated[date, Field(ge=date(2000, 1, 1), lt=date(3000, 1, 1))]
Day = Annotated[_Dated | None, Blank, Query()]


@router.get("/{name}")
def project(
    request: Request,
    services: ServicesDep,
    reader: Reader,
    name: Name,
    before: Annotated[int | None, Query(ge=1, le=10**18)] = None,
    outcome: PaidOutcome = None,
    since: Day = None,
    until: Day = None,
) -> Response:
    """Show a project. `since` and `until` are days (UTC), the last one included."""
    ledger = services.ledger
    record, shadows = ledger.projects.get_with_shadows(name)
    found = ledger.entries.list(
        name,
        0,
        CHARGES_ON_A_PAGE + 1,
        outcome,
        _start_of_day(since),
        _start_of_day(until, 1),
        before_seq=before,
        newest=True,
    )
    filters = {
        key: str(value)
        for key, value in {"outcome": outcome, "since": since, "until": until}.items()
        if value is not None
    }
    return page(
        request,
        "project.html",
        reader,
        **_project_values(record, shadows),
        info=views.project(record, services.available(record.ensemble)),
        history=ledger.entries.history(name),
        payers=_find_payers(
            ledger, reader, name, [entry.seq for entry in found[:CHARGES_ON_A_PAGE]]
        ),
        charges=[views.charge(entry, record.ensemble) for entry in found[:CHARGES_ON_A_PAGE]],
        next=found[CHARGES_ON_A_PAGE - 1].seq if len(found) > CHARGES_ON_A_PAGE else None,
        before=before,
        filters=filters,
        query=urlencode(filters),
        outcomes=[each for each in Outcome if each not in UNPAID],
    )


@router.get("/{name}/charges.csv")
def charges_csv(
    services: ServicesDep,
    reader: Reader,
    name: Name,
    outcome: PaidOutcome = None,
    since: Day = None,
    until: Day = None,
) -> Response:
    """Return all charges that pass the filters, and record that somebody took them."""
    record = services.ledger.projects.get(name)
    operations.record_export(services.ledger, record.name, reader.actor)
    entries = services.ledger.entries.stream(
        record.name, outcome, _start_of_day(since), _start_of_day(until, 1)
    )
    return StreamingResponse(
        EXPORTING.stream(reader.token_id, csv_lines(entries, record.ensemble)),
        media_type=f"{CSV}; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{record.name}.csv"'},
    )


@router.get("/{name}/close")
def confirm_close(request: Request, services: ServicesDep, reader: Admin, name: Name) -> Response:
    """Explain what closing a project means, and ask for confirmation."""
    record = services.ledger.projects.get(name)
    return page(request, "close.html", reader, **_project_values(record))


@router.post("/{name}/verify")
async def verify(request: Request, services: ServicesDep, sent: Checked, name: Name) -> Response:
    """Verify a project's entries and balance, and show what was found."""
    given = services.ledger, name
    found = await VERIFYING.run(sent.session.token_id, verify_project, *given)
    return page(
        request,
        "verified.html",
        sent.session,
        name=name,
        found=found,
        now=datetime.now(UTC),
    )


@router.post("/{name}/{act}")
def set_status(
    request: Request,
    services: ServicesDep,
    sent: ByAdmin,
    name: Name,
    act: Literal["pause", "resume", "close"],
) -> Response:
    """Pause a project, resume it, or close it for good."""
    services.ledger.projects.set_status(name, STATUS_OF_ACT[act], sent.session.actor)
    return see_other(request, f"/projects/{name}", sent.session)


def _find_payers(
    ledger: Ledger, reader: Session, name: str, entries: Sequence[int]
) -> dict[int, dict[str, str]] | None:
    """Return which token paid for each entry, with its label; None unless for an admin."""
    if reader.role is not Role.ADMIN:
        return None
    payers = ledger.entries.payers(name, entries)
    labels = ledger.tokens.list_labels({*payers.values()})
    return {seq: {"id": id, "label": labels.get(id, "")} for seq, id in payers.items()}


def _project_values(record: ProjectRecord, shadows: Accounts | None = None) -> dict[str, Any]:
    room = max_fitting_epsilon(record.ensemble) if record.exhausted else None
    return {"record": record, "project": ProjectOverview.of(record, shadows), "room": room}


def _start_of_day(day: date | None, later: int = 0) -> datetime | None:
    """Return the first instant of a day, or of one so many days later."""
    if day is None:
        return None
    return datetime.combine(day + timedelta(days=later), time.min, UTC)
