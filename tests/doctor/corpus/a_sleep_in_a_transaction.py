import time

from sqlalchemy import create_engine, text

engine = create_engine("postgresql://localhost/shop")


def retry():
    with engine.begin() as conn:
        conn.execute(text("select 1"))
        time.sleep(1)  # expect: GL215
