"""The HTTP contract, to the letter: types of content, methods, headers, who is told what."""

from __future__ import annotations

import re
import socket
from typing import Any

import httpx
import pytest
from caller import slug
from patience import PATIENCE_SECONDS
from server import RunningServer

from terrine_protocol import Role
from terrine_server.api.negotiation import preferred


@pytest.fixture
def ask(served: RunningServer) -> Any:
    """Send a request with a token of a role, or with none."""

    def send(method: str, path: str, role: Role | None = None, **request: Any) -> httpx.Response:
        headers = request.pop("headers", {})
        if role is not None:
            project = "study" if role is Role.STUDENT else None
            headers["Authorization"] = f"Bearer {served.token(role, project)}"
        return httpx.request(method, f"{served.url}{path}", headers=headers, **request)

    return send


@pytest.mark.parametrize("queries", ["true", '"3"', "3.0", "null", "[3]"])
def test_an_estimate_takes_whole_numbers_only(ask: Any, queries: str) -> None:
    headers = {"Content-Type": "application/json"}
    body = f'{{"queries": {queries}}}'
    reply = ask("POST", "/label/estimate", Role.STUDENT, headers=headers, content=body)
    assert slug(reply) == "invalid-request"


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("POST", "/label/estimate", Role.STUDENT),
        ("POST", "/projects", Role.ADMIN),
        ("PATCH", "/projects/study", Role.ADMIN),
        ("POST", "/tokens", Role.ADMIN),
    ],
)
def test_a_body_says_that_it_is_json_and_strangers_learn_nothing_of_it(
    ask: Any, method: str, path: str, role: Role
) -> None:
    text = {"headers": {"Content-Type": "text/plain"}, "content": '{"queries": 1}'}
    assert slug(ask(method, path, role, **text)) == "unsupported-media-type"
    for content in ("{bad", '{"queries": 1}', '{"nonsense": 1}'):
        sent = {"headers": {"Content-Type": "application/json"}, "content": content}
        assert slug(ask(method, path, **sent)) == "unauthorized"
    sent = {"headers": {"Content-Type": "application/json"}, "content": "{bad"}
    assert slug(ask(method, path, role, **sent)) == "invalid-request"


def test_head_is_get_without_a_body(ask: Any) -> None:
    for path, role in (
        ("/budget", Role.STUDENT),
        ("/ledger/study", Role.AUDITOR),
        ("/healthz", None),
    ):
        got, head = ask("GET", path, role), ask("HEAD", path, role)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == got.headers["content-type"]
        assert head.headers["content-length"] == got.headers["content-length"]
    assert ask("HEAD", "/budget").status_code == 401
    assert ask("HEAD", "/label", Role.STUDENT).status_code == 405


def test_every_reply_to_a_token_says_what_it_may_still_ask(ask: Any, served: RunningServer) -> None:
    token = {"Authorization": f"Bearer {served.token()}"}
    left = []
    for _ in range(2):
        headers = httpx.get(f"{served.url}/budget", headers=token).headers
        limit = int(headers["RateLimit-Policy"].removeprefix('"requests";q=').removesuffix(";w=60"))
        left.append(int(headers["RateLimit"].removeprefix('"requests";r=')))
        assert 0 < left[-1] < limit
    assert left[1] <= left[0]
    assert "RateLimit" not in ask("GET", "/healthz").headers


