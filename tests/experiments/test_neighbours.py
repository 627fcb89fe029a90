"""Neighbours in an experiment: public rows choose the noise."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import load_digits

from terrine_experiments.reproduce import NEAR, Experiment, near
from terrine_experiments.sources import RECIPES, Source
from terrine_experiments.study import Study
from terrine_models.data.arrays import DIGITS, Dataset, InputSpec
from terrine_models.teachers.kinds import Heads

pytestmark = pytest.mark.nightly


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setitem(NEAR, "mnist", ((1.0, 40), (np.inf, 20)))
    data = load_digits()
    x, y = data.images.astype(np.uint8), data.target.astype(np.int64)
    spec = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
    private, test = (
        Dataset(x[rows], y[rows], DIGITS, spec, name="digits")
        for rows in (slice(0, 1200), slice(1200, 1600))
    )
    return Source("mnist", "Digits", private, test, 1e-5, 10, Heads(), ())


def experiment(source: Source, out: Path) -> Experiment:
    study = Study(out, out, Console(quiet=True), {source.name: source})
    return Experiment(study, source, "folds", "neighbours", delta=1e-5, runs=1)


def test_every_public_input_is_asked_once_and_public_rows_alone_choose_the_noise(
    source: Source, tmp_path: Path
) -> None:
    (found,) = experiment(source, tmp_path).results([1.0])
    assert found.mechanism["queries"] == found.answers == found.tested == 400
    assert 0.99 < found.epsilon_spent <= 1
    assert found.papers_epsilon is None, "the papers have no accounts"
    assert found.plurality[0] > 0.9
    assert found.mean > 0.6

    random = np.random.default_rng(0)
    others = replace(
        source.private,
        inputs=random.permuted(source.private.inputs, axis=1),
        labels=random.permutation(source.private.labels),
    )
    changed = replace(source, private=others)
    planned = experiment(changed, tmp_path / "other").neighbours(1.0).mechanism
    assert found.mechanism == {"name": "neighbours", **asdict(planned)}, "it is public"


def test_how_many_are_near_follows_from_the_budget(source: Source) -> None:
    assert [near("mnist", epsilon) for epsilon in (0.1, 1.0, 3.0)] == [40, 40, 20]
    assert set(NEAR) <= set(RECIPES)
