"""Rows designed from a schema, and the histograms of people that they follow from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.tables import even_pool
from support.wording import holds
from terrine_models.data.arrays import DataError, Dataset, InputSpec
from terrine_models.storage.manifests import (
    IDENTITIES_FILE,
    Partition,
    save_tensors,
    versions,
)
from terrine_models.tables.designed import (
    NUMBER_EDGES,
    DesignedPool,
    Margins,
    Question,
    count_cells,
    design_pool,
    digest_schema,
    find_cells,
    margin_questions,
)
from terrine_models.tables.loading import encoded_input, load_table
from terrine_models.teachers import training
from terrine_models.teachers.editions import forget
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.manifests import Manifest, load_manifest, save_manifest
from terrine_models.teachers.margins import ANSWERS_FILE, MarginTeachers
from terrine_models.teachers.people import People, name_digests
from terrine_models.teachers.shards import TrainingError
from terrine_models.teachers.training import load_begun_pool, train_ensemble
from terrine_protocol import HistogramRelease
from terrine_protocol.schema import TableSchema
from terrine_server.privacy import Histograms

Count = Callable[[Sequence[Question], Dataset], list[np.ndarray]]
COLUMNS = (
    {"name": "who", "role": "group"},
    {"name": "age", "role": "numeric", "low": 0, "high": 100},
    {"name": "dose", "role": "numeric", "low": 0, "high": 10, "missing": 2},
    {"name": "ward", "role": "categorical", "values": ["A", "B"]},
    {"name": "pain", "role": "ordinal", "values": ["none", "some", "much"]},
    {"name": "smokes", "role": "boolean"},
    {
        "name": "seen",
        "role": "date",
        "order": "year-month-day",
        "since": "2020-01-01",
        "low": 0,
        "high": 366,
        "parts": ["days", "month", "weekday"],
    },
    {"name": "ill", "role": "label", "values": ["no", "yes"]},
)
SCHEMA = TableSchema.model_validate({"columns": COLUMNS})
ROWS = """who,age,dose,ward,pain,smokes,seen,ill
a,0,,A,none,true,2020-01-01,no
a,100,10,C,much,,,yes
a,100,10,C,much,false,2020-12-31,yes
b,50,2,B,,no,2020-02-03,yes
"""


@pytest.fixture
def people(tmp_path: Path) -> Dataset:
    (tmp_path / "people.csv").write_text(ROWS)
    return load_table(tmp_path / "people.csv", SCHEMA, note=lambda text: None)


def test_every_kind_of_column_is_asked_about_and_each_value_has_its_cell(tmp_path: Path) -> None:
    alone = SCHEMA.model_copy(update={"columns": SCHEMA.columns[1:]})
    (tmp_path / "rows.csv").write_text(ROWS)
    data = load_table(tmp_path / "rows.csv", alone, note=lambda text: None)
    questions = margin_questions(alone)
    found = {
        each.name: cells.tolist()
        for each, cells in zip(questions, find_cells(questions, data).T, strict=True)
    }
    last, middle = len(NUMBER_EDGES) - 2, int(np.searchsorted(NUMBER_EDGES, 0.5))
    assert found["age"] == [0, last, last, middle]
    assert found["dose"][0] == questions[1].cells - 1, "it is missing"
    assert found["dose"][1:3] == [last, last]
    assert found["ward"] == [0, 2, 2, 1], "C counts as other"
    assert found["pain"] == [0, 2, 2, 3]
    assert found["smokes"] == [1, 2, 0, 0]
    assert found["seen: month"] == [0, 12, 11, 1]
    assert found["seen: weekday"] == [2, 7, 3, 0]
    assert found["label"] == [0, 1, 1, 1]


def test_a_person_with_many_rows_counts_once(people: Dataset) -> None:
    questions = margin_questions(SCHEMA)
    assert find_cells(questions, people).shape == (2, len(questions))
    counts = count_cells(questions, people)
    assert [len(each) for each in counts] == [each.cells for each in questions]
    assert all(each.sum() == 2 for each in counts)
    drawn = {tuple(find_cells(questions, people, seed)[0].tolist()) for seed in range(40)}
    assert len(drawn) == 3, "each row of a person may be the one"


def change_between_neighbours(count: Count) -> float:
    """The most, squared, by which all histograms move if one person is replaced, by brute force.

    All worlds of three people with up to two rows each, of a column with two categories.
    """
    columns = [{"name": "w", "role": "categorical", "values": ["A"]}, COLUMNS[-1]]
    schema = TableSchema.model_validate({"columns": [COLUMNS[0], *columns]})
    questions = margin_questions(schema)
    rows = [((1.0, 0.0), 0), ((0.0, 1.0), 1)]
    persons = [[row] for row in rows] + [list(pair) for pair in itertools.product(rows, rows)]

    def histogram(world: tuple[list[tuple[tuple[float, float], int]], ...]) -> np.ndarray:
        held = [row for person in world for row in person]
        data = Dataset(
            np.array([row[0] for row in held], np.float32),
            np.array([row[1] for row in held]),
            ("no", "yes"),
            encoded_input(schema),
            np.repeat(np.arange(len(world)), [len(person) for person in world]),
            name="world",
            group_column="who",
        )
        return np.concatenate(count(questions, data))

    worst = 0.0
    for others in itertools.product(persons, repeat=2):
        for one, other in itertools.combinations(persons, 2):
            change = histogram((one, *others)) - histogram((other, *others))
            worst = max(worst, float(change @ change))
    return worst


def test_replacing_a_person_moves_one_of_each_histogram_as_it_is_priced() -> None:
    def of_every_row(questions: Sequence[Question], data: Dataset) -> list[np.ndarray]:
        """A planted defect: people with many rows are not bounded."""
        return [np.bincount(each, minlength=2) for each in (data.inputs.argmax(1), data.labels)]

    def of_two_rows(questions: Sequence[Question], data: Dataset) -> list[np.ndarray]:
        """Another: each histogram asks another row of a person, who has one in each."""
        return [count_cells(questions, data, seed)[at] for at, seed in enumerate((0, 1))]

    priced = Histograms(9.0, (2, 2), "ab" * 32).event.squared
    assert change_between_neighbours(count_cells) == priced == 4
    assert change_between_neighbours(of_two_rows) == priced
    assert change_between_neighbours(of_every_row) > priced


def test_margins_show_what_noise_does_not_explain() -> None:
    schema = TableSchema.model_validate({"columns": [COLUMNS[3], COLUMNS[1], COLUMNS[-1]]})
    questions = margin_questions(schema)
    counts = [np.zeros(each.cells, np.int64) for each in questions]
    counts[0][:] = 600, 15, -12
    counts[1][0] = 1000
    counts[2][:] = 1010, -40
    found = Margins.of_counts(questions, counts, sigma=10.0, units=1000)
    assert all(each.sum() == pytest.approx(1) for each in found.shares)
    assert found.shares[0].tolist() == pytest.approx([0.6, 0.2, 0.2])
    assert found.shares[1][0] > 0.999
    assert found.prior[1] > 0, "no class is ruled out by noise"
    nothing = Margins.of_counts(questions, [0 * each for each in counts], sigma=10.0, units=1000)
    assert nothing.shares[1] == pytest.approx(np.diff(NUMBER_EDGES))


def test_a_pool_follows_from_schema_and_margins_alone(people: Dataset) -> None:
    questions = margin_questions(SCHEMA)
    counts = [np.full(each.cells, 5) for each in questions]
    made = [
        design_pool(SCHEMA, Margins.of_counts(questions, counts, sigma=1.0, units=99), rows=500)
        for _ in range(2)
    ]
    assert made[0].to_bytes() == made[1].to_bytes()
    again = DesignedPool.of_bytes(made[0].to_bytes())
    for name in ("rows", "natural", "prior"):
        assert np.array_equal(getattr(again, name), getattr(made[0], name))


@pytest.mark.parametrize("even", ["rows", "natural"])
def test_designed_rows_are_rows_that_the_schema_could_encode(even: str) -> None:
    pool = even_pool(SCHEMA, rows=4000)
    rows = getattr(pool, even)
    assert rows.dtype == np.float32
    assert rows.shape[1:] == encoded_input(SCHEMA).shape
    assert 0 <= rows.min() <= rows.max() <= 1
    age, dose, gap, ward, pain, no_pain, smokes, unknown = 0, 1, 2, slice(3, 6), 6, 7, 8, 9
    days, month, unseen = 10, 11, 13
    assert (rows[:, ward].sum(1) == 1).all()
    assert (rows[rows[:, gap] == 1, dose] == np.float32(0.2)).all(), "2 stands for a missing dose"
    assert set(rows[:, pain].tolist()) == {0, 0.5, 1}
    for value, flag in ((pain, no_pain), (smokes, unknown), (days, unseen), (month, unseen)):
        assert 0 < rows[:, flag].mean() < 1
        assert (rows[rows[:, flag] == 1, value] == 0.5).all()
    assert rows[:, age].std() > 0.2


def test_each_category_and_each_tenth_of_a_number_is_asked_about_equally_often() -> None:
    columns = [COLUMNS[3], COLUMNS[1], COLUMNS[-1]]
    schema = TableSchema.model_validate({"columns": columns})
    questions = margin_questions(schema)
    counts = [np.zeros(each.cells, np.int64) for each in questions]
    counts[0][:] = 980, 19, 1
    counts[1][0], counts[1][40:44] = 900, 25  # most are at the least value, like gains
    counts[2][:] = 700, 300
    margins = Margins.of_counts(questions, counts, sigma=0.5, units=1000)
    pool = design_pool(schema, margins, rows=9000)
    assert pool.rows[:, :3].mean(0) == pytest.approx([1 / 3] * 3, abs=0.03)
    assert pool.natural[:, :3].mean(0) == pytest.approx([0.98, 0.019, 0.001], abs=0.01)
    at_least = (pool.rows[:, 3] == 0).mean()
    assert 0.05 < at_least < 0.2, "the least value is one bin of some ten"
    assert (pool.natural[:, 3] == 0).mean() == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param(
            [
                {"name": "w", "role": "categorical", "values": [f"v{i}" for i in range(100_000)]},
                COLUMNS[-1],
            ],
            "w 2,000 categories ignored",
            id="a hundred thousand categories",
        ),
        pytest.param(
            [*({"name": f"n{i}", "role": "boolean"} for i in range(300)), COLUMNS[-1]],
            "301 250",
            id="too many columns",
        ),
        pytest.param(
            [{"name": "note", "role": "text"}, COLUMNS[-1]], "note text ignored", id="prose"
        ),
    ],
)
def test_what_cannot_be_designed_is_refused(changed: list[object], said: str) -> None:
    with pytest.raises(DataError) as refused:
        margin_questions(TableSchema.model_validate({"columns": changed}))
    holds(str(refused.value), *said.split())


def save_margin_voters(data: Dataset, out: Path, key: bytes) -> None:
    """Save what an earlier version kept of people: in which cell of each column one row lies."""
    questions = margin_questions(SCHEMA if data.encoding is None else data.encoding)
    cells = torch.from_numpy(find_cells(questions, data)).to(torch.int16)
    out.mkdir()
    files = {
        ANSWERS_FILE: save_tensors(out / ANSWERS_FILE, {"cells": cells}),
        IDENTITIES_FILE: People.of(data, key).save(out, key),
    }
    manifest = Manifest(
        name="m",
        teacher=MarginTeachers(
            cells=tuple(each.cells for each in questions), schema_sha256="ab" * 32
        ),
        input=InputSpec(shape=(1,), dtype="uint8", low=0, high=len(questions) - 1),
        classes=tuple(str(each) for each in range(max(each.cells for each in questions))),
        teachers=len(cells),
        units=len(cells),
        partition=Partition(
            recipe="groups", seed=0, group_column=data.group_column, smallest=1, largest=1
        ),
        versions=versions(),
        files=files,
    )
    save_manifest(out, manifest)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00garbage"])
def test_what_is_no_pool_is_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="pool"):
        DesignedPool.of_bytes(data)


def interrupt(done: int) -> None:
    raise KeyboardInterrupt


def test_who_leaves_answers_no_more_and_heads_that_stay_are_levelled_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, key = np.random.default_rng(0), bytes(32)
    columns = [COLUMNS[0], COLUMNS[1], COLUMNS[3], COLUMNS[-1]]
    schema = TableSchema.model_validate({"columns": columns})
    rows = [
        f"p{n},{random.integers(100)},{'AB'[n % 2]},{['no', 'yes'][n % 3 > 0]}" for n in range(60)
    ]
    (tmp_path / "all.csv").write_text("\n".join(["who,age,ward,ill", *rows]) + "\n")
    data = load_table(tmp_path / "all.csv", schema, note=lambda text: None)
    gone = name_digests(["p7"], key)

    save_margin_voters(data, tmp_path / "margins", key)
    forget(tmp_path / "margins", tmp_path / "fewer", gone, key)
    asked = np.arange(3, dtype=np.uint8)[:, None]
    before, after = (Ensemble.load(tmp_path / name).votes(asked) for name in ("margins", "fewer"))
    assert (after.sum(axis=1) == 60).all(), "how many there were is public, and stays"
    assert np.linalg.norm(after - before, axis=1).max() <= 2**0.5
    blank = Ensemble.load(tmp_path / "fewer").voting.choose(torch.from_numpy(asked))[:, 7]
    assert blank.tolist() == [0, 0, 0]

    pool = even_pool(schema, rows=300)
    release = HistogramRelease(sigma=9.0, cells=(43, 3, 2), schema_sha256=digest_schema(schema))
    begun: dict[str, Any] = {
        "name": "h",
        "teachers": 6,
        "pool": pool,
        "release": release,
        "key": key,
    }
    another = even_pool(schema, rows=300, seed=1)
    with monkeypatch.context() as killed:
        killed.setattr(training, "_save_pool", lambda work, pool, files: interrupt(0))
        with pytest.raises(KeyboardInterrupt):
            train_ensemble(data, tmp_path / "heads", **{**begun, "pool": another})
    assert load_begun_pool(tmp_path / "heads") is None, "another is drawn, with other features"
    with pytest.raises(KeyboardInterrupt):
        train_ensemble(data, tmp_path / "heads", **begun, on_trained=interrupt)
    kept = load_begun_pool(tmp_path / "heads")
    assert kept is not None, "what was released is not drawn anew"
    assert kept.to_bytes() == pool.to_bytes()
    with pytest.raises(TrainingError):
        train_ensemble(data, tmp_path / "heads", **{**begun, "pool": another})

    def train_twice(done: int) -> None:
        with pytest.raises(BlockingIOError):
            train_ensemble(data, tmp_path / "heads", **begun)
        interrupt(done)

    with pytest.raises(KeyboardInterrupt):
        train_ensemble(data, tmp_path / "heads", **begun, on_trained=train_twice)
    other = {**begun, "release": release.model_copy(update={"sigma": 4.0})}
    with pytest.raises(TrainingError, match="release"):
        train_ensemble(data, tmp_path / "heads", **other)
    train_ensemble(data, tmp_path / "heads", **begun)
    forget(tmp_path / "heads", tmp_path / "taught", gone, key, data)
    assert load_manifest(tmp_path / "taught").release == release, "nothing is released anew"
    assert (tmp_path / "taught" / "pool.npz").read_bytes() == pool.to_bytes()
    shares = Ensemble.load(tmp_path / "taught").votes(pool.rows) / 6
    assert shares.mean(axis=0) == pytest.approx([0.5, 0.5], abs=0.02), "each says half of the rows"
