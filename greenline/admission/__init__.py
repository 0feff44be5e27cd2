"""
Admit requests to a worker: so many at once, the next ones in turn.

The sizes of SQLAlchemy's and redis-py's pools are not used: the requests that wait for a place
show them in seconds, and a limit that begins at 100 is too high for a busy CPU and other routes.
"""
