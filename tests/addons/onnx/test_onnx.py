"""Teachers that were trained elsewhere: ONNX files are checked, imported, and vote."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from support.onnx_files import (
    CLASSES,
    INPUTS,
    corpus,
    mlp,
    model,
    trees,
    watching,
    with_external_data,
)
from support.wording import holds, refuses, says
from terrine_addons.onnx import checking
from terrine_addons.onnx.checking import CheckRequest, findings
from terrine_addons.onnx.models import ModelError, OnnxModel, OnnxTeachers
from terrine_addons.onnx.teachers import Declaration, ImportedTeachers, import_ensemble
from terrine_models.data.arrays import DataError, InputSpec
from terrine_models.storage.manifests import StoreError, manifest_digest
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import load_manifest, verify
from terrine_models.teachers.manifests import Manifest

CLASS_NAMES = ("a", "b", "c")
DECLARED = Declaration(
    spec=InputSpec(shape=(INPUTS,), dtype="float32", low=0, high=1),
    classes=CLASS_NAMES,
    units=3000,
    disjoint_by="one hospital each",
)


def written(directory: Path, *models: onnx.ModelProto) -> list[Path]:
    directory.mkdir(exist_ok=True)
    paths = [directory / f"{i}.onnx" for i in range(len(models))]
    for path, each in zip(paths, models, strict=True):
        path.write_bytes(each.SerializeToString())
    return paths


def asked(*paths: Path) -> CheckRequest:
    return CheckRequest(paths=tuple(str(p) for p in paths), spec=DECLARED.spec, classes=CLASS_NAMES)


def refusal(path: Path, request: CheckRequest | None = None) -> str:
    """Why a file is refused, checked in this process."""
    made = request or asked(path)
    with pytest.raises((ModelError, OSError)) as refused:
        checking.check(path, made, checking.probes(made))
    return str(refused.value)


def test_imported_teachers_vote_as_their_own_library_says(tmp_path: Path, out: Path) -> None:
    proto = [mlp(seed) for seed in range(7)]
    manifest = import_ensemble(written(tmp_path / "m", *proto), out, "made", DECLARED)
    assert load_manifest(out) == manifest
    verify(out)
    x = np.random.default_rng(3).uniform(0, 1, (300, INPUTS)).astype(np.float32)
    ensemble = Ensemble.load(out)
    votes = ensemble.votes(x)
    expected = np.zeros((300, CLASSES), np.int64)
    for each in proto:
        w1, b1, w2, b2 = map(onnx.numpy_helper.to_array, each.graph.initializer)
        scores = np.maximum(x @ w1 + b1, 0) @ w2 + b2
        expected[np.arange(300), scores.argmax(1)] += 1
    assert (votes == expected).all()
    alone = np.concatenate([ensemble.votes(row[None]) for row in x[:5]])
    assert (alone == votes[:5]).all()


def test_an_import_is_private_declared_and_unguessable(tmp_path: Path) -> None:
    paths = written(tmp_path / "m", mlp(0), mlp(1))
    made = [import_ensemble(paths, tmp_path / n, "made", DECLARED) for n in ("one", "two")]
    foreign = made[0].teacher
    assert isinstance(foreign, ImportedTeachers)
    assert foreign.disjoint_by == "one hospital each"
    assert foreign.opsets == {"ai.onnx": 17, "ai.onnx.ml": 3}
    assert made[0].files == made[1].files
    digests = {manifest_digest(tmp_path / n) for n in ("one", "two")}
    assert len(digests) == 2, "whoever can train the same teachers must not know the digest"
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "one").glob("*.onnx")}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o700
    (tmp_path / "one" / "teachers-00001.onnx").write_bytes(mlp(2).SerializeToString())
    for use in (lambda d: Ensemble.load(d), inspected):
        with refuses(StoreError, "teachers-00001.onnx"):
            use(tmp_path / "one")


def inspected(directory: Path) -> None:
    manifest = load_manifest(directory)
    manifest.teacher.inspect(directory, manifest)


def test_nothing_is_left_of_an_import_with_a_bad_file(tmp_path: Path, out: Path) -> None:
    good, bad, same, absent = written(tmp_path / "m", mlp(0), mlp(1, classes=4), mlp(0), mlp(9))
    absent.unlink()
    for paths, said in (
        ([good, bad], ("1.onnx", "[32, 4]", "[32, 3]")),
        ([good, same], ("2.onnx", "same")),
        ([good, absent], ("3.onnx",)),
    ):
        with refuses(StoreError, *said):
            import_ensemble(paths, out, "made", DECLARED)
        assert not out.exists()
        assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_manifest_by_hand_does_not_spare_files_the_check(tmp_path: Path, out: Path) -> None:
    import_ensemble(written(tmp_path / "m", mlp(0)), out, "made", DECLARED)
    evil = with_external_data("/etc/hostname").SerializeToString()
    (out / "teachers-00000.onnx").write_bytes(evil)
    forged = load_manifest(out).model_dump() | {
        "files": {"teachers-00000.onnx": hashlib.sha256(evil).hexdigest()}
    }
    manifest = Manifest.model_validate(forged)
    with refuses(StoreError, "file"):
        manifest.teacher.inspect(out, manifest)


def test_a_hostile_file_neither_crashes_nor_reads_beyond_itself(tmp_path: Path, out: Path) -> None:
    directory, outside = tmp_path / "in", tmp_path / "secret.bin"
    directory.mkdir()
    outside.write_bytes(bytes(4096))
    files = dict(corpus(seed=1, outside=outside))
    assert len(files) >= 200
    paths = [directory / f"{name}.onnx" for name in files]
    for path, data in zip(paths, files.values(), strict=True):
        path.write_bytes(data)
    os.mkfifo(directory / "pipe.onnx")
    paths += [directory / "pipe.onnx", directory, Path("/dev/zero")]
    with watching(outside) as watch:
        found = findings(asked(*paths))
        taken = [Path(f.path) for f in found if f.refused is None]
        import_ensemble(taken, out, "mutants", DECLARED)
        x = np.random.default_rng(0).uniform(0, 1, (50, INPUTS)).astype(np.float32)
        assert (Ensemble.load(out).votes(x).sum(1) == len(taken)).all()
        assert not watch.opened()
        outside.read_bytes()
        assert watch.opened(), "the watch itself works"
    assert [f.path for f in found] == [str(p) for p in paths]
    assert not [f for f in found if f.refused and says(f.refused, "ended", "process")]
    malformed = {f.path for f in found} - {str(p) for p in taken}
    assert len(malformed) > 200
    kept = ("flipped", "cut", "repeated", "trees-nodes_featureids-")
    assert not [p for p in taken if not any(word in p.name for word in kept)]
    assert all(
        f.refused is None or (f.refused.isprintable() and len(f.refused) < 500) for f in found
    )


def test_a_check_that_dies_or_hangs_refuses_that_file_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, fatal, slow, last = written(tmp_path / "m", *(mlp(i) for i in range(4)))
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys, time\n"
        "def on(event, arguments):\n"
        f"    if event == 'open' and arguments[0] == {str(fatal)!r}:\n"
        "        os.kill(os.getpid(), signal.SIGSEGV)\n"
        f"    if event == 'open' and arguments[0] == {str(slow)!r}:\n"
        "        time.sleep(60)\n"
        "sys.addaudithook(on)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    refused = [f.refused for f in findings(asked(good, fatal, slow, last), seconds=8)]
    assert refused[0] is None
    assert "SIGSEGV" in str(refused[1])
    holds(str(refused[2]), 8, "s")
    assert refused[3] is None


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (mlp(inputs=9), r"shape \['batch', 9\], expected \[batch, 8\]"),
        (model([helper.make_node("Identity", ["x"], ["scores"])], classes=8), r"\[32, 8\]"),
        (model([helper.make_node("Flatten", ["x"], ["scores"])], batch=7, classes=8), "7 rows"),
        (trees(labelled=True), r"label tensor\(int64\).*choose one with --output"),
        (with_external_data("weights.bin"), "external_data=False"),
    ],
)
def test_a_refusal_says_what_was_expected(tmp_path: Path, made: onnx.ModelProto, said: str) -> None:
    (path,) = written(tmp_path / "m", made)
    assert re.search(said, refusal(path))


def test_labels_are_numbers_or_names_of_classes(tmp_path: Path) -> None:
    x = np.array([[0.4] * INPUTS, [0.6] * INPUTS], np.float32)
    for names, labels in ((None, [0, 1]), (["a", "c", "b"], [0, 2]), (["a", "z", "b"], None)):
        (path,) = written(tmp_path / "m", trees(labelled=True, names=names))
        request = asked(path).model_copy(update={"output": "label"})
        if labels is None:
            holds(refusal(path, request), "'z'")
            continue
        checking.check(path, request, checking.probes(request))
        teachers = OnnxTeachers([OnnxModel(path.read_bytes(), "label")], CLASS_NAMES)
        assert teachers.choices(x)[:, 0].tolist() == labels


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(checking.MAX_FILE_BYTES + 1)
    holds(refusal(path), "536,870,912")


def test_public_inputs_are_asked_as_well(tmp_path: Path, out: Path) -> None:
    """The logarithm of the distance to 0.654321 is finite on every probe."""
    nodes = [
        helper.make_node("Sub", ["x", "here"], ["d"]),
        helper.make_node("Abs", ["d"], ["a"]),
        helper.make_node("Log", ["a"], ["l"]),
        helper.make_node("Gemm", ["l", "w"], ["scores"]),
    ]
    weights = {
        "here": np.array([0.654321], np.float32),
        "w": np.ones((INPUTS, CLASSES), np.float32),
    }
    paths = written(tmp_path / "m", model(nodes, weights))
    public = np.full((3, INPUTS), 0.654321, np.float32)
    with refuses(StoreError, "finite", 0):
        import_ensemble(paths, out, "made", DECLARED, public)
    with refuses(DataError, "range"):
        import_ensemble(paths, out, "made", DECLARED, public + 1)
    assert import_ensemble(paths, out, "made", DECLARED).teachers == 1


@pytest.mark.parametrize("batch", ["batch", 1])
def test_a_teacher_that_fails_votes_for_the_first_class(batch: str | int) -> None:
    """An error, or no answer, would tell of one teacher what only noisy votes may tell."""
    gather = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Slice", ["i", "zero", "one", "one"], ["first"]),
        helper.make_node("Squeeze", ["first", "one"], ["index"]),
        helper.make_node("Gather", ["table", "index"], ["scores"]),
    ]
    table = np.array([[0, 0, 1], [np.nan, 1, 0]], np.float32)
    weights = {"table": table, "zero": np.array([0]), "one": np.array([1])}
    failing = OnnxModel(model(gather, weights, batch=batch).SerializeToString())
    x = np.array([[0.0], [1], [99], [0]], np.float32).repeat(INPUTS, 1)
    teachers = OnnxTeachers([failing], CLASS_NAMES)
    assert teachers.choices(x)[:, 0].tolist() == [2, 0, 0, 2]


def test_sessions_start_no_threads() -> None:
    def running() -> int:
        return len(os.listdir("/proc/self/task"))

    OnnxModel(mlp().SerializeToString())
    before = running()
    teachers = OnnxTeachers([OnnxModel(mlp(i).SerializeToString()) for i in range(50)], CLASS_NAMES)
    teachers.choices(np.zeros((4, INPUTS), np.float32))
    assert running() <= before + 1, "one thread in which all teachers compute"
