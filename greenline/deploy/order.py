"""Check the order of the timeouts of nginx, gunicorn, the service and Postgres."""

from collections.abc import Iterator
from math import ceil, inf, isinf
from typing import NamedTuple

from greenline.deploy import edits
from greenline.deploy.facts import Facts, Route, Sourced
from greenline.deploy.findings import Check, Edit, Finding, Level
from greenline.lifecycle.drain import LAST_S


class Timeout(NamedTuple):
    """
    Hold a timeout.

    :param name: its name in a finding, str.
    :param seconds: its length, float; inf for no limit.
    :param where: its source, ``file:line`` or a variable, str.
    :param by_default: what :attr:`Sourced.by_default` says about it, str, default empty.
    """

    name: str
    seconds: float
    where: str
    by_default: str = ""

    def __str__(self) -> str:
        if isinf(self.seconds):
            return self.name
        return f"{self.name} ({self.seconds:g} s{self.by_default})"


class Step(NamedTuple):
    """
    Require that one timeout is shorter than another.

    :param code: the finding's code, str.
    :param less: the shorter timeout.
    :param more: the longer timeout.
    :param why: the consequences of the wrong order, str.
    :param fix: the suggested change, str.
    :param edits: the same change for a program, default none.
    :param level: the finding's severity, default an error.
    :param may_equal: both may be equal, bool, default False.
    """

    code: str
    less: Timeout
    more: Timeout
    why: str
    fix: str
    edits: tuple[Edit, ...] = ()
    level: Level = Level.ERROR
    may_equal: bool = False

    def holds(self) -> bool:
        """Return whether the timeouts are in order."""
        less_s, more_s = self.less.seconds, self.more.seconds
        return less_s < more_s or (self.may_equal and less_s == more_s)


def steps(facts: Facts) -> Iterator[Step]:
    """Yield all steps that apply to this deployment; a timeout that is not set makes none."""
    for route in facts.routes:
        yield from _idle(facts, route)
    yield from _stop(facts)
    for route in facts.routes:
        yield from _request(facts, route)


def check_order(facts: Facts) -> Iterator[Finding]:
    """Report each step that does not hold."""
    for one in steps(facts):
        if not one.holds():
            relation = "is above" if one.may_equal else "is not below"
            what = f"{one.less} {relation} {one.more}"
            yield Finding(one.level, one.code, one.less.where, what, one.why, one.fix, one.edits)


def check_stop(facts: Facts) -> Iterator[Finding]:
    """Report the time that a stop needs; the supervisor's limit is in none of these files."""
    # Always a remark: a supervisor that kills earlier cuts the requests in progress.
    graceful = facts.gunicorn.graceful_timeout_s
    yield Finding(
        Level.REMARK,
        "stop-timeout",
        graceful.where,
        f"a stop takes up to graceful_timeout, {graceful.value:g} s",
        "a supervisor that kills the service earlier cuts the requests in progress: docker waits "
        "10 s, Kubernetes 30 s, systemd 90 s",
        f"give the supervisor more than {graceful.value:g} s: stop_grace_period (compose), "
        "TimeoutStopSec (systemd), terminationGracePeriodSeconds minus the time of preStop "
        "(Kubernetes)",
    )


ORDER_CHECKS: tuple[Check, ...] = (check_order, check_stop)


def keepalive(facts: Facts) -> Timeout:
    """Return the time after which the worker closes an idle connection."""
    found = facts.service.proxy_keepalive_s
    # The longer of both settings applies: name the one that decides.
    if found is not None and facts.keepalive_s > facts.gunicorn.keepalive_s.value:
        return Timeout(found.where, facts.keepalive_s, found.where)
    own = facts.gunicorn.keepalive_s
    return Timeout("gunicorn's keepalive", facts.keepalive_s, own.where, own.by_default)


