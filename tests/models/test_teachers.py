"""The basis of the vote's privacy: every teacher sees its own shard and nothing else."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.data import make_kept_rows, records
from support.processes import in_processes
from support.wording import refuses
from support.workers import train_until_killed
from terrine_models.data.arrays import DataError, Dataset, InputSpec
from terrine_models.features.fitting import public_features
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import load_tensors, manifest_digest
from terrine_models.sums import ReleasedSums
from terrine_models.tables.designed import DesignedPool
from terrine_models.teachers import sums as sums_teachers
from terrine_models.teachers.editions import forget
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Forests, Heads, Networks, load_manifest
from terrine_models.teachers.manifests import Manifest, ShardTeachers, TeacherSettings
from terrine_models.teachers.neighbours import RECORDS_FILE, NeighbourSettings, build
from terrine_models.teachers.networks import NetworkTeachers
from terrine_models.teachers.people import name_digests
from terrine_models.teachers.shards import TrainingError, partition_records, teacher_of
from terrine_models.teachers.sums import add_up_records, fit_sum_map, natural_rows
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import HistogramRelease
from terrine_protocol.schema import TableSchema

SMALL = Heads(width=40, augmentations=1)


def teachers_in(directory: Path) -> dict[str, torch.Tensor]:
    manifest = load_manifest(directory)
    parts = [load_tensors(directory, f, manifest.files[f]) for f in manifest.teacher_files]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def rows_of(data: Dataset, rows: slice) -> Dataset:
    return replace(data, inputs=data.inputs[rows], labels=data.labels[rows])


def blank(rows: int, groups: list[int] | None = None) -> Dataset:
    return Dataset(
        np.zeros((rows, 1), np.float32),
        np.zeros(rows, np.int64),
        ("a", "b"),
        InputSpec(shape=(1,), dtype="float32", low=0, high=1),
        groups=None if groups is None else np.array(groups, np.int64),
    )


@given(rows=st.integers(1, 300), teachers=st.integers(1, 300), seed=st.integers(0, 2**64 - 1))
def test_every_row_goes_to_exactly_one_teacher(rows: int, teachers: int, seed: int) -> None:
    if teachers > rows:
        with refuses(TrainingError, "records"):
            partition_records(blank(rows), teachers, seed)
        return
    shards, partition = partition_records(blank(rows), teachers, seed)
    assert sorted(np.concatenate(shards).tolist()) == list(range(rows))
    sizes = {len(shard) for shard in shards}
    assert sizes == {partition.smallest, partition.largest}
    assert partition.largest - partition.smallest <= 1


@given(st.lists(st.integers(0, 12), min_size=1, max_size=80), st.integers(1, 13), st.integers(0, 9))
def test_all_rows_of_one_person_go_to_one_teacher(
    people: list[int], teachers: int, seed: int
) -> None:
    _, first = np.unique(people, return_index=True)
    names = {people[i]: k for k, i in enumerate(sorted(first))}
    data = blank(len(people), [names[person] for person in people])
    if teachers > len(names):
        with refuses(TrainingError, "people"):
            partition_records(data, teachers, seed)
        return
    shards, partition = partition_records(data, teachers, seed)
    assert partition.recipe == "groups"
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(people)))
    owners = [{people[row] for row in shard} for shard in shards]
    assert sum(len(shard) for shard in owners) == len(names), "a person is in two shards"
    counts = [len(shard) for shard in owners]
    assert max(counts) - min(counts) <= 1


def test_how_many_rows_a_person_has_moves_nobody_else() -> None:
    few = [0, 1, 2, 3, 4, 5]
    many = [0, 1, 1, 1, 1, 1, 1, 2, 3, 4, 5]

    def companions(people: list[int]) -> list[set[int]]:
        shards, _ = partition_records(blank(len(people), people), 3, seed=7)
        return [{people[row] for row in shard} for shard in shards]

    assert companions(few) == companions(many)


UNITS, TEACHERS, PUBLIC = 48, 6, 600
CHANGED, LEAVING = 17, 30
"""Two people whose records teach different teachers."""
KEY = b"a key of the owner's, long enough"


@dataclass(frozen=True)
class Case:
    """Teachers of one kind, of so many classes; `rare`: one person alone has the last class."""

    config: TeacherSettings | NeighbourSettings
    classes: int = 2
    rare: bool = False
    pictures: bool = False
    public: Literal["none", "pool", "designed"] = "none"

    @property
    def follows(self) -> tuple[bool, bool]:
        """Whether teachers match their prior on public rows, or are levelled on them."""
        matched = getattr(self.config, "match_prior", False) and self.public == "pool"
        by_people = isinstance(self.config, NeighbourSettings)
        return by_people or (matched and self.classes == 2), self.public == "designed"

    def world(self, *, grouped: bool) -> Dataset:
        """The records of 48 people: one each, or if they are grouped one to three."""
        random = np.random.default_rng(2)
        groups = np.repeat(np.arange(UNITS), random.integers(1, 4, UNITS) if grouped else 1)
        labels = random.integers(0, self.classes - self.rare, len(groups))
        labels[groups == CHANGED] = self.classes - 1
        names = tuple(map(str, range(self.classes)))
        columns = [
            *({"name": f"x{i}", "role": "numeric", "low": 0, "high": 1} for i in range(4)),
            {"name": "y", "role": "label", "values": names},
        ]
        return Dataset(
            self.rows(len(groups), 3),
            labels,
            names,
            self.spec,
            groups=groups if grouped else None,
            group_column="who" if grouped else None,
            encoding=None if self.pictures else TableSchema.model_validate({"columns": columns}),
            people=tuple(f"person {i}" for i in range(UNITS)) if grouped else None,
        )

    @property
    def spec(self) -> InputSpec:
        if self.pictures:
            return InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
        return InputSpec(shape=(4,), dtype="float32", low=0, high=1)

    def rows(self, count: int, seed: int) -> NDArray[Any]:
        random = np.random.default_rng(seed)
        if self.pictures:
            return random.integers(0, 17, (count, 8, 8)).astype(np.uint8)
        return random.random((count, 4)).astype(np.float32)

    def make(self, data: Dataset, out: Path) -> Path:
        """Train the teachers, or place those who vote themselves."""
        key = KEY if data.people else None
        pool = self.rows(PUBLIC, 4)
        public = PublicData.declare("rows", pool)
        if isinstance(self.config, NeighbourSettings):
            build(data, out, name="e", public=public, settings=self.config, key=key)
        else:
            prior = np.full(self.classes, 1 / self.classes)
            designed = DesignedPool(pool, pool, prior) if self.public == "designed" else None
            train_ensemble(
                data,
                out,
                name="e",
                teachers=TEACHERS,
                config=self.config,
                public=public if self.public == "pool" else None,
                pool=designed,
                seed=3,
                key=key,
            )
        return out

    def forget(self, directory: Path, out: Path, person: int, data: Dataset) -> Path:
        """Make the edition without a person."""
        public = PublicData.declare("rows", self.rows(PUBLIC, 4))
        who = name_digests([f"person {person}"], KEY)
        forget(directory, out, who, KEY, data, public if self.public == "pool" else None)
        return out


CASES = {
    "heads": Case(Heads()),
    "heads with public rows": Case(Heads(match_prior=False), public="pool"),
    "heads that match priors": Case(Heads(), public="pool"),
    "heads that are levelled": Case(Heads(even=True), public="designed"),
    "levelled, and one person has a class": Case(Heads(even=True), 2, True, public="designed"),
    "of three classes": Case(Heads(), 3, public="pool"),
    "of three, levelled": Case(Heads(even=True), 3, True, public="designed"),
    "of forty, levelled": Case(Heads(even=True), 40, True, public="designed"),
    "heads of pictures": Case(SMALL, 3, True, pictures=True, public="pool"),
    "class means": Case(Heads(features="discriminant"), 3, True, pictures=True, public="pool"),
    "forests": Case(Forests(trees=3)),
    "forests that match priors": Case(Forests(trees=3), public="pool"),
    "forests of three classes": Case(Forests(trees=3), 3, True),
    "networks": Case(Networks(epochs=1), 3, True),
    "networks of pictures": Case(Networks(epochs=1), 3, True, pictures=True),
    "neighbours": Case(NeighbourSettings(near=5), 3, True),
}


def by_teacher(directory: Path) -> list[list[bytes]]:
    """What there is of each teacher, or of each person who votes, to the last bit."""
    manifest = load_manifest(directory)
    if manifest.kind == "neighbours":
        records = load_tensors(directory, RECORDS_FILE, manifest.files[RECORDS_FILE])
        held = list(zip(records["units"], records["points"], records["labels"], strict=True))
        return [
            sorted(
                point.numpy().tobytes() + bytes([int(y)]) for unit, point, y in held if unit == i
            )
            for i in range(manifest.units)
        ]
    tensors = teachers_in(directory)
    if manifest.kind == "forest":
        nodes = tensors["nodes"].sum(1).tolist()
        feature = torch.split(tensors["feature"], nodes)
        leaves = torch.split(tensors["leaves"], [int((each < 0).sum()) for each in feature])
        threshold = torch.split(tensors["threshold"], nodes)
        parts = zip(tensors["nodes"], feature, threshold, leaves, tensors["biases"], strict=True)
    else:
        parts = zip(*(tensors[name] for name in sorted(tensors)), strict=True)
    return [[each.numpy().tobytes() for each in part] for part in parts]


def replaced(data: Dataset, how: str) -> Dataset:
    """The same records, but for those of the person who changes."""
    own = np.arange(len(data)) == CHANGED if data.groups is None else data.groups == CHANGED
    inputs, labels = data.inputs.copy(), data.labels.copy()
    if how == "inputs":
        inputs[own] = data.spec.high - inputs[own]
    elif how == "labels":
        labels[own] = 0
    else:
        inputs[own], labels[own] = 0, 0
    if how != "more" or data.groups is None:
        return replace(data, inputs=inputs, labels=labels)
    more = 40
    return replace(
        data,
        inputs=np.concatenate([inputs, np.zeros((more, *data.spec.shape), inputs.dtype)]),
        labels=np.concatenate([labels, np.zeros(more, np.int64)]),
        groups=np.concatenate([data.groups, np.full(more, CHANGED)]),
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_changing_one_record_changes_one_teacher(tmp_path: Path, case: Case) -> None:
    """Or all records of one person, who may have many more; and likewise once people left."""
    for grouped in (False, True):
        data = case.world(grouped=grouped)
        made = case.make(data, tmp_path / f"{grouped}")
        before, manifest = by_teacher(made), load_manifest(made)
        owner = np.arange(UNITS)
        if isinstance(manifest.teacher, ShardTeachers):
            owner = teacher_of(UNITS, TEACHERS, 3)
        assert owner[CHANGED] != owner[LEAVING]
        assert case.follows == (manifest.teacher.matches_prior, manifest.teacher.levelled)
        editions = {
            person: by_teacher(case.forget(made, tmp_path / f"without {person}", person, data))
            for person in ((LEAVING, CHANGED) if grouped else ())
        }
        for how in ("inputs", "labels", "more") if grouped else ("blank",):
            other, there = replaced(data, how), tmp_path / f"{grouped} {how}"
            case.make(other, there)
            after = by_teacher(there)
            pairs = enumerate(zip(before, after, strict=True))
            assert [i for i, (one, new) in pairs if one != new] == [owner[CHANGED]], how
            told = [each.model_dump(exclude={"files"}) for each in (manifest, load_manifest(there))]
            assert told[0] == told[1]
            for person, edition in editions.items():
                out = case.forget(there, tmp_path / f"{how} without {person}", person, other)
                pairs = enumerate(zip(edition, by_teacher(out), strict=True))
                differ = [i for i, (one, new) in pairs if one != new]
                assert differ == [] if person == CHANGED else differ == [owner[CHANGED]], how


def build_heads(out: Path, data: Dataset, public: PublicData) -> Manifest:
    return train_ensemble(data, out, name="a", teachers=4, seed=11)


def build_designed(out: Path, data: Dataset, public: PublicData) -> Manifest:
    pool = DesignedPool(public.inputs, public.inputs[:20], np.array([0.5, 0.5]))
    release = HistogramRelease(sigma=60, cells=(4, 4, 4, 4, 2), schema_sha256="5c" * 32)
    return train_ensemble(data, out, name="a", teachers=4, pool=pool, release=release)


def build_sums(out: Path, data: Dataset, public: PublicData) -> Manifest:
    known = fit_sum_map(data, public, norm=1024)
    sums, natural = add_up_records(known, data), natural_rows(public)
    released = ReleasedSums(known, sums, 50.0, len(data), natural)  # whatever its noise was
    return sums_teachers.build(data, out, name="a", public=public, released=released)


@pytest.mark.parametrize("train", [build_heads, build_designed, build_sums])
def test_digests_of_an_ensemble_do_not_confirm_a_guess_of_its_records(
    tmp_path: Path, train: Callable[[Path, Dataset, PublicData], Manifest]
) -> None:
    """Nor of noisy counts or sums that nobody has paid for yet: here all of them are guessed."""
    data, public = records(120, people=120), PublicData.declare("rows", make_kept_rows(120, 2))
    made = [train(tmp_path / str(i), data, public) for i in range(2)]
    assert made[0] == made[1].model_copy(update={"files": made[0].files}), "all else was guessed"
    for name in made[0].teacher_files:
        assert made[0].files[name] != made[1].files[name]
    assert manifest_digest(tmp_path / "0") != manifest_digest(tmp_path / "1")


def test_networks_learn_tables_too(out: Path, plane: Dataset) -> None:
    config = Networks(epochs=40, batch=10)
    train_ensemble(plane, out, name="plane", teachers=5, config=config)
    ensemble = Ensemble.load(out)
    assert isinstance(ensemble.manifest.teacher, NetworkTeachers)
    assert ensemble.manifest.teacher.architecture.name == "mlp"
    assert ensemble.manifest.partition is not None
    assert ensemble.manifest.partition.group_column == "person"
    assert (ensemble.votes(plane.inputs).argmax(1) == plane.labels).mean() > 0.95


# By day quickstart's students are as good as was forecast, and networks learn tables.
@pytest.mark.nightly
def test_heads_and_networks_read_digits(tmp_path: Path, digits: Dataset) -> None:
    private, unseen = rows_of(digits, slice(0, 1200)), rows_of(digits, slice(1200, None))
    for config, teachers in ((Heads(), 40), (Networks(epochs=12), 4)):
        directory = tmp_path / config.kind
        train_ensemble(private, directory, name="digits", teachers=teachers, config=config)
        votes = Ensemble.load(directory).votes(unseen.inputs)
        right = (votes.argmax(1) == unseen.labels).mean()
        assert right > 0.88, f"{config.kind}: plurality is right on {right:.3f}"


# ------------------------------------------------------------------- public features


def test_without_public_data_the_features_are_data_independent(digits: Dataset) -> None:
    one = public_features(digits.spec, None, 30)
    assert one.spec.projection == "random"
    assert one.spec.fitted_on is None
    again = public_features(digits.spec, None, 30)
    np.testing.assert_array_equal(one.tensors["basis"], again.tensors["basis"])


def test_the_manifest_says_what_the_features_were_fitted_on(out: Path, digits: Dataset) -> None:
    public = PublicData.declare("digits from 1200 on", digits.inputs[1200:])
    manifest = train_ensemble(
        rows_of(digits, slice(0, 1200)), out, name="a", teachers=4, config=SMALL, public=public
    )
    assert manifest.teacher.features is not None
    assert manifest.teacher.features.fitted_on == public.source
    assert (public.source.name, public.source.records) == ("digits from 1200 on", 597)


def test_features_cannot_be_fitted_on_the_private_data(out: Path, digits: Dataset) -> None:
    for rows in (slice(None), slice(0, 1300)):
        by_accident = PublicData.declare("pool", digits.inputs[rows])
        with refuses(DataError, "rows"):
            train_ensemble(
                rows_of(digits, slice(1200, None)),
                out,
                name="a",
                teachers=4,
                config=SMALL,
                public=by_accident,
            )
    assert not out.exists()
    assert not out.with_name("ensemble.partial").exists()


def test_public_data_of_another_kind_is_refused(out: Path, digits: Dataset) -> None:
    for wrong, message in (
        (np.zeros((9, 4, 4), np.uint8), "shape"),
        (np.zeros((9, 8, 8), np.float32), "dtype"),
        (np.full((9, 8, 8), 17, np.uint8), "outside"),
    ):
        public = PublicData.declare("pool", wrong)
        with refuses(DataError, *message.split()):
            train_ensemble(digits, out, name="a", teachers=4, config=SMALL, public=public)
    with refuses(DataError, "name"):
        PublicData.declare(" ", digits.inputs)
    with refuses(DataError, "inputs"):
        PublicData.declare("pool", digits.inputs[:0])


# ------------------------------------------------------------------------- resuming


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is left of a training that was killed after its first file."""
    out = tmp_path_factory.mktemp("killed") / "ensemble"
    [process] = in_processes(train_until_killed, (out, 5))
    assert process.exitcode == -signal.SIGKILL
    assert [path.name for path in out.parent.iterdir()] == ["ensemble.partial"]
    return out.with_name("ensemble.partial")


