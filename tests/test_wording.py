"""What refusals and the promise say, word for word: see `wording.txt`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import text

from support.clients import (
    IMPATIENT_GNMAX,
    PATIENT,
    Caller,
    Wire,
    impatient,
    label,
    npy,
    raw_request,
)
from support.data import DigitsEnsemble, build_people
from support.ledgers import unguarded
from support.processes import Terrine, seed_noise
from support.servers import INTERACTIVE, RunningServer, running_server, signed
from support.wording import Wording
from terrine_protocol import PROBLEMS
from terrine_server.ledger.charging import Charging
from terrine_server.owner import checkpoints

NPY = "application/x-npy"
TERMS = {
    "name": "more",
    "ensemble": "digits",
    "mechanism": IMPATIENT_GNMAX,
    "epsilon": 5.0,
    "delta": 1e-5,
}


class Said:
    """What a server has refused so far, by what was asked."""

    def __init__(self) -> None:
        self.by_asked: dict[str, str] = {}
        self.slugs: set[str] = set()

    def __call__(self, asked: str, reply: httpx.Response | dict[str, Any]) -> None:
        problem: dict[str, Any] = reply if isinstance(reply, dict) else reply.json()
        slug = str(problem.pop("type")).removeprefix("/problems/")
        self.slugs.add(slug)
        for name in ("title", "instance", "request_id"):
            problem.pop(name)
        lines = [f"{slug}, {problem.pop('status')}: {problem.pop('detail')}"]
        for name, value in sorted(problem.items()):
            lines.append(f"  {name}: {json.dumps(value, ensure_ascii=False)}")
        self.by_asked[asked] = "\n".join(lines)


@pytest.fixture
def server(
    tmp_path: Path, digits_ensemble: DigitsEnsemble, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningServer]:
    """A patient one; its owner can be reached."""
    seed_noise(monkeypatch)
    url = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    limits = {"max_body_bytes": 100_000, "max_batch": 100, "failed_logins_per_minute": 5}
    given: dict[str, Any] = {**PATIENT, **limits, "contact": "owner@example.org"}
    with running_server(tmp_path / "data", url, digits_ensemble, **given) as running:
        yield running


def caller(server: RunningServer, role: str = "student", project: str | None = None) -> Caller:
    return Caller(server, server.token(role, project))


@pytest.mark.usefixtures("no_refill")
def test_every_problem_of_a_server_is_worded(
    server: RunningServer,
    tmp_path: Path,
    digits_ensemble: DigitsEnsemble,
    monkeypatch: pytest.MonkeyPatch,
    wording: Wording,
) -> None:
    said = Said()
    server.open_project()
    server.open_project("talk", INTERACTIVE, epsilon=2.0)
    server.open_project("small", epsilon=2.0)
    student, admin = caller(server), caller(server, "admin").http
    refused_queries(said, student, server.ensemble.public)
    refused_owners(said, student, admin)
    refused_budgets(said, server, admin)
    overdone(said, server, tmp_path, digits_ensemble)
    broken(said, server, monkeypatch)
    assert said.slugs == set(PROBLEMS)
    wording("What a server refuses", said.by_asked)


def test_what_commands_refuse_is_worded(
    terrine: Terrine,
    tmp_path: Path,
    digits_ensemble: DigitsEnsemble,
    wording: Wording,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Caps and budgets above all: what a data owner does by mistake."""
    monkeypatch.setenv("TERRINE_PORT", "0")  # somebody else may have the usual one
    said: dict[str, str] = {}

    def refused(asked: str, *command: object, **variables: str) -> None:
        said[f"{asked}: terrine {' '.join(map(str, command))}"] = terrine(
            *command, TERRINE_PORT="0", **variables
        ).refused

    data = tmp_path / "data"
    refused("nothing is set up", "serve")
    refused("nothing is set up", "project", "show")
    terrine("init").fine  # noqa: B018
    budget = ("--epsilon", 5, "--delta", "1e-5")
    cap = ("ensemble", "register", "digits", "--epsilon", 20, "--delta", "1e-4")
    opening = ("project", "open", "study", "--ensemble", "digits", "--mechanism", "gnmax:sigma=4")
    refused("teachers that are not registered", *opening, *budget)
    refused("teachers that are not there", *cap)
    shutil.copytree(digits_ensemble.directory, data / "ensembles" / "digits")
    refused("a cap's δ that is too large", *cap, "--delta", "0.01")
    refused("a cap of nothing", *cap, "--epsilon", 0)
    terrine(*cap).fine  # noqa: B018
    refused("a second cap", *cap, "--epsilon", 30)
    build_people(data / "ensembles" / "people", digits_ensemble)
    near = ("ensemble", "register", "people")
    limit = ("--epsilon", 20, "--delta", "1e-4")
    refused("to join a cap, and another one", *near, "--epsilon", 30, "--delta", "1e-4")
    refused("a population that is not there", *near, "--population", "patients", *limit)
    refused("a new population without a cap", *near, "--population", "patients", "--disjoint")
    refused("half a cap", *near, "--epsilon", 20)
    refused("a new one that is there", *near, "--population", "people", "--disjoint", *limit)
    said["a cap that is shared"] = terrine(*near).fine
    refused("δ that is too large", *opening, *budget, "--delta", "0.01")
    refused("ε that pays for nothing", *opening, *budget, "--epsilon", "0.01")
    refused("a mechanism that is not there", *opening, *budget, "--mechanism", "gmax")
    refused("no noise", *opening, *budget, "--mechanism", "gnmax:sigma=0")
    refused("more than the cap", *opening, *budget, "--epsilon", 50)
    terrine(*opening, *budget).fine  # noqa: B018
    refused("a name that is taken", *opening, *budget)
    others = ("project", "open", "others", *opening[3:])
    refused("more than is left of the cap", *others, *budget, "--epsilon", 22)
    theirs = ("--ensemble", "people", "--mechanism", "neighbours:sigma=4,queries=5000")
    refused("more than is left of a shared cap", *others[:3], *theirs, *budget, "--epsilon", 22)
    refused("a student of no project", "token", "create", "--role", "student")
    terrine("project", "close", "study", "--yes").fine  # noqa: B018
    refused("to open what is closed", "project", "resume", "study")
    (data / "secret.key").write_text("0" * 64)
    refused("another secret key", "serve")
    (data / "secret.key").unlink()
    refused("no secret key", "serve")
    wording("What commands refuse", said)


