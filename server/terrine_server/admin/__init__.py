"""Pages for the people who own the budget: server-rendered, and without any script."""

from __future__ import annotations

from fastapi import APIRouter

from terrine_server.admin import (
    entrance,
    ledger,
    opening,
    overview,
    projects,
    requests,
    through_issuer,
    tokens,
)
from terrine_server.admin.access import session
from terrine_server.admin.refusals import answer
from terrine_server.admin.rendering import is_page
from terrine_server.admin.through_issuer import answers

__all__ = ["answer", "answers", "is_page", "router", "session"]

router = APIRouter(include_in_schema=False)
for screen in (entrance, overview, opening, requests, projects, tokens, ledger, through_issuer):
    router.include_router(screen.router)
