# facts: pgbouncer
import psycopg2


def tenant(url, name):
    connection = psycopg2.connect(url)
    connection.set_session(readonly=True, autocommit=True)  # expect: GL216
    cursor = connection.cursor()
    cursor.execute("select set_config('app.tenant', %s, false)", (name,))  # expect: GL216
    cursor.execute("RESET ALL")  # expect: GL216
    connection.close()


def transactions(url, name):
    connection = psycopg2.connect(url)
    connection.set_session(readonly=True, autocommit=False)
    connection.set_session(autocommit=True)
    connection.cursor().execute("select set_config('app.tenant', %s, true)", (name,))
    connection.close()
