"""A Ray cluster to train and to vote on: an existing one, or one of this machine's processors.

Whoever may connect to a cluster may run code on it, so it lies within the trust boundary: Ray
itself pickles what its processes, which trust each other, send. Teachers' files are never pickled.

What is private goes straight from process to process. Ray keeps arguments of more than 100 kB in
an object store, in memory that all processes of a machine share; here that limit is raised above
what any task is sent.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_addons.ray.settings import RaySettings
from terrine_models.data.arrays import Dataset
from terrine_models.features.backbones import backbones
from terrine_models.features.maps import FeatureMap
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import versions
from terrine_models.teachers.manifests import ShardTeachers, Trained
from terrine_models.teachers.shards import Shards, TrainingError
from terrine_protocol.errors import TerrineError

if TYPE_CHECKING:
    from terrine_models.teachers.training import Trainer
    from terrine_server.settings import Settings


# Arguments of fewer bytes are sent with the task. Ray's own limit on a message is twice that.
INLINE_BYTES = 256 * 2**20
# Of the object store of a cluster of one's own, near the least that Ray takes.
STORE_BYTES = 100 * 2**20
NAMESPACE = "terrine"
CONNECT_SECONDS = 10.0

_connecting = threading.Lock()
_joined = 0
_directories: list[str] = []


class ClusterError(TerrineError):
    """A Ray cluster cannot be used; the message says why and what to do."""


def connect(address: str | None) -> int:
    """Join the cluster at `address`, one in a process; return how many processors it has.

    `address` is `HOST:PORT`, or `auto` for the one to which this machine belongs. None starts one
    of all processors here, which ends with this process. Raises ClusterError.
    """
    global _joined
    with _connecting:
        ray = _ray(address)
        if not ray.is_initialized():
            options = _own() if address is None else {"address": address}
            if address is not None and address != "auto":
                _check_listens(address)
            logging.getLogger("ray").setLevel(logging.ERROR)
            try:
                with _own_signals():
                    ray.init(
                        namespace=NAMESPACE, log_to_driver=False, configure_logging=False, **options
                    )
            except SystemExit:  # Ray gives up
                raise ClusterError(
                    f"What listens at {address} is no Ray cluster, or busy."
                ) from None
            except Exception as error:  # of many classes
                where = "on this machine" if address is None else f"at {address}"
                raise ClusterError(f"There is no Ray cluster {where}: {_first(error)}") from None
        found = count_processors()
        _joined += 1
    return found


def count_processors() -> int:
    """Return how many processors the cluster has now. Raises ClusterError if it has none."""
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    found = int(resources.get("CPU", 0))
    if found < 1:
        raise ClusterError("The Ray cluster has no processors. Start `ray start` on a machine.")
    return found


def on_node(number: int) -> Any:
    """Return a strategy that starts the actor of this number on a node whose turn it is.

    Nodes take turns until each has had one for each of its processors. Ray's own `SPREAD` may put
    all actors on one node. An actor whose node is lost starts anew on any other.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    turns = sorted(
        (turn, node["NodeID"])
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
        for turn in range(int(node["Resources"].get("CPU", 0)))
    )
    if not turns:
        return "SPREAD"  # it waits for a node
    return NodeAffinitySchedulingStrategy(turns[number % len(turns)][1], soft=True)


def require_ray() -> None:
    """Raise ClusterError if Ray is not installed."""
    if find_spec("ray") is None:
        raise ClusterError("Ray is not installed. In a checkout: pip install '.[ray]'")


def disconnect() -> None:
    """Leave the cluster, as often as it was joined. Then one that `connect` started ends."""
    global _joined
    import ray

    with _connecting:
        _joined -= 1
        if _joined == 0:
            ray.shutdown()
            while _directories:
                shutil.rmtree(_directories.pop(), ignore_errors=True)


def software_versions() -> dict[str, str]:
    """Versions of what training and votes depend on."""
    return versions("terrine")


def compare_versions(ours: dict[str, str]) -> str | None:
    """Say what this process has in other versions than `ours`; None if it is nothing."""
    theirs = software_versions()
    other = [name for name in ours if theirs[name] != ours[name]]
    if not other:
        return None
    found = ", ".join(f"{name} {theirs[name]} instead of {ours[name]}" for name in other)
    return f"A machine of the Ray cluster has {found}. Install the same versions on all."


