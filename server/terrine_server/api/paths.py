"""Paths: those that more than their route must know, with and without a proxy's prefix."""

from __future__ import annotations

from starlette.routing import get_route_path  # type: ignore[attr-defined]
from starlette.types import Scope

PAGES_PATH = "/admin"
LABEL_PATH = "/label"
METRICS_PATH = "/metrics"
USED_UP_PATH = "/label/used-up"


def is_page(path: str) -> bool:
    """Whether a path is one of the owner's pages, rather than of the API."""
    return path == PAGES_PATH or path.startswith(f"{PAGES_PATH}/")


def route_path(scope: Scope) -> str:
    """Return the path of a request as routes have it: without the prefix, if a proxy passed it."""
    path: str = get_route_path(scope)
    return path


def public_path(scope: Scope, path: str) -> str:
    """Return where clients find a path that a route has: below the prefix."""
    return f"{scope.get('root_path', '')}{path}"
