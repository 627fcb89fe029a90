"""Training an ensemble: deal the records to disjoint shards and train one teacher on each.

    from terrine_models.data import load_idx
    from terrine_models.features import PublicData
    from terrine_models.teachers import Heads, train_ensemble

    private = load_idx(Path("mnist"))                      # 60,000 labelled training images
    public = PublicData.declare("MNIST test 0-8999", pool)  # [9000, 28, 28], unlabelled
    manifest = train_ensemble(
        private, Path("ensembles/mnist"), name="mnist", teachers=1000, public=public
    )

Each teacher is a function of its own shard, its number, the seed and public settings, and of
nothing else: the privacy of the vote rests on that. An interrupted training continues where it
stopped when it is called again with the same arguments.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray

from .architectures import (
    build_network,
    default_architecture,
    initialise,
    match_priors,
    prepare,
    ridge_heads,
)
from .augment import BENDING, DRAWS, TURNING, distort, draws_for
from .data import DataError, Dataset
from .features import (
    BLOCK,
    MOST_POINTS,
    FeatureMap,
    Kind,
    PublicData,
    public_features,
    to_images,
)
from .store import (
    FEATURES,
    Architecture,
    EnsemblePlan,
    FeatureSpec,
    InputSpec,
    Manifest,
    Partition,
    TeacherTraining,
    load_tensors,
    save_manifest,
    save_tensors,
    sync_directory,
    versions,
    write_atomically,
)
from .workers import side_by_side

PROGRESS = "training.json"
USUAL, OF_WHITENED = 0.1, 1.0
"""Penalties of heads. On whitened features a strong one does no harm: what it shrinks most is the
shard's own, unreliable view of how features vary together."""


class TrainingError(Exception):
    """Training cannot start or continue; the message says why and what to do."""


@dataclass(frozen=True)
class Heads:
    """Private ridge heads on a shared public feature map: the default kind of teacher."""

    width: int = 150
    """Features per input, at most, after the public projection; of nystrom, its landmarks."""
    features: Kind = "graph"
    """What is fitted on public images. It needs public data if it is not the default."""
    ridge: float | None = None
    """Penalty relative to the mean variance of a shard's features. By default `OF_WHITENED` on the
    whitened features of a table with public rows, and `USUAL` on others."""
    copies: int = 2
    """Distorted copies of each training image in addition to the original. Tables have none."""
    turning: float = TURNING
    """The largest angle by which a copy is turned, in degrees."""
    bending: float = BENDING
    """The largest elastic displacement in a copy, as a share of half the side."""
    bins: bool = True
    """Whether a table's columns are binned at the quantiles of public rows (`bins.py`)."""
    match_prior: bool = True
    """Whether heads for two classes, on a table with public rows, match their prior
    (`match_priors`). It lets much smaller shards do."""
    kind = "heads"
    per_file = 50

    def architecture(self, inputs: InputSpec) -> Architecture:
        """Always ridge regression."""
        return Architecture(name="ridge")

    def training(self, data: Dataset, seed: int, features: FeatureSpec | None) -> TeacherTraining:
        """What the manifest records."""
        copies = self.copies if len(data.spec.shape) > 1 else 0
        whitened = features is not None and features.projection == "whitened"
        return TeacherTraining(
            seed=seed,
            copies=copies,
            turning=self.turning if copies else None,
            bending=self.bending if copies else None,
            ridge=self.ridge or (OF_WHITENED if whitened else USUAL),
            match_prior=(whitened and self.match_prior and len(data.classes) == 2) or None,
        )


@dataclass(frozen=True)
class Networks:
    """Separate networks on the inputs themselves: a small CNN for images, an MLP for tables."""

    epochs: int = 100
    batch: int = 30
    learning_rate: float = 0.1
    kind = "networks"
    per_file = 10

    def architecture(self, inputs: InputSpec) -> Architecture:
        """The network that suits the inputs."""
        return default_architecture(inputs)

    def training(self, data: Dataset, seed: int, features: FeatureSpec | None) -> TeacherTraining:
        """What the manifest records."""
        return TeacherTraining(
            seed=seed,
            epochs=self.epochs,
            batch=self.batch,
            learning_rate=self.learning_rate,
            distorted=len(data.spec.shape) > 1,
        )


