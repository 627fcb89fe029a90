"""What a project begins with: a first entry whose outcome is `released`."""

# ruff: noqa: S608 - statements are made of constants
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DIGEST = sa.LargeBinary(32)
TIMESTAMP = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")
CHARGES_STAY = "charges are append-only: an entry is never changed or removed"
THERE = """EXISTS (SELECT 1 FROM charges WHERE project_id = NEW.project_id AND seq = NEW.seq) \
OR EXISTS (SELECT 1 FROM charges WHERE project_id = NEW.project_id \
AND query_digest = NEW.query_digest) \
OR NEW.outcome = 'answered' AND EXISTS (SELECT 1 FROM charges WHERE outcome = \
'answered' AND project_id = NEW.project_id AND input_digest = NEW.input_digest)"""
COLUMNS = (
    "project_id",
    "seq",
    "created_at",
    "query_digest",
    "input_digest",
    "outcome",
    "label",
    "counts",
    "figure",
    "cost",
    "delta",
    "cap_cost",
    "mechanism",
    "event",
    "hash",
)
CHANGED = {
    "outcome": "outcome IN ('answered', 'abstained', 'reinforced', 'published', 'released')",
    "label": "(outcome IN ('abstained', 'published', 'released')) = (label IS NULL)",
    "released": "outcome <> 'released' OR seq = 1",
}


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        rebuild_charges()
        return
    for name, condition in CHANGED.items():
        if name != "released":
            op.drop_constraint(op.f(f"ck_charges_{name}"), "charges")
        op.create_check_constraint(op.f(f"ck_charges_{name}"), "charges", condition)


def rebuild_charges() -> None:
    """SQLite changes no constraint in place. Foreign keys are checked before the commit."""
    op.create_table(
        "new_charges",
        sa.Column("project_id", ID, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.Column("query_digest", DIGEST, nullable=False),
        sa.Column("input_digest", DIGEST, nullable=False),
        sa.Column("outcome", sa.String(10), nullable=False),
        sa.Column("label", sa.BigInteger()),
        sa.Column("counts", sa.Text()),
        sa.Column("figure", sa.BigInteger()),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.Column("delta", sa.BigInteger(), nullable=False),
        sa.Column("cap_cost", sa.BigInteger(), nullable=False),
        sa.Column("mechanism", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("hash", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "seq", name=op.f("pk_charges")),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_charges_project_id")
        ),
        sa.UniqueConstraint(
            "project_id", "query_digest", name=op.f("uq_charges_project_id_query_digest")
        ),
        *(
            check(f"{name}_length", f"length({name}) = 32")
            for name in ("query_digest", "input_digest", "hash")
        ),
        check("seq", "seq >= 1"),
        *(check(name, condition) for name, condition in CHANGED.items()),
        check("label_index", "label >= 0"),
        check("counts", "counts IS NULL OR outcome = 'answered'"),
        check("figure", "(outcome = 'published') = (figure IS NOT NULL)"),
        check("figure_amount", "figure >= 0"),
        check("price", "cost >= 0 AND delta >= 0 AND cap_cost >= 0"),
        sqlite_with_rowid=False,
    )
    columns = ", ".join(COLUMNS)
    op.execute(f"INSERT INTO new_charges ({columns}) SELECT {columns} FROM charges")
    op.execute("DROP TABLE charges")
    op.execute("ALTER TABLE new_charges RENAME TO charges")
    op.create_index(
        "uq_charges_answered_input",
        "charges",
        ["project_id", "input_digest"],
        unique=True,
        sqlite_where=sa.text("outcome = 'answered'"),
    )
    refuse("charges_no_update", "UPDATE ON charges")
    refuse("charges_no_delete", "DELETE ON charges")
    # INSERT OR REPLACE removes rows without telling the trigger above: refuse it before.
    refuse("charges_no_replace", "INSERT ON charges", THERE)


def refuse(name: str, when: str, condition: str = "1") -> None:
    op.execute(
        f"CREATE TRIGGER {name} BEFORE {when} WHEN {condition} "
        f"BEGIN SELECT RAISE(ABORT, '{CHARGES_STAY}'); END"
    )


def check(name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_charges_{name}"))
