"""Teachers that stay with their owners: their votes count; whatever else they do does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copytree
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest

from addons.federation.owners import FAILING, WITHOUT_A_CLASS, ManyOwners, choices, many_owners
from support.data import DigitsEnsemble
from support.databases import SECRET_KEY, migrated
from support.processes import PATIENCE_SECONDS, until
from support.wording import refuses
from terrine_addons.federation import inference
from terrine_addons.federation.connections import ask, make_client
from terrine_addons.federation.federations import (
    Federation,
    Owner,
    federation_digest,
    load_federation,
    save_federation,
)
from terrine_addons.federation.voters import (
    RemoteVoters,
    requests_for,
    substitute_vote,
)
from terrine_client import Client
from terrine_models.storage.manifests import StoreError
from terrine_models.teachers.ensemble import Ensemble
from terrine_protocol import EnsembleRegister, ProjectOpen, Role, TokenCreate
from terrine_server.app import serving
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.voters import get_full_tallies
from terrine_server.ledger import EnsembleRecord, Ledger
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.owner.sign_in import Tokens
from terrine_server.settings import Settings

OWNERS = 20
STALLING = {"timeout_seconds": 8}
"""Where owners stall; of it, a busy machine needs much to answer at all."""


@pytest.fixture(scope="module")
def digits(digits_ensemble: DigitsEnsemble) -> Ensemble:
    return Ensemble.load(digits_ensemble.directory, device="cpu")


@pytest.fixture(scope="module")
def served(digits: Ensemble) -> Iterator[ManyOwners]:
    spec, classes = digits.manifest.input, len(digits.manifest.classes)
    with many_owners(lambda x: choices(digits, x), spec, classes) as owners:
        yield owners


@pytest.fixture
def owners(served: ManyOwners) -> ManyOwners:
    served.behaviour.clear()
    return served


def federation(digits: Ensemble, url: str, count: int = OWNERS, **changed: Any) -> Federation:
    return Federation.model_validate(
        {
            "name": "ward",
            "input": digits.manifest.input.model_dump(),
            "classes": digits.manifest.classes,
            "owners": [
                {"name": f"owner-{i}", "url": url, "model": f"owner-{i}", "binary": i % 2 == 0}
                for i in range(count)
            ],
            "units": 1000,
            "disjoint_by": "each hospital has its own patients",
            "quorum": 15,
            "timeout_seconds": 60,
            "salt": "0" * 64,
            **changed,
        }
    )


def gathered(directory: Path, made: Federation) -> EnsembleRecord:
    """Save a federation and return the facts that voting needs of its record."""
    (directory / "ensembles/ward").mkdir(parents=True, exist_ok=True)
    save_federation(directory / "ensembles/ward", made)
    record = SimpleNamespace(
        name="ward",
        path="ensembles/ward",
        manifest_sha256=federation_digest(directory / "ensembles/ward"),
        facts=SimpleNamespace(teachers=len(made.owners), classes=list(made.classes), kind="remote"),
    )
    return cast(EnsembleRecord, record)


def test_votes_are_those_of_local_teachers_bit_for_bit(
    tmp_path: Path, digits: Ensemble, owners: ManyOwners, digits_ensemble: DigitsEnsemble
) -> None:
    x, count = digits_ensemble.public[:64], digits.manifest.teachers
    record = gathered(tmp_path, federation(digits, owners.url, count))
    owners.behaviour |= {3: "scores", 4: "scores"}
    assert (get_full_tallies(RemoteVoters(tmp_path), record, x) == digits.votes(x)).all()


@pytest.mark.slow
def test_whatever_one_owner_does_moves_one_vote_an_input_at_most(
    tmp_path: Path, digits: Ensemble, owners: ManyOwners, digits_ensemble: DigitsEnsemble
) -> None:
    x, classes = digits_ensemble.public[:16], len(digits.manifest.classes)
    record = gathered(tmp_path, federation(digits, owners.url, **STALLING))
    voters = RemoteVoters(tmp_path)
    voters.check(record)
    before = get_full_tallies(voters, record, x)
    expected = before.copy()
    rows = np.arange(len(x))
    expected[rows, choices(digits, x)[:, 7]] -= 1
    expected[rows, substitute_vote("owner-7", x, classes)] += 1
    for behaviour in (*FAILING, *WITHOUT_A_CLASS):
        owners.behaviour[7] = behaviour
        found = get_full_tallies(voters, record, x)
        assert (found == expected).all(), behaviour
    owners.behaviour[7] = "other votes"
    moved = get_full_tallies(voters, record, x) - before
    assert (np.abs(moved).sum(axis=1) == 2).all()
    assert not moved.sum(axis=1).any()


@pytest.mark.parametrize("behaviour", WITHOUT_A_CLASS)
def test_no_output_of_an_owner_decides_whether_there_is_a_quorum(
    behaviour: str,
    tmp_path: Path,
    digits: Ensemble,
    owners: ManyOwners,
    digits_ensemble: DigitsEnsemble,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All must answer; the model of one is not finite, or says no class, because of its records."""
    x = digits_ensemble.public[:4]
    record = gathered(tmp_path, federation(digits, owners.url, quorum=OWNERS))
    voters = RemoteVoters(tmp_path)
    owners.behaviour[7] = behaviour
    assert (get_full_tallies(voters, record, x).sum(axis=1) == OWNERS).all()
    assert "absent" not in caplog.text


