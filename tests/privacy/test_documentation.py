"""The numbers in the documentation are what the code beside them prints."""

from __future__ import annotations

import doctest
import re
from math import ceil, exp
from pathlib import Path

import pytest

from terrine_server.planning.first_project import default_delta
from terrine_server.privacy import epsilon_from_gdp, gdp_budget

DOCS = Path(__file__).resolve().parents[2] / "docs"

PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "\n>>> " in page.read_text("utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_number_is_printed_by_its_code(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_pages_with_numbers_are_found() -> None:
    assert {"gnmax", "joint-price", "simulation"} <= {page.stem for page in PAGES}


def test_the_tables_for_committees_are_those_that_are_computed() -> None:
    delta = 1e-5

    def right_about_a_toss_up(epsilon: float) -> float:
        return (exp(epsilon) + delta) / (1 + exp(epsilon))

    def caught(epsilon: float, accused: float = 0.01) -> float:
        return min(exp(epsilon) * accused + delta, 1 - exp(-epsilon) * (1 - accused - delta))

    def of_a_person(records: int, epsilon: float) -> float:
        squared = records**2 * gdp_budget(epsilon, delta)  # μ of Gaussian noise grows as they do
        return ceil(10 * epsilon_from_gdp(squared, delta)) / 10

    odds = "".join(
        f"| {epsilon:g} | {right_about_a_toss_up(epsilon):.1%} | {caught(epsilon):.1%} |\n"
        for epsilon in (0, 0.1, 0.5, 1, 2, 4, 8)
    )
    people = "".join(
        f"| {records} | {' | '.join(str(of_a_person(records, each)) for each in (0.5, 1, 2))} |\n"
        for records in (2, 4, 8)
    )
    page = (DOCS / "adoption.md").read_text("utf-8")
    tables = re.findall(r"(?:^\| [\d.]+ \|.*\n)+", page, re.MULTILINE)
    assert tables == [odds.replace("%", " %"), people]


def test_the_delta_that_committees_are_told_is_the_one_that_quickstart_chooses() -> None:
    page = (DOCS / "adoption.md").read_text("utf-8")
    found = re.search(r"for\s+([\d,]+)\s+people\s+([\d.]+);", page)
    assert found is not None
    people, delta = found.groups()
    assert f"{default_delta(int(people.replace(',', ''))):.6f}" == delta
