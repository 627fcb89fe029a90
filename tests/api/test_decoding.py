"""Bytes that students send become arrays of numbers or a clear refusal, never anything else."""

from __future__ import annotations

import csv
import gc
import io
import json
import pickle
import struct
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import pytest
from fastapi.exceptions import RequestValidationError
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from support.clients import npy, npz
from support.wording import holds, refuses
from terrine_models.tables.loading import encoded_input
from terrine_protocol import Column, EnsembleFacts, InputSpec, TableSchema
from terrine_server.api.decoding import MAX_TEXT_BYTES, BodyLimits, DecodedQueries, check_length
from terrine_server.api.decoding import decode as decode_body
from terrine_server.errors import InvalidQuery, PayloadTooLarge, ServiceError, UnsupportedMediaType
from terrine_tables.encoding import encode_rows

LIMIT = 1 << 20
ROWS = np.arange(12, dtype=np.uint8).reshape(3, 4)
NPY, NPZ, JSON = "application/x-npy", "application/x-npz", "application/json"


def expecting(
    *shape: int, classes: int = 1, dtype: Literal["uint8", "float32"] = "float32"
) -> EnsembleFacts:
    spec = InputSpec(shape=shape, dtype=dtype, low=0, high=255)
    return EnsembleFacts.model_construct(
        kind="heads", input=spec, classes=["a class"] * classes, teachers=2
    )


PAIRS = expecting(2)


def header(text: str, version: tuple[int, int] = (1, 0)) -> bytes:
    """Return the start of a .npy file with any header."""
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text.encode()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@given(
    arrays.arrays(
        st.sampled_from(["<f4", ">f4", "<f8", "<f2", "|u1", ">i2", "<i8", "<u4"]),
        arrays.array_shapes(min_dims=2, max_dims=4, max_side=4),
        elements={"min_value": 0, "max_value": 100},
    ),
    st.booleans(),
)
def test_every_number_type_byte_order_and_layout_arrives_as_it_was_sent(
    array: Any, fortran: bool
) -> None:
    sent = np.asfortranarray(array) if fortran else array
    rows = expecting(*array.shape[1:])
    for kind, body in ((NPY, npy(sent)), (NPZ, npz(inputs=sent))):
        decoded = decode(kind, body, LIMIT, rows)
        np.testing.assert_array_equal(decoded.inputs, array)


def decode(kind: str, body: bytes, limit: int, expected: EnsembleFacts = PAIRS) -> DecodedQueries:
    return decode_body(kind, body, expected, BodyLimits(limit, batch=10**6))


