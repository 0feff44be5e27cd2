"""SQLAlchemy's own tests of its PostgreSQL dialect and of its pools, run on pooled connections."""
