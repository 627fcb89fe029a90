"""Which token paid for which entries; and tokens that may read metrics alone.

What was charged before has no payer here: the server's log of then names it.
"""

# ruff: noqa: S608 - statements are made of constants
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DIGEST = sa.LargeBinary(32)
TIME = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")
PAYMENTS_STAY = "who paid is append-only: a payment is never changed or removed"
FIXED = "what was fixed when this was made cannot be changed"
FIXED_COLUMNS = ("project_id", "first_seq", "last_seq", "token_id")
TOKEN_COLUMNS = (
    "id",
    "role",
    "project_id",
    "label",
    "hash",
    "created_at",
    "expires_at",
    "revoked_at",
    "seal",
)
ROLES = "role IN ('student', 'auditor', 'metrics', 'admin')"


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    op.create_table(
        "payments",
        sa.Column("project_id", ID, autoincrement=False, nullable=False),
        sa.Column("first_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("token_id", sa.String(64), nullable=False),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "first_seq", name=op.f("pk_payments")),
        check("payments", "entries", "first_seq >= 1 AND last_seq >= first_seq"),
        check("payments", "seal_length", "length(seal) = 32"),
        sqlite_with_rowid=False,
    )
    guard_payments(sqlite)
    if sqlite:
        rebuild_tokens()
    else:
        op.drop_constraint(op.f("ck_tokens_role"), "tokens")
        op.create_check_constraint(op.f("ck_tokens_role"), "tokens", ROLES)


def guard_payments(sqlite: bool) -> None:
    differs = "IS NOT" if sqlite else "IS DISTINCT FROM"
    changed = " OR ".join(f"NEW.{column} {differs} OLD.{column}" for column in FIXED_COLUMNS)
    refuse(sqlite, "payments_fixed", "UPDATE ON payments", FIXED, changed)
    refuse(sqlite, "payments_no_delete", "DELETE ON payments", PAYMENTS_STAY)
    if sqlite:
        # INSERT OR REPLACE removes rows without telling a trigger on DELETE: refuse it before.
        there = (
            "EXISTS (SELECT 1 FROM payments WHERE project_id = NEW.project_id "
            "AND first_seq = NEW.first_seq)"
        )
        refuse(sqlite, "payments_no_replace", "INSERT ON payments", PAYMENTS_STAY, there)
    else:
        refuse(sqlite, "payments_no_truncate", "TRUNCATE ON payments", PAYMENTS_STAY)


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


def rebuild_tokens() -> None:
    """SQLite changes no constraint in place. Foreign keys are checked before the commit."""
    op.create_table(
        "new_tokens",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("role", sa.String(7), nullable=False),
        sa.Column("project_id", ID),
        sa.Column("label", sa.String(100), nullable=False),
        sa.Column("hash", DIGEST, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("revoked_at", TIME),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_tokens_project_id")),
        check("tokens", "hash_length", "length(hash) = 32"),
        check("tokens", "seal_length", "length(seal) = 32"),
        check("tokens", "role", ROLES),
        check("tokens", "project", "(role = 'student') = (project_id IS NOT NULL)"),
    )
    columns = ", ".join(TOKEN_COLUMNS)
    op.execute(f"INSERT INTO new_tokens ({columns}) SELECT {columns} FROM tokens")
    op.execute("DROP TABLE tokens")
    op.execute("ALTER TABLE new_tokens RENAME TO tokens")
    op.create_index("ix_tokens_project_id", "tokens", ["project_id"])


def check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))
