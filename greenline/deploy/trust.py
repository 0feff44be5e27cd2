"""Check the headers that nginx sets about a client, and the addresses that are trusted."""

import json
import re
from collections.abc import Iterator

from greenline.deploy import edits
from greenline.deploy.facts import (
    Facts,
    Route,
    Sourced,
    is_everywhere,
    is_loopback,
    reaches,
    shown,
)
from greenline.deploy.findings import Check, Finding, Level

# Headers that nginx has to set: level, value, and the consequences without it.
WANTED = (
    ("Host", Level.WARNING, "$host",
     "nginx sends the name of the upstream instead, and the application uses it in links and "
     "redirects"),
    ("X-Forwarded-For", Level.ERROR, "$remote_addr",
     "nginx passes on the client's own header, and the service trusts it: a client can choose the "
     "address in the log and of its rate limit; a level that sets one header inherits none"),
    ("X-Forwarded-Proto", Level.WARNING, "$scheme",
     "the service takes https for http, and nginx passes on the client's own header"),
    ("X-Request-Id", Level.WARNING, "$request_id",
     "the lines of a request in nginx's log and in the service's have no common id"),
    ("X-Request-Start", Level.WARNING, "t=$msec",
     "the log does not show how long a request waited for a worker (proxy_ms)"),
)  # fmt: skip

# The consequences of an empty value: nginx then sends no such header, not even the client's.
EMPTY = {
    "Host": "nginx sends no Host header, and gunicorn refuses a request without one",
    "X-Forwarded-For": "nginx sends no such header: the log shows nginx's address for all clients, "
    "and they share one rate limit",
    "X-Forwarded-Proto": "nginx sends no such header: the service takes https for http",
}
# The consequences of a value that the client chooses.
BELIEVED = {
    "Host": (Level.WARNING, "nginx chooses the server block by the name in the request line, and "
             "passes on the Host header: for GET http://good.example/ with Host: bad.example the "
             "application sees bad.example"),
    "X-Forwarded-For": (Level.ERROR, "a client can choose the address that the service trusts: "
                        "the log shows it, and the rate limit applies to it"),
    "X-Forwarded-Proto": (Level.ERROR, "a client can choose the scheme that the service trusts: "
                          "http is taken for https"),
    "X-Request-Id": (Level.WARNING, "a client can choose the id of its requests in the log: "
                     "several requests may have the same id, or none"),
    "X-Request-Start": (Level.WARNING, "a client can choose the time that its request waited "
                        "(proxy_ms in the log)"),
}  # fmt: skip
CLIENTS = re.compile(r"\$\{?(?:http|arg|cookie)_\w+\}?")
STARTED = re.compile(r"t=|\$(?!\{?msec\b)")  # the value of another variable may begin with t=


def check_headers(facts: Facts) -> Iterator[Finding]:
    """Report the headers that nginx does not set, or copies from the client."""
    for route in facts.routes:
        for name, level, value, why in WANTED:
            found, fix = route.headers.get(name.lower()), f"set proxy_set_header {name} {value}"
            corrected = (edits.header(route, name, value),)
            code = f"no-{name.lower()}"
            if found is None:
                # The level whose own headers hide the inherited ones.
                where, what = route.headers_place.where, f"{name} is not set"
                yield Finding(level, code, where, what, why, fix, corrected)
            elif not found.value:
                what, why = f"{name} is empty", EMPTY.get(name, why)
                yield Finding(Level.WARNING, code, found.where, what, why, fix, corrected)
            elif problem := _problem(name, found, route):
                yield problem._replace(fix=fix, edits=corrected)
        yield from _appended(route)


def _problem(name: str, found: Sourced[str], route: Route) -> Finding | None:
    taken = CLIENTS.findall(found.value)
    # Behind a trusted proxy, its headers about the client are the right ones. The host is an
    # exception: it is the client's choice through any number of proxies.
    if name in BELIEVED and taken and (name == "Host" or not route.has_real_ip):
        level, why = BELIEVED[name]
        what = f"{name} is what the client sent ({', '.join(taken)})"
        return Finding(level, f"client-{name.lower()}", found.where, what, why, "")
    if name == "X-Request-Start" and not STARTED.match(found.value):
        what = f"X-Request-Start is {found.value}, without t="
        why = "the worker cannot read it: the log has no proxy_ms"
        return Finding(Level.WARNING, "unread-x-request-start", found.where, what, why, "")
    return None


def _appended(route: Route) -> Iterator[Finding]:
    found = route.headers.get("x-forwarded-for")
    # Behind a trusted proxy, realip has replaced the address that is appended.
    if found and "$proxy_add_x_forwarded_for" in found.value and not route.has_real_ip:
        yield Finding(
            Level.WARNING,
            "appended-for",
            found.where,
            "X-Forwarded-For begins with what the client sent ($proxy_add_x_forwarded_for)",
            "programs that read its first address, as many do, read an address that the client "
            "has chosen",
            "set proxy_set_header X-Forwarded-For $remote_addr; behind another proxy also set "
            "set_real_ip_from to its address and real_ip_header to X-Forwarded-For",
            (edits.header(route, "X-Forwarded-For", "$remote_addr"),),
        )