def train_ensemble(
    data: Dataset,
    out: Path,
    *,
    name: str,
    teachers: int,
    how: Heads | Networks | None = None,
    public: PublicData | None = None,
    seed: int = 0,
    on_trained: Callable[[int], None] | None = None,
) -> Manifest:
    """Train `teachers` teachers on disjoint shards of `data` and save them in directory `out`.

    `public` is the data that the feature map of heads may be fitted on; without it the map is
    data-independent. `on_trained` is called with the number of trained teachers: with 0, and after
    every file. During training the files are in `<out>.partial`, which becomes `out` at the end.

    Raises TrainingError (n larger than the records or people, `out` exists, settings differ from
    those of an interrupted training) and DataError (public data unfit).
    """
    how, out = how or Heads(), Path(out)
    if out.exists():
        raise TrainingError(f"{out} exists already. Remove it or choose another directory.")
    if data.encoding and data.encoding.fitted_on and data.encoding.fitted_on.sha256 == data.sha256:
        raise DataError(
            f"The schema of {data.name} was fitted on the private data itself. Its categories and "
            "ranges become public: take them from a table that is public or invented, or write "
            "them by hand."
        )
    if public is not None:
        public.check_disjoint(data)
    shards, partition = deal(data, teachers, seed)
    features = None
    if isinstance(how, Heads):
        fitted_on = public if how.bins or len(data.spec.shape) > 1 else None
        features = public_features(data.spec, fitted_on, how.width, how.features, whiten=True)
    plan = EnsemblePlan(
        name=name,
        kind=how.kind,
        architecture=how.architecture(data.spec),
        features=features.spec if features else None,
        input=data.spec,
        encoding=data.encoding,
        classes=data.classes,
        teachers=teachers,
        records=len(data),
        partition=partition,
        training=how.training(data, seed, features.spec if features else None),
        versions=versions(),
    )
    work = out.with_name(f"{out.name}.partial")
    files = _begin_or_resume(work, plan, data)
    if features and FEATURES in files:
        tensors = load_tensors(work, FEATURES, files[FEATURES])
        features = FeatureMap(features.spec, data.spec, tensors)
    elif features and features.tensors:
        files[FEATURES] = save_tensors(work / FEATURES, features.tensors)
        _note(work, plan, data, files)
    report = on_trained or (lambda done: None)
    report(0)
    for at in range(0, teachers, how.per_file):
        file = f"teachers-{at // how.per_file:05d}.safetensors"
        run = range(at, min(at + how.per_file, teachers))
        if file not in files:
            if features:
                tensors = _train_heads(data, shards, run, plan, features)
                if plan.training.match_prior and public is not None:
                    tensors = _matched(tensors, data, shards, run, features, public)
            else:
                tensors = _train_networks(data, shards, run, plan)
            files[file] = save_tensors(work / file, tensors)
            _note(work, plan, data, files)
        report(run.stop)
    return _finish(work, out, Manifest(**dict(plan), files=dict(sorted(files.items()))))


