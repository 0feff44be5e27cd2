import os
import subprocess

import psycopg2


def convert(path):
    with psycopg2.connect(os.environ["DATABASE_URL"]) as conn, conn.cursor() as cursor:
        cursor.execute("select 1")
        subprocess.run(["true", path], check=True)  # expect: GL214
