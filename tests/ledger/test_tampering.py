"""What edits by hand come to: one table of them, made from the schema, and who notices each.

An edit is made past all triggers and constraints. Everybody who believes the rows is then asked:

- `verify`, and `checkpoint`: what it finds with a checkpoint that was kept;
- the `doctor`;
- whoever has no more than a file with the edited rows: `file` is `terrine ledger verify --file`,
  `checker` is docs/check_chain.py;
- a server, for everything that it answers from these rows.

Whoever has the secret key as well seals the rows that he edits and writes the administrative log
anew. Only what follows from charges shows that: see `FORGERIES`.

A column that no edit covers fails (`cells`), and so does one whose edit `verify` does not find.
"""

from __future__ import annotations

import importlib.util
import json
import tracemalloc
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain, islice, tee
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from sqlalchemy import Column, Connection, RowMapping, delete, insert, select, update

from support.browser import InProcess
from support.data import DigitsEnsemble
from support.databases import SECRET_KEY
from support.forgeries import (
    ENTRIES,
    TABLES,
    Hand,
    Row,
    World,
    add,
    altered,
    cut,
    edited_json,
    in_order,
    kind,
    other_values,
    rebuild,
    rehash,
    remove,
    rewrite,
    rows_of,
    swap,
)
from support.ledgers import (
    GNMAX,
    answered,
    charge_one,
    counted,
    digest,
    open_ledger,
    open_project,
    reseal,
    terms,
    unguarded,
    voted,
)
from support.processes import seed_noise
from support.servers import RunningServer, installed, policy_of
from terrine_protocol import ProjectStatus
from terrine_server import doctor
from terrine_server.app import create_app
from terrine_server.errors import (
    LedgerCorrupted,
    NotFound,
    NotSealed,
    ServiceError,
)
from terrine_server.labeling.local_voters import LocalVoters
from terrine_server.ledger import Ledger, NewProject, ProjectRecord, exports, rows
from terrine_server.ledger.chain import TERMS_FIELDS, canonical_json, iso
from terrine_server.ledger.rows import ACCOUNT_COLUMNS
from terrine_server.ledger.schema import metadata
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.transparency import check
from terrine_server.ledger.verifying import verify_export, verify_log, verify_project
from terrine_server.owner.sign_in import Tokens

Edit = Callable[[Connection], object]
NOON = datetime.fromisoformat("2026-01-01T12:00:00+00:00")
CHECKER = Path(__file__).resolve().parents[2] / "docs" / "check_chain.py"

spec = importlib.util.spec_from_file_location("check_chain", CHECKER)
assert spec is not None
assert spec.loader is not None
checker: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(checker)


# ---------------------------------------------------------------------------------- the ledger


class Served(World):
    """The same with `study` on real teachers: asked over HTTP, in this process."""

    def __init__(self, directory: Path, digits: DigitsEnsemble, send: InProcess) -> None:
        self.directory, self._digits, self._send = directory, digits, send
        super().__init__(f"sqlite:///{directory / 'terrine.sqlite'}")

    def prepared(self) -> Ledger:
        settings, self.engine = installed(
            self.directory / "data", self.url, self._digits, requests_per_minute=10**9
        )
        with pytest.MonkeyPatch.context() as patch:
            voters = LocalVoters(settings.data_dir)  # so that they are loaded once
            patch.setattr("terrine_server.app.AnyVoters", lambda *_: voters)
            self.running, self._starting = create_app(settings), create_app(settings)
        self._owner = RunningServer("", settings, self.ledger(), self._digits)
        return self.ledger()

    def open_study(self) -> ProjectRecord:
        confident = {"name": "confident_gnmax", "threshold": 24, "sigma1": 12.0, "sigma2": 4.0}
        return self._owner.open_project("study", confident, epsilon=20.0)

    def ask_first(self, study: ProjectRecord) -> None:
        with pytest.MonkeyPatch.context() as patch:
            seed_noise(patch)
            assert self.label(self.running, 0, 3).status_code == 200

    def started(self) -> FastAPI:
        """A server that has read nothing yet. Making a new one each time would take longest."""
        self._starting.state.services.ledger.projects._cache._opened.clear()
        return self._starting

    def label(self, app: FastAPI, start: int, end: int) -> httpx.Response:
        """Ask about these inputs as the student of `study`."""
        asked = {"inputs": self._digits.public[start:end].tolist()}
        return self.send(app, "POST", "/label", "student", json=asked)

    def send(
        self, app: FastAPI, method: str, path: str, who: str, **request: Any
    ) -> httpx.Response:
        reply = self._send(app, method, path, self.tokens.get(who, ""), **request)
        assert reply.status_code != 500, (path, reply.text)
        return reply


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[Served]:
    with InProcess() as send:
        yield Served(tmp_path_factory.mktemp("tampering"), digits_ensemble, send)


# ----------------------------------------------------------------------------------- the edits


@dataclass(frozen=True)
class Cell:
    """A value that stands for all of its column."""

    table: str
    column: Column[Any]
    row: Row

    @property
    def value(self) -> Any:
        return self.row[self.column.name]

    @property
    def where(self) -> Row:
        return {key.name: self.row[key.name] for key in TABLES[self.table].primary_key}

    def __str__(self) -> str:
        return f"{self.table}: another {self.column.name}{' than none' * (self.value is None)}"

    def near(self) -> Edit:
        """The smallest change."""
        new = altered(self.value)
        if self.value is None:
            new = {float: 2.0, str: "x", bytes: bytes(32), datetime: NOON}.get(
                self.column.type.python_type, new
            )
        return change(self.table, self.where, **{self.column.name: new})


