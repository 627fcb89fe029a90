"""Rounds of a study: what is asked next, when it stops, what is reported, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.clients import AMPLE, CONFIDENT, INTERACTIVE, QUICK, study
from support.servers import RunningServer
from support.wording import holds, refuses
from terrine_client import Client
from terrine_client.distill import DistillError, distill
from terrine_models.students.models import Training
from terrine_models.teachers.ensemble import Ensemble


def test_an_interactive_study_reports_how_often_the_student_was_confirmed(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism={**INTERACTIVE, "confidence": 0.4}, epsilon=30.0)
    with Client(server.url, server.token()) as client:
        made = study(server, client, tmp_path / "s", Training("ridge"), rounds=2)
    report = made.report
    assert report.asking == "uncertain"
    reinforced = (made.outcomes == "reinforced").sum()
    assert report.reinforced == reinforced / (made.labels >= 0).sum() > 0
    assert json.loads((tmp_path / "s" / "report.json").read_text())["reinforced"] > 0


def test_accuracy_is_reported_by_class_beside_that_of_the_largest(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism=CONFIDENT, epsilon=AMPLE)
    with Client(server.url, server.token()) as client:
        made = study(server, client, tmp_path / "s", queries=40)
    report, truth = made.report, server.ensemble.unseen_labels
    predicted = made.student.predict_indices(server.ensemble.unseen)
    assert report.majority == np.bincount(truth).max() / len(truth)
    assert [each.name for each in report.by_class] == list(server.ensemble.manifest.classes)
    assert sum(each.inputs for each in report.by_class) == len(truth)
    for k, each in enumerate(report.by_class):
        assert each.recall == (predicted[truth == k] == k).mean()
        assert each.precision == ((truth[predicted == k] == k).mean() if k in predicted else None)
    right = sum((each.recall or 0) * each.inputs for each in report.by_class)
    assert report.accuracy == pytest.approx(right / len(truth))


def test_labels_of_nearly_one_class_are_warned_of(server: RunningServer, tmp_path: Path) -> None:
    server.open_project(mechanism=CONFIDENT, epsilon=AMPLE)
    digits = server.ensemble
    votes = Ensemble.load(digits.directory).votes(digits.public)
    surest = digits.public[np.argsort(-votes[:, 0], kind="stable")[:20]]
    with Client(server.url, server.token()) as client:
        made = distill(client, surest, tmp_path / "s", training=QUICK, rounds=1)
    assert len(made.report.notes) == 1
    holds(made.report.notes[0], 0, "teachers")


def test_noisy_counts_are_learned_from_whole_so_that_their_winners_are_not_warned_of(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism={"name": "noisy_votes", "sigma": 4.0}, epsilon=8.0)
    digits = server.ensemble
    votes = Ensemble.load(digits.directory).votes(digits.public)
    surest = digits.public[np.argsort(-votes[:, 0], kind="stable")[:20]]
    with Client(server.url, server.token()) as client:
        made = distill(client, surest, tmp_path / "s", training=QUICK)
    assert made.report.notes == []


def test_a_student_below_the_largest_class_is_said_to_be(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism=CONFIDENT, epsilon=AMPLE)
    digits = server.ensemble
    wrong = digits.unseen, np.zeros_like(digits.unseen_labels)
    with Client(server.url, server.token()) as client:
        made = distill(client, digits.public[:40], tmp_path / "s", training=QUICK, held_out=wrong)
    assert made.report.majority == 1
    (note,) = made.report.notes
    holds(note, "largest", "class", "100.00%", f"{made.report.accuracy:.2%}")


def test_a_student_that_cannot_be_trained_is_refused_before_anything_is_bought(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism={"name": "noisy_votes", "sigma": 4.0}, epsilon=8.0)
    with Client(server.url, server.token()) as client:
        with refuses(DistillError, "'forests'"):
            study(server, client, tmp_path / "s", Training("forests"))
        wrong = (server.ensemble.unseen, server.ensemble.unseen_labels + 3)
        with refuses(DistillError, "'0'"):
            distill(client, server.ensemble.public, tmp_path / "s", held_out=wrong)
        assert client.budget().charges == 0
    assert not (tmp_path / "s").exists()
