"""The dossier as a page."""

from __future__ import annotations

from support.browser import House, Visitor, text_of
from support.wording import holds, says
from terrine_addons.dossier import assessment
from terrine_addons.dossier.assessment import list_unchecked
from terrine_addons.dossier.facts import gather


def test_a_dossier_is_that_of_the_command_and_verifies_when_asked(
    house: House, auditor: Visitor
) -> None:
    said = text_of(auditor.get("/admin/projects/study/dossier"))
    record = house.ledger.project("study")
    assert f"{record.head}" in said
    holds(said, "Whether", "intact", "Press", "Verify")
    facts = gather(house.ledger, house.app.state.services.settings, project="study", verify=True)
    verified = text_of(auditor.post("/admin/projects/study/dossier"))
    assert not says(verified, "Press", "Verify")
    holds(verified, "administrative", "intact")
    for each in assessment.assess(facts):
        assert each.hazard in verified
    for found in list_unchecked(facts):
        assert found.what in verified
    asked = house.app.state.services.settings.data_dir / "dossier.toml"
    asked.write_text("[data]\nsubject = 3")
    refused = auditor.get("/admin/projects/study/dossier")
    asked.unlink()
    assert refused.status_code == 409
    holds(text_of(refused), "data.subject")
    assert auditor.get("/admin/projects/none/dossier").status_code == 404