class Bomb:
    """Unpickling it would create a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def test_a_pickle_is_never_run(tmp_path: Any) -> None:
    path = tmp_path / "exploded"
    objects = np.array([Bomb(str(path))], dtype=object)
    pickled = npy(objects, allow_pickle=True)
    for kind, body in (
        (NPY, pickled),
        (NPZ, zipped({"inputs.npy": pickled})),
        (NPY, pickle.dumps(Bomb(str(path)))),
    ):
        with pytest.raises(InvalidQuery):
            decode(kind, body, LIMIT)
    assert not path.exists()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x93NUMPY", id="magic only"),
        pytest.param(npy(ROWS)[:-1], id="truncated data"),
        pytest.param(npy(ROWS)[:40], id="truncated header"),
        pytest.param(npy(ROWS) + b"\0", id="trailing garbage"),
        pytest.param(npy(ROWS) + npy(ROWS), id="two arrays"),
        pytest.param(npy(np.zeros((0, 4))), id="empty"),
        pytest.param(npy(np.array(["a"])), id="strings"),
        pytest.param(npy(np.zeros(2, dtype=[("a", "f4")])), id="structured"),
        pytest.param(npy(np.zeros(2, dtype=complex)), id="complex"),
        pytest.param(npy(np.zeros(2, dtype=bool)), id="booleans"),
        pytest.param(npy(np.zeros(2, dtype=np.longdouble)), id="long doubles"),
        pytest.param(npy(np.zeros(2, dtype="M8[s]")), id="dates"),
        pytest.param(npy(np.zeros((1,) * 9)), id="nine dimensions"),
        pytest.param(
            header("{'descr': '<f8', 'fortran_order': False, 'shape': (10**12,), }"),
            id="an expression as shape",
        ),
        pytest.param(
            header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"),
            id="a terabyte claimed",
        ),
        pytest.param(
            header("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,), }"),
            id="more than any integer claimed",
        ),
        pytest.param(
            header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }") + bytes(8),
            id="negative shape",
        ),
        pytest.param(header("{'descr': '<f8', 'shape': (1,), }") + bytes(8), id="missing key"),
        pytest.param(header("(" * 4000), id="nested parentheses"),
        pytest.param(header(" " * 60000), id="huge header"),
        pytest.param(header("{'descr': 'O', 'fortran_order': False, 'shape': (1,)}"), id="objects"),
        pytest.param(
            header("{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", (3, 0)) + bytes(8),
            id="format 3.0",
        ),
    ],
)
def test_bytes_that_are_not_a_plain_array_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidQuery):
        decode(NPY, body, LIMIT)
    with pytest.raises(InvalidQuery):
        decode(NPZ, zipped({"inputs.npy": body}), LIMIT)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"PK\x05\x06" + bytes(18), id="no member"),
        pytest.param(npz(other=ROWS), id="unknown member"),
        pytest.param(npz(inputs=ROWS, more=ROWS), id="one member too many"),
        pytest.param(npz(a=ROWS, b=ROWS, c=ROWS), id="three members"),
        pytest.param(npz(inputs=ROWS)[:-1], id="truncated"),
        pytest.param(npz(inputs=ROWS) + b"\0", id="trailing garbage"),
        pytest.param(zipped({"inputs.npy": npz(inputs=ROWS)}), id="an archive within"),
        pytest.param(zipped({"../inputs.npy": npy(ROWS)}), id="a path"),
        pytest.param(zipped({"inputs.npy": npy(ROWS)}, zipfile.ZIP_LZMA), id="another compression"),
    ],
)
def test_archives_unlike_those_of_numpy_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidQuery):
        decode(NPZ, body, LIMIT)


def test_an_encrypted_archive_is_refused() -> None:
    body = bytearray(npz(inputs=ROWS))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        body[body.index(signature) + offset] |= 1
    with refuses(InvalidQuery, "Encrypted"):
        decode(NPZ, bytes(body), LIMIT)


def most_memory(work: Callable[[], object]) -> int:
    """Return the most bytes that were in use at a time, beyond those before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


UNPACKED = 4 << 20
ZEROS = np.zeros((UNPACKED // 4, 4), np.uint8)


def lying(body: bytes, declared: int) -> bytes:
    """Return the archive with another size of its first member in the directory."""
    made = bytearray(body)
    at = made.index(b"PK\x01\x02") + 24
    made[at : at + 4] = struct.pack("<I", declared)
    return bytes(made)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        pytest.param(npz(inputs=ZEROS), PayloadTooLarge, id="more rows than a batch has"),
        pytest.param(npz(inputs=ZEROS.reshape(4, -1)), InvalidQuery, id="another shape"),
        pytest.param(npz(inputs=ZEROS.reshape(-1, 4, 1)), InvalidQuery, id="one side more"),
        pytest.param(npz(inputs=np.zeros(ZEROS.shape, "S1")), InvalidQuery, id="another dtype"),
        pytest.param(npz(inputs=ROWS, probabilities=ZEROS), InvalidQuery, id="probabilities"),
        pytest.param(
            zipped({"inputs.npy": npy(ROWS) + bytes(UNPACKED)}),
            InvalidQuery,
            id="more than it says",
        ),
        pytest.param(zipped({"inputs.npy": bytes(UNPACKED)}), InvalidQuery, id="no array"),
        pytest.param(
            lying(zipped({"inputs.npy": npy(ROWS) + bytes(UNPACKED)}), len(npy(ROWS))),
            InvalidQuery,
            id="more than the directory says",
        ),
    ],
)
def test_a_bomb_is_refused_before_it_is_unpacked(body: bytes, error: type[ServiceError]) -> None:
    """Of 4 MiB, its header is unpacked, though the limits allow twice as many."""
    expected, limits = expecting(4, classes=2), BodyLimits(body=2 * UNPACKED, batch=4096)
    assert len(body) < UNPACKED / 500

    def refuse() -> None:
        with pytest.raises(error):
            decode_body(NPZ, body, expected, limits)

    assert most_memory(refuse) < len(body) + (1 << 18)


