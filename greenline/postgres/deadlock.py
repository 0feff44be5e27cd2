"""
Find requests that wait in the server for a row that another one has locked, which itself waits for
a connection of the pool: a deadlock that neither the server nor the pool can see alone.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from functools import partial

from greenline.hub import deadline
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control

QUESTION_S = 5.0
# Of any role and any process, but no waits for anything else than the server's locks.
QUERY = """
with recursive waits(pid, blocking) as (
  select asked, pg_catalog.pg_blocking_pids(asked) from pg_catalog.unnest(%s::int[]) as asked
  union
  select other, pg_catalog.pg_blocking_pids(other) from waits, pg_catalog.unnest(blocking) as other
)
select pid, blocking from waits
"""

log = logging.getLogger(__name__)


def lock_waits(control: Control, pids: Collection[int]) -> Mapping[int, list[int]]:
    """
    Return for *pids*, and for those that they wait for, the process ids that each waits for.

    :param control: the connection to ask over. Where it fails, that is logged, and none is found.
    :param pids: process ids of the server.
    """
    try:
        with deadline.limit(QUESTION_S):
            return control.ask(partial(_read, list(pids)))
    except Exception as error:  # whatever it is, the next question may be answered
        log.warning("the server was not asked for a deadlock: %s", error)
        return {}


def blocked_by(pids: Iterable[int], waits: Mapping[int, list[int]]) -> set[int]:
    """
    Return *pids*, and those that wait for one of them, or for another one that does.

    :param pids: process ids of the server.
    :param waits: as :func:`lock_waits` returns it.
    """
    found, size = set(pids), 0
    while size < len(found):
        size = len(found)
        found |= {pid for pid, blocking in waits.items() if not found.isdisjoint(blocking)}
    return found


def _read(pids: list[int], conn: Connection) -> dict[int, list[int]]:
    with conn.cursor() as cursor:
        cursor.execute(QUERY, (pids,))
        return dict(cursor.fetchall())
