"""A worker that shares its Postgres with other hosts, joined as the service joins it."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from greenline.budget.plan import Deployment, Plan, PostgresFacts, postgres_plan
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.hosts import Hosts
from greenline.postgres.pool import ConnectionPool
from greenline.postgres.reaper import Reaper
from greenline.slots.lease import LeasedSlotTable

log = logging.getLogger(__name__)


class Member:
    """One of the host's *workers*, whose slot table is *path*; *connect* makes its connections."""

    def __init__(self, path: Path, connect: Callable[..., Connection], workers: int = 1) -> None:
        self.workers = workers
        self.plan: Plan | None = None
        self.slot_table = LeasedSlotTable(path)
        self.hosts = Hosts(
            self.slot_table, floor=2 * workers, plan_for=self._plan_for, follow=self._follow
        )
        opener = self.hosts.named(connect)
        self.control = Control(opener, slot_table=self.slot_table, on_connect=self.hosts.read)
        self.pool = ConnectionPool(
            opener, max_size=1, control=self.control, slot_table=self.slot_table
        )
        self.reaper = Reaper(self.slot_table, self.control)

    def _plan_for(self, facts: PostgresFacts, hosts: int) -> Plan:
        """Plan without a reload, so that a host that is busy holds all that it may."""
        plan = postgres_plan(facts, Deployment(self.workers, hosts), is_counted=True)
        return replace(plan, reserved=2 * self.workers, max_pool_size=plan.host)

    def _follow(self, plan: Plan) -> None:
        self.plan = plan
        self.pool.resize(plan.max_pool_size)
        log.info("%s a host: %s", plan.host, plan)

    def start(self) -> None:
        self.reaper.start()
        self.hosts.start(self.control)

    def close(self) -> None:
        self.pool.close(2.0)
        self.hosts.close()
        self.reaper.close()
        self.control.close()
        self.slot_table.close()
