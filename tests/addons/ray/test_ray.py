"""Teachers that are trained, and vote, on a Ray cluster: the same teachers, and the same votes."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
from sklearn.datasets import load_digits

from support.data import DigitsEnsemble
from support.onnx_files import mlp
from support.processes import Terrine, until
from support.servers import running_server
from support.wording import holds, refuses
from terrine_addons.onnx.teachers import Declaration, import_ensemble
from terrine_addons.ray.settings import RaySettings
from terrine_addons.ray.training import INLINE_BYTES, on_node, on_ray
from terrine_addons.ray.voters import RayVoters
from terrine_models.data.arrays import DIGITS, Dataset, InputSpec
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import load_tensors, manifest_digest
from terrine_models.teachers.kinds import Heads, Networks, load_manifest
from terrine_models.teachers.manifests import TeacherSettings
from terrine_models.teachers.training import Trainer, train_ensemble, train_locally
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.local_voters import LocalVoters
from terrine_server.labeling.voters import get_full_tallies
from terrine_server.ledger import EnsembleRecord

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(  # not importorskip: Ray reads its settings when it is imported
        find_spec("ray") is None, reason="NO RAY: clusters are not tested here; install ray."
    ),
]
ACTORS = 2
SECONDS = 200.0
"""A new actor imports PyTorch before it answers, on a machine that may be busy."""


def private() -> Dataset:
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.int64)
    spec = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
    return Dataset(images[:600], labels[:600], DIGITS, spec, name="digits")


def trained(
    out: Path, config: TeacherSettings, teachers: int, trainer: Trainer = train_locally, **more: Any
) -> Path:
    public = PublicData.declare("digits 1200-", load_digits().images[1200:].astype(np.uint8))
    train_ensemble(
        private(),
        out,
        name=out.name,
        teachers=teachers,
        config=config,
        public=public if isinstance(config, Heads) else None,
        trainer=trainer,
        **more,
    )
    return out


def tensors(directory: Path) -> dict[str, bytes]:
    """All numbers of an ensemble; their files differ in their salts."""
    return {
        f"{file} {name}": tensor.numpy().tobytes()
        for file, digest in load_manifest(directory).files.items()
        for name, tensor in load_tensors(directory, file, digest).items()
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Trainer]:
    """A cluster of this machine, which everything here shares."""
    with on_ray(None) as trainer:
        yield trainer


def ray_address() -> str:
    """Where this test's own cluster listens."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def parent(process: int) -> int:
    """The process that started this one; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def processes(pattern: str) -> list[int]:
    """The processes with these words in their command line, the newest last."""
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def workers(name: str) -> list[int]:
    """The processes of this test's own cluster that do this now: another may run beside it."""
    return [each for each in processes(f"^ray::{name}") if parent(parent(each)) == os.getpid()]


