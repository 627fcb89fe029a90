"""The noisy counts that an answer of noisy_votes came with, beside its label.

A column of `charges`, so the triggers that keep charges as they are keep it too.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

CHECK = "counts IS NULL OR outcome = 'answered'"


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        # SQLite adds a constraint to a table only with a column, or by copying all rows.
        op.execute(
            "ALTER TABLE charges ADD COLUMN counts TEXT "
            f"CONSTRAINT ck_charges_counts CHECK ({CHECK})"
        )
    else:
        op.add_column("charges", sa.Column("counts", sa.Text()))
        op.create_check_constraint(op.f("ck_charges_counts"), "charges", CHECK)
