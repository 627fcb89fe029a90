"""Bodies of `POST /label`, valid ones and every kind of invalid one, as hypothesis strategies."""

from __future__ import annotations

import http.client
import io
import json
import pickle
import struct
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from support.clients import (
    BODIES,
    SHARES,
    answered,
    examples,
    npy,
    npz,
    tell,
    tireless_server,
)
from support.data import DigitsEnsemble
from support.processes import PATIENCE_SECONDS
from support.servers import RunningServer

NPY, NPZ, JSON = "application/x-npy", "application/x-npz", "application/json"
Sent = tuple[str, bytes]
"""A content type and a body."""


def images(most: int) -> st.SearchStrategy[np.ndarray]:
    """Up to three images from at most `series` series, in every number type and layout."""
    return st.builds(
        lambda seed, count, dtype, order: np.asarray(
            np.random.default_rng(seed).integers(0, 17, (count, 8, 8)), dtype, order
        ),
        st.integers(1, most),
        st.integers(1, 3),
        st.sampled_from(["<u1", ">u2", "<i4", ">i8", "<f2", ">f4", "<f8"]),
        st.sampled_from(["C", "F"]),
    )


def valid(most: int) -> st.SearchStrategy[Sent]:
    return st.one_of(
        images(most).map(lambda x: (NPY, npy(x))),
        images(most).map(lambda x: (NPZ, npz(inputs=x))),
        images(most).map(lambda x: (JSON, json.dumps({"inputs": x.tolist()}).encode())),
    )


FEW, MANY = 10, 10**6
"""With few series, most queries were paid before, and replays are quicker."""

# ------------------------------------------------------------------------- what is damaged

FLIP = st.tuples(st.just("flip"), st.integers(0, 1 << 16), st.integers(1, 255))
CUT = st.tuples(st.just("cut"), st.integers(0, 1 << 16), st.integers(1, 64))
ADD = st.tuples(st.just("add"), st.integers(0, 1 << 16), st.integers(0, 255))
DOUBLE = st.tuples(st.just("double"), st.integers(0, 1 << 16), st.integers(1, 200))
END = st.tuples(st.just("end"), st.integers(0, 1 << 16), st.just(0))


def damaged(body: bytes, fault: str, where: int, what: int) -> bytes:
    """Flip, remove, add or repeat bytes, or truncate; mostly near the start."""
    at = where % (len(body) + 1) if where % 3 else where % 128
    match fault:
        case "flip" if at < len(body):
            return body[:at] + bytes([body[at] ^ what]) + body[at + 1 :]
        case "cut":
            return body[:at] + body[at + what :]
        case "add":
            return body[:at] + bytes([what]) + body[at:]
        case "double":
            return body[: at + what] + body[at:]
        case _:
            return body[:at]


FAULTS = st.lists(st.one_of(FLIP, CUT, ADD, DOUBLE, END), min_size=3, max_size=3)

# ----------------------------------------------------------------------- headers that lie

SIDE = st.one_of(
    st.sampled_from([8, 1, 0, 2, -1, 2**31, 2**32, 2**63 - 1, 2**64, 10**30]),
    st.sampled_from([True, 8.0, "8", None, "8L", b"8", (8,)]),
)
SHAPE = st.one_of(
    st.just((1, 8, 8)),
    st.tuples(SIDE, st.just(8), st.just(8)),
    st.lists(SIDE, max_size=10).map(tuple),
)
DESCR = st.one_of(
    st.sampled_from(["|u1", "<u1", ">u1", "=u1", "<f8", ">f8", "<f4", ">i2", "<u8"]),
    st.sampled_from(["|O", "O", "<U1", "|S64", "<c16", "<M8[s]", "<m8[ns]", "|b1", "|V8", "<f16"]),
    st.sampled_from(
        [[("a", "<f8")], ("<f8", (2,)), [], {}, 1, "", "float64", "f8,f8", "__import__"]
    ),
)
TEXT = st.builds(
    lambda descr, fortran, shape, more: repr(
        {"descr": descr, "fortran_order": fortran, "shape": shape} | more
    ),
    DESCR,
    st.sampled_from([False, True, 0, 1, None, "False"]),
    SHAPE,
    st.sampled_from([{}, {}, {}, {"votes": 1}, {1: 2}]),
)
HEADER = st.one_of(
    TEXT,
    TEXT.map(lambda text: text.replace("'shape'", "'descr'")),
    st.sampled_from(
        [
            "{'descr': open('/etc/passwd'), 'fortran_order': False, 'shape': (1, 8, 8)}",
            "{'descr': '|u1', 'fortran_order': False, 'shape': (9**9**9, 8, 8)}",
            "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 8, 8)} or 1",
            "{**{'descr': '|u1'}, 'fortran_order': False, 'shape': (1, 8, 8)}",
            "[" * 300 + "]" * 300,
            "-" * 900 + "1",
            "0x" + "f" * 900,
            "1" * 1000,
        ]
    ),
    st.text(max_size=60),
)


