"""Tables of subjects that are gone: requests for projects. The log keeps what was decided."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.drop_table("requests")
