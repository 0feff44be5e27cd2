"""
Find requests that wait in the server for a row that another one has locked, which itself waits for
a connection of the pool: a deadlock that neither the server nor the pool can see alone.
"""

from collections.abc import Iterable, Mapping

from greenline.errors import GreenlineError
from greenline.hub import deadline
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control

QUESTION_S = 5.0
# The state of other roles' sessions is not shown: a wait through one of these is not found.
QUERY = """
select pid, pg_catalog.pg_blocking_pids(pid)
from pg_catalog.pg_stat_activity where wait_event_type = 'Lock'
"""


def lock_waits(control: Control) -> Mapping[int, list[int]]:
    """
    Return the process ids that wait for a lock, each with those that it waits for.

    :param control: the connection to ask over; without an answer, none is found.
    """
    try:
        with deadline.limit(QUESTION_S):
            return control.ask(_read)
    except GreenlineError:
        return {}


def blocked_by(pids: Iterable[int], waits: Mapping[int, list[int]]) -> set[int]:
    """
    Return *pids*, and those that wait for one of them, or for another one that does.

    :param pids: process ids.
    :param waits: as :func:`lock_waits` returns it.
    """
    found, size = set(pids), 0
    while size < len(found):
        size = len(found)
        found |= {pid for pid, blocking in waits.items() if not found.isdisjoint(blocking)}
    return found


def _read(conn: Connection) -> dict[int, list[int]]:
    with conn.cursor() as cursor:
        cursor.execute(QUERY)
        return dict(cursor.fetchall())