def test_no_body_may_be_longer_than_the_largest_batch_is() -> None:
    limits = BodyLimits(body=UNPACKED, batch=100)
    largest = npz(inputs=np.zeros((100, 4)), probabilities=np.full((100, 2), 0.5))
    check_length(NPZ, len(largest), expecting(4, classes=2), limits)
    with refuses(PayloadTooLarge, 100, "inputs") as refused:
        check_length(NPZ, 20_000, expecting(4, classes=2), limits)
    assert 4800 < refused.value.extras["limit"] < 10_000


@pytest.mark.parametrize(
    ("body", "expected", "most"),
    [
        pytest.param(
            lambda rows: npz(inputs=np.zeros((rows, 2), np.uint8)),
            expecting(2, dtype="float32"),
            LIMIT // 8,
            id="inputs, four bytes a number in this ensemble",
        ),
        pytest.param(
            lambda rows: npz(inputs=np.zeros((rows, 1)), probabilities=np.zeros((rows, 9), "f2")),
            expecting(1, classes=9),
            LIMIT // 72,
            id="probabilities, eight bytes each",
        ),
    ],
)
def test_what_becomes_too_large_once_it_is_converted_is_refused(
    body: Callable[[int], bytes], expected: EnsembleFacts, most: int
) -> None:
    assert len(decode(NPZ, body(most), LIMIT, expected).inputs) == most
    with refuses(PayloadTooLarge, "Split"):
        decode(NPZ, body(most + 1), LIMIT, expected)


def test_a_directory_of_a_million_entries_is_not_parsed() -> None:
    entry = npz(inputs=ROWS)
    start, end = entry.index(b"PK\x01\x02"), entry.index(b"PK\x05\x06")
    directory = entry[start:end] * 10_000
    record = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 2, 2, len(directory), start, 0)
    with pytest.raises(InvalidQuery):
        decode(NPZ, entry[:start] + directory + record, LIMIT)


@pytest.mark.parametrize(
    "inputs",
    [
        "[[1, 2], [3]]",
        "[[1, 2], 3]",
        "[1, [2]]",
        '[["1", 2]]',
        "[[true, 2]]",
        "[[null, 2]]",
        "[[{}, 2]]",
        "[[[1], [2]]]",
        "[[1, 2, 3]]",
        "[[]]",
        "[]",
        "1",
        "[" * 100_000 + "1" + "]" * 100_000,
        "[[1, 1" + "0" * 400 + "]]",
        "[[1, 1e999]]",
        '[[1, 2]], "probabilities": [["0.5"]]',
        '[[1, 2]], "probabilities": [[true]]',
        '[[1, 2]], "probabilities": [[0.5, 0.5]]',
    ],
)
def test_json_lists_that_are_not_the_arrays_expected_are_refused(inputs: str) -> None:
    with refuses(InvalidQuery, "[B, 2]"):
        decode(JSON, b'{"inputs": %s}' % inputs.encode(), LIMIT)


def test_json_may_have_inputs_of_any_shape() -> None:
    for shape in ((1,), (2, 3), (2, 1, 3, 1)):
        array = np.arange(4 * np.prod(shape), dtype=float).reshape(4, *shape)
        for shares in (None, [[0.5, 0.25, 0.25]] * 4):
            body = json.dumps({"inputs": array.tolist(), "probabilities": shares}).encode()
            kind = f"{JSON}; charset=utf-8"
            decoded = decode(kind, body, LIMIT, expecting(*shape, classes=3))
            np.testing.assert_array_equal(decoded.inputs, array)
            assert (decoded.probabilities is None) == (shares is None)
            if decoded.probabilities is not None:
                np.testing.assert_array_equal(decoded.probabilities, shares)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"nonsense",
        b"{}",
        b'{"inputs": [[1, 2]], "surprise": 1}',
        b'{"inputs": [[1, 2]]',
        b'{"inputs": [[1, 2]]} {}',
        b'{"inputs": [[1, 2]], "inputs": [[3, 4]]}',
        b'{"inputs": [[1, 2]], "probabilities": [[1]], "probabilities": [[0]]}',
        b'{"inputs": ' + b"[" * 2,
        b"\xff\xfe",
        b'{"inp\xffuts": [[1, 2]]}',
    ],
)
def test_malformed_json_is_refused(body: bytes) -> None:
    with pytest.raises(RequestValidationError):
        decode(JSON, body, LIMIT)


