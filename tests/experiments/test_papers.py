"""Figures of the papers: rows, readers, costs, and whole chapters on small data."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from scipy.io import savemat

from support.processes import Terrine
from support.wording import holds, refuses
from terrine_experiments import near_zero, pate_2017, scalable_2018
from terrine_experiments.__main__ import CHAPTERS
from terrine_experiments.costs import (
    MOMENTS,
    Selective,
    enforced,
    lnmax_cost,
    sanitised_as_stated,
    selective_cost,
)
from terrine_experiments.page import (
    Chapter,
    Figure,
    Item,
    keep_missing,
    number,
    percent,
    read_rows,
    shown_epsilon,
    verdict,
    write_page,
)
from terrine_experiments.papers import PAPERS
from terrine_experiments.results import shown_interval
from terrine_experiments.scalable_2018 import MNIST_ROW, ROUNDS
from terrine_experiments.sources import load
from terrine_experiments.study import Study
from terrine_models.data.arrays import DataError
from terrine_server.privacy import VoteOutcome, build_mechanism, quote

ANSWERED, ABSTAINED = VoteOutcome.ANSWERED, VoteOutcome.ABSTAINED
SMALL_ROUNDS = (Selective(14, 3, 2, 60, 50, 0.009, 26.4), Selective(8, 3, 2, 80, 50, 0.008, 38.7))
PLACES = ("items", "made", "teachers", "sanitised", "stable", "immutable")
DOCS = Path(__file__).parents[2] / "docs" / "papers.md"


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
    baselines = {name: {each.baseline for each in papers} for name, papers in PAPERS.items()}
    assert baselines["mnist"] == {0.9918, 0.992}
    assert (baselines["diabetes"], baselines["glyph"]) == ({0.9381}, {0.822})
    for rows_of in (near_zero.NEAR_ZERO, near_zero.NEAR_ZERO_LABELS):
        assert len(rows_of["svhn"]) == len(rows_of["mnist"])
    assert scalable_2018.ROWS["svhn"][2].printed.endswith("5.45")
    assert "1.00 ± 0.081" in scalable_2018.BOTH_ROUNDS


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
    assert lnmax_cost(votes[:1_000], 0.05, MOMENTS).epsilon(1e-5) == pytest.approx(2.683, abs=1e-3)
    cost = selective_cost(votes[:640], MNIST_ROW)
    assert cost.passed.sum() == pytest.approx(384.56, abs=0.01)
    assert cost.epsilon(1e-5) == pytest.approx(1.120, abs=1e-3)
    assert cost.running(1e-5)[-1] == pytest.approx(cost.epsilon(1e-5))
    reference = json.loads((shared_data / "pate_reference.json").read_text())
    for each in reference["lnmax"]:
        moments = np.array(each["moments_l"], float)
        rdp = lnmax_cost(np.array([each["votes"]]), each["gamma"], moments + 1).answer[0]
        assert moments * rdp == pytest.approx(np.array(each["logmgf_2017"]), rel=1e-8)
    for row in (MNIST_ROW, *ROUNDS):
        at = selective_cost(votes[:640], row, orders=row.orders)
        claimed, holding = sanitised_as_stated([(row, at)], 1e-5)
        (known,) = (
            each
            for each in reference["gnss"]
            if (each["order"], each["beta"]) == (row.order, row.beta)
        )
        alone = claimed - known["rdp_paper_formula"]
        assert holding - known["own_rdp_corrected"] == pytest.approx(alone, rel=1e-6)
    rounds = [(row, selective_cost(votes[:640], row, orders=row.orders)) for row in ROUNDS]
    each = [np.array(sanitised_as_stated([one], 1e-5)) for one in rounds]
    converted_once = sum(each) - math.log(1e5) / 49
    assert sanitised_as_stated(rounds, 1e-5) == pytest.approx(tuple(converted_once))


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


@pytest.mark.parametrize(
    ("draws", "paper", "said"),
    [
        (0.985, 0.98, "agrees within one point: 0.5 points above it"),
        ([0.985] * 5, 0.98, "agrees within one point: 0.5 points above it"),
        (0.95, 0.98, "3.0 points below it"),
        (0.991, 0.98, "1.1 points above it"),
        ([0.823, 0.825, 0.827], 0.83, "agrees within one point: 0.5 ± 0.2 points below it"),
        ([0.819, 0.823, 0.827], 0.837, "1.4 ± 0.4 points below it"),
        ([0.831, 0.821, 0.811], 0.83, "undecided: 0.9 ± 1.0 points below it"),
        ([0.832, 0.825, 0.818], 0.84, "undecided: 1.5 ± 0.7 points below it"),
    ],
)
def test_a_verdict_is_of_the_mean_and_spread_of_all_draws(
    draws: Figure, paper: float, said: str
) -> None:
    assert verdict(draws, paper) == said


def test_figures_are_shown_with_their_spread_unless_it_is_rounded_to_nothing() -> None:
    assert percent(0.98) == "98.0 %"
    assert percent([0.98, 0.97]) == "97.5 ± 0.7 %"
    assert percent([0.98, 0.9801]) == "98.0 %"
    assert number([1_000, 1_200]) == "1,100 ± 141"
    assert shown_epsilon(1.234) == "ε 1.23"
    assert shown_epsilon([1.0, 1.2]) == "ε 1.10 ± 0.14"
    assert shown_epsilon([1.0, None]) == shown_epsilon(None) == "ε > 100"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    found = tmp_path / "page" / "papers.md"
    found.parent.mkdir()
    head = "| item | the paper |\n|---|---|"
    places = (f"prose\n<!-- {each} -->\n{head}\n<!-- end -->\n" for each in PLACES)
    found.write_text("".join(places))
    return found


def chapter(*items: Item, **data: bool) -> Chapter:
    """What was found, with a table of its own that says the same."""
    rows = [[each.what, each.theirs] for each in items]
    return Chapter(items, {"teachers": [["a", "b"], *rows]}, data)


def test_rows_of_papers_that_are_not_made_now_stay(page: Path) -> None:
    first = chapter(Item("P17, LNMax, mnist", "98 %", "97 %"), mnist=True)
    write_page(page, {"pate-2017": first}, 5)
    third = Chapter([Item("NZC, LNMax, mnist", "5 %", "6 %")], {}, {"mnist": True})
    write_page(page, {"near-zero": third}, 7)
    text = page.read_text()
    assert text.count("prose\n") == len(PLACES)
    assert read_rows(page, text, "items") == [
        ["P17, LNMax, mnist", "98 %", "97 %", "–", "–"],
        ["NZC, LNMax, mnist", "5 %", "6 %", "–", "–"],
    ]
    assert read_rows(page, text, "teachers") == [["P17, LNMax, mnist", "97 %"]]
    made = read_rows(page, text, "made")
    assert [(row[0], row[2]) for row in made] == [("P17, mnist", "5"), ("NZC, mnist", "7")]
    again = chapter(Item("P17, LNMax, mnist", "98 %", "96 %"), mnist=True)
    write_page(page, {"pate-2017": again}, 5)
    assert [row[2] for row in read_rows(page, page.read_text(), "items")] == ["96 %", "6 %"]
    page.write_text("prose")
    with refuses(DataError, "items", "papers.md"):
        write_page(page, {}, 5)


def test_rows_whose_data_are_not_at_hand_stay(page: Path) -> None:
    letters = [Item(f"P18, LNMax, our letters{own}", "72 %", "73 %") for own in ("", ", own")]
    lacking = Item("P18, LNMax, our letters", "72 %", "no data: private.npz")
    write_page(page, {"scalable-2018": chapter(lacking, letters=False)}, 5)
    assert [row[2] for row in read_rows(page, page.read_text(), "items")] == [lacking.theirs]
    assert not read_rows(page, page.read_text(), "made")
    write_page(page, {"scalable-2018": chapter(*letters, letters=True)}, 5)
    made = page.read_text()
    mnist = Item("P18, LNMax, mnist", "9 %", "8 %")
    write_page(page, {"scalable-2018": chapter(mnist, lacking, letters=False)}, 9)
    text = page.read_text()
    assert [row[2] for row in read_rows(page, text, "items")] == ["8 %", "73 %", "73 %"]
    assert [row[1] for row in read_rows(page, text, "teachers")] == ["8 %", "73 %", "73 %"]
    assert read_rows(page, text, "made") == read_rows(page, made, "made")


def test_rows_of_one_name_are_told_apart_by_the_papers_figure() -> None:
    old = [["LNMax, svhn", "500 answers", "1 %"], ["LNMax, svhn", "1,000 answers", "2 %"]]
    lacking = [[name, paper, "no data: train"] for name, paper, _ in old]
    assert keep_missing(old, lacking) == old
    assert keep_missing([], lacking) == lacking
    rounds = [["letters, 8,000 queries", "2.03", "1"], ["letters, round 1", "–", "2"]]
    assert keep_missing(rounds, [["letters", "2.03", "no data: private"]]) == rounds
    assert keep_missing(lacking, lacking) == lacking


def test_nothing_is_written_beside_the_documentation_unless_it_is_named(
    experiments: Terrine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    def draw(study: Study, pictures: Path) -> Chapter:
        drawn.append(pictures)
        return Chapter([Item("NZC, LNMax, mnist", "5 %", "new")], {}, {"mnist": True})

    monkeypatch.setitem(CHAPTERS, "near-zero", draw)
    (tmp_path / "docs").mkdir()
    docs, out = tmp_path / "docs" / "papers.md", tmp_path / "out"
    docs.write_bytes(DOCS.read_bytes())
    monkeypatch.chdir(tmp_path)
    experiments("paper", "near-zero", "--data", tmp_path, "--out", out)
    assert docs.read_bytes() == DOCS.read_bytes()
    found, before = (each.read_text() for each in (out / "papers.md", DOCS))
    kept = [row for row in read_rows(DOCS, before, "items") if not row[0].startswith("NZC")]
    assert read_rows(out, found, "items")[:-1] == kept, "it begins with the documentation's"
    experiments("paper", "near-zero", "--data", tmp_path, "--out", out, "--page", docs)
    assert docs.read_bytes() != DOCS.read_bytes()
    assert drawn == [out, docs.parent]


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
    monkeypatch.setattr("terrine_experiments.study.SUPERVISED_STEPS", 20)
    monkeypatch.setattr("terrine_experiments.study.DRAWS", 2)
    monkeypatch.setattr(scalable_2018, "FEWER", (10, 20))
    row = Selective(12, 3, 2, 120, 14, 0.0329, 6.23, "2.00 → 2.52", (8, 0.025, 4.28))
    svhn = scalable_2018.ROWS["svhn"]
    rows = {"mnist": ("networks", 20, row), "svhn": svhn, "glyph": ("heads", 20, row)}
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
    for rows in (near_zero.NEAR_ZERO["svhn"], near_zero.NEAR_ZERO_LABELS["svhn"]):
        assert all(f"{100 * share:.1f} %" in text for share in rows.values())
    assert "5.45" in text
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
        json.loads((study.out / "found" / f"glyph-round-{number}-draw-1.json").read_text())["found"]
        for number in (1, 2)
    )
    before, after = np.array(first["labels"]), np.array(second["labels"])
    open_before = before < 0
    assert np.array_equal(before[~open_before], after[~open_before])
    asked = min(SMALL_ROUNDS[1].queries, open_before.sum())
    assert sum(second["outcomes"].values()) == asked == len(second["baselines"])
    assert set(second["outcomes"]) <= {"answered", "reinforced", "abstained"}
    assert (np.array(second["baselines"]).sum(axis=1) - 20).max() <= 10
    assert [line[0].split(", ")[1] for line in lines] == ["round 1", "round 2", "both rounds"]
    assert lines[-1][1] == "0.837 → 1.00 ± 0.081"
    holds(item.what, "Interactive", "letters")


def test_a_paper_that_is_not_known_is_refused(
    experiments: Terrine, tmp_path: Path, page: Path
) -> None:
    refused = experiments("paper", "pate-2016", "--data", tmp_path, "--page", page).refused
    holds(refused, "pate-2016", "pate-2017", "near-zero")
    nowhere = experiments("paper", "all", "--data", tmp_path, "--page", tmp_path / "no.md").refused
    holds(nowhere, "no.md")


@pytest.mark.parametrize(
    ("figures", "tested", "shown"),
    [
        ([0.98], 1000, "98.00% (one run: no interval)"),
        ([0.80, 0.80], 10**12, "80.00% ± 0.01 (95 %, 2 runs)"),
        ([0.90, 0.91, 0.92], 10**12, "91.00% ± 4.97 (95 %, 3 runs)"),
        ([0.97, 0.98, 0.99], 10**12, "98.00%, 93.03 to 100.00 (95 %, 3 runs)"),
        ([0.01, 0.02, 0.03], 10**12, "2.00%, 0.00 to 6.97 (95 %, 3 runs)"),
    ],
)
def test_no_interval_of_shares_is_beyond_none_or_all(
    figures: list[float], tested: int, shown: str
) -> None:
    assert shown_interval(figures, tested) == shown
