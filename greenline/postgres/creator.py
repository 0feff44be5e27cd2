"""Let another library's pool use the host's slots, as SQLAlchemy's ``creator`` for instance."""

import sys
from collections.abc import Callable

import gevent

from greenline.errors import PoolTimeout
from greenline.hub import deadline
from greenline.postgres.connect import Connect
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.slots import PoolSlots
from greenline.slots import SlotTable


def creator(
    connect: Connect,
    slot_table: SlotTable,
    control: Control | None = None,
    *,
    timeout_s: float = 30.0,
) -> Callable[[], Connection]:
    """
    Return a function that connects as *connect* does, in a slot of *slot_table*.

    Closing the connection releases the slot when the backend has ended. Connections that the other
    library keeps idle keep their slots: set the size of its pool, and a time after which it closes
    unused connections.

    ``create_engine("postgresql+psycopg2://", creator=creator(connect, slot_table))``

    :param connect: makes a connection.
    :param slot_table: the host's slot table.
    :param control: cancels the statement of a closed connection. Default None: it works on.
    :param timeout_s: seconds to wait for a slot, within the request's deadline, float. Default 30.
    :returns: the function. It raises PoolTimeout if no slot became free in time, and the errors of
        *connect*.
    """
    slots = PoolSlots("creator", slot_table, control)

    def on_close(conn: Connection) -> None:
        # A connection that is left at the interpreter's end is closed when greenlets no longer run.
        # The end of the process releases its slot.
        if not sys.is_finalizing():
            slots.close_and_wait(conn)

    def create() -> Connection:
        left_s = deadline.remaining(timeout_s)
        with gevent.Timeout(left_s, PoolTimeout(f"no slot became free within {left_s} s")):
            slot = slots.wait()
        conn = slots.connect(slot, connect)
        conn.on_close = on_close
        return conn

    return create
