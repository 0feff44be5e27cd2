"""Check the servers of nginx's upstreams, the connections to them, and the retries."""

import re
from collections.abc import Iterator, Sequence

from greenline.deploy.facts import Address, Facts, Route, is_everywhere, is_loopback, shown
from greenline.deploy.findings import Check, Finding, Level

UNSAFE = "non_idempotent"
RETRIED_REFUSALS = {"http_503", "http_429"}
FAILURES = {"http_500", "http_502", "http_504"}
IN_A_ROW_S = 10.0


def reaches(server: Address, bound: Address) -> bool:
    """
    Return whether a connection to *server* may reach *bound*.

    :param server: an address in nginx.conf.
    :param bound: an address in gunicorn's ``bind``.
    """
    if isinstance(bound, int):
        return True  # an inherited descriptor, whose address is unknown
    if isinstance(server, tuple) and isinstance(bound, tuple):
        (asked, port), (host, own_port) = server, bound
        return port == own_port and (is_everywhere(host) or _is_near(asked, host))
    return server == bound


def _is_near(asked: str, host: str) -> bool:
    if is_loopback(asked) and is_loopback(host):
        # "localhost" may be IPv4 or IPv6; two addresses must be of the same family.
        return "localhost" in (asked, host) or (":" in asked) == (":" in host)
    # Two addresses that are not loopback may be one machine: names are not looked up.
    return is_loopback(asked) == is_loopback(host)


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
    bind = facts.gunicorn.bind.value
    asked = {one: route for route in facts.routes for one in route.upstream.servers}
    if not asked or any(reaches(one, bound) for one in asked for bound in bind):
        return
    names = ", ".join(sorted(map(shown, asked)))
    what = f"nginx asks {names}, and gunicorn binds {', '.join(map(shown, bind))}"
    route = next(route for route in facts.routes if route.upstream.servers)
    if _is_unix(route) and _is_tcp(bind):
        yield Finding(
            Level.REMARK,
            "socket-activation",
            route.upstream.where,
            what,
            "right where systemd hands over the socket, or gunicorn's command line binds it; else "
            "nginx asks where nobody listens, and every answer is a 502",
            f"a systemd socket unit with that path, or --bind {names}; check-deploy reads that in "
            "GUNICORN_CMD_ARGS",
        )
        return
    # A container's port may be published under another number: only a warning then.
    may_be_mapped = not _is_unix(route) and any(
        isinstance(one, tuple) and not is_loopback(one[0]) for one in bind
    )
    yield Finding(
        Level.WARNING if may_be_mapped else Level.ERROR,
        "address",
        route.upstream.where,
        what,
        "nobody listens where nginx asks: every answer is a 502"
        + ", unless a container's port is published under another number" * may_be_mapped,
        "the same address in `server` and in gunicorn's bind",
    )


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
                "keepalive-untold",
                upstream.where,
                "the upstream does not say whether connections are kept (keepalive)",
                "before nginx 1.29.7 each request then has a connection of its own; since, idle "
                "ones are kept for 60 s, which gunicorn closes first: 502s after an upgrade",
                "an upstream block with keepalive 64 and keepalive_timeout 4s; proxy_http_version "
                '1.1 and proxy_set_header Connection "" where it is asked',
            )
        elif upstream.keepalive.value and lacks:
            yield Finding(
                Level.WARNING,
                "keepalive-unused",
                route.headers_where if connection is None else connection.where,
                f"keepalive {upstream.keepalive.value} without {' and '.join(lacks)}",
                "before nginx 1.29.7 that is HTTP/1.0 or `Connection: close`: each request has a "
                "connection of its own; a level that sets one header inherits none",
                f"{'; '.join(lacks)}; where that location sets its headers",
            )
        elif upstream.keepalive.value and not own.value:
            yield Finding(
                Level.WARNING,
                "keepalive-refused",
                own.where,
                "gunicorn's keepalive is 0, and nginx would keep connections",
                "gunicorn closes after each answer: each request has a connection of its own",
                "keepalive = 5 in gunicorn.conf.py",
            )


def check_upgrades(facts: Facts) -> Iterator[Finding]:
    """Report where a map for WebSockets closes the connections of all other requests."""
    for route in facts.routes:
        connection = route.headers.get("connection")
        # ${name} and $name are the same variable.
        variable = re.sub(r"[{}]", "", connection.value) if connection else ""
        mapped = facts.nginx.without_upgrade.get(variable)
        if route.upstream.keepalive.value and mapped and mapped.value.lower() == "close":
            yield Finding(
                Level.WARNING,
                "keepalive-unused",
                mapped.where,
                f"keepalive {route.upstream.keepalive.value}, and {variable} is close without an "
                "Upgrade",
                "each request that asks for no WebSocket has a connection of its own",
                "'' '' in the map, for '' close",
            )