@pytest.fixture
def interrupted(killed: Path, out: Path) -> Path:
    """An ensemble whose training was killed after its first file."""
    shutil.copytree(killed, out.with_name("ensemble.partial"))
    return out


@pytest.mark.slow
def test_training_continues_after_a_kill(
    interrupted: Path, digits: Dataset, tmp_path: Path
) -> None:
    work = interrupted.with_name("ensemble.partial")
    done = work / "teachers-00000.safetensors"
    before = done.stat().st_mtime_ns, done.stat().st_ino
    assert not interrupted.exists()
    given: dict[str, Any] = {"name": "a", "teachers": 60, "config": SMALL, "seed": 5}
    other = Heads(width=41, augmentations=1)
    for changed in ({"seed": 6}, {"teachers": 61}, {"config": other}, {"name": "b"}):
        with refuses(TrainingError, "settings"):
            train_ensemble(digits, interrupted, **given | changed)
    with refuses(TrainingError, "data"):
        train_ensemble(replace(digits, labels=np.roll(digits.labels, 1)), interrupted, **given)
    time.sleep(0.01)
    reported: list[int] = []
    manifest = train_ensemble(digits, interrupted, **given, on_trained=reported.append)
    kept = interrupted / "teachers-00000.safetensors"
    assert (kept.stat().st_mtime_ns, kept.stat().st_ino) == before, "a finished file was redone"
    assert reported == [0, 50, 60]
    assert not work.exists()
    assert sorted(p.name for p in interrupted.iterdir()) == sorted(
        [*manifest.files, "manifest.json"]
    )
    straight = tmp_path / "straight"
    train_ensemble(digits, straight, **given)
    resumed = teachers_in(interrupted)
    assert all(torch.equal(resumed[name], made) for name, made in teachers_in(straight).items())


@pytest.mark.slow
def test_a_damaged_interrupted_training_is_refused(interrupted: Path, digits: Dataset) -> None:
    note = interrupted.with_name("ensemble.partial") / "training.json"
    note.write_bytes(note.read_bytes()[:-5])
    with refuses(TrainingError, "damaged"):
        train_ensemble(digits, interrupted, name="a", teachers=60, config=SMALL, seed=5)
