"""Who gets in, for how long, and whose forms are acted on."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from pydantic import ValidationError
from sqlalchemy import text

from support.browser import ORIGIN, SCREENS, House, InProcess, Visitor, text_of
from support.data import DigitsEnsemble
from support.databases import SECRET_KEY
from support.ledgers import unguarded
from support.servers import CAP_EPSILON, NOISY, behind_nginx, installed
from support.wording import holds, refuses
from terrine_protocol import LogState, Role
from terrine_server.admin import audit as pages
from terrine_server.api.middleware import SMALL_BODY_BYTES
from terrine_server.app import create_app, serving
from terrine_server.errors import Unauthorized
from terrine_server.ledger import Ledger
from terrine_server.owner import sign_in
from terrine_server.owner.sign_in import MAX_IDLE, MAX_SESSION_LIFE
from terrine_server.settings import OWN_PATHS, Settings

SESSION = "__Host-terrine-session"
ACTS = (
    "/open",
    "/tokens",
    "/projects/study/pause",
    "/projects/study/resume",
    "/projects/study/close",
    "/tokens/0123456789abcdef/revoke",
)


def test_without_a_session_every_page_leads_to_the_sign_in(house: House) -> None:
    stranger = Visitor(house.app, house.send)
    for path in (*SCREENS, "/projects/none", "/projects/study/charges.csv"):
        reply = stranger.get(f"/admin{path}")
        assert (reply.status_code, reply.headers["location"]) == (303, "/admin/sign-in"), path
    for path in (*ACTS, "/projects/study/verify", "/audit/verify-log", "/sign-out"):
        reply = stranger.request("POST", f"/admin{path}", data={}, headers={"Origin": ORIGIN})
        assert (reply.status_code, reply.headers["location"]) == (303, "/admin/sign-in"), path
    token = house.token("admin")
    bearer = stranger.request("GET", "/admin", headers={"Authorization": f"Bearer {token}"})
    assert bearer.status_code == 303, "a page takes no bearer token"


def test_the_cookie_is_for_this_host_alone_and_opens_no_route_of_the_api(house: House) -> None:
    visitor = Visitor(house.app, house.send)
    reply = visitor.sign_in(house.token("admin"))
    cookie = next(c for c in reply.headers.get_list("set-cookie") if c.startswith(SESSION))
    flags = {flag.strip().lower() for flag in cookie.split(";")[1:]}
    assert flags == {"path=/", "secure", "httponly", "samesite=strict"}
    assert visitor.get("/admin").status_code == 200
    assert visitor.get("/ledger").status_code == 401
    assert "digits" in visitor.get("/admin").text
    assert f"{CAP_EPSILON:g}" in text_of(visitor.get("/admin"))


def test_a_session_is_of_all_replicas(house: House, admin: Visitor) -> None:
    replica = create_app(house.app.state.services.settings)
    admin.app = replica
    assert admin.get("/admin").status_code == 200
    admin.post("/admin/sign-out")
    admin.app = house.app
    assert admin.get("/admin").status_code == 303


@pytest.mark.parametrize("edit", ["subject = 'f00df00df00df00d'", "action = 'spend-shown'"])
def test_no_edit_of_the_log_revives_a_session(
    tmp_path: Path, database_url: str, digits_ensemble: DigitsEnsemble, edit: str
) -> None:
    """Whoever can write to the database hides that somebody signed out."""
    settings, engine = installed(tmp_path / "data", database_url, digits_ensemble)
    ledger = Ledger(engine, SECRET_KEY)
    with InProcess() as send:
        house = House(create_app(settings), ledger, send, digits_ensemble)
        visitor = house.visitor()
        kept = dict(visitor.cookies)
        visitor.post("/admin/sign-out")
        other = house.visitor()
        out = [e.seq for e in ledger.log.list(limit=100) if e.action == "signed-out"]
        with unguarded(database_url, with_key=False) as connection:
            connection.execute(text(f"UPDATE administrative_log SET {edit} WHERE seq = {out[0]}"))
        visitor.cookies = dict(kept)
        assert visitor.get("/admin").status_code == 303, "what was read is known"
        assert other.get("/admin").status_code == 200
        for fresh in (visitor, other):
            fresh.app = create_app(settings)
            fresh.cookies |= kept if fresh is visitor else {}
            assert fresh.get("/admin").status_code == 503, "an edited log lets nobody in"
    assert not ledger.verifier.verify_log().ok
    engine.dispose()


def test_signing_out_ends_every_copy_of_the_cookie_and_is_logged(
    house: House, admin: Visitor
) -> None:
    copy = dict(admin.cookies)
    signed_in, session, actor = house.last_logged
    assert signed_in == "signed-in"
    admin.post("/admin/sign-out")
    assert SESSION not in admin.cookies
    assert house.last_logged == ("signed-out", session, actor)
    admin.cookies = copy
    assert admin.get("/admin").status_code == 303
    holds(text_of(admin.get("/admin/sign-in")), "signed")


def test_a_session_ends_with_its_token(house: House) -> None:
    token = house.token("admin")
    visitor = Visitor(house.app, house.send)
    visitor.sign_in(token)
    assert visitor.get("/admin").status_code == 200
    house.ledger.tokens.revoke(token.split("_")[1])
    assert visitor.get("/admin").status_code == 303
    holds(text_of(visitor.get("/admin/sign-in")), "revoked")
    brief, seconds = Visitor(house.app, house.send), 2
    while brief.sign_in(house.token("admin", expires_in_days=seconds / 86_400)).status_code != 303:
        seconds *= 3  # it expired before it was used
    while (reply := brief.get("/admin/log")).status_code == 200:
        pass
    assert reply.status_code == 303
    holds(text_of(brief.get("/admin/sign-in")), "expired")


@pytest.mark.parametrize(("after", "steps"), [(MAX_IDLE, 1), (MAX_SESSION_LIFE, 60)])
def test_a_session_ends_unused_and_also_if_it_is_always_used(
    house: House, monkeypatch: pytest.MonkeyPatch, after: timedelta, steps: int
) -> None:
    now = [datetime.now(UTC)]

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> Clock:
            return cls.fromtimestamp(now[0].timestamp(), UTC)

    monkeypatch.setattr(sign_in, "datetime", Clock)
    service = house.app.state.services.sessions
    session = service.sign_in(house.token("admin"), "here")
    for _ in range(steps):
        cookie = service.cookie(session)
        now[0] += after / steps - timedelta(seconds=1)
        session = service.resume(cookie)
        now[0] += timedelta(seconds=1)
    now[0] += timedelta(seconds=1)
    with refuses(Unauthorized, "age"):
        service.resume(cookie)


def test_an_altered_cookie_is_none(house: House, admin: Visitor) -> None:
    good = admin.cookies[SESSION]
    other = house.token("admin").split("_")[1]
    parts = good.split(".")
    later = str(int(parts[3]) + 1)
    for bad in (
        "",
        "x",
        good[:-1] + ("0" if good[-1] != "0" else "1"),
        ".".join([parts[0], other, *parts[2:]]),
        ".".join([*parts[:3], later, parts[4]]),
    ):
        admin.cookies[SESSION] = bad
        assert admin.get("/admin").status_code == 303, bad
    admin.cookies[SESSION] = good
    assert admin.get("/admin").status_code == 200


@pytest.mark.usefixtures("no_refill")
def test_students_and_scrapers_do_not_get_in_and_guesses_are_limited_as_for_the_api(
    house: House,
) -> None:
    visitor = Visitor(house.app, house.send)
    visitor.get("/admin/sign-in")
    for role in (Role.STUDENT, Role.METRICS):
        refused = visitor.post("/admin/sign-in", token=house.token(role))
        assert refused.status_code == 403
        holds(text_of(refused), role, "auditors")
    allowed = house.app.state.services.settings.failed_logins_per_minute
    seen = [visitor.post("/admin/sign-in", token="guess").status_code for _ in range(allowed)]
    assert set(seen) == {403, 429}
    limited = visitor.post("/admin/sign-in", token="guess")
    assert limited.status_code == 429
    assert int(limited.headers["retry-after"]) >= 1
    assert limited.headers["content-type"].startswith("text/html")
    assert visitor.sign_in(house.token("admin")).status_code == 303, "a valid token is let in"


def test_the_sign_in_form_is_tied_to_the_browser_that_fetched_it(house: House) -> None:
    token, visitor = house.token("admin"), Visitor(house.app, house.send)
    visitor.get("/admin/sign-in")
    key, visitor.cookies = visitor.last_key, {}
    without = visitor.post("/admin/sign-in", key=key, token=token)
    assert without.status_code == 403
    assert "https" in text_of(without)
    assert visitor.post("/admin/sign-in", key=key, token=token).status_code == 403
    assert SESSION not in visitor.cookies


def test_no_form_is_acted_on_that_is_not_of_this_session_and_this_server(
    house: House, admin: Visitor
) -> None:
    house.open_project("forged", epsilon=2.0)
    other = house.visitor()
    path, before = "/admin/projects/forged/close", house.last_logged
    for key in ("", "0" * 64, other.last_key):
        assert admin.post(path, key=key).status_code == 403, key
    good = {"form_key": admin.last_key}
    for origin in ({}, {"Origin": "null"}, {"Origin": "https://evil.example"}):
        assert admin.request("POST", path, data=good, headers=origin).status_code == 403, origin
    headers = {"Origin": ORIGIN}
    assert admin.request("POST", path, json=good, headers=headers).status_code == 415
    twice = f"form_key={admin.last_key}&form_key={admin.last_key}"
    headers |= {"Content-Type": "application/x-www-form-urlencoded"}
    assert admin.request("POST", path, content=twice, headers=headers).status_code == 422
    assert admin.request("POST", path, content=b"\xff", headers=headers).status_code == 422
    assert house.ledger.projects.get("forged").status == "active"
    assert house.last_logged == before
    admin.get("/admin")
    assert admin.post(path).status_code == 303
    assert house.ledger.projects.get("forged").status == "closed"


def test_an_auditor_sees_everything_and_changes_nothing(house: House, auditor: Visitor) -> None:
    for path in SCREENS:
        reply = auditor.get(f"/admin{path}")
        asks = "open" in path or "close" in path
        assert reply.status_code == (403 if asks else 200), path
        forms = set(re.findall(r'method="post" action="([^"]*)"', reply.text))
        changing = {
            form
            for form in forms
            if not re.search(r"/(sign-out|verify(-log|-tree)?|dossier)$", form)
        }
        assert not changing, path
    before = house.last_logged
    for path in ACTS:
        refused = auditor.post(f"/admin{path}", role="admin", action="open")
        assert refused.status_code == 403, path
        holds(text_of(refused), "changes")
    assert house.last_logged == before
    assert house.ledger.projects.get("study").status == "active"
    for path in ("/projects/study/verify", "/audit/verify-log"):
        assert "intact" in text_of(auditor.post(f"/admin{path}"))


PREFIX = "/hospital/terrine"
IN_MENU = ("", "/open", "/tokens", "/ensembles", "/log", "/audit")
LINK = re.compile(r'(?:href|action)="([^"]*)"')


def below(house: House, **chosen: str) -> Settings:
    """Settings of a replica that a proxy has below a prefix."""
    given = house.app.state.services.settings.model_dump(exclude_unset=True)
    return Settings(**{**given, "path_prefix": PREFIX, **chosen})


@pytest.fixture(params=["passed on", "taken off", "by nginx"])
def beneath(
    request: pytest.FixtureRequest, house: House, tmp_path: Path
) -> Iterator[Callable[[], Visitor]]:
    """Makes visitors of a service whose prefix its proxy passes on, or takes off."""
    if request.param != "by nginx":
        app, taken = create_app(below(house)), PREFIX if request.param == "taken off" else ""
        yield lambda: Visitor(app, house.send, taken)
        return
    with (
        serving(below(house, forwarded_allow_ips="127.0.0.1")) as url,
        behind_nginx(url, PREFIX, tmp_path) as way,
        httpx.Client(transport=way, base_url=ORIGIN) as http,
    ):

        def send(_: object, method: str, path: str, token: str = "", **sent: Any) -> httpx.Response:
            bearer = {"Authorization": f"Bearer {token}"} if token else {}
            return http.request(method, path, headers=sent.pop("headers", {}) | bearer, **sent)

        yield lambda: Visitor(house.app, send)


def test_below_a_prefix_pages_lead_nowhere_else(
    house: House, beneath: Callable[[], Visitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "log_state", lambda *_: LogState(size=1, cosigned={}, missing=[]))
    root, visitor = f"{PREFIX}/admin", beneath()
    for screen in SCREENS:
        reply = visitor.get(root + screen)
        assert (reply.status_code, reply.headers["location"]) == (303, f"{root}/sign-in")
    visitor.get(f"{root}/sign-in")
    token = house.token("admin")
    forged = {"form_key": visitor.last_key, "token": token}
    for origin in ("http://elsewhere", f"{ORIGIN}.elsewhere", ""):
        reply = visitor.request("POST", f"{root}/sign-in", data=forged, headers={"Origin": origin})
        assert reply.status_code == 403, origin
    reply = visitor.post(f"{root}/sign-in", token=token)
    assert (reply.status_code, reply.headers["location"]) == (303, root)

    links: set[str] = set()
    for screen in (*SCREENS, "/nothing"):
        reply = visitor.get(root + screen)
        assert reply.status_code == (404 if screen == "/nothing" else 200)
        found = [html.unescape(link) for link in LINK.findall(reply.text)]
        links |= {urljoin(root + screen, link).partition("#")[0] for link in found}
        assert reply.text.count('aria-current="page"') == (screen.partition("?")[0] in IN_MENU)
    assert f"{PREFIX}/checkpoint" in links
    for link in links - {f"{root}/nothing", f"{PREFIX}/checkpoint"}:
        assert link.startswith(f"{PREFIX}/"), link
        assert visitor.get(link).status_code in (200, 405), link

    for act in ("pause", "resume"):
        reply = visitor.post(f"{root}/projects/study/{act}")
        assert (reply.status_code, reply.headers["location"]) == (303, f"{root}/projects/study")
    visitor.get(f"{root}/tokens")
    made = text_of(
        visitor.post(f"{root}/tokens", role="student", project="study", expires_in_days="9")
    )
    assert f"TERRINE_URL={ORIGIN}{PREFIX} " in made
    reply = visitor.post(f"{root}/sign-out")
    assert (reply.status_code, reply.headers["location"]) == (303, f"{root}/sign-in")
    assert visitor.get(root).status_code == 303


def test_below_a_prefix_so_is_all_that_the_api_names(
    house: House, beneath: Callable[[], Visitor]
) -> None:
    api = beneath()
    (server,) = api.get(f"{PREFIX}/openapi.json").json()["servers"]
    assert server == {"url": PREFIX}
    refused = api.get(f"{PREFIX}/budget").json()
    assert refused["instance"] == f"{PREFIX}/budget"
    assert refused["type"] == f"{PREFIX}/problems/unauthorized"
    assert api.get(refused["type"]).status_code == 200
    assert api.get(f"{PREFIX}/healthz").status_code == 200
    bearer = {"Authorization": f"Bearer {house.token('admin')}"}
    name = f"api-{len(house.ledger.projects.list(limit=100))}"
    terms = {"mechanism": NOISY, "epsilon": 0.5, "delta": 1e-6}
    wanted = {"name": name, "ensemble": "digits", **terms}
    opened = api.request("POST", f"{PREFIX}/projects", json=wanted, headers=bearer)
    assert (opened.status_code, opened.headers["location"]) == (201, f"{PREFIX}/projects/{name}")
    assert api.request("GET", opened.headers["location"], headers=bearer).json()["name"] == name
    large = {"inputs": [[[0] * 8] * 8] * 500}
    assert len(json.dumps(large)) > SMALL_BODY_BYTES
    bearer = {"Authorization": f"Bearer {house.token('student', name)}"}
    reply = api.request("POST", f"{PREFIX}/label", json=large, headers=bearer)
    assert reply.status_code == 200, "the limit of other requests is below it"


def test_two_services_of_one_host_keep_their_sessions_apart(house: House) -> None:
    """A browser has one cookie of a name for the whole host."""
    first, second = (
        Visitor(create_app(below(house, path_prefix=prefix)), house.send)
        for prefix in ("/first", "/second")
    )
    second.cookies = first.cookies
    for visitor, prefix in ((first, "/first"), (second, "/second"), (first, "/first")):
        visitor.get(f"{prefix}/admin/sign-in")
        visitor.post(f"{prefix}/admin/sign-in", token=house.token("admin"))
        assert visitor.get(f"{prefix}/admin").status_code == 200
    assert second.get("/second/admin").status_code == 200
    first.get("/first/admin")
    first.post("/first/admin/sign-out")
    assert first.get("/first/admin").status_code == 303
    assert second.get("/second/admin").status_code == 200


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("terrine", "slash"),
        ("https://terrine.example.org", "slash"),
        ("/a//b", "slash"),
        ("/a.b", "letters"),
        ("/a/../b", "letters"),
        ('/a"b', "letters"),
        ("/admin", "/admin"),
        ("/label/here", "/label"),
    ],
)
def test_a_prefix_is_a_path_of_nobody_else(house: House, given: str, says: str) -> None:
    with refuses(ValidationError, "TERRINE_PATH_PREFIX", says):
        below(house, path_prefix=given)
    assert below(house, path_prefix="/terrine/").path_prefix == "/terrine"
    assert below(house, path_prefix="/").path_prefix == ""


def test_no_prefix_begins_as_a_path_of_our_own(house: House) -> None:
    paths = {*house.app.openapi()["paths"], "/admin", "/openapi.json"}
    assert {path.split("/")[1] for path in paths} == OWN_PATHS
