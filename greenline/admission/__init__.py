"""
Admit requests to a worker up to a limit, the others in the order of arrival.

The limit does not begin at the size of SQLAlchemy's or redis-py's pools: the waits for their
connections show it within seconds, and a limit that begins at 100 is too high for a busy CPU and
for other routes.

Internal: applications import nothing from here.
"""