class EndsEveryOtherRequest(BaseHTTPRequestHandler):
    """An owner who votes for class 3, and whose kept connection ends when it is used again."""

    protocol_version = "HTTP/1.1"
    answered = 0

    def do_POST(self) -> None:
        if self.answered:
            self.close_connection = True
            return
        self.answered += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        body = inference.encode_response("owner-0", np.full(4, 3))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_an_owner_is_asked_again_if_their_connection_has_just_ended(
    tmp_path: Path, digits: Ensemble, digits_ensemble: DigitsEnsemble
) -> None:
    x = digits_ensemble.public[:4]
    with ThreadingHTTPServer(("127.0.0.1", 0), EndsEveryOtherRequest) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        record = gathered(tmp_path, federation(digits, url, 2, quorum=2))
        voters = RemoteVoters(tmp_path)
        for _ in range(5):
            assert (get_full_tallies(voters, record, x)[:, 3] == 2).all()
        server.shutdown()


FLOODS = {
    "interim responses": b"HTTP/1.1 100 C\r\n\r\n",
    "tiny chunks": b"1\r\n \r\n",
    "one long body": b" " * 65536,
    "one long header": b"a" * 65536,
}
STARTS = {
    "interim responses": b"",
    "tiny chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "one long body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n",
    "one long header": b"HTTP/1.1 200 OK\r\nX: ",
}


