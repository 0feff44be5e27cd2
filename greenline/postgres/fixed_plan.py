"""
Follow the budget that a worker of the host has read, where the number of hosts is fixed.

A worker reads the server's limits over each new control connection, and writes the number of
connections that the host may hold into the slot table.
"""

import logging
from collections.abc import Callable

from greenline.budget.plan import Plan, PostgresFacts
from greenline.errors import ConfigError
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.limits import read_facts
from greenline.slots import SlotTable

log = logging.getLogger(__name__)


class FixedPlan:
    """
    One worker's part in the budget of its host.

    :param slot_table: the host's slot table.
    :param min_connections: the number of connections needed to ask the server at all, int.
    :param plan_for: computes the plan of a host from the server's limits.
    :param follow: is called with each plan that differs from the one before.
    """

    def __init__(
        self,
        slot_table: SlotTable,
        *,
        min_connections: int,
        plan_for: Callable[[PostgresFacts], Plan],
        follow: Callable[[Plan], object],
    ) -> None:
        self._slot_table = slot_table
        self._plan_for = plan_for
        self._follow = follow
        self._plan: Plan | None = None
        self._published = slot_table.published
        # A starting worker uses the host's number until it has read the server's limits.
        slot_table.resize(max(min_connections, self._published), min_connections)

    def __repr__(self) -> str:
        return f"<FixedPlan published={self._published} plan={self._plan}>"

    def read(self, conn: Connection) -> None:
        """
        Read the server's limits over a new control connection, and publish the host's number.

        :raises ConfigError: the budget does not fit; the text contains the sum.
        """
        self._published = self._read(conn).host
        self._slot_table.publish(self._published)

    def look(self, control: Control) -> None:
        """
        Follow a number that another worker has published since the last call, asking over
        *control*.

        :raises StoreDown: the server cannot be asked.
        """
        published = self._slot_table.published
        if published in (0, self._published):
            return
        # Read and not published: two generations of workers with different settings would answer
        # each other without an end.
        try:
            control.ask(self._read)
        except ConfigError as error:  # the other worker's settings fit: it has published a number
            log.error("%s", error)
        self._published = published

    def _read(self, conn: Connection) -> Plan:
        plan = self._plan_for(read_facts(conn, self._slot_table.pids()))
        if plan != self._plan:
            self._plan = plan
            self._slot_table.resize(plan.host, plan.reserved)
            self._follow(plan)
        return plan
