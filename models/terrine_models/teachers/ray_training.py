"""Training teachers on a Ray cluster: each file of teachers is one task, of one thread.

A task is sent the records of its own teachers and what is public, and returns tensors. It computes
what this process would, to the last bit. One whose worker is lost is sent again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.data.arrays import Dataset
from terrine_models.features.backbones import Backbone
from terrine_models.features.maps import FeatureMap, PublicData
from terrine_models.storage.onnx_models import OnnxModel
from terrine_models.teachers.manifests import ShardTeachers, Trained
from terrine_models.teachers.ray_cluster import (
    ClusterError,
    connect,
    differing,
    disconnect,
    processors,
    software,
)
from terrine_models.teachers.shards import Shards, TrainingError

if TYPE_CHECKING:
    from terrine_models.teachers.training import Trainer

RETRIES = 5
"""How often a task is sent again because its worker is lost."""
AHEAD = 2
"""Tasks that are sent, at most, for each processor of the cluster."""
LOOK_SECONDS = 30.0
"""How often it is looked whether there is still a cluster, while a task is waited for."""
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
    """Join the cluster at `address` (see `ray_cluster.connect`); yield a trainer for it.

    Leaves the cluster at the end, whatever happens: then it ends the tasks that still run there.
    To cancel them first is no safer: Ray aborts this process when one finishes just then.
    Raises ClusterError.
    """
    most = AHEAD * connect(address)

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
        max_retries=RETRIES,
        retry_exceptions=False,
        scheduling_strategy="SPREAD",
        enable_task_events=False,
    )
    known = ray.put(_known(kind, shards))
    left = iter(runs)
    coming: list[Any] = []
    try:
        for _ in runs:
            for run in islice(left, most - len(coming)):
                own = shards.only(run)
                coming.append(task.remote(known, own.data, own.rows, run))
            while not ray.wait(coming[:1], timeout=LOOK_SECONDS)[0]:
                processors()  # otherwise nobody would ever train it
            found = ray.get(coming.pop(0))
            if isinstance(found, str):
                raise TrainingError(found)
            yield {name: torch.tensor(array) for name, array in found.items()}
    except RayError as error:
        raise ClusterError(
            f"The Ray cluster did not train these teachers ({type(error).__name__}). Run the same "
            "command again to continue where it stopped; Ray's logs say more."
        ) from None


def _known(kind: ShardTeachers, shards: Shards) -> Broadcast:
    features = shards.features
    return Broadcast(
        kind=kind,
        seed=shards.seed,
        features={name: tensor.numpy() for name, tensor in features.tensors.items()}
        if features
        else None,
        backbone=features.backbone.data if features and features.backbone else None,
        public=shards.public,
        software=software(),
    )


def _task(
    known: Broadcast, data: Dataset, rows: dict[int, NDArray[np.int64]], run: range
) -> Tensors | str:
    """Train the teachers of a run, in a process of the cluster; return why not, if it cannot."""
    torch.set_num_threads(1)
    unfit = differing(known.software)
    if unfit is not None:
        return unfit
    features, spec = None, known.kind.features
    if known.features is not None and spec is not None:
        # Copied to where torch puts tensors: what a product rounds to may depend on where it lies.
        tensors = {name: torch.tensor(array) for name, array in known.features.items()}
        source, backbone = spec.backbone, None
        if known.backbone is not None and source is not None:
            backbone = Backbone(known.backbone, OnnxModel(known.backbone), source)
        features = FeatureMap(spec, data.spec, tensors, backbone)
    shards = Shards(data, rows, known.seed, features, known.public)
    try:
        trained = known.kind.train(shards, run)
    except TrainingError as error:
        return str(error)
    return {name: tensor.numpy() for name, tensor in trained.items()}
