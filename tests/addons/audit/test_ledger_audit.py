"""Books that are consistent but contradict the mathematics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from support.databases import SECRET_KEY
from support.ledgers import (
    CONFIDENT,
    GNMAX,
    IMMUTABLE,
    LNMAX,
    STABLE,
    abstained,
    answered,
    charge_one,
    open_ledger,
    terms,
    unguarded,
)
from support.wording import holds
from terrine_addons.audit.findings import AuditFinding
from terrine_addons.audit.ledger import audit_ledger, check_project
from terrine_server.ledger import Ledger, NewProject, connect, upgrade
from terrine_server.planning.opening import choose
from terrine_server.privacy import GDP, Rule, Terms, VoteOutcome, build_mechanism, quote


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(f"sqlite:///{tmp_path / 'terrine.sqlite'}", epsilon=60.0)


def open_and_charge(ledger: Ledger, name: str, mechanism: Any, opened: Terms) -> None:
    project = ledger.projects.open(NewProject(name, "mnist", mechanism, opened))
    queries = [answered(f"{name} 1"), answered(f"{name} 2")]
    if VoteOutcome.ABSTAINED in opened.prices:
        queries.append(abstained(f"{name} 3"))
    charge_one(ledger, project.id, queries)


def found(ledger: Ledger) -> list[AuditFinding]:
    return list(audit_ledger(ledger))


@pytest.mark.parametrize("mechanism", [GNMAX, CONFIDENT, LNMAX, STABLE, IMMUTABLE])
def test_sound_books_pass(ledger: Ledger, mechanism: dict[str, Any]) -> None:
    open_and_charge(ledger, "study", mechanism, terms(3, mechanism))
    (finding,) = found(ledger)
    assert finding.verdict == "holds"
    assert "1 projects" in finding.evidence


def test_an_empty_ledger_passes(ledger: Ledger) -> None:
    (finding,) = found(ledger)
    assert finding.passed
    assert "0 projects" in finding.evidence


@pytest.mark.parametrize("what", ["cost", "delta", "cap_cost"])
def test_a_price_list_below_the_mechanism_is_found_although_the_books_verify(
    ledger: Ledger, what: str
) -> None:
    opened = terms(3, STABLE)
    cheap = {
        outcome: replace(price, **{what: getattr(price, what) - 1})
        for outcome, price in opened.prices.items()
    }
    open_and_charge(ledger, "study", STABLE, replace(opened, prices=cheap))
    assert ledger.verifier.verify_project("study").ok
    finding, summary = found(ledger)
    assert finding.verdict == "exceeded"
    holds(finding.evidence, 1, what)
    assert "0 projects" in summary.evidence


def test_a_budget_above_what_epsilon_and_delta_allow_is_found(ledger: Ledger) -> None:
    opened = terms(3)
    generous = replace(opened, budget=10 * 10**12, cap_budget=10 * 10**12)
    open_and_charge(ledger, "study", GNMAX, generous)
    assert ledger.verifier.verify_project("study").ok
    finding, _ = found(ledger)
    holds(finding.evidence, "budget", 10000000000000)


def test_a_rule_that_is_not_the_quoted_one_is_found(ledger: Ledger) -> None:
    opened = terms(3, LNMAX)
    assert opened.rule.order is not None
    other = replace(opened, rule=replace(opened.rule, order=opened.rule.order + 1))
    open_and_charge(ledger, "study", LNMAX, other)
    finding, _ = found(ledger)
    holds(finding.evidence, "quoted")


def test_a_forged_entry_is_found(tmp_path: Path, ledger: Ledger) -> None:
    open_and_charge(ledger, "study", GNMAX, terms(3))
    open_and_charge(ledger, "other", GNMAX, terms(3))
    with unguarded(f"sqlite:///{tmp_path / 'terrine.sqlite'}") as connection:
        connection.execute(
            text(
                "UPDATE charges SET cost = 1 WHERE seq = 2 AND project_id = "
                "(SELECT id FROM projects WHERE name = 'study')"
            )
        )
    # A careful forger puts the guards back.
    upgrade(connect(f"sqlite:///{tmp_path / 'terrine.sqlite'}"), SECRET_KEY)
    finding, summary = found(ledger)
    assert finding.subject == "ledger of study"
    assert "entry 2: altered" in finding.evidence
    assert "1 projects" in summary.evidence


def test_a_project_with_lowered_prices_is_named(ledger: Ledger) -> None:
    """The ledger agrees with itself; only the votes say that the prices are too low."""
    spec = CONFIDENT | {"sigma1": 60.0, "sigma2": 45.0, "answer_share": 0.5}
    mechanism = build_mechanism(spec, teachers=250, classes=10)
    quoted = quote(mechanism, 1.0, 1e-6)
    ledger.projects.open(NewProject("fair", "mnist", spec, quoted))
    assert list(check_project(ledger, ledger.projects.get("fair"))) == []
    half = {o: replace(p, cost=p.cost // 2) for o, p in quoted.prices.items()}
    ledger.projects.open(NewProject("cheap", "mnist", spec, replace(quoted, prices=half)))
    found = list(check_project(ledger, ledger.projects.get("cheap")))
    holds(found, "prices", "low")


def test_a_project_with_a_lowered_price_of_answers_is_named(ledger: Ledger) -> None:
    """A tenth below what the worst votes need, and again only these say so."""
    spec = {"name": "gnmax", "sigma": 40.0}
    mechanism = build_mechanism(spec, teachers=250, classes=10)
    chosen = choose(mechanism, 1.0, 1e-6, cap_rule=GDP).terms
    quoted = quote(mechanism, 1.0, 1e-6, rule=Rule("rdp", 17.7))
    quoted = replace(quoted, choice=chosen.choice)
    ledger.projects.open(NewProject("fair", "mnist", spec, quoted))
    assert list(check_project(ledger, ledger.projects.get("fair"))) == []
    lower = {o: replace(p, cost=p.cost * 9 // 10) for o, p in quoted.prices.items()}
    ledger.projects.open(NewProject("cheap", "mnist", spec, replace(quoted, prices=lower)))
    found = list(check_project(ledger, ledger.projects.get("cheap")))
    holds(found, "price", "low")
