"""Accounts of people and shadows, editions, private data, and the transparency log.

Idempotency keys are gone.
"""

# ruff: noqa: S608 - statements are made of constants
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0001"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DIGEST = sa.LargeBinary(32)
TIME = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")
FIXED = "what was fixed when this was made cannot be changed"
LOG_STAYS = "the transparency log is append-only: a leaf or a node is never changed or removed"
EDITIONS_STAY = "editions are never removed"
SHARES_STAY = "whose cap an ensemble shares is never removed"

STAYS = {
    "tree_leaves": LOG_STAYS,
    "tree_nodes": LOG_STAYS,
    "tree_head": LOG_STAYS,
    "editions": EDITIONS_STAY,
    "private_data": SHARES_STAY,
}
"""What is said to whoever removes a row, or changes what is fixed in a table without `COLUMNS`."""
COLUMNS = {
    "tree_head": ("blinding",),
    "editions": (
        "ensemble_id",
        "number",
        "manifest_sha256",
        "units",
        "slots",
        "erased",
        "begins",
        "made_at",
    ),
    "private_data": ("ensemble_id", "cap_id"),
}
"""What is fixed in a row; in the other tables, everything."""
SAME = {
    "tree_leaves": "position = NEW.position OR (source = NEW.source AND seq = NEW.seq)",
    "tree_nodes": "level = NEW.level AND position = NEW.position",
    "tree_head": "true",
    "editions": "ensemble_id = NEW.ensemble_id AND number = NEW.number",
    "private_data": "ensemble_id = NEW.ensemble_id",
}
"""Which row `INSERT OR REPLACE` would remove."""


def upgrade() -> None:
    op.drop_table("idempotency")
    op.create_table("unit_accounts", *accounts("unit_accounts", filled=True))
    op.create_table("shadow_accounts", *accounts("shadow_accounts", filled=False))
    op.create_table(
        "tree_leaves",
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("source", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("entry", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_tree_leaves")),
        sa.UniqueConstraint("source", "seq", name=op.f("uq_tree_leaves_source_seq")),
        check("tree_leaves", "position", "position >= 0"),
        check("tree_leaves", "source", "source >= 0"),
        check("tree_leaves", "seq", "seq >= 1"),
        digest("tree_leaves", "entry"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tree_nodes",
        sa.Column("level", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("level", "position", name=op.f("pk_tree_nodes")),
        check("tree_nodes", "place", "level >= 1 AND position >= 0"),
        digest("tree_nodes", "hash"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tree_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("blinding", DIGEST, nullable=False),
        sa.Column("checkpoint", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tree_head")),
        check("tree_head", "one", "id = 1"),
        digest("tree_head", "blinding"),
    )
    op.create_table(
        "editions",
        sa.Column("ensemble_id", ID, autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("manifest_sha256", DIGEST, nullable=False),
        sa.Column("units", sa.BigInteger(), nullable=False),
        sa.Column("slots", sa.BigInteger(), nullable=False),
        sa.Column("erased", sa.Text(), nullable=False),
        sa.Column("begins", sa.Text(), nullable=False),
        sa.Column("made_at", TIME, nullable=False),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("ensemble_id", "number", name=op.f("pk_editions")),
        to("editions", "ensemble_id", "ensembles"),
        digest("editions", "manifest_sha256"),
        digest("editions", "seal"),
        check("editions", "number", "number >= 2"),
        check("editions", "units", "units >= 1"),
        check("editions", "slots", "slots >= 1"),
    )
    op.create_table(
        "private_data",
        sa.Column("ensemble_id", ID, autoincrement=False, nullable=False),
        sa.Column("cap_id", ID, nullable=False),
        sa.Column("edition", sa.BigInteger(), nullable=False),
        sa.Column("key_check", sa.LargeBinary(), nullable=False),
        sa.Column("digests", sa.Text(), nullable=False),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("ensemble_id", name=op.f("pk_private_data")),
        to("private_data", "ensemble_id", "ensembles"),
        to("private_data", "cap_id", "ensembles"),
        digest("private_data", "seal"),
        check("private_data", "key_check_length", "length(key_check) IN (0, 32)"),
        check("private_data", "edition", "edition >= 1"),
    )
    op.create_index(op.f("ix_private_data_cap_id"), "private_data", ["cap_id"])
    if op.get_bind().dialect.name == "sqlite":
        guard_sqlite()
    else:
        # Never compressed: size and duration would depend on what is in it.
        op.execute("ALTER TABLE unit_accounts ALTER COLUMN accounts SET STORAGE EXTERNAL")
        guard_postgresql()


def accounts(table: str, filled: bool) -> list[sa.schema.SchemaItem]:
    """The columns of accounts: of units, or of public points that are charged as if private."""
    mark = [sa.Column("filled", sa.BigInteger(), nullable=False)] if filled else []
    return [
        sa.Column("project_id", ID, nullable=False),
        sa.Column("charges", sa.BigInteger(), nullable=False),
        sa.Column("head", DIGEST, nullable=False),
        *mark,
        sa.Column("accounts", sa.LargeBinary(), nullable=False),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("project_id", name=op.f(f"pk_{table}")),
        to(table, "project_id", "projects"),
        digest(table, "head"),
        digest(table, "seal"),
        check(table, "charges", "charges >= 0"),
        *([check(table, "filled", "filled IN (0, 1)")] if filled else []),
    ]


def check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))


def digest(table: str, column: str) -> sa.CheckConstraint:
    return check(table, f"{column}_length", f"length({column}) = 32")


def to(table: str, column: str, other: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{other}.id"], name=op.f(f"fk_{table}_{column}"))


def changed(table: str, differs: str) -> str:
    return " OR ".join(f"NEW.{column} {differs} OLD.{column}" for column in COLUMNS[table])


def guard_sqlite() -> None:
    def refuse(name: str, when: str, message: str, condition: str = "1") -> None:
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )

    for table, stays in STAYS.items():
        if table in COLUMNS:
            refuse(f"{table}_fixed", f"UPDATE ON {table}", FIXED, changed(table, "IS NOT"))
        else:
            refuse(f"{table}_no_update", f"UPDATE ON {table}", stays)
        refuse(f"{table}_no_delete", f"DELETE ON {table}", stays)
        # INSERT OR REPLACE removes rows without telling a trigger on DELETE: refuse it before.
        exists = f"EXISTS (SELECT 1 FROM {table} WHERE {SAME[table]})"
        refuse(f"{table}_no_replace", f"INSERT ON {table}", stays, exists)


def guard_postgresql() -> None:
    def refuse(name: str, when: str, message: str, condition: str | None = None) -> None:
        row = "ROW" if "TRUNCATE" not in when else "STATEMENT"
        guard = f"WHEN ({condition})" if condition else ""
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} FOR EACH {row} {guard} "
            f"EXECUTE FUNCTION terrine_refuse('{message}')"
        )

    for table, stays in STAYS.items():
        if table in COLUMNS:
            differs = changed(table, "IS DISTINCT FROM")
            refuse(f"{table}_fixed", f"UPDATE ON {table}", FIXED, differs)
        else:
            refuse(f"{table}_no_update", f"UPDATE ON {table}", stays)
        refuse(f"{table}_no_delete", f"DELETE ON {table}", stays)
        refuse(f"{table}_no_truncate", f"TRUNCATE ON {table}", stays)
