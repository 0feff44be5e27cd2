"""Make the edits that correct findings."""

import re
from math import ceil

from greenline.deploy.facts import Facts, Nginx, Route, Sourced, Upstream, shown
from greenline.deploy.findings import Action, Edit
from greenline.deploy.gunicorn import CMD_ARGS

KEEPALIVE = 64  # idle connections that each process of nginx keeps
KEEPALIVE_S = 5  # gunicorn's, where none is set
REST_S = 5  # what graceful_timeout and proxy_read_timeout have beyond a request's deadline
DESCRIPTORS = 65_536


def directive(route: Route, found: Sourced[object], text: str) -> Edit:
    """
    Set a directive of a location.

    :param found: its value before.
    :param text: the directive with its arguments, without a semicolon, str.
    """
    if found.is_set:
        # In place, though it may be inherited: the finding is about that line.
        return Edit(Action.REPLACE, found.where, text.split()[0], f"{text};")
    return Edit(Action.BEFORE, route.place.where, route.place.text, f"{text};")


def header(route: Route, name: str, value: str) -> Edit:
    """Set a header of the requests to the upstream."""
    found, text = route.headers.get(name.lower()), f"proxy_set_header {name} {value};"
    if found is not None:
        return Edit(Action.REPLACE, found.where, f"proxy_set_header {name}", text)
    # At the level that has headers: another level with headers would inherit none of them.
    return Edit(Action.BEFORE, route.headers_place.where, route.headers_place.text, text)


def in_upstream(upstream: Upstream, found: Sourced[object], text: str) -> Edit:
    """Set a directive of an upstream block."""
    if found.is_set:
        return Edit(Action.REPLACE, found.where, text.split()[0], f"{text};")
    return Edit(Action.INSIDE, upstream.where, f"upstream {upstream.name}", f"{text};")


def server_line(found: Sourced[tuple[str, ...]], count: int = 1) -> Edit:
    """Repeat a server line of an upstream *count* times, each with max_fails=0."""
    address, *options = found.value
    kept = [one for one in options if not one.startswith("max_fails=")]
    text = " ".join(["server", address, "max_fails=0", *kept]) + ";"
    target = " ".join(["server", *found.value])
    return Edit(Action.REPLACE, found.where, target, "\n".join([text] * count))


def new_upstream(facts: Facts, route: Route) -> tuple[Edit, ...]:
    """Make an upstream block for the server that a proxy_pass names."""
    if route.server_place is None:
        return ()
    server = shown(route.upstream.servers[0])
    name = "app_" + re.sub(r"\W+", "_", server)
    line = f"    server {server} max_fails=0;\n"
    block = (
        f"upstream {name} {{\n{line}{line}    keepalive {KEEPALIVE};\n"
        f"    keepalive_timeout {keepalive_timeout_s(facts)}s;\n}}"
    )
    passed = f"proxy_pass {route.scheme}{name}{route.uri};"
    return (
        Edit(Action.BEFORE, route.server_place.where, route.server_place.text, block),
        Edit(Action.REPLACE, route.where, "proxy_pass", passed),
        *keep_connections(route),
        *longer_keepalive(facts),
    )


def keep_connections(route: Route) -> tuple[Edit, ...]:
    """Set what nginx before 1.29.7 needs to keep a connection."""
    connection = route.headers.get("connection")
    edits = []
    if route.http_version.value == "1.0":
        edits.append(directive(route, route.http_version, "proxy_http_version 1.1"))
    if connection is None or connection.value.lower() == "close":
        edits.append(header(route, "Connection", '""'))
    return tuple(edits)


def idle_timeouts(facts: Facts, upstream: Upstream) -> tuple[Edit, ...]:
    """Let nginx close an idle connection, before gunicorn does."""
    found, seconds = upstream.keepalive_timeout_s, keepalive_timeout_s(facts)
    text = f"keepalive_timeout {seconds}s"
    own = (in_upstream(upstream, found, text),) if found.value > seconds else ()
    return (*own, *longer_keepalive(facts))


def longer_keepalive(facts: Facts) -> tuple[Edit, ...]:
    """Set gunicorn's keepalive where it is not set, or leaves nothing below it for nginx's."""
    own = facts.gunicorn.keepalive_s
    return (
        () if own.is_set and own.value >= 2 else setting(facts, own, f"keepalive = {KEEPALIVE_S}")
    )


def keepalive_timeout_s(facts: Facts) -> int:
    """Return a keepalive_timeout of an upstream, in seconds, that is below gunicorn's keepalive."""
    own = facts.gunicorn.keepalive_s
    return int(own.value if own.is_set and own.value >= 2 else KEEPALIVE_S) - 1


def graceful_timeout(facts: Facts) -> tuple[Edit, ...]:
    """Set a graceful_timeout in which a drain, and then the longest request, may end."""
    request = facts.service.request_timeout_s
    longest_s = max(request.value if request else 0, facts.keepalive_s)
    seconds = graceful_s(facts.service.drain_delay_s.value, longest_s)
    return setting(facts, facts.gunicorn.graceful_timeout_s, f"graceful_timeout = {seconds}")


def graceful_s(drain_s: float, longest_s: float) -> int:
    """
    Return a graceful_timeout, in seconds.

    :param drain_s: DRAIN_DELAY, float.
    :param longest_s: how long a request or an idle connection may last, float.
    """
    return ceil(drain_s + max(longest_s, KEEPALIVE_S)) + REST_S


def descriptors(nginx: Nginx, connections: int) -> Edit:
    """Allow each process of nginx a descriptor for each of *connections*."""
    found = nginx.descriptors
    text = f"worker_rlimit_nofile {max(DESCRIPTORS, connections)};"
    if found.is_set:
        return Edit(Action.REPLACE, found.where, "worker_rlimit_nofile", text)
    return Edit(Action.BEFORE, f"{nginx.file}:1", "", text)


def setting(facts: Facts, found: Sourced[object], text: str) -> tuple[Edit, ...]:
    """
    Set a setting of gunicorn.

    :param found: its value before.
    :param text: the assignment, str.
    :returns: one edit, or none: what GUNICORN_CMD_ARGS sets is not changed by the file.
    """
    if found.where.startswith(CMD_ARGS):
        return ()
    return (Edit(Action.ASSIGN, facts.gunicorn.file, text.split()[0], text),)


def variable(name: str, value: object) -> Edit:
    """Set a variable of the environment."""
    return Edit(Action.EXPORT, "", name, f"{name}={value}")