def check_unread(facts: Facts) -> Iterator[Finding]:
    """Report the locations that are not checked."""
    for found in facts.nginx.unread:
        yield Finding(
            Level.REMARK,
            "unread-proxy-pass",
            found.where,
            f"proxy_pass {found.value} was not looked at",
            "a variable names the server, and only nginx knows its value: nothing of this location "
            "is checked",
            "the name of an upstream where there is one: http://app$request_uri can be read",
        )


def check_servers(facts: Facts) -> Iterator[Finding]:
    """Report where the end of one worker makes a 502, or disables the only server."""
    # One finding for each upstream, however many routes use it.
    for upstream in {route.upstream.where: route.upstream for route in facts.routes}.values():
        if len(upstream.servers) == 1:
            yield Finding(
                Level.WARNING,
                "single-server",
                upstream.where,
                f"one server line for {shown(upstream.servers[0])}",
                "nginx asks again only if there is another line: a connection that dies fresh, as "
                "when a worker is killed, is a 502 even for a GET",
                "the same server line twice in an upstream block, each with max_fails=0",
            )
        elif len(set(upstream.servers)) == 1:
            # The same server twice makes nginx retry, but also count failures (max_fails).
            for fails in upstream.max_fails:
                if fails.value:
                    yield Finding(
                        Level.ERROR,
                        "max-fails",
                        fails.where,
                        f"max_fails is {fails.value}{fails.by_default}, and "
                        "there is no other server",
                        "after one failure nginx leaves the server alone for 10 s (fail_timeout): "
                        "a worker that dies makes all requests of those 10 s a 502",
                        "max_fails=0 on each of its lines",
                    )


def check_failover(facts: Facts) -> Iterator[Finding]:
    """Report where nginx waits too long for a host that is switched off."""
    for route in facts.routes:
        connect = route.connect_timeout_s
        hosts = set(route.upstream.servers)
        # On this machine, or without another server to try, the timeout does not matter.
        if len(hosts) > 1 and route.upstream.is_remote and connect.value > IN_A_ROW_S:
            yield Finding(
                Level.WARNING,
                "connect-timeout",
                connect.where if connect.is_set else route.upstream.where,
                f"proxy_connect_timeout is {connect.value:g} s{connect.by_default}",
                "a host that is switched off refuses nobody: each request to it waits that long "
                "before the other one is asked",
                "proxy_connect_timeout 2s",
            )


def check_retries(facts: Facts) -> Iterator[Finding]:
    """Report where nginx repeats requests that must not be repeated, or repeats none."""
    for route in facts.routes:
        found, tries = route.next_upstream, route.next_tries
        is_off = "off" in found.value
        # Retries are wanted after "error" and "timeout": nginx repeats only idempotent requests
        # then, and those that were not sent.
        if len(route.upstream.servers) > 1 and (is_off or tries.value == 1):
            yield Finding(
                Level.WARNING,
                "not-retried",
                found.where if is_off else tries.where,
                f"proxy_next_upstream{' is off' if is_off else '_tries is 1'}",
                "nginx never asks a second server line: a connection that dies fresh, as when a "
                "worker is killed, is a 502 even for a GET",
                "proxy_next_upstream error timeout; proxy_next_upstream_tries 3",
            )
        if UNSAFE in found.value:
            yield Finding(
                Level.ERROR,
                "retried-writes",
                found.where,
                "proxy_next_upstream has non_idempotent",
                "a POST whose connection fails, or whose answer is late, is sent again though it "
                "may have been done: doubled writes",
                "proxy_next_upstream error timeout",
            )
        if refusals := sorted(RETRIED_REFUSALS & found.value):
            yield Finding(
                Level.ERROR,
                "retried-refusals",
                found.where,
                f"proxy_next_upstream has {', '.join(refusals)}",
                "a service that has too much to do is asked once more for each request that it "
                "refuses, and counts as failed: servers drop out under load, and the rest follow",
                "proxy_next_upstream error timeout: let Retry-After reach the client",
            )
        if failures := sorted(FAILURES & found.value):
            yield Finding(
                Level.WARNING,
                "retried-failures",
                found.where,
                f"proxy_next_upstream has {', '.join(failures)}",
                "a PUT or DELETE that was begun is done again, and a request that took too long "
                "takes as long once more",
                "proxy_next_upstream error timeout",
            )


CHECKS: tuple[Check, ...] = (
    check_address, check_keepalive, check_upgrades, check_servers, check_failover, check_retries,
    check_unread,
)  # fmt: skip


def _is_tcp(bind: Sequence[Address]) -> bool:
    return all(isinstance(one, tuple) for one in bind)


def _is_unix(route: Route) -> bool:
    return any(isinstance(one, str) for one in route.upstream.servers)
