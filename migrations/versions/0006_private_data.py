"""Which private data each ensemble has, and whose cap it shares. Idempotency keys are gone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DIGEST = sa.LargeBinary(32)
FIXED = "what was fixed when this was made cannot be changed"
STAYS = "whose cap an ensemble shares is never removed"
COLUMNS = ("ensemble_id", "cap_id")


def upgrade() -> None:
    op.drop_table("idempotency")
    op.create_table(
        "private_data",
        sa.Column("ensemble_id", ID, autoincrement=False, nullable=False),
        sa.Column("cap_id", ID, nullable=False),
        sa.Column("edition", sa.BigInteger(), nullable=False),
        sa.Column("key_check", sa.LargeBinary(), nullable=False),
        sa.Column("digests", sa.Text(), nullable=False),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("ensemble_id", name=op.f("pk_private_data")),
        sa.ForeignKeyConstraint(
            ["ensemble_id"], ["ensembles.id"], name=op.f("fk_private_data_ensemble_id")
        ),
        sa.ForeignKeyConstraint(["cap_id"], ["ensembles.id"], name=op.f("fk_private_data_cap_id")),
        check("seal_length", "length(seal) = 32"),
        check("key_check_length", "length(key_check) IN (0, 32)"),
        check("edition", "edition >= 1"),
    )
    op.create_index(op.f("ix_private_data_cap_id"), "private_data", ["cap_id"])
    if op.get_bind().dialect.name == "sqlite":
        guard_sqlite()
    else:
        guard_postgresql()


def check(name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_private_data_{name}"))


def changed(differs: str) -> str:
    return " OR ".join(f"NEW.{column} {differs} OLD.{column}" for column in COLUMNS)


def guard_sqlite() -> None:
    def refuse(name: str, when: str, message: str, condition: str = "1") -> None:
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )

    refuse("private_data_fixed", "UPDATE ON private_data", FIXED, changed("IS NOT"))
    refuse("private_data_no_delete", "DELETE ON private_data", STAYS)
    # INSERT OR REPLACE removes rows without telling a trigger on DELETE: refuse it before.
    same = "ensemble_id = NEW.ensemble_id"
    exists = f"EXISTS (SELECT 1 FROM private_data WHERE {same})"  # noqa: S608 - a constant
    refuse("private_data_no_replace", "INSERT ON private_data", STAYS, exists)


def guard_postgresql() -> None:
    def refuse(name: str, when: str, message: str, condition: str | None = None) -> None:
        row = "ROW" if "TRUNCATE" not in when else "STATEMENT"
        guard = f"WHEN ({condition})" if condition else ""
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} FOR EACH {row} {guard} "
            f"EXECUTE FUNCTION terrine_refuse('{message}')"
        )

    refuse("private_data_fixed", "UPDATE ON private_data", FIXED, changed("IS DISTINCT FROM"))
    refuse("private_data_no_delete", "DELETE ON private_data", STAYS)
    refuse("private_data_no_truncate", "TRUNCATE ON private_data", STAYS)