def _ray(address: str | None) -> Any:
    """Import Ray, which reads its settings then."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    for limit in ("max_direct_call_object_size", "task_rpc_inlined_bytes_limit"):
        os.environ.setdefault(f"RAY_{limit}", str(INLINE_BYTES))
    chosen = any(name.startswith("RAY_AUTH_") for name in os.environ)
    if address is None and not chosen and "ray" not in sys.modules:
        os.environ["RAY_AUTH_MODE"] = "token"  # nobody else on this machine may use it
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    require_ray()
    import ray

    return ray


def _check_listens(address: str) -> None:
    """Raise ClusterError if nobody listens: Ray itself would try for two minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"There is no Ray cluster at {address}: {error}. Start one with `ray start --head`."
        ) from None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's handlers: Ray's write a stack trace first. Only the main thread can."""
    ours = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in ours.items():
            signal.signal(number, handler)


def _own() -> dict[str, Any]:
    """Options of a cluster of this process alone, with a directory that others cannot read."""
    directory = tempfile.mkdtemp(prefix="terrine-ray-")
    _directories.append(directory)
    return {
        "address": "local",
        "include_dashboard": False,
        "object_store_memory": STORE_BYTES,
        "_temp_dir": directory,
    }


def _first(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


# How often a task is sent again because its worker is lost.
MAX_RETRIES = 5
# Tasks that are sent, at most, for each processor of the cluster.
TASKS_PER_PROCESSOR = 2
# How often it is looked whether there is still a cluster, while a task is waited for.
POLL_SECONDS = 30.0
Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What all tasks are sent: it is public."""

    kind: ShardTeachers
    seed: int
    features: Tensors | None
    backbone: bytes | None
    public: PublicData | None
    software: dict[str, str]


@contextmanager
def on_ray(address: str | None) -> Iterator[Trainer]:
    """Join the cluster at `address` (see `connect`); yield a trainer for it.

    Leaves the cluster at the end, whatever happens: then it ends the tasks that still run there.
    To cancel them first is no safer: Ray aborts this process when one finishes just then.
    Raises ClusterError.
    """
    most = TASKS_PER_PROCESSOR * connect(address)

    def train(kind: ShardTeachers, shards: Shards, runs: Sequence[range]) -> Generator[Trained]:
        return _train(kind, shards, runs, most)

    try:
        yield train
    finally:
        disconnect()


def _train(
    kind: ShardTeachers, shards: Shards, runs: Sequence[range], most: int
) -> Generator[Trained]:
    import ray
    from ray.exceptions import RayError

    task: Any = ray.remote(_task)
    task = task.options(
        num_cpus=1,
        max_retries=MAX_RETRIES,
        retry_exceptions=False,
        scheduling_strategy="SPREAD",
        enable_task_events=False,
    )
    known = ray.put(_make_broadcast(kind, shards))
    left = iter(runs)
    coming: list[Any] = []
    try:
        for _ in runs:
            for run in islice(left, most - len(coming)):
                own = shards.of_run(run)
                coming.append(task.remote(known, own.data, own.rows, run))
            while not ray.wait(coming[:1], timeout=POLL_SECONDS)[0]:
                count_processors()  # otherwise nobody would ever train it
            found = ray.get(coming.pop(0))
            if isinstance(found, str):
                raise TrainingError(found)
            yield {name: torch.tensor(array) for name, array in found.items()}
    except RayError as error:
        raise ClusterError(
            f"The Ray cluster did not train these teachers ({type(error).__name__}). Run the same "
            "command again to continue where it stopped; Ray's logs say more."
        ) from None


def _make_broadcast(kind: ShardTeachers, shards: Shards) -> Broadcast:
    features = shards.features
    return Broadcast(
        kind=kind,
        seed=shards.seed,
        features={name: tensor.numpy() for name, tensor in features.tensors.items()}
        if features
        else None,
        backbone=features.backbone.data if features and features.backbone else None,
        public=shards.public,
        software=software_versions(),
    )


def _task(
    known: Broadcast, data: Dataset, rows: dict[int, NDArray[np.int64]], run: range
) -> Tensors | str:
    """Train the teachers of a run, in a process of the cluster; return why not, if it cannot."""
    torch.set_num_threads(1)
    unfit = compare_versions(known.software)
    if unfit is not None:
        return unfit
    features, spec = None, known.kind.features
    if known.features is not None and spec is not None:
        # Copied to where torch puts tensors: what a product rounds to may depend on where it lies.
        tensors = {name: torch.tensor(array) for name, array in known.features.items()}
        source, backbone = spec.backbone, None
        if known.backbone is not None and source is not None:
            backbone = backbones().of_bytes(known.backbone, source)
        features = FeatureMap(spec, data.spec, tensors, backbone)
    shards = Shards(data, rows, known.seed, features, known.public)
    try:
        trained = known.kind.train(shards, run)
    except TrainingError as error:
        return str(error)
    return {name: tensor.numpy() for name, tensor in trained.items()}


def on_cluster(settings: Settings) -> AbstractContextManager[Trainer]:
    """Join the cluster that the settings name: see `on_ray`."""
    return on_ray(RaySettings.of(settings).ray_address)
