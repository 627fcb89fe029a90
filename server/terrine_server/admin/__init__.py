"""Pages for the people who own the budget: server-rendered, and without any script."""

from __future__ import annotations

from fastapi import APIRouter

from terrine_models.addons import load_added
from terrine_server.admin import (
    audit,
    ensembles,
    log,
    opening,
    overview,
    project,
    sign_in,
    tokens,
)
from terrine_server.admin.access import session_check
from terrine_server.admin.rendering import answer_failure

__all__ = ["answer_failure", "router", "session_check"]

router = APIRouter(include_in_schema=False)
for screens in (
    *load_added("pages"),
    sign_in.router,
    overview.router,
    opening.router,
    project.router,
    tokens.router,
    ensembles.router,
    log.router,
    audit.router,
):
    router.include_router(screens)
