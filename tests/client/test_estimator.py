"""`TerrineClassifier` follows scikit-learn's conventions, with labels from a real server."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from typing import Any, Self
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import validate_data

from support.data import DigitsEnsemble
from support.processes import seed_noise
from support.servers import running_server
from support.wording import refuses
from terrine_client import Client
from terrine_client.distill import DistillError, check_data
from terrine_client.estimator import TerrineClassifier, buy
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.students.answers import Answers
from terrine_models.students.models import Task
from terrine_models.students.selection import TrainedStudent, choose
from terrine_models.tables.loading import load_table
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import Column, EnsembleRegister, TableSchema
from terrine_server.owner.operations import register_ensemble
from terrine_tables.columns import index_classes

WIDTHS = (3, 2, 10, 4, 5, 1, 20)
"""Numbers in an input; scikit-learn's checks bring data of all of them."""
CLASSES = ("0", "1", "2")
SCHEMA = TableSchema(
    columns=(
        Column(name="dose", role="numeric", low=0, high=10),
        Column(name="ward", role="categorical", values=("A", "B")),
        Column(name="ill", role="label", values=("no", "yes")),
    )
)
NEED_Y = "fit takes no y: labels come from the project"
INAPPLICABLE = {
    "check_classifiers_train": "accuracy against a y that was never learned",
    "check_classifiers_classes": NEED_Y,
    "check_classifiers_one_label": NEED_Y,
    "check_classifiers_regression_target": NEED_Y,
    "check_supervised_y_2d": NEED_Y,
}
"""Checks of scikit-learn that ask for what an estimator without y cannot give."""


def points(count: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, count)
    centres = 4 * np.cos(2 * np.pi * labels[:, None] / 3 + np.arange(width))
    x = random.normal(size=(count, width)) + centres
    return x.astype(np.float32), labels


