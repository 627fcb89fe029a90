"""Texts as numbers: the same for whoever encodes them, whatever they hold; and their features."""

from __future__ import annotations

import hashlib
import json
import shutil
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from support.data import KEPT
from support.wording import holds, refuses
from terrine_models.features.fitting import public_features
from terrine_models.features.maps import FeatureMap
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import FeatureSpec, StoreError
from terrine_models.tables.loading import encoded_input, load_table, read_schema
from terrine_models.tables.proposal import propose_schema
from terrine_models.teachers.kinds import load_manifest
from terrine_protocol.errors import DataError
from terrine_protocol.schema import Column, TableSchema
from terrine_tables.encoding import encode_frame, encode_rows, encode_table
from terrine_tables.texts import MAX_TEXT_CHARACTERS, clean_text, hash_texts

LABEL = Column(name="label", role="label", values=("a", "b"))
SCHEMA = TableSchema(columns=(Column(name="text", role="text", width=256), LABEL))
ODD_TEXTS = {
    "nothing": "",
    "spaces": " \n\t",
    "signs alone": "?!… 🎉",
    "control characters": "\x00\x01\x1b",
    "NUL within": "fe\x00ver",
    "half a surrogate pair": "\ud800 fever",
    "right to left": "שלום עולם \u202eabc",
    "without spaces": "東京都の天気",
    "vowel signs": "हिन्दी",
    "one word": "x" * 50_000,
    "combining marks": "a" + "\u0301" * 9_000,
    "ten megabytes": "fever " * 1_700_000,
}


def encoded(texts: Sequence[Any], schema: TableSchema = SCHEMA) -> NDArray[np.float32]:
    return encode_rows([{"text": text} for text in texts], schema, lambda said: None)


def test_hashes_are_those_of_every_other_version() -> None:
    """What students asked is known by its digest: another hash would charge it again."""
    found = {
        text: hashlib.sha256(hash_texts([clean_text(text)[0]], 512).tobytes()).hexdigest()[:16]
        for text in GOLDEN
    }
    assert found == GOLDEN


GOLDEN = {
    "fever": "951cb312db8f728e",
    "Fever since Monday, 38.5": "f8b3fa2e5d0eb894",
    "שלום עולם": "052daf3177c5709a",
    "état général": "f54bf48a6c740c44",
}


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_any_text_is_encoded(text: str) -> None:
    row = encoded([text])[0]
    assert np.isfinite(row).all()
    assert row.min() >= 0
    assert row.max() <= 1
    empty = not row[:-1].any()
    assert row[-1] == empty
    assert empty or np.square(row[:-1]).sum() == pytest.approx(1, abs=1e-5)


def test_a_text_is_encoded_as_it_is_beside_any_other() -> None:
    texts = [*ODD_TEXTS.values(), "fever since Monday", None, 38.5, "NA"]
    together = encoded(texts)
    for text, row in zip(texts, together, strict=True):
        assert np.array_equal(encoded([text])[0], row)
    assert np.array_equal(encoded(texts[::-1])[::-1], together)


def test_a_missing_text_is_a_value_of_its_own() -> None:
    assert encoded(["", None, "NA", "?", "fever"])[:, -1].tolist() == [1, 1, 1, 1, 0]


def test_capitals_signs_and_forms_of_unicode_do_not_count() -> None:
    one, *others = encoded(["État, fébrile", "état fébrile", "ÉTAT  (Fébrile)"])
    decomposed = encoded([unicodedata.normalize("NFD", "état fébrile")])[0]
    assert all(np.array_equal(one, each) for each in (*others, decomposed))


def test_what_is_longer_than_is_read_is_cut_and_that_is_said() -> None:
    notes = list[str]()
    long = "fever " * MAX_TEXT_CHARACTERS
    found = encode_rows(
        [{"text": long}, {"text": long[:MAX_TEXT_CHARACTERS]}], SCHEMA, notes.append
    )
    assert np.array_equal(found[0], found[1])
    holds(notes, "text", 1, 2, "10,000")
    assert "fever" not in str(notes)


