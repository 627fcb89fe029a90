"""Pages for the people who own the budget: server-rendered, and without any script."""

from __future__ import annotations

from fastapi import APIRouter

from terrine_models.addons import load_added
from terrine_server.admin import ledger, opening, projects, sign_in
from terrine_server.admin.access import session_check
from terrine_server.admin.rendering import answer_failure

__all__ = ["answer_failure", "router", "session_check"]

router = APIRouter(include_in_schema=False)
for screens in (
    *load_added("pages"),
    sign_in.router,
    projects.overview_router,
    opening.router,
    projects.router,
    projects.tokens_router,
    ledger.router,
):
    router.include_router(screens)
