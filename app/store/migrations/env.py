"""Alembic's entry: run the migrations on the connection that ``flask db upgrade`` made."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
