"""Forests through the commands and the real API: trained, registered, served, voting, and learned
from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import terrine_experiments.students  # noqa: F401 - which makes the forest a method
from support.processes import Terrine, seed_noise
from support.wording import holds
from terrine_client import Client
from terrine_models.data.arrays import Dataset
from terrine_models.students.models import Student
from terrine_models.teachers.ensemble import Ensemble
from terrine_protocol.tables.encoding import encode_table
from terrine_server.app import serving
from terrine_server.settings import Settings


def rows(count: int, seed: int) -> str:
    """People who are ill if they are old or smoke, but not if both."""
    random = np.random.default_rng(seed)
    lines = ["age,smokes,town,ill"]
    for _ in range(count):
        age, smokes = random.uniform(20, 80), random.choice(["yes", "no"])
        ill = (age > 50) != (smokes == "yes")
        lines.append(f"{age:.4f},{smokes},{random.choice(list('ABC'))},{'y' if ill else 'n'}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("private.csv").write_text(rows(1500, 0))
    Path("public.csv").write_text(rows(300, 1))
    return tmp_path


TRAIN = ("ensemble", "train", "private.csv", "--name", "ill")
PUBLIC = ("--public", "public.csv", "--schema", "schema.json")


@pytest.mark.nightly
def test_forests_are_trained_registered_served_and_learned_from(
    terrine: Terrine, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed_noise(monkeypatch)
    assert terrine("ensemble", "schema", "public.csv", "--label", "ill").fine
    said = terrine(*TRAIN, "--teachers", 30, "--kind", "forest:trees=10", *PUBLIC).fine
    assert "30 (forest)" in said
    holds(said, "matched")
    directory = home / "data" / "ensembles" / "ill"
    assert terrine("ensemble", "show", directory, "--verify").fine
    terrine("init").fine  # noqa: B018 - raises if it failed
    assert terrine("ensemble", "register", "ill", "--epsilon", 50, "--delta", "1e-5").fine
    opened = ("project", "open", "study", "--ensemble", "ill", "--mechanism", "gnmax:sigma=4")
    assert terrine(*opened, "--epsilon", 40, "--delta", "1e-6").fine
    made = terrine("token", "create", "--role", "student", "--project", "study").fine
    token = next(word for word in made.split() if word.startswith("terrine_"))
    Path("token").write_text(token)
    with serving(Settings()) as url:
        with Client(url, token) as client:
            assert client.project().ensemble.matches_prior
            encoding = Ensemble.load(directory).manifest.encoding
            assert encoding is not None
            x = encode_table(Path("public.csv"), encoding)[:50]
            answers = client.label(x)
            votes = Ensemble.load(directory).votes(x)
            clear = votes.max(axis=1) > 28
            assert clear.sum() > 10
            assert (answers.labels == votes.argmax(axis=1))[clear].mean() > 0.9
        study = ("student", "--url", url, "--token-file", "token", "train", "public.csv")
        asked = ("--rounds", 1, "--queries", 200, "--method", "forest")
        holds(terrine(*study, *asked).fine, "forest", "(forest")
    student = Student.load(Path("student"))
    assert student.model.architecture == "forest"
    truth = [line.endswith("y") for line in rows(300, 1).splitlines()[1:]]
    right = student.predict(encode_table(Path("public.csv"), encoding)) == np.array(truth)
    assert right.mean() > 0.8


def test_forests_of_images_are_refused(terrine: Terrine, tmp_path: Path, digits: Dataset) -> None:
    path = tmp_path / "images.npz"
    np.savez(path, x=digits.inputs[:99], y=digits.labels[:99], classes=digits.classes)
    train = ("ensemble", "train", path, "--name", "t", "--teachers", 4, "--kind", "forest")
    refused = terrine(*train)
    assert (refused.code, "Traceback" in refused.err) == (1, False)
    holds(refused.err, "heads", "networks")
