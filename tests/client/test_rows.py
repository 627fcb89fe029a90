"""Rows with names instead of numbers: every way to hold a table asks the same of a real server."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.ensemble import RandomForestClassifier

from support.clients import npy
from support.data import DigitsEnsemble
from support.documents import ROOT, blocks
from support.servers import running_server
from support.tables import SCHEMA, frame, open_counted, records
from support.wording import holds, refuses
from terrine_client import AsyncClient, Client
from terrine_client.estimator import BoughtAnswers
from terrine_models.data.arrays import DataError, Dataset, InputSpec
from terrine_protocol import Column, LabelResponse, LabelResult, Outcome, TableSchema
from terrine_protocol.base import quantity
from terrine_protocol.errors import ClippedError
from terrine_tables.encoding import encode_frame

Ask = tuple[str, str]
"""URL and token."""


@pytest.fixture(scope="module")
def projects(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[dict[str, Ask]]:
    """A server with a project of noisy counts of a table, and one of arrays."""
    home = tmp_path_factory.mktemp("rows")
    url = f"sqlite:///{home / 'terrine.sqlite'}"
    random = np.random.default_rng(1)
    x, labels = random.normal(size=(400, 2)).astype(np.float32), random.integers(0, 2, 400)
    spec = InputSpec(shape=(2,), dtype="float32", low=-9, high=9)
    points = Dataset(x, labels, ("0", "1"), spec)
    with running_server(home, url, digits_ensemble, requests_per_minute=10**6) as server:
        books, made = server.ledger, server.settings
        data = {"table": records(made), "points": points}
        asked = {name: open_counted(books, made, name, held) for name, held in data.items()}
        yield {name: (server.url, token) for name, token in asked.items()}


@pytest.fixture
def table(projects: dict[str, Ask]) -> Iterator[Client]:
    with Client(*projects["table"]) as client:
        yield client


def rows_of(given: pd.DataFrame) -> list[dict[str, Any]]:
    """As JSON has them: nothing where a number is missing."""
    return [
        {name: None if value != value else value for name, value in row.items()}
        for row in given.to_dict("records")
    ]


def written(given: pd.DataFrame, path: Path) -> Path:
    given.to_csv(path, index=False)
    return path


WAYS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "pandas": lambda given, _: given,
    "pandas, in another order": lambda given, _: given[["smokes", "ward", "dose", "visit"]],
    "polars": lambda given, _: pl.from_pandas(given),
    "arrow": lambda given, _: pa.Table.from_pandas(given),
    "columns": lambda given, _: given.to_dict("list"),
    "rows": lambda given, _: rows_of(given),
    "a path": lambda given, home: written(given, home / "pool.csv"),
    "the text of a path": lambda given, home: str(written(given, home / "pool.csv")),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::UserWarning")
async def test_every_way_to_hold_rows_asks_the_same(
    projects: dict[str, Ask], table: Client, tmp_path: Path, way: str
) -> None:
    once = table.label(encode_frame(frame(20), SCHEMA))
    given = WAYS[way](frame(20), tmp_path)
    again = table.label(given)
    assert again.charges.tolist() == once.charges.tolist()
    assert again.replayed.all()
    async with AsyncClient(*projects["table"]) as client:
        assert (await client.label(given)).charges.tolist() == once.charges.tolist()


@pytest.mark.parametrize(
    ("given", "error", "held"),
    [
        (frame(3).drop(columns=["dose", "ward"]), DataError, ("dose", "ward", "smokes", "visit")),
        (pl.DataFrame({"dose": [1.0]}), DataError, ("ward", "smokes", "dose")),
        ([{"dose": 1, "ward": "A", "smokes": True}, {"dose": 2}], DataError, (1, "ward", "smokes")),
        ([{"dose": 1, "ward": "A", "smokes": 1}, [2, "A", 1]], DataError, (1, "list")),
        ([{"dose": "many", "ward": "A", "smokes": 1}], DataError, (0, "dose", "'many'")),
        ([{"dose": [1], "ward": "A", "smokes": 1}], DataError, ("dose",)),
        ({"dose": [1, 2], "ward": ["A"], "smokes": [0, 1]}, DataError, ("columns",)),
        (frame(0), DataError, ("rows",)),
        (frame(20).assign(dose=70.0), ClippedError, ("dose",)),
        (Path("no-such-file.csv"), DataError, ("no-such-file.csv",)),
        ([], ValueError, ("[B, …]",)),
    ],
    ids=lambda value: None if isinstance(value, type | tuple) else type(value).__name__,
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rows_that_do_not_fit_are_refused_before_anything_is_charged(
    table: Client, given: Any, error: type[Exception], held: tuple[object, ...]
) -> None:
    charges = table.budget().charges
    with refuses(error, *held):
        table.label(given)
    assert table.budget().charges == charges


SENT_BY_HTTP: dict[str, Callable[[pd.DataFrame], tuple[str, bytes]]] = {
    "numbers": lambda given: ("application/x-npy", npy(encode_frame(given, SCHEMA))),
    "objects": lambda given: ("application/json", json.dumps({"rows": rows_of(given)}).encode()),
    "CSV": lambda given: ("text/csv", given.to_csv(index=False).encode()),
    "CSV with a label, which is not read": lambda given: (
        "text/csv",
        given.assign(ill="unknown").to_csv(index=False, lineterminator="\r\n").encode(),
    ),
}


@pytest.mark.parametrize("form", SENT_BY_HTTP)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rows_by_name_over_http_are_the_queries_that_numbers_are(
    projects: dict[str, Ask], table: Client, form: str
) -> None:
    once = table.label(frame(20))
    url, token = projects["table"]
    kind, body = SENT_BY_HTTP[form](frame(20))
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
    reply = httpx.post(f"{url}/label", content=body, headers=headers)
    assert reply.status_code == 200, reply.text
    answer = LabelResponse.model_validate_json(reply.content)
    assert [result.charge for result in answer.results] == once.charges.tolist()
    assert all(result.replayed for result in answer.results)
    assert answer.budget.charges == once.budget.charges, "free"
    assert (answer.notes is None) == (form == "numbers")
    holds(answer.notes or ["dose"], "dose")
    looked = httpx.post(f"{url}/label/used-up", content=body, headers=headers)
    assert looked.status_code == 422, "no project of neighbours: it was read all the same"
    assert "neighbours" in looked.text


def test_rows_by_name_that_do_not_fit_are_problems_that_cost_nothing(
    projects: dict[str, Ask], table: Client
) -> None:
    url, token = projects["table"]
    charges = table.budget().charges

    def refused(kind: str, body: bytes, status: int, *held: object, query: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        reply = httpx.post(f"{url}/label{query}", content=body, headers=headers)
        assert reply.status_code == status, reply.text
        assert reply.headers["content-type"] == "application/problem+json"
        holds(reply.json()["detail"], *held)

    refused("text/csv", b"dose,ward\n1,A\n", 422, "smokes", "dose", "ward")
    refused("text/csv", b"dose,ward,smokes\n1,A,maybe\n", 422, 2, "smokes", "'maybe'")
    refused("application/json", b'{"rows": [{"dose": 1}]}', 422, 0, "ward", "smokes")
    refused("text/tab-separated-values", b"dose\tward\n", 415, "text/csv", "encoding")
    outside = b"dose,ward,smokes\n70,A,0\n"
    refused("text/csv", outside, 422, "dose", "accept_clipped=true")
    assert table.budget().charges == charges
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "text/csv"}
    reply = httpx.post(f"{url}/label?accept_clipped=true", content=outside, headers=headers)
    assert reply.status_code == 200
    holds(reply.json()["notes"], "dose", "clipped")
    assert table.budget().charges == charges + 1


LIGHT = """
import json, sys
from pathlib import Path
from terrine_client import Client
url, token, pool, rows = sys.argv[1:]
with Client(url, token) as client:
    one = client.label(json.loads(rows)).charges.tolist()
    other = client.label(Path(pool)).charges.tolist()
