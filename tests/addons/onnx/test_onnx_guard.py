"""Imported teachers vote in a guarded process: one that takes too much ends, and nothing else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from inspect import getclosurevars
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from support.data import DigitsEnsemble
from support.onnx_files import CLASSES, INPUTS, mlp, model
from support.processes import until
from support.servers import installed
from support.wording import refuses
from terrine_addons.onnx.teachers import Declaration, GuardedTeachers, import_ensemble
from terrine_models.data.arrays import InputSpec
from terrine_models.storage.manifests import StoreError, sha256
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.manifests import VotingError
from terrine_protocol import EnsembleRegister, ProjectOpen
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.local_voters import LocalVoters
from terrine_server.labeling.pipeline import Labeling
from terrine_server.ledger import Ledger
from terrine_server.metrics import Metrics
from terrine_server.owner.operations import open_project, register_ensemble

SPEC = InputSpec(shape=(INPUTS,), dtype="float32", low=0, high=1)
NAMES = ("a", "b", "c")
X = np.random.default_rng(3).uniform(0, 1, (128, INPUTS)).astype(np.float32)


def guarded(directory: Path, *protos: onnx.ModelProto, seconds: float = 60) -> GuardedTeachers:
    """The models in their process, without the check that an import makes of them."""
    files = {}
    for i, proto in enumerate(protos):
        name = f"teachers-{i:05}.onnx"
        (directory / name).write_bytes(data := proto.SerializeToString())
        files[name] = sha256(data)
    return GuardedTeachers(directory, files, None, NAMES, SPEC, threads=2, seconds=seconds)


def growing(times: int) -> onnx.ModelProto:
    """A model that copies its input so many times: sizes are constants, and they are large."""
    nodes = [
        helper.make_node("Tile", ["x", "times"], ["grown"]),
        helper.make_node("ReduceSum", ["grown", "axis"], ["extra"], keepdims=1),
        helper.make_node("Gemm", ["x", "w"], ["plain"]),
        helper.make_node("Add", ["plain", "extra"], ["scores"]),
    ]
    weights: dict[str, np.ndarray] = {
        "times": np.array([1, times], np.int64),
        "axis": np.array([1], np.int64),
        "w": np.ones((INPUTS, CLASSES), np.float32),
    }
    return model(nodes, weights)


def ended(pid: int) -> bool:
    """Whether a process is gone, as its parent can tell: not while a thread of it is left."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # not ours, or we waited for it
        try:
            return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return True


def guarded_by(ensemble: Ensemble) -> GuardedTeachers:
    guarded = getclosurevars(ensemble.voting.choose).nonlocals["guarded"]
    assert isinstance(guarded, GuardedTeachers)
    return guarded


def pid_of(teachers: GuardedTeachers) -> int:
    assert teachers._process is not None
    return teachers._process.pid


def test_a_model_that_wants_too_much_memory_ends_its_process_and_no_other(tmp_path: Path) -> None:
    teachers = guarded(tmp_path, mlp(0), growing(900_000))
    first = pid_of(teachers)
    with refuses(VotingError, 2):
        teachers.choices(X)
    assert ended(first)
    fine = guarded(tmp_path, mlp(0), growing(2))
    assert fine.choices(X).shape == (len(X), 2)


