"""Check the headers that nginx sets about a client, and the addresses that are trusted."""

import re
from collections.abc import Iterator

from greenline.deploy.facts import Facts, Route, Sourced, is_loopback
from greenline.deploy.findings import Check, Finding, Level

# Headers that nginx has to set: level, value, and the consequences without it.
WANTED = (
    ("Host", Level.WARNING, "$host",
     "nginx sends the upstream's name instead: links and redirects lead there"),
    ("X-Forwarded-For", Level.ERROR, "$remote_addr",
     "what the client sent of it goes through and is believed: anybody chooses the address that "
     "the log shows and that is rate limited; a level that sets one header inherits none"),
    ("X-Forwarded-Proto", Level.WARNING, "$scheme",
     "the service takes https for http, and what the client sent of it goes through"),
    ("X-Request-Id", Level.WARNING, "$request_id",
     "the line of a request in nginx's log and in the service's have nothing in common"),
    ("X-Request-Start", Level.WARNING, "t=$msec",
     "how long a request waited before a worker took it shows nowhere (proxy_ms in the log)"),
)  # fmt: skip

# The consequences of an empty value: nginx then sends no such header, not even the client's.
EMPTY = {
    "Host": "nginx then sends none, and a request without it is refused",
    "X-Forwarded-For": "nginx then sends none: its own address stands for everybody's in the log, "
    "and there is one rate limit for all",
    "X-Forwarded-Proto": "nginx then sends none: the service takes https for http",
}
# The consequences of a value that the client chooses.
BELIEVED = {
    "Host": (Level.WARNING, "a client that asks for http://one/ with Host: other is served by the "
             "server block of the one, and the application takes it for the other"),
    "X-Forwarded-For": (Level.ERROR, "anybody chooses the address that the service believes: the "
                        "log shows it, and it is rate limited"),
    "X-Forwarded-Proto": (Level.ERROR, "anybody chooses the scheme that the service believes: "
                          "http passes for https"),
    "X-Request-Id": (Level.WARNING, "anybody chooses the id by which requests are found apart in "
                     "the log: several may have the same, or none"),
    "X-Request-Start": (Level.WARNING, "anybody chooses how long the request waited (proxy_ms in "
                        "the log)"),
}  # fmt: skip
CLIENTS = re.compile(r"\$\{?(?:http|arg|cookie)_\w+\}?")
STARTED = re.compile(r"t=|\$(?!\{?msec\b)")  # the value of another variable may begin with t=


def check_headers(facts: Facts) -> Iterator[Finding]:
    """Report the headers that nginx does not set, or copies from the client."""
    for route in facts.routes:
        for name, level, value, why in WANTED:
            found, fix = route.headers.get(name.lower()), f"proxy_set_header {name} {value}"
            code = f"no-{name.lower()}"
            if found is None:
                # headers_where is the level whose own headers hide the inherited ones.
                what = f"{name} is not set"
                yield Finding(level, code, route.headers_where, what, why, fix)
            elif not found.value:
                what, why = f"{name} is empty", EMPTY.get(name, why)
                yield Finding(Level.WARNING, code, found.where, what, why, fix)
            else:
                yield from _valued(name, found, fix, route)
        yield from _appended(route)


def _valued(name: str, found: Sourced[str], fix: str, route: Route) -> Iterator[Finding]:
    taken = CLIENTS.findall(found.value)
    # Behind a trusted proxy, its headers about the client are the right ones. The host is an
    # exception: it is the client's choice through any number of proxies.
    if name in BELIEVED and taken and (name == "Host" or not route.has_real_ip):
        level, why = BELIEVED[name]
        what = f"{name} is what the client sent ({', '.join(taken)})"
        yield Finding(level, f"client-{name.lower()}", found.where, what, why, fix)
    elif name == "X-Request-Start" and not STARTED.match(found.value):
        what = f"X-Request-Start is {found.value}, without t="
        why = "the worker does not read it: proxy_ms in the log stays empty"
        yield Finding(Level.WARNING, "unread-x-request-start", found.where, what, why, fix)


def _appended(route: Route) -> Iterator[Finding]:
    found = route.headers.get("x-forwarded-for")
    # Behind a trusted proxy, realip has replaced the address that is appended.
    if found and "$proxy_add_x_forwarded_for" in found.value and not route.has_real_ip:
        yield Finding(
            Level.WARNING,
            "appended-for",
            found.where,
            "X-Forwarded-For begins with what the client sent ($proxy_add_x_forwarded_for)",
            "who reads its first address, as many do, reads what the client made up",
            "proxy_set_header X-Forwarded-For $remote_addr; behind another proxy also "
            "set_real_ip_from with its address and real_ip_header X-Forwarded-For",
        )


def check_real_ip(facts: Facts) -> Iterator[Finding]:
    """Report where nginx accepts a client's address from any peer."""
    for found in (one for route in facts.routes for one in route.real_ip_from):
        if found.value.endswith("/0"):
            yield Finding(
                Level.ERROR,
                "real-ip-everybody",
                found.where,
                f"set_real_ip_from is {found.value}: everybody",
                "whoever connects chooses the address that nginx passes on: the log shows it, and "
                "it is rate limited",
                "set_real_ip_from with the address or network of the proxy before this one",
            )


def check_trusted(facts: Facts) -> Iterator[Finding]:
    """Report where gunicorn trusts the headers of any peer, and where it does not trust nginx's."""
    trusted = facts.gunicorn.forwarded_allow_ips
    hosts = [one[0] for one in facts.gunicorn.bind.value if isinstance(one, tuple)]
    # A unix socket or the loopback address is open to local processes only.
    is_open = any(not is_loopback(host) for host in hosts)
    if "*" in trusted.value and is_open:
        yield Finding(
            Level.ERROR,
            "trusts-everybody",
            trusted.where,
            "forwarded_allow_ips is *, and gunicorn listens beyond this machine",
            "whoever reaches the port chooses the address that the log shows and that is rate "
            "limited, and says that it came by https",
            "forwarded_allow_ips with the proxy's address or network",
        )
    if all(one != "*" and is_loopback(one) for one in trusted.value):
        for route in facts.routes:
            if route.upstream.is_remote:
                yield Finding(
                    Level.WARNING,
                    "proxy-untrusted",
                    trusted.where,
                    "nginx asks over the network, and forwarded_allow_ips "
                    f"({', '.join(trusted.value) or 'empty'}) is this machine only",
                    "what nginx says of the client is not believed: https is taken for http, and "
                    "the proxy's address for everybody's: one rate limit for all",
                    "forwarded_allow_ips with the address that nginx comes from",
                )


CHECKS: tuple[Check, ...] = (check_headers, check_real_ip, check_trusted)
