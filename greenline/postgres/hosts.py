"""
Share a server's connections between hosts that are counted at run time: ``GREENLINE_HOSTS=auto``.

Each host registers itself at the server, with a number of connections. All hosts shrink when
one more registers, and grow when one is gone. :mod:`greenline.postgres.registry` has the queries.
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
from greenline.postgres.limits import read_facts
from greenline.postgres.registry import Registry, View
from greenline.slots.lease import LEASE_S, LeasedSlotTable

REGISTRY_CHECK_S = 0.2
REGISTRY_TIMEOUT_S = 5.0
SETTLE_S = LEASE_S
READ_S = 5.0

log = logging.getLogger(__name__)


class Hosts:
    """
    One worker's part: it registers its host if no other worker does, and follows the number of
    hosts.

    :param slot_table: the host's slot table.
    :param floor: the smallest number of connections for a host, int.
    :param plan_for: computes the plan of a host from the server's limits and the number of hosts.
    :param follow: is called with each plan that differs from the one before.
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
        self._registered = 0
        self._registered_s = 0.0
        self._server = 0

    def __repr__(self) -> str:
        mine = self._slot_table
        return f"<Hosts {mine.hosts} number={mine.number} allowed={mine.allowed} {self._registry}>"

    def named(self, connect: Callable[..., Connection]) -> Connect:
        """Return *connect* with an application name that identifies the host of each connection."""

        def connect_named(*, abandon: Callable[[Connection], None]) -> Connection:
            # The first connection needs the number before it can ask for those in use: a random
            # one, and _register() refuses it if another host has it.
            if not self._slot_table.number and self._slot_table.leads():
                self._slot_table.number = random.randint(1, registry.MAX_HOST)  # noqa: S311
            return connect(
                application=registry.application(self._slot_table.number), abandon=abandon
            )

        return connect_named

    def read(self, conn: Connection) -> None:
        """
        Read the server's limits over a new control connection.

        :raises ConfigError: they do not fit even one host, or a pooler is in between.
        """
        facts = self._facts = self._last_facts = self._read(conn)
        require_sessions(facts)
        self._read_due = monotonic() + SETTLE_S
        self._replan(max(self._slot_table.hosts, 1))

    def _read(self, conn: Connection) -> PostgresFacts:
        return read_facts(conn, self._slot_table.pids())

    def read_again(self, conn: Connection) -> None:
        """Read the connections of other applications again, about every ``READ_S``."""
        if monotonic() < self._read_due:
            return
        self._read_due = monotonic() + READ_S
        # The smaller of two readings: a backend of this application that has just begun has no name
        # yet, and is counted as another application's.
        before, self._last_facts = self._last_facts, self._read(conn)
        self._facts = min(before or self._last_facts, self._last_facts, key=_others)

    def check(self) -> None:
        """
        Check that the registered hosts fit.

        :raises ConfigError: they do not; the text contains the sum.
        """
        if self._problem is not None:
            raise self._problem

    def start(self, control: Control) -> None:
        """Call :meth:`look` every ``REGISTRY_CHECK_S`` in the background, asking over *control*."""
        self._looking = keep_doing(
            partial(self.look, control), lambda: REGISTRY_CHECK_S, "looking for other hosts"
        )

    def close(self) -> None:
        """Stop looking; the registration ends with the control connection."""
        if self._looking is not None:
            self._looking.kill()

    def look(self, control: Control) -> None:
        """
        Look once: the registrar at the server, the other workers at the slot table.

        :raises StoreDown: the server cannot be asked.
        :raises ConfigError: as :meth:`read`.
        """
        if not self._slot_table.leads():
            if self._facts is not None and monotonic() >= self._read_due:
                control.ask(self.read_again)
            self._replan(self._slot_table.hosts)
            return
        try:
            with deadline.limit(REGISTRY_TIMEOUT_S):
                control.ask(self._ask)
        except BaseException:
            # Without the server's answer there may be more hosts now: this one must not grow. If
            # this process cannot run at all, the lease ends by itself after LEASE_S.
            self._slot_table.end_lease()
            raise

    def _ask(self, conn: Connection) -> None:
        # Before the question: the lease counts from here, however long the answer takes.
        seen_ns = monotonic_ns()
        view = registry.look(conn)
        if not view.is_registered:
            self._register(conn, view)
            seen_ns = monotonic_ns()
            view = registry.look(conn)
        self.read_again(conn)
        self._registry.note(view.registered, monotonic())
        self._replan(len(self._registry))
        self._shrink(conn)
        self._grow(conn, view)
        self._slot_table.lease(len(self._registry), seen_ns, self._server)

    def _register(self, conn: Connection, view: View) -> None:
        slot_table = self._slot_table
        slot_table.end_lease()
        server = registry.started(conn)
        # Within RETURN_S and at the same server, the host resumes with the capacity that it had.
        # Else it begins with one connection, the registrar's; some are set aside for new hosts.
        # After a restart of the server all hosts are new, because there may be less to share.
        if not slot_table.may_return(server):
            if slot_table.number in view.registered:
                slot_table.number = 0
                conn.close()
                raise StoreDown("another session is registered with the number of this host")
            slot_table.allow(1)
        self._server = server
        self._registered = slot_table.needed(slot_table.allowed)
        registry.register(conn, slot_table.number, self._registered)
        self._registered_s = monotonic()
        log.info("registered as host %d, with %d connections", slot_table.number, self._registered)

    def _shrink(self, conn: Connection) -> None:
        """
        Reduce the capacity to the host's share, and the registered number to the connections that
        it still holds.
        """
        slot_table = self._slot_table
        allowed = self._floor if self._plan is None else self._plan.host
        if slot_table.allowed > allowed:
            slot_table.allow(allowed)
        # Connections beyond the share are closed when they are returned or idle: until then they
        # are part of the registered number.
        self._set_registered(conn, slot_table.needed(slot_table.allowed))

    def _grow(self, conn: Connection, view: View) -> None:
        """Register the rest of the host's share, unless other hosts still have it registered."""
        slot_table, plan = self._slot_table, self._plan
        if plan is None or slot_table.allowed >= plan.host:
            return
        # The other hosts need this time to notice a new one and to shrink.
        if monotonic() - self._registered_s < SETTLE_S:
            return
        beyond = slot_table.needed(slot_table.allowed) - slot_table.allowed
        allowed = min(self._room(view, plan) - beyond, plan.host)
        if allowed <= slot_table.allowed:
            return
        # Register first, then look whether the sum fits: of two hosts that register at the same
        # time the later one sees both.
        before = self._registered
        registry.register(conn, slot_table.number, allowed + beyond)
        view = registry.look(conn)
        self._registry.note(view.registered, monotonic())
        if self._room(view, plan) < allowed + beyond:  # another host registered at the same time
            registry.unregister(conn, slot_table.number, allowed + beyond)
            return
        registry.unregister(conn, slot_table.number, before)
        self._registered = allowed + beyond
        slot_table.allow(allowed)

    def _room(self, view: View, plan: Plan) -> int:
        return (
            plan.all_hosts
            - self._registry.registered_by_others(self._slot_table.number)
            - view.unregistered
        )

    def _set_registered(self, conn: Connection, number: int) -> None:
        if number != self._registered:
            # The new lock before the end of the old one: the host is never unregistered.
            registry.register(conn, self._slot_table.number, number)
            registry.unregister(conn, self._slot_table.number, self._registered)
            self._registered = number

    def _replan(self, hosts: int) -> None:
        """Compute the plan for *hosts*; if they do not fit, this host keeps to its floor."""
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
    Check that a session at the server belongs to one connection for as long as that is open.

    :raises ConfigError: there is a pgbouncer in between.
    """
    if facts.behind_pgbouncer:
        raise ConfigError(
            "GREENLINE_HOSTS: auto counts the hosts by locks, each held by a session of its own, "
            "and DATABASE_URL leads to a pgbouncer: what pools transactions gives the session to "
            "another client after each, the lock with it; set the number of hosts, or connect to "
            "the server itself"
        )
