"""`terrine ensemble …` as users type it."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.processes import Terrine
from support.tables import DEFAULT_ROLES, stays
from support.wording import holds
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.teachers.kinds import load_manifest
from terrine_models.teachers.training import train_ensemble
from terrine_server.cli.reading import split_names


@pytest.fixture
def files(tmp_path: Path, digits: Dataset) -> Path:
    np.savez(
        tmp_path / "private.npz",
        x=digits.inputs[:600],
        y=digits.labels[:600],
        classes=digits.classes,
    )
    np.save(tmp_path / "pool.npy", digits.inputs[600:])
    (tmp_path / "private.csv").write_text("age,income\n1,low\n2,high\n")
    return tmp_path


def test_train_show_verify(terrine: Terrine, files: Path) -> None:
    train = ("ensemble", "train", files / "private.npz", "--name", "digits", "--teachers", 20)
    kind = ("--public", files / "pool.npy", "--kind", "heads:augmentations=1,ridge=0.03")
    assert terrine(*train, *kind).fine
    directory = files / "data" / "ensembles" / "digits"
    shown = terrine("ensemble", "show", directory)
    assert shown.code == 0
    for expected in ("20 (heads)", "pool.npy (1197 public", "30 to 30 records"):
        holds(shown.out, *expected.split())
    assert load_manifest(directory).teacher.model_dump()["ridge"] == 0.03
    assert terrine("ensemble", "show", directory, "--verify").code == 0
    weights = directory / "teachers-00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    refused = terrine("ensemble", "show", directory, "--verify")
    assert refused.code == 1
    holds(refused.err, "teachers-00000.safetensors", "altered")


@pytest.mark.parametrize(
    ("records", "changed", "said"),
    [
        ("missing.npz", {}, "missing.npz read"),
        ("nowhere", {}, "nowhere exist"),
        ("private.csv", {}, "taken"),
        ("private.npz", {"--teachers": 601}, "601 teachers"),
        ("private.npz", {"--name": "Not OK"}, "name"),
        ("private.npz", {"--kind": "heads:epochs=3"}, "heads 'epochs' width, features, ridge,"),
        ("private.npz", {"--kind": "networks:ridge=1"}, "networks 'ridge'"),
        ("private.npz", {"--kind": "heads:width=2"}, "width: greater 3."),
        (
            "private.npz",
            {"--kind": "trees"},
            "--kind forest, heads, networks, neighbours, sums; 'trees'",
        ),
        ("private.npz", {"--schema": "y"}, "tables"),
        ("private.npz", {"--kind": "forest", "--teachers": None}, "--teachers missing:"),
        ("private.npz", {"--kind": "neighbours", "--teachers": None}, "--public missing:"),
        ("private.npz", {"--kind": "neighbours"}, "--teachers --on neighbours"),
    ],
)
def test_a_mistake_gets_one_clear_line(
    terrine: Terrine, files: Path, records: str, changed: dict[str, object], said: str
) -> None:
    options = {"--name": "t", "--teachers": 2} | changed
    flat = [part for option in options.items() if option[1] is not None for part in option]
    refused = terrine("ensemble", "train", files / records, *flat)
    assert refused.code == 1
    holds(refused.err, *said.split())
    assert "Traceback" not in refused.err
    assert not (files / "data" / "ensembles" / "t").exists()


def test_a_folder_of_pictures_has_a_size_and_classes_that_are_told(
    terrine: Terrine, tmp_path: Path, digits: Dataset
) -> None:
    some = zip(digits.inputs[:400], digits.labels[:400], strict=True)
    for place, (image, label) in enumerate(some):
        folder = tmp_path / "scans" / f"n{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image * 15).save(folder / f"{place}.{('png', 'jpg')[place % 2]}")
    np.save(tmp_path / "pool.npy", digits.inputs[600:] * 15)
    train = ("ensemble", "train", tmp_path / "scans", "--name", "scans", "--teachers", 5)
    holds(terrine(*train).refused, "PNG", "JPEG")
    holds(terrine(*train, "--images", "8").refused, "1x1", "1024x1024")
    given = (*train, "--images", "8x8:grey", "--public", tmp_path / "pool.npy")
    named = ",".join(f"n{label}" for label in range(10))
    assert f"--classes {named}" in " ".join(terrine(*given).refused.split())
    order = [f"n{label}" for label in reversed(range(10))]
    said = terrine(*given, "--classes", ",".join(order), "--kind", "heads:augmentations=0").fine
    assert re.search(r"pictures\s+8 × 8, grey", said)
    assert list(load_manifest(tmp_path / "data" / "ensembles" / "scans").classes) == order


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A public sample of a hospital's stays, and the private ones as another program writes."""
    monkeypatch.chdir(tmp_path)
    Path("sample.csv").write_text(stays(997, 479), newline="")
    Path("stays.csv").write_text(stays(3000, 1400, 1, delimiter=";", decimal=","), newline="")
    return tmp_path


