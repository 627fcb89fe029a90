"""Folders of pictures, from the owner's to a student that has only a folder of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from commands import Terrine
from machine import Machine
from PIL import Image
from refusals import holds
from seeded_noise import SEED
from serving import serving
from sklearn.datasets import load_digits

from terrine_client import Client
from terrine_models.data.images import load_images

NAMES = ("zero", "one", "two", "three")


def folders(tmp_path: Path) -> None:
    """Digits as PNG and JPEG files of 16 pixels: private and own by class, a pool flat."""
    data = load_digits()
    kept = np.flatnonzero(data.target < len(NAMES))
    for place, row in enumerate(kept):
        label = NAMES[data.target[row]]
        where = ("private", "pool", "own")[(place >= 400) + (place >= 600)]
        folder = tmp_path / where / ("" if where == "pool" else label)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.kron(data.images[row] * 15, np.ones((2, 2))).astype(np.uint8)
        picture = Image.fromarray(pixels)
        if place % 3 == 0:
            picture.convert("RGB").save(folder / f"{place}.jpg", quality=95)
        else:
            picture.save(folder / f"{place}.png")


@pytest.mark.nightly
def test_a_student_s_folder_is_converted_as_the_owner_s_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terrine: Terrine
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SEED, "0")
    folders(tmp_path)
    data = tmp_path / "data"
    machine = Machine(data, f"sqlite:///{data / 'terrine.sqlite'}", terrine)
    terrine("init").fine  # noqa: B018 - asserts
    train = ("ensemble", "train", "private", "--name", "digits", "--teachers", 20)
    holds(terrine(*train).refused, "PNG", "JPEG")
    holds(terrine(*train, "--images", "8").refused, "1x1", "1024x1024")
    given = (*train, "--images", "8x8:grey")
    unnamed = terrine(*given, "--public", "pool").refused
    holds(unnamed, "classes")
    assert f"--classes '{','.join(sorted(NAMES))}'" in " ".join(unnamed.split())
    order = ",".join(NAMES)
    trained = terrine(
        *given, "--public", "pool", "--classes", order, "--kind", "heads:augmentations=0"
    ).fine
    assert re.search(r"pictures\s+8 × 8, grey", trained)
    terrine("ensemble", "register", "digits", "--epsilon", 50, "--delta", 1e-5).fine  # noqa: B018
    opened = terrine(
        "project",
        "open",
        "study",
        "--ensemble",
        "digits",
        "--mechanism",
        "gnmax:sigma=2",
        "--epsilon",
        49,
        "--delta",
        1e-6,
    )
    assert opened.code == 0, opened.err
    created = terrine("token", "create", "--role", "student", "--project", "study").fine
    token = re.search(r"terrine_\S+", created)
    assert token is not None
    with serving(machine) as server:
        variables = {"TERRINE_TOKEN": token[0], "TERRINE_URL": server.url}
        with Client(server.url, token[0]) as client:
            image = client.project().ensemble.image
            assert image is not None
            assert (image.height, image.width, image.grey) == (8, 8, True)
            labels = client.label(load_images(Path("pool"), image)[:3])
            assert set(labels.names[labels.answered]) <= set(NAMES)
        holds(terrine("student", "train", "own", **variables).refused, "folder")
        learned = terrine(
            "student",
            "train",
            "pool",
            "--held-out",
            "own",
            "--out",
            "student",
            "--queries",
            60,
            "--rounds",
            1,
            "--method",
            "ridge",
            **variables,
        )
        assert learned.code == 0, learned.err
    report = json.loads(Path("student/report.json").read_text())
    assert report["accuracy"] > 0.8
    evaluated = terrine("ensemble", "evaluate", "digits", "own", "--trained-on", "public").fine
    assert re.search(r"│ three\s*│", evaluated)
