"""What an admin does on the pages happens, and the log names the token that did it."""

from __future__ import annotations

import re
from pathlib import Path

from support.browser import House, InProcess, Visitor, text_of
from support.data import KEY, PEOPLE, DigitsEnsemble, build_leaving_people, names_of
from support.databases import SECRET_KEY
from support.servers import LOG, installed, publisher, signed
from support.wording import holds, says
from terrine_models.teachers.neighbours import RECORDS_FILE, NeighbourEnsemble, forecast_from_public
from terrine_models.teachers.people import name_digests
from terrine_protocol import MECHANISM_SPECS, ProjectStatus, Role
from terrine_server.app import create_app
from terrine_server.ledger import Ledger
from terrine_server.owner import editions
from terrine_server.planning.first_project import (
    default_delta,
    max_guess_accuracy,
    plan_neighbours,
    sigma_for_rows,
)
from terrine_server.planning.opening import small_budget_warning
from terrine_server.privacy import Account

TERMS = {
    "ensemble": "digits",
    "mechanism": "confident_gnmax",
    "threshold": "24",
    "sigma1": "12",
    "sigma2": "4",
    "epsilon": "8",
    "delta": "1e-5",
    "accounting": "worst_case",
    "expected_pass_rate": "",
}


def test_a_study_is_priced_then_opened_as_it_was_priced(house: House, admin: Visitor) -> None:
    before, cap = house.last_logged, house.ledger.ensembles.get("digits")
    priced = admin.post("/admin/open", action="price", name="priced", **TERMS)
    assert priced.status_code == 200
    said = text_of(priced)
    assert house.last_logged == before, "a price changes nothing"
    assert 'name="action" value="open"' in priced.text
    opened = admin.post("/admin/open", action="open", name="priced", **TERMS)
    assert opened.headers["location"] == "/admin/projects/priced"
    assert house.last_logged == ("project-opened", "priced", admin.actor)
    record = house.ledger.projects.get("priced")
    terms, account = record.terms, Account()
    for price in terms.prices.values():
        assert f"{price.cost:,}" in said
    holds(said, f"{terms.affordable(account):,}", "least")
    holds(said, f"{terms.most_admitted(account):,}", "most")
    taken = (cap.population.reserved + terms.cap_budget) / cap.population.cap
    holds(said, f"{taken:.1%}", "cap")
    assert says(said, "student", "little") == (small_budget_warning(terms, 10) is not None)
    rich = {"mechanism": "gnmax", "sigma": "40", "epsilon": "20"}
    other = admin.post("/admin/open", action="price", name="rich", **TERMS | rich)
    assert 'name="action" value="open"' in other.text
    assert "little" not in text_of(other)
    again = admin.post("/admin/open", action="open", name="priced", **TERMS)
    assert again.status_code == 409
    holds(text_of(again), "exists")


def test_proposed_parameters_are_those_of_the_plan(house: House, admin: Visitor) -> None:
    terms = {"ensemble": "digits", "mechanism": "gnmax", "epsilon": "5", "delta": "1e-5"}
    page = admin.post("/admin/open", action="propose", name="planned", **terms)
    assert page.status_code == 200
    sigma = re.search(r'name="sigma" inputmode="decimal" value="([^"]*)"', page.text)
    assert sigma is not None
    opened = admin.post("/admin/open", action="open", name="planned", sigma=sigma[1], **terms)
    assert opened.status_code == 303, text_of(opened)
    without = admin.post("/admin/open", action="propose", **(terms | {"epsilon": "much"}))
    assert without.status_code == 422
    holds(text_of(without), "epsilon", "known")


def test_what_is_expected_of_the_teachers_shapes_forecasts_and_terms(
    house: House, admin: Visitor
) -> None:
    terms = TERMS | {"action": "price", "name": "expected"}
    said = {
        consensus: text_of(admin.post("/admin/open", consensus=consensus, **terms))
        for consensus in ("", "0.95:6,0.8:3", "0.3", "high")
    }
    answered = {c: re.search(r"(\S+)% answered", words) for c, words in said.items()}
    shares = [float(found[1]) for found in answered.values() if found is not None]
    assert len(shares) == 3
    assert shares[1] > shares[0] > 2 * shares[2]
    holds(said[""], "mostly", "agree")
    holds(said["0.3"], "consensus")
    holds(said["high"], "0.95:6,0.8:3,0.5:1", "'high'")
    terms["accounting"] = "data_dependent"
    for consensus, why in (
        ("0.8", "consensus"),  # so few teachers never gain by publishing
        ("1.5", "Agreement: less 1."),
    ):
        said_of_it = text_of(admin.post("/admin/open", consensus=consensus, **terms))
        holds(said_of_it, *why.split())