def cells(world: World, table: str) -> Iterator[Cell]:
    """For every column a value, and none as well if it may be null; of `study` if it has one."""
    found = sorted(world.rows()[table], key=lambda row: not of_study(row))
    for column in TABLES[table].columns:
        some = [row for row in found if row[column.name] is not None]
        assert some, f"no edit covers {table}.{column.name}: give World a row with something in it"
        none = [row for row in found if row[column.name] is None]
        yield from (Cell(table, column, row) for row in (*some[:1], *none[:1]))


def of_study(row: Row) -> bool:
    if "declared_at" in row:  # a population
        return bool(row["id"] == 1)
    return row.get("name") in ("study", "digits") or row.get("project_id") == 1


def change(table: str, where: Mapping[str, Any], **new: Any) -> Edit:
    made = TABLES[table]
    return lambda connection: connection.execute(
        update(made).where(*(made.c[name] == value for name, value in where.items())).values(new)
    )


def gone(table: str, **where: Any) -> Edit:
    made = TABLES[table]
    return lambda connection: connection.execute(
        delete(made).where(*(made.c[name] == value for name, value in where.items()))
    )


def both(*edits: Edit) -> Edit:
    return lambda connection: [edit(connection) for edit in edits]


def copied(world: World, table: str, where: Row, **new: Any) -> Edit:
    """A new row, like another one, with its seal."""
    row = {**world.row(table, **where), **new}
    return lambda connection: connection.execute(insert(TABLES[table]).values(row))


def set_back(world: World, table: str, **where: Any) -> Edit:
    """A row as it once was, with the seal that it then had."""
    (row,) = (row for row in world.before[table] if row.items() >= where.items())
    return change(table, where, **row)


def older_backup(world: World) -> Edit:
    def restore(connection: Connection) -> None:
        tables = [table for table in metadata.sorted_tables if table.name in TABLES]
        for table in reversed(tables):
            connection.execute(delete(table))
        for table in tables:
            connection.execute(insert(table), world.before[table.name])

    return restore


ONLY_A_CHECKPOINT = {
    "projects, charges: the end cut off, with the older balance's seal",
    "all tables but the tree: an older backup",
}
"""What is rolled back as a whole: requests are answered as they were earlier."""
CONSISTENT = {
    "charges: the end cut off, the balance set back",
    "charges: a label, and the chain to its end",
}
"""Edits that leave a chain that fits: a seal, or a checkpoint, tells."""


def larger_edits(world: World) -> Iterator[tuple[str, Edit]]:
    """Edits of more than the smallest change of one value, by what they do."""
    ids = {row["name"]: row["id"] for row in world.rows()["projects"]}
    study, done, student = {"id": ids["study"]}, {"id": ids["done"]}, world.id_of("student")
    for column in ("budget", "delta_budget", "cap_budget"):
        doubled = {column: TABLES["projects"].c[column] * 2}
        yield f"projects: {column} doubled", change("projects", study, **doubled)
    yield "projects: paused", change("projects", study, status="paused")
    yield "projects: resumed", change("projects", {"name": "resting"}, status="active")
    yield "projects: reopened", change("projects", done, status="active", closed_at=None)
    yield "projects: reopened, with its old seal", set_back(world, "projects", **done)
    yield "projects: resumed, with its old seal", set_back(world, "projects", name="resting")
    yield "projects: on another ensemble", change("projects", study, ensemble_id=2)
    yield "projects: removed", gone("projects", name="unused")
    yield "projects: a second one", copied(world, "projects", study, id=99, name="second")
    older = set_back(world, "projects", **study)
    yield "projects: an older balance, with its seal", older
    yield (
        "projects, charges: the end cut off, with the older balance's seal",
        both(older, gone("charges", project_id=ids["study"], seq=ENTRIES)),
    )
    yield "all tables but the tree: an older backup", older_backup(world)

    digits = {"name": "digits"}
    for column in ("cap", "delta_cap"):
        doubled = {column: TABLES["populations"].c[column] * 2}
        yield f"populations: {column} doubled", change("populations", digits, **doubled)
    freed = {"reserved": 0, "delta_reserved": 0}
    yield "populations: reservations = 0", change("populations", digits, **freed)
    yield "populations: older reservations", set_back(world, "populations", **digits)
    yield "populations: removed", gone("populations", **digits)
    second = {"id": 9, "name": "ninth"}
    yield "populations: a second one", copied(world, "populations", digits, **second)
    of = {row["name"]: row["id"] for row in world.rows()["populations"]}
    another = {"population_id": of["thousand"]}
    yield "ensembles: another population", change("ensembles", {"name": "spare"}, **another)
    yield "ensembles: an unused one removed", gone("ensembles", name="spare")
    other = {"id": 9, "name": "ninth", "manifest_sha256": digest("ninth")}
    yield "ensembles: a second one", copied(world, "ensembles", {"name": "spare"}, **other)

    yield "charges: the last one removed", lambda connection: remove(connection, ENTRIES)
    yield "charges: one removed", lambda connection: remove(connection, 2)
    yield "charges: two swapped", swap
    yield "charges: one added", lambda c: add(c, ENTRIES + 1, rows_of(c))
    yield "charges: one that no balance counts", lambda c: add(c, ENTRIES + 9, rows_of(c)[-2:] * 9)
    yield "charges: the end cut off, the balance set back", lambda c: cut(c, ENTRIES - 1)
    yield "charges: a label, and the chain to its end", lambda c: rewrite(c, 5, label=7)

    roles: dict[str, Row] = {
        "auditor": {"role": "admin"},
        "student": {"role": "admin", "project_id": None},
        "moved": {"project_id": ids["other"]},
        "revoked": {"revoked_at": None},
    }
    for label, new in roles.items():
        what = f"tokens: {label}: {', '.join(new)} edited"
        yield what, change("tokens", {"id": world.id_of(label)}, **new)
    revoked = set_back(world, "tokens", id=world.id_of("revoked"))
    yield "tokens: no longer revoked, with its old seal", revoked
    yield "tokens: removed", gone("tokens", id=student)
    yield "tokens: a second one", copied(world, "tokens", {"id": student}, id="0" * 16)

    secret = {"project_id": ids["secret"]}
    yield "secret_spends: an older tally, with its seal", set_back(world, "secret_spends", **secret)
    yield "secret_spends: removed", gone("secret_spends", **secret)

    crowd = {"project_id": ids["crowd"]}
    kept = world.row("unit_accounts", **crowd)["accounts"]
    older = set_back(world, "unit_accounts", **crowd)
    yield "unit_accounts: older ones, with their seal", older
    yield "unit_accounts: emptied", change("unit_accounts", crowd, accounts=bytes(len(kept)))
    yield "unit_accounts: undecipherable", change("unit_accounts", crowd, accounts=b"?")
    yield "unit_accounts: another project's", change("unit_accounts", crowd, project_id=1)
    yield "unit_accounts: removed", gone("unit_accounts", **crowd)

    end = len(world.rows()["administrative_log"])
    yield "administrative_log: the last entry removed", gone("administrative_log", seq=end)
    yield "administrative_log: an entry removed", gone("administrative_log", seq=3)
    yield "administrative_log: all removed", gone("administrative_log")
    yield (
        "administrative_log: one added",
        copied(world, "administrative_log", {"seq": end}, seq=end + 1),
    )
    yield "log_head: removed", gone("log_head")
    later = range(world.before["log_head"][0]["entries"] + 1, end + 1)
    shorter = [gone("administrative_log", seq=seq) for seq in later]
    yield (
        "administrative_log, log_head: cut off, with the older seal",
        both(*shorter, set_back(world, "log_head", id=1)),
    )