def test_owners_who_flood_or_dribble_make_no_other_owner_absent() -> None:
    """Of 40, four flood for as long as they are read, and one sends a byte now and then."""
    labels, x = np.arange(4), np.zeros((4, 8, 8), np.uint8)
    good = inference.encode_response("owner", labels)
    over = asyncio.Event()

    async def bad(kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(STARTS.get(kind, b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"))
            while not over.is_set():
                part = FLOODS[kind] * (1 + 65536 // len(FLOODS[kind])) if kind in FLOODS else b" "
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0 if kind in FLOODS else 0.01)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def sound(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(good), good):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.05)  # so that it takes several turns to read
        writer.close()

    async def asked_by(url: str) -> bytes | str:
        async with make_client(url, None, None) as http:
            (request,) = requests_for([Owner(name="o", url=url, model="m")], x, 10)
            return await ask(http, request, 120)

    async def all_of_them() -> None:
        kinds = [*FLOODS, "drip", *[""] * 35]
        handlers = [partial(bad, kind) if kind else sound for kind in kinds]
        servers = [await asyncio.start_server(each, "127.0.0.1", 0) for each in handlers]
        urls = [f"http://127.0.0.1:{each.sockets[0].getsockname()[1]}" for each in servers]
        asked = [asyncio.create_task(asked_by(url)) for url in urls]
        drip = asked[len(FLOODS)]
        rest = [each for each in asked if each is not drip]
        found = await asyncio.gather(*rest)
        assert not drip.done(), "nobody waits for who is slow"
        assert found[len(FLOODS) :] == [good] * 35
        for kind, reply in zip(FLOODS, found, strict=False):
            assert isinstance(reply, str), kind
            assert reply.startswith(("more than", "RemoteProtocolError")), (kind, reply)
        over.set()
        assert "RemoteProtocolError" in await drip
        for each in servers:
            each.close()

    asyncio.run(all_of_them())


def test_votes_of_the_absent_favour_no_class() -> None:
    x = np.arange(4000, dtype=np.float32)[:, None]
    cast_for = np.bincount(substitute_vote("st-mary", x, 10), minlength=10)
    assert abs(cast_for - 400).max() < 120  # six standard deviations
    assert (substitute_vote("st-mary", x, 10) != substitute_vote("st-john", x, 10)).mean() > 0.8
    assert (substitute_vote("st-mary", x[:7], 10) == substitute_vote("st-mary", x, 10)[:7]).all()


def test_a_federation_is_only_as_it_was_registered(
    tmp_path: Path, digits: Ensemble, owners: ManyOwners
) -> None:
    record = gathered(tmp_path, federation(digits, owners.url))
    voters = RemoteVoters(tmp_path)
    voters.check(record)
    gathered(tmp_path, federation(digits, owners.url, quorum=1))
    assert not voters.available(record)
    with refuses(EnsembleUnavailable, "registered"):
        voters.check(record)
    (tmp_path / "ensembles/ward/federation.json").unlink()
    with refuses(EnsembleUnavailable, "read"):
        voters.check(record)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"quorum": 21}, "quorum 21 20"),
        ({"classes": ["a", "a"]}, "names"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"disjoint_by": ""}, "disjoint_by"),
        ({"url": "http://labels.example.org"}, "https"),
        ({"url": "ftp://127.0.0.1"}, "URL"),
        ({"name": "../up"}, "owners.0.name"),
        ({"model": "a/b"}, "owners.0.model"),
        ({"model": "owner-1"}, "twice"),
    ],
)
def test_a_federation_that_makes_no_sense_is_refused(
    tmp_path: Path, digits: Ensemble, changed: dict[str, Any], says: str
) -> None:
    document = json.loads(federation(digits, "http://127.0.0.1:1").model_dump_json())
    place = document["owners"][0] if set(changed) & {"url", "name", "model"} else document
    place |= changed
    (tmp_path / "federation.json").write_text(json.dumps(document))
    with refuses(StoreError, *says.split()):
        load_federation(tmp_path)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_inputs_arrive_as_they_were_sent(digits: Ensemble, binary: bool, dtype: str) -> None:
    spec = digits.manifest.input.model_copy(update={"dtype": dtype})
    x = np.random.default_rng(0).integers(0, 16, (5, 8, 8)).astype(dtype) * np.float32(0.3)
    x = x.astype(dtype)
    body, headers = inference.encode_request(x, "input", None, binary)
    length = headers.get(inference.HEADER_LENGTH)
    found = inference.decode_inputs(body, int(length) if length else None, spec)
    assert found.dtype == x.dtype
    assert (found == x).all()


@pytest.mark.parametrize(
    ("body", "length", "says"),
    [
        (b"", None, "protocol"),
        (b"[]", None, "protocol"),
        (b'{"inputs": []}', None, "0 one"),
        (b'{"inputs": [{"name":"x","shape":[1,9],"datatype":"UINT8"}]}', None, "UINT8"),
        (b'{"inputs": [{"name":"x","shape":[1,8,8],"datatype":"FP32"}]}', None, "UINT8"),
        (b'{"inputs": [{"name":"x","shape":[0,8,8],"datatype":"UINT8"}]}', None, "UINT8"),
        (b'{"inputs": [{"name":"x","shape":[],"datatype":"UINT8"}]}', None, "UINT8"),
        (b'{"inputs": [{"name":"x","shape":[1,8,8],"datatype":"UINT8"}]}', None, "data"),
        (
            b'{"inputs": [{"name":"x","shape":[1,8,8],"datatype":"UINT8","data":[300]}]}',
            None,
            "data",
        ),
        (b'{"inputs": [{"name":"x","shape":[1,8,8],"datatype":"UINT8"}]}abc', 61, "3 bytes"),
        (b"{}", 10**9, "protocol"),
    ],
)
def test_malformed_requests_say_what_is_expected(
    digits: Ensemble, body: bytes, length: int | None, says: str
) -> None:
    with refuses(inference.InferenceError, *says.split()):
        inference.decode_inputs(body, length, digits.manifest.input)


