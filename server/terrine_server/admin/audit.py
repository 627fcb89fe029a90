"""The page of an auditor: where every chain ends, and verifying all of it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from terrine_server.admin.access import Checked, Reader
from terrine_server.admin.rendering import page
from terrine_server.api.paging import NameCursor
from terrine_server.api.paths import PAGES_PATH
from terrine_server.api.services import ServicesDep
from terrine_server.api.shared import VERIFYING
from terrine_server.errors import InvalidQuery
from terrine_server.owner import operations
from terrine_server.owner.checkpoints import log_state, own_policy

router = APIRouter(prefix=PAGES_PATH)

# Projects on a page.
PROJECTS_ON_A_PAGE = 40


@router.get("/audit")
def audit(
    request: Request, services: ServicesDep, reader: Reader, cursor: NameCursor = None
) -> Response:
    """Show the current end of every hash chain, and offer to verify it."""
    found = services.ledger.projects.list(cursor or None, PROJECTS_ON_A_PAGE + 1)
    return page(
        request,
        "audit.html",
        reader,
        projects=found[:PROJECTS_ON_A_PAGE],
        next=found[PROJECTS_ON_A_PAGE - 1].name if len(found) > PROJECTS_ON_A_PAGE else None,
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