# ---------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"TERRINE_DEVICE": "cpu:0"}, "processors"),
        ({"TERRINE_RAY_ADDRESS": "somewhere"}, "ray_address"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused_at_the_start(
    terrine: Terrine, variables: dict[str, str], said: str
) -> None:
    terrine("init")
    refused = terrine("serve", "--port", "0", TERRINE_VOTERS="ray", **variables).refused
    holds(refused, said)


def test_a_training_without_a_cluster_is_refused_at_once(terrine: Terrine, tmp_path: Path) -> None:
    data = private()
    np.savez(tmp_path / "digits.npz", x=data.inputs, y=data.labels, classes=DIGITS)
    train = ("ensemble", "train", tmp_path / "digits.npz", "--name", "digits", "--teachers", 9)
    done = terrine(*train, "--on", "ray", TERRINE_RAY_ADDRESS="127.0.0.1:1")
    assert done.code == 1
    holds(done.err, "127.0.0.1:1")
    assert not list(tmp_path.glob("**/manifest.json"))


# ---------------------------------------------------------------------------------------- training


def test_heads_of_a_cluster_are_those_of_this_process_bit_for_bit(
    cluster: Trainer, two_threads: None, tmp_path: Path
) -> None:
    config = Heads(width=60, augmentations=1)
    local = trained(tmp_path / "local", config, 70)
    remote = trained(tmp_path / "remote", config, 70, cluster)
    assert tensors(remote) == tensors(local)


def test_networks_are_the_same_too_and_a_lost_worker_is_replaced(
    cluster: Trainer, two_threads: None, tmp_path: Path
) -> None:
    config, done, lost = Networks(epochs=3), list[int](), list[int]()

    def lose_one() -> None:
        lost.append(until(lambda: workers("_task"))[0])
        os.kill(lost[0], signal.SIGKILL)

    losing = threading.Thread(target=lose_one)
    losing.start()
    remote = trained(tmp_path / "remote", config, 40, cluster, on_trained=done.append)
    losing.join()
    assert lost
    assert done == [0, 10, 20, 30, 40]
    assert tensors(remote) == tensors(trained(tmp_path / "local", config, 40))


def test_an_interrupted_training_leaves_no_ensemble_and_no_task_and_continues(
    cluster: Trainer, terrine: Terrine, tmp_path: Path
) -> None:
    data, out = private(), tmp_path / "data" / "ensembles" / "digits"
    np.savez(tmp_path / "digits.npz", x=data.inputs, y=data.labels, classes=DIGITS)
    train = ["--data-dir", str(tmp_path / "data"), "ensemble", "train"]
    train += [str(tmp_path / "digits.npz"), "--name", "digits"]
    train += ["--teachers", "60", "--kind", "networks:epochs=60"]
    process = subprocess.Popen(
        [sys.executable, "-m", "terrine_server", *train, "--on", "ray"],
        env=os.environ | {"TERRINE_RAY_ADDRESS": ray_address()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until(lambda: list(out.parent.glob("digits.partial/teachers-*")))
    until(lambda: workers("_task"))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert not out.exists()
    until(lambda: not workers("_task"))
    assert "60 teachers" in terrine(*train).fine
    assert load_manifest(out).teachers == 60


# ------------------------------------------------------------------------------------------- votes


@pytest.fixture(scope="module")
def home(digits_ensemble: DigitsEnsemble, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with heads, which each actor has all of, and others, which are divided."""
    directory = tmp_path_factory.mktemp("home")
    (directory / "ensembles").mkdir()
    (directory / "ensembles" / "heads").symlink_to(digits_ensemble.directory)
    trained(directory / "ensembles" / "networks", Networks(epochs=1), 30)
    models = [directory / f"{seed}.onnx" for seed in range(7)]
    for seed, path in enumerate(models):
        path.write_bytes(mlp(seed, 64, classes=10).SerializeToString())
    flat = InputSpec(shape=(64,), dtype="uint8", low=0, high=16)
    declared = Declaration(flat, tuple(DIGITS), units=700, disjoint_by="by hand")
    import_ensemble(models, directory / "ensembles" / "imported", "imported", declared)
    return directory


def test_nodes_take_turns(cluster: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def node(name: str, processors: float, alive: bool = True) -> dict[str, Any]:
        return {"NodeID": name * 56, "Alive": alive, "Resources": {"CPU": processors}}

    found = [node("a", 2.0), node("0", 2.0, alive=False), node("b", 1.0), node("c", 0.0)]
    found.append({"NodeID": "d" * 56, "Alive": True, "Resources": {"memory": 1.0}})
    monkeypatch.setattr(ray, "nodes", lambda: found)
    assert "".join(on_node(number).node_id[0] for number in range(5)) == "abaab"
    found.clear()
    assert on_node(0) == "SPREAD"


@pytest.fixture(scope="module")
def voters(cluster: Trainer, home: Path) -> Iterator[RayVoters]:
    made = RayVoters(home, None, ACTORS, SECONDS)
    yield made
    made.close()


def registered(home: Path, name: str) -> EnsembleRecord:
    directory = home / "ensembles" / name
    manifest = load_manifest(directory)
    record = SimpleNamespace(
        name=name,
        path=f"ensembles/{name}",
        manifest_sha256=manifest_digest(directory),
        facts=SimpleNamespace(
            teachers=manifest.teachers, classes=manifest.classes, kind=manifest.kind
        ),
    )
    return cast(EnsembleRecord, record)


@pytest.mark.parametrize("name", ["heads", "networks", "imported"])
@pytest.mark.parametrize("rows", [1, 1000])
def test_votes_of_a_cluster_are_those_of_this_process_bit_for_bit(
    voters: RayVoters, home: Path, digits_ensemble: DigitsEnsemble, name: str, rows: int
) -> None:
    record = registered(home, name)
    shape = load_manifest(home / record.path).input.shape
    inputs = np.resize(digits_ensemble.unseen, (rows, *shape))
    voters.check(record)
    counts = get_full_tallies(voters, record, inputs)
    assert np.array_equal(counts, LocalVoters(home, "cpu").votes(record, inputs))


@pytest.mark.parametrize("name", ["networks", "imported"])
def test_no_actor_has_all_networks(voters: RayVoters, home: Path, name: str) -> None:
    manifest = load_manifest(home / "ensembles" / name)
    places = [slot.made_of[1] for slot in voters._joined(registered(home, name))]
    divided = [place.files(manifest) for place in places]
    assert len(divided) == ACTORS
    assert sorted(file for files in divided for file in files) == manifest.teacher_files
    heads = load_manifest(home / "ensembles/heads")
    assert [place.files(heads) for place in places] == [heads.teacher_files] * ACTORS


def test_a_killed_actor_is_replaced_and_the_request_answered(
    voters: RayVoters, home: Path, digits_ensemble: DigitsEnsemble
) -> None:
    record = registered(home, "networks")
    voters.check(record)
    before = workers("_Actor")
    assert len(before) == ACTORS
    os.kill(before[0], signal.SIGKILL)
    counts = get_full_tallies(voters, record, digits_ensemble.unseen)
    expected = LocalVoters(home, "cpu").votes(record, digits_ensemble.unseen)
    assert np.array_equal(counts, expected)
    assert before[0] not in workers("_Actor")


def test_a_silent_actor_is_replaced_and_nobody_waits_for_it_for_ever(
    voters: RayVoters, home: Path, digits_ensemble: DigitsEnsemble
) -> None:
    record = registered(home, "networks")
    voters.check(record)
    os.kill(workers("_Actor")[0], signal.SIGSTOP)
    voters._seconds = 1.0
    try:
        with refuses(EnsembleUnavailable, "charged"):
            voters.votes(record, digits_ensemble.unseen)
    finally:
        voters._seconds = SECONDS
    counts = get_full_tallies(voters, record, digits_ensemble.unseen)
    assert np.array_equal(counts, LocalVoters(home, "cpu").votes(record, digits_ensemble.unseen))


@pytest.mark.parametrize("name", ["teachers-00002.safetensors", "manifest.json"])
def test_an_altered_file_is_refused_until_it_is_restored(
    voters: RayVoters, home: Path, digits_ensemble: DigitsEnsemble, name: str
) -> None:
    record, file = registered(home, "networks"), home / "ensembles/networks" / name
    voters.check(record)
    data = file.read_bytes()
    try:
        file.write_bytes(data + b"\n")
        with refuses(EnsembleUnavailable, "networks"):
            voters.votes(record, digits_ensemble.unseen)
    finally:
        file.write_bytes(data)
    assert len(get_full_tallies(voters, record, digits_ensemble.unseen)) == len(
        digits_ensemble.unseen
    )


def in_object_store(pattern: bytes) -> bool:
    """Whether the memory that the machine's processes share holds these bytes, or ever did."""
    (raylet,) = (each for each in processes("/raylet/raylet ") if parent(each) == os.getpid())
    for opened in Path(f"/proc/{raylet}/fd").iterdir():
        try:
            target = os.readlink(opened)
        except OSError:
            continue
        if "/plasma" in target and target.endswith("(deleted)"):
            return pattern in opened.read_bytes()
    pytest.fail("no object store was found")


def test_inputs_never_enter_the_object_store(voters: RayVoters, home: Path) -> None:
    import ray

    record, marker = registered(home, "heads"), secrets.token_bytes(64)
    inputs = np.frombuffer(marker * 4096, np.uint8).reshape(-1, 8, 8) % 17
    assert inputs[:128].nbytes < INLINE_BYTES
    get_full_tallies(voters, record, inputs)
    assert not in_object_store(inputs[0].tobytes())
    kept = ray.put(inputs)
    assert in_object_store(inputs[0].tobytes()), "where it would have been"
    del kept


def test_the_service_votes_on_a_cluster_and_charges_nothing_without_votes(
    cluster: Trainer, tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    settings = {"voters": "ray", "ray_actors": ACTORS}
    database = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    with running_server(tmp_path, database, digits_ensemble, RaySettings, **settings) as server:
        server.open_project()
        http = httpx.Client(
            base_url=server.url, headers={"Authorization": f"Bearer {server.token()}"}, timeout=60
        )
        with http:
            asked = {"inputs": digits_ensemble.unseen[:3].tolist()}
            assert http.post("/label", json=asked).json()["budget"]["charges"] == 3

            file = server.settings.ensembles_dir / "digits" / "teachers-00000.safetensors"
            data = file.read_bytes()
            file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            asked = {"inputs": digits_ensemble.unseen[3:6].tolist()}
            refused = http.post("/label", json=asked)
            assert refused.status_code == 503
            assert refused.json()["type"] == "/problems/ensemble-unavailable"
            assert http.get("/readyz").status_code == 503
            file.write_bytes(data)
            assert http.get("/budget").json()["charges"] == 3
            assert http.post("/label", json=asked).json()["budget"]["charges"] == 6
