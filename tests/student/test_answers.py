"""Whatever was bought, however little, a student comes of it: the answers were paid for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from support.data import known_digits
from terrine_client.distill import make_answers
from terrine_models.data.arrays import DIGITS, InputSpec
from terrine_models.students.answers import Answers, estimate_metrics
from terrine_models.students.calibration import (
    calibrate,
    choose_threshold,
    confine_rarer_class,
    place_cut,
)
from terrine_models.students.models import Task, Training
from terrine_models.students.selection import choose
from terrine_models.sums import cut_at_share
from terrine_protocol import ProjectInfo

SMALL = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
Floats = NDArray[np.float64]
TABLE = InputSpec(shape=(4,), dtype="float32", low=0, high=1)


@pytest.mark.parametrize("rows", [1, 2, 3, 25])
@pytest.mark.parametrize("method", ["auto", "kernel"])
def test_fewer_inputs_than_a_method_is_made_for_are_enough(method: str, rows: int) -> None:
    x, truth = known_digits().inputs, known_digits().labels[:rows]
    counts = np.eye(10, dtype=np.int64)[truth] * 100
    one_label = np.where(np.arange(rows) == 0, truth, -1)
    for labels, noisy in ((truth, None), (one_label, None), (truth, counts)):
        answers = Answers.of_labels(labels, 10)
        if noisy is not None:
            answers = Answers.of_counts(noisy, teachers=100, sigma=4.0)
        made = choose(Task(x[:rows], SMALL, DIGITS), answers, Training(method))
        assert np.isfinite(made.student.probabilities(x[:30])).all()


@pytest.mark.parametrize("kind", ["all constant", "one varies"])
@pytest.mark.parametrize("classes_seen", [1, 2])
def test_constant_columns_and_a_class_that_was_never_answered_are_enough(
    kind: str, classes_seen: int
) -> None:
    x = np.tile(np.array([[0.1, 0.9, 0, 1]], dtype=np.float32), (60, 1))
    if kind == "one varies":
        x[:, 0] = np.linspace(0, 1, 60)
    labels = (np.arange(60) % 3 == 0).astype(np.int64) * (classes_seen - 1)
    counts = np.eye(2, dtype=np.int64)[labels] * 100
    for answers in (
        Answers.of_labels(labels, 2),
        Answers.of_counts(counts, teachers=100, sigma=5.0, matches_prior=True),
    ):
        made = choose(Task(x, TABLE, ("a", "b")), answers)
        assert np.isfinite(made.student.probabilities(x)).all()


def two_classes(rows: int, seed: int) -> tuple[Floats, Floats]:
    """Probabilities of yes [N], one in four on average, and shares [N, 2] that follow them."""
    random = np.random.default_rng(seed)
    yes = 1 / (1 + np.exp(-random.normal(-1.4, 1, rows)))
    return yes, np.column_stack([1 - yes, yes])


def test_figures_of_labels_are_the_usual_ones() -> None:
    random = np.random.default_rng(0)
    truth = (random.random(500) < 0.3).astype(np.int64)
    yes = np.round(np.clip(0.3 * truth + 0.7 * random.random(500), 0, 1), 1)  # with ties
    predicted = (yes > 0.5).astype(np.int64)
    found = estimate_metrics(
        np.eye(2)[truth], predicted, np.column_stack([1 - yes, yes]), np.arange(500)
    )
    assert found.auc is not None
    assert found.accuracy.value == pytest.approx((predicted == truth).mean())
    balanced = balanced_accuracy_score(truth, predicted)
    assert found.balanced_accuracy.value == pytest.approx(balanced)
    assert found.auc.value == pytest.approx(roc_auc_score(truth, yes))
    several = estimate_metrics(np.eye(3)[truth], predicted, np.eye(3)[predicted], np.arange(500))
    assert several.auc is None
    assert several.balanced_accuracy.value == pytest.approx(balanced)


def test_rows_that_are_one_input_tell_no_more_than_one_row() -> None:
    yes, shares = two_classes(300, 1)
    scores, inputs = np.column_stack([1 - yes, yes]), np.arange(300)
    predicted = (yes > 0.25).astype(np.int64)
    noisy = shares + np.random.default_rng(0).normal(0, 0.5, shares.shape)
    once = estimate_metrics(noisy, predicted, scores, inputs)
    twice = estimate_metrics(*(np.tile(each.T, 2).T for each in (noisy, predicted, scores, inputs)))
    for one, other in (
        (once.accuracy, twice.accuracy),
        (once.balanced_accuracy, twice.balanced_accuracy),
        (once.auc, twice.auc),
    ):
        assert one is not None
        assert other is not None
        assert other.value == pytest.approx(one.value, abs=0.01)
        assert other.error == pytest.approx(one.error, rel=0.05)
    rows = np.tile(np.arange(30), 3)
    folds = Answers.of_labels(rows % 3, 3).folds(0, rows)
    assert folds is not None
    assert all(len(set(folds[rows == each])) == 1 for each in range(30))


def test_figures_of_noisy_counts_are_unbiased_and_their_errors_are_those_made() -> None:
    yes, shares = two_classes(3000, 1)
    scores = np.column_stack([1 - yes, yes])
    predicted = (yes > 0.25).astype(np.int64)
    exact = estimate_metrics(shares, predicted, scores, np.arange(3000))
    assert exact.auc is not None
    noise, misses = 0.5, []
    for seed in range(60):
        noisy = shares + np.random.default_rng(seed).normal(0, noise, shares.shape)
        found = estimate_metrics(noisy, predicted, scores, np.arange(3000))
        assert found.auc is not None
        pairs = (
            (found.accuracy, exact.accuracy),
            (found.balanced_accuracy, exact.balanced_accuracy),
            (found.auc, exact.auc),
        )
        misses.append([(a.value - b.value) / a.error for a, b in pairs])
    z = np.array(misses)
    assert (np.abs(z.mean(axis=0)) < 4 / np.sqrt(60)).all()  # unbiased
    assert (z.std(axis=0) < 1.3).all()
    assert (z.std(axis=0) > 0.6).all()


def test_probabilities_are_calibrated_by_answers_with_noise() -> None:
    yes, shares = two_classes(20_000, 2)
    noisy = shares + np.random.default_rng(3).normal(0, 0.5, shares.shape)
    scores = 0.3 * np.log(yes / (1 - yes)) + 0.8  # flat, and in favour of yes
    stated = np.column_stack([1 / (1 + np.exp(scores)), 1 / (1 + np.exp(-scores))])
    found = calibrate(stated, noisy)
    assert found.scale == pytest.approx(1 / 0.3, rel=0.15)
    np.testing.assert_allclose(found.probabilities(np.log(stated))[:, 1], yes, atol=0.04)


def test_shares_are_cut_at_the_prior_or_as_asked() -> None:
    yes, shares = two_classes(20_000, 4)
    answers = Answers.of_counts(np.rint(1000 * shares).astype(np.int64), teachers=1000, sigma=50.0)
    at = choose_threshold("prior", shares, answers)
    assert at is not None
    assert (yes >= at).mean() == pytest.approx(yes.mean(), abs=0.002)
    assert choose_threshold("accuracy", shares, answers) is None
    assert choose_threshold(0.3, shares, answers) == 0.3
    doubtful = Answers.of_counts(np.zeros((20, 2), np.int64), teachers=1000, sigma=5000.0)
    assert choose_threshold("prior", shares, doubtful) is None
    assert (
        choose_threshold("prior", np.full((9, 3), 1 / 3), Answers.of_labels(np.arange(9) % 3, 3))
        is None
    )


@pytest.mark.parametrize("off", [-6, -1, 1, 6], ids="prior {} standard errors off".format)
def test_nothing_is_cut_where_the_likelier_class_is_as_common_as_noise_lets_see(off: int) -> None:
    """Of classes that are told apart for certain, a cut would otherwise be at nearly 0 or 1."""
    rows, noise = 900, 0.1
    yes = np.where(np.arange(rows) % 2 == 0, 0.999, 0.001)
    yes += np.random.default_rng(10).normal(0, 1e-5, rows)
    said = np.column_stack([1 - yes, yes])
    shift = off * noise / rows**0.5
    shares = np.eye(2)[(yes > 0.5).astype(int)] + [-shift, shift]
    at = choose_threshold("prior", said, Answers(shares, np.full(rows, True), noise))
    assert (at is None) == (abs(off) < 2)
    if at is not None:
        assert (yes >= at).mean() == pytest.approx(0.5 + shift, abs=0.002)


def test_the_rarer_class_is_said_less_often_where_features_say_much() -> None:
    rare = np.random.default_rng(5).random(20_000) < 0.25
    much = np.where(rare, 0.8, 0.07) + np.random.default_rng(6).normal(0, 0.02, 20_000)
    for yes, expected in ((much, 0.21), (two_classes(20_000, 7)[0] * 0.2 + 0.2, 0.25)):
        shares = np.column_stack([1 - yes, yes])
        counts = np.rint(1000 * shares).astype(np.int64)
        matching = Answers.of_counts(counts, teachers=1000, sigma=50.0, matches_prior=True)
        at = choose_threshold("prior", shares, matching)
        assert at is not None
        assert (yes >= at).mean() == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("values", "share", "said"),
    [
        ((0.1, 0.2, 0.3, 0.4), 0.5, 0.5),
        ((0.1, 0.2, 0.3, 0.4), 0.01, 0.25),
        ((0.1, 0.2, 0.3, 0.4), 0.99, 0.75),
        ((0.1, 0.4, 0.4, 0.4), 0.2, 0.75),  # equal ones are said together
        ((0.1, 0.1, 0.1, 0.4), 0.8, 0.25),
        ((0.2, 0.2, 0.2, 0.2), 0.5, None),
    ],
)
def test_a_cut_lies_between_two_probabilities(
    values: tuple[float, ...], share: float, said: float | None
) -> None:
    at = cut_at_share(np.array(values), share)
    assert (at is None) == (said is None)
    if at is not None:
        assert at not in values
        assert (np.array(values) >= at).mean() == said


@pytest.mark.parametrize("prior", [(0.7, 0.2, 0.1), (0.05, 0.05, 0.9), (1 / 3, 1 / 3, 1 / 3)])
def test_each_of_several_classes_is_said_as_often_as_it_occurs(prior: tuple[float, ...]) -> None:
    source = np.random.default_rng(11)
    shares = source.dirichlet((4, 1, 2), 5000)
    found = place_cut(shares, np.array(prior))
    assert found.threshold is None
    said = (np.log(shares) + np.array(found.offsets)).argmax(axis=1)
    np.testing.assert_allclose(np.bincount(said, minlength=3) / 5000, prior, atol=0.01)


@pytest.mark.parametrize("rarer", [0, 1])
def test_the_rarer_class_is_said_only_where_something_is_known_of_it(rarer: int) -> None:
    source = np.random.default_rng(8)
    clear = source.random(20_000) < 0.1
    rare = np.where(clear, 0.7, 0.2)
    shown = np.where(clear, 0.7, 0.2 + source.normal(0, 0.01, 20_000))
    order = slice(None, None, 1 if rarer else -1)
    shares, said = (np.column_stack([1 - each, each])[:, order] for each in (rare, shown))
    noisy = np.rint(1000 * (shares + source.normal(0, 0.3, shares.shape))).astype(np.int64)
    answers = Answers.of_counts(noisy, teachers=1000, sigma=300.0)
    fewer = confine_rarer_class(said, answers)
    assert fewer <= 0.6
    usual, at = (choose_threshold("prior", said, answers, share) for share in (1.0, fewer))
    assert usual is not None
    assert at is not None
    often, less = ((said[:, 1] >= each).mean() for each in (usual, at))
    assert (less < often) == (rarer == 1)

    all_tell = np.column_stack([1 - two_classes(20_000, 9)[0], two_classes(20_000, 9)[0]])
    counts = np.rint(1000 * all_tell).astype(np.int64)
    assert confine_rarer_class(all_tell, Answers.of_counts(counts, teachers=1000, sigma=50.0)) == 1
    labels = Answers.of_labels(all_tell.argmax(axis=1), 2)
    assert confine_rarer_class(all_tell, labels) == 1


@pytest.mark.parametrize(("mechanism", "voting"), [("neighbours", 0.05), ("noisy_votes", 1.0)])
def test_how_many_of_all_units_vote_on_an_input_is_told_to_students(
    mechanism: str, voting: float
) -> None:
    ensemble = SimpleNamespace(classes=["no", "yes"], teachers=1000, matches_prior=False)
    project = SimpleNamespace(ensemble=ensemble, mechanism=SimpleNamespace(name=mechanism))
    counts = np.array([[30, 20], [10, 40]])
    found = make_answers(cast(ProjectInfo, project), np.array([0, 1]), counts, 5.0)
    assert found.voting == voting
