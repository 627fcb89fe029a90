"""A witness cosigns one history: whatever it is sent, whoever sends it, whenever it is killed."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest

from support.processes import PATIENCE_SECONDS, Terrine
from support.servers import LOG, History, signed, witness_key, witnessing
from support.wording import holds, refuses
from terrine_addons.witness.service import Witness, WitnessError
from terrine_protocol.transparency import Checkpoint, KeyKind, Note, Signature, SignerKey

ONE, OTHER = History("one", 40, shared=10), History("other", 40, shared=10)
KEY = witness_key("w")
ANOTHER = SignerKey(LOG.name, KeyKind.ED25519, b"x" * 32)
PROVEN = ONE.body(5, 8).partition(b"\n\n")[0] + b"\n\n"
"""A request up to its checkpoint, proven for eight leaves."""


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    made = Witness(KEY, [LOG.verifier], tmp_path / "state")
    yield made
    made.close()


def cosigned(witness: Witness, history: History, old: int, size: int) -> int:
    """Have a checkpoint cosigned, and return when it was."""
    answer = witness.add(history.body(old, size))
    assert answer.status is HTTPStatus.OK, answer
    note = Note.parse(history.note(size) + answer.text)
    when = note.signers([KEY.verifier])[KEY.verifier]
    assert when is not None
    return when


def test_checkpoints_that_continue_are_cosigned(witness: Witness) -> None:
    for old, size in [(0, 3), (3, 3), (3, 8), (8, 9), (9, 40), (40, 40)]:
        began = int(time.time())
        assert began <= cosigned(witness, ONE, old, size) <= time.time()
        assert witness.last(LOG.verifier) == Checkpoint(LOG.name, size, ONE.root(size))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"old 0\n", 400),
        (b"old\n\n" + ONE.note(5).encode(), 400),
        (b"old -1\n\n" + ONE.note(5).encode(), 400),
        (b"old 00\n\n" + ONE.note(5).encode(), 400),
        (b"old 5\nAAAA\n\n" + ONE.note(5).encode(), 400),
        (b"old 5\n" + b"A" * 44 + b"\n\n" + ONE.note(5).encode(), 400),
        (b"old 12\n" + f"{'A' * 43}=\n".encode() * 64 + b"\n" + ONE.note(20).encode(), 400),
        (b"old 5\n\nno checkpoint\n", 400),
        (b"old 5\n\nlog.example/1\n5\nshort\n\n" + ONE.note(5).partition("\n\n")[2].encode(), 400),
        (b"old 5\r\n\n" + ONE.note(5).encode(), 400),
        (b"\xff" + ONE.body(5, 8), 400),
        (ONE.body(5, 8) + b"x" * 70_000, 400),
        # Not the log that it knows, or not that log's key.
        (ONE.body(5, 8).replace(b"log.example/1", b"log.example/2"), 404),
        (b"old 5\n\n" + signed(5, ONE.root(5), ANOTHER).encode(), 403),
        (b"old 5\n\n" + ONE.note(5).replace("\n5\n", "\n6\n").encode(), 403),
        # Back in time, out of turn, or another history.
        (b"old 9\n\n" + ONE.note(8).encode(), 400),
        (ONE.body(0, 8), 409),
        (ONE.body(4, 8), 409),
        (ONE.body(8, 9), 409),
        (b"old 5\n\n" + signed(5, b"y" * 32).encode(), 409),
        (b"old 5\n\n" + ONE.note(8).encode(), 422),
        (ONE.body(5, 8).replace(b"old 5\n", b"old 5\n" + b"A" * 43 + b"=\n"), 422),
        (PROVEN + OTHER.note(12).encode(), 422),
    ],
)
def test_everything_else_is_refused_and_changes_nothing(
    body: bytes, status: int, witness: Witness
) -> None:
    cosigned(witness, ONE, 0, 5)
    answer = witness.add(body)
    assert answer.status == status
    assert KEY.name not in answer.text
    if status == 409 and "\n" in answer.text and answer.text[0].isdigit():
        assert (answer.text, answer.kind) == ("5\n", "text/x.tlog.size")
    assert witness.last(LOG.verifier) == Checkpoint(LOG.name, 5, ONE.root(5))


def test_of_two_histories_one_is_cosigned(witness: Witness) -> None:
    cosigned(witness, ONE, 0, 8)  # both begin so
    cosigned(witness, ONE, 8, 20)
    for old in range(21):
        for size in range(max(old, 11), 41):
            answer = witness.add(OTHER.body(old, size))
            assert answer.status != HTTPStatus.OK
    for size in range(20):  # rolled back
        assert witness.add(ONE.body(min(size, 20), size)).status != HTTPStatus.OK
    cosigned(witness, ONE, 20, 21)


def test_only_the_logs_signature_is_kept(witness: Witness) -> None:
    more = SignerKey("stranger", KeyKind.ED25519, b"s" * 32).sign("anything")
    body = ONE.body(0, 8) + (str(more) * 50).encode()
    assert witness.add(body).status is HTTPStatus.OK
    assert witness.path(LOG.name).read_text() == ONE.note(8)


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    for old, size in [(0, 4), (4, 9), (9, 9)]:
        witness = Witness(KEY, [LOG.verifier], tmp_path)
        cosigned(witness, ONE, old, size)
        witness.close()


def test_two_witnesses_do_not_share_a_state(witness: Witness, tmp_path: Path) -> None:
    with refuses(WitnessError, "witness"):
        Witness(KEY, [LOG.verifier], tmp_path / "state")


@pytest.mark.parametrize("text", ["", "half a checkp", signed(8, b"z" * 32).replace("8", "9")])
def test_a_damaged_state_is_never_taken_for_none(text: str, tmp_path: Path) -> None:
    witness = Witness(KEY, [LOG.verifier], tmp_path)
    cosigned(witness, ONE, 0, 8)
    path = witness.path(LOG.name)
    witness.close()
    path.write_text(text)
    with refuses(WitnessError, "restore"):
        Witness(KEY, [LOG.verifier], tmp_path)


def test_nothing_is_cosigned_that_cannot_be_kept(tmp_path: Path) -> None:
    with witnessing(tmp_path / "state") as running:
        cosigned(running.witness, ONE, 0, 8)
        shutil.move(tmp_path / "state", tmp_path / "gone")
        answer = httpx.post(f"{running.url}/add-checkpoint", content=ONE.body(0, 9))
        assert answer.status_code == 500
        assert KEY.name not in answer.text
        shutil.move(tmp_path / "gone", tmp_path / "state")
        answer = httpx.post(f"{running.url}/add-checkpoint", content=ONE.body(8, 9))
        assert answer.status_code == 200


def test_its_last_checkpoint_can_be_read(tmp_path: Path) -> None:
    with witnessing(tmp_path) as running:
        where = f"{running.url}/checkpoint/{hashlib.sha256(LOG.name.encode()).hexdigest()}"
        assert httpx.get(where).status_code == 404
        cosigned(running.witness, ONE, 0, 8)
        note = Note.parse(httpx.get(where).text)
        assert note.signers([KEY.verifier, LOG.verifier]).keys() == {KEY.verifier, LOG.verifier}
        assert Checkpoint.parse(note.text).size == 8


def test_strangers_learn_and_change_nothing(tmp_path: Path) -> None:
    with witnessing(tmp_path) as running, httpx.Client(base_url=running.url) as http:
        assert http.post("/elsewhere", content=ONE.body(0, 8)).status_code == 404
        assert http.get("/../../etc/passwd").status_code == 404
        assert http.put("/add-checkpoint", content=b"").status_code == 405
        assert http.post("/add-checkpoint", content=b"x" * 70_000).status_code == 413
        chunks = iter([b"old 0\n"])
        assert http.post("/add-checkpoint", content=chunks).status_code == 400
        for garbage in (b"\0" * 3000, b"GET\r\n\r\n", b"POST /add-checkpoint HTTP/1.1\r\n\r\n"):
            address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
            with socket.create_connection(address, timeout=PATIENCE_SECONDS) as raw:
                raw.sendall(garbage)
                raw.shutdown(socket.SHUT_WR)
                assert KEY.name.encode() not in raw.recv(10_000)
        assert running.witness.last(LOG.verifier) is None


def test_slow_connections_stop_no_witness(tmp_path: Path) -> None:
    with witnessing(tmp_path) as running, ExitStack() as stack:
        port = int(running.url.rpartition(":")[2])
        head = b"POST /add-checkpoint HTTP/1.1\r\nHost: w\r\nContent-Length: 100\r\n"
        for number in range(600):
            slow = socket.socket()
            stack.enter_context(slow)
            slow.bind(("127.0.0.2" if number < 500 else f"127.0.0.{number % 7 + 1}", 0))
            slow.connect(("127.0.0.1", port))
            slow.sendall(head if number % 2 else head + b"\r\nold 0\n")
        answer = httpx.post(
            f"{running.url}/add-checkpoint", content=ONE.body(0, 8), timeout=PATIENCE_SECONDS
        )
        assert answer.status_code == 200


def test_threads_that_submit_two_histories_get_one_cosigned(tmp_path: Path) -> None:
    got: list[tuple[int, bytes]] = []

    def submit(history: History, seed: int) -> None:
        draw = random.Random(seed)
        with httpx.Client(base_url=running.url, timeout=PATIENCE_SECONDS) as http:
            for _ in range(60):
                last = running.witness.last(LOG.verifier)
                old = 0 if last is None else last.size
                size = draw.randint(old, 40)
                answer = http.post("/add-checkpoint", content=history.body(old, size))
                if answer.status_code == 200:
                    got.append((size, history.root(size)))

    with witnessing(tmp_path) as running:
        threads = [
            threading.Thread(target=submit, args=(history, seed))
            for seed, history in enumerate([ONE, OTHER, ONE, OTHER])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    check_one_history(got)
    assert got


def check_one_history(cosigned: list[tuple[int, bytes]]) -> None:
    """Check that all checkpoints that were cosigned are of one of the two histories."""
    assert any(all(h.root(size) == root for size, root in cosigned) for h in (ONE, OTHER))


@contextmanager
def command(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `terrine witness` as its operator would."""
    terrine = [sys.executable, "-m", "terrine_server", "witness", "w.example/1"]
    serve = [*terrine, "--log", str(LOG.verifier), "--dir", str(directory), "--port", "0"]
    process = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        said = ""
        while (found := re.search(r"http://\S+", said)) is None:
            line = process.stdout.readline()
            assert line, said
            said += line
        assert re.search(r"witness NAME w\.example/1\+", said)
        yield process, found[0]
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_witness_that_is_killed_again_and_again_cosigns_one_history(tmp_path: Path) -> None:
    draw = random.Random(7)
    got: list[tuple[int, bytes]] = []
    for round in range(3):
        with (
            command(tmp_path / "w") as (process, url),
            httpx.Client(timeout=PATIENCE_SECONDS) as http,
        ):
            key = SignerKey.parse((tmp_path / "w" / "witness.key").read_text()).verifier
            enough = len(got) + 5

            def kill(pid: int = process.pid, enough: int = enough) -> None:
                while len(got) < enough:
                    time.sleep(0.001)
                time.sleep(0.02 * draw.random())
                os.kill(pid, signal.SIGKILL)

            killer = threading.Thread(target=kill)
            killer.start()
            try:
                while True:
                    history = draw.choice([ONE, OTHER])
                    old = 0
                    answer = http.post(f"{url}/add-checkpoint", content=history.body(0, 1))
                    if answer.headers.get("content-type") == "text/x.tlog.size":
                        old = int(answer.text)
                    size = min(40, old + draw.randint(0, 2)) if round < 2 else 40
                    content = history.body(old, size)
                    answer = http.post(f"{url}/add-checkpoint", content=content)
                    if answer.status_code == 200:
                        signature = Signature.parse(answer.text.removesuffix("\n"))
                        key.verify(Note.parse(history.note(size)).text, signature.signed)
                        got.append((size, history.root(size)))
            except httpx.TransportError:
                pass  # it was killed
            killer.join()
    check_one_history(got)
    assert len(got) >= 15
    kept = {path.name for path in (tmp_path / "w" / "state").iterdir()}
    half_written = {name for name in kept if name.endswith(".tmp")}  # by whoever was killed
    assert len(half_written) <= 3
    assert {Path(name).suffix for name in kept - half_written} <= {"", ".checkpoint"}


