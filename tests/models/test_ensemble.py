"""Votes: one per teacher, whatever the batch, within the memory bound, from unaltered files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from support.wording import refuses
from terrine_models.data.arrays import Dataset
from terrine_models.storage.manifests import (
    StoreError,
    load_tensors,
    manifest_digest,
    save_tensors,
    sha256,
)
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Heads, Networks, load_manifest, verify
from terrine_models.teachers.manifests import Voting, save_manifest
from terrine_models.teachers.networks import NetworkTeachers
from terrine_models.teachers.training import train_ensemble

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory, digits: Dataset) -> Path:
    directory = tmp_path_factory.mktemp("models") / "heads"
    train_ensemble(
        digits,
        directory,
        name="heads",
        teachers=60,
        config=Heads(width=50, augmentations=1),
        seed=1,
    )
    return directory


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory, digits: Dataset) -> Path:
    directory = tmp_path_factory.mktemp("models") / "networks"
    train_ensemble(digits, directory, name="networks", teachers=12, config=Networks(epochs=2))
    return directory


@pytest.fixture(params=["heads", "networks"])
def directory(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.fixture
def copy(heads: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(heads, tmp_path / "copy"))


def test_votes_sum_to_the_number_of_teachers(directory: Path, digits: Dataset) -> None:
    ensemble = Ensemble.load(directory)
    votes = ensemble.votes(digits.inputs[:300])
    assert votes.dtype == np.int64
    assert votes.shape == (300, 10)
    assert (votes >= 0).all()
    assert (votes.sum(1) == ensemble.manifest.teachers).all()
    assert ensemble.votes(digits.inputs[:0]).shape == (0, 10)


def test_whatever_a_teacher_chooses_is_one_vote_on_its_own_input(
    heads: Path, digits: Dataset
) -> None:
    """Also where a kind of teacher from outside gives what is no class: nobody hears of it."""
    manifest = load_manifest(heads)
    anything = torch.tensor([[-1, 0, 9], [10, 99, 3], [5, -(2**40), 2**40]])
    voting = Voting(lambda x: anything[: len(x)], block=3, device="cpu")
    counts = Ensemble(manifest, voting).votes(digits.inputs[:3])
    assert (counts.sum(axis=1) == 3).all()
    assert counts[:, [0, 9]].tolist() == [[2, 1], [0, 2], [1, 1]]
    assert counts[[1, 2], [3, 5]].tolist() == [1, 1]


def test_votes_do_not_depend_on_the_other_inputs(directory: Path, digits: Dataset) -> None:
    ensemble = Ensemble.load(directory)
    x = digits.inputs[:301]
    together = ensemble.votes(x)
    backwards = ensemble.votes(np.ascontiguousarray(x[::-1]))[::-1]
    one_by_one = np.concatenate([ensemble.votes(x[i : i + 1]) for i in range(0, 301, 10)])
    assert np.array_equal(together, backwards)
    assert np.array_equal(together[::10], one_by_one)


def test_a_tighter_memory_bound_changes_no_vote(directory: Path, digits: Dataset) -> None:
    x = digits.inputs[:200]
    tight = Ensemble.load(directory, memory=2**20 if directory.name == "networks" else 2**23)
    assert tight.voting.block < Ensemble.load(directory).voting.block
    assert np.array_equal(tight.votes(x), Ensemble.load(directory).votes(x))


def test_all_ways_to_vote_agree(networks: Path, digits: Dataset) -> None:
    manifest = load_manifest(networks)
    kind, x = manifest.teacher, torch.from_numpy(digits.inputs[:256])
    assert isinstance(kind, NetworkTeachers)
    parts = [load_tensors(networks, name, manifest.files[name]) for name in manifest.teacher_files]
    teachers = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    with torch.inference_mode():
        loop = kind.one_by_one(manifest, teachers)(x)
        batched = kind.side_by_side(manifest, teachers, 5)(x)
    assert (loop == batched).float().mean() > 0.999, "they differ by more than rounding"


def test_the_device_alone_decides_how_networks_vote(networks: Path, digits: Dataset) -> None:
    ensemble = Ensemble.load(networks, device="cpu")
    loop, seen = ensemble.voting.choose, set[tuple[str, int]]()
    assert "one_by_one" in loop.__qualname__

    def watched(x: torch.Tensor) -> torch.Tensor:
        name = threading.current_thread().name.rpartition("_")[0]
        seen.add((name, torch.get_num_threads()))
        return loop(x)

    ensemble.voting = replace(ensemble.voting, choose=watched)
    ensemble.votes(digits.inputs[:64])
    assert torch.get_num_threads() == 2
    assert seen == {("terrine-worker", 1)}


def test_equal_scores_go_to_the_lowest_class(copy: Path, digits: Dataset) -> None:
    manifest = load_manifest(copy)
    files = dict(manifest.files)
    assert manifest.teacher.features is not None
    width = manifest.teacher.features.width
    for name in manifest.teacher_files:
        rows = 50 if name == manifest.teacher_files[0] else 10
        tensors = {"weights": torch.zeros(rows, 10, width), "biases": torch.zeros(rows, 10)}
        tensors["biases"][:, [3, 7]] = 1
        files[name] = save_tensors(copy / name, tensors)
    save_manifest(copy, manifest.model_copy(update={"files": files}))
    votes = Ensemble.load(copy).votes(digits.inputs[:5])
    assert (votes[:, 3] == 60).all()


def test_threads_may_share_an_ensemble(networks: Path, digits: Dataset) -> None:
    ensemble = Ensemble.load(networks)
    parts = np.array_split(digits.inputs[:400], 8)
    with ThreadPoolExecutor(8) as pool:
        votes = np.concatenate(list(pool.map(ensemble.votes, parts)))
    assert np.array_equal(votes, ensemble.votes(digits.inputs[:400]))


def test_inputs_of_another_kind_are_refused(heads: Path) -> None:
    ensemble = Ensemble.load(heads)
    for wrong in (
        np.zeros((2, 8), np.uint8),
        np.zeros((2, 8, 9), np.uint8),
        np.zeros((8, 8), np.uint8),
        np.zeros((2, 8, 8), np.float32),
    ):
        with refuses(ValueError, "[B, 8, 8]"):
            ensemble.votes(wrong)


MEASURE = """
import sys
from pathlib import Path
import numpy as np
import torch
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.data.workers import side_by_side

