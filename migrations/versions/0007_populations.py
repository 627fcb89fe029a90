"""Populations: the cap belongs to people whom the owner names, no longer to an ensemble.

Whose cap an ensemble shared followed from keyed digests of its private data. Their table goes.
Ensembles that shared one cap become one population; each is sealed anew, and the administrative log
says so. A single cap becomes the population `people`; of several, each has the name of the ensemble
whose row counted what was reserved of it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

from terrine_server.errors import LedgerCorrupted
from terrine_server.ledger import log
from terrine_server.ledger.chain import Action, iso
from terrine_server.ledger.database import Transaction
from terrine_server.ledger.seals import Seals

revision = "0007"
down_revision = "0006"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DIGEST = sa.LargeBinary(32)
TIME = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")
FIXED = "what was fixed when this was made cannot be changed"
NO_REMOVAL = "accounts are never removed"
CAP = ("epsilon", "delta", "rdp_order", "cap", "delta_cap")
RESERVED = ("reserved", "delta_reserved")
FIXED_COLUMNS = {
    "populations": ("id", "name", *CAP, "disjoint_from", "declared_at"),
    "ensembles": (
        "id",
        "name",
        "population_id",
        "manifest_sha256",
        "info",
        "units",
        "registered_at",
    ),
}
OLD_SEALS = {
    "ensembles": (
        "id",
        "name",
        "path",
        "manifest_sha256",
        "info",
        "units",
        *CAP,
        *RESERVED,
        "registered_at",
    ),
    "private_data": ("ensemble_id", "cap_id", "edition", "key_check", "digests"),
}
"""By table: the columns that its seals covered."""
NEW_SEALS = {
    "populations": ("id", "name", *CAP, *RESERVED, "disjoint_from", "declared_at"),
    "ensembles": (
        "id",
        "name",
        "population_id",
        "path",
        "manifest_sha256",
        "info",
        "units",
        "registered_at",
    ),
}


def upgrade() -> None:
    connection = op.get_bind()
    old_ensembles, groups = read_old(connection)
    op.create_table("populations", *population_columns())
    sqlite = connection.dialect.name == "sqlite"
    if not sqlite:
        for trigger in ("fixed", "no_delete", "no_truncate"):
            op.execute(f"DROP TRIGGER ensembles_{trigger} ON ensembles")
    rebuild_ensembles(sqlite)
    op.drop_table("private_data")
    if old_ensembles:
        carry_over(connection, old_ensembles, groups)
    if not sqlite:
        op.alter_column("ensembles", "population_id", nullable=False)
    guard(sqlite)


def population_columns() -> list[sa.schema.SchemaItem]:
    return [
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("epsilon", sa.Float(53), nullable=False),
        sa.Column("delta", sa.Float(53), nullable=False),
        sa.Column("rdp_order", sa.Float(53)),
        sa.Column("cap", sa.BigInteger(), nullable=False),
        sa.Column("delta_cap", sa.BigInteger(), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.Column("delta_reserved", sa.BigInteger(), nullable=False),
        sa.Column("disjoint_from", sa.Text()),
        sa.Column("declared_at", TIME, nullable=False),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_populations")),
        sa.UniqueConstraint("name", name=op.f("uq_populations_name")),
        check("populations", "reserved", "reserved BETWEEN 0 AND cap"),
        check("populations", "delta_reserved", "delta_reserved BETWEEN 0 AND delta_cap"),
        digest("populations", "seal"),
    ]


def rebuild_ensembles(sqlite: bool) -> None:
    """Take the cap out of `ensembles`, and let each have a population."""
    if sqlite:
        # SQLite drops no column that a constraint names. Whoever migrates does not enforce foreign
        # keys meanwhile, and checks them before it commits.
        op.create_table(
            "new_ensembles",
            sa.Column("id", ID, nullable=False),
            sa.Column("name", sa.String(64), nullable=False),
            sa.Column("population_id", ID, nullable=False),
            sa.Column("path", sa.Text(), nullable=False),
            sa.Column("manifest_sha256", DIGEST, nullable=False),
            sa.Column("info", sa.Text(), nullable=False),
            sa.Column("units", sa.BigInteger(), nullable=False),
            sa.Column("registered_at", TIME, nullable=False),
            sa.Column("seal", DIGEST, nullable=False),
            sa.PrimaryKeyConstraint("id", name=op.f("pk_ensembles")),
            sa.ForeignKeyConstraint(
                ["population_id"], ["populations.id"], name=op.f("fk_ensembles_population_id")
            ),
            sa.UniqueConstraint("name", name=op.f("uq_ensembles_name")),
            sa.UniqueConstraint("manifest_sha256", name=op.f("uq_ensembles_manifest_sha256")),
            digest("ensembles", "manifest_sha256"),
            digest("ensembles", "seal"),
            check("ensembles", "units", "units >= 1"),
        )
        op.execute("DROP TABLE ensembles")
        op.execute("ALTER TABLE new_ensembles RENAME TO ensembles")
    else:
        for column in (*CAP, *RESERVED):
            op.drop_column("ensembles", column)  # with the constraints that name it
        op.add_column("ensembles", sa.Column("population_id", ID))
        op.create_foreign_key(
            op.f("fk_ensembles_population_id"),
            "ensembles",
            "populations",
            ["population_id"],
            ["id"],
        )
    op.create_index(op.f("ix_ensembles_population_id"), "ensembles", ["population_id"])


def read_old(connection: sa.Connection) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Return all ensembles, and whose row counted for each of them, by id. Checks their seals."""
    names = (*OLD_SEALS["ensembles"], "seal")
    found = [dict(row) for row in rows_of(connection, "ensembles", names)]
    shares = list(rows_of(connection, "private_data", (*OLD_SEALS["private_data"], "seal")))
    if found:
        check_seals("ensembles", found)
        check_seals("private_data", shares)
    heads = {row["ensemble_id"]: row["cap_id"] for row in shares}
    return found, {row["id"]: heads.get(row["id"], row["id"]) for row in found}