def test_a_schema_is_proposed_explained_and_trained_with(terrine: Terrine, hospital: Path) -> None:
    said = terrine("ensemble", "schema", "sample.csv", "--label", "readmitted").fine
    for row in (
        "patient_id group name: 479 997",
        "stay_id ignored identifier name,",
        "admitted date dates",
        "note text free",
        "diagnosis categorical 36",
    ):
        holds(said, *row.split())
    holds(said, 4, "columns", 5)
    holds(said, "sample.csv", "public")
    columns = json.loads(Path("schema.json").read_text())["columns"]
    assert {column["name"]: column["role"] for column in columns} == DEFAULT_ROLES
    assert all(
        column.keys() - {"check"} == {"name", "role", "why"}
        for column in columns
        if column["role"] in ("group", "ignored")
    )

    train = ("ensemble", "train", "stays.csv", "--teachers", 20)
    trained = terrine(*train, "--name", "one", "--schema", "schema.json").fine
    holds(trained, "stays.csv", "semicolons")
    holds(trained, 70, "people")


def test_a_schema_on_standard_output_is_a_file_s_and_is_explained_beside_it(
    terrine: Terrine, hospital: Path
) -> None:
    """For who has no directory that the command may write to, as in a container."""
    schema = ("ensemble", "schema", "sample.csv", "--label", "readmitted")
    printed = terrine(*schema, "--out", "-")
    assert not Path("-").exists()
    terrine(*schema).fine  # noqa: B018 - asserts
    assert printed.fine == Path("schema.json").read_text()
    holds(printed.err, "patient_id", "group", 997)
    holds(printed.err, 12, "columns", "public")


def test_without_people_the_owner_hears_what_is_guaranteed(
    terrine: Terrine, hospital: Path
) -> None:
    (hospital / "public.csv").write_text("age,ill\n1,n\n2,y\n3,n\n")
    said = terrine("ensemble", "schema", "public.csv", "--label", "ill").fine
    assert Path("schema.json").stat().st_mode & 0o777 == 0o644, "it is public by definition"
    holds(said, "rows")
    assert "--group" in said


def test_a_schema_of_the_private_table_does_not_train(terrine: Terrine, hospital: Path) -> None:
    assert terrine("ensemble", "schema", "stays.csv", "--label", "readmitted").fine
    train = ("ensemble", "train", "stays.csv", "--name", "t", "--teachers", 20)
    refused = terrine(*train, "--schema", "schema.json")
    assert refused.code == 1
    holds(refused.err, "private")


def test_all_that_is_made_in_a_data_directory_shares_one_cap(
    terrine: Terrine, hospital: Path
) -> None:
    terrine("init")
    for name, label in (("one", "readmitted"), ("two", "ward")):
        schema = ("ensemble", "schema", "sample.csv", "--label", label, "--out", f"{name}.json")
        assert terrine(*schema).code == 0
    train = ("ensemble", "train", "stays.csv", "--teachers", 20, "--name")
    assert terrine(*train, "one", "--schema", "one.json").code == 0
    register = ("--epsilon", 3, "--delta", "1e-5")
    said = terrine("ensemble", "register", "one", *register).fine
    holds(said, "population", "people")
    assert "shares" not in said
    shutil.rmtree(hospital / "data" / "ensembles" / "one")
    rows = list(csv.reader((hospital / "stays.csv").open(newline=""), delimiter=";"))
    with (hospital / "stays.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows(rows[:-1])
    assert terrine(*train, "two", "--schema", "two.json").code == 0
    refused = terrine("ensemble", "register", "two", "--epsilon", 2, "--delta", "1e-5").refused
    holds(refused, "two", "people", "cap", 3)
    said = terrine("ensemble", "register", "two").fine
    holds(said, "people", "shares", "one")
    assert terrine(*train, "staff", "--schema", "one.json").code == 0
    other = ("ensemble", "register", "staff", "--population", "staff")
    holds(terrine(*other, *register).refused, "people", "--disjoint")
    holds(terrine(*other, "--disjoint", "--epsilon", 2).refused, "delta")
    said = terrine(*other, "--disjoint", "--epsilon", 2, "--delta", "1e-5").fine
    holds(said, "population", "staff")
    rows = json.loads(terrine("--json", "ensemble", "show").out)
    assert [(row["name"], row["population"], row["epsilon"]) for row in rows] == [
        ("one", "people", 3.0),
        ("staff", "staff", 2.0),
        ("two", "people", 3.0),
    ]
    log = json.loads(terrine("--json", "ledger", "show").out)
    declared = [each for each in log if each["action"] == "population-declared"]
    stated = [(each["subject"], each["detail"]["disjoint_from"]) for each in declared]
    assert sorted(stated) == [("people", "[]"), ("staff", '["people"]')]
    key = (hospital / "data" / "records.key").read_text()
    files = [path for path in hospital.rglob("*") if path.is_file() and path.name != "records.key"]
    assert not [path for path in files if key.encode() in path.read_bytes()]


def test_a_class_with_a_comma_is_declared_in_quotes_as_in_csv(
    terrine: Terrine, hospital: Path
) -> None:
    (hospital / "public.csv").write_text('age,ill\n1,"yes, mild"\n2,no\n3,"a ""b"""\n')
    schema = ("ensemble", "schema", "public.csv", "--label", "ill", "--classes")
    declared = '"yes, mild", no,"a ""b"""'
    assert terrine(*schema, declared).fine
    made = json.loads(Path("schema.json").read_text())
    assert made["columns"][-1]["values"] == ["yes, mild", "no", 'a "b"']
    for wrong in ('"yes, mild,no', '"yes" mild,no', ""):
        holds(terrine(*schema, wrong, "--out", "other.json").refused, "--classes", "quotes")
    for pictures in ("scans/yes, mild", "scans/no"):
        (hospital / pictures).mkdir(parents=True)
        Image.new("L", (8, 8)).save(hospital / pictures / "1.png")
    np.save("pool.npy", np.zeros((9, 8, 8), np.uint8))
    train = ("ensemble", "train", "scans", "--name", "scans", "--teachers", 1)
    said = terrine(*train, "--images", "8x8:grey", "--public", "pool.npy").refused
    told = re.search(r"--classes '(.*)'", " ".join(said.split()))
    assert told is not None, said
    assert split_names(told[1]) == ["no", "yes, mild"]


ACTING = ("a\x1b]0;owned\x07", "d\n| forged row |", "b\u202ec", "e\x9b2J", "f\u2028g", "h\u2066i")
"""Names that name a terminal's window, begin a row, turn text, clear a screen and end a line."""
UNSHOWN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\u2066-\u2069]")

