"""The ledger and the administrative log, for auditors and admins: pages, CSV, verification."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import AwareDatetime, BeforeValidator
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from terrine_protocol import (
    BudgetPage,
    EntryReceipt,
    LedgerPage,
    LogEntry,
    LogPage,
    LogVerification,
    Name,
    Outcome,
    ProjectStatus,
    ReceiptPage,
    Role,
    Verification,
)
from terrine_protocol.transparency import NoteError, Tile
from terrine_server import views
from terrine_server.api import openapi
from terrine_server.api.callers import Anyone, Auditor
from terrine_server.api.paging import PAGE_ITEMS, Limit, NameCursor, NumberCursor, render_page
from terrine_server.api.services import ServicesDep
from terrine_server.api.shared import EXPORTING, VERIFYING
from terrine_server.errors import Forbidden, NotFound
from terrine_server.ledger import ChargeRecord, EnsembleRecord
from terrine_server.owner import operations
from terrine_server.owner.checkpoints import log_state
from terrine_server.sheets import CsvWriter

router = APIRouter(tags=["ledger"])

ZONE_AFTER_SPACE = re.compile(r"(?<=\d) (?=\d\d:?\d\d$)")


def _restore_plus(text: object) -> object:
    """A `+` before a zone that was not written %2B, which a query string turns into a space."""
    return ZONE_AFTER_SPACE.sub("+", text) if isinstance(text, str) and "T" in text else text


Instant = Annotated[
    AwareDatetime,
    BeforeValidator(_restore_plus),
    Query(ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(3000, 1, 1, tzinfo=UTC)),
]
CSV = "text/csv"
PaidOutcome = Literal["answered", "abstained", "reinforced", "published", "released"]
CSV_COLUMNS = [
    "project",
    "seq",
    "created_at",
    "outcome",
    "label",
    "label_name",
    "figure",
    "cost",
    "delta",
    "query_digest",
    "hash",
]


@router.get("/ledger", response_model=BudgetPage, responses=openapi.problems())
def accounts(
    services: ServicesDep,
    _: Auditor,
    cursor: NameCursor = None,
    limit: Limit = PAGE_ITEMS,
    ensemble: Annotated[Name | None, Query()] = None,
    status: Annotated[ProjectStatus | None, Query()] = None,
) -> Response:
    """List the accounts of all projects, by name, and the state of the log of their entries."""
    found = services.ledger.projects.list(
        cursor or None, limit + 1, ensemble=ensemble, status=status
    )
    log = log_state(services.ledger.tree.checkpoint(), services.readiness.policy)
    return render_page(BudgetPage, found, limit, views.budget, lambda last: last.name, log=log)


@router.get(
    "/ledger/{project}",
    response_model=LedgerPage,
    responses=openapi.CSV_RESPONSES,
)
def charges(
    request: Request,
    services: ServicesDep,
    holder: Auditor,
    project: Name,
    cursor: NumberCursor = None,
    limit: Limit = PAGE_ITEMS,
    outcome: Annotated[PaidOutcome | None, Query()] = None,
    since: Annotated[Instant | None, Query(description="Charges at or after this time.")] = None,
    until: Annotated[Instant | None, Query(description="Charges before this time.")] = None,
) -> Response:
    """List a project's charges, oldest first.

    With `Accept: text/csv`, all of them are streamed; `cursor` and `limit` then have no effect.
    """
    record = services.ledger.projects.get(project)
    paid = None if outcome is None else Outcome(outcome)
    if CSV in request.headers.get("accept", ""):
        operations.record_export(services.ledger, record.name, holder.actor)
        entries = services.ledger.entries.stream(record.name, paid, since, until)
        return StreamingResponse(
            EXPORTING.stream(holder.token_id, csv_lines(entries, record.ensemble)),
            media_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": f'attachment; filename="{record.name}.csv"'},
        )
    found = services.ledger.entries.list(
        record.name, int(cursor or 0), limit + 1, paid, since, until
    )
    view = partial(views.charge, ensemble=record.ensemble)
    return render_page(LedgerPage, found, limit, view, lambda last: str(last.seq))


@router.get("/ledger/{project}/verify", responses=openapi.problems("not-found"))
async def verify(services: ServicesDep, holder: Auditor, project: Name) -> Verification:
    """Recompute every hash, number, price and balance of a project's ledger.

    A server verifies one thing at a time; others wait.
    """
    given = services.ledger, project
    return await VERIFYING.run(holder.token_id, operations.verify_project, *given)


@router.get("/log", response_model=LogPage, responses=openapi.problems())
def administrative_log(
    services: ServicesDep,
    _: Auditor,
    cursor: NumberCursor = None,
    limit: Limit = PAGE_ITEMS,
) -> Response:
    """List what the data owner did, oldest first: who, what, when, and how it was afterwards."""
    found = services.ledger.log.list(int(cursor or 0), limit + 1)
    return render_page(LogPage, found, limit, LogEntry.model_validate, lambda last: str(last.seq))


@router.get("/log/verify", responses=openapi.problems())
async def verify_log(services: ServicesDep, holder: Auditor) -> LogVerification:
    """Recompute the administrative log, and compare the rows of today with it."""
    return await VERIFYING.run(holder.token_id, operations.verify_log, services.ledger)


def csv_lines(entries: Iterable[ChargeRecord], ensemble: EnsembleRecord) -> Iterator[str]:
    """Yield charges as CSV, a thousand at a time."""
    buffer, names = io.StringIO(), ensemble.class_names
    columns = [column for column in CSV_COLUMNS if names or column != "label_name"]
    sheet = CsvWriter(buffer)
    sheet.write_row(columns)
    for number, entry in enumerate(entries):
        shown = {
            **vars(entry),
            "created_at": entry.created_at.isoformat(),
            "label_name": names.get(entry.label),
        }
        sheet.write_row(shown[column] for column in columns)
        if number % 1000 == 999:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


transparency_router = APIRouter(tags=["transparency"])
receipts_router = APIRouter(tags=["transparency"])

# A tile never changes.
CACHED_FOR_EVER = "public, max-age=31536000, immutable"
CACHED_BRIEFLY = "public, max-age=1"
LOG_PROBLEMS = openapi.problems("not-found", "database-unavailable", token=False)


@transparency_router.get("/checkpoint", response_class=PlainTextResponse, responses=LOG_PROBLEMS)
async def checkpoint(services: ServicesDep) -> Response:
    """Return the log's last checkpoint, with the cosignatures that witnesses gave."""
    note = await services.published_log.checkpoint()
    if note is None:
        raise NotFound("No checkpoint has been signed yet.")
    return PlainTextResponse(note, headers={"Cache-Control": CACHED_BRIEFLY})


