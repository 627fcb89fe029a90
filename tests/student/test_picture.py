"""A student's picture shows what it is to be compared with, and no curve on another's scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from terrine_client._report import Report, Round, draw, draw_figure
from terrine_models.students.selection import Choice


def example(accuracies: list[float | None]) -> Report:
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
    return Report(
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


def test_nothing_is_drawn_where_a_server_is_installed_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terrine_client._report.find_spec", lambda _: None)
    assert not draw(example([0.9]), tmp_path / "accuracy.png")
    assert list(tmp_path.iterdir()) == []


def test_accuracy_and_epsilon_have_a_panel_each_and_the_baselines_are_drawn(
    tmp_path: Path,
) -> None:
    report = example([0.97, 0.98])
    figure = draw_figure(report, true_labels=0.99)
    upper, lower = figure.axes  # one scale for each panel: a second would be a third axes
    assert upper.get_position().y0 > lower.get_position().y0
    lines = {str(line.get_label()): line for line in upper.get_lines()}
    assert np.asarray(lines["accuracy of the student"].get_ydata()) == pytest.approx([97, 98])
    assert np.asarray(lines["the same student on true labels"].get_ydata()) == pytest.approx(
        [99, 99]
    )
    assert np.asarray(lines["always the largest class"].get_ydata()) == pytest.approx([11, 11])
    low, high = upper.get_ylim()
    assert low < 11 < 99 < high
    drawn = [*upper.get_lines(), lower.get_lines()[0]]
    assert len({line.get_color() for line in drawn}) == 4
    assert len({line.get_linestyle() for line in upper.get_lines()}) == 3
    assert upper.get_legend() is lower.get_legend() is None
    assert len(figure.legends) == 1
    draw(report, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_without_held_out_inputs_there_is_only_what_was_spent() -> None:
    (axes,) = draw_figure(example([None, None])).axes
    assert axes.get_ylabel() == "ε spent"


def test_a_perfect_student_is_drawn_too() -> None:
    upper = draw_figure(example([0.5, 1.0]), true_labels=1.0).axes[0]
    assert upper.get_ylim()[1] >= 99.9
