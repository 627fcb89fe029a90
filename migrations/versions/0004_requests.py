"""Requests for studies, and what a study is called and is for.

Projects of an earlier version have neither title nor purpose.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIMESTAMP = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")
CHECKS = {
    "seal_length": "length(seal) = 32",
    "status": "status IN ('open', 'approved', 'refused')",
    "decided_at": "(status = 'open') = (decided_at IS NULL)",
    "project": "(status = 'approved') = (project_id IS NOT NULL)",
    "reason": "(status = 'refused') = (reason IS NOT NULL)",
}
DESCRIBED_ONCE = "what a project is called and is for was fixed when it was opened"
ASKED_ONCE = "what was requested cannot be changed"
DECIDED_ONCE = "a request is decided once"
NO_REMOVAL = "requests are never removed"
FIXED = ("id", "token_id", "ensemble_id", "title", "purpose", "asked", "created_at")
DECIDED = ("status", "project_id", "reason", "decided_at")


def upgrade() -> None:
    op.add_column("projects", sa.Column("title", sa.Text()))
    op.add_column("projects", sa.Column("purpose", sa.Text()))
    op.create_table(
        "requests",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("token_id", sa.String(64), nullable=False),
        sa.Column("ensemble_id", ID, nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("status", sa.String(8), nullable=False),
        sa.Column("project_id", ID),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.Column("decided_at", TIMESTAMP),
        sa.Column("seal", sa.LargeBinary(32)),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
        *(
            sa.ForeignKeyConstraint([f"{to}_id"], [f"{to}s.id"], name=op.f(f"fk_requests_{to}_id"))
            for to in ("token", "ensemble", "project")
        ),
        sa.UniqueConstraint("project_id", name=op.f("uq_requests_project_id")),
        *(
            sa.CheckConstraint(condition, name=op.f(f"ck_requests_{name}"))
            for name, condition in CHECKS.items()
        ),
    )
    op.create_index("ix_requests_token_id", "requests", ["token_id"])
    op.create_index("ix_requests_status_created_at_id", "requests", ["status", "created_at", "id"])
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in sqlite_triggers() if on_sqlite else postgresql_triggers():
        op.execute(statement)


def sqlite_triggers() -> list[str]:
    return [
        f"CREATE TRIGGER {name} BEFORE {when} WHEN {condition} "
        f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        for name, when, condition, message in _triggers("IS NOT")
    ] + [
        "CREATE TRIGGER requests_no_delete BEFORE DELETE ON requests WHEN 1 "
        f"BEGIN SELECT RAISE(ABORT, '{NO_REMOVAL}'); END"
    ]


def postgresql_triggers() -> list[str]:
    return [
        f"CREATE TRIGGER {name} BEFORE {when} FOR EACH ROW WHEN ({condition}) "
        f"EXECUTE FUNCTION terrine_refuse('{message}')"
        for name, when, condition, message in _triggers("IS DISTINCT FROM")
    ] + [
        f"CREATE TRIGGER requests_no_{what.lower()} BEFORE {what} ON requests "
        f"FOR EACH {'STATEMENT' if what == 'TRUNCATE' else 'ROW'} "
        f"EXECUTE FUNCTION terrine_refuse('{NO_REMOVAL}')"
        for what in ("DELETE", "TRUNCATE")
    ]


def _triggers(differs: str) -> list[tuple[str, str, str, str]]:
    def changed(columns: tuple[str, ...]) -> str:
        return " OR ".join(f"NEW.{column} {differs} OLD.{column}" for column in columns)

    described, asked, decided = (changed(c) for c in (("title", "purpose"), FIXED, DECIDED))
    return [
        ("projects_described", "UPDATE ON projects", described, DESCRIBED_ONCE),
        ("requests_fixed", "UPDATE ON requests", asked, ASKED_ONCE),
        (
            "requests_decided",
            "UPDATE ON requests",
            f"OLD.status <> 'open' AND ({decided})",
            DECIDED_ONCE,
        ),
    ]
