"""The rights that the service needs in PostgreSQL, and no more: it must never change charges."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, text

from terrine_server.errors import DatabaseUnavailable, NotFound
from terrine_server.ledger.store.database import reading, writing

CHANGES: dict[str, tuple[str, ...]] = {
    "administrative_log": (),
    "charges": (),
    "populations": ("reserved", "delta_reserved", "seal"),
    "ensembles": ("seal",),
    "editions": ("seal",),
    "log_head": ("key_check", "entries", "head", "seal"),
    "payments": ("seal",),
    "projects": (
        "status",
        "closed_at",
        "spent",
        "delta_spent",
        "cap_spent",
        "charges",
        "published",
        "head",
        "seal",
    ),
    "requests": ("status", "project_id", "reason", "decided_at", "seal"),
    "secret_spends": ("charges", "tally", "seal"),
    "unit_accounts": ("charges", "head", "filled", "accounts", "seal"),
    "shadow_accounts": ("charges", "head", "accounts", "seal"),
    "tokens": ("revoked_at", "seal"),
    "tree_head": ("checkpoint",),
    "tree_leaves": (),
    "tree_nodes": (),
}
"""By table: the columns that the service changes. It reads all of them, and adds rows to them."""


def _rights(changes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    rights: dict[str, tuple[str, ...]] = {"SELECT": (), "INSERT": ()}
    return rights | {"UPDATE": changes} if changes else rights


RIGHTS: dict[str, dict[str, tuple[str, ...]]] = {
    "alembic_version": {"SELECT": ()},
    **{t: _rights(changes) for t, changes in CHANGES.items()},
}
"""By table and right: the columns, or () for all of them."""
SEQUENCES = ("populations_id_seq", "ensembles_id_seq", "projects_id_seq")
HISTORY = ("UPDATE", "DELETE", "TRUNCATE", "TRIGGER")
"""With any of these rights on charges, one can change what was paid, or disable its protection."""


def grant(engine: Engine, role: str) -> None:
    """Grant a role these rights, and revoke all others that it has on the ledger.

    PostgreSQL only, as the tables' owner. Raises NotFound when there is no such role.
    """
    with writing(engine) as connection:
        known = text("SELECT 1 FROM pg_roles WHERE rolname = :role")
        if connection.execute(known, {"role": role}).first() is None:
            raise NotFound(
                f"PostgreSQL has no role {role}. Make it: CREATE ROLE {role} LOGIN PASSWORD '…';"
            )
        grant_rights(connection, role)


def grant_rights(connection: Connection, role: str) -> None:
    """Do what `grant` does, for a role that there is, in a transaction that does more."""
    quoted = connection.dialect.identifier_preparer.quote_identifier(role)
    for table, rights in RIGHTS.items():
        connection.execute(text(f"REVOKE ALL ON {table} FROM {quoted}"))
        listed = ", ".join(
            f"{right} ({', '.join(columns)})" if columns else right
            for right, columns in rights.items()
        )
        connection.execute(text(f"GRANT {listed} ON {table} TO {quoted}"))
    connection.execute(text(f"GRANT USAGE ON SEQUENCE {', '.join(SEQUENCES)} TO {quoted}"))


_MISSING = text(
    "SELECT DISTINCT wanted.privilege || ' on ' || wanted.tablename AS lacking "
    "FROM unnest(CAST(:tables AS text[]), CAST(:rights AS text[]), CAST(:columns AS text[])) "
    "AS wanted (tablename, privilege, columnname) WHERE NOT CASE WHEN columnname = '' "
    "THEN has_table_privilege(tablename, privilege) "
    "ELSE has_column_privilege(tablename, columnname, privilege) END ORDER BY lacking"
)


def missing(connection: Connection) -> list[str]:
    """Return the rights that this database account lacks, such as "INSERT on charges"."""
    wanted = [
        (table, right, column)
        for table, rights in RIGHTS.items()
        for right, columns in rights.items()
        for column in columns or ("",)
    ]
    tables, rights, columns = (list(each) for each in zip(*wanted, strict=True))
    given = {"tables": tables, "rights": rights, "columns": columns}
    return list(connection.execute(_MISSING, given).scalars())


def check_rights(engine: Engine) -> None:
    """Raise DatabaseUnavailable unless this account may do all that the service does."""
    if engine.dialect.name == "sqlite":
        return
    with reading(engine) as connection:
        lacking = missing(connection)
    if lacking:
        raise DatabaseUnavailable(
            f"The account that this service has in PostgreSQL may not {', '.join(lacking)}. Run "
            "`terrine init --service-role ACCOUNT` as the owner of the tables."
        )


def over_history(connection: Connection) -> list[str]:
    """Return the rights of this database account that could change what was charged."""
    query = text("SELECT has_table_privilege('charges', :right)")
    return [right for right in HISTORY if connection.execute(query, {"right": right}).scalar_one()]
