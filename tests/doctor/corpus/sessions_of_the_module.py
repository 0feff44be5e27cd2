import sqlite3

from sqlalchemy import create_engine
from sqlalchemy.orm import scoped_session, sessionmaker

engine = create_engine("postgresql://localhost/shop")
session = sessionmaker(bind=engine)()  # expect: GL203
by_thread = scoped_session(sessionmaker(bind=engine))
conn = engine.connect()  # expect: GL203
notes = sqlite3.connect("notes.db", check_same_thread=False)  # expect: GL203
read = sqlite3.connect(":memory:").execute("select 1").fetchone()
with engine.connect() as short:
    short.exec_driver_sql("select 1")


def application(environ, start_response):
    start_response("200 OK", [])
    return [sqlite3.connect("notes.db", check_same_thread=False)]
