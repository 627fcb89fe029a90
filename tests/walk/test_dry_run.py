"""`terrine quickstart --dry-run`: what a project would buy, with nothing made."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.processes import Terrine
from support.wording import holds


@pytest.fixture
def terrine(terrine: Terrine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terrine:
    """The command, run in its own directory, beside a data directory that is not there."""
    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return terrine


def write_rows(path: Path, rows: int) -> None:
    """Rows of people of whom those who are ill are older."""
    random = np.random.default_rng(0)
    ill = random.random(rows) < 0.3
    age = np.clip(random.normal(40 + 25 * ill, 10), 0, 100).round(3)
    lines = [f"{a},{'yes' if i else 'no'}" for a, i in zip(age, ill, strict=True)]
    path.write_text("\n".join(["age,ill", *lines]) + "\n")


@pytest.fixture
def survey(tmp_path: Path) -> Path:
    """400 public rows."""
    path = tmp_path / "survey.csv"
    write_rows(path, 400)
    return path


GIVEN = ("quickstart", "--dry-run", "--public", "survey.csv", "--label", "ill")


def test_options_are_ranked_by_what_their_students_will_be(terrine: Terrine, survey: Path) -> None:
    of = ("--population", "patients", "--disjoint")
    given = (*GIVEN, "--units", 4_000, *of, "--anyway")
    said = terrine(*given, "--verbose").fine
    options = ("sums", "neighbours", "trained teachers", "confident answers", "designed rows")
    for named in (*options, "true labels", "largest"):
        holds(said, *named.split())
    for heading in ("Protects", "How much", "By what", "It buys", "It uses"):
        assert f"\n{heading}  " in f"\n{said}"
    holds(said, "4,000")
    command = "terrine quickstart PRIVATE --public survey.csv --label ill --epsilon 1 "
    command += "--population patients --disjoint --anyway"
    assert command in said
    found = json.loads(terrine("--json", *given).fine)
    assert found["command"] == command
    assert {each["way"] for each in found["ways"]} == set(options)
    assert found["own_labels"]["rows"] == 400
    alone = ({"forecast": found[known]} for known in ("true_labels", "own_labels"))
    for each in (*found["ways"], *alone):
        low, high = each["forecast"]["accuracy"]
        assert 0.7 < low < high <= 1
    assert [path.name for path in survey.parent.iterdir()] == ["survey.csv"], "nothing is written"


def test_a_dry_run_says_what_the_run_will_and_makes_nothing(terrine: Terrine, survey: Path) -> None:
    write_rows(survey.with_name("visits.csv"), 2_000)
    given = ("visits.csv", "--public", "survey.csv", "--label", "ill", "--anyway", "--epsilon", 3)
    before = sorted(path.name for path in survey.parent.iterdir())
    forecast = terrine("quickstart", *given, "--dry-run").fine
    assert sorted(path.name for path in survey.parent.iterdir()) == before
    done = terrine("quickstart", *given, "--yes").fine
    five = done.splitlines()[:5]
    assert forecast.splitlines()[:5] == five
    assert five[0].startswith("Protects")
    assert terrine("quickstart", *given, "--name", "again", "--dry-run").fine.count("people") > 0
    holds(terrine("quickstart", *given[:-1], 9, "--name", "more", "--dry-run").err, "room")


def test_without_public_labels_it_says_so_and_what_ranks_mechanisms(
    terrine: Terrine, tmp_path: Path
) -> None:
    np.savez(tmp_path / "pool.npz", x=np.zeros((50, 4), np.uint8))
    given = ("quickstart", "--dry-run", "--public", "pool.npz", "--units", 4_000)
    holds(terrine(*given, "--classes", "a,b").refused, "forecast", "labels", "plan")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (GIVEN, "--units"),
        ((*GIVEN, "visits.csv", "--units", "9"), "--units"),
        (("quickstart", "--public", "survey.csv", "--units", "9"), "--dry-run"),
        (("quickstart", "--dry-run", "--public", "nowhere.csv", "--units", "9"), "nowhere.csv"),
        (("quickstart", "--dry-run", "--public", "survey.csv", "--units", "4000"), "--label"),
        (("--json", "quickstart", "survey.csv", "--public", "survey.csv"), "--json"),
    ],
)
def test_a_dry_run_says_what_it_needs(
    terrine: Terrine, survey: Path, given: tuple[str, ...], message: str
) -> None:
    holds(terrine(*given).refused, message)
