"""The schema, for both SQLite and PostgreSQL.

Constraints keep balances within budgets and reservations within caps, numbers at 1 or more, and
digests at 32 bytes. Triggers (see `migrations/`) ensure that charges are never changed or removed,
and that terms and caps stay as they were opened.

JSON is stored as canonical text, not as the databases' own JSON types: it is hashed, so it must be
read back byte for byte. Amounts are integers: cost in units of 1e-12 of the rule's quantity,
additive δ in units of 1e-18, and the share of the ensemble's cap in units of 1e-12 of its rule's
quantity.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine

from terrine_server.ledger.chain import iso


class Timestamp(TypeDecorator[datetime]):
    """An instant in UTC, to the microsecond.

    `timestamptz` on PostgreSQL, ISO 8601 text of fixed length (so that it sorts) on SQLite. Text
    in any other format is returned as it is, so that verification can name its entry.
    """

    impl = DateTime(timezone=True).with_variant(String(27), "sqlite")
    cache_ok = True

    @property
    def python_type(self) -> type[datetime]:
        """The type that is written, and that is read unless the value was altered."""
        return datetime

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> object:
        """Write UTC."""
        if value is None or dialect.name != "sqlite":
            return value
        return iso(value)

    def process_result_value(self, value: object, dialect: Dialect) -> datetime | None:
        """Read UTC."""
        if isinstance(value, str):
            return _read(value)
        return value.astimezone(UTC) if isinstance(value, datetime) else None

    def coerce_compared_value(self, op: object, value: object) -> TypeEngine[Any]:
        """Write instants to compare with in the same way."""
        return self


@lru_cache(maxsize=1024)  # every request reads those of its token
def _read(value: str) -> datetime:
    try:
        instant = datetime.fromisoformat(value)
        written = iso(instant)
    except (ValueError, OverflowError):  # no time, or one that UTC has no year for
        return value  # type: ignore[return-value]
    return instant if written == value else value  # type: ignore[return-value]


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

# SQLite assigns ids by itself only in a column of exactly this type.
_Id = BigInteger().with_variant(Integer(), "sqlite")


def _digest(name: str) -> tuple[Column[bytes], CheckConstraint]:
    """Return a column of 32 bytes, and the check of their number."""
    return (
        Column(name, LargeBinary(32), nullable=False),
        CheckConstraint(f"length({name}) = 32", name=f"{name}_length"),
    )


# The people whom records are about, by a name that the owner gave them, and the cap that is for all
# ensembles of them. `reserved`: by all projects on these.
populations = Table(
    "populations",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("name", String(64), nullable=False),
    Column("epsilon", Float(53), nullable=False),
    Column("delta", Float(53), nullable=False),
    Column("rdp_order", Float(53)),
    Column("cap", BigInteger, nullable=False),
    Column("delta_cap", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
    Column("delta_reserved", BigInteger, nullable=False),
    # Of which others the owner said that they have no person in common with this one: names, in
    # JSON. NULL if nobody said so, since each cap was of an ensemble then.
    Column("disjoint_from", Text),
    Column("declared_at", Timestamp, nullable=False),
    *_digest("seal"),
    UniqueConstraint("name"),
    CheckConstraint("reserved BETWEEN 0 AND cap", name="reserved"),
    CheckConstraint("delta_reserved BETWEEN 0 AND delta_cap", name="delta_reserved"),
)

ensembles = Table(
    "ensembles",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("name", String(64), nullable=False),
    Column("population_id", ForeignKey(populations.c.id), nullable=False),
    Column("path", Text, nullable=False),
    *_digest("manifest_sha256"),
    Column("info", Text, nullable=False),
    Column("units", BigInteger, nullable=False),
    Column("registered_at", Timestamp, nullable=False),
    *_digest("seal"),
    UniqueConstraint("name"),
    # The same teachers in two populations would have two caps.
    UniqueConstraint("manifest_sha256"),
    Index("ix_ensembles_population_id", "population_id"),
    CheckConstraint("units >= 1", name="units"),
)

projects = Table(
    "projects",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("name", String(64), nullable=False),
    Column("ensemble_id", ForeignKey(ensembles.c.id), nullable=False),
    Column("status", String(6), nullable=False),
    Column("mechanism", Text, nullable=False),
    Column("events", Text, nullable=False),
    Column("terms", Text, nullable=False),
    Column("budget", BigInteger, nullable=False),
    Column("delta_budget", BigInteger, nullable=False),
    Column("cap_budget", BigInteger, nullable=False),
    Column("spent", BigInteger, nullable=False),
    Column("delta_spent", BigInteger, nullable=False),
    Column("cap_spent", BigInteger, nullable=False),
    Column("charges", BigInteger, nullable=False),
    Column("published", Text, nullable=False),
    *_digest("genesis"),
    *_digest("head"),
    # What people call it and use it for. No terms: the administrative log vouches for them.
    Column("title", Text),
    Column("purpose", Text),
    Column("opened_at", Timestamp, nullable=False),
    Column("closed_at", Timestamp),
    *_digest("seal"),
    UniqueConstraint("name"),
    Index("ix_projects_ensemble_id", "ensemble_id"),
    CheckConstraint("status IN ('active', 'paused', 'closed')", name="status"),
    CheckConstraint("(status = 'closed') = (closed_at IS NOT NULL)", name="closed_at"),
    CheckConstraint("spent BETWEEN 0 AND budget", name="spent"),
    CheckConstraint("delta_spent BETWEEN 0 AND delta_budget", name="delta_spent"),
    CheckConstraint("cap_spent BETWEEN 0 AND cap_budget", name="cap_spent"),
    CheckConstraint("charges >= 0", name="charges"),
)

charges = Table(
    "charges",
    metadata,
    Column("project_id", ForeignKey(projects.c.id), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("created_at", Timestamp, nullable=False),
    *_digest("query_digest"),
    *_digest("input_digest"),
    Column("outcome", String(10), nullable=False),
    Column("label", BigInteger),
    Column("counts", Text),
    Column("figure", BigInteger),
    Column("cost", BigInteger, nullable=False),
    Column("delta", BigInteger, nullable=False),
    Column("cap_cost", BigInteger, nullable=False),
    Column("mechanism", Text, nullable=False),
    Column("event", Text, nullable=False),
    *_digest("hash"),
    UniqueConstraint("project_id", "query_digest"),
    # The teachers label an input once; later queries of it are replayed.
    Index(
        "uq_charges_answered_input",
        "project_id",
        "input_digest",
        unique=True,
        sqlite_where=text("outcome = 'answered'"),
        postgresql_where=text("outcome = 'answered'"),
    ),
    CheckConstraint("seq >= 1", name="seq"),
    CheckConstraint(
        "outcome IN ('answered', 'abstained', 'reinforced', 'published', 'released')",
        name="outcome",
    ),
    CheckConstraint(
        "(outcome IN ('abstained', 'published', 'released')) = (label IS NULL)", name="label"
    ),
    CheckConstraint("outcome <> 'released' OR seq = 1", name="released"),
    CheckConstraint("label >= 0", name="label_index"),
    CheckConstraint("(outcome = 'published') = (figure IS NOT NULL)", name="figure"),
    CheckConstraint("figure >= 0", name="figure_amount"),
    CheckConstraint("cost >= 0 AND delta >= 0 AND cap_cost >= 0", name="price"),
    CheckConstraint("counts IS NULL OR outcome = 'answered'", name="counts"),
    # Entries are stored in the primary key itself, in order, not beside an index that repeats it:
    # SQLite would read the number there, and miss one that was altered in the entry.
    sqlite_with_rowid=False,
)

# Which token paid for the entries `first_seq` to `last_seq` of a project, for the data owner alone.
# One row a request. No entry names its token: entries are shown to auditors, and exported. It comes
# with a change of the project's row, so a foreign key would only look for that row once more.
payments = Table(
    "payments",
    metadata,
    Column("project_id", _Id, primary_key=True, autoincrement=False),
    Column("first_seq", BigInteger, primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("token_id", String(64), nullable=False),
    *_digest("seal"),
    CheckConstraint("first_seq >= 1 AND last_seq >= first_seq", name="entries"),
    sqlite_with_rowid=False,
)

# Functions of private votes, for data-dependent projects only; shown to the data owner alone.
secret_spends = Table(
    "secret_spends",
    metadata,
    Column("project_id", ForeignKey(projects.c.id), primary_key=True),
    Column("charges", BigInteger, nullable=False),
    Column("tally", LargeBinary, nullable=False),
    *_digest("seal"),
    CheckConstraint("charges >= 0", name="charges"),
)

# What each unit has spent in a project of `neighbours`: secret. Little-endian uint32, by unit.
# `charges`, `head`: the entry that they stand after. `filled`: the owner counts all as spent.
unit_accounts = Table(
    "unit_accounts",
    metadata,
    Column("project_id", ForeignKey(projects.c.id), primary_key=True),
    Column("charges", BigInteger, nullable=False),
    *_digest("head"),
    Column("filled", BigInteger, nullable=False),
    Column("accounts", LargeBinary, nullable=False),
    *_digest("seal"),
    CheckConstraint("charges >= 0", name="charges"),
    CheckConstraint("filled IN (0, 1)", name="filled"),
)

# The same of public points that are charged as if they were private units. Public; a row comes with
# the first charge.
shadow_accounts = Table(
    "shadow_accounts",
    metadata,
    Column("project_id", ForeignKey(projects.c.id), primary_key=True),
    Column("charges", BigInteger, nullable=False),
    *_digest("head"),
    Column("accounts", LargeBinary, nullable=False),
    *_digest("seal"),
    CheckConstraint("charges >= 0", name="charges"),
)

# Who is there since people left or came: see `editions`. The first edition is the ensemble itself.
# `units`: the number of people that was last published. `slots`: of accounts; secret, as are
# `erased`, the slots of those who left. `begins`: by project, after how many charges it began.
editions = Table(
    "editions",
    metadata,
    Column("ensemble_id", ForeignKey(ensembles.c.id), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    *_digest("manifest_sha256"),
    Column("units", BigInteger, nullable=False),
    Column("slots", BigInteger, nullable=False),
    Column("erased", Text, nullable=False),
    Column("begins", Text, nullable=False),
    Column("made_at", Timestamp, nullable=False),
    *_digest("seal"),
    CheckConstraint("number >= 2", name="number"),
    CheckConstraint("units >= 1", name="units"),
    CheckConstraint("slots >= 1", name="slots"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("role", String(7), nullable=False),
    Column("project_id", ForeignKey(projects.c.id)),
    Column("label", String(100), nullable=False),
    *_digest("hash"),
    Column("created_at", Timestamp, nullable=False),
    Column("expires_at", Timestamp, nullable=False),
    Column("revoked_at", Timestamp),
    *_digest("seal"),
    Index("ix_tokens_project_id", "project_id"),
    CheckConstraint("role IN ('student', 'auditor', 'metrics', 'admin')", name="role"),
    CheckConstraint("(role = 'student') = (project_id IS NOT NULL)", name="project"),
)

administrative_log = Table(
    "administrative_log",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("created_at", Timestamp, nullable=False),
    Column("actor", Text, nullable=False),
    Column("request_id", String(64)),
    Column("action", String(32), nullable=False),
    Column("subject", String(64), nullable=False),
    Column("detail", Text, nullable=False),
    *_digest("hash"),
    Index("ix_administrative_log_subject_seq", "subject", "seq"),
    CheckConstraint("seq >= 1", name="seq"),
    sqlite_with_rowid=False,
)

# One row: where the log ends, and which key the ledger is sealed with.
log_head = Table(
    "log_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    *_digest("key_check"),
    Column("entries", BigInteger, nullable=False),
    *_digest("head"),
    *_digest("seal"),
    CheckConstraint("id = 1", name="one"),
)

# The transparency log: its leaves in their order. `source`: a project's id, or 0 for the
# administrative log, and `seq` the number of the entry there. `entry`: what commits to its hash.
tree_leaves = Table(
    "tree_leaves",
    metadata,
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("source", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    *_digest("entry"),
    UniqueConstraint("source", "seq"),
    CheckConstraint("position >= 0", name="position"),
    CheckConstraint("source >= 0", name="source"),
    CheckConstraint("seq >= 1", name="seq"),
    sqlite_with_rowid=False,
)

# Hashes of its perfect subtrees over 256, 65,536, … leaves: level 1, 2, …
tree_nodes = Table(
    "tree_nodes",
    metadata,
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    *_digest("hash"),
    CheckConstraint("level >= 1 AND position >= 0", name="place"),
    sqlite_with_rowid=False,
)

# One row: the key of the leaf keys, and the last checkpoint that was signed, with cosignatures.
tree_head = Table(
    "tree_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    *_digest("blinding"),
    Column("checkpoint", Text),
    CheckConstraint("id = 1", name="one"),
)