def carry_over(
    connection: sa.Connection, old: list[dict[str, Any]], heads: Mapping[int, int]
) -> None:
    """Make a population of each cap, and put each ensemble into its own."""
    seals, now = own_seals(), datetime.now(UTC)
    tx = Transaction(connection, seals, now, None)
    counted = [row for row in old if row["id"] in set(heads.values())]
    ids: dict[int, tuple[int, str]] = {}
    for head in counted:
        name = "people" if len(counted) == 1 else head["name"]
        made = {column: head[column] for column in ("name", *CAP, *RESERVED)} | {
            "name": name,
            "disjoint_from": None if len(counted) > 1 else "[]",
            "declared_at": written(now, connection),
        }
        table = typed("populations", NEW_SEALS["populations"])
        unsealed = {name: made[name] for name in NEW_SEALS["populations"] if name != "id"}
        connection.execute(sa.insert(table).values({**unsealed, "seal": bytes(32)}))
        id = connection.execute(sa.select(table.c.id).where(table.c.name == name)).scalar_one()
        seal = seal_of(seals, "populations", NEW_SEALS, {**made, "id": id})
        connection.execute(sa.update(table).where(table.c.id == id).values(seal=seal))
        ids[head["id"]] = id, name
        facts = {column: made[column] for column in (*CAP, "disjoint_from")}
        detail = {**facts, "declared_at": iso(now)}
        log.record(tx, Action.POPULATION_DECLARED, name, detail)
    for row in old:
        population, name = ids[heads[row["id"]]]
        row = {**row, "population_id": population}
        seal = seal_of(seals, "ensembles", NEW_SEALS, row)
        table = typed("ensembles", NEW_SEALS["ensembles"])
        if connection.dialect.name == "sqlite":
            kept = {column: row[column] for column in NEW_SEALS["ensembles"]}
            connection.execute(sa.insert(table).values({**kept, "seal": seal}))
        else:
            changed = {"population_id": population, "seal": seal}
            connection.execute(sa.update(table).where(table.c.id == row["id"]).values(changed))
        registered = row["registered_at"]
        detail = {
            "population": name,
            "path": row["path"],
            "manifest_sha256": row["manifest_sha256"].hex(),
            "units": row["units"],
            "registered_at": registered if isinstance(registered, str) else iso(registered),
        }
        log.record(tx, Action.ENSEMBLE_ADOPTED, row["name"], detail)


def own_seals() -> Seals:
    seals = op.get_context().config.attributes.get("seals")  # type: ignore[union-attr]
    if not isinstance(seals, Seals):
        raise RuntimeError("rows can be carried over only with the ledger's key")
    return seals


def check_seals(table: str, found: Iterable[Mapping[str, Any]]) -> None:
    """Raise LedgerCorrupted unless each row has the seal that it was written with."""
    seals = own_seals()
    log.check_head(op.get_bind(), seals)  # says if it is another key
    for row in found:
        try:
            right = hmac.compare_digest(row["seal"], seal_of(seals, table, OLD_SEALS, row))
        except (TypeError, ValueError):
            right = False
        if not right:
            raise LedgerCorrupted(
                f"A row of {table} was altered or damaged, so nothing was migrated: check the "
                "ledger with the version that wrote it, or restore a backup."
            )


def seal_of(
    seals: Seals, table: str, columns: Mapping[str, tuple[str, ...]], row: Mapping[str, Any]
) -> bytes:
    return seals.over(table, [row[name] for name in columns[table]])


def rows_of(
    connection: sa.Connection, table: str, names: tuple[str, ...]
) -> Iterator[Mapping[str, Any]]:
    key = typed(table, names).c[names[0]]
    yield from connection.execute(sa.select(typed(table, names)).order_by(key)).mappings().all()


def typed(table: str, names: tuple[str, ...]) -> sa.TableClause:
    """The table as far as it is used here, with values of the types that seals cover."""
    types: dict[str, Any] = {"registered_at": TIME, "declared_at": TIME}
    every = dict.fromkeys((*names, "seal"))
    return sa.table(table, *(sa.column(name, types.get(name)) for name in every))


def written(instant: datetime, connection: sa.Connection) -> datetime | str:
    return iso(instant) if connection.dialect.name == "sqlite" else instant


def check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))


def digest(table: str, column: str) -> sa.CheckConstraint:
    return check(table, f"{column}_length", f"length({column}) = 32")


def guard(sqlite: bool) -> None:
    """Refuse changes of what is fixed, and removals."""
    differs = "IS NOT" if sqlite else "IS DISTINCT FROM"
    for table, columns in FIXED_COLUMNS.items():
        changed = " OR ".join(f"NEW.{column} {differs} OLD.{column}" for column in columns)
        refuse(sqlite, f"{table}_fixed", f"UPDATE ON {table}", FIXED, changed)
        refuse(sqlite, f"{table}_no_delete", f"DELETE ON {table}", NO_REMOVAL)
        if not sqlite:
            refuse(sqlite, f"{table}_no_truncate", f"TRUNCATE ON {table}", NO_REMOVAL)


def refuse(sqlite: bool, name: str, when: str, message: str, condition: str | None = None) -> None:
    if sqlite:
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} WHEN {condition or '1'} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )
    else:
        each = "STATEMENT" if "TRUNCATE" in when else "ROW"
        guarded = f"WHEN ({condition})" if condition else ""
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} FOR EACH {each} {guarded} "
            f"EXECUTE FUNCTION terrine_refuse('{message}')"
        )