# --------------------------------------------------------------------------------- who notices


def who(world: Served, among: set[str]) -> set[str]:
    """Who of these, that look at the rows, notices that something is wrong."""
    of_file, of_checker = tee(exported(world, world.directory))  # each is written once
    satisfied: dict[str, Callable[[], bool]] = {
        "verify": lambda: verified(world),
        "checkpoint": lambda: world.ledger().tree.check(policy_of(), world.kept).ok,
        "doctor": lambda: healthy(world.ledger()),
        "file": lambda: all(verifies(file) for file in of_file if file.name != LOG),
        "checker": lambda: all(map(checks, of_checker)),
    }
    assert satisfied.keys() == EVERYBODY
    return {name for name in among if not satisfied[name]()}


EVERYBODY = {"verify", "checkpoint", "doctor", "file", "checker"}


def healthy(ledger: Ledger) -> bool:
    try:
        found = chain(doctor.check_log(ledger), doctor.check_balances(ledger))
        return all(each.state != "problem" for each in found)
    except ServiceError:
        return False


def verifies(file: Path) -> bool:
    try:
        return verify_export(file).ok
    except exports.ArchiveError:
        return False


def checks(file: Path) -> bool:
    try:
        return bool(checker.check(file))
    except checker.Wrong:
        return False


def verified(world: World) -> bool:
    """Whether `verify` finds all intact; what cannot even be verified is not."""
    ledger = world.ledger()
    try:
        return ledger.verifier.verify_log().ok and all(
            ledger.verifier.verify_project(name).ok for name in ledger.projects.list_names()
        )
    except ServiceError:
        return False


LOG = "log.jsonl"


def exported(world: World, directory: Path) -> Iterator[Path]:
    """The rows as they are, in the form of exports, without what is checked to export them.

    Each is written when it is asked for: most edits show in the first.
    """
    with world.engine.connect() as connection:
        accounts = connection.execute(rows.select_projects()).mappings().all()
        entries, log, end = (
            connection.execute(in_order(table)).mappings().all()
            for table in ("charges", "administrative_log", "log_head")
        )

    def written(name: str, first: Row, lines: list[Row]) -> Path:
        file = directory / name
        file.write_text("".join(json.dumps(line) + "\n" for line in [first, *lines]))
        return file

    for number, account in enumerate(accounts):
        fields = {name: plain(account[name]) for name in exports.ACCOUNT_FIELDS}
        mine = [line(entry) for entry in entries if entry["project_id"] == account["id"]]
        yield written(
            f"{number}.jsonl",
            {"format": exports.FORMAT, "account": fields},
            [{"project": account["name"], **entry} for entry in mine],
        )
    first = {name: plain(end[0][name]) if end else None for name in ("entries", "head")}
    yield written(LOG, {"format": exports.LOG_FORMAT, **first}, list(map(line, log)))


def line(entry: RowMapping) -> Row:
    made = {name: plain(value) for name, value in entry.items()}
    for name in ("mechanism", "event", "detail", "counts"):
        with suppress(TypeError, ValueError, KeyError, RecursionError):
            made[name] = json.loads(made[name])
    return {name: value for name, value in made.items() if (name, value) != ("counts", None)}


def plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    return value.hex() if isinstance(value, bytes) else value


OF_THE_CAP = {"epsilon", "delta", "rdp_order", "cap", "delta_cap"}
EXPORTED = {
    "projects": set(exports.ACCOUNT_FIELDS) - {"status", "closed_at"} | {"ensemble_id"},
    "populations": OF_THE_CAP | {"id"},
    "ensembles": {n.removeprefix("ensemble__") for n in TERMS_FIELDS if "__" in n} - OF_THE_CAP
    | {"id", "population_id"},
    "charges": {column.name for column in TABLES["charges"].columns},
}
"""Columns that whoever has no more than an export can check."""
NOT_OF_THE_DOCTOR = {"charges", "payments", "secret_spends", "shadow_accounts"}


def notices(cell: Cell) -> set[str]:
    """Who must notice the smallest change of a value, by a hand without the key."""
    found = {"verify"}
    if cell.table not in NOT_OF_THE_DOCTOR or str(cell) == "payments: another project_id":
        found.add("doctor")
    if cell.column.name in EXPORTED.get(cell.table, ()):
        found |= {"file", "checker"}
    if cell.table == "administrative_log" or str(cell) in LOG_END:
        found.add("checker")
    if str(cell) in LOGGED:
        found.add("checkpoint")
    return found


LOG_END = {"log_head: another entries", "log_head: another head"}
LOGGED = {
    "projects: another id",
    "projects: another genesis",
    "charges: another project_id",
    "charges: another seq",
    "charges: another hash",
    "administrative_log: another seq",
    "administrative_log: another hash",
}
"""What decides of which entry a leaf is, and what its commitment is."""


# ----------------------------------------------------------------------------- what is answered


def requests(world: Served, app: FastAPI) -> dict[str, Callable[[], object]]:
    """What is asked, and how its answer is compared, of a server that has just been started."""
    ledger = world.ledger()

    def http(method: str, path: str, who: str, **request: Any) -> Any:
        return content(world.send(app, method, path, who, **request))

    def label(start: int, end: int) -> object:
        results = content(world.label(app, start, end))["results"]
        return [(each["outcome"], each["label"], each["charge"]) for each in results]

    def new() -> object:
        """It costs what it costs; its label depends on noise."""
        (result,) = content(world.label(app, 10, 11))["results"]
        charges = TABLES["charges"]
        with world.engine.connect() as connection:
            here = charges.c.project_id == 1, charges.c.seq == result["charge"]
            row = connection.execute(select(charges).where(*here)).one()
        assert row.cost == world.prices[result["outcome"]]
        assert result["label"] in (*range(10), None)
        return row.label == result["label"], result["replayed"]

    def asks(name: str) -> object:
        return charge_one(ledger, ledger.projects.get(name).id, [answered("new")]).results

    def consults(name: str) -> object:
        project = ledger.charging.look_up(name, []).project
        return project.account, project.status, project.terms

    def publishes() -> object:
        project = ledger.projects.get("secret")
        return charge_one(ledger, project.id, voted(project, ["new"])).results

    def opens(name: str, ensemble: str) -> object:
        return ledger.projects.open(
            NewProject(name, ensemble, GNMAX, terms(2))
        ).ensemble.population.cap

    def verdict() -> object:
        found = http("GET", "/ledger/study/verify", "auditor")
        if not found["ok"]:
            raise RefusedError("not intact")
        return found["charges"]

    found: dict[str, Callable[[], object]] = {
        "repeat": lambda: label(0, 3),
        "budget": lambda: http("GET", "/budget", "student"),
        "verdict": verdict,
        "counts": lambda: (
            charge_one(ledger, ledger.projects.get("counted").id, [counted(1)]).results
        ),
        "closed": lambda: asks("done"),
        "resting": lambda: asks("resting"),
        "payments": lambda: (
            {*ledger.entries.payers("study", [1, 2, 3]).values()} <= {world.id_of("student")}
        ),
    }
    for path, role in PAGES.items():
        found[path] = partial(http, "GET", path, role)
    for name in ("study", "other", "done", "resting"):
        found[f"account of {name}"] = partial(consults, name)
    for who, token in world.tokens.items():
        found[who] = partial(Tokens(ledger, SECRET_KEY).authenticate, token)
    return found | {
        "new": new,
        "tally": publishes,
        "open": lambda: opens("new", "mnist"),
        "open on spare": lambda: opens("newer", "spare"),
        "pause": lambda: ledger.projects.set_status("unused", ProjectStatus.PAUSED).status,
    }


PAGES = {
    **dict.fromkeys(["/budget", "/project"], "student"),
    **dict.fromkeys(["/ledger", "/ledger/study", "/metrics"], "auditor"),
    **dict.fromkeys(["/projects", "/ensembles"], "admin"),
}
"""What is looked at, and as whom. Not `/readyz`: with the guards off, no server is ready."""
LISTS = {"/ledger", "/metrics", "/projects", "/ensembles"}
"""They show the rows that are there, if each was sealed at some time."""
LABELS = ("repeat", "new")
READERS = {
    "populations": (*LABELS, "counts", "/budget", "/projects", "/ensembles", "open"),
    "ensembles": (*LABELS, "counts", "/budget", "/ledger/study", "/projects", "open"),
    "projects": (*LABELS, "/budget", "/ledger/study", "/projects", "student", "open"),
    "charges": (*LABELS, "counts", "/ledger/study", "/projects"),
    "payments": ("payments",),
    "secret_spends": ("new", "tally"),
    "unit_accounts": ("new", "/projects"),
    "shadow_accounts": ("new", "/projects"),
    "editions": ("/projects", "/ensembles", "open on spare"),
    "tokens": ("/budget", "student", "moved", "revoked", "other", "auditor", "admin"),
    "administrative_log": ("new", "open", "pause"),
    "log_head": ("new", "open", "pause"),
}
"""Requests by the table that they read, each in another way. By night all are made."""
WHOLE_ROWS = ("repeat", "/budget", "closed", "resting", "open", "open on spare")
"""Requests whose answer a larger edit of some table would change, if anybody believed it."""