def check_real_ip(facts: Facts) -> Iterator[Finding]:
    """Report where nginx accepts a client's address from any peer."""
    for found in (one for route in facts.routes for one in route.real_ip_from):
        if found.value.endswith("/0"):
            yield Finding(
                Level.ERROR,
                "real-ip-everybody",
                found.where,
                f"set_real_ip_from is {found.value}, which is every address",
                "any client can choose the address that nginx passes on: the log shows it, and the "
                "rate limit applies to it",
                "set set_real_ip_from to the address or network of the proxy before this one",
            )


def check_trusted(facts: Facts) -> Iterator[Finding]:
    """Report where gunicorn trusts the headers of any peer, and where it does not trust nginx's."""
    trusted = facts.gunicorn.forwarded_allow_ips
    hosts = [one[0] for one in facts.gunicorn.bind.value if isinstance(one, tuple)]
    # A unix socket or the loopback address is open to local processes only.
    is_open = any(not is_loopback(host) for host in hosts)
    is_remote = any(route.upstream.is_remote for route in facts.routes)
    if "*" in trusted.value and is_open:
        own = edits.setting(facts, trusted, 'forwarded_allow_ips = "127.0.0.1"')
        yield Finding(
            Level.ERROR,
            "trusts-everybody",
            trusted.where,
            "forwarded_allow_ips is *, and gunicorn accepts connections from other machines",
            "any client that can connect to the port can choose the address in the log and of its "
            "rate limit, and claim that it uses https",
            "set forwarded_allow_ips to the address or network of the proxy",
            () if is_remote else own,  # the address from which a remote nginx connects is unknown
        )
    if is_remote and all(one != "*" and is_loopback(one) for one in trusted.value):
        yield Finding(
            Level.WARNING,
            "proxy-untrusted",
            trusted.where,
            "nginx connects over the network, and forwarded_allow_ips "
            f"({', '.join(trusted.value) or 'empty'}) has only addresses of this machine",
            "the service ignores what nginx says about the client: it takes https for http, logs "
            "the proxy's address for all clients, and they share one rate limit",
            "set forwarded_allow_ips to the address from which nginx connects",
        )


def check_sockets(facts: Facts) -> Iterator[Finding]:
    """Report the unix sockets to which every local user can connect."""
    gunicorn = facts.gunicorn
    for path in gunicorn.open_sockets:
        yield Finding(
            Level.WARNING,
            "open-socket",
            gunicorn.umask.where if gunicorn.umask.is_set else gunicorn.bind.where,
            f"umask is {gunicorn.umask.value:#o}{gunicorn.umask.by_default}, and every user of "
            f"this machine can connect to {shown(path)}",
            "the worker trusts the X-Forwarded headers of every program that connects to a unix "
            "socket: a local user can choose the address in the log and of the rate limit",
            "set umask = 0o007, with nginx's user in gunicorn's group, or bind a socket in a "
            "folder that only both can enter",
            edits.setting(
                facts,
                gunicorn.umask,
                "umask = 0o007  # nginx's user has to be in the group of gunicorn",
            ),
        )


def check_bind(facts: Facts) -> Iterator[Finding]:
    """Report where gunicorn listens on all addresses, and nginx is on the same machine."""
    bind = facts.gunicorn.bind
    # Where nginx is on another machine, gunicorn has to listen on an address of the network.
    if any(route.upstream.is_remote for route in facts.routes):
        return
    servers = {one for route in facts.routes for one in route.upstream.servers}
    # The addresses that nginx uses; none where a socket of systemd's takes the place of `bind`.
    asked = [one for one in servers if any(reaches(one, bound) for bound in bind.value)]
    everywhere = [one for one in bind.value if isinstance(one, tuple) and is_everywhere(one[0])]
    if asked and everywhere:
        kept = {*asked, *bind.value} - {*everywhere}
        names = json.dumps(sorted(map(shown, kept)))
        yield Finding(
            Level.WARNING,
            "bind-everywhere",
            bind.where,
            f"gunicorn binds {', '.join(map(shown, everywhere))}, and nginx connects to "
            f"{', '.join(sorted(map(shown, asked)))}",
            "clients on other machines can connect to gunicorn directly, without the limits, the "
            "TLS and the log of nginx",
            f"set bind = {names}",
            edits.setting(facts, bind, f"bind = {names}"),
        )


TRUST_CHECKS: tuple[Check, ...] = (
    check_headers, check_real_ip, check_trusted, check_sockets, check_bind,
)  # fmt: skip
