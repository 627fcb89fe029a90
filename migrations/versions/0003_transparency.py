"""The transparency log: leaves and inner nodes, which are only added, and the last checkpoint."""

# ruff: noqa: S608 - statements are made of constants
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

DIGEST = sa.LargeBinary(32)
STAYS = "the transparency log is append-only: a leaf or a node is never changed or removed"
FIXED = "what was fixed when this was made cannot be changed"


def upgrade() -> None:
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
        check("tree_leaves", "entry_length", "length(entry) = 32"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tree_nodes",
        sa.Column("level", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("level", "position", name=op.f("pk_tree_nodes")),
        check("tree_nodes", "place", "level >= 1 AND position >= 0"),
        check("tree_nodes", "hash_length", "length(hash) = 32"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tree_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("blinding", DIGEST, nullable=False),
        sa.Column("checkpoint", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tree_head")),
        check("tree_head", "one", "id = 1"),
        check("tree_head", "blinding_length", "length(blinding) = 32"),
    )
    if op.get_bind().dialect.name == "sqlite":
        guard_sqlite()
    else:
        guard_postgresql()


def check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))


def guard_sqlite() -> None:
    def refuse(name: str, when: str, message: str, condition: str = "1") -> None:
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )

    # INSERT OR REPLACE removes rows without telling a trigger on DELETE: refuse it before.
    same = {
        "tree_leaves": "position = NEW.position OR (source = NEW.source AND seq = NEW.seq)",
        "tree_nodes": "level = NEW.level AND position = NEW.position",
    }
    for table, found in same.items():
        exists = f"EXISTS (SELECT 1 FROM {table} WHERE {found})"
        refuse(f"{table}_no_update", f"UPDATE ON {table}", STAYS)
        refuse(f"{table}_no_delete", f"DELETE ON {table}", STAYS)
        refuse(f"{table}_no_replace", f"INSERT ON {table}", STAYS, exists)
    refuse("tree_head_fixed", "UPDATE ON tree_head", FIXED, "NEW.blinding IS NOT OLD.blinding")
    refuse("tree_head_no_delete", "DELETE ON tree_head", STAYS)
    refuse("tree_head_no_replace", "INSERT ON tree_head", STAYS, "EXISTS (SELECT 1 FROM tree_head)")


def guard_postgresql() -> None:
    def refuse(name: str, when: str, message: str, condition: str | None = None) -> None:
        row = "ROW" if "TRUNCATE" not in when else "STATEMENT"
        guard = f"WHEN ({condition})" if condition else ""
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} FOR EACH {row} {guard} "
            f"EXECUTE FUNCTION terrine_refuse('{message}')"
        )

    for table in ("tree_leaves", "tree_nodes"):
        for what in ("UPDATE", "DELETE", "TRUNCATE"):
            refuse(f"{table}_no_{what.lower()}", f"{what} ON {table}", STAYS)
    changed = "NEW.blinding IS DISTINCT FROM OLD.blinding"
    refuse("tree_head_fixed", "UPDATE ON tree_head", FIXED, changed)
    refuse("tree_head_no_delete", "DELETE ON tree_head", STAYS)
    refuse("tree_head_no_truncate", "TRUNCATE ON tree_head", STAYS)
