"""The dossier from the page of a project."""

from __future__ import annotations

from support.browser import House, Visitor, text_of
from support.wording import holds


def test_a_dossier_is_made_and_verified_when_asked(house: House, auditor: Visitor) -> None:
    assert 'action="/admin/projects/study/dossier"' in auditor.get("/admin/projects/study").text
    reply = auditor.post("/admin/projects/study/dossier")
    said = text_of(reply)
    holds(said, "administrative", "intact", house.ledger.projects.get("study").head)
    assert reply.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src")
    assert auditor.post("/admin/projects/none/dossier").status_code == 404
