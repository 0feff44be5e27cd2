# facts: pgbouncer
import os

import psycopg2


def tenant(name):
    with psycopg2.connect(os.environ["DATABASE_URL"]) as conn, conn.cursor() as cursor:
        cursor.execute("set local search_path to shop")
        cursor.execute("select pg_advisory_xact_lock(%s)", (name,))
        cursor.execute("update settings set value = 1")
