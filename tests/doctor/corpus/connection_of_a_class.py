import pyodbc


class Store:
    conn = pyodbc.connect(host="localhost")  # expect: GL203

    def count(self):
        with self.conn.cursor() as cursor:
            cursor.execute("select 1")
            return cursor.fetchone()