def deal(data: Dataset, teachers: int, seed: int) -> tuple[list[NDArray[np.int64]], Partition]:
    """Deal records to disjoint shards: the row numbers of each, and the recipe.

    Units (rows, or people where the data has groups) are shuffled by `seed` and cut into runs
    whose lengths differ by at most one. Units are numbered by where they first appear, and each
    person is one unit however many rows they have: so replacing one person's rows by any others, in
    place, changes one shard and never moves anybody else. Raises TrainingError.
    """
    unit_of = np.arange(len(data)) if data.groups is None else data.groups
    what = "records" if data.groups is None else f"people (values of {data.group_column})"
    units = int(unit_of.max()) + 1
    if not 1 <= teachers <= units:
        raise TrainingError(
            f"{teachers} teachers cannot be trained on {units} {what}: each needs at least one "
            "of its own."
        )
    order = np.random.Generator(np.random.Philox(seed)).permutation(units)
    teacher_of = np.empty(units, dtype=np.int64)
    teacher_of[order] = np.arange(units) * teachers // units
    owner = teacher_of[unit_of]
    rows = np.argsort(owner, kind="stable")
    shards = np.split(rows, np.searchsorted(owner[rows], np.arange(1, teachers)))
    partition = Partition(
        recipe="rows" if data.groups is None else "groups",
        seed=seed,
        group_column=data.group_column,
        smallest=units // teachers,
        largest=-(-units // teachers),
    )
    return shards, partition


def _train_heads(
    data: Dataset,
    shards: list[NDArray[np.int64]],
    run: range,
    plan: EnsemblePlan,
    features: FeatureMap,
) -> dict[str, torch.Tensor]:
    """Weights [k, m, width] and biases [k, m] of a run of k heads."""
    settings = plan.training
    copies, ridge = settings.copies or 0, settings.ridge or 0.0
    turning = TURNING if settings.turning is None else settings.turning
    bending = BENDING if settings.bending is None else settings.bending

    def prepare_shard(teacher: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = _shard(data, shards[teacher])
        if copies:
            draws = draws_for(settings.seed, teacher, len(x) * copies)
            repeated = x.repeat_interleave(copies, 0)
            x = torch.cat([x, _distorted(repeated, draws, data.spec, turning, bending)])
            y = torch.cat([y, y.repeat_interleave(copies)])
        return torch.cat([features(block) for block in torch.split(x, BLOCK)]), y

    weights, biases = ridge_heads(side_by_side(prepare_shard, run), len(data.classes), ridge)
    return {"weights": weights, "biases": biases}


def _matched(
    tensors: dict[str, torch.Tensor],
    data: Dataset,
    shards: list[NDArray[np.int64]],
    run: range,
    features: FeatureMap,
    public: PublicData,
) -> dict[str, torch.Tensor]:
    every = -(-len(public.inputs) // MOST_POINTS)
    rows = torch.from_numpy(public.inputs[::every].astype(np.float32))
    priors = torch.tensor([float(data.labels[shards[teacher]].mean()) for teacher in run])
    weights, biases = tensors["weights"], tensors["biases"]
    return {"weights": weights, "biases": match_priors(weights, biases, priors, features(rows))}


def _train_networks(
    data: Dataset,
    shards: list[NDArray[np.int64]],
    run: range,
    plan: EnsemblePlan,
) -> dict[str, torch.Tensor]:
    """Parameters of a run of k networks, each stacked along axis 0."""

    def train(teacher: int) -> dict[str, torch.Tensor]:
        return _train_network(*_shard(data, shards[teacher]), teacher, plan)

    trained = side_by_side(train, run)
    return {name: torch.stack([t[name] for t in trained]) for name in trained[0]}


def _train_network(
    x: torch.Tensor, y: torch.Tensor, teacher: int, plan: EnsemblePlan
) -> dict[str, torch.Tensor]:
    """SGD with Nesterov momentum; the rate warms up, then falls as a cosine."""
    settings = plan.training
    epochs, batch = settings.epochs or 0, settings.batch or 0
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + teacher)
    network = build_network(plan.architecture, plan.input, len(plan.classes))
    initialise(network, generator)
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=settings.learning_rate or 0.0,
        momentum=0.9,
        weight_decay=5e-4,
        nesterov=True,
    )
    steps = epochs * -(-len(x) // batch)
    warm = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / warm) * (1 + math.cos(math.pi * step / steps)) / 2,
    )
    for _ in range(epochs):
        for picked in torch.split(torch.randperm(len(x), generator=generator), batch):
            inputs = x[picked]
            if settings.distorted:
                draws = torch.rand((len(picked), DRAWS), generator=generator) * 2 - 1
                inputs = _distorted(inputs, draws, plan.input)
            loss = F.cross_entropy(network(prepare(inputs, plan.input)), y[picked])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return {name: value.detach() for name, value in network.named_parameters()}


def _shard(data: Dataset, rows: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.from_numpy(data.inputs[rows].astype(np.float32))
    return inputs, torch.from_numpy(data.labels[rows])


def _distorted(
    x: torch.Tensor,
    draws: torch.Tensor,
    spec: InputSpec,
    turning: float = TURNING,
    bending: float = BENDING,
) -> torch.Tensor:
    """Distorted inputs [B, *shape]; what moves in from beyond the edge gets the lowest value."""
    bent = distort(to_images(x - spec.low), draws, turning, bending) + spec.low
    return bent.squeeze(1) if x.ndim == 3 else bent.permute(0, 2, 3, 1)


def _begin_or_resume(work: Path, plan: EnsemblePlan, data: Dataset) -> dict[str, str]:
    """Files that an earlier, interrupted call completed, with their digests."""
    work.mkdir(parents=True, exist_ok=True)
    note = work / PROGRESS
    if not note.exists():
        _note(work, plan, data, {})
        return {}
    try:
        found = json.loads(note.read_bytes())
        files: dict[str, str] = found["files"]
        earlier, now = found["plan"], plan.model_dump(mode="json")
        changed = sorted(key for key in now.keys() | earlier if now.get(key) != earlier.get(key))
        if found["data"] != data.digest():
            changed.append("the training data")
    except (ValueError, KeyError, AttributeError):
        raise TrainingError(f"{note} is damaged. Remove {work} and start again.") from None
    if changed:
        raise TrainingError(
            f"{work} holds an interrupted training with other settings: {', '.join(changed)} "
            f"differ. Use the same settings to continue, or remove {work} to start again."
        )
    for name, digest in files.items():
        load_tensors(work, name, digest)
    return files


def _note(work: Path, plan: EnsemblePlan, data: Dataset, files: dict[str, str]) -> None:
    state = {"plan": plan.model_dump(mode="json"), "data": data.digest(), "files": files}
    write_atomically(work / PROGRESS, json.dumps(state).encode())


def _finish(work: Path, out: Path, manifest: Manifest) -> Manifest:
    save_manifest(work, manifest)
    (work / PROGRESS).unlink()  # it identifies the training data
    sync_directory(work)
    work.rename(out)
    sync_directory(out.parent)
    return manifest