class RefusedError(Exception):
    """The kind of problem that a request was refused with."""


def content(reply: httpx.Response) -> Any:
    if reply.status_code >= 400:
        assert reply.headers["content-type"] == "application/problem+json", reply.text
        kind = str(reply.json()["type"]).removeprefix("/problems/")
        if kind == "ledger-corrupted":
            assert "terrine ledger verify" in reply.json()["detail"]
            assert "Retry-After" not in reply.headers, "it does not pass"
        raise RefusedError(kind)
    if reply.headers["content-type"].startswith("text/plain"):  # metrics
        accounts = [line for line in reply.text.splitlines() if "terrine_project_" in line]
        if not accounts:
            raise RefusedError("metrics of the process alone")
        return [line for line in accounts if not line.startswith("#")]
    return reply.json()


REFUSED = "refused: "


def answers(world: Served, app: FastAPI, only: Collection[str] = ()) -> dict[str, object]:
    """What is answered, in order; nothing is charged by whatever is refused or repeated."""
    found: dict[str, object] = {}
    now = paid(world)
    for name, ask in requests(world, app).items():
        if only and name not in only:
            continue
        try:
            found[name] = ask()
        except RefusedError as refusal:
            found[name] = f"{REFUSED}{refusal}"
        except ServiceError as refusal:
            found[name] = f"{REFUSED}{refusal.problem}"
        free = name not in ("new", "tally") or REFUSED in str(found[name])
        before, now = now, paid(world)
        assert not free or now == before, f"{name}: refused or repeated, and yet charged"
    return found


def paid(world: Served) -> int:
    with world.engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM charges").scalar_one())


def wrong(found: dict[str, object], expected: dict[str, object]) -> dict[str, object]:
    """Answers that are neither what they were nor refusals."""
    return {
        name: answer
        for name, answer in found.items()
        if answer != expected[name] and REFUSED not in str(answer)
    }


# ----------------------------------------------------------------------------------- the table


@pytest.fixture(scope="module")
def hand(served: Served) -> Hand:
    """Without the secret key."""
    return Hand(served.engine, served.url)


@pytest.fixture(scope="module")
def expected(served: Served, hand: Hand) -> dict[str, object]:
    """What is answered when nothing was edited."""
    with hand.edited(lambda _: None):
        assert who(served, EVERYBODY) == set()
        return answers(served, served.started())


