"""Alembic's environment: migrations run on the connection that `app.store.migrate` passes."""

from alembic import context

from migrations.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