def test_files_frames_and_rows_are_encoded_alike(tmp_path: Path) -> None:
    texts = ["fever since Monday", 'he said "no"', "שלום", "", "a, b"]
    rows = [{"text": text, "label": "a"} for text in texts]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    table = tmp_path / "rows.csv"
    quoted = ['"' + text.replace('"', '""') + '",a' for text in texts]
    table.write_text("\n".join(["text,label", *quoted, ""]), encoding="utf-8")
    expected = encoded(texts)
    for path in (lines, table):
        assert np.array_equal(encode_table(path, SCHEMA, lambda said: None), expected), path
        assert load_table(path, SCHEMA, lambda said: None).labels.tolist() == [0] * 5
    frame = {"text": np.array(texts, dtype=object)}
    assert np.array_equal(encode_frame(frame, SCHEMA, lambda said: None), expected)


BAD_LINES = {
    "another column later": ('{"text": "s3cret", "label": "a"}\n' * 100 + '{"x": 1}\n', (101, "x")),
    "a column twice": ('{"text": "s3cret", "text": "b"}\n', (1, "twice")),
    "a list": ('{"text": ["s3cret"], "label": "a"}\n', (1, "text", "list")),
    "no object": ('{"text": "s3cret"}\n[1]\n', (2, "object")),
    "no JSON": ('{"text": "s3cret"}\n{"text": s3cret}\n', (2, "JSON")),
    "a line of two megabytes": ('{"text": "' + "s3cret " * 300_000 + '"}\n', (1, "1,048,576")),
    "nested without end": ('{"text": "s3cret"}\n' + '{"a":' * 100_000 + "\n", (2, "object")),
    "no rows": ('{"text": null}\n\n', ("label",)),
}


