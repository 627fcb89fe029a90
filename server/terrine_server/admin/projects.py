"""The overview of caps and projects, the pages of one project, and tokens."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from pydantic import BeforeValidator, Field, ValidationError
from starlette.responses import Response, StreamingResponse

from terrine_protocol import (
    Budget,
    Name,
    Outcome,
    ProjectStatus,
    Role,
    TokenCreate,
    TokenInfo,
)
from terrine_server import views
from terrine_server.admin.access import Admin, ByAdmin, Checked, Fields, Reader
from terrine_server.admin.rendering import explain_errors, page, parse_number, see_other
from terrine_server.api.ledger import CSV, csv_lines
from terrine_server.api.services import (
    EXPORTING,
    PAGES_PATH,
    VERIFYING,
    NameCursor,
    Services,
    ServicesDep,
    TokenCursor,
    TokenId,
)
from terrine_server.errors import Conflict, NotFound, ServiceError
from terrine_server.ledger import (
    EnsembleRecord,
    Ledger,
    PopulationRecord,
    ProjectRecord,
    TokenRecord,
)
from terrine_server.owner import operations
from terrine_server.owner.operations import max_fitting_epsilon, verify_project
from terrine_server.owner.sign_in import MAX_SESSION_LIFE, Session
from terrine_server.privacy import Accounts

overview_router = APIRouter(prefix=PAGES_PATH)

PROJECTS_ON_A_PAGE = 20
"""Projects on a page."""
MAX_SEARCH_CHARACTERS = 100


def _blank_to_none(value: Any) -> Any:
    """Return None for a filter that is left blank in a form."""
    return None if value == "" else value


Blank = BeforeValidator(_blank_to_none)


@dataclass(frozen=True)
class CapUse:
    """A population's cap, in units of 1e-12 of its rule's quantity.

    `spent` is what the projects on its `ensembles` have spent. `reserved` is what open projects may
    still spend.
    """

    population: PopulationRecord
    ensembles: Sequence[EnsembleRecord]
    spent: int
    added: int = 0
    """What a project that is not open yet would reserve."""

    @property
    def reserved(self) -> int:
        """What open projects may still spend."""
        return self.population.reserved - self.spent

    @property
    def taken(self) -> int:
        """What is spent or reserved, or would be."""
        return self.population.reserved + self.added

    @property
    def room_as_text(self) -> str:
        """The ε of a further project that fits."""
        found = max_fitting_epsilon(self.ensembles[0])
        if found is None:
            return "Nothing more fits."
        return f"A further project of up to about ε = {found:g} fits."

    @property
    def free(self) -> int:
        """What further projects may reserve; negative if it would be too much."""
        return self.population.cap - self.taken


@dataclass(frozen=True)
class ProjectOverview:
    """A project as the overview shows it. `most`: how many queries can fit."""

    record: ProjectRecord
    account: Budget
    most: float

    @classmethod
    def of(cls, record: ProjectRecord, shadows: Accounts | None = None) -> ProjectOverview:
        """Return a project's public account, as the API returns it, and what is left."""
        account = views.budget(record, shadows)
        return cls(record, account, record.terms.most_admitted(record.account))


@overview_router.get("")
def overview(
    request: Request,
    services: ServicesDep,
    reader: Reader,
    cursor: NameCursor = None,
    ensemble: Annotated[Name | None, Blank, Query()] = None,
    status: Annotated[ProjectStatus | None, Blank, Query()] = None,
    search: Annotated[str, Query(max_length=MAX_SEARCH_CHARACTERS)] = "",
) -> Response:
    """Show caps and projects. `search`: a part of the name or title."""
    found = services.ledger.projects.list(
        cursor or None,
        PROJECTS_ON_A_PAGE + 1,
        ensemble=ensemble,
        status=status,
        search=search.strip(),
    )
    filters = {"ensemble": ensemble, "status": status, "search": search.strip()}
    shown, maintenance = found[:PROJECTS_ON_A_PAGE], services.ledger.projects.maintenance()
    return page(
        request,
        "overview.html",
        reader,
        caps=list_caps(services.ledger),
        maintenance=maintenance,
        actors=views.actors(services.ledger, [maintenance.by] if maintenance else []),
        projects=[ProjectOverview.of(record) for record in shown],
        next=shown[-1].name if len(found) > PROJECTS_ON_A_PAGE else None,
        first=not cursor,
        filters=filters,
        query=urlencode({key: value for key, value in filters.items() if value}),
        statuses=list(ProjectStatus),
    )


@overview_router.post("/maintenance/{act}")
def maintain(
    request: Request, services: ServicesDep, sent: ByAdmin, act: Literal["begin", "end"]
) -> Response:
    """Pause all active projects, or resume those that were paused in this way."""
    change = (
        services.ledger.projects.pause_all
        if act == "begin"
        else services.ledger.projects.resume_all
    )
    change(sent.session.actor)
    return see_other(request, "", sent.session)


