"""`terrine ensemble …` as users type it."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.processes import Terrine
from support.tables import DEFAULT_ROLES, stays
from support.wording import holds
from terrine_models.data.arrays import Dataset
from terrine_models.teachers.kinds import load_manifest
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
    return tmp_path


def test_train_show_verify(terrine: Terrine, files: Path) -> None:
    trained = terrine(
        "ensemble",
        "train",
        files / "private.npz",
        "--name",
        "digits",
        "--teachers",
        20,
        "--public",
        files / "pool.npy",
        "--kind",
        "heads:augmentations=1,ridge=0.03",
    )
    assert trained.code == 0, trained.err
    directory = files / "data" / "ensembles" / "digits"
    shown = terrine("ensemble", "show", directory)
    assert shown.code == 0
    for expected in ("20 (heads)", "pool.npy (1197 public", "30 to 30 records"):
        holds(shown.out, *expected.split())
    assert load_manifest(directory).teacher.model_dump()["ridge"] == 0.03
    assert terrine("ensemble", "verify", directory).code == 0
    weights = directory / "teachers-00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    refused = terrine("ensemble", "verify", directory)
    assert refused.code == 1
    holds(refused.err, "teachers-00000.safetensors", "altered")


def test_a_table_without_public_encoding_is_refused(terrine: Terrine, files: Path) -> None:
    (files / "private.csv").write_text("age,income\n1,low\n2,high\n")
    refused = terrine(
        "ensemble",
        "train",
        files / "private.csv",
        "--name",
        "t",
        "--teachers",
        2,
    )
    assert refused.code == 1
    holds(refused.err, "taken")
    assert "Traceback" not in refused.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.npz", "--name", "t", "--teachers", 2), "missing.npz read"),
        (("nowhere", "--name", "t", "--teachers", 2), "nowhere exist"),
        (("private.npz", "--name", "t", "--teachers", 601), "601 teachers"),
        (("private.npz", "--name", "Not OK", "--teachers", 2), "name"),
        (
            ("private.npz", "--name", "t", "--teachers", 2, "--kind", "heads:epochs=3"),
            "heads 'epochs' width, features, ridge,",
        ),
        (
            ("private.npz", "--name", "t", "--teachers", 2, "--kind", "networks:ridge=1"),
            "networks 'ridge'",
        ),
        (
            ("private.npz", "--name", "t", "--teachers", 2, "--kind", "heads:width=2"),
            "width: greater 3.",
        ),
        (
            ("private.npz", "--name", "t", "--teachers", 2, "--kind", "trees"),
            "--kind forest, heads, networks; 'trees'",
        ),
        (("private.npz", "--name", "t", "--teachers", 2, "--schema", "y"), "tables"),
    ],
)
def test_a_mistake_gets_one_clear_line(
    terrine: Terrine, files: Path, arguments: tuple[object, ...], said: str
) -> None:
    path, *rest = arguments
    refused = terrine("ensemble", "train", files / str(path), *rest)
    assert refused.code == 1
    holds(refused.err, *said.split())
    assert "Traceback" not in refused.err
    assert not (files / "data" / "ensembles" / "t").exists()


def test_a_folder_of_pictures_has_a_size_and_classes_that_are_told(
    terrine: Terrine, tmp_path: Path, digits: Dataset
) -> None:
    for place, (image, label) in enumerate(zip(digits.inputs, digits.labels, strict=True)):
        folder = tmp_path / ("scans" if place < 400 else "own") / f"n{label}"
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
    evaluate = ("ensemble", "evaluate", "scans", tmp_path / "own", "--trained-on", "public")
    assert re.search(r"│ n3\s*│", terrine(*evaluate).fine)


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


def test_the_owner_overrules_the_proposal(terrine: Terrine, hospital: Path) -> None:
    schema = ("ensemble", "schema", "sample.csv", "--label", "readmitted")
    assert terrine(*schema, "--ignore", "ward", "--ignore", "patient_id", "--keep", "admitted").fine
    columns = json.loads(Path("schema.json").read_text())["columns"]
    roles = {column["name"]: column["role"] for column in columns}
    assert (roles["ward"], roles["patient_id"], roles["admitted"]) == (
        "ignored",
        "ignored",
        "date",
    )
    again = terrine(*schema).refused
    holds(again, "schema.json", "exists")


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
    refused = terrine(
        "ensemble",
        "train",
        "stays.csv",
        "--name",
        "t",
        "--teachers",
        20,
        "--schema",
        "schema.json",
    )
    assert refused.code == 1
    holds(refused.err, "private")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "h.parquet",
            b"PAR1\x15\x04\0\xffPAR1",
            "h.parquet Parquet",
        ),
        ("h.xlsx", b"PK\x03\x04...", "h.xlsx zip"),
        ("h.csv", b"age.ill\n1.n\n", "column ill; age.ill"),
    ],
)
def test_what_is_no_csv_file_is_said_whatever_the_command(
    terrine: Terrine, hospital: Path, name: str, content: bytes, said: str
) -> None:
    (hospital / name).write_bytes(content)
    holds(terrine("ensemble", "schema", name, "--label", "ill").refused, *said.split())
    assert not (hospital / "schema.json").exists()
    if "ill" not in said:
        train = ("ensemble", "train", name, "--name", "t", "--teachers", 2)
        holds(terrine(*train).refused, *said.split())
        label = ("student", "--url", "http://127.0.0.1:9", "label", name, "--out", "x.npz")
        holds(terrine(*label).refused, *said.split())


@pytest.mark.nightly
def test_adult_needs_no_word(terrine: Terrine, hospital: Path, shared_data: Path) -> None:
    names = (
        "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,"
        "race,sex,capital-gain,capital-loss,hours-per-week,native-country,income"
    )
    adult = shared_data / "adult"
    public = ("--label", "income", "--columns", names)
    schema = hospital / "adult.json"
    said = terrine("ensemble", "schema", adult / "adult.test.gz", *public, "--out", schema).fine
    roles = [line.split("│")[2].strip() for line in said.splitlines() if line.startswith("│")]
    assert sorted(roles) == ["categorical"] * 8 + ["label"] + ["numeric"] * 6
    train = ("ensemble", "train", adult / "adult.data.gz", "--name", "t", "--teachers", 20)
    known = ("--public", adult / "adult.test.gz", "--schema", schema)
    assert "32561" in terrine(*train, *known).fine


def test_all_that_is_made_in_a_data_directory_shares_one_cap(
    terrine: Terrine, hospital: Path
) -> None:
    """Other labels, other columns, a row less, and after the first files are gone."""
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
    rows = json.loads(terrine("--json", "ensemble", "list").out)
    assert [(row["name"], row["population"], row["epsilon"]) for row in rows] == [
        ("one", "people", 3.0),
        ("staff", "staff", 2.0),
        ("two", "people", 3.0),
    ]
    log = json.loads(terrine("--json", "log", "show").out)
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
    train = (
        "ensemble",
        "train",
        "scans",
        "--name",
        "scans",
        "--teachers",
        1,
        "--images",
        "8x8:grey",
    )
    said = terrine(*train, "--public", "pool.npy").refused
    told = re.search(r"--classes '(.*)'", " ".join(said.split()))
    assert told is not None, said
    assert split_names(told[1]) == ["no", "yes, mild"]
