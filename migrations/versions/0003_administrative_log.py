"""Seals of rows that are not charges, and the administrative log.

Rows of an earlier version have no seal until `terrine ledger seal` has verified the ledger.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

TIMESTAMP = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")
DIGEST = sa.LargeBinary(32)
SEALED = ("ensembles", "projects", "secret_spends", "idempotency", "tokens")
LOG_STAYS = "the administrative log is append-only: an entry is never changed or removed"


def upgrade() -> None:
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for table in SEALED:
        if on_sqlite:
            # SQLite adds a constraint to a table only with a column, or by copying all rows.
            op.execute(
                f"ALTER TABLE {table} ADD COLUMN seal BLOB "
                f"CONSTRAINT ck_{table}_seal_length CHECK (length(seal) = 32)"
            )
        else:
            op.add_column(table, sa.Column("seal", DIGEST))
            op.create_check_constraint(op.f(f"ck_{table}_seal_length"), table, "length(seal) = 32")
    op.create_table(
        "administrative_log",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("request_id", sa.String(64)),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("hash", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_administrative_log")),
        sa.CheckConstraint("seq >= 1", name=op.f("ck_administrative_log_seq")),
        sa.CheckConstraint("length(hash) = 32", name=op.f("ck_administrative_log_hash_length")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_administrative_log_subject_seq", "administrative_log", ["subject", "seq"])
    op.create_table(
        "log_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key_check", DIGEST, nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("head", DIGEST, nullable=False),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_head")),
        sa.CheckConstraint("id = 1", name=op.f("ck_log_head_one")),
        *(
            sa.CheckConstraint(f"length({name}) = 32", name=op.f(f"ck_log_head_{name}_length"))
            for name in ("key_check", "head", "seal")
        ),
    )
    for statement in sqlite_triggers() if on_sqlite else postgresql_triggers():
        op.execute(statement)


def sqlite_triggers() -> list[str]:
    def refuse(name: str, when: str, condition: str = "1") -> str:
        return (
            f"CREATE TRIGGER {name} BEFORE {when} ON administrative_log WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, '{LOG_STAYS}'); END"
        )

    # INSERT OR REPLACE removes a row without telling the trigger on DELETE.
    taken = "EXISTS (SELECT 1 FROM administrative_log WHERE seq = NEW.seq)"
    return [
        refuse("administrative_log_no_update", "UPDATE"),
        refuse("administrative_log_no_delete", "DELETE"),
        refuse("administrative_log_no_replace", "INSERT", taken),
    ]


def postgresql_triggers() -> list[str]:
    return [
        f"CREATE TRIGGER administrative_log_no_{what.lower()} BEFORE {what} ON administrative_log "
        f"FOR EACH {'STATEMENT' if what == 'TRUNCATE' else 'ROW'} "
        f"EXECUTE FUNCTION terrine_refuse('{LOG_STAYS}')"
        for what in ("UPDATE", "DELETE", "TRUNCATE")
    ]