def _idle(facts: Facts, route: Route) -> Iterator[Step]:
    # nginx must close an idle connection, never the worker: a request may be on its way.
    upstream = route.upstream
    if not upstream.keepalive.value or not facts.keepalive_s:
        return
    proxys = _of_nginx("keepalive_timeout of the upstream", upstream.keepalive_timeout_s)
    yield Step(
        "keepalive-order",
        proxys,
        keepalive(facts),
        "gunicorn closes an idle connection while nginx may be sending a request over it: nginx "
        "answers 502, and cannot retry a POST",
        "set keepalive_timeout in the upstream below gunicorn's keepalive, for example 4s and 5",
        edits.idle_timeouts(facts, upstream),
    )
    found = facts.service.proxy_keepalive_s
    if found is not None:
        yield Step(
            "proxy-keepalive",
            proxys,
            Timeout(found.where, found.value, found.where),
            f"a worker that stops closes idle connections after {found.where}: if nginx keeps them "
            "longer, each reload causes 502s",
            f"unset {found.where}, or set it to {proxys.seconds:g}",
            (edits.variable(found.where, ""),),
            may_equal=True,
        )


def _stop(facts: Facts) -> Iterator[Step]:
    # A stop must last longer than all that may still be in progress.
    drain, graceful = facts.service.drain_delay_s, facts.gunicorn.graceful_timeout_s
    ours = "DRAIN_DELAY + " if drain.value else ""
    idle = keepalive(facts)
    yield Step(
        "keepalive-stop",
        idle._replace(name=ours + idle.name, seconds=drain.value + idle.seconds),
        Timeout("graceful_timeout", graceful.value, graceful.where),
        "a worker that stops waits that long for nginx to close idle connections: at each reload "
        "gunicorn kills it before, together with the requests that nginx sends over them",
        f"set graceful_timeout above {drain.value + idle.seconds:g}",
        edits.graceful_timeout(facts),
    )
    request = facts.service.request_timeout_s
    if request is not None:
        # Greenline's worker keeps the end of the graceful timeout for closing its pools.
        last_s = min(LAST_S, graceful.value / 4) if facts.gunicorn.is_green else 0.0
        less = f", less {last_s:g} s to close" if last_s else ""
        yield Step(
            "drain-order",
            Timeout(f"{ours}REQUEST_TIMEOUT", drain.value + request.value, graceful.where),
            Timeout(f"graceful_timeout{less}", graceful.value - last_s, graceful.where),
            "a request that arrives at the end of the drain may take all of REQUEST_TIMEOUT; the "
            "stop cuts it before, and the client gets a 502 though its write may have been done",
            "set graceful_timeout to DRAIN_DELAY + REQUEST_TIMEOUT + 5",
            edits.graceful_timeout(facts),
        )


def _request(facts: Facts, route: Route) -> Iterator[Step]:
    # A request must be ended by its own deadline: nginx must not give up on one that goes on.
    request = facts.service.request_timeout_s
    if request is None:
        return
    deadline = Timeout("REQUEST_TIMEOUT", request.value, request.where)
    read = _of_nginx("proxy_read_timeout", route.read_timeout_s)
    yield Step(
        "deadline-order",
        deadline._replace(where=route.read_timeout_s.where),
        read,
        "nginx answers 504 while the worker still works on the request, and may retry it: the "
        "client sees a failure, and the write is done, perhaps twice",
        "set proxy_read_timeout a few seconds above REQUEST_TIMEOUT, for example 35s and 30",
        (
            edits.directive(
                route,
                route.read_timeout_s,
                f"proxy_read_timeout {ceil(request.value) + edits.REST_S}s",
            ),
        ),
    )
    statement = facts.service.statement_timeout_s
    if statement is not None:
        name = "statement_timeout" if statement.value else "statement_timeout 0 (no limit)"
        yield Step(
            "statement-order",
            Timeout(name, statement.value or inf, statement.where),  # 0 is no limit to Postgres
            deadline,
            "a statement may run on after the end of its request: it keeps a connection and its "
            "locks",
            "remove statement_timeout from DATABASE_URL: the service sets one below "
            "REQUEST_TIMEOUT",
            level=Level.WARNING,  # no edit: it would print the URL, which may have a password
        )


def _of_nginx(name: str, found: Sourced[float]) -> Timeout:
    return Timeout(name, found.value, found.where, found.by_default)
