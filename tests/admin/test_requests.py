"""A student asks, an admin decides on the pages: what is said, what is opened, what is logged."""

from __future__ import annotations

import html
import re
from typing import Any

from support.browser import House, Visitor, text_of
from support.wording import holds
from terrine_protocol import Role

HOSTILE = "<script>alert(1)</script>\"'><img src=x>"
MORE = {"title": "Sepsis: year 2", "purpose": "To label\nanother year.", "epsilon": 6.0}


def ask(house: House, **changed: Any) -> tuple[str, str]:
    """Make a request with a new token of study; return the request's id and the token."""
    token = house.token(Role.STUDENT, "study", label="Ada")
    reply = house.send(house.app, "POST", "/requests", token, json=MORE | changed)
    assert reply.status_code == 201, reply.text
    return reply.json()["id"], token


def fields_of(page: str) -> dict[str, str]:
    """What a browser would send back of the form for the terms."""
    named = re.findall(r'<input[^>]* name="(\w+)"[^>]* value="([^"]*)"', page)
    words = re.findall(r'<textarea id="(purpose)"[^>]*>([^<]*)</textarea>', page)
    chosen = re.findall(r'<select[^>]* name="(\w+)">.*?<option selected>(\w+)</option>', page)
    found = {name: html.unescape(value) for name, value in [*named, *words, *chosen]}
    return {name: value for name, value in found.items() if name != "form_key"}


def test_an_approval_says_what_it_means_and_opens_just_that(house: House, admin: Visitor) -> None:
    request, student = ask(house)
    holds(text_of(admin.get("/admin")), 1, "waits")
    assert str(MORE["title"]) in text_of(admin.get("/admin/requests"))
    cap, before = house.ledger.ensemble("digits"), house.last_logged
    page = admin.get(f"/admin/requests/{request}")
    said = text_of(page)
    holds(said, "would")
    holds(said, "Ada", "study")
    holds(said, "study", "besides", "change")
    assert house.last_logged == before, "looking changes nothing"
    fields = fields_of(page.text) | {"days": "30"}
    assert (fields["name"], fields["epsilon"]) == ("sepsis-year-2", "6.0")
    done = admin.post(f"/admin/requests/{request}", action="open", **fields)
    made = re.search(r"terrine_([0-9a-f]{16})_[0-9a-f]{64}", done.text)
    assert made is not None, text_of(done)
    assert house.last_logged == ("request-approved", request, admin.actor)
    logged = [(e.action, e.subject) for e in house.ledger.log(limit=3, newest=True)]
    opened = ("project-opened", "sepsis-year-2"), ("token-created", made[1])
    assert logged == [*opened, ("request-approved", request)]
    record = house.ledger.project("sepsis-year-2")
    assert (record.title, record.purpose) == (MORE["title"], MORE["purpose"])
    taken = (cap.population.reserved + record.terms.cap_budget) / cap.population.cap
    holds(said, f"{taken:.1%}", "cap")
    for price in record.terms.prices.values():
        assert f"{price.cost:,}" in said
    told = house.send(house.app, "GET", f"/requests/{request}", student).json()
    assert (told["status"], told["project"]) == ("approved", "sepsis-year-2")
    house.ask(made[0], 1)
    assert str(MORE["title"]) in text_of(admin.get("/admin/projects/sepsis-year-2"))
    again = admin.post(f"/admin/requests/{request}", action="open", **fields | {"name": "twice"})
    assert again.status_code == 409
    holds(text_of(again), "approved", "already")
    assert "twice" not in house.ledger.project_names()


def test_a_refusal_needs_a_reason_which_the_requester_reads(house: House, admin: Visitor) -> None:
    request, student = ask(house, title="Refused")
    admin.get(f"/admin/requests/{request}")
    without = admin.post(f"/admin/requests/{request}/refuse", reason=" ")
    assert (without.status_code, "Reason:" in text_of(without)) == (422, True)
    assert admin.post(f"/admin/requests/{request}/refuse", reason="Not\r\nnow").status_code == 303
    assert house.last_logged == ("request-refused", request, admin.actor)
    told = house.send(house.app, "GET", f"/requests/{request}", student).json()
    assert (told["status"], told["reason"], told["project"]) == ("refused", "Not\nnow", None)
    holds(text_of(admin.get(f"/admin/requests/{request}")), "Not", "now")
    assert "Refused" in text_of(admin.get("/admin/requests?status=refused"))


def test_terms_are_changed_proposed_and_checked_before_anything_is_opened(
    house: House, admin: Visitor, auditor: Visitor
) -> None:
    request, _ = ask(house, epsilon=60.0, title="Much", purpose=HOSTILE)
    page = admin.get(f"/admin/requests/{request}")
    holds(text_of(page), "cap", "room")
    assert re.search(r"With up to about ε = [\d.]+ it would fit\. To close [\w-]+,", text_of(page))
    assert 'value="open"' not in page.text
    assert "<script" not in page.text
    assert "<script" not in admin.get("/admin/log").text
    fields, before = fields_of(page.text), house.last_logged
    for changed, status, why in (
        ({"action": "open"}, 409, "free. less"),
        ({"action": "open", "name": "Bad Name"}, 422, "Name:"),
        ({"action": "open", "epsilon": "6", "days": "soon"}, 422, "number"),
        ({"action": "open", "epsilon": "6", "days": "3000"}, 403, "longer"),
        ({"action": "open", "epsilon": "6", "name": "study"}, 409, "exists already"),
        ({"action": "price", "epsilon": "6"}, 200, "Approve, open project"),
    ):
        reply = admin.post(f"/admin/requests/{request}", **fields | changed)
        assert reply.status_code == status
        holds(text_of(reply), *why.split())
    assert house.last_logged == before
    assert house.ledger.find_request(request).status == "open"
    typed = fields | {"mechanism": "gnmax", "title": "Typed", "epsilon": "6", "days": "7"}
    other = admin.post(f"/admin/requests/{request}", action="choose", **typed).text
    assert 'name="sigma"' in other
    kept = {name: typed[name] for name in ("title", "name", "epsilon", "days", "mechanism")}
    assert kept.items() <= fields_of(other).items(), "what was typed is kept"
    fields = fields_of(other) | {"sigma": "40", "days": ""}
    opened = admin.post(f"/admin/requests/{request}", action="open", **fields)
    assert opened.headers["location"] == "/admin/projects/much", text_of(opened)
    assert house.ledger.project("much").mechanism["name"] == "gnmax"

    waiting, _ = ask(house, title="Seen by auditors")
    shown = auditor.get(f"/admin/requests/{waiting}")
    holds(text_of(shown), "would")
    assert "<textarea" not in shown.text
    for path in ("", "/refuse"):
        refused = auditor.post(f"/admin/requests/{waiting}{path}", action="open", reason="No")
        assert refused.status_code == 403
    assert admin.get("/admin/requests/0123456789abcdef").status_code == 404
    admin.get(f"/admin/requests/{waiting}")
    admin.post(f"/admin/requests/{waiting}/refuse", reason="Enough")
