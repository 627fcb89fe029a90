"""The audit knows what a project of `neighbours` may promise, and finds what is more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.ledgers import NEIGHBOURS, Opened, many, open_people
from support.wording import holds
from terrine_addons.audit.ledger import check_project
from terrine_server.ledger import NewProject
from terrine_server.privacy import Terms


@pytest.fixture
def opened(database_url: str) -> Opened:
    return open_people(database_url)


def allowed(terms: Terms, **changed: int) -> Terms:
    assert terms.allowance is not None
    return replace(terms, allowance=replace(terms.allowance, **changed))


def test_a_project_of_neighbours_passes(opened: Opened) -> None:
    opened.ask(many(opened.people, 8))
    project = opened.ledger.projects.get("study")
    assert list(check_project(opened.ledger, project)) == []


@pytest.mark.parametrize("changed", [{"most": 99}, {"norm": 2}, {"queries": 41}])
def test_terms_that_allow_more_are_found(opened: Opened, changed: dict[str, int]) -> None:
    terms = allowed(opened.project.terms, **changed)
    project = opened.ledger.projects.open(NewProject("more", "people", NEIGHBOURS, terms))
    (problem,) = check_project(opened.ledger, project)
    holds(problem, "quoted")
