"""Runs the migrations on the connection that `ledger.store.schema.upgrade` opened."""

from alembic import context

from terrine_server.ledger.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite alters a table by rebuilding it.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