def test_a_project_is_proposed_as_quickstart_does_and_opened_with_one_confirmation(
    house: House, admin: Visitor
) -> None:
    facts = house.ledger.ensembles.get("digits")
    asked = {"action": "suggest", "ensemble": "digits", "rows": "700", "epsilon": "6"}
    page = admin.post("/admin/open", **asked)
    said = text_of(page)
    sigma = sigma_for_rows(700, facts.facts.teachers, 10, 6.0, default_delta(facts.units))
    assert f"ε = 6, δ = {default_delta(facts.units):g}" in said
    holds(said, f"{max_guess_accuracy(6.0, default_delta(facts.units)):.1%}")
    assert f"σ = {sigma:.4g}" in said
    holds(said, "record", f"{facts.units:,}")
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.text))
    before = house.last_logged
    opened = admin.post("/admin/open", **hidden, name="proposed", action="open")
    assert opened.status_code == 303, text_of(opened)
    assert before != house.last_logged == ("project-opened", "proposed", admin.actor)
    record = house.ledger.projects.get("proposed")
    assert record.mechanism == {"name": "noisy_votes", "sigma": sigma}
    assert record.affordable >= 700
    taken = f"{record.terms.cap_budget / record.ensemble.population.cap:.1%}"
    holds(said, taken, "cap")
    for wrong, why in (
        ({"rows": "many"}, "least 100, ten class"),
        ({"rows": "20"}, "least 100, ten class"),
        ({"epsilon": "much"}, "ε: number"),
        ({"epsilon": "0.01"}, "drown 40 votes"),
    ):
        reply = admin.post("/admin/open", **(asked | wrong))
        assert reply.status_code == 422
        holds(text_of(reply), *why.split())


def test_a_project_whose_people_vote_is_proposed_for_as_many_rows_as_there_are(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    people = build_leaving_people(tmp_path / "people", digits_ensemble)
    url = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    settings, engine = installed(tmp_path / "data", url, people)
    with InProcess() as send:
        house = House(create_app(settings), Ledger(engine, SECRET_KEY), send, people)
        admin, name = house.visitor(), house.ledger.ensembles.list()[0].name
        page = admin.get(f"/admin/open?ensemble={name}")
        assert re.findall(r'<option value="(\w+)"', page.text) == ["neighbours"]
        asked = {"action": "suggest", "ensemble": name, "rows": "400", "epsilon": "4"}
        page = admin.post("/admin/open", **asked)
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.text))
        opened = admin.post("/admin/open", **hidden, name="proposed", action="open")
        assert opened.status_code == 303, text_of(opened)
        record = house.ledger.projects.get("proposed")
        forecast = forecast_from_public(NeighbourEnsemble.load(people.directory))
        found = plan_neighbours(
            forecast.spent,
            units=PEOPLE,
            near=forecast.near,
            queries=400,
            epsilon=4.0,
            delta=default_delta(PEOPLE),
        )
        spec = {"name": "neighbours", "sigma": found.sigma, "queries": 400, "norm": 1}
        assert record.mechanism == spec
        holds(text_of(page), f"{found.retired:.0%}", "spent")
        terms = {"ensemble": name, "name": "by-hand", "mechanism": "neighbours", "queries": "400"}
        terms |= {"epsilon": "4", "delta": f"{default_delta(PEOPLE):g}"}
        proposed = admin.post("/admin/open", **terms, action="propose")
        assert f'value="{found.sigma!r}"' in proposed.text
        reply = admin.post("/admin/open", **(asked | {"epsilon": "0.01"}))
        assert reply.status_code == 422
        holds(text_of(reply), "drown")
        settings.records_key_path.write_bytes(KEY)
        settings.records_key_path.chmod(0o600)
        editions.forget(house.ledger, settings, None, name_digests(names_of(range(3)), KEY))
        page = admin.post("/admin/open", **asked)
        assert page.status_code == 200, "by the newest edition: the files of others are gone"
        holds(text_of(admin.get("/admin/ensembles")), "Edition", 2, "forget", "add")
        (settings.data_dir / house.ledger.ensembles.get(name).current.path / RECORDS_FILE).unlink()
        reply = admin.post("/admin/open", **asked)
        assert reply.status_code == 422
        assert "terrine doctor" in text_of(reply)
    engine.dispose()


def test_a_spent_project_says_so_and_what_to_do_next(house: House, admin: Visitor) -> None:
    house.open_project("few", {"name": "noisy_votes", "sigma": 5.0}, epsilon=3.0)
    token = house.token(Role.STUDENT, "few")
    house.ask(token, house.ledger.projects.get("few").affordable)
    said = text_of(admin.get("/admin/projects/few"))
    holds(said, "few", "spent")
    holds(said, "pays", "further", "query")
    assert re.search(r"(?i)up to about ε = [\d.]+ still fits under the cap of digits", said)


