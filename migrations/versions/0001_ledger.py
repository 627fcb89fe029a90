"""The ledger's tables, and the triggers that keep charges and the log append-only."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIMESTAMP = sa.DateTime(timezone=True).with_variant(sa.String(27), "sqlite")
DIGEST = sa.LargeBinary(32)


def upgrade() -> None:
    create_tables()
    if op.get_bind().dialect.name == "sqlite":
        for statement in sqlite_triggers():
            op.execute(statement)
    else:
        for statement in postgresql_triggers():
            op.execute(statement)


def digest(table: str, column: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"length({column}) = 32", name=op.f(f"ck_{table}_{column}_length"))


def check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))


def create_tables() -> None:
    op.create_table(
        "ensembles",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("manifest_sha256", DIGEST, nullable=False),
        sa.Column("info", sa.Text(), nullable=False),
        sa.Column("units", sa.BigInteger(), nullable=False),
        sa.Column("epsilon", sa.Float(53), nullable=False),
        sa.Column("delta", sa.Float(53), nullable=False),
        sa.Column("rdp_order", sa.Float(53)),
        sa.Column("cap", sa.BigInteger(), nullable=False),
        sa.Column("delta_cap", sa.BigInteger(), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=False),
        sa.Column("delta_reserved", sa.BigInteger(), nullable=False),
        sa.Column("registered_at", TIMESTAMP, nullable=False),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ensembles")),
        sa.UniqueConstraint("name", name=op.f("uq_ensembles_name")),
        sa.UniqueConstraint("manifest_sha256", name=op.f("uq_ensembles_manifest_sha256")),
        digest("ensembles", "manifest_sha256"),
        digest("ensembles", "seal"),
        check("ensembles", "units", "units >= 1"),
        check("ensembles", "reserved", "reserved BETWEEN 0 AND cap"),
        check("ensembles", "delta_reserved", "delta_reserved BETWEEN 0 AND delta_cap"),
    )
    op.create_table(
        "projects",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("ensemble_id", ID, nullable=False),
        sa.Column("status", sa.String(6), nullable=False),
        sa.Column("mechanism", sa.Text(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("terms", sa.Text(), nullable=False),
        sa.Column("budget", sa.BigInteger(), nullable=False),
        sa.Column("delta_budget", sa.BigInteger(), nullable=False),
        sa.Column("cap_budget", sa.BigInteger(), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.Column("delta_spent", sa.BigInteger(), nullable=False),
        sa.Column("cap_spent", sa.BigInteger(), nullable=False),
        sa.Column("charges", sa.BigInteger(), nullable=False),
        sa.Column("published", sa.Text(), nullable=False),
        sa.Column("genesis", DIGEST, nullable=False),
        sa.Column("head", DIGEST, nullable=False),
        sa.Column("title", sa.Text()),
        sa.Column("purpose", sa.Text()),
        sa.Column("opened_at", TIMESTAMP, nullable=False),
        sa.Column("closed_at", TIMESTAMP),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.ForeignKeyConstraint(
            ["ensemble_id"], ["ensembles.id"], name=op.f("fk_projects_ensemble_id")
        ),
        sa.UniqueConstraint("name", name=op.f("uq_projects_name")),
        digest("projects", "genesis"),
        digest("projects", "head"),
        digest("projects", "seal"),
        check("projects", "status", "status IN ('active', 'paused', 'closed')"),
        check("projects", "closed_at", "(status = 'closed') = (closed_at IS NOT NULL)"),
        check("projects", "spent", "spent BETWEEN 0 AND budget"),
        check("projects", "delta_spent", "delta_spent BETWEEN 0 AND delta_budget"),
        check("projects", "cap_spent", "cap_spent BETWEEN 0 AND cap_budget"),
        check("projects", "charges", "charges >= 0"),
    )
    op.create_index("ix_projects_ensemble_id", "projects", ["ensemble_id"])
    op.create_table(
        "charges",
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
        digest("charges", "query_digest"),
        digest("charges", "input_digest"),
        digest("charges", "hash"),
        check("charges", "seq", "seq >= 1"),
        check(
            "charges", "outcome", "outcome IN ('answered', 'abstained', 'reinforced', 'published')"
        ),
        check("charges", "label", "(outcome IN ('abstained', 'published')) = (label IS NULL)"),
        check("charges", "label_index", "label >= 0"),
        check("charges", "counts", "counts IS NULL OR outcome = 'answered'"),
        check("charges", "figure", "(outcome = 'published') = (figure IS NOT NULL)"),
        check("charges", "figure_amount", "figure >= 0"),
        check("charges", "price", "cost >= 0 AND delta >= 0 AND cap_cost >= 0"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "uq_charges_answered_input",
        "charges",
        ["project_id", "input_digest"],
        unique=True,
        sqlite_where=sa.text("outcome = 'answered'"),
        postgresql_where=sa.text("outcome = 'answered'"),
    )
    op.create_table(
        "secret_spends",
        sa.Column("project_id", ID, nullable=False),
        sa.Column("charges", sa.BigInteger(), nullable=False),
        sa.Column("tally", sa.LargeBinary(), nullable=False),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_secret_spends")),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_secret_spends_project_id")
        ),
        digest("secret_spends", "seal"),
        check("secret_spends", "charges", "charges >= 0"),
    )
    op.create_table(
        "idempotency",
        sa.Column("project_id", ID, nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("body_digest", DIGEST, nullable=False),
        sa.Column("results", sa.Text(), nullable=False),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name=op.f("pk_idempotency")),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_idempotency_project_id")
        ),
        digest("idempotency", "body_digest"),
        digest("idempotency", "seal"),
    )
    op.create_index(
        "ix_idempotency_project_id_created_at", "idempotency", ["project_id", "created_at"]
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("role", sa.String(7), nullable=False),
        sa.Column("project_id", ID),
        sa.Column("label", sa.String(100), nullable=False),
        sa.Column("hash", DIGEST, nullable=False),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.Column("expires_at", TIMESTAMP, nullable=False),
        sa.Column("revoked_at", TIMESTAMP),
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_tokens_project_id")),
        digest("tokens", "hash"),
        digest("tokens", "seal"),
        check("tokens", "role", "role IN ('student', 'auditor', 'admin')"),
        check("tokens", "project", "(role = 'student') = (project_id IS NOT NULL)"),
    )
    op.create_index("ix_tokens_project_id", "tokens", ["project_id"])
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
        sa.Column("seal", DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_requests")),
        *(
            sa.ForeignKeyConstraint([f"{to}_id"], [f"{to}s.id"], name=op.f(f"fk_requests_{to}_id"))
            for to in ("token", "ensemble", "project")
        ),
        sa.UniqueConstraint("project_id", name=op.f("uq_requests_project_id")),
        digest("requests", "seal"),
        check("requests", "status", "status IN ('open', 'approved', 'refused')"),
        check("requests", "decided_at", "(status = 'open') = (decided_at IS NULL)"),
        check("requests", "project", "(status = 'approved') = (project_id IS NOT NULL)"),
        check("requests", "reason", "(status = 'refused') = (reason IS NOT NULL)"),
    )
    op.create_index("ix_requests_token_id", "requests", ["token_id"])
    op.create_index("ix_requests_status_created_at_id", "requests", ["status", "created_at", "id"])
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
        check("administrative_log", "seq", "seq >= 1"),
        digest("administrative_log", "hash"),
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
        check("log_head", "one", "id = 1"),
        *(digest("log_head", name) for name in ("key_check", "head", "seal")),
    )


LOG_STAYS = "the administrative log is append-only: an entry is never changed or removed"
CHARGES_STAY = "charges are append-only: an entry is never changed or removed"
FIXED = "what was fixed when this was made cannot be changed"
ONE_WAY = "a balance shrinks by a publication only, and a closed project stays closed"
NO_REMOVAL = "accounts are never removed"
REQUESTS_STAY = "requests are never removed"
DECIDED_ONCE = "a request is decided once"

FIXED_COLUMNS = {
    "ensembles": (
        "id",
        "name",
        "manifest_sha256",
        "info",
        "units",
        "epsilon",
        "delta",
        "rdp_order",
        "cap",
        "delta_cap",
        "registered_at",
    ),
    "projects": (
        "id",
        "name",
        "ensemble_id",
        "mechanism",
        "events",
        "terms",
        "budget",
        "delta_budget",
        "cap_budget",
        "genesis",
        "title",
        "purpose",
        "opened_at",
    ),
    "requests": (
        "id",
        "token_id",
        "ensemble_id",
        "title",
        "purpose",
        "asked",
        "created_at",
    ),
}
DECIDED_COLUMNS = ("status", "project_id", "reason", "decided_at")
REMOVAL = {"ensembles": NO_REMOVAL, "projects": NO_REMOVAL, "requests": REQUESTS_STAY}
SHRINKS = """
    ((NEW.spent < OLD.spent OR NEW.cap_spent < OLD.cap_spent) AND NEW.published = OLD.published)
    OR NEW.delta_spent < OLD.delta_spent OR NEW.charges < OLD.charges
    OR (OLD.status = 'closed' AND NEW.status <> 'closed')
