"""A plugin of pytest that gives each test an empty database."""

import os

import psycopg2
import pytest


@pytest.fixture(autouse=True)
def empty_schema() -> None:
    """Make the schema anew."""
    conn = psycopg2.connect(os.environ["DATABASE_URL"])
    with conn, conn.cursor() as cursor:
        cursor.execute("drop schema public cascade; create schema public")
    conn.close()