@transparency_router.get(
    "/tile/{path:path}", responses=openapi.BYTES | LOG_PROBLEMS, response_class=Response
)
async def tile(services: ServicesDep, path: str) -> Response:
    """Return hashes of the tree, or a bundle of the log's entries (c2sp.org/tlog-tiles)."""
    try:
        wanted = Tile.parse(path)
    except NoteError as error:
        raise NotFound(f"There is {error}.") from None
    return Response(
        await services.published_log.tile(wanted),
        media_type="application/octet-stream",
        headers={"Cache-Control": CACHED_FOR_EVER},
    )


@receipts_router.get("/receipts", responses=openapi.problems("not-found"))
def entries(
    services: ServicesDep,
    holder: Anyone,
    cursor: NumberCursor = None,
    limit: Limit = PAGE_ITEMS,
    project: Annotated[
        Name | None, Query(description="For auditors and admins. A student's is the token's.")
    ] = None,
) -> ReceiptPage:
    """Say where a project's entries are in the log, for whoever proves that they are there."""
    if holder.role is Role.STUDENT:
        if project not in (None, holder.project):
            raise Forbidden("A student's token shows the receipts of its own project.")
        project = holder.project
    if project is None:
        raise NotFound("Name the project: `?project=`.")
    found = services.ledger.tree.positions(project, int(cursor or 0), limit + 1)
    key = services.ledger.tree.leaf_key(project)
    items = [EntryReceipt(charge=seq, index=position) for seq, position in found[:limit]]
    more = len(found) > limit
    return ReceiptPage(
        leaf_key=None if key is None else key.hex(),
        items=items,
        next=str(items[-1].charge) if more else None,
    )