@pytest.mark.slow
def test_dying_stalling_and_lying_owners_cost_nobody_an_answer(
    tmp_path: Path, digits: Ensemble, owners: ManyOwners, digits_ensemble: DigitsEnsemble
) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    gathered(settings.data_dir, federation(digits, owners.url, **STALLING))
    settings.secret_key_path.write_bytes(SECRET_KEY)
    settings.secret_key_path.chmod(0o600)
    engine = migrated(settings.database)
    ledger = Ledger(engine, SECRET_KEY)
    register_ensemble(ledger, settings, EnsembleRegister(name="ward", epsilon=50, delta=5e-4))
    terms = {"name": "study", "ensemble": "ward", "epsilon": 20, "delta": 1e-5}
    terms["mechanism"] = {"name": "gnmax", "sigma": 2.0}
    open_project(ledger, ProjectOpen.model_validate(terms))
    request = TokenCreate(role=Role.STUDENT, project="study")
    token = Tokens(ledger, SECRET_KEY).create(request).token
    with serving(settings) as url, Client(url, token, retries=0) as make_client:
        asked = 0
        for number, failing in enumerate(
            zip(*[iter([*FAILING, *WITHOUT_A_CLASS][:15])] * 5, strict=True)
        ):
            owners.behaviour.clear()
            owners.behaviour |= dict(enumerate(failing, start=number))
            answers = make_client.label(digits_ensemble.public[number * 8 : number * 8 + 8])
            asked += len(answers.labels)
        assert asked == 24
        assert ledger.projects.get("study").charges == 24
        owners.behaviour.clear()
        owners.behaviour |= dict.fromkeys(range(6), "reset")
        headers = {"Authorization": f"Bearer {token}"}
        x = digits_ensemble.public[100:102].tolist()
        refused = httpx.post(f"{url}/label", json={"inputs": x}, headers=headers)
        assert refused.status_code == 503
        assert refused.json()["type"].endswith("ensemble-unavailable")
        assert ledger.projects.get("study").charges == 24
        project = make_client.project()
        assert project.ensemble.teachers == OWNERS
    assert ledger.verifier.verify_project("study").ok
    engine.dispose()


def test_silent_owners_of_eight_projects_keep_no_other_ensemble_waiting(
    tmp_path: Path, digits: Ensemble, owners: ManyOwners, digits_ensemble: DigitsEnsemble
) -> None:
    """More requests to them than groups are answered at a time; the rest waits in its own queue."""
    projects, x = [f"silent-{number}" for number in range(8)], digits_ensemble.public
    settings = Settings(data_dir=tmp_path / "data")
    for name, count in (("ward", 3), ("clinic", 2)):
        directory = settings.ensembles_dir / name
        directory.mkdir(parents=True)
        made = federation(digits, owners.url, count, name=name, quorum=2)
        save_federation(directory, made.model_copy(update={"owners": made.owners[-2:]}))
    copytree(digits_ensemble.directory, settings.ensembles_dir / "digits")
    settings.secret_key_path.write_bytes(SECRET_KEY)
    settings.secret_key_path.chmod(0o600)
    engine = migrated(settings.database)
    ledger, tokens = Ledger(engine, SECRET_KEY), {}
    for name in ("ward", "clinic", "digits"):
        register_ensemble(ledger, settings, EnsembleRegister(name=name, epsilon=99, delta=5e-4))
    for name, ensemble in {
        **dict.fromkeys(projects, "ward"),
        "clinic": "clinic",
        "digits": "digits",
    }.items():
        terms = {"name": name, "ensemble": ensemble, "epsilon": 4, "delta": 1e-5}
        terms["mechanism"] = {"name": "gnmax", "sigma": 20.0}
        open_project(ledger, ProjectOpen.model_validate(terms))
        request = TokenCreate(role=Role.STUDENT, project=name)
        tokens[name] = Tokens(ledger, SECRET_KEY).create(request).token
    request = TokenCreate(role=Role.METRICS, label="test")
    metrics = Tokens(ledger, SECRET_KEY).create(request).token

    with (
        serving(settings) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as http,
        ThreadPoolExecutor(2 * len(projects)) as pool,
    ):

        def label(name: str, row: int) -> int:
            headers = {"Authorization": f"Bearer {tokens[name]}"}
            asked = {"inputs": x[row : row + 1].tolist()}
            return http.post("/label", json=asked, headers=headers).status_code

        def waiting() -> int:
            text = http.get("/metrics", headers={"Authorization": f"Bearer {metrics}"}).text
            return int(float(text.split("terrine_waiting_queries ")[-1].split()[0]))

        owners.behaviour[2], owners.asked = "silent", 0
        first = [pool.submit(label, name, 0) for name in projects]
        until(lambda: owners.asked == 2 * len(projects))
        second = [pool.submit(label, name, 1) for name in projects]
        until(lambda: waiting() + owners.asked // 2 >= 2 * len(projects))
        try:
            assert (label("digits", 0), label("clinic", 0)) == (200, 200)
            assert not any(each.done() for each in (*first, *second))
        finally:
            owners.speak.set()
        assert {each.result() for each in (*first, *second)} == {200}
    assert [ledger.projects.get(name).charges for name in projects] == [2] * len(projects)
    engine.dispose()
