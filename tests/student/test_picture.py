"""A student's report says what its figures are; its picture, what they are to be compared with."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from support.wording import holds, says
from terrine_client._report import Report, Round, draw, draw_figure, format_auc, format_metrics
from terrine_models.students.answers import Estimate, EstimatedMetrics
from terrine_models.students.selection import Choice, JudgedMethod
from terrine_server.cli.student import summarize


def example(accuracies: list[float | None], **changed: Any) -> Report:
    rounds = [
        Round(
            asked=100,
            outcomes={"answered": 100},
            charges=100 * number,
            epsilon_spent=0.2 * number,
            accuracy=accuracy,
        )
        for number, accuracy in enumerate(accuracies, 1)
    ]
    made = Report(
        project="study",
        mechanism={"name": "confident_gnmax"},
        protects="one record, 90 of them",
        epsilon=0.5,
        delta=1e-5,
        epsilon_spent=0.4,
        charges=200,
        classes=["a", "b"],
        public_inputs=1000,
        outcomes={"answered": 200},
        reinforced=None,
        asking="representative",
        refused=False,
        ended="Two rounds were made.",
        queries_left=10,
        rounds=rounds,
        held_out=500,
        accuracy=accuracies[-1],
        plain=None,
        majority=None if accuracies[-1] is None else 0.11,
        by_class=[],
        notes=[],
        training={},
        choice=Choice("auto", "kernel", "why", (), 200, 5, False, None),
        spending=[(100, 0.2), (200, 0.4)],
    )
    return replace(made, **changed)


@pytest.mark.parametrize(
    ("value", "error", "ends"), [(0.9, 0.01, "88.04 91.96"), (0.99, 0.1, "79.40 100.00")]
)
def test_the_range_of_an_auc_ends_at_one(value: float, error: float, ends: str) -> None:
    holds(format_auc(Estimate(value, error)), *(f"{end}%" for end in ends.split()))


def test_nothing_is_drawn_where_a_server_is_installed_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terrine_client._report.find_spec", lambda _: None)
    assert not draw(example([0.9]), tmp_path / "accuracy.png")
    assert list(tmp_path.iterdir()) == []


def test_accuracy_and_epsilon_have_a_panel_each_and_the_baselines_are_drawn(tmp_path: Path) -> None:
    report = example([0.97, 0.98])
    figure = draw_figure(report)
    upper, lower = figure.axes  # one scale for each panel: a second would be a third axes
    assert upper.get_position().y0 > lower.get_position().y0
    lines = {str(line.get_label()): line for line in upper.get_lines()}
    assert np.asarray(lines["accuracy of the student"].get_ydata()) == pytest.approx([97, 98])
    assert np.asarray(lines["always the largest class"].get_ydata()) == pytest.approx([11, 11])
    low, high = upper.get_ylim()
    assert low < 11 < 98 < high
    drawn = [*upper.get_lines(), lower.get_lines()[0]]
    assert len({line.get_color() for line in drawn}) == 3
    assert len({line.get_linestyle() for line in upper.get_lines()}) == 2
    assert upper.get_legend() is lower.get_legend() is None
    assert len(figure.legends) == 1
    draw(report, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_without_held_out_inputs_there_is_only_what_was_spent() -> None:
    (axes,) = draw_figure(example([None, None])).axes
    assert axes.get_ylabel() == "ε spent"


def test_a_perfect_student_is_drawn_too() -> None:
    upper = draw_figure(example([0.5, 1.0])).axes[0]
    assert upper.get_ylim()[1] >= 99.9


def test_a_student_that_was_not_judged_is_drawn(tmp_path: Path) -> None:
    found = EstimatedMetrics(Estimate(0.9, 0.01), Estimate(0.8, 0.02), None)
    for chosen, expected in {"ridge": found, "kernel": None}.items():
        judged = (JudgedMethod("ridge", found),)
        choice = Choice("auto", chosen, "why", judged, 200, 5, noisy=False, threshold=None)
        assert choice.figures == expected
        draw(example([0.93], choice=choice), tmp_path / f"{chosen}.png")
        assert (tmp_path / f"{chosen}.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (0.84, 0.005, "84.0% (83.5 to 84.5)"),
        (0.99, 0.02, "99.0% (97.0 to 100.0)"),
        (0.01, 0.02, "1.0% (0.0 to 3.0)"),
        (1.04, 0.02, "100.0% (100.0 to 100.0)"),
        (-0.04, 0.1, "0.0% (0.0 to 6.0)"),
    ],
)
def test_a_share_and_its_ends_are_between_none_and_all(
    value: float, error: float, shown: str
) -> None:
    """Estimates from noisy counts are sums of them, and may be beyond."""
    each = Estimate(value, error)
    for noisy, auc in ((False, None), (True, None), (False, each)):
        choice = Choice("auto", "ridge", "why", (), 200, 5, noisy=noisy, threshold=None)
        said = format_metrics(EstimatedMetrics(each, each, auc), choice)
        assert said.count(shown) == said.count("%") == 2 + (auc is not None)


def test_the_report_says_what_its_figures_are(tmp_path: Path) -> None:
    usual: dict[str, Any] = {"held_out": 100, "plain": 0.9, "majority": 0.12}
    usual |= {"public_inputs": 400, "refused": True, "queries_left": 0}

    def shown(**changed: Any) -> str:
        console = Console(width=400, record=True, file=io.StringIO())
        console.print(summarize(example([0.93], **usual | changed), tmp_path))
        return console.export_text()

    holds(shown().splitlines()[0], "accuracy", "93.00%", "86.3%", "96.6%")
    holds(shown(accuracy=None).splitlines()[0], "accuracy", "not", "known", "--held-out")
    left = {"queries_left": 43, "refused": False}
    assert not says(shown(**left), 43, "other", "inputs")
    holds(shown(**left, outcomes={"answered": 400}), 43, "other", "inputs")
    assert not says(shown(), "person")
    holds(shown(mechanism={"name": "neighbours"}), 0.4, "person", "every", "query")
