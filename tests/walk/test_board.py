"""What `benchmarks/board.py` deals to the product's peers, and what it makes of what they say."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import board
from board import (
    PRODUCT,
    PRODUCT_LABELS,
    PUBLIC_ALONE,
    Deal,
    Result,
    cell,
    deal,
    rank,
    read_columns,
    read_forecast,
    read_results,
    run_peer,
    run_plain,
    run_sums,
    spend,
    standing,
    summarize,
)
from datasets import TableSource
from support.wording import holds
from terrine_protocol.schema import Column, TableSchema


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_who_spends_in_our_sense_protects_a_replaced_row_as_we_do(epsilon: float) -> None:
    """By the tight δ of a Gaussian mechanism: one row moves its mean by 1, a replaced one by 2."""

    def tight_delta(shift: float, at: float) -> float:
        return float(
            norm.cdf(shift / 2 - at / shift) - math.exp(at) * norm.cdf(-shift / 2 - at / shift)
        )

    own, delta = spend(False, "ours", epsilon, 1e-5)
    low, high = 1e-3, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if tight_delta(middle, own) < delta else (low, middle)
    assert tight_delta(2 * low, epsilon) <= 1e-5
    assert spend(True, "ours", epsilon, 1e-5) == spend(False, "own", epsilon, 1e-5)


def test_columns_are_read_by_the_public_table_alone(tmp_path: Path) -> None:
    texts = {
        "private": "age,town,late\n200,Ghent,yes\n,Bruges,no\n",
        "pool": "age,town,late\n30,Bruges,no\n50,Ypres,yes\n",
        "tested": "age,town,late\n-4,Ypres,no\n",
    }
    paths = []
    for name, text in texts.items():
        paths.append(tmp_path / f"{name}.csv")
        paths[-1].write_text(text)
    schema = TableSchema(
        columns=(
            Column(name="age", role="numeric", low=0, high=100),
            Column(name="town", role="categorical", values=("Bruges", "Ypres")),
            Column(name="late", role="label", values=("no", "yes")),
        )
    )
    columns, (private, pool, tested) = read_columns(paths, schema)
    assert columns == [{"name": "age", "low": 0, "high": 100}, {"name": "town", "values": 2}]
    assert private.tolist() == [[100, -1], [50, 0]], "clipped, unknown; missing, known"
    assert pool.tolist() == [[30, 0], [50, 1]]
    assert tested.tolist() == [[0, 1]]


def result(method: str, seed: int, accuracy: float) -> Result:
    at = Result("births", seed, 1.0, method, "both")
    return replace(at, tested=400, accuracy=accuracy, balanced=0.5)


def test_an_interval_covers_the_tested_rows_and_the_seeds() -> None:
    found = [result(PRODUCT, 0, 0.8), result(PRODUCT, 1, 0.8)]
    found += [result("plain-pate", 0, 0.6), result("plain-pate", 1, 0.8)]
    off = summarize(found).set_index("method")["accuracy_off"]
    assert off[PRODUCT] == pytest.approx(2 * (0.16 / 800) ** 0.5)
    assert off["plain-pate"] == pytest.approx(0.2), "two standard errors of a mean of two"


def test_who_learns_from_the_pools_labels_stands_beside_the_student_that_does() -> None:
    found = [result(PRODUCT, 0, 0.7), result(PRODUCT_LABELS, 0, 0.9)]
    found += [result("plain-pate", 0, 0.6), result("opacus-warm", 0, 0.8)]
    ranked = rank(found)
    title = board.PEERS["opacus-warm"].title
    alone, beside = standing(ranked, PRODUCT), standing(ranked, PRODUCT_LABELS)
    holds(alone, "+10.0")
    assert title not in alone
    holds(beside, "+10.0")
    assert title in beside


def test_who_is_ahead_is_told_on_the_seeds_that_both_have() -> None:
    """A seed whose rows are easier is no advantage of who ran on it alone."""
    found = [result(PRODUCT, seed, 0.6 + seed / 10) for seed in range(4)]
    found += [result("plain-pate", seed, 0.5 + seed / 10) for seed in range(3)]
    found += [replace(result("dp-ebm", 3, 0.89), reading="ours")]
    found += [replace(result("opacus-features", 3, 0.95), reading="own")]
    assert standing(rank(found), PRODUCT) == f"**+1.0** ({board.PEERS['dp-ebm'].title}, 1)"
    holds(standing(rank(found[:7]), PRODUCT), "**+10.0**", "±", "3")
    assert standing(rank(found), PRODUCT_LABELS) == ""


@pytest.mark.parametrize(
    ("said", "forecast"),
    [
        ("students were right on 90.1% to 93.4%, AUC 0.71 to 0.87, balanced", (0.71, 0.87)),
        ("students were right on 85.0% to\n 87.5%, balanced accuracy 84.1%", (0.85, 0.875)),
        ("How good a student becomes cannot be said", None),
    ],
)
def test_what_quickstart_expected_is_kept(said: str, forecast: tuple[float, float] | None) -> None:
    assert read_forecast(said) == forecast


def test_the_pools_labels_alone_are_learned_by_the_better_model(tmp_path: Path) -> None:
    """Where two numbers have the same sign, which no regression of them tells."""
    x, y = np.random.default_rng(0).normal(size=(2, 3000)).round(3)
    frame = pd.DataFrame({"x": x, "y": y, "same": np.where(x * y > 0, "yes", "no")})
    made = deal("signs", TableSource("files", lambda: frame, "same"), 0, tmp_path)
    found = run_plain(PUBLIC_ALONE, made, 0)
    assert found["settings"] == "boosting"
    assert found["accuracy"] > 0.9


def test_sums_are_released_and_learned_from_by_functions(tmp_path: Path) -> None:
    hours = np.random.default_rng(0).integers(0, 24, 3000)
    frame = pd.DataFrame({"hour": hours, "late": np.where(hours > 12, "yes", "no")})
    made = deal("trains", TableSource("files", lambda: frame, "late"), 0, tmp_path)
    for found in run_sums(made, 10.0, 0):
        assert found["accuracy"] > 0.8
        assert found["auc"] > 0.9


def test_what_failed_is_said_in_its_cell() -> None:
    failed = Result("births", 0, 1.0, "dp-ebm", "ours", failed="took more than 900 s")
    (row,) = summarize([failed]).itertuples()
    assert cell(row) == "took more than 900 s"


@pytest.mark.nightly
def test_a_peer_that_fails_is_said_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the peers on scikit-learn's digits, one works here, and one lacks its packages."""
    python = tmp_path / "peers" / "models" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    results, page = tmp_path / "board.jsonl", tmp_path / "board.md"
    page.write_text(f"before\n{board.BEGIN}\nold\n{board.END}\nafter\n")
    given = ["digits", "--epsilon", "1", "--seeds", "1", "--results", str(results)]
    given += ["--methods", "without privacy,diffprivlib-logistic,plain-pate"]
    monkeypatch.setattr(sys, "argv", ["board.py", *given, "--peers", str(tmp_path / "peers")])
    board.main()
    found = {each.method: each for each in read_results(results)}
    holds(str(found["diffprivlib-logistic"].failed), "diffprivlib")
    assert (found["plain-pate"].accuracy or 0) > 0.3
    assert (found["without privacy"].accuracy or 0) > 0.9
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    holds(written, "dp-accounting")
    assert "old" not in written
    assert (tmp_path / "board.png").stat().st_size > 1000

    capsys.readouterr()
    board.main()
    assert capsys.readouterr().out == "", "what is known is not run again"


