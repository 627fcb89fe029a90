"""Students from noisy counts: over HTTP, on images and tables, and against bad counts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from support.data import digit_images
from support.servers import RunningServer
from support.wording import holds
from terrine_client import Client
from terrine_client.distill import distill
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.public import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.methods import METHODS
from terrine_models.students.models import (
    NearestNeighbours,
    Ridge,
    Student,
    Task,
    Training,
    linear_features,
    softmax_features,
)
from terrine_models.students.selection import choose
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import EnsembleRegister, ProjectOpen
from terrine_server.owner.operations import open_project, register_ensemble

DIGITS = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
NAMES = tuple(str(digit) for digit in range(10))
TEACHERS = 400


def votes(labels: NDArray[np.int64], sigma: float, seed: int = 0) -> NDArray[np.int64]:
    """Nine teachers in ten are right, with noise."""
    source = np.random.default_rng(seed)
    chances = np.full((len(labels), 10), 0.1 / 9)
    chances[np.arange(len(labels)), labels] = 0.9
    counts = np.array([source.multinomial(TEACHERS, row) for row in chances])
    noise: NDArray[np.int64] = np.rint(source.normal(scale=sigma, size=counts.shape)).astype(int)
    return counts + noise


@pytest.fixture(scope="module")
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return digit_images()


@pytest.mark.parametrize("method", [pytest.param("auto", marks=pytest.mark.nightly), "ridge"])
def test_counts_that_show_nothing_by_themselves_make_a_good_student(
    digits: tuple[NDArray[np.uint8], NDArray[np.int64]], method: str
) -> None:
    x, truth = digits[0][:900], digits[1][:900]
    counts = votes(truth, sigma=400.0, seed=1)
    assert (counts.argmax(axis=1) == truth).mean() < 0.4
    answers = Answers.of_counts(counts, teachers=TEACHERS, sigma=400.0)
    made = choose(Task(x, DIGITS, NAMES), answers, Training(method=method))
    assert (made.student.predict_indices(x) == truth).mean() > 0.85
    assert made.choice.noisy
    assert made.choice.chosen == {"ridge": "ridge", "auto": "kernel"}[method]


@pytest.mark.parametrize(("sigma", "believed"), [(40.0, True), (300.0, False)])
def test_an_input_s_own_counts_are_believed_as_far_as_their_noise_lets_one(
    digits: tuple[NDArray[np.uint8], NDArray[np.int64]], sigma: float, believed: bool
) -> None:
    """One digit in five has all its votes on another class than its neighbours."""
    x, truth = digits[0][:900], digits[1][:900]
    odd = np.arange(900) % 5 == 0
    voted = np.where(odd, (truth + 3) % 10, truth)
    answers = Answers.of_counts(votes(voted, sigma), teachers=TEACHERS, sigma=sigma)
    labels = NearestNeighbours._labels(Task(x, DIGITS, NAMES), answers)
    assert (labels == truth)[~odd].mean() > 0.5
    as_voted, as_near = ((labels == each)[odd].mean() for each in (voted, truth))
    assert as_voted > 0.9 if believed else as_near > 2 * as_voted


def test_the_regression_is_the_student_where_it_is_asked_for(
    digits: tuple[NDArray[np.uint8], NDArray[np.int64]], tmp_path: Path
) -> None:
    x, truth = digits[0][:900], digits[1][:900]
    task = Task(x, DIGITS, NAMES)
    answers = Answers.of_counts(votes(truth, sigma=300.0), teachers=TEACHERS, sigma=300.0)
    made = choose(task, answers, Training(method="ridge"))
    assert made.choice.chosen == "ridge"
    assert (made.student.predict_indices(x) == truth).mean() > 0.9
    new, labels = digits[0][900:], digits[1][900:]
    right = made.student.probabilities(new)[np.arange(len(new)), labels]
    assert 0.8 < right.mean() < 0.97  # they are the teachers' shares: nine in ten
    fine_map, usual_map = task.cached(softmax_features).map, task.cached(linear_features).map
    assert fine_map.spec.coordinates > usual_map.spec.coordinates  # a link bears a finer graph
    made.student.save(tmp_path)
    np.testing.assert_allclose(
        Student.load(tmp_path).probabilities(x), made.student.probabilities(x), rtol=1e-6
    )


def unlike_classes(rows: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """A table whose second class is one row in five, far from all in its third column."""
    source = np.random.default_rng(seed)
    x = source.random((rows, 4), dtype=np.float32)
    score = 4 * np.abs(x[:, 2] - 0.5) + x[:, 0] + 0.3 * source.normal(size=rows)
    return x, (score > np.quantile(score, 0.8)).astype(np.int64)


THRESHOLDS: tuple[Literal["prior", "accuracy"], ...] = ("prior", "accuracy")
TABLE = InputSpec(shape=(4,), dtype="float32", low=0, high=1)


def test_a_student_of_teachers_that_match_their_prior_matches_it_too() -> None:
    (x, truth), (unseen, unseen_truth) = unlike_classes(6000, 0), unlike_classes(3000, 1)
    source = np.random.default_rng(2)
    # Unsure teachers: their shares lean to the middle, and their mean is the prior.
    yes = TEACHERS * (0.2 + 0.3 * (truth - truth.mean()))
    counts = np.stack([TEACHERS - yes, yes], axis=1)
    counts = np.rint(counts + source.normal(scale=400, size=counts.shape)).astype(np.int64)
    answers = Answers.of_counts(counts, teachers=TEACHERS, sigma=400.0, matches_prior=True)
    right = {}
    for threshold in THRESHOLDS:
        made = choose(Task(x, TABLE, ("no", "yes")), answers, Training(threshold=threshold))
        right[threshold] = (made.student.predict_indices(unseen) == unseen_truth).mean()
        assert (made.choice.threshold is not None) == (threshold == "prior")
    assert right["prior"] > right["accuracy"] + 0.05
    assert right["prior"] > 0.85
    assert made.choice.figures is not None


def test_a_class_that_nobody_votes_for_is_not_predicted() -> None:
    x, _ = unlike_classes(600, 0)
    counts = np.stack([np.full(600, TEACHERS), np.zeros(600)], axis=1).astype(np.int64)
    answers = Answers.of_counts(counts, teachers=TEACHERS, sigma=1.0, matches_prior=True)
    made = choose(Task(x, TABLE, ("no", "yes")), answers)
    assert (made.student.predict_indices(x) == 0).all()
    assert made.choice.threshold is None


def test_a_student_on_bins_is_the_same_after_it_was_saved(tmp_path: Path) -> None:
    x, truth = unlike_classes(1500, 0)
    counts = np.stack([TEACHERS * (1 - truth), TEACHERS * truth], axis=1)
    answers = Answers.of_counts(counts, teachers=TEACHERS, sigma=20.0)
    made = choose(Task(x, TABLE, ("no", "yes")), answers)
    made.student.save(tmp_path)
    loaded = Student.load(tmp_path)
    assert [each.base for each in loaded.model.features] == ["bins"]
    np.testing.assert_array_equal(loaded.probabilities(x), made.student.probabilities(x))


def test_a_student_that_says_one_class_is_not_returned(
    digits: tuple[NDArray[np.uint8], NDArray[np.int64]], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, truth = digits[0][:600], digits[1][:600]

    class OneClass(Ridge):
        """Judged well, and then collapsed."""

        def fit(self, task: Task, answers: Answers) -> Student:
            first = Answers.of_labels(np.zeros(len(task.x), dtype=np.int64), 10)
            return super().fit(task, first)

    monkeypatch.setitem(METHODS, "one", OneClass)
    answers = Answers.of_counts(votes(truth, sigma=300.0), teachers=TEACHERS, sigma=300.0)
    made = choose(Task(x, DIGITS, NAMES), answers, Training(method="one"))
    assert made.choice.chosen == "ridge"
    holds(made.choice.why, "collapsed", 1, 2)


@pytest.mark.slow
def test_a_project_of_noisy_votes_is_asked_once_for_everything(
    server: RunningServer, tmp_path: Path
) -> None:
    server.open_project(mechanism={"name": "noisy_votes", "sigma": 30.0}, epsilon=50.0)
    pool, lines = server.ensemble.public, list[str]()
    own = (server.ensemble.unseen, server.ensemble.unseen_labels)
    with Client(server.url, server.token()) as client:
        made = distill(client, pool, tmp_path / "s", held_out=own, tell=lines.append)
    assert len(made.report.rounds) == 1
    assert made.report.charges == len(pool)
    assert made.report.choice.why
    holds(lines, "single", "votes", "agrees")
    raw = float((made.labels == server.ensemble.public_labels).mean())
    assert made.report.accuracy is not None
    assert made.report.accuracy > raw


@pytest.mark.slow
def test_a_student_of_a_table_learns_from_its_project_that_teachers_match_their_prior(
    server: RunningServer, tmp_path: Path
) -> None:
    (x, truth), (pool, _), (own, own_truth) = (
        unlike_classes(rows, seed) for rows, seed in ((1500, 3), (1200, 4), (1000, 5))
    )
    private = Dataset(x, truth, ("no", "yes"), TABLE, name="private")
    train_ensemble(
        private,
        server.settings.ensembles_dir / "table",
        name="table",
        teachers=100,
        public=PublicData.declare("pool", pool),
    )
    register_ensemble(
        server.ledger, server.settings, EnsembleRegister(name="table", epsilon=50.0, delta=5e-4)
    )
    terms = {
        "name": "rows",
        "ensemble": "table",
        "mechanism": {"name": "noisy_votes", "sigma": 40.0},
        "epsilon": 20.0,
        "delta": 1e-5,
    }
    open_project(server.ledger, ProjectOpen.model_validate(terms))
    with Client(server.url, server.token(project="rows")) as client:
        assert client.project().ensemble.matches_prior
        held_out = own, np.array(["no", "yes"])[own_truth]
        made = distill(client, pool, tmp_path / "student", held_out=held_out)
    assert made.report.charges == len(pool)
    assert made.answers.matches_prior
    assert made.report.choice.threshold == made.student.model.threshold is not None
    assert made.report.accuracy is not None
    assert made.report.accuracy > 0.84
    server.open_project()
    with Client(server.url, server.token()) as client:
        assert not client.project().ensemble.matches_prior
