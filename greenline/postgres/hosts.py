"""
Share what a server allows between hosts that are counted: ``GREENLINE_HOSTS=auto``.

1. A host begins with one connection, its registrar's. Some are set aside for those that come.
2. All shrink as soon as one more is there: nothing is taken beyond the new share, what is idle
   beyond it goes at once, what is lent as it comes back. A claim shrinks with what is held.
3. A newcomer waits for ``SETTLE_S``, and grows into what the others do not claim any more.
4. A host that is gone counts for ``GONE_S``, and after that with what backends it left.
5. Who cannot ask the server lets its host not grow, after ``LEASE_S`` at most.
6. Whose registration was lost takes up what it had, within ``RETURN_S`` and at the same server.
   After a restart of the server all are newcomers: there may be less to share.
"""

import logging
import random
from collections.abc import Callable
from functools import partial
from time import monotonic, monotonic_ns

import gevent

from greenline.budget.plan import Plan, PostgresFacts
from greenline.errors import ConfigError, StoreDown
from greenline.hub import deadline
from greenline.hub.periodic import keep_doing
from greenline.postgres import registry
from greenline.postgres.connect import Connect
from greenline.postgres.connection import Connection
from greenline.postgres.control import Control
from greenline.postgres.lease import LEASE_S, LeasedSlotTable
from greenline.postgres.limits import read_facts
from greenline.postgres.registry import Registry, View

REGISTRY_CHECK_S = 0.2
ASK_TIMEOUT_S = 5.0
SETTLE_S = LEASE_S
READ_S = 5.0

log = logging.getLogger(__name__)