def test_a_token_makes_none_that_outlives_it(served: RunningServer) -> None:
    admin = {"Authorization": f"Bearer {served.token(Role.ADMIN, expires_in_days=2)}"}

    def create(**more: float) -> httpx.Response:
        body = {"role": "auditor", **more}
        return httpx.post(f"{served.url}/tokens", headers=admin, json=body)

    assert create(expires_in_days=1).status_code == 201
    assert slug(create(expires_in_days=3)) == "forbidden"
    usual = create()
    assert usual.status_code == 201
    own = [
        t
        for t in httpx.get(f"{served.url}/tokens", headers=admin).json()["items"]
        if t["role"] == "admin"
    ]
    assert usual.json()["expires_at"] in {token["expires_at"] for token in own}


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"200"),
        (b"GET http://elsewhere:1/healthz HTTP/1.1\r\nHost: x\r\n", b"404"),
        (b"GET /healthz\r\n", b"400"),
        (b"GET /healthz HTTP/0.9\r\nHost: x\r\n", b"400"),
        (b"GET /healthz HTTP/2.0\r\nHost: x\r\n", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n", b"400"),
    ],
)
def test_only_http_1_is_spoken(served: RunningServer, line: bytes, status: bytes) -> None:
    url = httpx.URL(served.url)
    with socket.create_connection((url.host, url.port or 80), timeout=PATIENCE_SECONDS) as wire:
        wire.sendall(line + b"Connection: close\r\n\r\n")
        reply = wire.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 " + status), reply[:200]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/csv", "text/csv"),
        ("text/*", "text/csv"),
        ("text/csv;q=0", "application/json"),
        ("text/csv; q=0.0, */*", "application/json"),
        ("text/csv, application/json", "text/csv"),
        ("application/json, text/csv", "application/json"),
        ("application/json;q=0.2, text/csv;q=0.9", "text/csv"),
        ("text/csv;q=0.3, */*;q=0.8", "application/json"),
        ("application/xml", "application/json"),
        ("text/csv;q=nonsense", "text/csv"),
        (",;q=1,", "application/json"),
    ],
)
def test_what_is_preferred(accept: str, expected: str) -> None:
    assert preferred(accept, ("application/json", "text/csv")) == expected


def test_what_no_route_sees_is_counted(served: RunningServer, ask: Any) -> None:
    def malformed() -> float:
        found = re.findall(r'terrine_problems_total{problem="malformed-http"} (\S+)', metrics())
        return float(found[0]) if found else 0.0

    def metrics() -> str:
        text: str = ask("GET", "/metrics", Role.AUDITOR).text
        return text

    before = malformed()
    url = httpx.URL(served.url)
    with socket.create_connection((url.host, url.port or 80), timeout=PATIENCE_SECONDS) as wire:
        wire.sendall(b"nonsense\r\n\r\n")
        assert wire.makefile("rb").read().startswith(b"HTTP/1.1 400")
    assert malformed() == before + 1


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("/ledger/study?limit=1", Role.AUDITOR),
        ("/log?limit=1", Role.AUDITOR),
        ("/openapi.json", None),
        ("/problems", None),
        ("/problems/rate-limited", None),
    ],
)
def test_what_does_not_change_is_sent_once(
    ask: Any, served: RunningServer, path: str, role: Role | None
) -> None:
    images = served.ensemble.public[:2].tolist()
    assert ask("POST", "/label", Role.STUDENT, json={"inputs": images}).status_code == 200
    got = ask("GET", path, role)
    tag = got.headers["etag"]
    assert got.headers["cache-control"] == "private, no-cache"
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = ask("GET", path, role, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    for other in ('"other"', tag.strip('"'), ""):
        again = ask("GET", path, role, headers={"If-None-Match": other})
        assert (again.status_code, again.content) == (200, got.content)
    if role is not None:
        assert ask("GET", path, headers={"If-None-Match": tag}).status_code == 401


@pytest.mark.parametrize("path", ["/ledger/study", "/log?limit=1000", "/ledger", "/projects/study"])
def test_what_may_change_is_not_kept(ask: Any, path: str) -> None:
    got = ask("GET", path, Role.AUDITOR, headers={"If-None-Match": "*"})
    assert (got.status_code, got.headers["cache-control"]) == (200, "no-store")
    assert "etag" not in got.headers


def test_a_page_of_a_problem_and_its_document_have_different_names(ask: Any) -> None:
    page = ask("GET", "/problems/rate-limited", headers={"Accept": "text/html"})
    known = {"Accept": "application/json", "If-None-Match": page.headers["etag"]}
    assert ask("GET", "/problems/rate-limited", headers=known).status_code == 200
