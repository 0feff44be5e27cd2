"""Check the servers of nginx's upstreams, the connections to them, and the retries."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from greenline.deploy import edits
from greenline.deploy.facts import Address, Facts, Route, is_loopback, reaches, shown
from greenline.deploy.findings import Action, Check, Edit, Finding, Level

UNSAFE = "non_idempotent"
RETRIED_REFUSALS = {"http_503", "http_429"}
FAILURES = {"http_500", "http_502", "http_504"}
IN_A_ROW_S = 10.0
MINUTE_S = 60.0


def routes_to(bind: Sequence[Address], routes: Sequence[Route]) -> tuple[Route, ...]:
    """
    Return the routes that lead to gunicorn, as nginx may proxy to other servers as well.

    :param bind: gunicorn's addresses.
    :param routes: all routes in nginx.conf.
    :returns: the matching routes; if there are none, those to unix sockets; else all of them.
    """
    found = [
        route
        for route in routes
        if any(reaches(asked, bound) for asked in route.upstream.servers for bound in bind)
    ]
    # systemd may pass a unix socket that gunicorn's configuration does not mention.
    if not found and _is_tcp(bind):
        found = [route for route in routes if _is_unix(route)]
    return tuple(found or routes)


def check_address(facts: Facts) -> Iterator[Finding]:
    """Report where nginx connects to a socket that gunicorn does not listen on."""
    bind = facts.gunicorn.bind
    asked = {one: route for route in facts.routes for one in route.upstream.servers}
    if not asked or any(reaches(one, bound) for one in asked for bound in bind.value):
        return
    names = ", ".join(sorted(map(shown, asked)))
    what = f"nginx connects to {names}, and gunicorn binds {', '.join(map(shown, bind.value))}"
    route = next(route for route in facts.routes if route.upstream.servers)
    if _is_unix(route) and _is_tcp(bind.value):
        yield Finding(
            Level.REMARK,
            "socket-activation",
            route.upstream.where,
            what,
            "this is right if systemd passes the socket, or if gunicorn's command line binds it; "
            "otherwise nothing listens on that socket, and nginx answers every request with 502",
            f"make a systemd socket unit with that path, or start gunicorn with --bind {names}; "
            "check-deploy reads that option in GUNICORN_CMD_ARGS",
        )
        return
    # A container's port may be published under another number: only a warning then.
    may_be_mapped = not _is_unix(route) and any(
        isinstance(one, tuple) and not is_loopback(one[0]) for one in bind.value
    )
    yield Finding(
        Level.WARNING if may_be_mapped else Level.ERROR,
        "address",
        route.upstream.where,
        what,
        "nothing listens where nginx connects, and nginx answers every request with 502"
        + ", unless a container's port is published under another number" * may_be_mapped,
        "use the same address in `server` and in gunicorn's bind",
        () if may_be_mapped else edits.setting(facts, bind, _bind(asked)),
    )


def _bind(asked: Iterable[Address]) -> str:
    # The address of another machine is one of its own, which is not known here.
    names = {
        shown(one)
        if isinstance(one, str) or not isinstance(one, tuple) or is_loopback(one[0])
        else f"0.0.0.0:{one[1]}"
        for one in asked
    }
    return f"bind = {json.dumps(sorted(names))}"


def check_keepalive(facts: Facts) -> Iterator[Finding]:
    """Report where connections to gunicorn are not kept, or only by a default of a newer nginx."""
    own = facts.gunicorn.keepalive_s
    for route in facts.routes:
        upstream = route.upstream
        connection = route.headers.get("connection")
        # nginx before 1.29.7 needs both to keep a connection.
        lacks = [
            line
            for line, is_there in (
                ("proxy_http_version 1.1", route.http_version.value != "1.0"),
                (
                    'proxy_set_header Connection ""',
                    connection and connection.value.lower() != "close",
                ),
            )
            if not is_there
        ]
        if not upstream.keepalive.is_set:
            yield Finding(
                Level.WARNING,
                "keepalive-unset",
                upstream.where,
                "the upstream does not set keepalive",
                "before nginx 1.29.7 each request then opens a connection; since then nginx keeps "
                "idle ones for 60 s, and gunicorn closes them first: an upgrade of nginx causes "
                "502s",
                "use an upstream block with keepalive 64 and keepalive_timeout 4s; set "
                'proxy_http_version 1.1 and proxy_set_header Connection "" beside proxy_pass',
                _keep(facts, route),
            )
        elif upstream.keepalive.value and lacks:
            yield Finding(
                Level.WARNING,
                "keepalive-unused",
                route.headers_place.where if connection is None else connection.where,
                f"keepalive {upstream.keepalive.value} without {' and '.join(lacks)}",
                "before nginx 1.29.7 requests are then HTTP/1.0 or have `Connection: close`: each "
                "opens a connection; a level that sets one header inherits none",
                f"set {'; '.join(lacks)}, at the level that sets the other headers",
                edits.keep_connections(route),
            )
        elif upstream.keepalive.value and not own.value:
            yield Finding(
                Level.WARNING,
                "keepalive-refused",
                own.where,
                "gunicorn's keepalive is 0, and nginx has keepalive "
                f"{upstream.keepalive.value} in the upstream",
                "gunicorn closes the connection after each answer: each request opens another one",
                f"set keepalive = {edits.KEEPALIVE_S} in gunicorn.conf.py",
                edits.idle_timeouts(facts, upstream),
            )


def _keep(facts: Facts, route: Route) -> tuple[Edit, ...]:
    upstream = route.upstream
    if not upstream.name:
        return edits.new_upstream(facts, route)
    keep = edits.in_upstream(upstream, upstream.keepalive, f"keepalive {edits.KEEPALIVE}")
    return (keep, *edits.idle_timeouts(facts, upstream), *edits.keep_connections(route))


def check_upgrades(facts: Facts) -> Iterator[Finding]:
    """Report where a map for WebSockets closes the connections of all other requests."""
    for route in facts.routes:
        connection = route.headers.get("connection")
        # ${name} and $name are the same variable.
        variable = re.sub(r"[{}]", "", connection.value) if connection else ""
        mapped = facts.nginx.without_upgrade.get(variable)
        if route.upstream.keepalive.value and mapped and mapped.value.lower() == "close":
            edit = (
                Edit(Action.REPLACE, mapped.where, "''", "'' '';")
                if mapped.is_set
                else Edit(Action.BEFORE, mapped.where, "default", "'' '';")
            )
            yield Finding(
                Level.WARNING,
                "keepalive-unused",
                mapped.where,
                f"keepalive {route.upstream.keepalive.value}, and {variable} is close without an "
                "Upgrade",
                "each request that is not for a WebSocket opens a connection",
                "in the map, write '' '' instead of '' close",
                (edit,),
            )


def check_unread(facts: Facts) -> Iterator[Finding]:
    """Report the locations that are not checked."""
    for found in facts.nginx.unread:
        yield Finding(
            Level.REMARK,
            "unread-proxy-pass",
            found.where,
            f"proxy_pass {found.value} is not checked",
            "a variable names the server, and only nginx knows its value",
            "name an upstream if the server is fixed: http://app$request_uri can be checked",
        )


def check_servers(facts: Facts) -> Iterator[Finding]:
    """Report where the end of one worker makes a 502, or disables the only server."""
    for route in facts.routes:
        upstream = route.upstream
        if len(upstream.servers) == 1:
            yield Finding(
                Level.WARNING,
                "single-server",
                upstream.where,
                f"the upstream has one server line, {shown(upstream.servers[0])}",
                "nginx retries only on another server line: if a new connection breaks, for "
                "example because a worker is killed, nginx answers 502, even to a GET",
                "write the same server line twice in an upstream block, each with max_fails=0",
                (edits.server_line(upstream.lines[0], 2),)
                if upstream.name
                else edits.new_upstream(facts, route),
            )
        elif len(set(upstream.servers)) == 1:
            # The same server twice makes nginx retry, but also count failures (max_fails).
            for fails, line in zip(upstream.max_fails, upstream.lines, strict=True):
                if fails.value:
                    yield Finding(
                        Level.ERROR,
                        "max-fails",
                        fails.where,
                        f"max_fails is {fails.value}{fails.by_default}, and there is no other "
                        "server",
                        "after one failure nginx does not use the server for 10 s (fail_timeout): "
                        "when a worker dies, nginx answers all requests of those 10 s with 502",
                        "set max_fails=0 on each of its lines",
                        (edits.server_line(line),),
                    )


def check_failover(facts: Facts) -> Iterator[Finding]:
    """Report where nginx waits too long for a connection."""
    for route in facts.routes:
        connect = route.connect_timeout_s
        hosts = set(route.upstream.servers)
        corrected = (edits.directive(route, connect, "proxy_connect_timeout 2s"),)
        # Below a minute the timeout does not matter on this machine, or without another server.
        if len(hosts) > 1 and route.upstream.is_remote and connect.value > IN_A_ROW_S:
            yield Finding(
                Level.WARNING,
                "connect-timeout",
                connect.where if connect.is_set else route.upstream.where,
                f"proxy_connect_timeout is {connect.value:g} s{connect.by_default}",
                "a host that is switched off does not refuse connections: each request to it waits "
                "that long before nginx tries the other host",
                "set proxy_connect_timeout 2s",
                corrected,
            )
        elif connect.is_set and connect.value >= MINUTE_S:
            yield Finding(
                Level.WARNING,
                "connect-timeout",
                connect.where,
                f"proxy_connect_timeout is {connect.value:g} s",
                "gunicorn accepts a connection within milliseconds, or its queue is full: clients "
                "wait that long for a 504, and hold connections of nginx meanwhile",
                "set proxy_connect_timeout 2s",
                corrected,
            )


def check_retries(facts: Facts) -> Iterator[Finding]:
    """Report where nginx repeats requests that must not be repeated, or repeats none."""
    for route in facts.routes:
        found, tries = route.next_upstream, route.next_tries
        is_off = "off" in found.value
        corrected = (edits.directive(route, found, "proxy_next_upstream error timeout"),)
        # Retries are wanted after "error" and "timeout": nginx repeats only idempotent requests
        # then, and those that were not sent.
        if len(route.upstream.servers) > 1 and (is_off or tries.value == 1):
            yield Finding(
                Level.WARNING,
                "not-retried",
                found.where if is_off else tries.where,
                f"proxy_next_upstream{' is off' if is_off else '_tries is 1'}",
                "nginx never tries a second server line: if a new connection breaks, for example "
                "because a worker is killed, nginx answers 502, even to a GET",
                "set proxy_next_upstream error timeout and proxy_next_upstream_tries 3",
                (
                    *(corrected if is_off else ()),
                    *(
                        (edits.directive(route, tries, "proxy_next_upstream_tries 3"),)
                        if tries.value == 1
                        else ()
                    ),
                ),
            )
        if UNSAFE in found.value:
            yield Finding(
                Level.ERROR,
                "retried-writes",
                found.where,
                "proxy_next_upstream has non_idempotent",
                "nginx sends a POST again if its connection breaks or its answer is late, though "
                "it may have been done: writes are doubled",
                "set proxy_next_upstream error timeout",
                corrected,
            )
        if refusals := sorted(RETRIED_REFUSALS & found.value):
            yield Finding(
                Level.ERROR,
                "retried-refusals",
                found.where,
                f"proxy_next_upstream has {', '.join(refusals)}",
                "an overloaded service gets each request that it refuses once more, and nginx "
                "counts the refusals as failures: it stops using servers that are only busy",
                "set proxy_next_upstream error timeout: the client then gets Retry-After",
                corrected,
            )
        if failures := sorted(FAILURES & found.value):
            yield Finding(
                Level.WARNING,
                "retried-failures",
                found.where,
                f"proxy_next_upstream has {', '.join(failures)}",
                "nginx repeats a PUT or DELETE that was begun, and a request that took too long "
                "takes as long once more",
                "set proxy_next_upstream error timeout",
                corrected,
            )


PROXYING_CHECKS: tuple[Check, ...] = (
    check_address, check_keepalive, check_upgrades, check_servers, check_failover, check_retries,
    check_unread,
)  # fmt: skip


def _is_tcp(bind: Sequence[Address]) -> bool:
    return all(isinstance(one, tuple) for one in bind)


def _is_unix(route: Route) -> bool:
    return any(isinstance(one, str) for one in route.upstream.servers)