DOORS = ("archive", "--classes", "schema", "column", "table", "pictures")
NAMES_AT_DOORS = [
    pytest.param(
        name, door, marks=[] if ACTING.index(name) == DOORS.index(door) else pytest.mark.nightly
    )
    for name, door in itertools.product(ACTING, DOORS)
]
"""Each name, and each door, once by day."""


def shows_nothing_that_acts(text: str) -> bool:
    return not UNSHOWN.search(text) and not re.search(r"^\W*forged row", text, re.MULTILINE)


@pytest.mark.parametrize(("name", "door"), NAMES_AT_DOORS)
def test_a_name_that_acts_on_a_terminal_is_refused_at_every_door(
    terrine: Terrine, files: Path, name: str, door: str
) -> None:
    train: tuple[object, ...] = ("ensemble", "train")
    schema: dict[str, Any] = {
        "columns": [
            {"name": "age", "role": "numeric", "low": 0, "high": 9},
            {"name": "income", "role": "label", "values": ["low", "high"]},
        ]
    }
    given: tuple[object, ...] = (*train, files / "private.npz")
    match door:
        case "archive":
            np.savez(files / "private.npz", x=np.zeros((4, 2)), y=[0, 1, 0, 1], classes=[name, "z"])
        case "--classes":
            given = (*given, "--classes", f'"{name}",z')
        case "schema":
            schema["columns"][1]["values"][0] = name
        case "column":
            schema["columns"][0]["name"] = name
        case "table":
            rows = [f'"{name}",{row % 7},{("no", "yes")[row % 2]}' for row in range(40)]
            (files / "private.csv").write_text("\n".join(["where,age,income", *rows]))
            given = ("ensemble", "schema", files / "private.csv", "--label", "income")
        case "pictures":
            for folder in (name, "z"):
                (files / "public" / folder).mkdir(parents=True)
                Image.new("L", (8, 8)).save(files / "public" / folder / "0.png")
            shutil.copytree(files / "public", files / "own")
            public = ("--public", files / "public", "--images", "8x8")
            given = (*train, files / "own", *public)
    if door in ("schema", "column"):
        (files / "schema.json").write_text(json.dumps(schema))
        given = (*train, files / "private.csv", "--schema", files / "schema.json")
    out = files / "schema-out.json"
    more = ("--out", out) if door == "table" else ("--name", "x", "--teachers", 2)
    done = terrine(*given, *more)
    assert done.code == 1
    holds(done.err, "show")
    assert shows_nothing_that_acts(done.out + done.err)
    assert not out.exists()
    assert not (files / "data" / "ensembles" / "x").exists()


def test_an_ensemble_that_has_such_names_is_shown_and_not_registered(
    terrine: Terrine, files: Path
) -> None:
    x = np.zeros((60, 2), np.float32)
    data = Dataset(
        x, np.arange(60) % 6, ACTING, InputSpec(shape=(2,), dtype="float32", low=0, high=1)
    )
    directory = files / "data" / "ensembles" / "old"
    train_ensemble(data, directory, name="old", teachers=2)
    shown = terrine("ensemble", "show", directory).fine
    assert "<U+001B>" in shown
    assert shows_nothing_that_acts(shown)
    shown = terrine("--json", "ensemble", "show", directory).fine
    assert shows_nothing_that_acts(shown)
    assert json.loads(shown)["classes"] == list(ACTING)
    terrine("init").fine  # noqa: B018 - raises if it failed
    done = terrine("ensemble", "register", "old", "--epsilon", 1, "--delta", "1e-6")
    assert done.code == 1
    holds(done.err, "show", "old")
    assert shows_nothing_that_acts(done.err)