heavy = {"torch", "terrine_models", "terrine_server"} & set(sys.modules)
print(json.dumps([one == other, sorted(heavy)]))
"""


def test_a_student_of_tables_loads_neither_models_nor_pytorch(
    projects: dict[str, Ask], tmp_path: Path
) -> None:
    pool = written(frame(20), tmp_path / "pool.csv")
    rows = json.dumps(rows_of(frame(20)))
    command = [sys.executable, "-c", LIGHT, *projects["table"], str(pool), rows]
    assert json.loads(subprocess.check_output(command, text=True)) == [True, []]


def test_what_is_clipped_is_asked_where_it_is_accepted(table: Client) -> None:
    with pytest.warns(UserWarning, match="dose"):
        labels = table.label(frame(20).assign(dose=70.0), accept_clipped=True)
    assert labels.answered.all()


def test_one_warning_says_all_that_the_schema_does_not_foresee(table: Client) -> None:
    odd = frame(20).assign(ward=["C"] * 2 + ["A"] * 18, dose=[11.0] + [None] * 2 + [3.0] * 17)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        table.label(odd)
    (warning,) = said
    assert warning.filename == __file__, "it points at whoever gave the rows"
    holds(str(warning.message), "ward", 2)
    holds(str(warning.message), "dose", 1)


def test_a_project_of_arrays_takes_a_frame_of_numbers_and_no_rows(
    projects: dict[str, Ask], tmp_path: Path
) -> None:
    numbers = pd.DataFrame(np.random.default_rng(2).normal(size=(5, 2)).astype(np.float32))
    with Client(*projects["points"]) as client:
        once = client.label(numbers.to_numpy())
        assert client.label(numbers).charges.tolist() == once.charges.tolist()
        charges = client.budget().charges
        for given in ([{"a": 1.0, "b": 2.0}], {"a": [1.0], "b": [2.0]}, tmp_path / "pool.csv"):
            with refuses(ValueError, "points", "[B, 2]"):
                client.label(given)
        assert client.budget().charges == charges


def test_a_data_frame_is_learned_from_with_its_counts_as_weights(table: Client) -> None:
    given = frame(1200).dropna()
    answers = table.label(given)
    for held in (given, pl.from_pandas(given), pa.Table.from_pandas(given)):
        learned = answers.training_set(held)
        assert len(learned.X) == len(learned.y) == len(learned.sample_weight)
        assert (learned.sample_weight > 0).all()
        assert np.isclose(learned.sample_weight.sum(), len(given))
    learned = answers.training_set(given)
    model = RandomForestClassifier(min_samples_leaf=20, random_state=0)
    model.fit(learned.X[["dose"]], learned.y, learned.sample_weight)
    truth = np.where(given["dose"] > 5, "yes", "no")
    assert (model.predict(given[["dose"]]) == truth).mean() > 0.9


def test_a_frame_of_answers_has_the_index_of_the_rows_and_is_learned_from_in_a_line(
    projects: dict[str, Ask], table: Client
) -> None:
    given = frame(1200).dropna().set_index("visit").sample(frac=1, random_state=0)
    answers = table.label(given).to_frame()
    assert answers.index.equals(given.index)
    assert answers["label"].isin(["no", "yes"]).all()
    assert {"count_no", "count_yes"} <= set(answers.columns)
    asked = answers.query("weight > 0")
    model = RandomForestClassifier(min_samples_leaf=20, random_state=0)
    model.fit(given.loc[asked.index, ["dose"]], asked["label"], asked["weight"])
    truth = np.where(given["dose"] > 5, "yes", "no")
    assert (model.predict(given[["dose"]]) == truth).mean() > 0.9
    numbered = table.label(rows_of(frame(20))).to_frame()
    assert numbered.index.tolist() == list(range(20))
    with Client(*projects["table"], batch_size=10) as small:
        assert small.label(given[:30]).to_frame().index.equals(given.index[:30])


def test_the_readme_s_program_learns_in_ten_lines(
    projects: dict[str, Ask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands there, but for the server's URL, on records of a table."""
    monkeypatch.chdir(tmp_path)
    (program,) = (text for _, text in blocks(ROOT / "README.md", "python"))
    assert len(program.strip().splitlines()) <= 10
    url, token = projects["table"]
    x = encode_frame(frame(1200).dropna(), SCHEMA)
    names: dict[str, Any] = {"x": x, "token": token}
    exec(program.replace("https://labels.example.org", url), names)
    truth = np.where(frame(1200).dropna()["dose"] > 5, "yes", "no")
    assert (names["predicted"] == truth).mean() > 0.9