def list_caps(ledger: Ledger) -> list[CapUse]:
    """Return the cap of each population, by name."""
    spent, ensembles = ledger.projects.spent_of_caps(), ledger.ensembles.list()
    return [
        CapUse(
            population,
            [each for each in ensembles if each.population.id == population.id],
            spent.get(population.id, 0),
        )
        for population in ledger.ensembles.list_populations()
    ]


router = APIRouter(prefix=f"{PAGES_PATH}/projects")

CHARGES_ON_A_PAGE = 25
"""Charges on a page."""
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


tokens_router = APIRouter(prefix=f"{PAGES_PATH}/tokens")

TOKENS_ON_A_PAGE = 50
"""Tokens on a page."""
DEFAULT_DAYS = "90"
FORM_SENT_BEFORE = (
    "This form was sent before, and made the token {}, which was shown then. If that page is lost, "
    "revoke the token and create another."
)
MAX_LISTED_PROJECTS = 200
"""The form lists no more projects; the name of any other one is typed."""


@tokens_router.get("")
def tokens(
    request: Request,
    services: ServicesDep,
    reader: Reader,
    cursor: TokenCursor = None,
    project: str = "",
) -> Response:
    """List tokens, oldest first, and offer to create one."""
    return _tokens_page(request, services, reader, {"project": project}, cursor or None)


@tokens_router.post("")
def create(request: Request, services: ServicesDep, sent: ByAdmin) -> Response:
    """Create a token. Its secret is on this one page and nowhere else."""
    given, id = (
        sent.fields,
        services.sessions.idempotency_id(sent.session, sent.fields.get("once", "")),
    )
    try:
        wanted = TokenCreate.model_validate(
            {
                "role": given.get("role", ""),
                "project": given.get("project") or None,
                "label": given.get("label", ""),
                "expires_in_days": parse_number(given.get("expires_in_days", "")),
            }
        )
        made = services.tokens.create(wanted, sent.session.actor, sent.session.expires_at, id)
    except ValidationError as error:
        return _tokens_page(
            request, services, sent.session, given, problems=explain_errors(error), status=422
        )
    except Conflict as error:
        sent_before = services.ledger.tokens.find(id) is not None
        why = FORM_SENT_BEFORE.format(id) if sent_before else error.detail
        return _tokens_page(request, services, sent.session, given, problems=[why], status=409)
    except ServiceError as error:
        return _tokens_page(
            request, services, sent.session, given, problems=[error.detail], status=422
        )
    return page(
        request, "token.html", sent.session, made=made, url=str(request.base_url).rstrip("/")
    )


@tokens_router.get("/{token_id}/revoke")
def confirm_revoke(
    request: Request, services: ServicesDep, reader: Admin, token_id: TokenId
) -> Response:
    """Explain what revoking a token means, and ask for confirmation."""
    record = services.ledger.tokens.find(token_id)
    if record is None:
        raise NotFound(f"There is no token {token_id}.")
    return page(request, "revoke.html", reader, token=TokenInfo.model_validate(record))


@tokens_router.post("/{token_id}/revoke")
def revoke(request: Request, services: ServicesDep, sent: ByAdmin, token_id: TokenId) -> Response:
    """Revoke a token, and end its sessions."""
    services.ledger.tokens.revoke(token_id, sent.session.actor)
    return see_other(request, "/tokens", sent.session)


def _tokens_page(
    request: Request,
    services: Services,
    reader: Session,
    given: Fields,
    cursor: str | None = None,
    problems: tuple[str, ...] | list[str] = (),
    status: int = 200,
) -> Response:
    found: Sequence[TokenRecord] = services.ledger.tokens.list(
        after=cursor, limit=TOKENS_ON_A_PAGE + 1
    )
    sessions = services.sessions.open_sessions()
    return page(
        request,
        "tokens.html",
        reader,
        status=status,
        tokens=[TokenInfo.model_validate(each) for each in found[:TOKENS_ON_A_PAGE]],
        next=found[TOKENS_ON_A_PAGE - 1].id if len(found) > TOKENS_ON_A_PAGE else None,
        first=cursor is None,
        projects=services.ledger.projects.list_names()[:MAX_LISTED_PROJECTS],
        roles=list(Role),
        given={"role": "student", "label": "", "expires_in_days": DEFAULT_DAYS, "project": ""}
        | dict(given),
        problems=problems,
        once=secrets.token_hex(16),
        sessions=sessions,
        actors=views.actors(services.ledger, (each.who for each in sessions)),
        longest=MAX_SESSION_LIFE,
    )
