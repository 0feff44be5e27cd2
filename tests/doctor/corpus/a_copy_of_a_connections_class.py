import io

from psycopg2.extensions import connection
from psycopg2.extras import DictCursor


def exported(url):
    file = io.StringIO()
    conn = connection(url)
    cursor = conn.cursor()
    cursor.copy_expert("copy books to stdout", file)  # expect: GL218
    return file.getvalue()


def kept(url, data):
    conn = connection(url)
    conn.lobject(0, "wb").write(data)  # expect: GL218


def imported(conn, file):
    cursor = DictCursor(conn)
    cursor.copy_from(file, "books")  # expect: GL218
    conn.commit()