def test_rows_that_are_not_there_take_no_memory() -> None:
    """A thousand rows of a million numbers each are claimed in 2 KB."""
    body = b'{"inputs": [%s0]}' % (b"0," * 1000)

    def refuse() -> None:
        with refuses(InvalidQuery, "`array`"):
            decode_body(JSON, body, expecting(1000, 1000), BodyLimits(LIMIT, batch=4096))

    assert most_memory(refuse) < 1 << 20


def test_more_json_than_allowed_is_refused_before_it_is_read() -> None:
    body, limits = b'{"inputs": [[1, 2]]}'.ljust(MAX_TEXT_BYTES), BodyLimits(body=LIMIT, batch=9)
    assert len(decode_body(JSON, body, PAIRS, limits).inputs) == 1
    with refuses(PayloadTooLarge, "application/x-npy"):
        decode_body(JSON, body + b" ", PAIRS, limits)


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-pickle", "multipart/form-data"])
def test_other_content_types_are_refused(kind: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        decode(kind, npy(ROWS), LIMIT)


def test_threads_may_read_headers_at_the_same_time() -> None:
    """Python 3.11's own parser of literals fails if they do, and garbage is collected meanwhile."""
    body, often = npy(ROWS), sys.getswitchinterval()

    def give_way(*_: object) -> None:
        time.sleep(0)

    def read(depth: int) -> bool:
        if depth:
            return read(depth - 1)
        rows = expecting(4)
        return all(np.array_equal(decode(NPY, body, LIMIT, rows).inputs, ROWS) for _ in range(300))

    sys.setswitchinterval(1e-6)
    gc.set_threshold(1, 1000, 1000)
    gc.callbacks.append(give_way)
    try:
        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(read, range(0, 80, 10)))
    finally:
        gc.callbacks.remove(give_way)
        gc.set_threshold(700, 10, 10)
        sys.setswitchinterval(often)


SCHEMA = TableSchema(
    columns=(
        Column(name="age", role="numeric", low=0, high=99),
        Column(name="café", role="categorical", values=("yes", "no")),
        Column(name="smokes", role="boolean"),
        Column(name="ill", role="label", values=("no", "yes")),
        Column(name="patient", role="group"),
    )
)
WIDTH = encoded_input(SCHEMA).shape[0]
TABLE = expecting(WIDTH).model_copy(update={"encoding": SCHEMA})
NAMED: list[dict[str, Any]] = [
    {"age": 41, "café": "yes", "smokes": True, "ill": "unknown", "patient": 7, "note": 'a "b\\'},
    {"note": None, "smokes": "no", "café": "maybe", "age": 7.5},
    {"smokes": None, "cafe\u0301": "no", "age": "1e1"},
]
"""Two columns that are not for students, one that nobody knows, and a name in Unicode NFD."""
CSV_HEADER = "age,café,smokes"


def decode_rows(
    kind: str, body: str | bytes, *, accept_clipped: bool = True, batch: int = 100
) -> DecodedQueries:
    sent = body if isinstance(body, bytes) else body.encode()
    return decode_body(kind, sent, TABLE, BodyLimits(LIMIT, batch), accept_clipped)


def test_rows_by_name_become_what_the_client_makes_of_them() -> None:
    expected = encode_rows(NAMED, SCHEMA, lambda said: None, accept_clipped=True)
    decoded = decode_rows(JSON, json.dumps({"rows": NAMED, "probabilities": [[1]] * 3}))
    assert np.array_equal(decoded.inputs, expected)
    assert decoded.probabilities is not None
    assert decoded.inputs.dtype == np.float32
    for newline, mark in (("\n", ""), ("\r\n", "\ufeff")):
        lines = ["note , smokes,cafe\u0301,age,ill,patient", '"a,\n""b""",true,yes, 41,,7', ""]
        lines += ["c,no,maybe,7.5,,", ",,no,1e1,,"]
        again = decode_rows("text/csv; charset=utf-8", mark + newline.join(lines))
        assert np.array_equal(again.inputs, expected)
    holds(decoded.notes, "café", 1, 3)