def test_the_check_refuses_what_the_process_would_not_bear(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    path.write_bytes(growing(900_000).SerializeToString())
    declared = Declaration(spec=SPEC, classes=NAMES, units=30, disjoint_by="one shard each")
    with refuses(StoreError, 1):
        import_ensemble([path], tmp_path / "out", "large", declared)


def test_a_process_that_hangs_is_ended_and_the_next_vote_has_another(tmp_path: Path) -> None:
    teachers = guarded(tmp_path, mlp(0), mlp(1))
    expected, first = teachers.choices(X), pid_of(teachers)
    os.kill(first, signal.SIGSTOP)
    teachers._seconds = 0.5
    with refuses(VotingError, "0.5"):
        teachers.choices(X)
    assert ended(first)
    teachers._seconds = 60
    assert np.array_equal(teachers.choices(X), expected)
    second = pid_of(teachers)
    os.kill(second, signal.SIGKILL)  # between two votes: nobody notices
    until(lambda: ended(second))
    assert np.array_equal(teachers.choices(X), expected)


def test_the_process_neither_writes_nor_outlives_its_server(tmp_path: Path) -> None:
    teachers = guarded(tmp_path, mlp(0))
    assert "torch" not in Path(f"/proc/{pid_of(teachers)}/maps").read_text(), "it takes 200 MB"
    limits = Path(f"/proc/{pid_of(teachers)}/limits").read_text()
    assert re.search(r"^Max file size +0 ", limits, re.MULTILINE)
    program = (
        "import sys, time; from pathlib import Path; sys.path[:0] = sys.argv[3:]\n"
        "from terrine_addons.onnx.guard import GuardedProcess\n"
        "process = GuardedProcess('terrine_addons.onnx.voting')\n"
        "process.tell(sys.argv[1].encode(), 60)\n"
        "process.ask(Path(sys.argv[2]).read_bytes(), 60); process.hear(60)\n"
        "print(process.pid, flush=True); time.sleep(600)"
    )
    order, model = teachers._order.model_dump_json(), tmp_path / "teachers-00000.onnx"
    server = subprocess.Popen(
        [sys.executable, "-c", program, order, str(model), *filter(None, sys.path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    with server:
        pid = int(server.stdout.readline())
        assert not ended(pid)
        server.kill()
    until(lambda: ended(pid))


def test_a_file_that_was_altered_is_not_loaded(tmp_path: Path) -> None:
    teachers = guarded(tmp_path, mlp(0))
    os.kill(pid_of(teachers), signal.SIGKILL)
    until(lambda: ended(pid_of(teachers)))
    (tmp_path / "teachers-00000.onnx").write_bytes(mlp(1).SerializeToString())
    with refuses(StoreError, "altered"):
        teachers.choices(X)


@pytest.mark.slow
def test_a_vote_that_fails_is_charged_to_nobody(
    tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    settings, engine = installed(
        tmp_path / "data", f"sqlite:///{tmp_path}/terrine.sqlite", digits_ensemble
    )
    paths = [tmp_path / f"{i}.onnx" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(mlp(i).SerializeToString())
    declared = Declaration(spec=SPEC, classes=NAMES, units=30, disjoint_by="one shard each")
    import_ensemble(paths, settings.ensembles_dir / "ward", "ward", declared)
    ledger = Ledger(engine, settings.secret_key_path.read_bytes())
    register_ensemble(ledger, settings, EnsembleRegister(name="ward"))
    terms = {
        "name": "study",
        "ensemble": "ward",
        "epsilon": 5.0,
        "delta": 1e-5,
        "mechanism": {"name": "gnmax", "sigma": 4.0},
    }
    open_project(ledger, ProjectOpen.model_validate(terms))
    voters = LocalVoters(settings.data_dir)
    service = Labeling(ledger, voters, Metrics(), 4096)
    ask = service.check("study", X[:1])
    loaded = voters.loaded(ledger.ensembles.get("ward")).ensemble
    assert isinstance(loaded, Ensemble)
    teachers = guarded_by(loaded)
    os.kill(pid_of(teachers), signal.SIGSTOP)
    teachers._seconds = 0.5
    with refuses(EnsembleUnavailable, "charged") as refused:
        service.answer("study", [ask])
    assert "0.5" not in str(refused.value), "how long is said in the log"
    assert ledger.projects.get("study").charges == 0
    teachers._seconds = 60
    service.answer("study", [ask])
    assert ledger.projects.get("study").charges == 1
    engine.dispose()


def test_an_ensemble_lets_its_process_end_with_it(tmp_path: Path, out: Path) -> None:
    path = tmp_path / "0.onnx"
    path.write_bytes(mlp(0).SerializeToString())
    declared = Declaration(spec=SPEC, classes=NAMES, units=30, disjoint_by="one shard each")
    import_ensemble([path], out, "made", declared)
    ensemble = Ensemble.load(out)
    pid = pid_of(guarded_by(ensemble))
    ensemble.votes(X)
    del ensemble
    until(lambda: ended(pid))