@pytest.mark.parametrize(("text", "said"), BAD_LINES.values(), ids=BAD_LINES)
def test_what_is_wrong_in_json_lines_is_named_without_its_text(
    tmp_path: Path, text: str, said: tuple[object, ...]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with refuses(DataError, *said) as caught:
        load_table(path, SCHEMA, lambda said: None)
    assert "s3cret" not in str(caught.value)


def test_a_quote_that_opens_no_field_is_refused_without_the_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('label,text\na, "s3cret"\n')
    with refuses(DataError, 2, "text") as caught:
        load_table(path, SCHEMA, lambda said: None)
    assert "s3cret" not in str(caught.value)


WORDS = {
    "a": ["sun", "warm", "summer", "beach", "sand", "light"],
    "b": ["snow", "cold", "winter", "ice", "dark", "storm"],
}


def write_reports(path: Path) -> None:
    """Reports of seven words, of which most tell the class; and a number that does not."""
    random = np.random.default_rng(0)
    lines = list[str]()
    for label in random.choice(["a", "b"], 300):
        other = "b" if label == "a" else "a"
        words = [*random.choice(WORDS[label], 5), *random.choice(WORDS[other], 2)]
        text = " ".join(random.permutation(words))
        lines.append(f"{text},{random.integers(0, 9)},{label}")
    path.write_text("\n".join(["text,dose,label", *lines, ""]))


@pytest.fixture
def reports(tmp_path: Path) -> tuple[TableSchema, PublicData]:
    path = tmp_path / "reports.csv"
    write_reports(path)
    schema = propose_schema(path, label="label").schema
    data = load_table(path, schema)
    return schema, PublicData.declare("reports", data.inputs, labels=data.labels)


def test_prose_is_proposed_as_text_and_names_are_not(tmp_path: Path) -> None:
    path = tmp_path / "reports.csv"
    write_reports(path)
    lines = path.read_text().splitlines()
    named = [f"{line},First Name of the Family {i}" for i, line in enumerate(lines)]
    path.write_text("\n".join([f"{lines[0]},full name", *named[1:], ""]))
    found = {each.name: each for each in propose_schema(path, label="label").schema.columns}
    assert found["text"].role == "text"
    assert (found["text"].encoder, found["text"].width) == ("hashed", 2048)
    assert found["full name"].role == "ignored"


def test_texts_that_share_words_are_near_one_another(
    reports: tuple[TableSchema, PublicData],
) -> None:
    schema, public = reports
    known = public_features(encoded_input(schema), public, 150)
    assert known.spec.base == "texts"
    assert known.spec.ranks
    features = known(public.inputs)
    assert features.shape == (300, known.spec.width)
    apart = cdist(features, features) + 9 * np.eye(len(features))
    nearest = apart.argmin(1)
    labels = public.labels
    assert labels is not None
    assert (labels[nearest] == labels).mean() > 0.7


def test_the_map_of_texts_is_kept_and_read_again(
    reports: tuple[TableSchema, PublicData],
) -> None:
    schema, public = reports
    inputs = encoded_input(schema)
    for kind in ("graph", "fine_graph"):
        known = public_features(inputs, public, 150, kind)
        assert {n: tuple(t.shape) for n, t in known.tensors.items()} == known.shapes()
        spec = FeatureSpec.model_validate_json(known.spec.model_dump_json())
        again = FeatureMap(spec, inputs, known.tensors)
        x = public.inputs[:5]
        assert np.array_equal(again(x), known(x))


@pytest.mark.parametrize("rows", [1, 3, 30])
def test_few_public_rows_keep_every_column(
    reports: tuple[TableSchema, PublicData], rows: int
) -> None:
    schema, public = reports
    some = PublicData.declare("few", public.inputs[:rows])
    known = public_features(encoded_input(schema), some, 150)
    features = known(public.inputs)
    assert np.isfinite(features).all()
    assert rows == 1 or known.spec.ranks + known.spec.steps


def test_without_public_rows_texts_are_projected_at_random(
    reports: tuple[TableSchema, PublicData],
) -> None:
    schema, public = reports
    known = public_features(encoded_input(schema), None, 150)
    assert known.spec.projection == "random"
    assert known(public.inputs).shape == (300, 600)


@pytest.mark.parametrize(
    "column",
    [
        {"role": "numeric", "low": 0, "high": 1, "width": 256},
        {"role": "categorical", "values": ["x"], "encoder": "hashed"},
        {"role": "text", "width": 10},
        {"role": "text", "width": 10**9},
        {"role": "text", "values": ["x"]},
        {"role": "text", "encoder": "pickle"},
    ],
)
def test_a_schema_that_contradicts_itself_is_refused(column: dict[str, Any]) -> None:
    given = {"columns": [{"name": "x", **column}, LABEL.model_dump(exclude_none=True)]}
    with pytest.raises(ValueError, match=r"x|columns\.0"):
        TableSchema.model_validate(given)


def test_an_ensemble_whose_texts_had_embeddings_is_refused_with_what_to_do(tmp_path: Path) -> None:
    kept = Path(shutil.copytree(KEPT / "heads", tmp_path / "heads")) / "manifest.json"
    document = json.loads(kept.read_text())
    document["input"] |= {"shape": [264], "texts": [{"start": 0, "hashed": 256, "embedded": 0}]}
    kept.write_text(json.dumps(document))
    spec = load_manifest(kept.parent).input
    assert spec.model_dump(mode="json")["texts"] == document["input"]["texts"]
    files = {name: {"name": name, "sha256": "0" * 64} for name in ("model", "tokenizer")}
    text = {
        "name": "text",
        "role": "text",
        "encoder": "embedding",
        "embedding": {**files, "width": 7},
    }
    encoding = {"columns": [text, LABEL.model_dump(exclude_none=True)]}
    texts = [{"start": 0, "hashed": 256, "embedded": 7}]
    for change in ({"encoding": encoding}, {"input": {**document["input"], "texts": texts}}):
        kept.write_text(json.dumps({**document, **change}))
        with refuses(StoreError, kept.name, "embeddings", "docs/ensembles.md#texts"):
            load_manifest(kept.parent)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(encoding))
    with refuses(DataError, schema.name, "embeddings", "docs/ensembles.md#texts"):
        read_schema(schema)