def test_one_row_does_not_change_what_another_becomes() -> None:
    """True equals 1 in Python, and is another category."""
    values = ("1", "true")
    schema = TableSchema(
        columns=(Column(name="a", role="categorical", values=values), *SCHEMA.columns[3:])
    )
    alone = [encode_rows([{"a": value}], schema) for value in (1, True, 1.0)]
    together = encode_rows([{"a": 1}, {"a": True}, {"a": 1.0}], schema)
    assert np.array_equal(together, np.concatenate(alone))
    assert together.argmax(axis=1).tolist() == [0, 1, 0]


ROW = '{"age": 41, "café": "yes", "smokes": true}'


@pytest.mark.parametrize(
    ("rows", "held"),
    [
        ("[]", ("Client.label",)),
        ('"age"', ("rows",)),
        ("[[41, 1]]", (0, "object")),
        (f"[{ROW}, 1]", (1, "object")),
        ('[{"age": 41, "smokes": true}]', (0, "café", "age", "smokes")),
        (f'[{ROW}, {{"Age": 41, "café": "no", "smokes": 1}}]', (1, "age", "'Age'")),
        (ROW.replace("41", "[41]").join("[]"), (0, "array")),
        (ROW.replace("41", '{"years": 41}').join("[]"), (0, "object")),
        (ROW.replace("41", "1e999").join("[]"), (0,)),
        (ROW.replace("41", "1" * 5000).join("[]"), (0,)),
        (ROW.replace("41", "NaN").join("[]"), ("NaN", "null")),
        (ROW.replace("41", '"old"').join("[]"), (0, "age", "'old'")),
        (ROW.replace("41", '"' + "é" * 201 + '"').join("[]"), (0, "age", 201, 200)),
        (ROW.replace("{", '{"' + "x" * 201 + '": 1, ').join("[]"), (0, 201, 200)),
        (ROW.replace("{", '{"age": 40, ').join("[]"), (0, "twice")),
        (ROW.replace("{", '{"\\u0061ge": "40", ').join("[]"), (0, "twice")),
        (ROW.replace("{", '{"cafe\u0301": "no", ').join("[]"), (0, "'café'")),
        ("[" + '{"age": ' * 5000 + "1" + "}" * 5000 + "]", ("deep",)),
    ],
    ids=range(18),
)
def test_rows_of_json_that_do_not_fit_are_refused_by_name(
    rows: str, held: tuple[object, ...]
) -> None:
    with refuses(InvalidQuery, *held):
        decode_rows(JSON, f'{{"rows": {rows}}}')


@pytest.mark.parametrize(
    "body",
    [
        '{"rows": [ROW], "rows": [ROW]}',
        '{"rows": [ROW], "inputs": [[1, 2, 3, 4, 5, 6]]}',
        '{"rows": [ROW], "surprise": 1}',
        '{"rows": [ROW], "probabilities": null, "probabilities": null}',
        '{"rows": [ROW]',
        '{"rows": [{"age": 41, "age"}]}',
        '{"probabilities": [[1]]}',
        "{}",
    ],
)
def test_malformed_rows_of_json_are_refused(body: str) -> None:
    with pytest.raises(RequestValidationError):
        decode_rows(JSON, body.replace("ROW", ROW))