def array_file(text: str, version: tuple[int, int], lie: int, data: bytes) -> bytes:
    """A .npy file with any header, whose declared length is wrong by `lie`."""
    head = text.encode("utf-8", "surrogatepass")
    wide = version != (1, 0)
    length = max(0, min(len(head) + lie, 2**32 - 1 if wide else 2**16 - 1))
    return b"\x93NUMPY" + bytes(version) + struct.pack("<I" if wide else "<H", length) + head + data


class Trap:
    """Would kill the server if it were unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import os; os._exit(99)",)


DATA = st.one_of(
    st.sampled_from([bytes(64), bytes(512), bytes(1024), b"", pickle.dumps(Trap())]),
    st.binary(max_size=200),
)
ARRAY_FILE = st.builds(
    array_file,
    HEADER,
    st.sampled_from([(1, 0), (1, 0), (2, 0), (3, 0), (0, 0), (255, 255)]),
    st.sampled_from([0, 0, 0, 0, 1, -1, 7, 2**16, 2**31]),
    DATA,
)

# --------------------------------------------------------------- numbers that are no inputs

NUMBERS = arrays.arrays(
    st.sampled_from(["<f8", ">f4", "<f2"]),
    st.tuples(st.integers(1, 2), st.just(8), st.just(8)),
    elements=st.sampled_from([0.0, 1.0, 16.0]),
    fill=st.sampled_from([float("nan"), float("inf"), -0.0, -1.0, 5e-324, 0.5, 16.01, 6e4]),
)
OTHER_SHAPES = arrays.arrays(
    st.sampled_from(["u1", "<i8", "<f4"]),
    arrays.array_shapes(min_dims=0, max_dims=9, min_side=0, max_side=3),
    elements=st.integers(0, 16),
)
OBJECTS = st.sampled_from([npy(np.array([Trap()], dtype=object), allow_pickle=True)])

# -------------------------------------------------------------------------------- archives

NAME = st.sampled_from(
    ["inputs.npy"] * 6
    + ["probabilities.npy"] * 3
    + [
        "inputs",
        "../inputs.npy",
        "/etc/passwd",
        "inputs.npy/",
        "INPUTS.NPY",
        "vötes.npy",
        "a" * 900,
    ]
    + ["inputs.npy\\", "./inputs.npy", "probabilities.npy.npy"]
)
BOMB = npy(np.zeros((1 << 14, 8, 8), np.uint8)) + bytes(1000)
MEMBER = st.one_of(
    images(FEW).map(npy),
    ARRAY_FILE,
    NUMBERS.map(npy),
    OBJECTS,
    images(FEW).map(lambda x: npz(inputs=x)),
    st.sampled_from([b"", npz(inputs=np.zeros((1 << 20,), np.uint8))]),
)
METHOD = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])


def archive(members: list[tuple[str, bytes, int]], comment: bytes) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as made:
        warnings.simplefilter("ignore")  # the duplicate name is intended
        for name, data, method in members:
            made.writestr(name, data, method, compresslevel=1)
        made.comment = comment
    return buffer.getvalue()


ARCHIVE = st.builds(
    archive,
    st.lists(
        st.tuples(NAME, MEMBER, METHOD)
        | st.tuples(NAME, st.just(BOMB), st.just(zipfile.ZIP_DEFLATED)),
        max_size=3,
    ),
    st.sampled_from([b"", b"", b"", b"PK\x05\x06" + bytes(18), b"x" * 100]),
)
FIELDS = st.lists(
    st.tuples(
        st.sampled_from([b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"]),
        st.integers(4, 44),
        st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0", b"\0\0\0\x80", b"\x63\0"]),
    ),
    min_size=1,
    max_size=3,
)


def forge(body: bytes, fields: list[tuple[bytes, int, bytes]]) -> bytes:
    """Write numbers into a record of an archive: sizes, offsets, counts, methods, flags."""
    for signature, offset, number in fields:
        at = body.find(signature)
        if at >= 0 and at + offset + len(number) <= len(body):
            body = body[: at + offset] + number + body[at + offset + len(number) :]
    return body


FORGED = st.builds(forge, ARCHIVE, FIELDS)

# ------------------------------------------------------------------------------------ JSON

ROW = json.dumps([[0] * 8] * 8)
ODD_NUMBER = st.sampled_from(
    ["NaN", "Infinity", "1e999", "-0", "0.1e-400", "01", "+1", "0x1", "1.", ".5", "1_0"]
) | st.sampled_from(["true", "null", '"1"', "{}", "[]", "1" * 400, "1" * 5000])
ODD_TEXT = st.sampled_from(
    ['"\\ud800"', '"\\u0000"', '"\\udc00\\ud800"', '"inputs\\u0000"', '"ınputs"', '"\\u0069nputs"']
)
JSON_BODY = st.one_of(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        lambda more: (
            st.lists(more, max_size=4)
            | st.dictionaries(st.sampled_from(["inputs", "probabilities", "x"]), more, max_size=3)
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")),
    ODD_NUMBER.map(lambda n: f'{{"inputs": [{ROW.replace("0", n, 1)}]}}'.encode()),
    ODD_NUMBER.map(lambda n: f'{{"inputs": [{ROW}], "probabilities": [[{n}]]}}'.encode()),
    ODD_TEXT.map(lambda t: f"{{{t}: [{ROW}]}}".encode()),
    ODD_TEXT.map(lambda t: f'{{"inputs": [{ROW}], {t}: 1}}'.encode()),
    st.integers(1, 6000).map(lambda d: b'{"inputs": ' + b"[" * d + b"]" * d + b"}"),
    st.integers(1, 6000).map(lambda d: b'{"inputs":' * d),
    st.sampled_from([b"[1]", b"null", b"[[[[0]]]]"]).map(
        lambda v: b'{"inputs": ' + v + b', "inputs": [' + ROW.encode() + b"]}"
    ),
    st.sampled_from(["utf-16", "utf-32", "utf-8-sig"]).map(
        lambda code: f'{{"inputs": [{ROW}]}}'.encode(code)
    ),
)

KIND = st.one_of(
    st.sampled_from([NPY, NPZ, JSON]),
    st.sampled_from([f"{NPY}; charset=utf-8", "APPLICATION/X-NPZ", f"{JSON};;", "text/plain", ""]),
)

INVALID_OR_NOT: st.SearchStrategy[Sent] = st.one_of(
    valid(FEW),
    st.tuples(st.just(NPY), ARRAY_FILE),
    st.tuples(st.just(NPY), st.one_of(NUMBERS.map(npy), OTHER_SHAPES.map(npy), OBJECTS)),
    st.tuples(st.just(NPZ), st.one_of(ARCHIVE, FORGED)),
    st.tuples(st.just(JSON), JSON_BODY),
    st.tuples(KIND, st.one_of(st.binary(max_size=300), ARRAY_FILE, ARCHIVE, JSON_BODY)),
)


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("fuzzed")
    url = f"sqlite:///{directory / 'terrine.sqlite'}"
    with tireless_server(directory / "data", url, digits_ensemble) as server:
        yield server


class Student:
    """Sends any bytes, and checks every response against the ledger."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.address = urlsplit(server.url).netloc
        self.token = server.token()
        self.connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_SECONDS)
        self.paid = server.ledger.projects.get("study").charges

    def send(self, kind: str, body: bytes, **headers: str) -> int:
        """Send one request and check its response. Returns the status."""
        given = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        self.connection.request("POST", "/label", body, given | headers)
        reply = self.connection.getresponse()
        return self.check(reply.status, reply.headers["Content-Type"], reply.read())

    def check(self, status: int, kind: str, body: bytes) -> int:
        document = json.loads(body)
        if status == 200:
            results = document["results"]
            self.paid += len({r["charge"] for r in results if r["charge"] and not r["replayed"]})
            assert document["budget"]["charges"] == self.paid
        else:
            assert 400 <= status < 500, document
            assert kind == "application/problem+json"
            assert document["status"] == status
            assert document["type"].startswith("/problems/")
        return status

    def settle(self) -> None:
        """Check that the ledger has the charges of the valid responses, and no more."""
        assert self.server.ledger.projects.get("study").charges == self.paid
        assert self.server.ledger.verifier.verify_project("study").ok


@SHARES
def test_no_body_costs_more_than_its_response_says(server: RunningServer, share: int) -> None:
    student, before = Student(server), answered(server)

    @examples(BODIES * 39 // 160 // share)
    @given(INVALID_OR_NOT, FAULTS)
    @example((NPZ, archive([("inputs.npy", BOMB, zipfile.ZIP_DEFLATED)], b"")), [])
    @example(("text/plain", b""), [])
    def any_bytes(sent: Sent, faults: list[tuple[str, int, int]]) -> None:
        kind, body = sent
        student.send(kind, body)
        for fault in faults:
            body = damaged(body, *fault)
            student.send(kind, body)

    @examples(BODIES // 40 // share)
    @given(valid(MANY))
    def valid_bytes(sent: Sent) -> None:
        assert student.send(*sent) == 200

    any_bytes()
    student.settle()
    refused = answered(server) - before
    assert {200, 413, 415, 422} <= set(refused)
    valid_bytes()
    student.settle()
    counts = answered(server) - before
    tell(counts)
    assert counts.total() >= BODIES // share
