"""The HTTP contract, to the letter: types of content, methods, headers, who is told what."""

from __future__ import annotations

import re
import socket
from typing import Any

import httpx
import pytest

from support.clients import slug
from support.processes import PATIENCE_SECONDS
from support.servers import RunningServer
from terrine_protocol import Role


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


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
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


@pytest.mark.parametrize("path", ["/ledger/study", "/log?limit=1", "/ledger", "/projects/study"])
def test_replies_are_not_kept(ask: Any, path: str) -> None:
    got = ask("GET", path, Role.AUDITOR)
    assert (got.status_code, got.headers["cache-control"]) == (200, "no-store")