@pytest.mark.parametrize(
    ("body", "held"),
    [
        ("", ("header", "age", "commas")),
        (f"{CSV_HEADER}\n", ("empty",)),
        (f"{CSV_HEADER}\n\n\n", ("empty",)),
        ("age,smokes\n41,1\n", ("café", "age", "smokes")),
        ("age;café;smokes\n41;yes;1\n", ("age", "commas")),
        ("41,yes,1\n", ("header", "age")),
        (f"{CSV_HEADER},age\n41,yes,1,42\n", ("'age'",)),
        (f"{CSV_HEADER}\n41,yes,1\n\n41,yes\n", (4, 2, 3)),
        (f"{CSV_HEADER}\n41,yes,1,1\n", (2, 4, 3)),
        (f'{CSV_HEADER}\n41,"yes,1\n', (2, "quote")),
        (f'{CSV_HEADER}\n41,"yes"x,1\n', (2, "quote")),
        (f'{CSV_HEADER}\n"4\n1",yes,1\n', (3, "age")),
        (f"{CSV_HEADER}\n41,yes,1\nold,yes,1\n", (3, "age", "'old'")),
        (f"{CSV_HEADER}\n41,yes,perhaps\n", (2, "smokes", "'perhaps'")),
        (f"{CSV_HEADER}\n41,{'é' * 201},1\n", (2, "café", 201, 200)),
        (f"{CSV_HEADER},{'x' * 201}\n41,yes,1,1\n", ("header", 201, 200)),
        (f"{CSV_HEADER}\n41,{'x' * 200_000},1\n", (2,)),
        (f"{CSV_HEADER}\n41,yes,1\n".encode("latin-1"), ("UTF-8", 7, "0xe9")),
    ],
    ids=range(18),
)
def test_csv_that_does_not_fit_is_refused_by_line(
    body: str | bytes, held: tuple[object, ...]
) -> None:
    with refuses(InvalidQuery, *held):
        decode_rows("text/csv", body)


def test_a_long_text_is_read_in_csv_as_in_json() -> None:
    """Beyond what Python's `csv` reads by default; what is not needed may be as long as a body."""
    note = "fever " * 30_000
    schema = TableSchema(columns=(Column(name="note", role="text"), *SCHEMA.columns[3:]))
    facts = expecting(*encoded_input(schema).shape).model_copy(update={"encoding": schema})
    sent = {
        JSON: json.dumps({"rows": [{"note": note}]}),
        "text/csv": f"note\n{note}\n",
        "text/csv; charset=UTF8": f" note ,x,x\n{note},{note},\n",
    }
    found = [
        decode_body(kind, body.encode(), facts, BodyLimits(LIMIT, 100)).inputs
        for kind, body in sent.items()
    ]
    assert found[0].any()
    assert (found[1] == found[0]).all()
    assert (found[2] == found[0]).all()
    marked = b"\xef\xbb\xbf" + sent[JSON].encode()
    assert (decode_body(JSON, marked, facts, BodyLimits(LIMIT, 100)).inputs == found[0]).all()


@pytest.mark.parametrize("kind", ["text/csv", JSON])
@pytest.mark.parametrize("charset", ["utf-16", '"latin-1"', "windows-1252", "x"])
def test_a_charset_that_is_not_read_is_refused(kind: str, charset: str) -> None:
    with refuses(UnsupportedMediaType, charset.strip('"'), "UTF-8"):
        decode_rows(f"{kind}; charset={charset}", f"{CSV_HEADER}\n41,yes,1\n")


@pytest.mark.parametrize(
    ("body", "held"),
    [
        (f'{{"rows": [{ROW},]}}'.replace("yes", "NaN"), ("comma", 54)),
        (f'{{"rows": [{ROW[:-1]},}}], "Infinity": 1}}', ("comma", 53)),
        (f"[{ROW}]", ("object", '{"rows":')),
        (ROW, ("age", '{"rows":')),
        (f'{{"rows": [{ROW}]}}'.encode("utf-16"), ("UTF-16", "UTF-8")),
        (f'{{"rows": [{ROW}]}}'.encode("utf-16-be"), ("byte",)),
        ("{'rows': NaN}", ("keys", 1)),
        ('{"rows": [', ("truncated",)),
    ],
    ids=range(8),
)
def test_json_is_refused_for_what_is_wrong_with_it(
    body: str | bytes, held: tuple[object, ...]
) -> None:
    with pytest.raises(RequestValidationError) as refused:
        decode_rows(JSON, body)
    (problem,) = refused.value.errors()
    holds(problem["msg"], *held)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "Infinity", "nan", "-inf"])
