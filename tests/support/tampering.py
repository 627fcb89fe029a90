"""A small ledger of everything that is sealed, every edit of it, and who notices each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from books import (
    CONFIDENT,
    FACTS,
    GNMAX,
    RECORDS,
    answered,
    digest,
    open_ledger,
    open_project,
    register,
    terms,
)
from forging import add, altered, cut, remove, rewrite, rows_of, swap
from migrated import SECRET_KEY
from publishing import CAP, TEACHERS, open_published, voted
from sqlalchemy import Connection, Table, delete, insert, select, update

from terrine_protocol import ProjectStatus, Role, TokenCreate
from terrine_server.doctor import ledger as doctor
from terrine_server.errors import TerrineError
from terrine_server.ledger import Ledger, NewProject, connect
from terrine_server.ledger.anchors import Anchor, LogAnchor
from terrine_server.ledger.store.tables import metadata
from terrine_server.owner.tokens import Tokens

Edit = Callable[[Connection], object]
KEY = ("key", digest("body"))
TABLES = metadata.tables


@dataclass
class World:
    """A ledger of everything that is sealed, and what it was before its last acts."""

    url: str
    tokens: dict[str, str] = field(default_factory=dict)
    before: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    anchors: dict[str, Anchor] = field(default_factory=dict)
    log: LogAnchor | None = None

    def __post_init__(self) -> None:
        self.engine = connect(self.url)
        ledger = open_ledger(self.url, epsilon=80.0)
        register(ledger, "spare")
        info = FACTS.model_copy(update={"teachers": TEACHERS})
        thousand = digest("thousand").hex()
        ledger.register_ensemble("thousand", "ensembles/thousand", thousand, info, RECORDS, CAP)
        study = open_project(ledger, 20, CONFIDENT)
        for name in ("other", "done", "resting"):
            open_project(ledger, 3, GNMAX, name=name)
        ledger.open_project(NewProject("unused", "mnist", GNMAX, terms(3), "Unused", "To learn"))
        secret = open_published(ledger, "secret")
        batch = [answered(number, number) for number in range(3)]
        ledger.charge(study.id, batch, KEY)
        ledger.charge(study.id, [answered(9)], ("second", digest("second")))
        ledger.charge(ledger.project("other").id, [answered("other")])
        ledger.charge(secret.id, voted(secret, range(3)))
        self._make_tokens(ledger)
        for id in ("refused", "waiting"):
            ledger.make_request(
                id=id, token=self.id_of("student"), title=id, purpose="To learn", asked={}
            )
        self.before = self.rows()
        ledger.charge(study.id, [answered("last")])
        ledger.charge(secret.id, voted(secret, ["last"]))
        ledger.set_status("resting", ProjectStatus.PAUSED)
        ledger.set_status("done", ProjectStatus.CLOSED)
        ledger.revoke_token(self.id_of("revoked"))
        ledger.refuse_request("refused", "Not now")
        for name in ledger.project_names():
            anchor = ledger.verify(name).anchor
            assert anchor is not None
            self.anchors[name] = anchor
        self.log = ledger.verify_log().anchor
        assert self.log is not None

    def _make_tokens(self, ledger: Ledger) -> None:
        tokens = Tokens(ledger, SECRET_KEY)
        for label in ("student", "moved", "revoked"):
            request = TokenCreate(role=Role.STUDENT, project="study", label=label)
            self.tokens[label] = tokens.create(request).token
        for role in (Role.AUDITOR, Role.ADMIN):
            self.tokens[str(role)] = tokens.create(TokenCreate(role=role, label=str(role))).token

    def id_of(self, label: str) -> str:
        return self.tokens[label].split("_")[1]

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        with self.engine.connect() as connection:
            return {
                name: [dict(row._mapping) for row in connection.execute(select(table))]
                for name, table in TABLES.items()
            }


# --------------------------------------------------------------------------------- the edits


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


def copied(table: str, where: Mapping[str, Any], **new: Any) -> Edit:
    """A new row, like another one, with its seal."""
    made = TABLES[table]

    def edit(connection: Connection) -> None:
        query = select(made).where(*(made.c[name] == value for name, value in where.items()))
        row = dict(connection.execute(query).one()._mapping)
        connection.execute(insert(made).values({**row, **new}))

    return edit


def set_back(world: World, table: str, **where: Any) -> Edit:
    """A row as it once was, with the seal that it then had."""
    (row,) = (
        row
        for row in world.before[table]
        if all(row[name] == value for name, value in where.items())
    )
    return change(table, where, **row)


def every_column(world: World, table: str, **where: Any) -> Iterator[tuple[str, Edit]]:
    """The smallest change of each column of a row."""
    made: Table = TABLES[table]
    (row,) = (
        row
        for row in world.rows()[table]
        if all(row[name] == value for name, value in where.items())
    )
    for column in made.columns:
        if column.name not in where and not column.foreign_keys:
            edit = change(table, where, **{column.name: altered(row[column.name])})
            if row[column.name] is not None:
                yield f"{table}: another {column.name}", edit


def edits(world: World) -> Iterator[tuple[str, Edit]]:
    """Every edit, by what it does."""
    ids = {row["name"]: row["id"] for row in world.rows()["projects"]}
    study, done, student = {"id": ids["study"]}, {"id": ids["done"]}, world.id_of("student")
    yield from every_column(world, "projects", name="study")
    for column in ("spent", "delta_spent", "cap_spent"):
        yield f"projects: {column} = 0", change("projects", study, **{column: 0})
    for column in ("budget", "delta_budget", "cap_budget"):
        doubled = {column: TABLES["projects"].c[column] * 2}
        yield f"projects: {column} doubled", change("projects", study, **doubled)
    for column in ("title", "purpose"):
        described = change("projects", {"name": "unused"}, **{column: "another"})
        yield f"projects: another {column}", described
    yield "projects: paused", change("projects", study, status="paused")
    yield "projects: resumed", change("projects", {"name": "resting"}, status="active")
    yield "projects: reopened", change("projects", done, status="active", closed_at=None)
    yield "projects: reopened, with its old seal", set_back(world, "projects", **done)
    yield "projects: resumed, with its old seal", set_back(world, "projects", name="resting")
    yield "projects: on another ensemble", change("projects", study, ensemble_id=2)
    yield "projects: seal overwritten", change("projects", study, seal=bytes(32))
    yield "projects: removed", gone("projects", name="unused")
    yield "projects: a second one", copied("projects", study, id=99, name="second")
    older = set_back(world, "projects", **study)
    yield "projects: an older balance, with its seal", older
    yield (
        "projects, charges: the end cut off, with the older balance's seal",
        both(older, gone("charges", project_id=ids["study"], seq=5)),
    )

    yield from every_column(world, "ensembles", name="mnist")
    for column in ("cap", "delta_cap"):
        doubled = {column: TABLES["ensembles"].c[column] * 2}
        yield f"ensembles: {column} doubled", change("ensembles", {"name": "mnist"}, **doubled)
    freed = {"reserved": 0, "delta_reserved": 0}
    yield "ensembles: reservations = 0", change("ensembles", {"name": "mnist"}, **freed)
    yield "ensembles: older reservations", set_back(world, "ensembles", name="mnist")
    yield "ensembles: an unused one's cap", change("ensembles", {"name": "spare"}, cap=2**60)
    yield "ensembles: an unused one removed", gone("ensembles", name="spare")
    other = {"id": 9, "name": "ninth", "manifest_sha256": digest("ninth")}
    yield "ensembles: a second one", copied("ensembles", {"name": "spare"}, **other)

    yield from every_column(world, "charges", project_id=ids["study"], seq=2)
    yield "charges: the last one removed", gone("charges", project_id=ids["study"], seq=5)
    yield "charges: one removed", lambda connection: remove(connection, 2)
    yield "charges: two swapped", swap
    yield "charges: one added", lambda connection: add(connection, 6, rows_of(connection))
    yield "charges: the end cut off, the balance set back", lambda c: cut(c, 4)
    yield "charges: a label, and the chain to its end", lambda c: rewrite(c, 2, label=7)

    yield from every_column(world, "tokens", id=student)
    roles: dict[str, dict[str, Any]] = {
        "auditor": {"role": "admin"},
        "student": {"role": "admin", "project_id": None},
        "moved": {"project_id": ids["other"]},
        "revoked": {"revoked_at": None},
    }
    for label, new in roles.items():
        what = f"tokens: {label}: {', '.join(new)} edited"
        yield what, change("tokens", {"id": world.id_of(label)}, **new)
    yield (
        "tokens: no longer revoked, with its old seal",
        set_back(world, "tokens", id=world.id_of("revoked")),
    )
    yield "tokens: removed", gone("tokens", id=student)
    yield "tokens: a second one", copied("tokens", {"id": student}, id="0" * 16)
    yield "tokens: seal overwritten", change("tokens", {"id": student}, seal=bytes(32))

    refused = {"id": "refused"}
    yield from every_column(world, "requests", **refused)
    yield "requests: of another token", change("requests", refused, token_id=world.id_of("moved"))
    yield "requests: open again, with its old seal", set_back(world, "requests", **refused)
    yield "requests: removed", gone("requests", id="waiting")
    yield "requests: a second one", copied("requests", refused, id="third")

    key = {"project_id": ids["study"], "key": "key"}
    yield from every_column(world, "idempotency", **key)
    yield "idempotency: other entries", change("idempotency", key, results="[3,2,1]")
    second = {**key, "key": "second"}
    moved = {name: world.rows()["idempotency"][0][name] for name in ("results", "seal")}
    yield "idempotency: another key's record", change("idempotency", second, **moved)
    yield "idempotency: another project's", change("idempotency", key, project_id=ids["other"])
    yield "idempotency: a second one", copied("idempotency", key, key="third")

    secret = {"project_id": ids["secret"]}
    yield from every_column(world, "secret_spends", **secret)
    yield "secret_spends: an older tally, with its seal", set_back(world, "secret_spends", **secret)

    last = world.rows()["administrative_log"][-1]["seq"]
    yield from every_column(world, "administrative_log", seq=2)
    yield "log: the last entry removed", gone("administrative_log", seq=last)
    yield "log: an entry removed", gone("administrative_log", seq=3)
    yield "log: all removed", gone("administrative_log")
    yield "log: one added", copied("administrative_log", {"seq": last}, seq=last + 1)
    yield from every_column(world, "log_head", id=1)
    yield "log_head: removed", gone("log_head")
    shorter = [
        gone("administrative_log", seq=row["seq"])
        for row in world.rows()["administrative_log"]
        if row["seq"] > world.before["log_head"][0]["entries"]
    ]
    yield (
        "log, log_head: cut off, with the older seal",
        both(*shorter, set_back(world, "log_head", id=1)),
    )
    yield (
        "log, tokens: a revocation undone in both, with older seals",
        both(
            *shorter,
            set_back(world, "log_head", id=1),
            set_back(world, "tokens", id=world.id_of("revoked")),
            set_back(world, "projects", **done),
            set_back(world, "projects", name="resting"),
            set_back(world, "ensembles", name="mnist"),
        ),
    )


# ------------------------------------------------------------------------------- who notices


def requests(world: World) -> dict[str, Callable[[Ledger], object]]:
    """What a server is asked, in this order, and how its answer is compared."""

    def labels(receipt: Any) -> list[Any]:
        return [(result.outcome, result.label, result.seq) for result in receipt.results]

    def asks(name: str, *queries: object, key: Any = None) -> Callable[[Ledger], object]:
        batch = [answered(query, 5) for query in queries]
        return lambda ledger: labels(ledger.charge(ledger.project(name).id, batch, key))

    def consults(name: str) -> Callable[[Ledger], object]:
        def ask(ledger: Ledger) -> object:
            project = ledger.look_up(name, [None], [[]]).project
            return project.account, project.status, project.terms

        return ask

    def publishes(ledger: Ledger) -> object:
        project = ledger.project("secret")
        return labels(ledger.charge(project.id, voted(project, ["new"])))

    def shows(token: str) -> Callable[[Ledger], object]:
        return lambda ledger: Tokens(ledger, SECRET_KEY).authenticate(token)

    found: dict[str, Callable[[Ledger], object]] = {
        "retry": asks("study", 0, 1, 2, key=KEY),
        "second retry": asks("study", 9, key=("second", digest("second"))),
        "repeat": asks("study", 0, 1, 2),
        "closed": asks("done", "new"),
        "resting": asks("resting", "new"),
    }
    for name in ("study", "other", "done", "resting"):
        found[f"account of {name}"] = consults(name)
    for label, token in world.tokens.items():
        found[label] = shows(token)
    return found | {
        "new": asks("study", "new"),
        "tally": publishes,
        "open": lambda ledger: (
            ledger.open_project(NewProject("new", "mnist", GNMAX, terms(2))).status
        ),
        "open on spare": lambda ledger: (
            ledger.open_project(NewProject("newer", "spare", GNMAX, terms(2))).ensemble.cap
        ),
        "pause": lambda ledger: ledger.set_status("unused", ProjectStatus.PAUSED).status,
        "requests": lambda ledger: [(each.id, each.status) for each in ledger.list_requests()],
    }


def reply(world: World, name: str, key: bytes = SECRET_KEY) -> object:
    """What a server that has read nothing yet answers; the kind of error if it refuses."""
    try:
        return requests(world)[name](Ledger(world.engine, key))
    except TerrineError as error:
        return f"refused: {error.problem}"


def noticed(check: Callable[[], bool]) -> bool:
    """Whether a check finds something, or cannot even be made."""
    try:
        return check()
    except TerrineError:
        return True


def who(world: World, key: bytes = SECRET_KEY) -> dict[str, bool]:
    """Who, of those that look at the rows, notices that something is wrong."""
    ledger = Ledger(world.engine, key)

    def verify(anchored: bool = False) -> list[str]:
        names = sorted({*ledger.project_names(), *(world.anchors if anchored else ())})
        found = [
            problem
            for name in names
            for problem in ledger.verify(
                name, world.anchors.get(name) if anchored else None
            ).problems
        ]
        return [*found, *ledger.verify_log(world.log if anchored else None).problems]

    def starts() -> bool:
        ledger.check_sealed()
        ledger.ensembles()
        return not ledger.verify_log().ok

    return {
        "verify": noticed(lambda: bool(verify())),
        "anchor": noticed(lambda: any("anchor:" in problem for problem in verify(True))),
        "doctor": noticed(
            lambda: any(f.state == "problem" for f in (*doctor.ends(ledger), *doctor.log(ledger)))
        ),
        "start": noticed(starts),
    }
