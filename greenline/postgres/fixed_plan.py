"""
Follow the budget that any worker of the host has read, where the number of hosts is set.

1. A worker reads what the server allows over each new control connection, and tells in the slot
   table how many connections that is for the host.
2. A sibling that sees another number there reads for itself, over the connection that it has. It
   does not tell: two generations with different settings would answer each other for ever.
3. Who begins goes by what was told, until it has read.
"""

import logging
from collections.abc import Callable

from greenline.budget.plan import Plan, PostgresFacts
from greenline.errors import ConfigError
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.limits import read_facts
from greenline.slots import TOLD_CAPACITY, SlotTable

log = logging.getLogger(__name__)


class FixedPlan:
    """
    One worker's part in the budget of the host, whose slots are those of *slot_table*.

    *least* are needed to ask the server at all. *plan_for* computes what the host may hold;
    *follow* is called with each plan that is another one.
    """

    def __init__(
        self,
        slot_table: SlotTable,
        *,
        least: int,
        plan_for: Callable[[PostgresFacts], Plan],
        follow: Callable[[Plan], object],
    ) -> None:
        self._slot_table = slot_table
        self._plan_for = plan_for
        self._follow = follow
        self._plan: Plan | None = None
        self._told = slot_table.spare[TOLD_CAPACITY]
        slot_table.resize(max(least, self._told), least)

    def __repr__(self) -> str:
        return f"<FixedPlan told={self._told} plan={self._plan}>"

    def read(self, conn: Connection) -> None:
        """
        Read what the server allows, over a new control connection, and tell it.

        Raises:
            ConfigError: it does not fit, with the sum.
        """
        self._slot_table.spare[TOLD_CAPACITY] = self._told = self._read(conn).host

    def look(self, control: Control) -> None:
        """
        Follow what a sibling has told since the last look, asking over *control*.

        Raises:
            StoreDown: the server cannot be asked.
        """
        told = self._slot_table.spare[TOLD_CAPACITY]
        if told in (0, self._told):
            return
        try:
            control.ask(self._read)
        except ConfigError as error:  # of our settings: a sibling's fit, as it could tell
            log.error("%s", error)
        self._told = told

    def _read(self, conn: Connection) -> Plan:
        plan = self._plan_for(read_facts(conn))
        if plan != self._plan:
            self._plan = plan
            self._slot_table.resize(plan.host, plan.reserved)
            self._follow(plan)
        return plan
