"""`TerrineClassifier` follows scikit-learn's conventions, with labels from a real server."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
from migrated import SECRET_KEY, migrated
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import estimator_checks_generator

from terrine_client import Client, ConfigurationError, Labels
from terrine_client.estimator import TerrineClassifier
from terrine_models.data import Dataset, InputSpec
from terrine_models.tables import load_table
from terrine_models.teachers import train_ensemble
from terrine_protocol import Column, ProjectOpen, Role, TableSchema, TokenCreate
from terrine_server.audit.world import serving
from terrine_server.ledger import Ledger
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.owner.tokens import Tokens
from terrine_server.settings import Settings

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


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Client]]:
    """One server with an ensemble and a project for each width, and for a table."""
    home = tmp_path_factory.mktemp("estimator")
    url = f"sqlite:///{home / 'terrine.sqlite'}"
    made = Settings(data_dir=home, database_url=url, requests_per_minute=10**6)
    made.secret_key_path.write_bytes(SECRET_KEY)
    made.secret_key_path.chmod(0o600)
    engine = migrated(url)
    ledger = Ledger(engine, SECRET_KEY)
    (home / "table.csv").write_text(
        "dose,ward,ill\n"
        + "".join(f"{i % 10},{'AB'[i % 2]},{('no', 'yes')[i % 10 > 4]}\n" for i in range(1200))
    )
    data = {"table": load_table(home / "table.csv", SCHEMA)}
    for width in WIDTHS:
        spec = InputSpec(shape=(width,), dtype="float32", low=-1e5, high=1e5)
        data[f"w{width}"] = Dataset(*points(600, width, 0), CLASSES, spec)
    tokens: dict[str, str] = {}
    for name, records in data.items():
        train_ensemble(records, made.ensembles_dir / name, name=name, teachers=60)
        register_ensemble(ledger, made, name, 100.0, 1e-4)
        terms = {"name": name, "ensemble": name, "epsilon": 95, "delta": 1e-5}
        open_project(
            ledger,
            ProjectOpen.model_validate({**terms, "mechanism": {"name": "gnmax", "sigma": 15.0}}),
        )
        request = TokenCreate(role=Role.STUDENT, project=name)
        tokens[name] = Tokens(ledger, SECRET_KEY).create(request).token
    with serving(made) as address:
        opened = {name: Client(address, token) for name, token in tokens.items()}
        yield opened
        for client in opened.values():
            client.close()
    engine.dispose()


def test_it_asks_learns_and_predicts(clients: dict[str, Client]) -> None:
    x, _ = points(200, 2, 1)
    new, truth = points(300, 2, 2)
    classifier = TerrineClassifier(clients["w2"], queries=60, method="ridge", steps=10).fit(x)
    assert isinstance(classifier.labels_, Labels)
    assert len(classifier.labels_) == len(classifier.asked_) == 60
    assert classifier.classes_.tolist() == [0, 1, 2]
    assert classifier.score(new, truth) > 0.85
    shares = classifier.predict_proba(new)
    assert shares.shape == (300, 3)
    assert np.allclose(shares.sum(axis=1), 1)
    spent = clients["w2"].budget().epsilon_spent
    again = clone(classifier)
    assert again.client is classifier.client
    assert np.array_equal(again.fit(x).predict(new), classifier.predict(new))
    assert clients["w2"].budget().epsilon_spent == spent, "asked twice, paid once"


def test_a_pickle_predicts_but_has_no_token(clients: dict[str, Client]) -> None:
    x, _ = points(80, 2, 3)
    classifier = TerrineClassifier(clients["w2"], method="ridge", steps=10).fit(x)
    written = pickle.dumps(classifier)
    assert b"terrine_" not in written.replace(b"terrine_client", b"").replace(
        b"terrine_models", b""
    ).replace(b"terrine_protocol", b"")
    read = pickle.loads(written)
    assert np.array_equal(read.predict(x), classifier.predict(x))
    with pytest.raises(ConfigurationError, match="needs a client to learn"):
        read.fit(x)


def test_a_table_is_fitted_as_a_data_frame(clients: dict[str, Client]) -> None:
    frame = pd.DataFrame({"ward": ["A", "B"] * 40, "dose": np.arange(80) % 10, "more": "x"})
    classifier = TerrineClassifier(clients["table"], method="ridge", steps=10).fit(frame)
    assert classifier.feature_names_in_.tolist() == ["ward", "dose", "more"]
    assert set(classifier.predict(frame)) == {"no", "yes"}
    truth = np.where(frame["dose"] > 4, "yes", "no")
    assert classifier.score(frame, truth) > 0.8
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(frame[["dose", "ward"]])


def test_bad_input_is_refused_before_anything_is_bought(clients: dict[str, Client]) -> None:
    spent = clients["w3"].budget().charges
    fit = partial(TerrineClassifier(clients["w3"]).fit)
    for x, message in (
        (np.ones((5, 2)), r"X has shape \[5, 2\]; the project w3 takes \[N, 3\]"),
        (np.full((5, 3), np.nan), "contains NaN"),
        (np.ones(3), "Expected 2D array"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(x)
    with pytest.raises(ValueError, match="queries must be at least 1"):
        TerrineClassifier(clients["w3"], queries=0).fit(np.ones((5, 3)))
    with pytest.raises(NotFittedError):
        TerrineClassifier(clients["w3"]).predict(np.ones((5, 3)))
    assert clients["w3"].budget().charges == spent


@pytest.mark.slow
def test_scikit_learns_checks_that_apply_pass(clients: dict[str, Client]) -> None:
    """Each check passes with the project whose inputs are as wide as the check's own data."""
    wanted = TerrineClassifier(clients["w2"], method="ridge", steps=10)
    failed: dict[str, str] = {}
    passed = set[str]()
    for _, check in estimator_checks_generator(wanted, legacy=True):
        name = getattr(check, "func", check).__name__
        if name in INAPPLICABLE:
            continue
        errors = []
        for width in WIDTHS:
            try:
                check(TerrineClassifier(clients[f"w{width}"], method="ridge", steps=10))
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