@pytest.mark.slow
def test_a_witness_stops_when_it_is_told_to(tmp_path: Path) -> None:
    with command(tmp_path / "w") as (process, url):
        assert httpx.get(f"{url}/").status_code == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_SECONDS) in (0, -signal.SIGTERM)
    assert (tmp_path / "w" / "witness.key").stat().st_mode & 0o777 == 0o600


def test_a_key_is_of_one_witness(tmp_path: Path, terrine: Terrine) -> None:
    key = SignerKey("w.example/1", KeyKind.COSIGNATURE, b"k" * 32)
    (tmp_path / "witness.key").write_text(key.secret)
    serve = ("--log", LOG.verifier, "--dir", tmp_path, "--port", 0)
    holds(terrine("witness", "w.example/2", *serve).refused, "w.example/1,", "w.example/2:")
    assert terrine("witness", "no name", *serve).refused
    assert (tmp_path / "witness.key").read_text() == key.secret


def test_a_witness_loads_neither_database_nor_learning() -> None:
    code = (
        "import sys, terrine_server.cli\n"
        "import terrine_addons.witness.service, terrine_addons.witness.commands\n"
        "heavy = {'sqlalchemy', 'torch', 'numpy', 'fastapi', 'alembic', 'scipy', 'httpx'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
