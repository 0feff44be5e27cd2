from sqlalchemy import util


def flush(session):
    try:
        session.flush()
    except:
        with util.safe_reraise():
            session.rollback()