def test_what_an_answer_costs_beside_an_abstention_can_be_chosen(
    house: House, admin: Visitor
) -> None:
    terms = TERMS | {"epsilon": "2"}
    assert admin.post("/admin/open", action="open", name="even", answer_share="1", **terms)
    record = house.ledger.projects.get("even")
    assert record.mechanism["answer_share"] == 1
    assert len({price.cost for price in record.terms.prices.values()}) == 1


def test_what_is_wrong_with_terms_is_said_beside_what_was_entered(
    house: House, admin: Visitor
) -> None:
    cases = [
        ({"name": "Bad"}, 422, "Name: 64 lower-case"),
        ({"name": "bad", "sigma1": "a lot"}, 422, "Sigma1: number."),
        ({"name": "bad", "delta": "0.5"}, 422, "1/1200"),
        ({"name": "bad", "epsilon": "90"}, 409, "free. less"),
        ({"name": "bad", "ensemble": "none"}, 404, "ensemble none"),
        ({"name": "bad", "mechanism": "magic"}, 422, "Mechanism:"),
    ]
    before = house.last_logged
    for wrong, status, why in cases:
        reply = admin.post("/admin/open", action="open", **(TERMS | wrong))
        assert reply.status_code == status
        holds(text_of(reply), *why.split())
    kept = admin.post("/admin/open", action="price", name="Bad", **TERMS)
    assert 'value="Bad"' in kept.text
    assert 'name="sigma1" inputmode="decimal" value="12"' in kept.text
    assert house.last_logged == before


def test_every_mechanism_has_a_form_for_all_that_it_needs(house: House, admin: Visitor) -> None:
    assert len(MECHANISM_SPECS) == 9
    for name, spec in MECHANISM_SPECS.items():
        page = admin.get(f"/admin/open?ensemble=digits&mechanism={name}").text
        for field, described in spec.model_fields.items():
            if described.is_required() and field != "name":
                assert f'name="{field}"' in page, (name, field)


def test_a_study_is_paused_resumed_and_closed(house: House, admin: Visitor) -> None:
    house.open_project("brief", epsilon=2.0)
    student, actor = house.token(Role.STUDENT, "brief"), admin.actor
    for act, status in (("pause", "paused"), ("resume", "active")):
        assert admin.post(f"/admin/projects/brief/{act}").status_code == 303
        assert house.last_logged == (f"project-{act}d", "brief", actor)
        assert house.ledger.projects.get("brief").status == status
    house.ask(student, 1)
    cap = house.ledger.ensembles.get("digits")
    record = house.ledger.projects.get("brief")
    returned = record.terms.cap_budget - record.cap_spent
    said = text_of(admin.get("/admin/projects/brief/close"))
    holds(said, f"{returned / cap.population.cap:.1%}", "people", "free")
    assert house.ledger.projects.get("brief").status == "active", "asking closes nothing"
    assert admin.post("/admin/projects/brief/close").status_code == 303
    assert house.last_logged == ("project-closed", "brief", actor)
    assert (
        house.ledger.ensembles.get("digits").population.reserved
        == cap.population.reserved - returned
    )
    holds(text_of(admin.get("/admin/projects/brief/close")), "closed", "already")
    refused = admin.post("/admin/projects/brief/resume")
    assert refused.status_code == 409
    holds(text_of(refused), "closed", "good")


def test_an_admin_pauses_all_for_maintenance_and_resumes_exactly_these(
    house: House, admin: Visitor
) -> None:
    for name in ("waits", "goes-on"):
        house.open_project(name, epsilon=2.0)
    house.ledger.projects.set_status("waits", ProjectStatus.PAUSED)
    answering = house.ledger.projects.list(status=ProjectStatus.ACTIVE)
    auditor = house.visitor("auditor")
    assert auditor.post("/admin/maintenance/begin").status_code == 403
    admin.get("/admin")
    assert admin.post("/admin/maintenance/begin").status_code == 303
    assert house.last_logged == ("maintenance-begun", "projects", admin.actor)
    assert house.ledger.projects.list(status=ProjectStatus.ACTIVE) == []
    for visitor in (admin, auditor):
        said = text_of(visitor.get("/admin"))
        holds(said, "Maintenance", "goes-on", admin.actor)
    assert auditor.post("/admin/maintenance/end").status_code == 403
    admin.get("/admin")
    assert admin.post("/admin/maintenance/end").status_code == 303
    assert house.ledger.projects.list(status=ProjectStatus.ACTIVE) == answering
    assert not says(text_of(admin.get("/admin")), "Maintenance", "since")
    assert admin.post("/admin/maintenance/other").status_code == 422


