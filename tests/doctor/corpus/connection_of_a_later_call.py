import psycopg2
from sqlalchemy import create_engine

engine = create_engine("postgresql://", creator=lambda: psycopg2.connect("dbname=x"))  # not: GL203


def application(environ, start_response):
    with engine.connect():
        pass
    start_response("200 OK", [])
    return [b""]
