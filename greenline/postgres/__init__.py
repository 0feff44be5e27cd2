"""Postgres through psycopg2, green: pool, limits, errors."""
