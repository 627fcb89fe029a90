"""Neighbours in an experiment: public rows choose the terms, and accounts bound every record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import load_digits

from terrine_experiments.experiment import Run
from terrine_experiments.neighbours import NEAR, NeighbourExperiment, near
from terrine_experiments.setup import Setup
from terrine_experiments.sources import RECIPES, Source
from terrine_models.data.arrays import DIGITS, Dataset, InputSpec
from terrine_models.students.models import Training
from terrine_models.teachers.kinds import Heads

pytestmark = pytest.mark.nightly
SETUP = Setup("folds", "neighbours", epsilon=1.0, delta=1e-5, runs=1)


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
    return Source("mnist", "Digits", private, test, 1e-5, 10, Heads(), Training(), ())


def test_public_rows_choose_the_terms_and_accounts_bound_every_record(
    source: Source, tmp_path: Path
) -> None:
    experiment = NeighbourExperiment(source, [SETUP], tmp_path, Console(quiet=True))
    run = Run(0, experiment.directory(0), experiment._manifest(0))
    terms = experiment.forecast(SETUP)
    assert terms.allowance.queries == 400
    assert 0 < terms.votes < 80
    bought = experiment._bought(SETUP, run, {})
    shares = bought.answers.shares
    assert shares.shape == (400, 10)
    again = experiment._bought(SETUP, run, {}).answers.shares
    assert np.array_equal(shares, again), "what was released once is looked up"
    assert experiment._plurality(run, np.arange(400)) > 0.9

    random = np.random.default_rng(0)
    others = replace(
        source.private,
        inputs=random.permuted(source.private.inputs, axis=1),
        labels=random.permutation(source.private.labels),
    )
    changed = replace(source, private=others)
    other = NeighbourExperiment(changed, [SETUP], tmp_path / "other", Console(quiet=True))
    other._manifest(0)
    assert other.forecast(SETUP) == terms, "it is public"


def test_how_many_are_near_follows_from_the_budget(source: Source) -> None:
    assert [near("mnist", epsilon) for epsilon in (0.1, 1.0, 3.0)] == [40, 40, 20]
    assert set(NEAR) <= set(RECIPES)
