"""Rows designed from a schema, and the margins that people answer for them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from support.wording import holds
from terrine_models.data.arrays import DataError, Dataset
from terrine_models.storage.manifests import StoreError
from terrine_models.tables.designed import (
    NUMBER_EDGES,
    DesignedPool,
    Margins,
    design_pool,
    find_cells,
    margin_questions,
)
from terrine_models.tables.loading import encoded_input, load_table
from terrine_models.teachers.editions import forget
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.margins import save_margin_voters
from terrine_models.teachers.people import name_digests
from terrine_models.teachers.training import train_ensemble
from terrine_protocol.tables import TableSchema

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


def test_a_person_with_many_rows_votes_once(people: Dataset, tmp_path: Path) -> None:
    questions = margin_questions(SCHEMA)
    assert find_cells(questions, people).shape == (2, len(questions))
    manifest, _ = save_margin_voters(people, tmp_path / "m", name="m")
    votes = Ensemble.load(tmp_path / "m").votes(np.arange(len(questions), dtype=np.uint8)[:, None])
    assert manifest.teachers == 2
    assert (votes.sum(axis=1) == 2).all()
    drawn = {tuple(find_cells(questions, people, seed)[0].tolist()) for seed in range(40)}
    assert len(drawn) == 3, "each row of a person may be the one"


def change_between_neighbours(count: object) -> float:
    """The largest L2 distance that one person's replacement makes in a histogram, by brute force.

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
        cells = count(questions, data)  # type: ignore[operator]
        return np.array([np.bincount(each, minlength=2) for each in cells.T])

    worst = 0.0
    for others in itertools.product(persons, repeat=2):
        for one, other in itertools.combinations(persons, 2):
            change = histogram((one, *others)) - histogram((other, *others))
            worst = max(worst, float(np.linalg.norm(change, axis=1).max()))
    return worst


def test_replacing_a_person_moves_one_vote_of_each_question() -> None:
    def every_row(questions: tuple[object, ...], data: Dataset) -> np.ndarray:
        """A planted defect: people with many rows are not bounded."""
        return np.stack([data.inputs.argmax(1), data.labels], axis=1)

    assert change_between_neighbours(find_cells) == pytest.approx(2**0.5)
    assert change_between_neighbours(every_row) > 2


def test_margins_show_what_noise_does_not_explain() -> None:
    schema = TableSchema.model_validate({"columns": [COLUMNS[3], COLUMNS[1], COLUMNS[-1]]})
    questions = margin_questions(schema)
    counts = np.zeros((3, 80), np.int64)
    counts[0, :3] = 600, 15, -12
    counts[1, 0] = 1000
    counts[2, :2] = 1010, -40
    found = Margins.of_counts(questions, counts, sigma=10.0, units=1000)
    assert all(each.sum() == pytest.approx(1) for each in found.shares)
    assert found.shares[0].tolist() == pytest.approx([0.6, 0.2, 0.2])
    assert found.shares[1][0] > 0.999
    assert found.prior[1] > 0, "no class is ruled out by noise"
    nothing = Margins.of_counts(questions, counts * 0, sigma=10.0, units=1000)
    assert nothing.shares[1] == pytest.approx(np.diff(NUMBER_EDGES))


def test_a_pool_follows_from_schema_and_margins_alone(people: Dataset) -> None:
    questions = margin_questions(SCHEMA)
    counts = np.full((len(questions), 80), 5)
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
    pool = design_pool(SCHEMA, Margins.of_schema(margin_questions(SCHEMA)), rows=4000)
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
    counts = np.zeros((3, 80), np.int64)
    counts[0, :3] = 980, 19, 1
    counts[1, 0], counts[1, 40:44] = 900, 25  # most are at the least value, like gains
    counts[2, :2] = 700, 300
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


def test_altered_answers_do_not_vote(people: Dataset, tmp_path: Path) -> None:
    save_margin_voters(people, tmp_path / "m", name="m")
    file = tmp_path / "m" / "teachers-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-2] + b"\x07\x00")
    with pytest.raises(StoreError, match="altered"):
        Ensemble.load(tmp_path / "m")


def test_pictures_have_no_schema_to_design_rows_from(digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="public pool"):
        save_margin_voters(digits, tmp_path / "m", name="m")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00garbage"])
def test_what_is_no_pool_is_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="pool"):
        DesignedPool.of_bytes(data)


def test_who_leaves_answers_no_more_and_heads_that_stay_are_levelled_as_before(
    tmp_path: Path,
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

    save_margin_voters(data, tmp_path / "margins", name="m", key=key)
    forget(tmp_path / "margins", tmp_path / "fewer", gone, key)
    asked = np.arange(3, dtype=np.uint8)[:, None]
    before, after = (Ensemble.load(tmp_path / name).votes(asked) for name in ("margins", "fewer"))
    assert (after.sum(axis=1) == 60).all(), "how many there were is public, and stays"
    assert np.linalg.norm(after - before, axis=1).max() <= 2**0.5
    blank = Ensemble.load(tmp_path / "fewer").voting.choose(torch.from_numpy(asked))[:, 7]
    assert blank.tolist() == [0, 0, 0]

    pool = design_pool(schema, Margins.of_schema(margin_questions(schema)), rows=300)
    train_ensemble(data, tmp_path / "heads", name="h", teachers=6, pool=pool, key=key)
    forget(tmp_path / "heads", tmp_path / "taught", gone, key, data)
    assert (tmp_path / "taught" / "pool.npz").read_bytes() == pool.to_bytes()
    shares = Ensemble.load(tmp_path / "taught").votes(pool.rows) / 6
    assert shares.mean(axis=0) == pytest.approx([0.5, 0.5], abs=0.02), "each says half of the rows"
