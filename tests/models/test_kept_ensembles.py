"""Ensembles of the first release are served with the code of today, and newer ones are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from support.data import ANSWERS, KEPT, LOCAL, RECORDS_KEY, answers
from support.wording import holds, refuses
from terrine_models.storage.manifests import StoreError
from terrine_models.teachers.editions import forget
from terrine_models.teachers.kinds import load_manifest, verify_ensemble
from terrine_models.teachers.people import name_digests

Document = dict[str, Any]


def edited(ensemble: Path, name: str, edit: Callable[[Document], object]) -> Path:
    path = ensemble / name
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    return ensemble


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT, tmp_path / "kept"))


@pytest.mark.parametrize("name", LOCAL)
def test_kept_teachers_vote_as_they_did(name: str) -> None:
    assert answers(KEPT / name) == json.loads(ANSWERS.read_text())[name]
    assert verify_ensemble(KEPT / name)


def test_people_leave_a_kept_ensemble(tmp_path: Path) -> None:
    who = name_digests(["person 3"], RECORDS_KEY)
    done = forget(KEPT / "people", tmp_path / "edition", who, RECORDS_KEY)
    assert done is not None
    assert done.people == 1
    assert done.manifest.versions["torch"], "its maker stays the one that it had"


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda document: document.pop("format"), id="no format"),
        pytest.param(lambda document: document.update(data={"old": "digests"}), id="with `data`"),
    ],
)
def test_manifests_from_before_are_read(copy: Path, edit: Callable[[Document], object]) -> None:
    before = load_manifest(copy / "heads")
    assert load_manifest(edited(copy / "heads", "manifest.json", edit)) == before


def test_a_newer_manifest_is_refused_with_the_version_that_wrote_it(copy: Path) -> None:
    def newer(document: Document) -> None:
        document.update(format="terrine-ensemble-2", colours=7)
        document["versions"]["terrine"] = "9.8.7"

    with refuses(StoreError, "terrine-ensemble-2", "9.8.7", version("terrine"), "upkeep.md"):
        load_manifest(edited(copy / "heads", "manifest.json", newer))


def test_an_unknown_kind_is_said_to_be_of_another_version(copy: Path) -> None:
    def unknown(document: Document) -> None:
        document["teacher"] = {"kind": "oracle"}

    with refuses(StoreError, "'oracle'", "version", "again", "upkeep.md"):
        load_manifest(edited(copy / "heads", "manifest.json", unknown))


def test_new_manifests_name_the_terrine_that_wrote_them(tmp_path: Path) -> None:
    from terrine_models.storage.manifests import versions

    assert versions()["terrine"] == version("terrine")
    holds(json.dumps(versions("torch")), "numpy", "safetensors")
