"""The transparency log for everybody, as tiles, and where an entry is in it, for its readers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import PlainTextResponse, Response

from terrine_protocol import EntryReceipt, Name, ReceiptPage, Role
from terrine_protocol.transparency.notes import NoteError
from terrine_protocol.transparency.tiles import Tile
from terrine_server.api import openapi, paging
from terrine_server.api.paging import Limit, NumberCursor
from terrine_server.api.services import Anyone, ServicesDep
from terrine_server.errors import Forbidden, NotFound

router = APIRouter(tags=["transparency"])
receipts = APIRouter(tags=["transparency"])

FOR_EVER = "public, max-age=31536000, immutable"
"""A tile never changes."""
BRIEFLY = "public, max-age=1"
PROBLEMS = openapi.problems("not-found", "database-unavailable", token=False)


@router.get("/checkpoint", response_class=PlainTextResponse, responses=PROBLEMS)
async def checkpoint(services: ServicesDep) -> Response:
    """Return the log's last checkpoint, with the cosignatures that witnesses gave."""
    note = await services.published_log.checkpoint()
    if note is None:
        raise NotFound("No checkpoint has been signed yet.")
    return PlainTextResponse(note, headers={"Cache-Control": BRIEFLY})


@router.get("/tile/{path:path}", responses=PROBLEMS, response_class=Response)
async def tile(services: ServicesDep, path: str) -> Response:
    """Return hashes of the tree, or a bundle of the log's entries (c2sp.org/tlog-tiles)."""
    try:
        wanted = Tile.parse(path)
    except NoteError as error:
        raise NotFound(f"There is {error}.") from None
    return Response(
        await services.published_log.tile(wanted),
        media_type="application/octet-stream",
        headers={"Cache-Control": FOR_EVER},
    )


@receipts.get("/receipts", responses=openapi.problems("not-found"))
def entries(
    services: ServicesDep,
    holder: Anyone,
    cursor: NumberCursor = None,
    limit: Limit = paging.PAGE,
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
    found = services.ledger.positions(project, int(cursor or 0), limit + 1)
    key = services.ledger.leaf_key(project)
    items = [EntryReceipt(charge=seq, index=position) for seq, position in found[:limit]]
    more = len(found) > limit
    return ReceiptPage(
        leaf_key=None if key is None else key.hex(),
        items=items,
        next=str(items[-1].charge) if more else None,
    )