@pytest.fixture(autouse=True)
def _repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server, which is in this process, draws the same noise in each test."""
    seed_noise(monkeypatch)


@pytest.fixture(scope="module")
def clients(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[dict[str, Client]]:
    """One server with an ensemble and a project for each width, and for a table."""
    home = tmp_path_factory.mktemp("estimator")
    url = f"sqlite:///{home / 'terrine.sqlite'}"
    (home / "table.csv").write_text(
        "dose,ward,ill\n"
        + "".join(f"{i % 10},{'AB'[i % 2]},{('no', 'yes')[i % 10 > 4]}\n" for i in range(1200))
    )
    data = {"table": load_table(home / "table.csv", SCHEMA)}
    for width in WIDTHS:
        spec = InputSpec(shape=(width,), dtype="float32", low=-1e5, high=1e5)
        data[f"w{width}"] = Dataset(*points(600, width, 0), CLASSES, spec)
    pixels = InputSpec(shape=(2,), dtype="uint8", low=0, high=16)
    x, labels = points(600, 2, 0)
    data["pixels"] = Dataset((x + 8).clip(0, 16).astype(np.uint8), labels, CLASSES, pixels)
    with running_server(home, url, digits_ensemble, requests_per_minute=10**6) as server:
        for name, records in data.items():
            out = server.settings.ensembles_dir / name
            train_ensemble(records, out, name=name, teachers=60)
            cap = {"epsilon": 100.0, "delta": 1e-4, "population": name, "disjoint": True}
            wanted = EnsembleRegister.model_validate({"name": name, **cap})
            register_ensemble(server.ledger, server.settings, wanted)
        gnmax = {"name": "gnmax", "sigma": 15.0}
        for name in data:
            server.open_project(name, gnmax, epsilon=90, ensemble=name)
        server.open_project("counted", gnmax | {"name": "noisy_votes"}, epsilon=4, ensemble="w2")
        with ExitStack() as opened:
            yield {
                name: opened.enter_context(Client(server.url, server.token(project=name)))
                for name in (*data, "counted")
            }


def test_it_learns_and_predicts_from_what_was_bought(clients: dict[str, Client]) -> None:
    x, _ = points(200, 2, 1)
    new, truth = points(300, 2, 2)
    bought = buy(clients["w2"], x, queries=60)
    assert len(bought.labels) == len(bought.rows) == 60
    spent = clients["w2"].budget().epsilon_spent
    classifier = TerrineClassifier(bought, method="ridge").fit(x)
    assert classifier.classes_.tolist() == list(CLASSES)
    assert classifier.score(new, truth) > 0.85
    shares = classifier.predict_proba(new)
    assert shares.shape == (300, 3)
    assert np.allclose(shares.sum(axis=1), 1)
    again = clone(classifier)
    assert again.bought is bought, "clones share what was bought"
    assert np.array_equal(again.fit(x).predict(new), classifier.predict(new))
    assert clients["w2"].budget().epsilon_spent == spent
    assert np.array_equal(buy(clients["w2"], x, queries=60).rows, bought.rows)
    assert clients["w2"].budget().epsilon_spent == spent, "asked twice, paid once"


def test_inputs_that_were_not_asked_are_learned_from_without_labels(
    clients: dict[str, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = points(200, 2, 1)
    bought = buy(clients["w2"], x, queries=60)
    given: list[tuple[np.ndarray, np.ndarray]] = []

    def noted(task: Task, answers: Answers, *others: Any) -> TrainedStudent:
        given.append((np.asarray(task.x), answers.labels))
        return choose(task, answers, *others)

    monkeypatch.setattr("terrine_models.students.selection.choose", noted)
    classifier = TerrineClassifier(bought, method="ridge").fit(x)
    ((pool, labels),) = given
    assert np.array_equal(pool, x)
    assert np.array_equal(np.flatnonzero(labels >= 0), np.sort(bought.rows))
    assert np.array_equal(labels[bought.rows], bought.labels.labels)
    assert np.array_equal(classifier.labels_, labels)


def test_it_may_learn_from_public_labels_too(clients: dict[str, Client]) -> None:
    x, truth = points(240, 2, 4)
    new, of_new = points(300, 2, 2)
    bought = buy(clients["w2"], x, queries=12)
    classifier = TerrineClassifier(bought, method="ridge", labels=(x[:90], truth[:90].astype(str)))
    assert clone(classifier).fit(x).student_.model.training["public_labels"] == 90
    assert classifier.fit(x).score(new, of_new) > 0.85
    assert classifier.choice_.chosen.startswith("labels")
    with refuses(DistillError, 89, 90):
        TerrineClassifier(bought, labels=(x[:90], truth[:89].astype(str))).fit(x)


def test_cross_validation_and_searches_buy_nothing(clients: dict[str, Client]) -> None:
    client = clients["w2"]
    x, truth = points(240, 2, 4)
    bought = buy(client, x, queries=120)
    charges = client.budget().charges
    classifier = TerrineClassifier(bought, method="ridge")
    assert cross_val_score(classifier, x, truth, cv=4).mean() > 0.85
    search = GridSearchCV(classifier, {"method": ["ridge", "auto"]}, cv=3)
    assert search.fit(x, truth).best_score_ > 0.8
    assert search.best_estimator_.bought is bought
    assert client.budget().charges == charges
    with refuses(ValueError, 9):
        clone(classifier).fit(points(9, 2, 5)[0])
    with refuses(ValueError, "TerrineClassifier(buy(client,"):
        TerrineClassifier().fit(x)


WAYS_TO_NAME: list[Callable[[np.ndarray], Any]] = [
    lambda y: y,
    lambda y: y.tolist(),
    lambda y: y.astype(str),
    lambda y: y.astype(str).astype(object),
    lambda y: [f"{each} " for each in y],
    lambda y: y.astype(np.float32),
    lambda y: y.astype(np.float64).astype(str),
    lambda y: y.astype(np.int8)[:, None],
    lambda y: y.astype(bool),
    lambda y: pd.Series(y, index=y + 7),
    lambda y: pd.Series(y.astype(bool), dtype="boolean"),
    lambda y: pd.Series(y.astype(str), dtype="category"),
    lambda y: pd.Series(y, dtype="Int64"),
]
"""Labels 0 and 1, as people have them."""


def test_true_labels_are_names_of_classes_whatever_their_type(clients: dict[str, Client]) -> None:
    x, truth = points(240, 2, 4)
    truth[:12] = (truth[:12] + 1) % 3  # so that not all are right
    bought = buy(clients["w2"], x, queries=120)
    classifier = TerrineClassifier(bought, method="ridge").fit(x)
    said = classifier.predict(x)
    assert set(said) <= set(CLASSES)
    assert set(classifier.student_.predict(x)) <= set(CLASSES), "one type everywhere"
    assert bought.labels.to_frame()["label"].isin(CLASSES).all()
    two = truth < 2
    expected = float((said[two] == truth[two].astype(str)).mean())
    assert 0.85 < expected < 1
    student, project = classifier.student_, clients["w2"].project()
    pool = points(10, 2, 9)[0]

    def measured(x: np.ndarray, labels: Any) -> tuple[float, float, float]:
        held_out = check_data(pool, project, (x, labels))
        assert held_out is not None
        right = student.predict_indices(x) == held_out[1]
        return classifier.score(x, labels), student.accuracy(x, labels), float(right.mean())

    for way in WAYS_TO_NAME:
        assert measured(x[two], way(truth[two])) == (expected,) * 3, way(truth[:3])
    weight = (said == truth.astype(str)).astype(float)
    assert classifier.score(x, truth, sample_weight=weight) == 1
    one = np.where(np.arange(240) == 7, "of no class", truth.astype(str))
    for none in (["yes"] * 240, truth + 1, truth + 0.5, [None] * 240, [np.nan] * 240, one):
        for refuse in (classifier.score, student.accuracy):
            with refuses(ValueError, "'0'", "np.array(classes)[indices]"):
                refuse(x, none)
        with refuses(DistillError, "'0'", "np.array(classes)[indices]"):
            check_data(pool, project, (x, none))
    with refuses(ValueError, 240, 3):
        student.accuracy(x[:3], truth)
    with refuses(DistillError, 240, 3):
        check_data(pool, project, (x[:3], truth))


def test_what_a_model_learns_from_answers_are_the_names_that_it_is_scored_by(
    clients: dict[str, Client],
) -> None:
    x, truth = points(300, 2, 6)
    for name in ("w2", "counted"):
        bought = buy(clients[name], x, queries=200)
        labels = bought.labels
        model = RandomForestClassifier(min_samples_leaf=20, random_state=0)
        model.fit(*labels.training_set(x[bought.rows]))
        assert set(model.classes_) <= set(CLASSES)
        assert model.score(x, truth.astype(str)) > 0.8
    frame = labels.to_frame()
    assert [f"count_{name}" for name in CLASSES] == list(frame.columns[3:])
    assert set(frame["label"].dropna()) <= set(CLASSES)


@pytest.mark.parametrize(
    ("classes", "labels", "named"),
    [
        (("0", "1"), [0, 1.0, True, "1", "1.0", Decimal(1)], [0, 1, 1, 1, 1, 1]),
        (("1", "2"), [1, 2.0, True, "2", np.int8(2)], [0, 1, 0, 1, 1]),
        (("1", "0"), [0, 1, np.True_, False], [1, 0, 0, 1]),
        (("5", "+7", "01"), [5, 7, 1, "+7"], [0, 1, 2, 1]),
        (("0.1", "2.5"), [0.1, np.float32(0.1), np.float16(2.5)], [0, 0, 1]),
        (("false", "true"), [False, True, "true", np.bool_(True)], [0, 1, 1, 1]),
        (("1", "other"), [1, "other", 1.0], [0, 1, 0]),
        (("no", "yes"), ["yes", " no ", np.str_("yes")], [1, 0, 1]),
        (("caf\u00e9", "tea"), ["cafe\u0301"], [0]),
    ],
)
def test_a_number_is_the_name_that_it_is_written_as(
    classes: tuple[str, ...], labels: list[Any], named: list[int]
) -> None:
    assert index_classes(labels, classes).tolist() == named
    assert index_classes(np.array(labels, dtype=object)[:, None], classes).tolist() == named


@pytest.mark.parametrize(
    ("classes", "label"),
    [
        (("0", "1"), 2),
        (("0", "1"), "2"),
        (("0", "1"), math.inf),
        (("0", "1"), math.nan),
        (("0", "1"), pd.NA),
        (("0", "1"), None),
        (("0", "1"), 0.5),
        (("1", "2"), 0),
        (("5", "+7"), "7"),
        (("no", "yes"), 0),
        (("no", "yes"), 1.0),
        (("no", "yes"), True),
        (("no", "yes"), "Yes"),
        (("1", "other"), 7),
        (("1", "01"), "001"),
    ],
)
def test_a_label_that_names_no_class_is_refused_and_not_scored(
    classes: tuple[str, ...], label: object
) -> None:
    with refuses(ValueError):
        index_classes([classes[0], label], classes)
    with refuses(ValueError, [2, 2]):
        index_classes([list(classes)] * 2, classes)


def test_a_pickle_predicts_and_learns_where_no_server_is(
    clients: dict[str, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = points(80, 2, 3)
    client = clients["w2"]
    classifier = TerrineClassifier(buy(client, x), method="ridge").fit(x)
    written = pickle.dumps(classifier)
    token = str(client._http.headers["Authorization"]).split()[-1]
    assert token.encode() not in written
    monkeypatch.delattr("httpx.Client.send")
    read = pickle.loads(written)
    assert np.array_equal(read.predict(x), classifier.predict(x))
    assert np.array_equal(read.fit(x).predict(x), classifier.predict(x))


def test_noisy_counts_are_learned_from(clients: dict[str, Client]) -> None:
    x, _ = points(300, 2, 6)
    new, truth = points(300, 2, 2)
    bought = buy(clients["counted"], x, queries=200)
    assert bought.labels.noisy_counts is not None
    assert TerrineClassifier(bought).fit(x).score(new, truth) > 0.85


def test_a_table_is_fitted_as_a_data_frame(clients: dict[str, Client]) -> None:
    frame = pd.DataFrame({"ward": ["A", "B"] * 40, "dose": np.arange(80) % 10, "more": "x"})
    bought = buy(clients["table"], frame)
    classifier = TerrineClassifier(bought, method="ridge").fit(frame)
    assert classifier.feature_names_in_.tolist() == SCHEMA.features
    assert set(classifier.predict(frame)) == {"no", "yes"}
    truth = np.where(frame["dose"] > 4, "yes", "no")
    assert classifier.score(frame, truth) > 0.8
    needed = frame[["ward", "dose"]].assign(other=1)
    assert classifier.predict(needed).tolist() == classifier.predict(frame).tolist()
    with refuses(ValueError, "ward"):
        classifier.predict(frame[["dose", "more"]])


def test_bad_input_is_refused_before_anything_is_bought(clients: dict[str, Client]) -> None:
    client = clients["w3"]
    spent = client.budget().charges
    with refuses(ValueError, "[5, 2]", "w3", "[N, 3]"):
        buy(client, np.ones((5, 2)))
    with refuses(ValueError, "queries", 1):
        buy(client, np.ones((5, 3)), queries=0)
    with refuses(ValueError, "NaN"):
        buy(client, np.full((5, 3), np.nan))
    with pytest.raises(NotFittedError):
        TerrineClassifier().predict(np.ones((5, 3)))
    assert client.budget().charges == spent


@pytest.mark.parametrize(
    "altered",
    [lambda x: x / 16, lambda x: x.astype(np.int64) - 256, lambda x: x.astype(np.int64) + 256],
)
def test_inputs_that_would_be_altered_are_not_bought(
    clients: dict[str, Client], altered: Callable[[np.ndarray], np.ndarray]
) -> None:
    """As uint8 these are zeros, or wrap round to others: answers to what nobody asked."""
    client = clients["pixels"]
    pool = np.random.default_rng(7).integers(1, 16, (20, 2)).astype(np.uint8)
    charges = client.budget().charges
    with refuses(ValueError, "pixels", 0, 16):
        buy(client, altered(pool))
    assert client.budget().charges == charges
    bought = buy(client, pool.astype(np.float64))
    assert (bought.labels_of(pool)[0] >= 0).all(), "whole numbers are taken, whatever their dtype"


class Buyer(TerrineClassifier):
    """Buys what it is fitted on: scikit-learn's checks bring data of their own."""

    def __init__(
        self, client: Client | None = None, *, method: str = "auto", random_state: int = 0
    ) -> None:
        super().__init__(method=method, random_state=random_state)
        self.client = client

    def fit(self, X: Any, y: object = None) -> Self:  # noqa: N803
        assert self.client is not None
        x = validate_data(self, X, reset=True, allow_nd=True, dtype="numeric")
        learned = TerrineClassifier(
            buy(self.client, x, random_state=self.random_state),
            method=self.method,
            random_state=self.random_state,
        ).fit(X, y)
        given = set(self.get_params())
        for name in vars(learned).keys() - given - {"bought"}:
            setattr(self, name, getattr(learned, name))
        return self

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """As numbers: the checks compare predictions with `assert_allclose`."""
        return super().predict(X).astype(int)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "client": None}


@pytest.mark.slow
def test_scikit_learns_checks_that_apply_pass(clients: dict[str, Client]) -> None:
    """Each check passes with the project whose inputs are as wide as the check's own data."""
    wanted = Buyer(clients["w2"], method="ridge")
    failed: dict[str, str] = {}
    passed = set[str]()
    for _, check in estimator_checks_generator(wanted, legacy=True):
        name = getattr(check, "func", check).__name__
        if name in INAPPLICABLE:
            continue
        errors = []
        for width in WIDTHS:
            try:
                check(Buyer(clients[f"w{width}"], method="ridge"))
            except SkipTest:
                break
            except Exception as error:  # of the checks' many kinds
                errors.append(f"{width}: {type(error).__name__}: {error}"[:300])
            else:
                break
        else:
            failed[name] = "\n  ".join(errors)
            continue
        passed.add(name)
    assert not failed, "\n".join(f"{name}\n  {error}" for name, error in failed.items())
    assert len(passed) > 30
