"""All lists have the same paging; two still accept requests without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.clients import Caller, slug
from support.databases import SQLITE_BY_DAY
from support.servers import RunningServer
from support.wording import holds

Call = Callable[..., Caller]
PROJECTS = ["a", "b", "c", "study", "z"]
PATHS = {"/ledger": "project", "/ledger/study": "seq", "/projects": "name", "/tokens": "id"}
LOG = {"/log": "seq"}
"""Every paged list, and the name of one of its items."""
MALFORMED = {
    "/ledger": ["A", "-a", "a\x00", "a" * 65],
    "/ledger/study": ["x", "-1", "1.0", "9" * 19],
    "/projects": ["A", "-a", "a\x00", "a" * 65],
    "/tokens": ["x", "0123456789abcde", "0123456789ABCDEF"],
}


@pytest.fixture
def admin(terrine_server: RunningServer, call: Call) -> Caller:
    """A caller who may read every list; each list has five items."""
    for name in PROJECTS:
        terrine_server.open_project(name)
    call().label(terrine_server.ensemble.public[:5])
    for _ in range(3):
        terrine_server.token("auditor")
    return call("admin")


def items(admin: Caller, path: str, **query: Any) -> list[dict[str, Any]]:
    """Return all items of a list, following its cursors."""
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        reply = admin.http.get(path, params=query | {"cursor": cursor})
        assert reply.status_code == 200, reply.text
        page = reply.json()
        assert list(page)[:2] == ["items", "next"]
        assert 0 < len(page["items"]) <= query["limit"]
        assert page["items"][0] not in found
        found += page["items"]
        cursor = page["next"]
    return found


@SQLITE_BY_DAY
@pytest.mark.usefixtures("each_database_url")
def test_every_list_is_read_page_by_page(admin: Caller) -> None:
    for path, key in (PATHS | LOG).items():
        whole = items(admin, path, limit=1000)
        assert (len(whole) == 5) == (path not in LOG), path
        assert len({item[key] for item in whole}) == len(whole), path
        for limit in (1, 2, 4, 5):
            assert items(admin, path, limit=limit) == whole, path


def test_invalid_cursors_and_limits_are_refused_alike(admin: Caller) -> None:
    for path in PATHS:
        for cursor in MALFORMED[path]:
            refused = admin.http.get(path, params={"cursor": cursor})
            assert slug(refused) == "invalid-request", path
            holds(refused.json()["detail"], "query.cursor", "`next`", "empty")
        for limit in (0, 1001, "x"):
            refused = admin.http.get(path, params={"cursor": "", "limit": limit})
            assert slug(refused) == "invalid-request", path
            assert refused.json()["detail"].startswith("query.limit: ")


def test_filters_apply_to_every_page(admin: Caller) -> None:
    admin.http.patch("/projects/b", json={"status": "paused"})
    admin.http.patch("/projects/z", json={"status": "paused"})
    for path in ("/projects", "/ledger"):
        paused = items(admin, path, limit=1, status="paused")
        assert [item[PATHS[path]] for item in paused] == ["b", "z"]
        nowhere = admin.http.get(path, params={"cursor": "", "ensemble": "nowhere"})
        assert (nowhere.json()["items"], nowhere.json()["next"]) == ([], None)


def test_without_a_cursor_a_list_begins_with_its_first_page(admin: Caller) -> None:
    for path in ("/projects", "/tokens"):
        first = admin.http.get(path, params={"limit": 2})
        assert first.json() == admin.http.get(path, params={"limit": 2, "cursor": ""}).json()
        assert [len(first.json()["items"]), first.json()["next"] is None] == [2, False]


def test_an_unknown_token_is_not_a_cursor(admin: Caller) -> None:
    unknown = admin.http.get("/tokens", params={"cursor": "0123456789abcdef"})
    assert slug(unknown) == "not-found"