def peak():
    status = Path("/proc/self/status").read_text()  # other figures begin with the parent's
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

ensemble = Ensemble.load(Path(sys.argv[1]), memory=int(sys.argv[2]))
x = np.zeros((1_000, 8, 8), np.uint8)
side_by_side(lambda _: torch.ones(64, 64) @ torch.ones(64, 64), range(9))  # start the libraries
before = peak()
ensemble.votes(x)
print(peak() - before)
"""


# By day a tighter bound makes the blocks smaller in which all inputs vote, above.
@pytest.mark.nightly
def test_voting_stays_within_its_memory(tmp_path: Path, heads: Path, digits: Dataset) -> None:
    """4,000 heads have 160 MB of scores on 1,000 inputs; they must vote within 24 MiB."""
    manifest = load_manifest(heads)
    many = Path(shutil.copytree(heads, tmp_path / "many"))
    for name in manifest.teacher_files:
        (many / name).unlink()
    assert manifest.teacher.features is not None
    width = manifest.teacher.features.width
    weights = {
        "weights": torch.randn(4000, 10, width, generator=torch.Generator().manual_seed(0)),
        "biases": torch.zeros(4000, 10),
    }
    digest = save_tensors(many / "teachers-00000.safetensors", weights)
    files = {
        "features.safetensors": manifest.files["features.safetensors"],
        "teachers-00000.safetensors": digest,
    }
    save_manifest(many, manifest.model_copy(update={"files": files, "teachers": 4000}))
    bound = 24 * 2**20
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(many), str(bound)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(result.stdout) < bound, "voting took more than it was allowed"


# ---------------------------------------------------------------------------- files


def test_one_altered_byte_in_any_file_is_detected(copy: Path) -> None:
    verify(copy)
    for name in load_manifest(copy).files:
        data = bytearray((copy / name).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / name).write_bytes(data)
        for check in (verify, Ensemble.load):
            with refuses(StoreError, name, "altered"):
                check(copy)
        data[len(data) // 2] ^= 1
        (copy / name).write_bytes(data)
    verify(copy)


def test_a_missing_file_is_named(copy: Path) -> None:
    (copy / "features.safetensors").unlink()
    with refuses(StoreError, "features.safetensors"):
        Ensemble.load(copy)
    (copy / "manifest.json").unlink()
    for read in (load_manifest, manifest_digest, verify, Ensemble.load):
        with refuses(StoreError, "manifest.json"):
            read(copy)


def test_the_manifest_digest_identifies_the_ensemble(copy: Path) -> None:
    before = manifest_digest(copy)
    assert before == sha256((copy / "manifest.json").read_bytes())
    save_manifest(copy, load_manifest(copy).model_copy(update={"name": "another"}))
    assert manifest_digest(copy) != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"teachers": 0}, "teachers"),
        ({"teachers": "many"}, "teachers"),
        ({"surprise": 1}, "surprise"),
        ({"format": "terrine-ensemble-9"}, "format"),
        ({"teacher": {"kind": "heads"}}, "heads.features"),
        ({"teacher": {"kind": "oracle"}}, "'oracle'"),
        ({"teacher": {"features": None}}, "teacher tag"),
        ({"partition": None}, "partitioned"),
        ({"files": {}}, "teachers"),
        ({"files": {"../teachers-00000.safetensors": "0" * 64}}, "files"),
        ({"files": {"/etc/passwd": "0" * 64}}, "files"),
        ({"files": {"teachers-00000.safetensors": "abc"}}, "files"),
        ({"classes": ["one"]}, "classes"),
    ],
)
def test_a_malformed_manifest_says_what_is_wrong(
    copy: Path, change: dict[str, object], message: str
) -> None:
    path = copy / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}))
    for read in (load_manifest, Ensemble.load):
        with refuses(StoreError, *message.split()):
            read(copy)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": NaN}'])
def test_a_manifest_that_is_not_a_json_object_is_refused(copy: Path, content: bytes) -> None:
    (copy / "manifest.json").write_bytes(content)
    with refuses(StoreError, "malformed"):
        load_manifest(copy)


def test_files_that_contradict_the_manifest_are_refused(copy: Path) -> None:
    manifest = load_manifest(copy)
    save_manifest(copy, manifest.model_copy(update={"teachers": 61}))
    with refuses(StoreError, 60, 61):
        Ensemble.load(copy)
    name = manifest.teacher_files[0]
    for content in (b"", b"not safetensors at all", (1 << 62).to_bytes(8, "little")):
        (copy / name).write_bytes(content)
        files = {**manifest.files, name: sha256(content)}
        save_manifest(copy, manifest.model_copy(update={"files": files}))
        with refuses(StoreError, "safetensors"):
            Ensemble.load(copy)
    digest = save_tensors(copy / name, {"weights": torch.zeros(50, 9, 50)})
    save_manifest(copy, manifest.model_copy(update={"files": {**manifest.files, name: digest}}))
    with refuses(StoreError, "tensors"):
        Ensemble.load(copy)
