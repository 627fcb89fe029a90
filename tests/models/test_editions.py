"""Editions of neighbours: who leaves and who comes changes nobody else's records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.wording import refuses
from terrine_models.data.arrays import DataError, Dataset, InputSpec
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import IDENTITIES_FILE, StoreError, load_tensors
from terrine_models.teachers.editions import add, forget
from terrine_models.teachers.heads import Heads
from terrine_models.teachers.kinds import load_manifest
from terrine_models.teachers.neighbours import NeighbourEnsemble, NeighbourSettings, build
from terrine_models.teachers.networks import Networks
from terrine_models.teachers.people import name_digests
from terrine_models.teachers.shards import teacher_of
from terrine_models.teachers.training import train_ensemble

PLANE = InputSpec(shape=(6,), dtype="float32", low=0, high=1)
KEY = b"a key of the owner's, long enough"
Table = dict[str, list[tuple[NDArray[np.float32], int]]]


def persons(names: str, seed: int = 0) -> Table:
    """Some records of each person, whose names are letters."""
    found: Table = {}
    for name in names:
        own = np.random.default_rng([seed, ord(name)])
        found[name] = [
            (own.random(6).astype(np.float32), int(own.integers(3)))
            for _ in range(int(own.integers(1, 12)))
        ]
    return found


def dataset(table: Table) -> Dataset:
    rows = [(name, x, y) for name, own in table.items() for x, y in own]
    number = {name: i for i, name in enumerate(table)}
    return Dataset(
        np.stack([x for _, x, _ in rows]),
        np.array([y for _, _, y in rows]),
        ("a", "b", "c"),
        PLANE,
        groups=np.array([number[name] for name, _, _ in rows]),
        group_column="name",
        people=tuple(table),
    )


def nameless(rows: NDArray[np.float32]) -> Dataset:
    return Dataset(rows, np.arange(len(rows)) % 3, ("a", "b", "c"), PLANE)


def built(out: Path, data: Dataset, key: bytes | None = KEY) -> Path:
    pool = np.random.default_rng(7).random((80, 6)).astype(np.float32)
    public = PublicData.declare("a pool", pool)
    build(data, out, name="few", public=public, settings=NeighbourSettings(near=5), key=key)
    return out


def of_slots(directory: Path) -> dict[int, list[tuple[bytes, int, int]]]:
    """What each slot has: points, label and edition of its records."""
    from terrine_models.teachers.neighbours import RECORDS_FILE

    NeighbourEnsemble.load(directory)
    tensors = load_tensors(directory, RECORDS_FILE, load_manifest(directory).files[RECORDS_FILE])
    found: dict[int, list[tuple[bytes, int, int]]] = {}
    rows = zip(
        *(tensors[name].numpy() for name in ("units", "points", "labels", "since")), strict=True
    )
    for unit, point, label, since in rows:
        found.setdefault(int(unit), []).append((point.tobytes(), int(label), int(since)))
    return {unit: sorted(own) for unit, own in found.items()}


def test_people_with_names_leave_join_and_bring_more_records(tmp_path: Path) -> None:
    first = built(tmp_path / "1", dataset(persons("abcdef")))
    before = of_slots(first)
    left = forget(first, tmp_path / "2", name_digests(["b", "e"], KEY), KEY)
    assert left is not None
    assert left.slots == (1, 4)
    assert of_slots(tmp_path / "2") == {unit: before[unit] for unit in (0, 2, 3, 5)}
    coming = persons("agbh", seed=1)
    came = add(tmp_path / "2", tmp_path / "3", dataset(coming), KEY)
    assert (came.people, came.left_out, came.manifest.units) == (2, 1, 8)
    after = of_slots(tmp_path / "3")
    assert after.keys() == {0, 2, 3, 5, 6, 7}
    assert {unit: after[unit] for unit in (2, 3, 5)} == {unit: before[unit] for unit in (2, 3, 5)}
    assert set(before[0]) < set(after[0])
    assert len(after[0]) == len(before[0]) + len(coming["a"])
    assert {since for own in (after[6], after[7]) for _, _, since in own} == {3}
    assert forget(tmp_path / "3", tmp_path / "4", name_digests(["b"], KEY), KEY) is None
    assert not (tmp_path / "4").exists()
    assert load_manifest(tmp_path / "3").teacher.edition == 3  # type: ignore[attr-defined]


def test_a_record_that_its_person_has_already_is_not_added_again(tmp_path: Path) -> None:
    """And whether it is, follows from that person's records alone: of the others in the same file
    nobody brings anything new, or everybody does."""
    base, coming = persons("abcdef"), persons("abgh", seed=1)
    first = built(tmp_path / "1", dataset(base))
    once = add(first, tmp_path / "2", dataset(coming), KEY)
    assert once.people == 2
    before = of_slots(tmp_path / "2")
    for other in ("nothing", "another record"):
        again = dict(coming)
        if other == "another record":
            again["a"] = [*coming["a"], *persons("a", seed=9)["a"][:1]]
        made = add(tmp_path / "2", tmp_path / other, dataset(again), KEY)
        assert (made.people, made.left_out) == (0, 0)
        after = of_slots(tmp_path / other)
        assert {u: own for u, own in after.items() if u != 0} == {
            u: own for u, own in before.items() if u != 0
        }
        assert len(after[0]) == len(before[0]) + (other == "another record")


def test_who_was_forgotten_before_they_came_stays_out(tmp_path: Path) -> None:
    first = built(tmp_path / "1", dataset(persons("abcd")))
    left = forget(first, tmp_path / "2", name_digests(["z", "b"], KEY), KEY)
    assert left is not None
    assert (left.slots, left.people) == ((1,), 1)
    came = add(tmp_path / "2", tmp_path / "3", dataset(persons("yz", seed=1)), KEY)
    assert (came.people, came.left_out) == (1, 1)


@pytest.mark.parametrize("other", ["nobody's", "of other records", "leaves"])
def test_nobody_else_s_slot_depends_on_what_one_person_has(tmp_path: Path, other: str) -> None:
    base, more = persons("abcdef"), persons("aghi", seed=1)
    base_too, more_too, leaving = dict(base), dict(more), ["d"]
    if other == "of other records":
        base_too["c"], more_too["g"] = persons("c", seed=5)["c"], persons("g", seed=6)["g"]
    elif other == "leaves":
        leaving = ["d", "c"]
    worlds = []
    for name, old, new, gone in [("x", base, more, ["d"]), ("y", base_too, more_too, leaving)]:
        start = built(tmp_path / name, dataset(old))
        assert add(start, tmp_path / f"{name}2", dataset(new), KEY)
        assert forget(tmp_path / f"{name}2", tmp_path / f"{name}3", name_digests(gone, KEY), KEY)
        worlds.append(of_slots(tmp_path / f"{name}3"))
    one, two = worlds
    replaced = {2, 6} if other == "of other records" else {2}  # c and g
    assert {u: own for u, own in one.items() if u not in replaced} == {
        u: own for u, own in two.items() if u not in replaced
    }
    if other != "nobody's":
        assert one != two


@pytest.mark.parametrize("kind", ["neighbours", "heads"])
def test_nobody_is_found_by_a_record(tmp_path: Path, kind: str) -> None:
    """Seven people have the record that Ada has. To forget her by it would take all of them, in a
    world where she has it, and none where she has another: seven votes would depend on hers."""
    rows = np.random.default_rng(3).random((12, 6)).astype(np.float32)
    rows[:7] = rows[0]
    first, out = tmp_path / "1", tmp_path / "2"
    if kind == "neighbours":
        built(first, nameless(rows))
    else:
        train_ensemble(nameless(rows), first, name="few", teachers=3, config=HEADS, key=KEY)
    assert IDENTITIES_FILE not in load_manifest(first).files
    assert not (first / IDENTITIES_FILE).exists(), (
        "nor is anything kept by which one could be found"
    )
    with refuses(StoreError, "column", "group"):
        forget(first, out, name_digests(["ada"], KEY), KEY, nameless(rows))
    if kind == "neighbours":
        with refuses(StoreError, "column", "group"):
            add(first, out, nameless(rows[:3]), KEY)
    assert not out.exists()


def test_what_stays_of_who_left_is_a_digest_without_a_slot(tmp_path: Path) -> None:
    start = built(tmp_path / "1", dataset(persons("abcdef")))
    forget(start, tmp_path / "2", name_digests(["e", "b"], KEY), KEY)
    manifest = load_manifest(tmp_path / "2")
    who = load_tensors(tmp_path / "2", IDENTITIES_FILE, manifest.files[IDENTITIES_FILE])
    digests = sorted(bytes(row) for row in name_digests(["e", "b"], KEY))
    assert [bytes(row) for row in who["erased"].numpy()] == digests
    assert not who["present"].numpy()[[1, 4]].any()
    assert manifest.files[IDENTITIES_FILE] != load_manifest(start).files[IDENTITIES_FILE]


def test_records_of_another_kind_are_refused(tmp_path: Path) -> None:
    start = built(tmp_path / "1", dataset(persons("abcdef")))
    other = replace(dataset(persons("gh")), classes=("a", "b", "d"))
    with refuses(DataError, "few"):
        add(start, tmp_path / "2", other, KEY)
    with refuses(DataError, "group"):
        add(start, tmp_path / "2", nameless(np.zeros((2, 6), np.float32)), KEY)
    with refuses(DataError, "people"):
        add(start, tmp_path / "2", replace(dataset(persons("gh")), people=None), KEY)
    with refuses(DataError, "Nobody", "few"):
        forget(start, tmp_path / "2", name_digests([*"abcdef"], KEY), KEY)
    with refuses(StoreError, "one"):
        forget(start, tmp_path / "2", name_digests(["a"], KEY), b"another key" * 4)
    keyless = built(tmp_path / "keyless", dataset(persons("ab")), key=None)
    with refuses(StoreError, "keyless"):
        forget(keyless, tmp_path / "2", name_digests(["a"], KEY), KEY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "keyless"]


def test_a_table_s_people_are_named_by_their_column(tmp_path: Path) -> None:
    from terrine_models.tables.loading import load_people, load_table
    from terrine_protocol.schema import Column, TableSchema

    schema = TableSchema(
        columns=[
            Column(name="who", role="group"),
            Column(name="x", role="numeric", low=0, high=1),
            Column(name="y", role="label", values=("no", "yes")),
        ]
    )
    whole, alone, bare = tmp_path / "whole.csv", tmp_path / "alone.csv", tmp_path / "bare.csv"
    whole.write_text("who,x,y\nada,0.5,no\nbob,0.25,yes\nada,0.75,no\n")
    alone.write_text("who\nbob\nada\nbob\n")
    bare.write_text("bob\nada\n")
    assert load_table(whole, schema).people == ("ada", "bob")
    assert load_people(whole, schema) == ["ada", "bob"]
    assert load_people(alone, schema) == ["bob", "ada"]
    assert load_people(bare, schema, lambda _: None) == ["bob", "ada"]


HEADS, NETWORKS = Heads(width=6), Networks(epochs=2)


def people_of(data: Dataset, names: str) -> Dataset:
    """The records of these people alone, as they come in the data."""
    assert data.groups is not None
    assert data.people is not None
    stays = np.isin(data.groups, [data.people.index(name) for name in names])
    left = [name for name in data.people if name in names]
    groups = np.array([left.index(data.people[group]) for group in data.groups[stays]])
    inputs, labels = data.inputs[stays], data.labels[stays]
    return replace(data, inputs=inputs, labels=labels, groups=groups, people=tuple(left))


def teachers_of(directory: Path) -> dict[str, NDArray[np.generic]]:
    manifest = load_manifest(directory)
    (file,) = manifest.teacher_files
    tensors = load_tensors(directory, file, manifest.files[file])
    return {name: each.numpy() for name, each in tensors.items()}


@pytest.mark.parametrize("config", [HEADS, NETWORKS], ids=["heads", "networks"])
def test_a_teacher_is_trained_anew_without_those_who_left_and_no_other_changes(
    tmp_path: Path, config: Heads | Networks
) -> None:
    names, gone = "abcdefghijkl", "ce"
    owner = teacher_of(len(names), 4, 3)
    touched = {int(owner[names.index(name)]) for name in gone}
    assert 0 < len(touched) < 4
    made = []
    for seed in (0, 1):
        table = {name: persons(name, seed if name in gone else 0)[name] for name in names}
        data, first = dataset(table), tmp_path / f"first-{seed}"
        train_ensemble(data, first, name="few", teachers=4, config=config, seed=3, key=KEY)
        second, third = tmp_path / f"second-{seed}", tmp_path / f"third-{seed}"
        left = forget(first, second, name_digests(gone, KEY), KEY, data)
        assert left is not None
        assert (left.slots, left.people) == (tuple(names.index(name) for name in gone), 2)
        before, after = teachers_of(first), teachers_of(second)
        for name, each in after.items():
            same = [np.array_equal(a, b) for a, b in zip(before[name], each, strict=True)]
            assert all(same[i] for i in range(4) if i not in touched), name
        assert forget(second, third, name_digests(gone, KEY), KEY, data) is None
        rest = people_of(data, "abdfghijkl")
        assert forget(second, third, name_digests("a", KEY), KEY, rest) is not None
        assert not (
            teachers_of(third)["weights" if config is HEADS else next(iter(after))] == 0
        ).all()
        made.append((before, after, teachers_of(third)))
        manifest = load_manifest(third)
        assert manifest.units == len(names), "slots stay"
        who = load_tensors(third, IDENTITIES_FILE, manifest.files[IDENTITIES_FILE])
        assert [bool(row.any()) for row in who["present"]] == [n not in "ace" for n in names]
    for one, other, equal in zip(*made, (False, True, True), strict=True):
        same = [np.array_equal(one[name], other[name]) for name in one]
        assert all(same) == equal


def test_who_cannot_be_forgotten_in_trained_teachers_is_said(tmp_path: Path) -> None:
    table = persons("abcdef")
    data, first, out = dataset(table), tmp_path / "1", tmp_path / "2"
    train_ensemble(data, first, name="few", teachers=3, config=HEADS, key=KEY)

    def refused(
        *held: object,
        who: str = "a",
        given: Dataset | None = data,
        key: bytes = KEY,
        by: type[Exception] = DataError,
    ) -> None:
        with refuses(by, *held):
            forget(first, out, name_digests(who, KEY), key, given)
        assert not out.exists()
        assert not list(tmp_path.glob(".2*"))

    refused("few", "records", given=None)
    owner = teacher_of(6, 3, 0)
    of_one = "".join(name for name, teacher in zip("abcdef", owner, strict=True) if not teacher)
    refused("shards", 1, "few", who=of_one)
    refused(1, "few", given=people_of(data, "abcde"))
    refused("group", given=nameless(data.inputs[:3].astype(np.float32)))
    refused("key", key=b"another key" * 4, by=StoreError)
    train_ensemble(data, tmp_path / "keyless", name="few", teachers=3, config=HEADS)
    with refuses(StoreError, "keyless"):
        forget(tmp_path / "keyless", out, name_digests("a", KEY), KEY, data)
