"""The shadow accounts of a project of `neighbours`: public points, charged as if private."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DIGEST = sa.LargeBinary(32)


def upgrade() -> None:
    op.create_table(
        "shadow_accounts",
        sa.Column("project_id", ID, nullable=False),
        sa.Column("charges", sa.BigInteger(), nullable=False),
        sa.Column("head", DIGEST, nullable=False),
        sa.Column("accounts", sa.LargeBinary(), nullable=False),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_shadow_accounts")),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_shadow_accounts_project_id")
        ),
        digest("head"),
        digest("seal"),
        sa.CheckConstraint("charges >= 0", name=op.f("ck_shadow_accounts_charges")),
    )


def digest(column: str) -> sa.CheckConstraint:
    name = op.f(f"ck_shadow_accounts_{column}_length")
    return sa.CheckConstraint(f"length({column}) = 32", name=name)