def test_without_data_the_board_says_that_it_skips(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["board.py"])
    board.main()
    holds(capsys.readouterr().out, "Skipped")


@pytest.fixture
def planes(tmp_path: Path) -> Deal:
    """Of two hundred persons with ten rows each."""
    random = np.random.default_rng(0)
    people, hours = random.integers(0, 200, 2000), random.integers(0, 24, 2000)
    late = np.where(hours > 12, "yes", "no")
    frame = pd.DataFrame({"hour": hours, "plane": [f"N{n}" for n in people], "late": late})
    return deal("planes", TableSource("files", lambda: frame, "late", "plane"), 0, tmp_path)


def test_in_our_sense_a_peer_gets_one_row_of_each_person(planes: Deal, tmp_path: Path) -> None:
    planes.save(tmp_path / "dealt.npz", one_each=True)
    persons = pd.read_csv(planes.files.private)["plane"].nunique()
    with np.load(tmp_path / "dealt.npz") as file:
        sizes = {len(file[f"private_{name}"]) for name in ("inputs", "features", "raw", "labels")}
    assert sizes == {persons}
    assert planes.delta < 1 / persons


def test_a_peer_without_an_environment_is_said(planes: Deal, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    said = run_peer("plain-pate", planes, (1, 1e-5), 0, nowhere, one_each=False)
    holds(said["failed"], str(nowhere))
