"""Figures of the papers: rows, readers, costs, and whole chapters on small data."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from scipy.io import savemat

from support.processes import Terrine
from support.wording import holds, refuses
from terrine_experiments import near_zero, pate_2017, scalable_2018
from terrine_experiments.costs import (
    MOMENTS,
    Selective,
    enforced,
    lnmax_cost,
    sanitised_as_stated,
    selective_cost,
)
from terrine_experiments.page import CHAPTERS, Chapter, Item, verdict, write_page
from terrine_experiments.papers import PAPERS
from terrine_experiments.scalable_2018 import MNIST_ROW, ROUNDS
from terrine_experiments.sources import load
from terrine_experiments.study import Study
from terrine_models.data.arrays import DataError
from terrine_server.privacy import VoteOutcome, build_mechanism, quote

ANSWERED, ABSTAINED = VoteOutcome.ANSWERED, VoteOutcome.ABSTAINED
SMALL_ROUNDS = (Selective(14, 3, 2, 0, 50, 0.009, 26.4), Selective(8, 3, 2, 0, 50, 0.008, 38.7))
PLACES = ("items", "teachers", "sanitised", "stable", "immutable")


def test_every_row_of_the_papers_is_there() -> None:
    rows = {
        (name, each.epsilon, each.labels, each.accuracy)
        for name, papers in PAPERS.items()
        for each in papers
    }
    assert rows >= {
        ("mnist", 2.04, 100, 0.98),
        ("mnist", 8.03, 1_000, 0.981),
        ("svhn", 5.04, 500, 0.827),
        ("svhn", 8.19, 1_000, 0.907),
        ("adult", 2.66, 500, 0.83),
        ("diabetes", 1.44, None, 0.9394),
        ("glyph", 4.3, 4_000, 0.724),
        ("glyph", 2.03, 10_762, 0.755),
        ("glyph", 0.837, 4_341, 0.732),
    }


def test_house_numbers_are_read_as_published(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pictures, digits = random.integers(0, 256, (32, 32, 3, 60), np.uint8), np.arange(60) % 10
    for name in ("train_32x32.mat", "test_32x32.mat"):
        savemat(tmp_path / name, {"X": pictures, "y": np.where(digits, digits, 10)[:, None]})
    source = load("svhn", tmp_path)
    assert np.array_equal(source.private.labels, digits)
    assert np.array_equal(source.test.inputs[7], pictures[..., 7])
    assert source.delta == 1e-6
    (tmp_path / "test_32x32.mat").write_bytes(b"no archive of MATLAB")
    with refuses(DataError, "test_32x32.mat", "SVHN"):
        load("svhn", tmp_path)


def test_stays_in_hospital_are_read_as_published(tmp_path: Path) -> None:
    file, random = tmp_path / "diabetic_data.csv", np.random.default_rng(0)
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["encounter_id", "patient_nbr", "age", "time_in_hospital", "readmitted"])
        for stay in range(1_200):
            again = ("<30", ">30", "NO")[stay % 3]
            days = int(random.integers(1, 14))
            patient = 10 * (stay // 2) + (stay >= 200)
            writer.writerow([stay, patient, f"[{stay % 9}0)", days, again])
    source = load("diabetes", tmp_path)
    assert source.test.encoding is not None
    assert source.test.encoding.features == ["age", "time_in_hospital"]
    assert set(source.test.classes) == {"soon", "later"}
    assert len(source.test) == 200, "both stays of patients whose number ends in 0"
    soon = source.private.classes.index("soon")
    assert (source.private.labels == soon).mean() == pytest.approx(1 / 3, abs=0.01)
    file.write_text("a,b\n1,2\n")
    with refuses(DataError, "readmitted", "patient_nbr"):
        load("diabetes", tmp_path)


def test_costs_are_those_of_the_papers_rules(shared_data: Path) -> None:
    with np.load(shared_data / "mnist_250_votes.npz") as archive:
        votes = archive["counts"].astype(np.int64)
    assert lnmax_cost(votes[:100], 0.05, MOMENTS).epsilon(1e-5) == pytest.approx(1.465, abs=1e-3)
    cost = selective_cost(votes[:640], MNIST_ROW)
    assert cost.passed.sum() == pytest.approx(384.56, abs=0.01)
    assert cost.epsilon(1e-5) == pytest.approx(1.120, abs=1e-3)
    assert cost.running(1e-5)[-1] == pytest.approx(cost.epsilon(1e-5))
    reference = json.loads((shared_data / "pate_reference.json").read_text())
    for row in (MNIST_ROW, *ROUNDS):
        at = selective_cost(votes[:640], row, orders=row.orders)
        claimed, holding = sanitised_as_stated(row, at, 1e-5)
        (known,) = (
            each
            for each in reference["gnss"]
            if (each["order"], each["beta"]) == (row.order, row.beta)
        )
        alone = claimed - known["rdp_paper_formula"]
        assert holding - known["own_rdp_corrected"] == pytest.approx(alone, rel=1e-6)


def test_what_is_enforced_is_the_least_budget_that_pays() -> None:
    mechanism = build_mechanism({"name": "gnmax", "sigma": 40.0}, teachers=250, classes=10)
    least = enforced((mechanism, {ANSWERED: 100}), delta=1e-5)
    assert least is not None
    assert quote(mechanism, least * 1.01, 1e-5).budget > 0
    more = enforced((mechanism, {ANSWERED: 101}), delta=1e-5)
    assert more is not None
    assert least <= more < 1.02 * least
    both = enforced(*2 * [(mechanism, {ANSWERED: 100})], delta=1e-5)
    assert both is not None
    assert 1.3 * least < both < 2 * least, "less than the sum, since deltas are shared"
    assert enforced((mechanism, {ANSWERED: 10**7}), delta=1e-5) is None
    stable = {"name": "stable", "sigma": 6.0, "delta_per_query": 4e-9}
    asked = (build_mechanism(stable, teachers=250, classes=10), {ANSWERED: 90, ABSTAINED: 10})
    assert enforced(asked, delta=1e-5) is not None
    assert enforced((asked[0], {ANSWERED: 900}), delta=1e-5) is None, "too much of δ"


def test_a_verdict_says_how_far_apart_figures_are() -> None:
    assert verdict(0.985, 0.98) == "agrees within one point"
    assert verdict(0.95, 0.98) == "3.0 points below it"
    assert verdict(0.991, 0.98) == "1.1 points above it"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    found = tmp_path / "page" / "papers.md"
    found.parent.mkdir()
    found.write_text("".join(f"prose\n<!-- {each} -->\nold\n<!-- end -->\n" for each in PLACES))
    return found


def test_a_page_keeps_its_prose_and_the_chapters_of_before(page: Path, tmp_path: Path) -> None:
    page.write_text(page.read_text().replace("old\n", "\n"))
    first = Chapter([Item("one | row", "98 %")], {"teachers": "| a |"})
    write_page(page, tmp_path, {CHAPTERS[0]: first})
    write_page(page, tmp_path, {CHAPTERS[2]: Chapter([Item("two", "5 %")], {})})
    text = page.read_text()
    assert text.count("prose\n") == len(PLACES)
    assert text.index("one") < text.index("two")
    assert "<!-- teachers -->\n| a |\n<!-- end -->" in text
    page.write_text("prose")
    with refuses(DataError, "items", "papers.md"):
        write_page(page, tmp_path, {})


@pytest.fixture
def study(idx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """MNIST's files with 600 and 160 digits of 8 x 8 pixels, and the same as characters."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "mnist").symlink_to(idx)
    source = load("mnist", idx)
    (data / "glyph").mkdir()
    for name, part in (("private", source.private), ("public", source.test)):
        classes = np.array(part.classes)
        np.savez(data / "glyph" / f"{name}.npz", x=part.inputs, y=part.labels, classes=classes)
    monkeypatch.setattr(pate_2017, "SIZES", {"networks": (5, 20), "heads": (20,)})
    monkeypatch.setitem(pate_2017.POOL, "mnist", 120)
    for module in (pate_2017, near_zero):
        monkeypatch.setattr(module, "TEACHERS", 20)
    monkeypatch.setattr(near_zero, "STABLE", (("heads", 20, 0.6),))
    monkeypatch.setattr(scalable_2018, "POOL", {"mnist": 120, "glyph": 120})
    monkeypatch.setattr(scalable_2018, "FIRST_ROUND", 60)
    monkeypatch.setattr(scalable_2018, "FEWER", (10, 20))
    row = Selective(12, 3, 2, 120, 14, 0.0329, 6.23, 2.52, (8, 0.025, 4.28))
    rows = {"mnist": ("networks", 20, row), "glyph": ("heads", 20, row)}
    monkeypatch.setattr(scalable_2018, "ROWS", rows)
    monkeypatch.setattr(scalable_2018, "ROUNDS", SMALL_ROUNDS)
    monkeypatch.setattr(scalable_2018, "OWN_ROUNDS", SMALL_ROUNDS)
    monkeypatch.setattr("terrine_experiments.study.IMAGES_OF_NETWORKS", 600)
    return Study(data, tmp_path / "out", Console(quiet=True))