@pytest.mark.usefixtures("secret_key")
def test_the_promise_is_worded(
    terrine: Terrine, tmp_path: Path, digits_ensemble: DigitsEnsemble, wording: Wording
) -> None:
    said: dict[str, str] = {}

    def shown(*command: object) -> None:
        said[f"terrine {' '.join(map(str, command))}"] = terrine(*command).fine

    terrine("init").fine  # noqa: B018
    shutil.copytree(digits_ensemble.directory, tmp_path / "data" / "ensembles" / "digits")
    shown("ensemble", "register", "digits", "--epsilon", 20, "--delta", "1e-4")
    budget = ("--epsilon", 5, "--delta", "1e-5")
    opening = ("--ensemble", "digits", "--mechanism", "gnmax:sigma=4")
    shown("project", "open", "study", *opening, *budget)
    shown("ledger", "show", "study")
    shown("ledger", "verify", "study")
    with unguarded(f"sqlite:///{tmp_path / 'data' / 'terrine.sqlite'}") as connection:
        connection.execute(text("UPDATE projects SET spent = spent + 1"))
    broken = terrine("ledger", "verify", "study")
    assert broken.code == 1
    lines = [line for line in broken.out.splitlines() if "schema: missing: trigger" not in line]
    said["terrine ledger verify study, after an edit"] = "\n".join(lines)
    wording("The promise", said)


def refused_queries(said: Said, student: Caller, images: np.ndarray) -> None:
    good = images[:2]
    floats = good.astype(float)
    with_nan = floats.copy()
    with_nan[0, 0, 0] = np.nan
    for asked, body, kind in (
        ("inputs of another shape", npy(good[:, :4]), NPY),
        ("an input without a batch", npy(good[0]), NPY),
        ("inputs that are not whole numbers", npy(floats + 0.5), NPY),
        ("inputs with NaN", npy(with_nan), NPY),
        ("inputs out of range", npy(good + 17), NPY),
        ("a pickle", npy(np.array([{"a": 1}], dtype=object), allow_pickle=True), NPY),
        ("half a file", npy(good)[:-1], NPY),
        ("no inputs", npy(good[:0]), NPY),
        ("too many inputs", npy(np.zeros((101, 8, 8), np.uint8)), NPY),
        ("too large a body", bytes(100_001), NPY),
        ("another media type", b"1", "text/plain"),
        ("a field that is not known", b'{"inputs": [[0]], "votes": true}', "application/json"),
        ("no JSON", b"{", "application/json"),
    ):
        said(asked, student.send(body, kind))
    assert student.label(images[:1]).status_code == 200
    given = {"inputs": good.tolist(), "probabilities": np.full((2, 10), 0.1).tolist()}
    said("probabilities that are not asked for", student.http.post("/label", json=given))


