import io

import psycopg2
from psycopg2.extras import DictConnection


def exported(url):
    file = io.StringIO()
    conn = psycopg2.connect(url, connection_factory=DictConnection)
    cursor = conn.cursor()
    cursor.copy_expert("copy books to stdout", file)  # not: GL218
    return file.getvalue()


def kept(url, data):
    conn = psycopg2.connect(url)
    conn.lobject(0, "wb").write(data)
