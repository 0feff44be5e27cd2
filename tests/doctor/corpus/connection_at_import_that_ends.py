import os

import psycopg2

with psycopg2.connect(os.environ["DATABASE_URL"]) as conn, conn.cursor() as cursor:
    cursor.execute("show server_version")
    VERSION = cursor.fetchone()[0]


def application(environ, start_response):
    start_response("200 OK", [])
    return [VERSION.encode()]
