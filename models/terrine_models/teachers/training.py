"""Training an ensemble: partition the records into disjoint shards and train one teacher on each.

    from terrine_models.data.arrays import load_idx
    from terrine_models.features.public import PublicData
    from terrine_models.teachers.training import train_ensemble

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
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from terrine_models.data.arrays import Dataset
from terrine_models.features.maps import FeatureMap
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import (
    FEATURES_FILE,
    IDENTITIES_FILE,
    POOL_FILE,
    load_tensors,
    read_verified,
    save_tensors,
    sha256,
    versions,
)
from terrine_models.tables.designed import DesignedPool
from terrine_models.teachers.heads import Heads
from terrine_models.teachers.manifests import (
    EnsemblePlan,
    Manifest,
    ShardTeachers,
    TeacherSettings,
    Trained,
    save_manifest,
)
from terrine_models.teachers.people import People
from terrine_models.teachers.shards import (
    Shards,
    TrainingError,
    check_encoding,
    check_new,
    partition_records,
    unit_count,
)
from terrine_protocol import HistogramRelease
from terrine_protocol.files import PARTIAL, directory_lock, sync_directory, write_atomically

PROGRESS_FILE = "training.json"
# What public rows are called that nobody has seen anywhere.
DESIGNED = "rows designed from the schema"


# Trains runs of teachers of a kind, each a file, and yields the tensors of each run, in order.
Trainer = Callable[[ShardTeachers, Shards, Sequence[range]], Generator[Trained]]


def train_locally(kind: ShardTeachers, shards: Shards, runs: Sequence[range]) -> Generator[Trained]:
    """Train in this process, on all its processors."""
    for run in runs:
        yield kind.train(shards, run)


def train_ensemble(
    data: Dataset,
    out: Path,
    *,
    name: str,
    teachers: int,
    config: TeacherSettings | None = None,
    public: PublicData | None = None,
    seed: int = 0,
    on_trained: Callable[[int], None] | None = None,
    trainer: Trainer = train_locally,
    key: bytes | None = None,
    pool: DesignedPool | None = None,
    release: HistogramRelease | None = None,
) -> Manifest:
    """Train `teachers` teachers on disjoint shards of `data` and save them in directory `out`.

    `public` is what the feature map of heads may be fitted on, and on what teachers of tables match
    their prior; without it the map is data-independent. `on_trained` is called with the number of
    trained teachers: with 0, and after every file. `trainer` says where they are trained, and
    changes nothing else. `key`: the owner's, under which people who have names (a group) can be
    found again; without one nobody can be forgotten. `pool`: rows designed to be asked, in place of
    `public`; they are saved beside the teachers; of an interrupted training, those of
    `load_begun_pool`. `release`: by what noisy counts of `data` they were designed. During training
    the files are in `<out>.partial`, which becomes `out` at the end.

    Raises TrainingError (n larger than the records or people, `out` exists, settings or pool differ
    from those of an interrupted training), BlockingIOError (another process trains there) and
    DataError (public data unfit or private).
    """
    out = Path(out)
    config = config or Heads(even=pool is not None)
    check_new(out)
    if pool is not None:
        public = PublicData.declare(DESIGNED, pool.rows)
    check_encoding(data)
    if pool is not None and public is not None:
        public.check_fits(data.spec)
    elif public is not None:
        public.count_private_rows(data)  # which refuses a mix-up of files
    rows, partition = partition_records(data, teachers, seed)
    people = None if key is None or data.groups is None else People.of(data, key)
    features = config.feature_map(data, public)
    kind = config.teacher(data, features.spec if features else None, public)
    plan = EnsemblePlan(
        name=name,
        teacher=kind,
        input=data.spec,
        encoding=data.encoding,
        image=data.image,
        classes=data.classes,
        teachers=teachers,
        units=unit_count(data),
        partition=partition,
        release=release,
        versions=versions(*kind.packages),
    )
    work, of_data = out.with_name(out.name + PARTIAL), data.digest()
    work.mkdir(parents=True, exist_ok=True)
    with directory_lock(work, wait=False):
        files = _begin_or_resume(work, plan, of_data)
        if people is not None and key is not None and IDENTITIES_FILE not in files:
            files[IDENTITIES_FILE] = people.save(work, key)
        if features and FEATURES_FILE in files:
            tensors = load_tensors(work, FEATURES_FILE, files[FEATURES_FILE])
            features = FeatureMap(features.spec, data.spec, tensors, features.backbone)
        elif features:
            files |= features.save(work)
            features = features.to("cpu")
        if pool is not None:
            _save_pool(work, pool, files)
        _save_progress(work, plan, of_data, files)
        shards = Shards(data, dict(enumerate(rows)), seed, features, public)
        report = on_trained or (lambda done: None)
        report(0)
        starts = range(0, teachers, kind.per_file)
        runs = {
            f"teachers-{number:05d}.safetensors": range(at, min(at + kind.per_file, teachers))
            for number, at in enumerate(starts)
        }
        missing = [run for file, run in runs.items() if file not in files]
        with closing(trainer(kind, shards, missing)) as trained:
            for file, run in runs.items():
                if file not in files:
                    files[file] = save_tensors(work / file, next(trained))
                    _save_progress(work, plan, of_data, files)
                report(run.stop)
        return _finish(work, out, Manifest(**dict(plan), files=dict(sorted(files.items()))))


def _save_pool(work: Path, pool: DesignedPool, files: dict[str, str]) -> None:
    """Save the rows that are asked, on which teachers are levelled, unless they are there."""
    made = pool.to_bytes()
    if files.setdefault(POOL_FILE, sha256(made)) != sha256(made):
        raise TrainingError(
            f"{work} holds an interrupted training that asks other rows. Use these "
            f"(`load_begun_pool`), or remove {work} to start again."
        )
    write_atomically(work / POOL_FILE, made, public=True)


def load_begun_pool(out: Path) -> DesignedPool | None:
    """Return the pool that an interrupted training in `out` has; None if there is none.

    Drawn again, from other noise, it would not be the one that teachers were levelled on. Raises
    StoreError if it was altered, and DataError.
    """
    work = out.with_name(out.name + PARTIAL)
    try:
        files = json.loads((work / PROGRESS_FILE).read_bytes())["files"]
    except (OSError, ValueError, KeyError):
        return None  # not begun, or `train_ensemble` says that it is damaged
    if POOL_FILE not in files:
        return None
    return DesignedPool.of_bytes(read_verified(work, POOL_FILE, files[POOL_FILE]))


def _begin_or_resume(work: Path, plan: EnsemblePlan, of_data: str) -> dict[str, str]:
    """Files that an earlier, interrupted call completed, with their digests.

    None until its progress is saved, with the pool: without that one, another would be drawn, of
    which other features follow.
    """
    note = work / PROGRESS_FILE
    if not note.exists():
        return {}
    try:
        found = json.loads(note.read_bytes())
        files: dict[str, str] = found["files"]
        earlier, now = _flat(found["plan"]), _flat(plan.model_dump(mode="json"))
        changed = sorted(key for key in now.keys() | earlier if now.get(key) != earlier.get(key))
        if found["data"] != of_data:
            changed.append("the training data")
    except (ValueError, KeyError, AttributeError):
        raise TrainingError(f"{note} is damaged. Remove {work} and start again.") from None
    if changed:
        raise TrainingError(
            f"{work} holds an interrupted training with other settings: {', '.join(changed)} "
            f"differ. Use the same settings to continue, or remove {work} to start again."
        )
    for name, digest in files.items():
        read_verified(work, name, digest)
    return files


def _flat(plan: dict[str, Any]) -> dict[str, Any]:
    return {**plan, **plan["teacher"], "teacher": None}


def _save_progress(work: Path, plan: EnsemblePlan, of_data: str, files: dict[str, str]) -> None:
    state = {"plan": plan.model_dump(mode="json"), "data": of_data, "files": files}
    write_atomically(work / PROGRESS_FILE, json.dumps(state).encode())


def _finish(work: Path, out: Path, manifest: Manifest) -> Manifest:
    save_manifest(work, manifest)
    (work / PROGRESS_FILE).unlink()  # it identifies the training data
    sync_directory(work)
    work.rename(out)
    sync_directory(out.parent)
    return manifest
