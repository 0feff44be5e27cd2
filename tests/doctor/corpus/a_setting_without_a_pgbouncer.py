import os

import psycopg2


def tenant(name):
    with psycopg2.connect(os.environ["DATABASE_URL"]) as conn, conn.cursor() as cursor:
        cursor.execute("set search_path to shop")  # not: GL216
