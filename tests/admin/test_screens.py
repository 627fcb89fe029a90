"""What each page says, what it weighs, and that nothing in it is believed to be markup."""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest

from support.browser import CONFIDENT, SCREENS, House, Visitor, text_of
from support.processes import Terrine
from support.servers import signed
from support.wording import holds
from terrine_protocol import Outcome
from terrine_server import views
from terrine_server.admin import charts, rendering
from terrine_server.errors import LedgerCorrupted
from terrine_server.owner.checkpoints import SignedHistory

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
MOST_BYTES = 60_000


class Markup(HTMLParser):
    """The tags of a page, and their attributes: not what users wrote, which may look like both."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs


def test_pages_are_light_and_load_nothing_but_our_own_stylesheet(
    house: House, admin: Visitor
) -> None:
    assert SCREENS
    for path in (*SCREENS, "/projects/none", "/sign-in"):
        reply = admin.get(f"/admin{path}")
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; script-src 'none'")
        assert "unsafe" not in policy
        for part in ("form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
            assert part in policy
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["referrer-policy"] == "same-origin"
        assert len(reply.content) < MOST_BYTES
        found = Markup()
        found.feed(reply.text)
        assert not found.tags & {"script", "style", "img", "iframe", "object"}, path
        assert not [name for name, _ in found.attributes if name.startswith(("on", "style"))], path
        assert not [value for _, value in found.attributes if "://" in (value or "")], path
    for name in ("style.css", "icon.svg"):
        sent = admin.get(f"/admin/static/{name}")
        assert sent.status_code == 200
        assert sent.headers["cache-control"] == "max-age=300"
    assert admin.get("/admin/static/base.html").status_code == 404


def test_the_overview_says_what_is_spent_reserved_free_and_left(
    house: House, admin: Visitor
) -> None:
    house.open_project("counted", epsilon=2.0)
    said = text_of(admin.get("/admin"))
    ensemble = house.ledger.ensembles.get("digits")
    spent = sum(p.cap_spent for p in house.ledger.projects.list())
    for amount in (
        spent,
        ensemble.population.reserved - spent,
        ensemble.population.cap - ensemble.population.reserved,
    ):
        assert f"{amount / ensemble.population.cap:.1%}" in said
    record = house.ledger.projects.get("counted")
    holds(said, f"{record.affordable:,}", "least")
    assert "counted" not in text_of(admin.get("/admin?status=closed"))
    assert admin.get("/admin?status=lost").status_code == 422
    assert admin.get("/admin?stauts=closed").status_code == 422


def test_projects_are_found_by_a_part_of_their_name_or_title(
    house: House, admin: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terrine_server.admin.overview.PROJECTS_ON_A_PAGE", 2)
    for name in ("sought-1", "sought-2", "sought_3"):
        house.open_project(name)
    shown = {}
    for search in ("SOUGHT", "ght_", "%", "not there", "", " sought-2 "):
        reply = admin.get(f"/admin?{urlencode({'search': search, 'ensemble': '', 'status': ''})}")
        assert reply.status_code == 200
        shown[search] = re.findall(r'<th scope="row"><a href="/admin/projects/([^"]+)', reply.text)
    assert shown["SOUGHT"] == ["sought-1", "sought-2"]
    assert (shown["ght_"], shown["%"], shown["not there"]) == (["sought_3"], [], [])
    assert shown[" sought-2 "] == ["sought-2"]
    assert len(shown[""]) == 2
    first = admin.get("/admin?search=sought&status=active").text
    (older,) = re.findall(r'href="(\?cursor=[^"]+)"', first)
    second = admin.get(f"/admin{html.unescape(older)}").text
    assert re.findall(r"/projects/(sought[^\"]+)", second) == ["sought_3"]
    assert 'href="?status=active&amp;search=sought"' in second
    assert admin.get(f"/admin?search={'x' * 101}").status_code == 422


def test_a_study_shows_its_terms_prices_charges_and_filters(house: House, admin: Visitor) -> None:
    record = house.ledger.projects.get("study")
    account = views.budget(record)
    reply = admin.get("/admin/projects/study")
    said = text_of(reply)
    assert f"ε = {account.epsilon_spent:.4g}" in said
    for price in record.terms.prices.values():
        assert f"{price.cost:,}" in said
    assert record.head in said
    days = house.ledger.entries.history("study").days
    entries = house.ledger.entries.list("study")
    assert sum(sum(d.values()) for d in days.values()) == len(entries) == record.charges
    for outcome in (Outcome.ANSWERED, Outcome.ABSTAINED):
        page = admin.get(f"/admin/projects/study?outcome={outcome}&since=&until=").text
        shown = re.findall(r"<code>([0-9a-f]{12})</code>", page)
        wanted = [e.query_digest[:12] for e in entries[::-1] if e.outcome == outcome]
        assert shown == wanted
    today = datetime.now(UTC).date()
    holds(
        text_of(admin.get(f"/admin/projects/study?since={today + timedelta(days=1)}")),
        "charge",
        "passes",
    )
    first = admin.get("/admin/projects/study?before=2").text
    assert re.findall(r"<code>([0-9a-f]{12})</code>", first) == [entries[0].query_digest[:12]]


def test_an_admin_reads_which_token_paid_for_a_charge_and_an_auditor_does_not(
    house: House, admin: Visitor, auditor: Visitor
) -> None:
    house.open_project("paying", CONFIDENT, epsilon=20.0)
    tokens = {label: house.token(project="paying", label=label) for label in ("Anne", "Ben")}
    for token in tokens.values():
        house.ask(token, 2)
    rows = re.findall(r"<tr>.*?</tr>", admin.get("/admin/projects/paying").text)
    for label, token in tokens.items():
        id = token.split("_")[1]
        assert len([row for row in rows if id in row and label in row]) == 2
    said = auditor.get("/admin/projects/paying").text
    assert house.ledger.entries.list("paying")[0].query_digest[:12] in said
    assert not [token for token in tokens.values() if token.split("_")[1] in said]


def test_where_people_read_the_log_a_token_has_its_label(
    house: House, admin: Visitor, terrine: Terrine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = Visitor(house.app, house.send)
    ada.sign_in(house.token("admin", label="Ada <of> ward 3"))
    ada.get("/admin/projects/study/charges.csv")
    shown = f"{ada.actor} (Ada <of> ward 3)"
    assert house.ledger.log.list(limit=1, newest=True)[0].actor == ada.actor, "as it is hashed"
    for path in ("/log", "/tokens"):
        assert shown in text_of(admin.get(f"/admin{path}")), path
    settings = house.app.state.services.settings
    monkeypatch.setenv("TERRINE_DATABASE_URL", settings.database)
    monkeypatch.setenv("TERRINE_SECRET_KEY_FILE", str(settings.secret_key_path))
    assert shown in terrine("ledger", "show").fine
    told = json.loads(terrine("--json", "ledger", "show").fine)
    assert told[-1]["actor"] == ada.actor


def test_csv_is_what_the_api_sends_and_is_logged(house: House, auditor: Visitor) -> None:
    reply = auditor.get("/admin/projects/study/charges.csv?outcome=answered")
    assert house.last_logged[:2] == ("ledger-exported", "study")
    accept = {"Accept": "text/csv"}
    token = house.token("auditor")
    api = house.send(house.app, "GET", "/ledger/study?outcome=answered", token, headers=accept)
    assert reply.content == api.content
    assert reply.headers["content-type"] == api.headers["content-type"]


def test_charts_are_well_formed_and_end_where_the_account_does(house: House) -> None:
    record, history = house.ledger.projects.get("study"), house.ledger.entries.history("study")
    assert (history.reached[-1].seq, history.reached[-1].spent) == (record.charges, record.spent)
    budget = record.terms.budget
    drawn = (
        charts.draw_by_query(history.reached, budget),
        charts.draw_by_time(history.reached, budget, record.opened_at),
        charts.draw_by_day(history.days),
        charts.draw_meter(HOSTILE, spent=0.4, reserved=0.7),
    )
    for svg in drawn:
        root = ET.fromstring(svg)
        assert root.get("role") == "img"
        assert root.get("aria-label")
    bars = ET.fromstring(drawn[-1]).findall("rect")
    assert sum(float(bar.get("width", "0")) for bar in bars[1:]) == pytest.approx(100)


def test_names_from_elsewhere_are_shown_and_never_run(
    house: House, admin: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.token("auditor", label=HOSTILE)
    original = house.ledger.ensembles.list()[0].facts.classes

    real = views.ensemble
    monkeypatch.setattr(
        views,
        "ensemble",
        lambda r, a: real(r, a).model_copy(update={"classes": [HOSTILE] * len(original)}),
    )
    for path in ("/tokens", "/log", "/projects/study", "/ensembles"):
        reply = admin.get(f"/admin{path}")
        assert "<script" not in reply.text
        assert "<img" not in reply.text
    assert HOSTILE in text_of(admin.get("/admin/ensembles"))
    admin.get("/admin/tokens")
    refused = admin.post("/admin/tokens", role=HOSTILE, project=HOSTILE, label=HOSTILE)
    assert refused.status_code == 422
    assert "<script" not in refused.text
    asked = admin.get(f"/admin/open?ensemble={HOSTILE[:30]}&mechanism={HOSTILE[:30]}")
    assert "<script" not in asked.text
    page = rendering.render(
        {"path": "/admin"},
        "refusal.html",
        status=404,
        reader=None,
        title=HOSTILE,
        detail=HOSTILE,
        command=HOSTILE,
        request_id=HOSTILE,
    )
    assert b"<script" not in bytes(page.body)


def test_errors_are_pages_in_plain_words_and_stay_problems_for_the_api(
    house: House, admin: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = admin.get("/admin/projects/none")
    assert missing.status_code == 404
    holds(text_of(missing), "none")
    assert admin.get("/admin/nowhere").status_code == 404
    holds(text_of(admin.get("/admin/nowhere")), "nothing", "address")
    assert admin.request("PUT", "/admin").status_code == 405
    api = house.send(house.app, "GET", "/nowhere")
    assert api.headers["content-type"] == "application/problem+json"

    def broken(name: str) -> None:
        raise LedgerCorrupted("The account of project 'study' was altered.", "study")

    monkeypatch.setattr(house.app.state.services.ledger.projects, "get_with_shadows", broken)
    reply = admin.get("/admin/projects/study")
    assert reply.status_code == 503
    assert "terrine ledger verify" in text_of(reply)
    assert "retry-after" not in reply.headers

    def defect(*_: object, **__: object) -> None:
        raise ZeroDivisionError("with-a-secret")

    monkeypatch.setattr(house.app.state.services.ledger.projects, "get_with_shadows", defect)
    reply = admin.get("/admin/projects/study")
    assert reply.status_code == 500
    assert reply.headers["x-request-id"] in text_of(reply)
    assert "with-a-secret" not in reply.text
    assert reply.headers["content-security-policy"]
    big = admin.request("POST", "/admin/open", content=b"x" * 100_000)
    assert big.status_code == 413
    assert big.headers["content-type"].startswith("text/html")


def test_every_page_says_that_nothing_new_is_answered(
    house: House, admin: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = house.app.state.services
    kept = services.settings.signed_checkpoint_path
    history = SignedHistory(house.ledger, None, kept)
    monkeypatch.setattr(services.ledger, "check_history", history.check)
    house.app.state.services = replace(services, history=history)
    try:
        kept.write_text(signed(10**6, b"r" * 32))
        for path in SCREENS:
            holds(text_of(admin.get(f"/admin{path}")), "restored", "terrine")
    finally:
        kept.unlink()
        house.app.state.services = services
    assert "restored" not in text_of(admin.get("/admin"))