AT_LENGTH = pytest.mark.parametrize(
    "at_length", [False, pytest.param(True, marks=pytest.mark.nightly)]
)
"""By night everybody looks at every edit, and every request is made."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@AT_LENGTH
@pytest.mark.parametrize("table", TABLES)
def test_the_smallest_edit_of_any_column_is_noticed(
    table: str, at_length: bool, served: Served, hand: Hand, expected: dict[str, object]
) -> None:
    """By day only those look who must notice it, and what reads the table is asked for, at every
    other column and all of a balance: with other values, it is asked for at each of them below."""
    only = () if at_length else READERS[table]
    for turn, cell in enumerate(cells(served, table)):
        with hand.edited(cell.near()) as done:
            assert done, cell
            must = notices(cell)
            assert who(served, EVERYBODY if at_length else must) == must, cell
            if turn % 2 and not at_length and cell.column.name not in ACCOUNT_COLUMNS:
                continue
            found = answers(served, served.started(), only)
            assert wrong(found, expected) == {}, cell
            if table in ("projects", "ensembles", "populations") and of_study(cell.row):
                assert all(REFUSED in str(found[name]) for name in LABELS), cell
                # A running server remembers what was fixed, and nothing else.
                found = answers(served, served.running, LABELS)
                assert wrong(found, expected) == {}, cell
                if table == "projects" and cell.column.name in ACCOUNT_COLUMNS:
                    assert all(REFUSED in str(found[name]) for name in LABELS), cell


@pytest.mark.slow
@pytest.mark.timeout(900)
@AT_LENGTH
def test_larger_edits_are_noticed(
    at_length: bool, served: Served, hand: Hand, expected: dict[str, object]
) -> None:
    for what, edit in larger_edits(served):
        with hand.edited(edit) as done:
            assert done, what
            if what in ONLY_A_CHECKPOINT:
                assert who(served, EVERYBODY) == {"checkpoint"}, what
                continue
            must = {"verify"}
            if what.startswith("charges:") and what not in CONSISTENT:
                must |= {"file", "checker"}
            if what.startswith("unit_accounts:"):
                must.add("doctor")
            if what.startswith(("administrative_log:", "log_head:")):
                must.add("checker")
            assert who(served, must) == must, what
            table = what.partition(":")[0].split(", ")[-1]
            only = () if at_length else {*READERS[table], *WHOLE_ROWS}
            found = wrong(answers(served, served.started(), only), expected).keys()
            assert not found or (found <= LISTS and ("removed" in what or "old" in what)), what


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", [24, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("table", TABLES)
def test_no_value_in_any_column_answers_anything_wrong(
    table: str, share: int, served: Served, hand: Hand, expected: dict[str, object]
) -> None:
    """Values far from what was there, of other types, and of JSON that is garbled.

    By day one in twenty-four, in turn: what a column does not meet, the next one does.
    """
    only, rows = () if share == 1 else READERS[table], served.rows()[table]
    for turn, cell in enumerate(cells(served, table)):
        place = rows.index(cell.row)
        stored = hand.value(table, place, cell.column.name)
        for value in islice(other_values(cell.column.name, stored), turn % share, None, share):
            with hand.set(table, place, cell.column.name, value) as done:
                if done and value != stored:
                    found = answers(served, served.started(), only)
                    assert wrong(found, expected) == {}, (str(cell), str(value)[:40])
        if table in ("projects", "ensembles") and str(stored).startswith(("{", "[")):
            for part in islice(edited_json(json.loads(stored)), turn % share, None, share):
                with hand.set(table, place, cell.column.name, part) as done:
                    assert done
                    found = answers(served, served.started(), ("/budget", "verdict", "new"))
                    assert all(REFUSED in str(answer) for answer in found.values()), part


# ---------------------------------------------------------------------- whoever has the key, too


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(f"sqlite:///{tmp_path_factory.mktemp('forged') / 'terrine.sqlite'}")


@contextmanager
def forging(world: World) -> Iterator[Connection]:
    """A connection without guards, whose forgeries are verified and then rolled back."""
    with unguarded(world.url, with_key=False) as connection:
        if connection.dialect.name == "sqlite":
            connection.commit()
            driver: Any = connection.connection.driver_connection
            driver.execute("PRAGMA foreign_keys = OFF")  # only between transactions
        else:  # foreign keys, too, are triggers
            connection.exec_driver_sql("SET session_replication_role = replica")
            connection.commit()
        yield connection
        connection.rollback()


@pytest.fixture
def forger(world: World) -> Iterator[Connection]:
    with forging(world) as connection:
        yield connection


def findings(forger: Connection, forge: Edit, project: str = "study") -> list[str]:
    """What `verify` finds after a forgery and with all seals as they must be, which are undone."""
    forge(forger)
    reseal(forger)
    found = [kind(each) for each in verify_project(forger, Seals(SECRET_KEY), project).problems]
    forger.rollback()
    return found


def charge(number: int, **changes: Any) -> Edit:
    return change("charges", {"project_id": 1, "seq": number}, **changes)


def account(**changes: Any) -> Edit:
    return change("projects", {"name": "study"}, **changes)


def ensemble(**changes: Any) -> Edit:
    return change("ensembles", {"name": "mnist"}, **changes)


def population(**changes: Any) -> Edit:
    return change("populations", {"name": "digits"}, **changes)


def cheaper(connection: Connection) -> None:
    projects = TABLES["projects"]
    text = connection.execute(select(projects.c.terms).where(projects.c.id == 1)).scalar_one()
    made = json.loads(text)
    made["prices"]["answered"]["cost"] -= 1
    account(terms=canonical_json(made))(connection)


def never_asked(entry: Row) -> Row:
    """The same charge for a query that was never asked."""
    return {**entry, "query_digest": digest("forged"), "input_digest": digest("forged")}


def counts_less(connection: Connection) -> None:
    spends = TABLES["secret_spends"]
    tally = np.frombuffer(connection.execute(select(spends.c.tally)).scalar_one(), "<u4").copy()
    tally[np.flatnonzero(tally)[0]] -= 1
    connection.execute(update(spends).values(tally=tally.tobytes()))


FORGERIES: dict[str, tuple[Edit, str]] = {
    "first removed": (lambda c: remove(c, 1), "entry 1: missing"),
    "one removed": (lambda c: remove(c, 3), "entry 3: missing"),
    "two removed": (lambda c: remove(c, 3, 4), "entries 3 to 4: missing"),
    "tail removed": (lambda c: remove(c, ENTRIES), "head"),
    "all removed": (lambda c: remove(c, *range(1, ENTRIES + 1)), "head"),
    "swapped": (swap, "entry 2: altered"),
    "renumbered far ahead": (charge(1, seq=100), "entry 1: missing"),
    "renumbered 0": (charge(3, seq=0), "entry 0: entries"),
    "renumbered at the end": (
        charge(ENTRIES, seq=ENTRIES + 2),
        f"entries {ENTRIES} to {ENTRIES + 1}: missing",
    ),
    "moved to another project": (charge(ENTRIES, project_id=2), "head"),
    "added at the end": (lambda c: add(c, ENTRIES + 1, rows_of(c)), "head"),
    "altered and rehashed": (lambda c: rehash(c, 3, label=9), "entry 4: altered"),
    "last altered and rehashed": (lambda c: rehash(c, ENTRIES, label=9), "head"),
    "repriced, chain rewritten": (lambda c: rewrite(c, 3, cost=0), "entry 3: not"),
    "label given to an abstention": (lambda c: rewrite(c, 4, label=1), "entry 4: abstained"),
    "label of no class": (lambda c: rewrite(c, 3, label=10), "entry 3: label"),
    "other mechanism": (
        lambda c: rewrite(c, 3, mechanism='{"name":"stable"}'),
        "entry 3: mechanism",
    ),
    "other event": (lambda c: rewrite(c, 3, event='{"event":"nothing"}'), "entry 3: cost"),
    "outcome of no price": (lambda c: rewrite(c, 3, outcome="reinforced"), "entry 3: outcome"),
    "counts that were not charged for": (
        lambda c: rewrite(c, 3, counts="[0,0,0,9,0,0,0,0,0,0]"),
        "entry 3: its",
    ),
    "added in the middle": (
        lambda c: rebuild(c, [*rows_of(c)[:3], never_asked(rows_of(c)[2]), *rows_of(c)[3:]]),
        "balance: charges",
    ),
    "removed in the middle": (
        lambda c: rebuild(c, [*rows_of(c)[:2], *rows_of(c)[3:]]),
        "balance: charges",
    ),
    "spent lowered": (account(spent=0), "balance: spent"),
    "delta spent raised": (account(delta_spent=1), "balance: delta_spent"),
    "cap spent lowered": (account(cap_spent=0), "balance: cap_spent"),
    "count lowered": (account(charges=5), "balance: charges"),
    "head replaced": (account(head=bytes(32)), "head"),
    "published, without a schedule": (account(published="[[3,7]]"), "balance: the"),
    "genesis replaced": (account(genesis=bytes(32)), "terms"),
    "budget raised": (account(budget=10**15), "terms"),
    "opened earlier": (account(opened_at=NOON), "terms"),
    "price list changed": (cheaper, "terms"),
    "terms garbled": (account(terms="{"), "terms"),
    "on another ensemble": (account(ensemble_id=2), "terms"),
    "cap raised": (population(cap=TABLES["populations"].c.cap + 1), "terms"),
    "records changed": (ensemble(units=10), "terms"),
    "reservation lowered": (population(reserved=0), "population digits: reserved"),
    "delta reservation lowered": (
        population(delta_reserved=0),
        "population digits: delta_reserved",
    ),
    "closed without returning": (
        account(status="closed", closed_at=NOON),
        "population digits: reserved",
    ),
}
"""By forgery of `study`: the first finding. Unless another is named, the chain is rewritten."""


def publication(world: World) -> int:
    return int(world.row("charges", outcome="published")["seq"])


def test_forgeries_are_found_and_named(world: World, forger: Connection) -> None:
    for forgery, (forge, first) in FORGERIES.items():
        assert findings(forger, forge)[:1] == [first], forgery
    assert findings(forger, lambda _: None) == []
    assert findings(forger, account(name="study2"), "study2")[:1] == ["terms"]
    unused = change("projects", {"name": "unused"}, delta_budget=10**12)
    assert findings(forger, unused, "unused")[:1] == ["terms"], "before the first charge"
    moved = FORGERIES["moved to another project"][0]
    assert findings(forger, moved, "other")[0] == f"entries 2 to {ENTRIES - 1}: missing"


def test_forgeries_of_what_was_published_are_found_and_named(
    world: World, forger: Connection
) -> None:
    """Each figure is in the chain, in what the project shows, and in its balance."""
    seq, secret = publication(world), world.row("projects", name="secret")
    shown, charge = secret["published"], {"outcome": "published"}
    figure = TABLES["charges"].c.figure
    project = partial(change, "projects", {"name": "secret"})
    tally = partial(change, "secret_spends", {"project_id": secret["id"]})
    forgeries: list[tuple[Edit, str]] = [
        (change("charges", charge, figure=figure - 1), f"entry {seq}: altered"),
        (gone("charges", **charge), f"entry {seq}: missing"),
        (project(published=shown.replace(f"[{seq},", f"[{seq + 1},")), "balance: the"),
        (project(published="[]"), "balance: the"),
        (project(published="["), "terms"),
        (project(spent=secret["spent"] - 1), "balance: spent"),
        (counts_less, "tally: it"),
        (tally(charges=secret["charges"] - 1), "tally: The"),
        (tally(tally=b""), "tally: The"),
        (gone("secret_spends"), "tally: The"),
    ]
    for number, (forge, first) in enumerate(forgeries):
        assert findings(forger, forge, "secret")[:1] == [first], number


NOT_IN_THE_BOOKS = {
    "projects": {"status", "closed_at", "title", "purpose", "seal"},
    "populations": {"name", "disjoint_from", "declared_at", "seal"},
    "ensembles": {"path", "registered_at", "seal"},
    "secret_spends": {"seal"},
    "unit_accounts": {"filled", "accounts", "seal"},
    "shadow_accounts": {"accounts", "seal"},
}
"""What whoever has the key, too, may edit. What people have spent follows from their records, by
which `verify --accounts` recomputes it (tests/api/test_neighbours.py). Files are compared with
their digest; the rest, such as whether a closed project was reopened, is what the administrative
log had, which is written anew: a checkpoint shows that."""
NOT_OF_CHARGES = {"payments", "editions", "tokens", "administrative_log", "log_head"}


@pytest.mark.parametrize(
    ("each_database_url", "share"),
    [
        ("sqlite", 1),
        ("postgresql", 3),
        pytest.param("postgresql", 1, marks=pytest.mark.nightly),
    ],
    indirect=["each_database_url"],
)
def test_what_the_chain_holds_is_found_in_spite_of_the_key(
    each_database_url: str, share: int
) -> None:
    """On either database: what is stored, and how it is read, differs; by day in one column of
    three on PostgreSQL."""
    world = World(each_database_url)
    names = {row["id"]: row["name"] for row in world.rows()["projects"]}
    with forging(world) as forger:
        for table in TABLES.keys() - NOT_OF_CHARGES:
            for cell in islice(cells(world, table), 0, None, share):
                if cell.column.name in NOT_IN_THE_BOOKS.get(table, ()):
                    continue
                cell.near()(forger)
                seals = reseal(forger)
                there = set(forger.execute(select(TABLES["projects"].c.name)).scalars())
                # Its own project first: what is found there need not be looked for elsewhere.
                own = names.get(cell.row.get("id" if table == "projects" else "project_id"))
                order = sorted(there, key=lambda name: name != own)
                found = there != world.names or not all(
                    verify_project(forger, seals, name).ok for name in order
                )
                forger.rollback()
                assert found, cell


def test_whatever_the_log_said_is_vouched_for_by_a_checkpoint(
    world: World, forger: Connection
) -> None:
    seals = reseal(forger)
    assert verify_log(forger, seals).ok, "written anew, it is consistent"
    [note] = world.kept.values()
    assert not check(forger, policy_of(), note, {}).ok


def near_balance(row: Row, column: str) -> list[Any]:
    value = row[column]
    if isinstance(value, int):
        return [0, value - 1, value + 1, value * 2 + 1]
    return ["[]", "[", *edited_json(json.loads(value))]


def test_a_balance_that_does_not_follow_is_refused_when_it_is_read_in_spite_of_the_key(
    world: World,
) -> None:
    """Where figures decide it, or where the ensemble's cap does."""
    hand = Hand(world.engine, world.url, with_key=True)
    names = [row["name"] for row in world.rows()["projects"]]
    row, place = world.row("projects", name="secret"), names.index("secret")
    batch = voted(world.ledger().projects.get("secret"), ["new"])
    for column in ("published", "spent", "delta_spent", "cap_spent", "charges"):
        for value in near_balance(row, column):
            if value == row[column]:
                continue
            with hand.set("projects", place, column, value) as done:
                assert done
                with pytest.raises(LedgerCorrupted):
                    charge_one(world.ledger(), row["id"], batch)
    acts: list[Callable[[], object]] = [
        lambda: world.ledger().projects.open(NewProject("second", "mnist", GNMAX, terms(3))),
        lambda: world.ledger().projects.set_status("study", ProjectStatus.CLOSED),
    ]
    for cell in cells(world, "ensembles"):
        if cell.column.name in {"id", "name"} | NOT_IN_THE_BOOKS["ensembles"]:
            continue
        if cell.row["name"] != "mnist":
            continue
        with hand.edited(cell.near()):
            for act in acts:
                with pytest.raises(LedgerCorrupted):
                    act()