def test_a_number_that_json_does_not_have_is_named_by_its_place(value: str) -> None:
    with refuses(InvalidQuery, "finite", 18, "null"):
        decode_rows(JSON, f'{{"rows": [{{"age": {value}}}], "note": 1}}')


def test_rows_of_which_much_is_clipped_are_refused_unless_that_is_accepted() -> None:
    for kind, body in (
        (JSON, '{"rows": [{"age": 410, "café": "yes", "smokes": true}]}'),
        ("text/csv", f"{CSV_HEADER}\n410,yes,1\n"),
    ):
        with refuses(InvalidQuery, "age", "accept_clipped=true"):
            decode_rows(kind, body, accept_clipped=False)
        decoded = decode_rows(kind, body)
        assert decoded.inputs[0, 0] == 1
        holds(decoded.notes, "age", "clipped")


def test_a_text_that_would_take_minutes_to_normalize_is_not() -> None:
    """Python's `unicodedata` sorts marks in a time that grows with the square of their number."""
    marks = "a" + "\u0315\u0300" * 200_000
    for row in ({"age": marks}, {marks: 1}):
        given = {"café": "yes", "smokes": True, "age": 41} | row
        with refuses(InvalidQuery, 400_001):
            decode_rows(JSON, json.dumps({"rows": [given]}, ensure_ascii=False))
        text = io.StringIO()
        writer = csv.DictWriter(text, given)
        writer.writeheader()
        writer.writerow(given)
        with pytest.raises(InvalidQuery):
            decode_rows("text/csv", text.getvalue())


BOMBS: dict[str, tuple[EnsembleFacts, str, str, str, str]] = {
    "lists": (PAIRS, JSON, '{"inputs":[', "[],", "0]}"),
    "deep lists": (PAIRS, JSON, '{"inputs":', "[", ""),
    "an unknown list": (PAIRS, JSON, '{"x":[', "[],", "0]}"),
    "objects as inputs": (PAIRS, JSON, '{"inputs":[', "{},", "0]}"),
    "texts as inputs": (PAIRS, JSON, '{"inputs":[', '"",', "0]}"),
    "unknown names": (PAIRS, JSON, "{", '"%d": 0,', '"x": 0}'),
    "numbers": (PAIRS, JSON, '{"inputs":[[0', ",0", "]]}"),
    "pairs": (PAIRS, JSON, '{"inputs":[', "[0,0],", "0]}"),
    "objects": (TABLE, JSON, '{"rows": [', "{},", "{}]}"),
    "rows": (TABLE, JSON, '{"rows": [', f"{ROW},", f"{ROW}]}}"),
    "names": (TABLE, JSON, f'{{"rows": [{ROW[:-1]}', ', "%d": 0', "}]}"),
    "texts": (TABLE, JSON, f'{{"rows": [{ROW[:-1]}, "x": "', "\\n", '"}]}'),
    "deep": (TABLE, JSON, '{"rows": ', "[", ""),
    "fields": (TABLE, "text/csv", CSV_HEADER, ",", "\n"),
    "lines": (TABLE, "text/csv", f"{CSV_HEADER}\n", "1,,\n", ""),
    "blank lines": (TABLE, "text/csv", f"{CSV_HEADER}\n", "\n", ""),
    "quotes": (TABLE, "text/csv", f'{CSV_HEADER}\n"', '""', '",,\n'),
}
"""Bodies that would make as many objects as they can: how they begin, go on and end."""


@pytest.mark.parametrize("name", BOMBS)
def test_no_text_takes_much_memory(name: str) -> None:
    """It has at most a megabyte, of which each row of two bytes becomes some 60."""
    expected, kind, start, item, end = BOMBS[name]
    room = MAX_TEXT_BYTES - len(start.encode()) - len(end.encode())
    count = room // (len(item) + 5 * ("%" in item))
    items = [item % i for i in range(count)] if "%" in item else [item] * count
    body = (start + "".join(items) + end).encode()[:MAX_TEXT_BYTES]

    def decode_or_refuse() -> None:
        with suppress(ServiceError, RequestValidationError):
            decode_body(kind, body, expected, BodyLimits(LIMIT, batch=4096), True)

    assert most_memory(decode_or_refuse) < (32 if expected is PAIRS else 64) << 20


