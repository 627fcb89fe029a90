"""Errors as pages in plain words; the API's stay problem documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import RedirectResponse, Response

from terrine_protocol import PROBLEMS
from terrine_server.admin.rendering import HEADERS, ROOT, is_page, rendered
from terrine_server.api.problems import problem

WORDS = {
    "not-found": "There is nothing at this address.",
    "database-unavailable": "The ledger cannot be reached. Nothing was changed. The server's "
    "operator finds the cause in its log, or with the command below.",
    "ensemble-unavailable": "The ensemble cannot vote: its files do not verify, or those who vote "
    "elsewhere do not answer. The server's operator finds the reason in its log, or with the "
    "command below.",
    "method-not-allowed": "This address does not take such a request.",
}
"""What these problems say on a page, where the API speaks of paths and headers."""
COMMANDS = {
    "ledger-corrupted": "terrine ledger verify",
    "ledger-restored": "terrine ledger restored",
    "log-not-signed": "terrine doctor",
    "database-unavailable": "terrine doctor",
    "ensemble-unavailable": "terrine doctor",
}
"""What the server's operator runs."""
OWN_WORDS = "There is no "
"""How a `not-found` begins that names what was not found."""


def answer(
    request_id: str,
    path: str,
    slug: str,
    detail: str,
    extras: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the answer to a request that failed: a page at a page's path, else a problem."""
    document = problem(request_id, path, slug, detail, extras, headers)
    if not is_page(path):
        return document
    if slug == "unauthorized":
        return RedirectResponse(f"{ROOT}/sign-in", 303, HEADERS)
    named = slug == "not-found" and detail.startswith(OWN_WORDS)
    response = rendered(
        "refusal.html",
        status=document.status_code,
        reader=None,
        title=PROBLEMS[slug].title,
        detail=detail if named else WORDS.get(slug, detail),
        command=COMMANDS.get(slug),
        request_id=request_id,
    )
    for name in ("Retry-After", "Allow", "Connection"):
        if name in document.headers:
            response.headers[name] = document.headers[name]
    return response