def test_the_student_page_s_program_learns_from_a_table(
    projects: dict[str, Ask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands in docs/student.md."""
    monkeypatch.chdir(tmp_path)
    (program,) = (
        text for _, text in blocks(ROOT / "docs" / "student.md", "python") if "distill(" in text
    )
    given = frame(1200).dropna()
    own, truth = given[:200], np.where(given["dose"] > 5, "yes", "no")
    url, token = projects["table"]
    names: dict[str, Any] = {"url": url, "token": token, "frame": given[200:], "Path": Path}
    names |= {"x_own": encode_frame(own, SCHEMA), "y_own": truth[:200]}
    exec(program, names)
    made = names["made"]
    assert made.report.held_out == 200
    assert (made.student.predict_frame(given).names == truth).mean() > 0.9
    assert (tmp_path / "student").is_dir()


def test_a_space_that_is_not_seen_is_named() -> None:
    """As in numbers that a word processor has grouped."""
    with refuses(DataError, "dose", "no-break") as refused:
        encode_frame(
            pd.DataFrame({"dose": ["1\u00a0234"], "ward": ["A"], "smokes": ["yes"]}), SCHEMA
        )
    assert "xa0" not in str(refused.value)


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 columns"), (1, "1 column"), (2, "2 columns"), (1200, "1,200 columns")],
)
def test_one_is_counted_as_one(count: int, said: str) -> None:
    assert quantity(count, "column") == said
    assert quantity(count, "person", "people").endswith("person" if count == 1 else "people")


SCREEN = 24 * 80
"""Characters on a small screen."""


def test_what_a_client_returns_fits_on_a_screen(table: Client) -> None:
    """Even of a table of 300 columns with 50 categories each."""
    values = tuple(f"category-{k}" for k in range(50))
    wide = (Column(name=f"c{k}", role="categorical", values=values) for k in range(300))
    schema = TableSchema(columns=(*wide, *SCHEMA.columns))
    project = table.project()
    ensemble = project.ensemble.model_copy(
        update={"encoding": schema, "classes": [f"class {k}" for k in range(1000)]}
    )
    answers = table.label(encode_frame(frame(300), SCHEMA))
    shown: list[Any] = [
        table,
        project.model_copy(update={"ensemble": ensemble, "purpose": "Labels. " * 100}),
        ensemble,
        schema,
        schema.columns[0],
        answers,
        answers.training_set(np.zeros((300, 2))),
        BoughtAnswers(project, np.arange(900), answers, [b""]),
        table.receipts,
        LabelResponse(results=[LabelResult(outcome=Outcome.REFUSED)] * 256, budget=answers.budget),
        answers.budget,
    ]
    lengths = {type(each).__name__: max(len(repr(each)), len(str(each))) for each in shown}
    assert {name: length for name, length in lengths.items() if length > SCREEN} == {}


def test_a_budget_says_epsilon_and_what_still_fits(table: Client) -> None:
    budget = table.budget()
    for text in (repr(budget), str(budget)):
        holds(text, "table", "ε", 90, f"{budget.affordable:,}", f"{budget.epsilon_spent:.4g}")
        assert str(budget.budget) not in text, "nobody thinks in units of 1e-12"
