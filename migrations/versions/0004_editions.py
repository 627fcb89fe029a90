"""The editions of ensembles of `neighbours`: made when people leave or come, and only added."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DIGEST = sa.LargeBinary(32)
TIME = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")
FIXED = "what was fixed when this was made cannot be changed"
STAYS = "editions are never removed"
COLUMNS = ("ensemble_id", "number", "manifest_sha256", "units", "slots", "erased", "begins")


def upgrade() -> None:
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
        sa.ForeignKeyConstraint(
            ["ensemble_id"], ["ensembles.id"], name=op.f("fk_editions_ensemble_id")
        ),
        check("manifest_sha256_length", "length(manifest_sha256) = 32"),
        check("seal_length", "length(seal) = 32"),
        check("number", "number >= 2"),
        check("units", "units >= 1"),
        check("slots", "slots >= 1"),
    )
    if op.get_bind().dialect.name == "sqlite":
        guard_sqlite()
    else:
        guard_postgresql()


def check(name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_editions_{name}"))


def changed(differs: str) -> str:
    return " OR ".join(f"NEW.{column} {differs} OLD.{column}" for column in (*COLUMNS, "made_at"))


def guard_sqlite() -> None:
    def refuse(name: str, when: str, message: str, condition: str = "1") -> None:
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )

    same = "ensemble_id = NEW.ensemble_id AND number = NEW.number"
    refuse("editions_fixed", "UPDATE ON editions", FIXED, changed("IS NOT"))
    refuse("editions_no_delete", "DELETE ON editions", STAYS)
    # INSERT OR REPLACE removes rows without telling a trigger on DELETE: refuse it before.
    exists = f"EXISTS (SELECT 1 FROM editions WHERE {same})"  # noqa: S608 - a constant
    refuse("editions_no_replace", "INSERT ON editions", STAYS, exists)


def guard_postgresql() -> None:
    def refuse(name: str, when: str, message: str, condition: str | None = None) -> None:
        row = "ROW" if "TRUNCATE" not in when else "STATEMENT"
        guard = f"WHEN ({condition})" if condition else ""
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} FOR EACH {row} {guard} "
            f"EXECUTE FUNCTION terrine_refuse('{message}')"
        )

    refuse("editions_fixed", "UPDATE ON editions", FIXED, changed("IS DISTINCT FROM"))
    refuse("editions_no_delete", "DELETE ON editions", STAYS)
    refuse("editions_no_truncate", "TRUNCATE ON editions", STAYS)