@pytest.mark.nightly
def test_the_papers_are_recomputed_on_one_page_with_pictures(
    experiments: Terrine, study: Study, page: Path
) -> None:
    options = ("--data", study.data, "--out", study.out, "--page", page)
    assert "papers.md" in experiments("paper", "all", *options).fine
    text = page.read_text()
    for paper in (each for name in ("mnist", "svhn", "diabetes") for each in PAPERS[name]):
        assert f"ε {paper.epsilon:g}: " in text
    for each in ("train_32x32.mat", "diabetic_data.csv", "1e90", "†"):
        assert each in text
    assert "\nold\n" not in text
    for name in ("2017", "2018-noise", "2018-selective", "near-zero", "margins"):
        with Image.open(page.with_name(f"papers-{name}.webp")) as picture:
            assert picture.width >= 390
    found = {file: file.read_bytes() for file in (study.out / "found").iterdir()}
    assert "papers.md" in experiments("paper", "near-zero", *options).fine
    assert found == {file: file.read_bytes() for file in (study.out / "found").iterdir()}
    assert page.read_text().count("P17, LNMax, mnist") == 2


@pytest.mark.nightly
def test_the_second_round_asks_what_the_first_left_open_and_corrects_the_student(
    study: Study,
) -> None:
    votes = study.votes("glyph", "heads", 20)
    item, lines = scalable_2018.interactive(study, votes, SMALL_ROUNDS)
    first, second = (
        json.loads((study.out / "found" / f"glyph-round-{number}.json").read_text())["found"]
        for number in (1, 2)
    )
    before, after = np.array(first["labels"]), np.array(second["labels"])
    open_before = before < 0
    assert np.array_equal(before[~open_before], after[~open_before])
    assert sum(second["outcomes"].values()) == open_before.sum() == len(second["baselines"])
    assert set(second["outcomes"]) <= {"answered", "reinforced", "abstained"}
    assert (np.array(second["baselines"]).sum(axis=1) - 20).max() <= 10
    assert len(lines) == 2
    holds(item.what, "Interactive", "letters")


def test_a_paper_that_is_not_known_is_refused(
    experiments: Terrine, tmp_path: Path, page: Path
) -> None:
    refused = experiments("paper", "pate-2016", "--data", tmp_path, "--page", page).refused
    holds(refused, "pate-2016", "pate-2017", "near-zero")
    nowhere = experiments("paper", "all", "--data", tmp_path, "--page", tmp_path / "no.md").refused
    holds(nowhere, "no.md")
