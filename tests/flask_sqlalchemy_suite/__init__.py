"""Flask-SQLAlchemy's own tests, run on pooled connections to Postgres."""
