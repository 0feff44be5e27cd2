import time

from sqlalchemy import create_engine, text

engine = create_engine("postgresql://localhost/shop")


def retry():
    for _ in range(3):
        with engine.begin() as conn:
            conn.execute(text("select 1"))
        time.sleep(1)  # not: GL215
