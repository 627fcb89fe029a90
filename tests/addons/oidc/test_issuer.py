"""Signing in through an issuer: who gets in, as what, and who does not."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio import to_thread
from pydantic import ValidationError
from structlog.testing import capture_logs

from support.browser import (
    CLIENT,
    SECRET,
    Claims,
    House,
    LocalIssuer,
    Signer,
    Visitor,
    local_issuer,
    text_of,
    with_alg_none,
    with_shared_secret,
)
from support.processes import PATIENCE_SECONDS
from support.wording import holds, refuses
from terrine_addons.oidc import issuer as through
from terrine_addons.oidc.issuer import check_sign_in
from terrine_addons.oidc.settings import OidcSettings
from terrine_protocol import Role
from terrine_server.app import create_app
from terrine_server.doctor import Severity
from terrine_server.owner import sign_in as sessions

PUBLIC = "https://terrine.example"
LDAP = "CN=privacy-board,OU=groups,DC=hospital"
SESSION, FLOW = "__Host-terrine-session", "__Host-terrine-flow"


@pytest.fixture
def issuer() -> Iterator[LocalIssuer]:
    with local_issuer() as made:
        yield made


@pytest.fixture
def visitor(house: House, issuer: LocalIssuer, tmp_path: Path) -> Visitor:
    return visitor_of(house, issuer, tmp_path)


def visitor_of(house: House, issuer: LocalIssuer, directory: Path, prefix: str = "") -> Visitor:
    """Somebody with a browser, at a replica that admits through the issuer, below a prefix."""
    (directory / "secret").write_text(f"{SECRET}\n")
    chosen = {
        "oidc_issuer": issuer.url,
        "oidc_client_id": CLIENT,
        "oidc_client_secret_file": directory / "secret",
        "public_url": PUBLIC + prefix,
        "path_prefix": prefix,
        "oidc_admins": ["owners", "privacy-admins", LDAP],
        "oidc_auditors": "auditors",
        "oidc_plain_http": True,
    }
    given = house.app.state.services.settings.model_dump(exclude_unset=True)
    return Visitor(create_app(OidcSettings(**given | chosen)), house.send)


def answer(visitor: Visitor) -> str:
    """Go to the issuer and back; return the address of its answer."""
    there = visitor.get("/admin/oidc/start")
    assert there.status_code == 303
    back = httpx.get(there.headers["location"])
    assert back.headers["location"].startswith(f"{PUBLIC}/admin/oidc/callback?")
    return back.headers["location"].removeprefix(PUBLIC)


def sign_in(visitor: Visitor) -> httpx.Response:
    reply = visitor.get(answer(visitor))
    if SESSION in visitor.cookies:
        visitor.get("/admin")
    return reply


def test_whoever_the_issuer_knows_gets_a_session_in_their_own_name(
    house: House, issuer: LocalIssuer, visitor: Visitor
) -> None:
    assert issuer.url.removeprefix("http://") in text_of(visitor.get("/admin/sign-in"))
    assert "issuer" not in text_of(Visitor(house.app, house.send).get("/admin/sign-in"))
    reply = visitor.get(answer(visitor))
    assert reply.status_code == 200, "a redirect from another site brings no strict cookie"
    assert 'content="0; url=/admin"' in reply.text
    cookie = next(c for c in reply.headers.get_list("set-cookie") if c.startswith(SESSION))
    flags = {flag.strip().lower() for flag in cookie.split(";")[1:]}
    assert flags == {"path=/", "secure", "httponly", "samesite=strict"}
    assert FLOW not in visitor.cookies
    who = "oidc:248289761001 (Ada L.)"
    (entry,) = house.ledger.log.list(limit=1, newest=True)
    assert (entry.action, entry.actor) == ("signed-in", who)
    assert entry.detail == {"role": "admin", "issuer": issuer.url}
    holds(text_of(visitor.get("/admin")), "admin", "Ada")
    house.open_project("through-issuer", epsilon=2.0)
    assert visitor.post("/admin/projects/through-issuer/pause").status_code == 303
    assert house.last_logged == ("project-paused", "through-issuer", who)
    copy = dict(visitor.cookies)
    visitor.post("/admin/sign-out")
    assert house.last_logged == ("signed-out", entry.subject, who)
    visitor.cookies = copy
    assert visitor.get("/admin").status_code == 303
    assert house.ledger.verifier.verify_log().ok


def test_below_a_prefix_the_issuer_sends_browsers_back_to_it(
    house: House, issuer: LocalIssuer, tmp_path: Path
) -> None:
    visitor = visitor_of(house, issuer, tmp_path, "/terrine")
    assert 'href="/terrine/admin/oidc/start"' in visitor.get("/terrine/admin/sign-in").text
    there = visitor.get("/terrine/admin/oidc/start").headers["location"]
    back = httpx.get(there).headers["location"]
    assert back.startswith(f"{PUBLIC}/terrine/admin/oidc/callback?")
    reply = visitor.get(back.removeprefix(PUBLIC))
    assert 'content="0; url=/terrine/admin"' in reply.text
    holds(text_of(visitor.get("/terrine/admin")), "admin", "Ada")


def test_the_claim_decides_the_role_and_without_one_nobody_gets_in(
    house: House, issuer: LocalIssuer, visitor: Visitor
) -> None:
    issuer.groups = ["auditors", "everybody"]
    assert "auditor" in text_of(sign_in(visitor))
    assert visitor.post("/admin/projects/study/pause").status_code == 403
    issuer.groups, visitor.cookies = ["auditors", LDAP], {}
    assert "admin" in text_of(sign_in(visitor))
    chosen: tuple[list[Any] | None, ...] = (
        None,
        [],
        ["everybody"],
        [""],
        ["privacy-admins, owners"],
        [LDAP.lower()],
        *([part] for part in LDAP.split(",")),
        [{"a": 1}, None, 3],
    )
    for groups in chosen:
        issuer.groups, visitor.cookies = groups, {}
        refused = sign_in(visitor)
        assert (refused.status_code, SESSION in visitor.cookies) == (403, False)
        holds(text_of(refused), "role")


def claims(**changed: Any) -> Callable[[LocalIssuer], None]:
    return lambda issuer: setattr(issuer, "changed", changed)


def signed(how: Callable[[LocalIssuer], Callable[[Claims], str]]) -> Callable[[LocalIssuer], None]:
    return lambda issuer: setattr(issuer, "token", how(issuer))


FORGED = [
    claims(aud="another"),
    claims(aud=["another"]),
    claims(aud=[CLIENT, "another"]),
    claims(aud=[CLIENT, "another"], azp="another"),
    claims(azp="another"),
    claims(azp=[CLIENT, "another"]),
    claims(iss="https://another.example"),
    claims(nonce="0" * 64),
    claims(nonce=None),
    claims(exp=None),
    claims(iat=None),
    claims(sub=None),
    claims(sub="with a space"),
    claims(sub=["248289761001"]),
    signed(lambda _: with_alg_none),
    signed(lambda issuer: with_shared_secret(issuer.signer.pem)),
    signed(lambda _: with_shared_secret(b"x" * 32)),
    signed(lambda _: Signer("first").token),
    signed(lambda _: Signer(None, curve=True).token),
    signed(lambda issuer: lambda claims: issuer.signer.token(claims)[:-8] + "AAAAAAAA"),
    signed(lambda _: lambda claims: "no.token"),
]


def test_a_token_that_is_not_for_us_of_now_and_of_the_issuer_is_refused(
    house: House, issuer: LocalIssuer, visitor: Visitor
) -> None:
    before = house.last_logged
    for number, forge in enumerate(FORGED):
        issuer.changed, issuer.token = {}, None
        forge(issuer)
        with capture_logs() as logged:
            refused = sign_in(visitor)
        assert refused.status_code == 403, number
        holds(text_of(refused), "prove")
        assert SESSION not in visitor.cookies
        assert any(line["event"] == "sign-in refused" for line in logged)
        assert len(issuer.made) == 2 * (number + 1)
        for secret in (*issuer.made, SECRET):
            assert secret not in refused.text + str(logged)
    assert house.last_logged == before


@pytest.mark.parametrize("name", ["exp", "iat", "nbf"])
def test_what_is_no_time_is_refused(issuer: LocalIssuer, visitor: Visitor, name: str) -> None:
    wrong: list[Any] = [10**400, -(10**400), 10**4000, 1e12, -1, math.inf, math.nan, True, "1", []]
    for value in wrong:
        issuer.changed = {name: value}
        assert sign_in(visitor).status_code == 403, value
    assert SESSION not in visitor.cookies


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"exp": -300}, "expired 300 60"),
        ({"iat": -900}, "ago 900 660"),
        ({"iat": 300}, "begins 300 60"),
        ({"nbf": 300}, "begins 300 60"),
    ],
)
def test_clocks_that_differ_are_told_and_by_how_much_they_may(
    issuer: LocalIssuer,
    visitor: Visitor,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, int],
    says: str,
) -> None:
    now = int(time.time())
    monkeypatch.setattr(time, "time", lambda: float(now))
    issuer.changed = {name: now + seconds for name, seconds in changed.items()}
    with capture_logs() as logged:
        refused = sign_in(visitor)
    assert refused.status_code == 403
    holds(text_of(refused), "clocks", *says.split())
    holds(str(logged), "clock", *says.split()[:2])


@pytest.mark.parametrize("status", [201, 400, 401, 500])
def test_an_identity_beside_an_error_signs_nobody_in(
    issuer: LocalIssuer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    exchange = issuer.exchange
    monkeypatch.setattr(issuer, "exchange", lambda *given: (status, exchange(*given)[1]))
    assert sign_in(visitor).status_code == (403 if 400 <= status < 500 else 503)
    assert SESSION not in visitor.cookies
    assert "eyJ" in issuer.made[-1], "it came with an ID token"


def test_several_audiences_are_believed_if_the_token_was_made_for_us(
    issuer: LocalIssuer, visitor: Visitor
) -> None:
    issuer.changed = {"aud": ["another", CLIENT], "azp": CLIENT}
    assert sign_in(visitor).status_code == 200


def test_an_answer_is_good_once_and_in_the_browser_that_asked(
    house: House, issuer: LocalIssuer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = answer(visitor)
    kept, codes = dict(visitor.cookies), dict(issuer.codes)
    stranger = Visitor(visitor.app, house.send)
    holds(text_of(stranger.get(back)), "begun", "browser")
    stranger.get("/admin/oidc/start")
    holds(text_of(stranger.get(back)), "another")
    altered = back.replace("state=", "state=0")
    holds(text_of(visitor.get(altered)), "another")
    visitor.cookies = dict(kept)
    other = back.replace("iss=http%3A%2F%2F", "iss=https%3A%2F%2F")
    holds(text_of(visitor.get(other)), "issuer", "another")
    for year_33658 in ("1000000000000", "999999999999", "9" * 4400):
        visitor.cookies = {**kept, FLOW: f"{'0' * 32}.{year_33658}"}
        reply = visitor.get(back)
        assert reply.status_code == 403
        holds(text_of(reply), "not", "begun")
    visitor.cookies = dict(kept)
    refused = "/admin/oidc/callback?error=access_denied&" + back.partition("?")[2].partition("&")[2]
    holds(text_of(visitor.get(refused)), "did", "sign")
    visitor.cookies = dict(kept)
    assert visitor.get(f"{back}&code=2").status_code == 422
    with monkeypatch.context() as patched:
        patched.setattr(sessions, "MAX_FLOW_LIFE", timedelta(0))
        holds(text_of(visitor.get(back)), "long")
    visitor.cookies = dict(kept)
    assert visitor.get(back).status_code == 200
    visitor.cookies = dict(kept)
    issuer.codes |= codes  # an issuer that takes a code twice: the refusal must be our own
    holds(text_of(visitor.get(back)), "used", "before")
    assert SESSION not in visitor.cookies


def test_keys_may_change_and_weak_ones_are_none(
    issuer: LocalIssuer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through, "RETRY_SECONDS", 600.0)  # a busy machine may take ten
    assert sign_in(visitor).status_code == 200
    issuer.signer = Signer("second", curve=True)
    assert sign_in(visitor).status_code == 403, "keys are not asked for at every sign-in"
    monkeypatch.setattr(through, "RETRY_SECONDS", 0.0)
    assert sign_in(visitor).status_code == 200
    asked = issuer.asked.count("/jwks")
    assert sign_in(visitor).status_code == 200
    assert issuer.asked.count("/jwks") == asked
    issuer.signer = Signer(None)
    assert sign_in(visitor).status_code == 200, "a key need not have an id"
    issuer.signer = Signer("weak", bits=1024)
    assert sign_in(visitor).status_code == 403


def test_an_issuer_that_is_down_or_none_leaves_the_way_with_a_token(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through, "RETRY_SECONDS", 0.0)
    with local_issuer() as issuer:
        wrong: list[dict[str, Any]] = [
            {"issuer": "https://another.example"},
            {"token_endpoint": "http://another.example/token"},
            {"jwks_uri": None},
            {"code_challenge_methods_supported": ["plain"]},
        ]
        visitor = visitor_of(house, issuer, tmp_path)
        for metadata in wrong:
            issuer.metadata = metadata
            assert visitor.get("/admin/oidc/start").status_code == 503
        issuer.metadata = {"issuer": f"{issuer.url}/"}
        holds(text_of(visitor.get("/admin/oidc/start")), f"{issuer.url}/", f"{issuer.url}.")
        issuer.metadata = {"issuer": "https://\x1b[2J"}
        assert "[2J" not in text_of(visitor.get("/admin/oidc/start"))
        issuer.metadata = {}
        back = answer(visitor)
    with capture_logs() as logged:
        down = visitor.get(back)
    assert down.status_code == 503
    assert int(down.headers["Retry-After"]) > 0
    holds(text_of(down), "answer")
    holds(text_of(down), "token", "still")
    holds(str(logged), "issuer", "unavailable")
    assert issuer.made[0] not in str(logged)
    assert visitor.sign_in(house.token("admin")).status_code == 303
    missing = Visitor(house.app, house.send).get("/admin/oidc/start")
    assert missing.status_code == 404


def test_the_doctor_asks_the_issuer(house: House, issuer: LocalIssuer, visitor: Visitor) -> None:
    settings = visitor.app.state.services.settings
    states = {finding.check: finding for finding in check_sign_in(settings)}
    assert states["sign-in"].state is Severity.OK
    assert f"{PUBLIC}/admin/oidc/callback" in states["sign-in"].found
    assert states.keys() >= {"client secret"}
    issuer.metadata = {"issuer": "https://another.example"}
    (found,) = check_sign_in(settings)
    assert found.state is Severity.PROBLEM
    holds(found.found, "https://another.example", issuer.url)
    assert not list(check_sign_in(house.app.state.services.settings))


def test_whoever_waits_for_the_issuer_keeps_nobody_else_waiting(
    house: House, issuer: LocalIssuer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through, "REPLY_SECONDS", 600.0)
    student = {"Authorization": f"Bearer {house.token(Role.STUDENT, 'study')}"}

    def browser() -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(visitor.app), base_url=PUBLIC)

    async def visit() -> None:
        to_thread.current_default_thread_limiter().total_tokens = 2
        async with AsyncExitStack() as stack:
            people = [await stack.enter_async_context(browser()) for _ in range(6)]

            async def together(paths: list[str]) -> list[httpx.Response]:
                """Visit while the issuer is silent, and see that a student is served meanwhile."""
                issuer.replies.clear()
                pairs = zip(people, paths, strict=True)
                waiting = [asyncio.create_task(one.get(path)) for one, path in pairs]
                try:
                    while not issuer.asked:
                        await asyncio.sleep(0.01)
                    budget = people[0].get("/budget", headers=student)
                    reply = await asyncio.wait_for(budget, PATIENCE_SECONDS)
                    assert reply.status_code == 200
                    assert not any(each.done() for each in waiting)
                finally:
                    issuer.replies.set()
                return await asyncio.gather(*waiting)

            there = await together(["/admin/oidc/start"] * len(people))
            assert issuer.asked == ["/.well-known/openid-configuration"], "one asks for all"
            back = [httpx.get(each.headers["location"]).headers["location"] for each in there]
            issuer.asked.clear()
            assert {each.status_code for each in await together(back)} == {200}

    asyncio.run(visit())


@pytest.mark.usefixtures("no_refill")
def test_an_issuer_that_fails_is_not_asked_at_each_attempt_which_counts(
    issuer: LocalIssuer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through, "RETRY_SECONDS", 600.0)
    issuer.metadata = {"issuer": "https://another.example"}
    allowed = visitor.app.state.services.settings.failed_logins_per_minute
    seen = [visitor.get("/admin/oidc/start").status_code for _ in range(allowed + 1)]
    assert seen == [503] * allowed + [429]
    assert len(issuer.asked) == 1
    assert visitor.get("/admin/oidc/callback?code=1").status_code == 429


@pytest.mark.usefixtures("no_refill")
def test_failures_are_limited_as_those_with_tokens(house: House, visitor: Visitor) -> None:
    allowed = visitor.app.state.services.settings.failed_logins_per_minute
    seen = [visitor.get("/admin/oidc/callback?code=1").status_code for _ in range(allowed + 1)]
    assert (seen[0], seen[-1]) == (403, 429)


def test_an_admin_ends_a_session_on_every_replica_and_an_auditor_does_not(
    house: House, issuer: LocalIssuer, visitor: Visitor, tmp_path: Path
) -> None:
    sign_in(visitor)
    session = house.ledger.log.list(limit=1, newest=True)[0].subject
    auditor, admin = house.visitor("auditor"), house.visitor()
    holds(text_of(auditor.get("/admin/tokens")), "oidc:248289761001", "Ada")
    path = f"/admin/sessions/{session}/end"
    assert auditor.post(path).status_code == 403
    assert visitor.get("/admin").status_code == 200
    admin.get("/admin/tokens")
    assert admin.post(path).status_code == 303
    assert house.last_logged[:2] == ("signed-out", session)
    assert visitor.get("/admin").status_code == 303
    holds(text_of(visitor.get("/admin/sign-in")), "session", "ended")
    assert admin.post(path).status_code == 404
    assert session not in text_of(admin.get("/admin/tokens"))
    sign_in(visitor)
    other = Visitor(house.app, house.send)
    other.cookies = dict(visitor.cookies)
    assert other.get("/admin").status_code == 303, "a server without the issuer admits nobody by it"


def test_tokens_made_by_them_last_no_longer_than_ninety_days(visitor: Visitor) -> None:
    sign_in(visitor)
    visitor.get("/admin/tokens")
    made = visitor.post("/admin/tokens", role="auditor", expires_in_days="90.5")
    assert made.status_code == 422
    holds(text_of(made), "longer")
    assert visitor.post("/admin/tokens", role="auditor", expires_in_days="89").status_code == 200


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"oidc_client_id": None}, "TERRINE_OIDC_CLIENT_ID"),
        ({"public_url": None}, "TERRINE_PUBLIC_URL"),
        ({"oidc_issuer": "http://issuer.example"}, "https"),
        ({"oidc_issuer": "http://127.0.0.1:1"}, "https"),
        ({"oidc_issuer": "http://issuer.example", "oidc_plain_http": True}, "https"),
        ({"public_url": "https://terrine.example/?a"}, "https"),
        ({"public_url": f"{PUBLIC}/t"}, "TERRINE_PUBLIC_URL TERRINE_PATH_PREFIX /t"),
        ({"path_prefix": "/t"}, "TERRINE_PUBLIC_URL TERRINE_PATH_PREFIX /t"),
        ({"oidc_admins": []}, "TERRINE_OIDC_ADMINS role"),
        ({"oidc_scopes": "profile"}, "openid"),
    ],
)
def test_half_a_set_up_is_none(changed: dict[str, Any], says: str) -> None:
    complete: dict[str, Any] = {
        "oidc_issuer": "https://issuer.example",
        "oidc_client_id": "terrine",
        "public_url": PUBLIC,
        "oidc_admins": "owners",
    }
    assert OidcSettings(**complete).oidc_issuer
    with refuses(ValidationError, *says.split()):
        OidcSettings(**complete | changed)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("owners", ("owners",)),
        (" owners ", ("owners",)),
        ("CN=privacy-board", ("CN=privacy-board",)),
        (f'["{LDAP}"]', (LDAP,)),
        (f' ["owners", "{LDAP}"]\n', ("owners", LDAP)),
        ('["a,b", "c\\"d", "\\u00e9"]', ("a,b", 'c"d', "é")),
        (LDAP, None),
        ("owners,auditors", None),
        ("owners, auditors", None),
        (",", None),
        (" ", None),
        (f'"{LDAP}"', None),
        ('"owners"', None),
        ("[owners]", None),
        ("['owners']", None),
        ('["owners"', None),
        ('["owners", 3]', None),
        ('[["owners"]]', None),
        ('["owners", ""]', None),
        ('["owners "]', None),
        ("[" * 100_000, None),
        ("OU=groups", None),
        ('["CN=privacy-board", "ou = groups", "DC=hospital"]', None),
        ('["DC=hospital"]', None),
    ],
)
def test_a_comma_divides_no_name(
    monkeypatch: pytest.MonkeyPatch, given: str, values: tuple[str, ...] | None
) -> None:
    for name in ("ADMINS", "AUDITORS"):
        with monkeypatch.context() as patched:
            patched.setenv(f"TERRINE_OIDC_{name}", given)
            if values is None:
                with refuses(ValidationError, f"TERRINE_OIDC_{name}"):
                    OidcSettings()
            else:
                assert getattr(OidcSettings(), f"oidc_{name.lower()}") == values