def test_another_secret_key_is_refused_at_the_start_and_changes_nothing(world: World) -> None:
    other = world.ledger(b"another key, of 32 bytes or more")
    with pytest.raises(NotSealed):
        other.log.check_sealed()
    study = world.row("projects", name="study")["id"]
    acts: tuple[Callable[[], object], ...] = (
        lambda: charge_one(other, study, [answered("new")]),
        lambda: other.projects.set_status("study", ProjectStatus.CLOSED),
        lambda: Tokens(other, SECRET_KEY).authenticate(world.tokens["student"]),
        lambda: other.projects.open(NewProject("new", "mnist", GNMAX, terms(2))),
    )
    for act in acts:
        with pytest.raises(ServiceError):
            act()
    assert not other.verifier.verify_log().ok
    assert world.ledger().verifier.verify_log().ok, "nothing was changed"
    assert world.ledger().verifier.verify_project("study").ok


# ------------------------------------------------------------------------------------- files


def test_lines_removed_doubled_or_swapped_are_found(world: World, tmp_path: Path) -> None:
    """Of the log only by the checker: `verify --file` is for projects."""
    study, *_, log = exported(world, tmp_path)
    for file in (study, log):
        lines = file.read_text().splitlines(keepends=True)
        for place in range(1, len(lines)):
            before, (here, *after) = lines[:place], lines[place:]
            forged = {"removed": [*before, *after], "doubled": [*before, here, here, *after]}
            if after:
                forged["swapped"] = [*before, after[0], here, *after[1:]]
            for what, new in forged.items():
                file.write_text("".join(new))
                assert not checks(file), (what, place)
                assert file is log or not verifies(file), (what, place)


# ------------------------------------------------------------------------------- what verify is


def test_a_report_is_bounded(forger: Connection) -> None:
    problems = findings(forger, change("charges", {"outcome": "answered"}, label=9), "secret")
    assert len(problems) == 100
    assert problems[0] == "entry 1: altered"


def test_unknown_projects_cannot_be_verified(world: World) -> None:
    with pytest.raises(NotFound):
        world.ledger().verifier.verify_project("nobody")


@pytest.mark.slow
def test_verifying_a_longer_ledger_takes_no_more_memory(database_url: str) -> None:
    ledger = open_ledger(database_url)

    def peak(entries: int) -> int:
        name = f"project{entries}"
        project = open_project(ledger, entries, {"name": "gnmax", "sigma": 400.0}, name=name)
        for start in range(0, entries, 1000):
            charge_one(ledger, project.id, [answered(i) for i in range(start, start + 1000)])
        tracemalloc.start()
        assert ledger.verifier.verify_project(name).ok
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1000)  # what is read once and kept
    assert peak(8000) < 1.3 * peak(2000)
