"""Ensembles, the administrative log, and verifying the ledger: what an auditor looks at."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from terrine_server import views
from terrine_server.admin.access import Checked, Reader
from terrine_server.admin.projects import list_caps
from terrine_server.admin.rendering import page
from terrine_server.api.services import PAGES_PATH, VERIFYING, NameCursor, ServicesDep
from terrine_server.errors import InvalidQuery
from terrine_server.owner import operations
from terrine_server.owner.checkpoints import log_state, own_policy
from terrine_server.owner.operations import find_largest_return

router = APIRouter(prefix=PAGES_PATH)

ROWS_ON_A_PAGE = 40
"""Rows on a page."""


@router.get("/ensembles")
def ensembles(request: Request, services: ServicesDep, reader: Reader) -> Response:
    """Show each population with its cap, and its ensembles, and whether their files verify."""
    found = [
        (
            cap,
            find_largest_return(services.ledger, cap.population),
            [
                (each, views.ensemble_account(each, services.available(each)))
                for each in cap.ensembles
            ],
        )
        for cap in list_caps(services.ledger)
    ]
    return page(request, "ensembles.html", reader, populations=found)


@router.get("/log")
def administrative_log(
    request: Request,
    services: ServicesDep,
    reader: Reader,
    before: Annotated[int | None, Query(ge=1, le=10**18)] = None,
) -> Response:
    """Show who did what, newest first."""
    found = services.ledger.log.list(limit=ROWS_ON_A_PAGE + 1, newest=True, before_seq=before)[::-1]
    return page(
        request,
        "log.html",
        reader,
        entries=found[:ROWS_ON_A_PAGE],
        actors=views.actors(services.ledger, (entry.actor for entry in found)),
        next=found[ROWS_ON_A_PAGE - 1].seq if len(found) > ROWS_ON_A_PAGE else None,
        before=before,
    )


@router.get("/audit")
def audit(
    request: Request, services: ServicesDep, reader: Reader, cursor: NameCursor = None
) -> Response:
    """Show the current end of every hash chain, and offer to verify it."""
    found = services.ledger.projects.list(cursor or None, ROWS_ON_A_PAGE + 1)
    return page(
        request,
        "audit.html",
        reader,
        projects=found[:ROWS_ON_A_PAGE],
        next=found[ROWS_ON_A_PAGE - 1].name if len(found) > ROWS_ON_A_PAGE else None,
        first=not cursor,
        last=next(iter(services.ledger.log.list(limit=1, newest=True)), None),
        log=log_state(services.ledger.tree.checkpoint(), services.readiness.policy),
    )


@router.post("/audit/verify-log")
async def verify_log(request: Request, services: ServicesDep, sent: Checked) -> Response:
    """Recompute the administrative log, and compare the current rows with it."""
    found = await VERIFYING.run(sent.session.token_id, operations.verify_log, services.ledger)
    return page(
        request,
        "verified.html",
        sent.session,
        name=None,
        found=found,
        now=None,
    )


@router.post("/audit/verify-tree")
async def verify_tree(request: Request, services: ServicesDep, sent: Checked) -> Response:
    """Compare the ledger with the transparency log, and with a checkpoint that somebody kept."""
    policy = own_policy(services.settings)
    if policy is None:
        raise InvalidQuery(
            "This server has no key of a transparency log, nor a policy that names one. "
            "See docs/ledger.md."
        )
    kept = sent.fields.get("checkpoint", "").replace("\r\n", "\n").strip()
    earlier = {"that you kept": f"{kept}\n"} if kept else {}
    given = policy, earlier
    found = await VERIFYING.run(sent.session.token_id, services.ledger.tree.check, *given)
    return page(request, "tree.html", sent.session, found=found, kept=bool(kept))