class Hosts:
    """
    One worker's part: it registers its host if no sibling does, and follows the number of hosts.

    *slot_table* is the host's. *plan_for* computes what a host may hold beside so many others, of
    which *floor* is the least; *follow* is called with each plan that is another one.
    """

    def __init__(
        self,
        slot_table: LeasedSlotTable,
        *,
        floor: int,
        plan_for: Callable[[PostgresFacts, int], Plan],
        follow: Callable[[Plan], object],
    ) -> None:
        self._slot_table = slot_table
        self._floor = floor
        self._plan_for = plan_for
        self._follow = follow
        self._looking: gevent.Greenlet[..., None] | None = None
        self._facts: PostgresFacts | None = None
        self._last_facts: PostgresFacts | None = None
        self._read_due = 0.0
        self._plan: Plan | None = None
        self._problem: ConfigError | None = None
        self._registry = Registry()
        self._claimed = 0
        self._registered_s = 0.0
        self._server = 0

    def __repr__(self) -> str:
        mine = self._slot_table
        return f"<Hosts {mine.hosts} number={mine.number} allowed={mine.allowed} {self._registry}>"

    def named(self, connect: Callable[..., Connection]) -> Connect:
        """Return *connect* with a name for each connection that tells others whose it is."""

        def connect_named(*, abandon: Callable[[Connection], None]) -> Connection:
            if not self._slot_table.number and self._slot_table.leads():
                self._slot_table.number = random.randint(1, registry.MAX_HOST)  # noqa: S311
            return connect(
                application=registry.application(self._slot_table.number), abandon=abandon
            )

        return connect_named

    def read(self, conn: Connection) -> None:
        """
        Read what the server allows, over a new control connection.

        Raises:
            ConfigError: it does not fit on one host, or a pooler is in between.
        """
        facts = self._facts = self._last_facts = read_facts(conn)
        require_sessions(facts)
        self._read_due = monotonic() + SETTLE_S
        self._replan(max(self._slot_table.hosts, 1))

    def read_again(self, conn: Connection) -> None:
        """
        Follow what others hold by now, but what one look alone shows of them.

        A backend of ours that has just begun has no name yet, and looks like another's.
        """
        if monotonic() < self._read_due:
            return
        self._read_due = monotonic() + READ_S
        before, self._last_facts = self._last_facts, read_facts(conn)
        self._facts = min(before or self._last_facts, self._last_facts, key=_others)

    def check(self) -> None:
        """
        Prove that the hosts that there are fit.

        Raises:
            ConfigError: they do not, with the sum.
        """
        if self._problem is not None:
            raise self._problem

    def start(self, control: Control) -> None:
        """Look every ``REGISTRY_CHECK_S``, in the background, asking over *control*."""
        self._looking = keep_doing(
            partial(self.look, control), lambda: REGISTRY_CHECK_S, "looking for other hosts"
        )

    def close(self) -> None:
        """Look no more; the registration ends with the control connection."""
        if self._looking is not None:
            self._looking.kill()

    def look(self, control: Control) -> None:
        """
        Look once: the registrar at the server, its siblings at what it has told.

        Raises:
            StoreDown: the server cannot be asked.
            ConfigError: as :meth:`read`.
        """
        if not self._slot_table.leads():
            if self._facts is not None and monotonic() >= self._read_due:
                control.ask(self.read_again)
            self._replan(self._slot_table.hosts)
            return
        try:
            with deadline.limit(ASK_TIMEOUT_S):
                control.ask(self._ask)
        except BaseException:
            self._slot_table.end_lease()
            raise

    def _ask(self, conn: Connection) -> None:
        seen_ns = monotonic_ns()
        view = registry.look(conn)
        if not view.is_registered:
            self._register(conn, view)
            seen_ns = monotonic_ns()
            view = registry.look(conn)
        self.read_again(conn)
        self._registry.note(view.claims, monotonic())
        self._replan(len(self._registry))
        self._shrink(conn)
        self._grow(conn, view)
        self._slot_table.lease(len(self._registry), seen_ns, self._server)

    def _register(self, conn: Connection, view: View) -> None:
        slot_table = self._slot_table
        slot_table.end_lease()
        server = registry.started(conn)
        if not slot_table.may_return(server):
            if slot_table.number in view.claims:
                slot_table.number = 0
                conn.close()
                raise StoreDown("another session is registered with the number of this host")
            slot_table.allow(1)
        self._server = server
        self._claimed = slot_table.needed(slot_table.allowed)
        registry.claim(conn, slot_table.number, self._claimed)
        self._registered_s = monotonic()
        log.info("registered as host %d, with %d connections", slot_table.number, self._claimed)

    def _shrink(self, conn: Connection) -> None:
        """Let there be no more than our share, and claim what that needs."""
        slot_table = self._slot_table
        most = self._floor if self._plan is None else self._plan.host
        if slot_table.allowed > most:
            slot_table.allow(most)
        self._claim(conn, slot_table.needed(slot_table.allowed))

    def _grow(self, conn: Connection, view: View) -> None:
        """Claim what is missing to our share, as far as nobody else does."""
        slot_table, plan = self._slot_table, self._plan
        if plan is None or slot_table.allowed >= plan.host:
            return
        if monotonic() - self._registered_s < SETTLE_S:
            return
        beyond = slot_table.needed(slot_table.allowed) - slot_table.allowed
        allowed = min(self._room(view, plan) - beyond, plan.host)
        if allowed <= slot_table.allowed:
            return
        before = self._claimed
        registry.claim(conn, slot_table.number, allowed + beyond)
        view = registry.look(conn)
        self._registry.note(view.claims, monotonic())
        if self._room(view, plan) < allowed + beyond:  # another one claimed it in this moment
            registry.unclaim(conn, slot_table.number, allowed + beyond)
            return
        registry.unclaim(conn, slot_table.number, before)
        self._claimed = allowed + beyond
        slot_table.allow(allowed)

    def _room(self, view: View, plan: Plan) -> int:
        return (
            plan.all_hosts - self._registry.claimed_beside(self._slot_table.number) - view.unclaimed
        )

    def _claim(self, conn: Connection, number: int) -> None:
        if number != self._claimed:
            registry.claim(conn, self._slot_table.number, number)
            registry.unclaim(conn, self._slot_table.number, self._claimed)
            self._claimed = number

    def _replan(self, hosts: int) -> None:
        """Compute the plan for *hosts*; where they do not fit, ours keeps to its floor."""
        if self._facts is None or not hosts:
            return
        try:
            plan = self._plan_for(self._facts, hosts)
        except ConfigError as error:
            if hosts == 1:
                raise
            if self._problem is None:
                log.error("%s", error)
            self._problem, self._plan = error, None
            return
        self._problem = None
        if plan != self._plan:
            self._plan = plan
            self._slot_table.reserve(plan.reserved)
            self._follow(plan)


def _others(facts: PostgresFacts) -> int:
    return facts.others


def require_sessions(facts: PostgresFacts) -> None:
    """
    Prove that a session is ours for as long as we hold its connection.

    Raises:
        ConfigError: there is a pgbouncer.
    """
    if facts.behind_pgbouncer:
        raise ConfigError(
            "GREENLINE_HOSTS: auto counts the hosts by locks, each held by a session of its own, "
            "and DATABASE_URL leads to a pgbouncer: what pools transactions gives the session to "
            "another client after each, the lock with it; set the number of hosts, or connect to "
            "the server itself"
        )