"""


def changed(columns: tuple[str, ...], differs: str) -> str:
    return " OR ".join(f"NEW.{column} {differs} OLD.{column}" for column in columns)


def sqlite_triggers() -> list[str]:
    def refuse(name: str, when: str, message: str, condition: str = "1") -> str:
        return (
            f"CREATE TRIGGER {name} BEFORE {when} WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )

    triggers = [
        refuse("charges_no_update", "UPDATE ON charges", CHARGES_STAY),
        refuse("charges_no_delete", "DELETE ON charges", CHARGES_STAY),
        # INSERT OR REPLACE removes rows without telling the trigger above: refuse it before.
        refuse(
            "charges_no_replace",
            "INSERT ON charges",
            CHARGES_STAY,
            "EXISTS (SELECT 1 FROM charges WHERE project_id = NEW.project_id AND seq = NEW.seq) "
            "OR EXISTS (SELECT 1 FROM charges WHERE project_id = NEW.project_id "
            "AND query_digest = NEW.query_digest) "
            "OR NEW.outcome = 'answered' AND EXISTS (SELECT 1 FROM charges WHERE outcome = "
            "'answered' AND project_id = NEW.project_id AND input_digest = NEW.input_digest)",
        ),
        refuse("projects_one_way", "UPDATE ON projects", ONE_WAY, SHRINKS),
    ]
    for table, columns in FIXED_COLUMNS.items():
        triggers += [
            refuse(f"{table}_fixed", f"UPDATE ON {table}", FIXED, changed(columns, "IS NOT")),
            refuse(f"{table}_no_delete", f"DELETE ON {table}", REMOVAL[table]),
        ]
    decided = f"OLD.status <> 'open' AND ({changed(DECIDED_COLUMNS, 'IS NOT')})"
    return [
        *triggers,
        refuse("requests_decided", "UPDATE ON requests", DECIDED_ONCE, decided),
        refuse("administrative_log_no_update", "UPDATE ON administrative_log", LOG_STAYS),
        refuse("administrative_log_no_delete", "DELETE ON administrative_log", LOG_STAYS),
        refuse(
            "administrative_log_no_replace",
            "INSERT ON administrative_log",
            LOG_STAYS,
            "EXISTS (SELECT 1 FROM administrative_log WHERE seq = NEW.seq)",
        ),
    ]


def postgresql_triggers() -> list[str]:
    statements = [
        """
        CREATE FUNCTION terrine_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation';
        END $$
        """,
    ]

    def refuse(name: str, when: str, message: str, condition: str | None = None) -> None:
        row = "ROW" if "TRUNCATE" not in when else "STATEMENT"
        guard = f"WHEN ({condition})" if condition else ""
        statements.append(
            f"CREATE TRIGGER {name} BEFORE {when} FOR EACH {row} {guard} "
            f"EXECUTE FUNCTION terrine_refuse('{message}')"
        )

    refuse("charges_no_update", "UPDATE ON charges", CHARGES_STAY)
    refuse("charges_no_delete", "DELETE ON charges", CHARGES_STAY)
    refuse("charges_no_truncate", "TRUNCATE ON charges", CHARGES_STAY)
    refuse("projects_one_way", "UPDATE ON projects", ONE_WAY, SHRINKS)
    differ = "IS DISTINCT FROM"
    for table, columns in FIXED_COLUMNS.items():
        refuse(f"{table}_fixed", f"UPDATE ON {table}", FIXED, changed(columns, differ))
        refuse(f"{table}_no_delete", f"DELETE ON {table}", REMOVAL[table])
        refuse(f"{table}_no_truncate", f"TRUNCATE ON {table}", REMOVAL[table])
    decided = f"OLD.status <> 'open' AND ({changed(DECIDED_COLUMNS, differ)})"
    refuse("requests_decided", "UPDATE ON requests", DECIDED_ONCE, decided)
    for what in ("UPDATE", "DELETE", "TRUNCATE"):
        name = f"administrative_log_no_{what.lower()}"
        refuse(name, f"{what} ON administrative_log", LOG_STAYS)
    return statements