def test_a_token_is_shown_once_works_and_is_revoked(house: House, admin: Visitor) -> None:
    given = {"role": "student", "project": "study", "label": "Ada", "expires_in_days": "30"}
    admin.get("/admin/tokens")
    made = admin.post("/admin/tokens", **given)
    found = re.search(r"terrine_([0-9a-f]{16})_[0-9a-f]{64}", made.text)
    assert found is not None
    assert house.last_logged == ("token-created", found[1], admin.actor)
    assert house.send(house.app, "GET", "/budget", found[0]).status_code == 200
    for path in ("", "/tokens", "/log", f"/tokens/{found[1]}/revoke"):
        assert found[0] not in admin.get(f"/admin{path}").text
    assert "Ada" in text_of(admin.get("/admin/tokens"))
    assert admin.post(f"/admin/tokens/{found[1]}/revoke").status_code == 303
    assert house.last_logged == ("token-revoked", found[1], admin.actor)
    assert house.send(house.app, "GET", "/budget", found[0]).status_code == 401
    assert admin.get("/admin/tokens/0123456789abcdef/revoke").status_code == 404


def test_a_form_that_is_sent_again_makes_no_second_token_on_any_replica(
    house: House, admin: Visitor
) -> None:
    """Whoever loads the answer again, or whose browser does, sends the form once more."""
    admin.get("/admin/tokens")
    once, given = admin.last_once, {"role": "auditor", "label": "twice", "expires_in_days": "3"}
    made = admin.post("/admin/tokens", once=once, **given)
    found = re.search(r"terrine_([0-9a-f]{16})_[0-9a-f]{64}", made.text)
    assert found is not None
    before = house.last_logged
    replica = Visitor(create_app(house.app.state.services.settings), house.send)
    replica.cookies = dict(admin.cookies)
    for visitor in (admin, replica):
        again = visitor.post("/admin/tokens", key=admin.last_key, once=once, **given)
        assert again.status_code == 409
        holds(text_of(again), "made", found[1])
        assert found[0] not in again.text
    assert house.last_logged == before
    assert [each.label for each in house.ledger.tokens.list()].count("twice") == 1
    assert admin.post("/admin/tokens", **given).status_code == 200, "from the page as it is now"
    other = house.visitor()
    assert other.post("/admin/tokens", once=once, **given).status_code == 200, "another session's"
    for none in ("", "0", once.upper() + "G"):
        assert admin.post("/admin/tokens", once=none, **given).status_code == 422


def test_a_token_that_makes_no_sense_is_refused(house: House, admin: Visitor) -> None:
    admin.get("/admin/tokens")
    before = house.last_logged
    for wrong, why in (
        ({"role": "student"}, "needs a project"),
        ({"role": "admin", "project": "study"}, "no other token has one"),
        ({"role": "student", "project": "none"}, "no project called none"),
        ({"role": "auditor", "expires_in_days": "soon"}, "valid number"),
        ({"role": "auditor", "expires_in_days": "4000"}, "less than or equal to 3650"),
        ({"role": "auditor", "expires_in_days": "3000"}, "makes none that lasts longer"),
    ):
        reply = admin.post("/admin/tokens", **({"expires_in_days": "30"} | wrong))
        assert reply.status_code == 422
        holds(text_of(reply), *why.split())
    assert house.last_logged == before


def test_whoever_revokes_the_own_token_is_signed_out(house: House) -> None:
    visitor = house.visitor()
    own = visitor.actor.removeprefix("token:")
    holds(text_of(visitor.get(f"/admin/tokens/{own}/revoke")), "signed", "out")
    visitor.post(f"/admin/tokens/{own}/revoke")
    assert visitor.get("/admin").status_code == 303


def test_the_ledger_is_held_against_a_checkpoint_that_was_kept(
    house: House, auditor: Visitor
) -> None:
    key = house.app.state.services.settings.checkpoint_key_path
    refused = auditor.post("/admin/audit/verify-tree", checkpoint="")
    assert refused.status_code == 422
    holds(text_of(refused), "key", "transparency")
    key.write_text(LOG.secret)
    try:
        publisher(house.ledger).round()
        kept = house.ledger.tree.checkpoint() or ""
        holds(text_of(auditor.get("/admin/audit")), "cosigned", "nobody")
        house.ask(house.token(Role.STUDENT, "study"), 1)
        for given in ("", kept, kept.replace("\n", "\r\n")):  # as browsers send it
            said = text_of(auditor.post("/admin/audit/verify-tree", checkpoint=given))
            holds(said, "Transparency", "intact")
            holds(said, "entries", "yet")
        for given, why in (
            (signed(3, b"o" * 32), "two histories"),
            (signed(10**6, b"o" * 32), "leaves removed, older backup"),
            ("nonsense", "checkpoint kept:"),
        ):
            said = text_of(auditor.post("/admin/audit/verify-tree", checkpoint=given))
            holds(said, "Transparency", "not", "intact")
            holds(said, *why.split())
        assert auditor.post("/admin/audit/verify-tree", checkpoint="x" * 70_000).status_code == 413
    finally:
        key.unlink()