def refused_owners(said: Said, student: Caller, admin: httpx.Client) -> None:
    """What is not there, not allowed, or not sound."""
    said("a path that is not there", student.http.get("/nowhere"))
    said("a project that is not there", admin.get("/projects/nobody"))
    said("another method", student.http.put("/budget"))
    said("a student as the owner", student.http.post("/projects", json=TERMS))
    said("the owner as a student", admin.post("/label", json={"inputs": []}))
    said("a name that is taken", admin.post("/projects", json=TERMS | {"name": "study"}))
    for asked, changed in (
        ("δ that is too large", {"delta": 0.01}),
        ("ε of 0", {"epsilon": 0}),
        ("ε that pays for nothing", {"epsilon": 1e-4}),
        ("σ of 0", {"mechanism": {"name": "gnmax", "sigma": 0.0}}),
        ("noise that is too small to price", {"mechanism": {"name": "gnmax", "sigma": 1e-3}}),
        ("prices by votes, of noisy counts", {
            "mechanism": {"name": "noisy_votes", "sigma": 4.0}, "accounting": "data_dependent"}),
        ("more than the cap", {"epsilon": 60.0}),
    ):  # fmt: skip
        said(asked, admin.post("/projects", json=TERMS | changed))


def refused_budgets(said: Said, server: RunningServer, admin: httpx.Client) -> None:
    """Projects that are spent, paused and closed."""
    images = server.ensemble.public
    talker, small = caller(server, project="talk"), caller(server, project="small")
    said("a question without probabilities", talker.label(images[:1]))
    while (reply := small.label(images[:10])).status_code == 200:
        images = images[10:]
    said("a query of a spent project", reply)
    for status in ("paused", "closed"):
        assert admin.patch("/projects/small", json={"status": status}).status_code == 200
        said(f"a query of a {status} project", small.label(images[-1:]))
    said(
        "a closed project to open again", admin.patch("/projects/small", json={"status": "active"})
    )


def overdone(said: Said, server: RunningServer, directory: Path, ensemble: DigitsEnsemble) -> None:
    """Guesses, too many of them, bodies that do not end, and what is not HTTP."""
    nobody, stranger = Caller(server, None), Caller(server, "terrine_guess")
    said("no token", nobody.http.get("/budget"))
    said("a token that is not known", stranger.http.get("/budget"))
    token = server.token()
    revoked = Caller(server, token)
    for made in server.ledger.tokens.list():
        if made.id == token.split("_")[1]:
            server.ledger.tokens.revoke(made.id)
    said("a revoked token", revoked.http.get("/budget"))
    while (reply := stranger.http.get("/budget")).status_code == 401:
        pass
    said("too many guesses", reply)
    with closing(Wire(server)) as wire:
        wire.send(raw_request("GET", "/budget", "Content-Length: 5", "Content-Length: 6"))
        said("two lengths", wire.reply().json())
    (directory / "impatient").mkdir()
    limits = {"max_held_bytes": 1024}
    with impatient(directory / "impatient", ensemble, **limits) as hurried:
        token, body = hurried.token(), npy(np.zeros((100, 8, 8), np.uint8))
        head = label(token, b"", f"Content-Length: {len(body)}", "Expect: 100-continue")
        with closing(Wire(hurried)) as slow, closing(Wire(hurried)) as other:
            slow.send(head)
            assert slow.reply().status == 100, "the body is being read"
            slow.send(body[:-1])
            other.send(label(token, body, f"Content-Length: {len(body)}"))
            said("more than the server holds", other.reply().json())
            said("a body that does not end", slow.reply().json())


def broken(said: Said, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were altered, a ledger that was edited or is away, and a defect."""
    student, images = caller(server), server.ensemble.public[200:]
    with monkeypatch.context() as patched:
        patched.setattr(Charging, "charge", lambda *_: 1 / 0)
        said("a query, and there is a defect", student.label(images[:1]))
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "LOOK_SECONDS", 0)
        kept = server.settings.signed_checkpoint_path
        kept.write_text(signed(1000, b"r" * 32))
        said("a query, and the ledger went back", student.label(images[:1]))
        kept.write_text("what was signed last")
        said("a query, and nothing can be signed", student.label(images[:1]))
        kept.unlink()
    path = server.settings.ensembles_dir / "digits" / "manifest.json"
    whole = path.read_bytes()
    path.write_bytes(whole + b" ")
    said("a query, and the teachers were altered", student.label(images[:1]))
    path.write_bytes(whole)
    with unguarded(server.settings.database) as connection:
        connection.execute(text("UPDATE projects SET spent = spent + 1 WHERE name = 'study'"))
    said("a query, and the balance was edited", student.label(images[:1]))
    path = Path(server.settings.database.removeprefix("sqlite:///"))
    path.rename(path.with_suffix(".aside"))
    said("a query, and the ledger is away", student.label(images[:1]))
    path.with_suffix(".aside").rename(path)
