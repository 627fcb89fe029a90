"""The accounts of the units of a project of `neighbours`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DIGEST = sa.LargeBinary(32)


def upgrade() -> None:
    op.create_table(
        "unit_accounts",
        sa.Column("project_id", ID, nullable=False),
        sa.Column("charges", sa.BigInteger(), nullable=False),
        sa.Column("head", DIGEST, nullable=False),
        sa.Column("filled", sa.BigInteger(), nullable=False),
        sa.Column("accounts", sa.LargeBinary(), nullable=False),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_unit_accounts")),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_unit_accounts_project_id")
        ),
        digest("head"),
        digest("seal"),
        sa.CheckConstraint("charges >= 0", name=op.f("ck_unit_accounts_charges")),
        sa.CheckConstraint("filled IN (0, 1)", name=op.f("ck_unit_accounts_filled")),
    )
    if op.get_bind().dialect.name == "postgresql":
        # Never compressed: size and duration would depend on what is in it.
        op.execute("ALTER TABLE unit_accounts ALTER COLUMN accounts SET STORAGE EXTERNAL")


def digest(column: str) -> sa.CheckConstraint:
    name = op.f(f"ck_unit_accounts_{column}_length")
    return sa.CheckConstraint(f"length({column}) = 32", name=name)