def test_rows_that_become_too_many_numbers_are_refused_before_they_do() -> None:
    """A row of one category becomes a number for each that there is."""
    values = tuple(map(str, range(10_000)))
    column = Column(name="a", role="categorical", values=values)
    wide = expecting(10_001).model_copy(
        update={"encoding": TableSchema(columns=(column, *SCHEMA.columns[3:]))}
    )
    body = b"a\n" + b"1\n" * 1000

    def refuse() -> None:
        with refuses(PayloadTooLarge, LIMIT):
            decode_body("text/csv", body, wide, BodyLimits(LIMIT, 4096))

    assert most_memory(refuse) < 4 << 20


def test_more_rows_by_name_than_allowed_are_refused() -> None:
    for kind, body in (
        (JSON, json.dumps({"rows": [{}] * 5})),
        ("text/csv", CSV_HEADER + "\n1,,\n" * 5),
    ):
        with refuses(PayloadTooLarge, 5, 4):
            decode_rows(kind, body, batch=4)
        with refuses(PayloadTooLarge, MAX_TEXT_BYTES):
            decode_rows(kind, body.ljust(MAX_TEXT_BYTES + 1))


@pytest.mark.parametrize(
    ("content_type", "body", "error"),
    [
        (JSON, b'{"rows": [[41]]}', InvalidQuery),
        (JSON, b'{"inputs": [["41", 2]]}', InvalidQuery),
        ("text/plain", b"age,dose\n41,2\n", UnsupportedMediaType),
    ],
)
def test_who_sends_rows_of_a_table_is_told_how(
    content_type: str, body: bytes, error: type[ServiceError]
) -> None:
    limits = BodyLimits(LIMIT, 100)
    with pytest.raises(error) as told:
        decode_body(content_type, body, TABLE, limits)
    assert '"rows"' in str(told.value) or "object" in str(told.value)
    with pytest.raises(error) as other:
        decode_body(content_type, body, PAIRS, limits)
    assert "text/csv" not in str(other.value)


def test_a_project_of_arrays_takes_no_rows_by_name() -> None:
    with refuses(UnsupportedMediaType, "text/csv", NPY):
        decode("text/csv", b"age\n41\n", LIMIT)
    with refuses(InvalidQuery, "[B, 2]"):
        decode(JSON, b'{"rows": [{"age": 41}]}', LIMIT)


CELLS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
COLUMNS = st.sampled_from(["age", "café", "smokes", "ill", "note"])


@given(
    st.lists(st.dictionaries(COLUMNS | st.text(max_size=5), CELLS | st.lists(CELLS)), max_size=4)
)
def test_any_rows_of_json_are_decoded_or_refused(rows: list[dict[str, Any]]) -> None:
    answered_or_refused(JSON, json.dumps({"rows": rows}).encode())


@given(
    st.lists(COLUMNS, max_size=5, unique=True),
    st.lists(st.lists(CELLS.map(str), max_size=5), max_size=4),
    st.sampled_from(["excel", "excel-tab", "unix"]),
)
def test_any_csv_is_decoded_or_refused(
    header: list[str], rows: list[list[str]], dialect: str
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, dialect).writerows([header, *rows])
    answered_or_refused("text/csv", text.getvalue().encode(errors="surrogatepass"))


@given(st.data())
def test_any_flipped_byte_of_rows_is_decoded_or_refused(data: st.DataObject) -> None:
    table = f"{CSV_HEADER}\n41,yes,1\n7.5,no,\n".encode()
    kind, body = data.draw(
        st.sampled_from([(JSON, json.dumps({"rows": NAMED}).encode()), ("text/csv", table)])
    )
    flipped = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        flipped[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    answered_or_refused(kind, bytes(flipped))


def answered_or_refused(kind: str, body: bytes) -> None:
    """What is decoded is in range; what is refused is so with text that a reply can hold."""
    try:
        decoded = decode_rows(kind, body)
    except ServiceError as error:
        str(error).encode()
    except RequestValidationError as error:
        json.dumps(error.errors()).encode()
    else:
        assert decoded.inputs.shape[1] == WIDTH
        assert ((decoded.inputs >= 0) & (decoded.inputs <= 1)).all()
