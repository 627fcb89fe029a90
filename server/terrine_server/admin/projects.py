"""One project: its terms, prices and charges; pausing, resuming, closing and verifying it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from pydantic import BeforeValidator, Field
from starlette.responses import Response, StreamingResponse

from terrine_protocol import Name, Outcome, ProjectStatus, Role
from terrine_server import views
from terrine_server.admin.access import Admin, ByAdmin, Checked, Reader
from terrine_server.admin.overview import ProjectOverview
from terrine_server.admin.rendering import ROOT, page, see_other
from terrine_server.api.ledger import CSV, csv_lines
from terrine_server.api.services import Services, ServicesDep
from terrine_server.dossier.facts import gather
from terrine_server.dossier.folder import shown
from terrine_server.dossier.owner_answers import DossierError
from terrine_server.errors import Conflict
from terrine_server.ledger import Ledger, ProjectRecord
from terrine_server.owner import operations
from terrine_server.owner.cap_advice import epsilon_that_fits
from terrine_server.owner.checkpoints import CheckpointError
from terrine_server.owner.sessions import Session
from terrine_server.owner.verification import verify_project
from terrine_server.privacy import Accounts

router = APIRouter(prefix=f"{ROOT}/projects")

CHARGES = 25
"""Charges on a page."""
ACTS = {
    "pause": ProjectStatus.PAUSED,
    "resume": ProjectStatus.ACTIVE,
    "close": ProjectStatus.CLOSED,
}


def _or_none(value: Any) -> Any:
    """A filter that is left blank in a form filters nothing."""
    return None if value == "" else value


Blank = BeforeValidator(_or_none)
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
    record, shadows = ledger.project_with_shadows(name)
    found = ledger.charges(
        name,
        0,
        CHARGES + 1,
        outcome,
        _start(since),
        _start(until, 1),
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
        **_shown(record, shadows),
        info=views.project(record, services.available(record.ensemble)),
        history=ledger.history(name),
        payers=_payers(ledger, reader, name, [entry.seq for entry in found[:CHARGES]]),
        charges=[views.charge(entry, record.ensemble) for entry in found[:CHARGES]],
        next=found[CHARGES - 1].seq if len(found) > CHARGES else None,
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
    record = services.ledger.project(name)
    operations.record_export(services.ledger, record.name, reader.actor)
    entries = services.ledger.stream_charges(record.name, outcome, _start(since), _start(until, 1))
    return StreamingResponse(
        csv_lines(entries, record.ensemble),
        media_type=f"{CSV}; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{record.name}.csv"'},
    )


@router.get("/{name}/dossier")
def dossier(request: Request, services: ServicesDep, reader: Reader, name: Name) -> Response:
    """Show what `terrine dossier --project NAME` writes, but for what takes long to verify."""
    return page(request, "dossier.html", reader, **_dossier(services, name, verify=False))


@router.post("/{name}/dossier")
def verified_dossier(
    request: Request, services: ServicesDep, sent: Checked, name: Name
) -> Response:
    """Show the same, with books, log and files recomputed."""
    return page(request, "dossier.html", sent.session, **_dossier(services, name, verify=True))


@router.get("/{name}/close")
def closing(request: Request, services: ServicesDep, reader: Admin, name: Name) -> Response:
    """Say what closing a project will mean, and ask whether it is meant."""
    record = services.ledger.project(name)
    return page(request, "close.html", reader, **_shown(record))


@router.post("/{name}/verify")
def verify(request: Request, services: ServicesDep, sent: Checked, name: Name) -> Response:
    """Recompute a project's books, and show what was found."""
    found = verify_project(services.ledger, name)
    return page(
        request,
        "verified.html",
        sent.session,
        name=name,
        found=found,
        now=datetime.now(UTC),
    )


@router.post("/{name}/{act}")
def act(
    request: Request,
    services: ServicesDep,
    sent: ByAdmin,
    name: Name,
    act: Literal["pause", "resume", "close"],
) -> Response:
    """Pause a project, resume it, or close it for good."""
    services.ledger.set_status(name, ACTS[act], sent.session.actor)
    return see_other(request, f"/projects/{name}", sent.session)


def _payers(
    ledger: Ledger, reader: Session, name: str, entries: Sequence[int]
) -> dict[int, dict[str, str]] | None:
    """Return which token paid for each entry, with its label. None for whoever is not an admin."""
    if reader.role is not Role.ADMIN:
        return None
    payers = ledger.payers(name, entries)
    labels = ledger.token_labels({*payers.values()})
    return {seq: {"id": id, "label": labels.get(id, "")} for seq, id in payers.items()}


def _shown(record: ProjectRecord, shadows: Accounts | None = None) -> dict[str, Any]:
    room = epsilon_that_fits(record.ensemble) if record.exhausted else None
    return {"record": record, "project": ProjectOverview.of(record, shadows), "room": room}


def _dossier(services: Services, name: str, *, verify: bool) -> dict[str, Any]:
    try:
        return shown(gather(services.ledger, services.settings, project=name, verify=verify))
    except (DossierError, CheckpointError, OSError) as error:
        raise Conflict(str(error)) from None


def _start(day: date | None, later: int = 0) -> datetime | None:
    """Return the first instant of a day, or of one so many days later."""
    if day is None:
        return None
    return datetime.combine(day + timedelta(days=later), time.min, UTC)
